//! The plan: what a graph compiles to, and how it is printed.

use std::fmt;

use crate::ir::{
    BinaryFn, Epilogue, KvAppend, Matmul, MatrixId, Op, Place, Precision, Product, RmsNorm, Rows, StepLimits,
    UnaryFn, VectorId, Write,
};

use super::arena::{lay_out, sum_bytes};
use super::fuse::fuse;
use super::lower::lower;
use super::{CompileOptions, Fusion, Graph, GraphError, MatrixSpec, VectorSpec};

/// The KV pool that a plan's attentions need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// One more than the highest layer.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// A compiled graph: operations in order, over places in one arena. Prints as a listing.
#[derive(Clone, Debug)]
pub struct Plan {
    ops: Vec<Op>,
    inputs: Vec<(String, Place)>,
    outputs: Vec<(String, Place)>,
    matrices: Vec<MatrixSpec>,
    vectors: Vec<VectorSpec>,
    arena_bytes: usize,
    sum_bytes: usize,
    limits: StepLimits,
    kv: Option<KvShape>,
    vocab: Option<usize>,
}

impl Graph {
    /// Compiles what the outputs need; other nodes cost nothing.
    ///
    /// # Errors
    /// [`GraphError::NoOutput`], [`GraphError::Unsupported`] for a node that no operation can
    /// stand for, [`GraphError::Shape`] if attentions disagree about the KV pool,
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
            arena_bytes: layout.arena_bytes,
            sum_bytes,
            limits: options.limits,
            kv: kv_shape(&layout.ops),
            vocab: self.vocab(&layout.ops),
            ops: layout.ops,
        })
    }

    /// Token ids must be below the rows of every table they index.
    fn vocab(&self, ops: &[Op]) -> Option<usize> {
        let rows = |op: &Op| match op {
            Op::Embed { table, .. } => Some(self.matrices[table.0 as usize].rows),
            _ => None,
        };
        ops.iter().filter_map(rows).min()
    }
}

impl Plan {
    /// The operations, in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Bytes of the arena: what all values take that live at the same time.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Bytes that the unfused graph's values would take, each in a place of its own.
    pub fn unfused_sum_bytes(&self) -> usize {
        self.sum_bytes
    }

    /// Where an output is, if there is one of this name.
    pub fn place(&self, output: &str) -> Option<Place> {
        find(&self.outputs, output)
    }

    /// Where an input is, if there is one of this name.
    pub fn input(&self, name: &str) -> Option<Place> {
        find(&self.inputs, name)
    }

    /// The inputs' names.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(name, _)| name.as_str())
    }

    /// The outputs' names.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// The matrices to bind, by [`MatrixId`].
    pub fn matrices(&self) -> &[MatrixSpec] {
        &self.matrices
    }

    /// The vectors to bind, by [`VectorId`].
    pub fn vectors(&self) -> &[VectorSpec] {
        &self.vectors
    }

    /// What a step may hold.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// The KV pool that it needs, if it has an attention.
    pub fn kv(&self) -> Option<KvShape> {
        self.kv
    }

    /// Token ids must be below this, if the plan embeds tokens.
    pub fn vocab(&self) -> Option<usize> {
        self.vocab
    }

    fn matrix_name(&self, id: MatrixId) -> &str {
        self.matrices.get(id.0 as usize).map_or("?", |spec| &spec.name)
    }

    fn vector_name(&self, id: VectorId) -> &str {
        self.vectors.get(id.0 as usize).map_or("?", |spec| &spec.name)
    }
}

fn find(list: &[(String, Place)], name: &str) -> Option<Place> {
    list.iter().find(|(other, _)| other == name).map(|&(_, place)| place)
}

fn kv_shape(ops: &[Op]) -> Option<KvShape> {
    let attention = |op: &Op| match op {
        Op::Attention(attention) => Some((attention.layer, attention.heads)),
        _ => None,
    };
    let layers = ops.iter().filter_map(attention).map(|(layer, _)| layer + 1).max()?;
    let (_, heads) = ops.iter().find_map(attention)?;
    Some(KvShape { layers, kv_heads: heads.kv, head_dim: heads.dim })
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
            writeln!(f, "  in   {name:<14} {}", Shown(*place))?;
        }
        for (index, op) in self.ops.iter().enumerate() {
            write!(f, "{index:>5}  {:<14} ", op.name())?;
            self.write_op(f, op)?;
        }
        for (name, place) in &self.outputs {
            writeln!(f, "  out  {name:<14} {}", Shown(*place))?;
        }
        Ok(())
    }
}

