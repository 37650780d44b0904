//! Programs in SSA form: operations over numbered values, between the graph and the plan.
//!
//! Every value is defined by exactly one step. A program reuses the backend's [`Op`]; until `arena` lays it
//! out, the `offset` of a place holds the number of a value. An in-place operation defines a new value;
//! [`Step::renames`] records the old value that it overwrites.

use super::KvShape;
use crate::ir::{Access, Op, Place, Precision, Rows, Unary, UnaryFn};

/// Index of a value.
pub(super) type Value = usize;

/// A value of the program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ValueInfo {
    pub rows: Rows,
    pub cols: usize,
    pub precision: Precision,
    /// Inputs and outputs: alive from the first to the last step, never overwritten.
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
pub(super) struct Step {
    pub op: Op,
    /// `(old, new)`: the operation reads `old` and leaves `new` in the same memory.
    pub renames: Vec<(Value, Value)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Program {
    pub values: Vec<ValueInfo>,
    pub steps: Vec<Step>,
    pub inputs: Vec<(String, Value)>,
    pub outputs: Vec<(String, Value)>,
    pub kv: Vec<KvShape>,
}

/// Definitions and reads of values.
pub(super) struct Uses {
    /// By value: the defining step; `None` for inputs.
    pub def: Vec<Option<usize>>,
    /// By value: the reading steps in ascending order, once per read.
    pub reads: Vec<Vec<usize>>,
}

impl Step {
    pub fn new(op: Op) -> Self {
        Step { op, renames: Vec::new() }
    }

    /// All operands as pairs of access and value.
    pub fn operands(&self) -> Vec<(Access, Value)> {
        self.op.places().into_iter().map(|(access, place)| (access, place.offset)).collect()
    }

    /// Values that the step reads.
    pub fn reads(&self) -> Vec<Value> {
        let read = |(access, value): (Access, Value)| {
            matches!(access, Access::Read | Access::Consume).then_some(value)
        };
        let renamed = self.renames.iter().map(|&(old, _)| old);
        self.operands().into_iter().filter_map(read).chain(renamed).collect()
    }

    /// Values that the step reads and overwrites.
    pub fn destroys(&self) -> Vec<Value> {
        let consumed = |(access, value): (Access, Value)| (access == Access::Consume).then_some(value);
        let renamed = self.renames.iter().map(|&(old, _)| old);
        self.operands().into_iter().filter_map(consumed).chain(renamed).collect()
    }

    /// Values that the step defines.
    pub fn writes(&self) -> Vec<Value> {
        let written = |(access, value): (Access, Value)| {
            matches!(access, Access::Write | Access::Update).then_some(value)
        };
        self.operands().into_iter().filter_map(written).collect()
    }
}

impl Program {
    /// Adds a value.
    pub fn value(&mut self, info: ValueInfo) -> Value {
        self.values.push(info);
        self.values.len() - 1
    }

    /// A placeholder for a value until the arena is laid out.
    pub fn place(&self, value: Value) -> Place {
        let ValueInfo { rows, cols, precision, .. } = self.values[value];
        Place { offset: value, rows, cols, precision }
    }

    pub fn uses(&self) -> Uses {
        let mut uses =
            Uses { def: vec![None; self.values.len()], reads: vec![Vec::new(); self.values.len()] };
        for (index, step) in self.steps.iter().enumerate() {
            step.reads().into_iter().for_each(|value| uses.reads[value].push(index));
            step.writes().into_iter().for_each(|value| uses.def[value] = Some(index));
        }
        uses
    }

    /// Inserts copies where an operation would overwrite a value that is needed later.
    pub fn copy_what_is_needed_later(&mut self) {
        let uses = self.uses();
        let steps = std::mem::take(&mut self.steps);
        for (index, mut step) in steps.into_iter().enumerate() {
            let reads = step.reads();
            for old in step.destroys() {
                let shared = reads.iter().filter(|&&value| value == old).count() > 1;
                let needed = self.values[old].pinned || uses.reads[old].iter().any(|&at| at > index);
                let renamed = step.renames.iter().find(|rename| rename.0 == old).map(|rename| rename.1);
                let fits = renamed.is_none_or(|new| self.values[new].same_shape(&self.values[old]));
                if shared || needed || !fits {
                    self.copy_for(&mut step, old, renamed);
                }
            }
            self.steps.push(step);
        }
    }

    /// Adds a copy of `old` for one operand of `step` to overwrite.
    fn copy_for(&mut self, step: &mut Step, old: Value, renamed: Option<Value>) {
        let like = &self.values[renamed.unwrap_or(old)];
        let copy = ValueInfo { pinned: false, label: self.values[old].label.clone(), ..like.clone() };
        let copy = self.value(copy);
        let (dst, src) = (self.place(copy), self.place(old));
        self.steps.push(Step::new(Op::Unary(Unary { dst, src, f: UnaryFn::Scale(1.0) })));
        match step.renames.iter_mut().find(|rename| rename.0 == old) {
            Some(rename) => rename.0 = copy,
            None => step.op.visit(&mut |access, place| {
                if access == Access::Consume && place.offset == old {
                    *place = dst;
                }
            }),
        }
    }
}
