//! What can be wrong with a graph.

/// Why a graph could not be built or compiled. Nodes are named by their operation, their
/// weight if they have one, and their number.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Operands do not fit each other.
    #[error("{node}: expected {expected}, found {found}")]
    Shape {
        /// The node.
        node: String,
        /// What its contract asks for.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// A node, matrix, vector or state of another graph.
    #[error("{what} {index} is not in this graph, which has {count}")]
    Foreign {
        /// "node", "matrix", "vector" or "state".
        what: &'static str,
        /// Its number.
        index: usize,
        /// How many this graph has.
        count: usize,
    },
    /// Two things of one name that are not the same.
    #[error("{what} {name} is declared twice: {first}, then {second}")]
    Duplicate {
        /// "matrix", "vector", "state", "input" or "output".
        what: &'static str,
        /// The name.
        name: String,
        /// The first shape.
        first: String,
        /// The second shape.
        second: String,
    },
    /// A node is used where no operation can stand for it.
    #[error("{node}: {reason}")]
    Unsupported {
        /// The node.
        node: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A graph without an output computes nothing.
    #[error("the graph has no output")]
    NoOutput,
    /// No output of this name.
    #[error("no output is named {name}; there are: {known}")]
    UnknownOutput {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The arena does not fit the address space.
    #[error("{node}: {rows} rows of {cols} elements are too large")]
    TooLarge {
        /// The value's node.
        node: String,
        /// Most rows.
        rows: usize,
        /// Elements in a row.
        cols: usize,
    },
}
