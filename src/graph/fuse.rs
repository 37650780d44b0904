//! Fusion passes: each merges one pattern of operations without changing results.
//!
//! A value may be fused away only if it has no other reader and is not an input or output. A pass sweeps the
//! program once with the uses computed at its start. Merges only move reads to earlier instructions, so stale
//! uses are conservative: they prevent valid fusions, but never allow invalid ones.

use std::collections::{BTreeSet, HashMap};

use crate::ir::{
    ApplyRope, Binary, BinaryFn, Epilogue, MatrixId, Normalize, Op, Place, Product, RmsNorm, Rope, Unary,
    UnaryFn, WriteMode,
};

use super::ssa::{Instr, Ssa, Uses, ValueId};

/// Runs all passes.
pub(super) fn fuse(ssa: &mut Ssa) {
    rope_into_append(ssa);
    norm_into_matmul(ssa);
    merge_shared_sources(ssa);
    gate_products(ssa);
    add_products_to_residual(ssa);
    add_norms_to_residual(ssa);
}

/// Fuses `rope(q), rope(k) → append` into an append with rotation.
pub(super) fn rope_into_append(ssa: &mut Ssa) {
    let uses = ssa.uses();
    let mut dead = BTreeSet::new();
    for index in 0..ssa.instrs.len() {
        let Instr { op: Op::KvAppend(append), renames } = &ssa.instrs[index] else { continue };
        let Some(&(q, new_q)) = renames.first() else { continue };
        let (q_rope, k_rope) = (single(ssa, &uses, q), single(ssa, &uses, append.k.offset));
        let (Some(q_at), Some(k_at), None) = (q_rope, k_rope, append.rope) else { continue };
        let (Some((rope, from_q)), Some((other, from_k))) = (
            plain_rope(&ssa.instrs[q_at], append.heads.dim),
            plain_rope(&ssa.instrs[k_at], append.heads.dim),
        ) else {
            continue;
        };
        if rope != other || append.q_norm.is_some() || append.k_norm.is_some() {
            continue;
        }
        let k = ssa.place(from_k);
        if let Instr { op: Op::KvAppend(append), renames } = &mut ssa.instrs[index] {
            append.rope = Some(rope);
            append.k = k;
            *renames = vec![(from_q, new_q)];
        }
        dead.insert(q_at);
        dead.insert(k_at);
    }
    remove(ssa, &dead);
}

/// The rotation of a rope instruction over heads of `dim`, and the rotated value.
fn plain_rope(instr: &Instr, dim: usize) -> Option<(Rope, ValueId)> {
    match (&instr.op, instr.renames.first()) {
        (Op::Rope(ApplyRope { rope, head_dim, .. }), Some(&(old, _))) if *head_dim == dim => {
            Some((*rope, old))
        }
        _ => None,
    }
}

/// Fuses `norm → matmul` into a matmul that normalises its source, if all readers of the norm are matmuls.
pub(super) fn norm_into_matmul(ssa: &mut Ssa) {
    let uses = ssa.uses();
    let mut dead = BTreeSet::new();
    for index in 0..ssa.instrs.len() {
        let Op::Norm(Normalize { dst, src, norm, write: WriteMode::Store }) = ssa.instrs[index].op else {
            continue;
        };
        let Some(norm) = norm.as_rms() else { continue };
        let readers = &uses.reads[dst.offset];
        let plain = |&at: &usize| match &ssa.instrs[at].op {
            Op::Matmul(matmul) => matmul.src == dst && matmul.norm.is_none(),
            _ => false,
        };
        if ssa.values[dst.offset].pinned || readers.is_empty() || !readers.iter().all(plain) {
            continue;
        }
        for &at in readers {
            if let Op::Matmul(matmul) = &mut ssa.instrs[at].op {
                (matmul.src, matmul.norm) = (src, Some(norm));
            }
        }
        dead.insert(index);
    }
    remove(ssa, &dead);
}

/// Merges matmuls with equal source and norm into one matmul, at the position of the first.
pub(super) fn merge_shared_sources(ssa: &mut Ssa) {
    let mut firsts: HashMap<(ValueId, Option<(u32, u32)>), usize> = HashMap::new();
    let mut dead = BTreeSet::new();
    for index in 0..ssa.instrs.len() {
        let Op::Matmul(matmul) = &ssa.instrs[index].op else { continue };
        let norm = |norm: RmsNorm| (norm.weight.0, norm.eps.to_bits());
        let first = *firsts.entry((matmul.src.offset, matmul.norm.map(norm))).or_insert(index);
        if first == index || !ssa.instrs[index].renames.is_empty() {
            continue;
        }
        let products = matmul.products.clone();
        if let Op::Matmul(matmul) = &mut ssa.instrs[first].op {
            matmul.products.extend(products);
        }
        dead.insert(index);
    }
    remove(ssa, &dead);
}

