//! PTX text to a typed syntax tree ([`parse`]). Names are not resolved and instructions not
//! understood here: that is `decode`'s work.
//!
//! Text is not trusted: whatever it holds gives a tree or a [`LoadError`], in memory bounded by its
//! length (declared sizes are numbers here, nothing is allocated for them).

mod declaration;
mod lexer;
mod parser;
mod statement;
mod types;

pub(crate) use parser::parse;
pub(crate) use types::Type;

/// A whole PTX text.
#[derive(Debug, Default)]
pub(crate) struct Unit<'a> {
    /// `.target`, the architecture only.
    pub(crate) target: &'a str,
    /// `.file` numbers and names.
    pub(crate) files: Vec<(u32, &'a str)>,
    /// Module-level variables.
    pub(crate) variables: Vec<Variable<'a>>,
    /// Other names of functions, with the function's own.
    pub(crate) aliases: Vec<(&'a str, &'a str)>,
    /// Kernels and functions, also those that are only declared.
    pub(crate) functions: Vec<Function<'a>>,
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A declared variable or parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) space: VariableSpace,
    pub(crate) name: &'a str,
    pub(crate) ty: Type,
    pub(crate) align: u32,
    /// Elements, all dimensions multiplied; `None` is an array without a length (`smem[]`).
    pub(crate) count: Option<u64>,
    /// Initial values of the first elements.
    pub(crate) init: Vec<Init<'a>>,
    pub(crate) line: u32,
}

impl Variable<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        self.count.unwrap_or(0) * u64::from(self.ty.bytes())
    }
}

/// One element of an initialiser.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Init<'a> {
    Number(Number),
    /// Address of a variable, plus an offset; whether it is a generic address.
    Address(&'a str, i64),
}

/// A literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(u64),
    Single(u32),
    Double(u64),
}

/// A kernel or device function.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) entry: bool,
    pub(crate) name: &'a str,
    pub(crate) returns: Vec<Variable<'a>>,
    pub(crate) params: Vec<Variable<'a>>,
    pub(crate) block_max: Option<[u32; 3]>,
    pub(crate) block_required: Option<[u32; 3]>,
    pub(crate) cluster_required: Option<[u32; 3]>,
    pub(crate) body: Option<Vec<Statement<'a>>>,
    pub(crate) line: u32,
}

/// A statement of a function's body.
#[derive(Debug)]
pub(crate) enum Statement<'a> {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `.reg` of a type: names, each with the count of `%r<7>`.
    Registers(Type, Vec<(&'a str, Option<u32>)>),
    Variable(Variable<'a>),
    Label(&'a str),
    /// `.branchtargets` of the label before: the labels that `brx.idx` chooses from.
    Targets(Vec<&'a str>),
    /// `.loc`: where the following instructions come from.
    Source(Source),
    Instruction(Instruction<'a>),
}

/// A `.loc`: file and line, and those of the place it is inlined at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) file: u32,
    pub(crate) line: u32,
    pub(crate) inlined_at: Option<(u32, u32)>,
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub(crate) struct Instruction<'a> {
    /// Predicate register, and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    /// With all modifiers: `ld.global.nc.v4.u32`.
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
    pub(crate) line: u32,
    /// Byte range in the text.
    pub(crate) span: (usize, usize),
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, special register, variable, label or `_`.
    Name(&'a str),
    /// `!%p1`
    Not(&'a str),
    /// `%r1|%p1`
    Pair(&'a str, &'a str),
    Number(Number),
    /// `name+4` outside of brackets.
    Sum(&'a str, i64),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `[a+4]`, or a tensor's `[a, {x, y}]`: base, offset, rest.
    Address(Box<Operand<'a>>, i64, Vec<Operand<'a>>),
    /// `(a, b)` of a call.
    Group(Vec<Operand<'a>>),
}
