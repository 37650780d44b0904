//! The decoded instruction: what an operation is, and where its operands lie.

use super::kinds::*;
use crate::memory::Space;
use crate::ptx::Type;
use crate::stats::InstructionClass;

/// Index of a register in its file: 32-bit registers (16-bit ones too, zero-extended), 64-bit
/// registers, or predicates. The operation says which file.
pub(crate) type Slot = u32;
/// Slot 0 of the 32-bit and 64-bit files takes what nobody reads (`_`).
pub(crate) const SINK: Slot = 0;
/// Predicate 0 is always true; predicate 1 takes what nobody reads.
pub(crate) const TRUE: Slot = 0;
/// See [`TRUE`].
pub(crate) const PRED_SINK: Slot = 1;
/// In lists of loads and stores: the register has 64 bits and lies in that file.
pub(crate) const WIDE: Slot = 1 << 31;
/// In lists of loads and stores: the register has 16 bits.
pub(crate) const NARROW: Slot = 1 << 30;

/// An instruction. What `d`, `a`, `b`, `c`, `imm` and the list mean stands at the [`Op`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// Predicate slot of the guard.
    pub(crate) guard: u16,
    /// Guard is negated.
    pub(crate) negated: bool,
    /// Length of the list.
    pub(crate) list_len: u8,
    /// How far it is to the next instruction that does something, or where lanes may meet.
    pub(crate) step: u8,
    /// Start of the list in [`super::Program::lists`].
    pub(crate) list: u32,
    pub(crate) d: Slot,
    pub(crate) a: Slot,
    pub(crate) b: Slot,
    pub(crate) c: Slot,
    pub(crate) imm: i64,
}

impl Inst {
    /// Its list, of the program's lists.
    #[inline(always)]
    pub(crate) fn slots<'l>(&self, lists: &'l [Slot]) -> &'l [Slot] {
        &lists[self.list as usize..][..self.list_len as usize]
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Hints, and what has no effect here.
    Nop,
    /// d = a, 32 bits.
    Mov32,
    /// d = a, 64 bits.
    Mov64,
    /// d = the list's registers of `bits` each, lowest first; d has `bits` × length.
    Pack {
        bits: u8,
    },
    /// The list's registers of `bits` each = a.
    Unpack {
        bits: u8,
    },
    Int(IntOp, IntType),
    Bits(BitOp),
    Float(FloatOp, FloatMode),
    Half(HalfOp, HalfMode),
    /// d = a; both slots carry [`WIDE`] or [`NARROW`] as their registers are declared.
    Convert(Conversion),
    /// d = two f32 narrowed: a in the high half, b in the low one.
    ConvertPair(Conversion),
    /// Predicate d = a cmp b combined with predicate c (negated if bit 32 of imm); the predicate in
    /// the low half of imm = the complement's combination.
    Setp(Cmp, Type, Combine),
    /// d = all ones (or 1.0 if the bool is set) where the comparison holds, else 0; c, imm as for setp.
    Set(Cmp, Type, Combine, bool),
    /// d = predicate c ? a : b (negated if imm).
    Select32,
    Select64,
    /// d = c >= 0 ? a : b; the bools: 64-bit, c is a float (a subnormal one is zero if imm).
    Slct(bool, bool),
    Pred(PredOp),
    /// Class of the float a into predicate d; imm is a set of classes.
    Testp(bool),
    ReadClock(Clock),
    /// The list = bytes at a + imm; c: the address has 32 bits.
    Load(Space, Type),
    /// Bytes at a + imm = the list; c: the address has 32 bits.
    Store(Space, Type),
    /// As [`Op::Load`] and [`Op::Store`], but strong.
    LoadStrong(Space, Type, Order),
    StoreStrong(Space, Type, Order),
    /// d = old value at a + imm; operands b and c; list\[0\]: the address has 32 bits.
    Atomic(Space, AtomicOp, Type, Order),
    /// d = a + window of the space (64 bits).
    ToGeneric(Space),
    /// d = a − window of the space (64 bits).
    FromGeneric(Space),
    /// d = whether a is an address of the space; imm: of constants, which lie in global memory.
    IsSpace(Space),
    /// d = address a in the shared memory of block b of the cluster; the bool: 64 bits (generic).
    Mapa(bool),
    /// d = rank of the block of address a.
    GetCtaRank(bool),
    /// To imm.
    Branch,
    /// To the list's entry of number a.
    BranchIndex,
    Exit,
    Trap,
    /// Barrier a with b threads (b is [`SINK`] for all); d with the reduction of predicate c
    /// (negated by imm).
    Barrier {
        aligned: bool,
        arrive: bool,
        reduction: Option<BarrierReduction>,
    },
    /// Lanes of mask a.
    BarrierWarp,
    ClusterArrive,
    ClusterWait,
    Fence(Order),
    FenceProxyAsync,
    Nanosleep,
    /// `griddepcontrol.wait`
    GridWait,
    /// d, predicate imm = from lane chosen by b and clamp c of a, lanes of mask list\[0\].
    Shuffle(ShuffleOp),
    /// d = vote of predicate a (negated by imm) over lanes of mask b.
    Vote(VoteOp),
    /// d = lanes with the same a as this one, mask b; the bools: all, 64-bit; predicate imm.
    Match(bool, bool),
    /// d = reduction of a over mask b.
    Redux(AtomicOp, IntType),
    ActiveMask,
    /// d = the lowest lane of mask a; predicate imm is true there.
    Elect,
    /// The list = matrices at a + imm.
    Ldmatrix {
        count: u8,
        transposed: bool,
        wide: bool,
    },
    Stmatrix {
        count: u8,
        transposed: bool,
        wide: bool,
    },
    /// The list holds D, A, B, C.
    Mma(MmaKind),
    /// Shared a + low half of imm = `bytes` at global b + high half of imm, c of them read.
    CpAsync {
        bytes: u8,
    },
    CpCommit,
    /// imm groups may stay in flight.
    CpWait,
    CpWaitAll,
    /// An arrival at mbarrier a + imm when all of this thread's cp.async are done.
    CpArrive {
        noinc: bool,
    },
    /// Mbarrier a + imm with count b.
    MbarrierInit,
    MbarrierInval,
    /// Arrival of count b at a + imm; d = state (64 bits). The phase must not end by it if `partial`.
    MbarrierArrive {
        expect: bool,
        drop: bool,
        partial: bool,
    },
    MbarrierExpectTx,
    MbarrierCompleteTx,
    /// Predicate d = phase of parity (or state) b is complete at a + imm.
    MbarrierWait {
        parity: bool,
        try_wait: bool,
    },
    /// d = pending count in state a.
    MbarrierPending,
    /// Shared a = c bytes of global b, mbarrier list\[0\].
    BulkLoad,
    /// Global a = c bytes of shared b.
    BulkStore,
    /// Shared a of the cluster = c bytes of shared b, mbarrier list\[0\].
    BulkShared,
    /// Shared a = box of map b; the list: mbarrier, coordinates; mask c if `multicast`.
    TensorLoad {
        dims: u8,
        multicast: bool,
    },
    /// Box of map b = shared a; the list: coordinates.
    TensorStore {
        dims: u8,
        reduce: bool,
    },
    BulkCommit,
    /// imm groups may stay in flight.
    BulkWait,
    /// The list: D, A if in registers; descriptors a, b; predicate c scales D; imm: bits scale-a
    /// negative, scale-b negative, transpose a, transpose b.
    Wgmma(WgmmaKind),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait,
    /// `vprintf`: the list holds the local addresses of the arguments' values.
    Printf,
    /// `__assertfail`: likewise, message, file, line, function.
    AssertFail,
}

