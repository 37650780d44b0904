//! Programs in SSA form: operations over numbered values, between the graph and the plan.
//!
//! Every value is defined by exactly one instruction. A program reuses the backend's [`Op`]; until `arena`
//! lays it out, the `offset` of a place holds the number of a value. An in-place operation defines a new
//! value; [`Instr::renames`] records the old value that it overwrites.

use super::KvShape;
use crate::ir::{Access, Op, Place, Precision, Rows, Unary, UnaryFn};

/// Index of a value.
pub(super) type ValueId = usize;

/// A value of the program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ValueInfo {
    pub rows: Rows,
    pub cols: usize,
    pub precision: Precision,
    /// Inputs and outputs: alive from the first to the last instruction, never overwritten.
    pub pinned: bool,
    /// Label of the node that produced it.
    pub label: String,
}

impl ValueInfo {
    /// Whether two values may share memory.
    pub fn same_shape(&self, other: &ValueInfo) -> bool {
        (self.rows, self.cols, self.precision) == (other.rows, other.cols, other.precision)
    }
}

/// An operation, and the values that it overwrites in place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Instr {
    pub op: Op,
    /// `(old, new)`: the operation reads `old` and leaves `new` in the same memory.
    pub renames: Vec<(ValueId, ValueId)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ssa {
    pub values: Vec<ValueInfo>,
    pub instrs: Vec<Instr>,
    pub inputs: Vec<(String, ValueId)>,
    pub outputs: Vec<(String, ValueId)>,
    pub kv: Vec<KvShape>,
}

/// Definitions and reads of values.
pub(super) struct Uses {
    /// By value: the defining instruction; `None` for inputs.
    pub def: Vec<Option<usize>>,
    /// By value: the reading instructions in ascending order, once per read.
    pub reads: Vec<Vec<usize>>,
}

impl Instr {
    pub fn new(op: Op) -> Self {
        Instr { op, renames: Vec::new() }
    }

    /// All operands as pairs of access and value.
    pub fn operands(&self) -> Vec<(Access, ValueId)> {
        self.op.places().into_iter().map(|(access, place)| (access, place.offset)).collect()
    }

    /// Values that the instruction reads.
    pub fn reads(&self) -> Vec<ValueId> {
        let read = |(access, value): (Access, ValueId)| {
            matches!(access, Access::Read | Access::Consume).then_some(value)
        };
        let renamed = self.renames.iter().map(|&(old, _)| old);
        self.operands().into_iter().filter_map(read).chain(renamed).collect()
    }

    /// Values that the instruction reads and overwrites.
    pub fn destroys(&self) -> Vec<ValueId> {
        let consumed = |(access, value): (Access, ValueId)| (access == Access::Consume).then_some(value);
        let renamed = self.renames.iter().map(|&(old, _)| old);
        self.operands().into_iter().filter_map(consumed).chain(renamed).collect()
    }

    /// Values that the instruction defines.
    pub fn writes(&self) -> Vec<ValueId> {
        let written = |(access, value): (Access, ValueId)| {
            matches!(access, Access::Write | Access::Update).then_some(value)
        };
        self.operands().into_iter().filter_map(written).collect()
    }
}

impl Ssa {
    /// Adds a value.
    pub fn value(&mut self, info: ValueInfo) -> ValueId {
        self.values.push(info);
        self.values.len() - 1
    }

    /// A placeholder for a value until the arena is laid out.
    pub fn place(&self, value: ValueId) -> Place {
        let ValueInfo { rows, cols, precision, .. } = self.values[value];
        Place { offset: value, rows, cols, precision }
    }

    pub fn uses(&self) -> Uses {
        let mut uses =
            Uses { def: vec![None; self.values.len()], reads: vec![Vec::new(); self.values.len()] };
        for (index, instr) in self.instrs.iter().enumerate() {
            instr.reads().into_iter().for_each(|value| uses.reads[value].push(index));
            instr.writes().into_iter().for_each(|value| uses.def[value] = Some(index));
        }
        uses
    }

    /// Inserts copies where an operation would overwrite a value that is needed later.
    pub fn copy_what_is_needed_later(&mut self) {
        let uses = self.uses();
        let instrs = std::mem::take(&mut self.instrs);
        for (index, mut instr) in instrs.into_iter().enumerate() {
            let reads = instr.reads();
            for old in instr.destroys() {
                let shared = reads.iter().filter(|&&value| value == old).count() > 1;
                let needed = self.values[old].pinned || uses.reads[old].iter().any(|&at| at > index);
                let renamed = instr.renames.iter().find(|rename| rename.0 == old).map(|rename| rename.1);
                let fits = renamed.is_none_or(|new| self.values[new].same_shape(&self.values[old]));
                if shared || needed || !fits {
                    self.copy_for(&mut instr, old, renamed);
                }
            }
            self.instrs.push(instr);
        }
    }

    /// Adds a copy of `old` for one operand of `instr` to overwrite.
    fn copy_for(&mut self, instr: &mut Instr, old: ValueId, renamed: Option<ValueId>) {
        let like = &self.values[renamed.unwrap_or(old)];
        let copy = ValueInfo { pinned: false, label: self.values[old].label.clone(), ..like.clone() };
        let copy = self.value(copy);
        let (dst, src) = (self.place(copy), self.place(old));
        self.instrs.push(Instr::new(Op::Unary(Unary { dst, src, f: UnaryFn::Scale(1.0) })));
        match instr.renames.iter_mut().find(|rename| rename.0 == old) {
            Some(rename) => rename.0 = copy,
            None => instr.op.visit(&mut |access, place| {
                if access == Access::Consume && place.offset == old {
                    *place = dst;
                }
            }),
        }
    }
}
