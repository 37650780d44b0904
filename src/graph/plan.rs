//! Compiled plans: the result of [`Graph::compile`], and its listing.

use std::fmt;

use crate::ir::{Embed, Listed, MatrixId, Names, Op, Place, StepLimits, VectorId};

use super::arena::{lay_out, sum_bytes};
use super::fuse::fuse;
use super::lower::lower;
use super::{CompileOptions, Fusion, Graph, GraphError, KvShape, MatrixSpec, StateSpec, VectorSpec};

/// A compiled graph: a list of operations over places in one arena. `Display` prints a listing.
#[derive(Clone, Debug)]
pub struct Plan {
    ops: Vec<Op>,
    inputs: Vec<(String, Place)>,
    outputs: Vec<(String, Place)>,
    matrices: Vec<MatrixSpec>,
    vectors: Vec<VectorSpec>,
    states: Vec<StateSpec>,
    arena_bytes: usize,
    sum_bytes: usize,
    limits: StepLimits,
    kv: Vec<KvShape>,
    vocab: Option<usize>,
}

impl Graph {
    /// Compiles the nodes that the outputs depend on; other nodes are dropped.
    ///
    /// # Errors
    /// [`GraphError::NoOutput`], [`GraphError::Unsupported`] for a node that cannot be lowered,
    /// [`GraphError::TooLarge`].
    pub fn compile(&self, options: &CompileOptions<'_>) -> Result<Plan, GraphError> {
        let mut program = lower(self, options.activations)?;
        let sum_bytes = sum_bytes(&program, options)?;
        if options.fuse == Fusion::On {
            fuse(&mut program);
        }
        program.copy_what_is_needed_later();
        let layout = lay_out(&program, options)?;
        let named = |list: &[(String, usize)]| {
            let place = |value: usize| Place { offset: layout.offsets[value], ..program.place(value) };
            list.iter().map(|(name, value)| (name.clone(), place(*value))).collect()
        };
        Ok(Plan {
            inputs: named(&program.inputs),
            outputs: named(&program.outputs),
            matrices: self.matrices.clone(),
            vectors: self.vectors.clone(),
            states: self.states.clone(),
            arena_bytes: layout.arena_bytes,
            sum_bytes,
            limits: options.limits,
            kv: program.kv,
            vocab: self.vocab(&layout.ops),
            ops: layout.ops,
        })
    }

    /// Upper bound of token ids: the fewest rows among the embedding tables.
    fn vocab(&self, ops: &[Op]) -> Option<usize> {
        let rows = |op: &Op| match op {
            Op::Embed(Embed { table, .. }) => Some(self.matrices[table.0 as usize].rows),
            _ => None,
        };
        ops.iter().filter_map(rows).min()
    }
}

impl Plan {
    /// Operations in execution order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Size of the arena in bytes. Values with disjoint lifetimes share memory.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Total bytes of the unfused graph's values without sharing of memory.
    pub fn unfused_sum_bytes(&self) -> usize {
        self.sum_bytes
    }

    /// Place of the output `output`, if it exists.
    pub fn place(&self, output: &str) -> Option<Place> {
        find(&self.outputs, output)
    }

    /// Place of the input `name`, if it exists.
    pub fn input(&self, name: &str) -> Option<Place> {
        find(&self.inputs, name)
    }

    /// Names of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(name, _)| name.as_str())
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// Matrices to bind, indexed by [`MatrixId`].
    pub fn matrices(&self) -> &[MatrixSpec] {
        &self.matrices
    }

    /// Vectors to bind, indexed by [`VectorId`].
    pub fn vectors(&self) -> &[VectorSpec] {
        &self.vectors
    }

    /// Maximum rows of a step.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// Layers of the required KV pool, grouped by shape; empty without attention.
    pub fn kv(&self) -> &[KvShape] {
        &self.kv
    }

    /// Per-sequence states of recurrent layers, indexed by [`StateId`](super::StateId).
    pub fn states(&self) -> &[StateSpec] {
        &self.states
    }

    /// Elements of a slot for all [`Plan::states`]; 0 if there are none.
    pub fn state_elements(&self) -> usize {
        self.states.last().map_or(0, |spec| spec.state.range().end)
    }

    /// Upper bound of token ids, if the plan embeds tokens.
    pub fn vocab(&self) -> Option<usize> {
        self.vocab
    }
}

fn find(list: &[(String, Place)], name: &str) -> Option<Place> {
    list.iter().find(|(other, _)| other == name).map(|&(_, place)| place)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepLimits { tokens_max, outputs_max } = self.limits;
        writeln!(
            f,
            "plan: {} operations, {tokens_max} tokens and {outputs_max} outputs at most",
            self.ops.len()
        )?;
        writeln!(f, "arena: {} bytes; values without reuse: {} bytes", self.arena_bytes, self.sum_bytes)?;
        for (name, place) in &self.inputs {
            writeln!(f, "  in   {name:<14} {}", Listed(*place))?;
        }
        for (index, op) in self.ops.iter().enumerate() {
            write!(f, "{index:>5}  {:<14} ", op.name())?;
            op.write(f, self)?;
        }
        for (name, place) in &self.outputs {
            writeln!(f, "  out  {name:<14} {}", Listed(*place))?;
        }
        Ok(())
    }
}

impl Names for Plan {
    fn matrix(&self, id: MatrixId) -> &str {
        self.matrices.get(id.0 as usize).map_or("?", |spec| &spec.name)
    }

    fn vector(&self, id: VectorId) -> &str {
        self.vectors.get(id.0 as usize).map_or("?", |spec| &spec.name)
    }
}
