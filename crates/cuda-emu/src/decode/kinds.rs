//! What operations are told apart by inside of their group: types, rounding, modes, shapes.

use crate::ptx::Type;

/// Integer types of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntType {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

/// Integer operations: `d = a op b op c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntOp {
    Add,
    Sub,
    AddSat,
    SubSat,
    MulLo,
    MulHi,
    MulWide,
    MadLo,
    MadHi,
    MadWide,
    Sad,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Not,
    Neg,
    Abs,
    Popc,
    Clz,
    Brev,
    Bfind,
    BfindShift,
    Bfe,
    /// Position in list\[0\], length in list\[1\].
    Bfi,
    /// Adds with the carry flag: reads it if bit 0 of `imm`, writes it if bit 1.
    AddCarry,
    /// Subtracts with borrow, likewise.
    SubCarry,
    /// `mad.lo.cc`, `madc.lo`, likewise.
    MadLoCarry,
    /// `mad.hi.cc`, `madc.hi`, likewise.
    MadHiCarry,
}

/// What a strong access or an atomic orders by itself; a fence does the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

impl Order {
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Order::Acquire | Order::AcqRel)
    }

    pub(crate) fn releases(self) -> bool {
        matches!(self, Order::Release | Order::AcqRel)
    }
}

/// Operations on 32 bits that fit no type: the parameter is the instruction's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitOp {
    /// Truth table.
    Lop3(u8),
    Prmt(PrmtMode),
    ShfLeft {
        wrap: bool,
    },
    ShfRight {
        wrap: bool,
    },
    /// Whether a and b are signed.
    Dp4a(bool, bool),
    /// As dp4a, with the halves of b chosen by `high`.
    Dp2a {
        a_signed: bool,
        b_signed: bool,
        high: bool,
    },
    Bmsk {
        wrap: bool,
    },
}

/// How `prmt` reads its selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrmtMode {
    Index,
    Forward4,
    Backward4,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

/// Rounding of floating arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    Zero,
    Down,
    Up,
    /// To nearest, ties away from zero (`.rna`).
    Away,
}

/// Operations on f32 and f64: `d = a op b op c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Div,
    Fma,
    Min,
    Max,
    MinNan,
    MaxNan,
    Neg,
    Abs,
    Sqrt,
    Rcp,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
    /// `copysign`: the sign of a, the magnitude of b.
    CopySign,
}

/// How an operation on f32 or f64 is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatMode {
    pub(crate) double: bool,
    pub(crate) rounding: Rounding,
    /// Subnormal inputs and results are zero.
    pub(crate) ftz: bool,
    /// The result is clamped to 0 to 1.
    pub(crate) sat: bool,
}

/// Operations on f16 and bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfOp {
    Add,
    Sub,
    Mul,
    Fma,
    Min,
    Max,
    MinNan,
    MaxNan,
    Neg,
    Abs,
    Ex2,
    Tanh,
}

/// How an operation on f16 or bf16 is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HalfMode {
    pub(crate) bf16: bool,
    /// Two in a register.
    pub(crate) packed: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    /// Negative results and NaN become zero and canonical NaN.
    pub(crate) relu: bool,
}

/// A conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) rounding: Rounding,
    /// Float to float of the same size rounds to an integer (`.rni` and the like).
    pub(crate) to_integer: bool,
    /// Clamped to the integers of the type, or to 0 to 1.
    pub(crate) sat: bool,
    /// What is too large becomes the largest finite number.
    pub(crate) satfinite: bool,
    pub(crate) ftz: bool,
    pub(crate) relu: bool,
}

/// Comparisons; the unordered ones are true if an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// How a comparison is combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    None,
    And,
    Or,
    Xor,
}

/// Logic on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredOp {
    Mov,
    Not,
    And,
    Or,
    Xor,
}

/// Operations of atomics and reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

impl AtomicOp {
    /// The operation that a part of an opcode names.
    pub(super) fn parse(part: &str) -> Option<Self> {
        Some(match part {
            "add" => Self::Add,
            "min" => Self::Min,
            "max" => Self::Max,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            "exch" => Self::Exch,
            "cas" => Self::Cas,
            "inc" => Self::Inc,
            "dec" => Self::Dec,
            _ => return None,
        })
    }
}

/// Which lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleOp {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What a vote gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteOp {
    Ballot,
    Any,
    All,
    Uni,
}

/// What `bar.red` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    Popc,
    And,
    Or,
}

/// Shapes and types of `mma.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MmaKind {
    /// Elements along the reduced dimension, for m16n8.
    pub(crate) k: u8,
    /// Type of A (B has the same but for s8 and u8).
    pub(crate) a: Type,
    pub(crate) b: Type,
    /// Type of the accumulator: f32, f16 or s32.
    pub(crate) acc: Type,
    pub(crate) sat: bool,
}

/// Shape and types of `wgmma.mma_async`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WgmmaKind {
    pub(crate) n: u16,
    pub(crate) a: Type,
    pub(crate) acc: Type,
    /// A is in registers.
    pub(crate) a_registers: bool,
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    Lane,
    Warp,
    Nwarp,
    Sm,
    Nsm,
    GridId,
    LaneEq,
    LaneLe,
    LaneLt,
    LaneGe,
    LaneGt,
    DynamicShared,
    TotalShared,
    /// Environment registers: 1 and 2 hold the address of the grid barrier's workspace.
    Env(u8),
}

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Cycles, which count as nanoseconds here, or nanoseconds: the low half of 64 bits.
    Low,
    High,
    Whole,
}