/// Fuses `activation(gate) · up`, both products of one matmul, into one gated product.
pub(super) fn gate_products(ssa: &mut Ssa) {
    let uses = ssa.uses();
    let mut dead = BTreeSet::new();
    for index in 0..ssa.instrs.len() {
        let Op::Binary(Binary { dst, a, b, f: BinaryFn::Mul }) = ssa.instrs[index].op else { continue };
        let gated = gate(ssa, &uses, a, b).or_else(|| gate(ssa, &uses, b, a));
        let Some(Gate { activation_at, matmul_at, gate, up }) = gated else { continue };
        let Op::Unary(Unary { f: UnaryFn::Activation(activation), .. }) = ssa.instrs[activation_at].op else {
            continue;
        };
        if let Op::Matmul(matmul) = &mut ssa.instrs[matmul_at].op {
            let Some(up_matrix) = matrix_of(&matmul.products, up) else { continue };
            matmul.products.retain(|product| product.dst.offset != up);
            let found = matmul.products.iter_mut().find(|product| product.dst.offset == gate);
            if let Some(product) = found {
                product.dst = dst;
                product.epilogue = Epilogue::Gated { up: up_matrix, activation };
            }
        }
        dead.insert(activation_at);
        dead.insert(index);
    }
    remove(ssa, &dead);
}

struct Gate {
    activation_at: usize,
    matmul_at: usize,
    gate: ValueId,
    up: ValueId,
}

/// Matches `activated · plain` as a gate: see [`gate_products`].
fn gate(ssa: &Ssa, uses: &Uses, activated: Place, plain: Place) -> Option<Gate> {
    let activation_at = single(ssa, uses, activated.offset)?;
    let Op::Unary(Unary { src, f: UnaryFn::Activation(_), .. }) = ssa.instrs[activation_at].op else {
        return None;
    };
    let (gate, up) = (src.offset, plain.offset);
    let matmul_at = single(ssa, uses, gate)?;
    let Op::Matmul(matmul) = &ssa.instrs[matmul_at].op else { return None };
    // A value used as both gate and up has two readers and is rejected here.
    single(ssa, uses, up)?;
    let both = [gate, up].iter().all(|&value| matrix_of(&matmul.products, value).is_some());
    both.then_some(Gate { activation_at, matmul_at, gate, up })
}

/// The matrix of a product that is stored without bias.
fn matrix_of(products: &[Product], value: ValueId) -> Option<MatrixId> {
    let stored = |product: &&Product| {
        let plain = product.bias.is_none() && product.epilogue == Epilogue::Write(WriteMode::Store);
        plain && product.dst.offset == value
    };
    products.iter().find(stored).map(|product| product.matrix)
}

/// Fuses `residual + product` into a product added to the residual in place.
pub(super) fn add_products_to_residual(ssa: &mut Ssa) {
    add_to_residual(ssa, |instr, value, dst| {
        let Op::Matmul(matmul) = &mut instr.op else { return false };
        let stored = |product: &&mut Product| {
            product.dst.offset == value && product.epilogue == Epilogue::Write(WriteMode::Store)
        };
        let Some(product) = matmul.products.iter_mut().find(stored) else { return false };
        product.dst = dst;
        product.epilogue = Epilogue::Write(WriteMode::Add);
        true
    });
}

/// Fuses `residual + norm(x)` into a norm added to the residual in place.
pub(super) fn add_norms_to_residual(ssa: &mut Ssa) {
    add_to_residual(ssa, |instr, _, sum| {
        let Op::Norm(Normalize { dst, write: write @ WriteMode::Store, .. }) = &mut instr.op else {
            return false;
        };
        (*dst, *write) = (sum, WriteMode::Add);
        true
    });
}

/// Merges each add into the instruction that computes one of its terms, if the other term may be overwritten
/// there.
/// `merge` changes the instruction to add its result `value` to `sum`.
fn add_to_residual(ssa: &mut Ssa, merge: impl Fn(&mut Instr, ValueId, Place) -> bool) {
    let uses = ssa.uses();
    let mut dead = BTreeSet::new();
    for index in 0..ssa.instrs.len() {
        let Op::Binary(Binary { dst, a, b, f: BinaryFn::Add }) = ssa.instrs[index].op else { continue };
        for (residual, term) in [(a.offset, b.offset), (b.offset, a.offset)] {
            let Some(at) = residual_instr(ssa, &uses, index, residual, term) else { continue };
            if merge(&mut ssa.instrs[at], term, dst) {
                ssa.instrs[at].renames.push((residual, dst.offset));
                dead.insert(index);
                break;
            }
        }
    }
    remove(ssa, &dead);
}

/// The instruction that computes `term`, if it may overwrite `residual` with the sum of instruction `add`:
/// `residual` is defined before the instruction, and `add` is its only reader from then on.
fn residual_instr(ssa: &Ssa, uses: &Uses, add: usize, residual: ValueId, term: ValueId) -> Option<usize> {
    let Op::Binary(Binary { dst, .. }) = ssa.instrs[add].op else { return None };
    let at = single(ssa, uses, term)?;
    let info = &ssa.values[residual];
    let fits =
        info.same_shape(&ssa.values[dst.offset]) && ssa.values[term].rows == info.rows && residual != term;
    let ready = uses.def[residual].is_some_and(|def| def < at);
    let free = !info.pinned && uses.reads[residual].iter().all(|&read| read < at || read == add);
    (fits && ready && free).then_some(at)
}

/// The instruction that defines `value`, if the value has exactly one reader.
fn single(ssa: &Ssa, uses: &Uses, value: ValueId) -> Option<usize> {
    let alone = uses.reads[value].len() == 1 && !ssa.values[value].pinned;
    uses.def[value].filter(|_| alone)
}

fn remove(ssa: &mut Ssa, dead: &BTreeSet<usize>) {
    let mut index = 0..;
    ssa.instrs.retain(|_| index.next().is_some_and(|index| !dead.contains(&index)));
}