impl Plan {
    fn write_op(&self, f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
        match op {
            Op::Embed { dst, table, scale } => {
                writeln!(f, "{} = {}[tokens] · {scale}", Shown(*dst), self.matrix_name(*table))
            }
            Op::Norm { dst, src, norm, write } => {
                let norm = self.vector_name(norm.weight);
                writeln!(f, "{} {} norm({}, {norm})", Shown(*dst), sign(*write), Shown(*src))
            }
            Op::Matmul(matmul) => self.write_matmul(f, matmul),
            Op::RopeAngles(angles) => {
                let (pairs, magnitude) = (angles.inv_freq.len(), angles.magnitude);
                writeln!(f, "{} = angles of {pairs} pairs · {magnitude}", Shown(angles.dst))
            }
            Op::Rope { x, head_dim, rope } => {
                writeln!(
                    f,
                    "{} heads of {head_dim}, {:?} by @{}",
                    Shown(*x),
                    rope.pairing,
                    rope.angles.offset
                )
            }
            Op::KvAppend(append) => self.write_append(f, append),
            Op::Attention(a) => {
                let heads = a.heads;
                write!(f, "{} = attention({}) layer {}", Shown(a.dst), Shown(a.q), a.layer)?;
                write!(f, ", {}/{} heads of {} · {}", heads.query, heads.kv, heads.dim, a.scale)?;
                a.window.map_or(Ok(()), |window| write!(f, ", window {window}"))?;
                a.soft_cap.map_or(Ok(()), |cap| write!(f, ", cap {cap}"))?;
                writeln!(f)
            }
            Op::GatherOutputs { dst, src } => writeln!(f, "{} = {}[outputs]", Shown(*dst), Shown(*src)),
            Op::Unary { dst, src, f: function } => {
                writeln!(f, "{} = {}({})", Shown(*dst), unary_text(*function), Shown(*src))
            }
            Op::Binary { dst, a, b, f: function } => {
                let sign = if *function == BinaryFn::Add { '+' } else { '·' };
                writeln!(f, "{} = {} {sign} {}", Shown(*dst), Shown(*a), Shown(*b))
            }
            Op::Sample { dst, src } => writeln!(f, "{} = sample({})", Shown(*dst), Shown(*src)),
            Op::Softmax { dst, src } => writeln!(f, "{} = softmax({})", Shown(*dst), Shown(*src)),
            Op::Transpose { dst, src } => writeln!(f, "{} = transpose({})", Shown(*dst), Shown(*src)),
        }
    }

    fn write_matmul(&self, f: &mut fmt::Formatter<'_>, matmul: &Matmul) -> fmt::Result {
        match matmul.norm {
            Some(RmsNorm { weight, .. }) => {
                writeln!(f, "x = norm({}, {})", Shown(matmul.src), self.vector_name(weight))?;
            }
            None => writeln!(f, "x = {}", Shown(matmul.src))?,
        }
        for Product { dst, matrix, bias, epilogue } in &matmul.products {
            let matrix = self.matrix_name(*matrix);
            write!(f, "{:21} {}", "", Shown(*dst))?;
            match epilogue {
                Epilogue::Write(write) => write!(f, " {} x · {matrix}", sign(*write))?,
                Epilogue::Gated { up, activation } => {
                    write!(f, " = {activation:?}(x · {matrix}) · (x · {})", self.matrix_name(*up))?;
                }
            }
            bias.map_or(Ok(()), |bias| write!(f, " + {}", self.vector_name(bias)))?;
            writeln!(f)?;
        }
        Ok(())
    }

    fn write_append(&self, f: &mut fmt::Formatter<'_>, append: &KvAppend) -> fmt::Result {
        let KvAppend { q, k, v, layer, q_norm, k_norm, rope, .. } = append;
        write!(f, "layer {layer}: q {}, k {}, v {}", Shown(*q), Shown(*k), Shown(*v))?;
        for norm in [q_norm, k_norm].into_iter().flatten() {
            write!(f, ", norm {}", self.vector_name(norm.weight))?;
        }
        rope.map_or(Ok(()), |rope| write!(f, ", rope {:?} by @{}", rope.pairing, rope.angles.offset))?;
        writeln!(f)
    }
}

/// A place as `@offset [rows, cols] precision`.
struct Shown(Place);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { offset, rows, cols, precision } = self.0;
        let precision = match precision {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        };
        match rows {
            Rows::Tokens => write!(f, "@{offset} [tokens, {cols}] {precision}"),
            Rows::Outputs => write!(f, "@{offset} [outputs, {cols}] {precision}"),
            Rows::Fixed(rows) => write!(f, "@{offset} [{rows}, {cols}] {precision}"),
        }
    }
}

fn sign(write: Write) -> &'static str {
    match write {
        Write::Store => "=",
        Write::Add => "+=",
    }
}

fn unary_text(function: UnaryFn) -> String {
    match function {
        UnaryFn::Activation(activation) => format!("{activation:?}"),
        UnaryFn::Scale(factor) => format!("{factor} · "),
        UnaryFn::SoftCap(cap) => format!("cap {cap}"),
        UnaryFn::Cast(precision) => format!("as {precision:?}"),
    }
}