impl Op {
    /// Order of a strong access that may be one to shared memory.
    pub(super) fn flag(self) -> Option<Order> {
        match self {
            Op::LoadStrong(space, _, order)
            | Op::StoreStrong(space, _, order)
            | Op::Atomic(space, _, _, order) => {
                matches!(space, Space::Shared | Space::Generic).then_some(order)
            }
            _ => None,
        }
    }

    /// What it is counted as.
    pub(crate) fn class(self) -> InstructionClass {
        use InstructionClass::*;
        match self {
            Op::Float(..) | Op::Testp(_) => Float,
            Op::Half(..) => Half,
            Op::Convert(c) | Op::ConvertPair(c) if c.to.is_float() || c.from.is_float() => Convert,
            Op::Load(space, _)
            | Op::Store(space, _)
            | Op::LoadStrong(space, ..)
            | Op::StoreStrong(space, ..) => match space {
                Space::Shared => Shared,
                Space::Local => Local,
                Space::Global | Space::Generic => Global,
            },
            Op::Ldmatrix { .. } | Op::Stmatrix { .. } => Shared,
            Op::Atomic(..) => Atomic,
            Op::Branch | Op::BranchIndex | Op::Exit | Op::Trap | Op::Printf | Op::AssertFail => Flow,
            Op::Barrier { .. }
            | Op::BarrierWarp
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::Fence(_)
            | Op::FenceProxyAsync
            | Op::Nanosleep
            | Op::GridWait
            | Op::CpCommit
            | Op::CpWait
            | Op::CpWaitAll
            | Op::CpArrive { .. }
            | Op::MbarrierInit
            | Op::MbarrierInval
            | Op::MbarrierArrive { .. }
            | Op::MbarrierExpectTx
            | Op::MbarrierCompleteTx
            | Op::MbarrierWait { .. }
            | Op::MbarrierPending
            | Op::BulkCommit
            | Op::BulkWait
            | Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait => Sync,
            Op::Shuffle(_) | Op::Vote(_) | Op::Match(..) | Op::Redux(..) | Op::ActiveMask | Op::Elect => {
                Collective
            }
            Op::Mma(_) | Op::Wgmma(_) => Matrix,
            Op::CpAsync { .. }
            | Op::BulkLoad
            | Op::BulkStore
            | Op::BulkShared
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. } => AsyncCopy,
            _ => Integer,
        }
    }
}
