//! Errors of building and compiling graphs.

/// An error of building or compiling a graph. Nodes are identified by operation, weight (if any), and number.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Operand shapes do not match.
    #[error("{node}: expected {expected}, found {found}")]
    Shape {
        /// The node.
        node: String,
        /// The expected operands.
        expected: String,
        /// The operands found.
        found: String,
    },
    /// An id that belongs to another graph.
    #[error("{what} {index} is not in this graph, which has {count}")]
    Foreign {
        /// "node", "matrix", "vector" or "state".
        what: &'static str,
        /// The id.
        index: usize,
        /// Number of such ids in this graph.
        count: usize,
    },
    /// A name is declared twice with different shapes.
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
    /// A node is used where it cannot be lowered to an operation.
    #[error("{node}: {reason}")]
    Unsupported {
        /// The node.
        node: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// The graph has no outputs.
    #[error("the graph has no output")]
    NoOutput,
    /// There is no output of this name.
    #[error("no output is named {name}; there are: {known}")]
    UnknownOutput {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The arena exceeds the address space.
    #[error("{node}: {rows} rows of {cols} elements are too large")]
    TooLarge {
        /// The node of the value.
        node: String,
        /// Maximum number of rows.
        rows: usize,
        /// Elements per row.
        cols: usize,
    },
}
