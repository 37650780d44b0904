//! [`KvAppend`]: normalises and rotates the heads of queries and keys, and writes keys and values to their
//! pages.
//!
//! Each token writes its own slot of its own page, so tokens run in any order.

use half::f16;

use super::norm::normalise;
use super::rope::Rotation;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::{KvLayer, Rows};
use crate::backend::cpu::{Cpu, check_vector};
use crate::backend::{BackendError, Frame};
use crate::backend::{overlap_error, shape_error};
use crate::ir::{Heads, KV_SCALE_GROUP, KvAppend, KvDtype, PAGE_TOKENS, PageId, RmsNorm, StepInput};

const OP: &str = "kv_append";
/// Tokens per chunk.
const TOKENS_PER_CHUNK: usize = 2;

/// See [`KvAppend`].
pub(crate) fn append(cpu: &Cpu, op: &KvAppend, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    let heads = op.heads;
    let weights = frame.weights;
    let head_norm = |norm: &RmsNorm| -> Result<_, BackendError> {
        Ok((check_vector(OP, weights, norm.weight, heads.dim)?.as_ptr(), norm.eps))
    };
    let q_norm = op.q_norm.as_ref().map(head_norm).transpose()?;
    let k_norm = op.k_norm.as_ref().map(head_norm).transpose()?;
    let rotation = op.rope.as_ref().map(|rope| Rotation::new(OP, rope, heads.dim, frame)).transpose()?;
    let [q, k, v] = [op.q, op.k, op.v].map(|place| frame.arena.rows(OP, &place, frame.step));
    let (q, k, v) = (q?, k?, v?);
    check_heads(OP, heads, &[(q, heads.query), (k, heads.kv), (v, heads.kv)], frame.step)?;
    let turned = rotation.is_some_and(|rotation| rotation.overlaps(&q) || rotation.overlaps(&k));
    if q.overlaps(&k) || q.overlaps(&v) || k.overlaps(&v) || turned {
        return Err(overlap_error(OP, op));
    }
    let layer = frame.kv.layer_for(OP, op.layer, heads)?;
    let kernel = Append { q, k, v, heads, q_norm, k_norm, rotation, layer, step: frame.step };
    // SAFETY: shapes are checked; a chunk writes its own tokens' rows and slots.
    unsafe { cpu.parallel(&kernel, q.rows.div_ceil(TOKENS_PER_CHUNK)) };
    Ok(())
}

/// Checks that values have `heads.dim` elements per head and a row per token.
pub(crate) fn check_heads(
    op: &'static str,
    heads: Heads,
    values: &[(Rows, usize)],
    step: &StepInput,
) -> Result<(), BackendError> {
    let tokens = step.tokens.len();
    for (value, count) in values {
        if value.rows != tokens || value.cols != count * heads.dim {
            let expected = format!("[{tokens}, {count} heads of {}]", heads.dim);
            return Err(shape_error(op, expected, format!("[{}, {}]", value.rows, value.cols)));
        }
    }
    if heads.kv == 0 || !heads.query.is_multiple_of(heads.kv) {
        let expected = format!("query heads a multiple of {}", heads.kv);
        return Err(shape_error(op, expected, format!("{}", heads.query)));
    }
    Ok(())
}

struct Append<'a> {
    q: Rows,
    k: Rows,
    v: Rows,
    heads: Heads,
    q_norm: Option<(*const f32, f32)>,
    k_norm: Option<(*const f32, f32)>,
    rotation: Option<Rotation>,
    layer: KvLayer,
    step: &'a StepInput,
}

// SAFETY: `run` states the rows that a chunk writes; the submitter may share the pointers.
unsafe impl Sync for Append<'_> {}

impl Kernel for Append<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * TOKENS_PER_CHUNK;
        for token in first..(first + TOKENS_PER_CHUNK).min(self.q.rows) {
            // SAFETY: the token's rows, heads and slot exist and are this chunk's.
            unsafe {
                for head in 0..self.heads.query {
                    self.prepare::<L>(self.q.row(token).add(head * self.heads.dim), self.q_norm, token);
                }
                let Some((page, slot)) = slot_of(self.step, token) else { continue };
                for head in 0..self.heads.kv {
                    let k = self.k.row(token).add(head * self.heads.dim);
                    self.prepare::<L>(k, self.k_norm, token);
                    let v = self.v.row(token).add(head * self.heads.dim).cast_const();
                    let block = self.layer.block(page, head);
                    match self.layer.shape.dtype {
                        KvDtype::F16 => self.write_f16::<L>(block, slot, k.cast_const(), v),
                        KvDtype::Int8 => self.write_int8::<L>(block, slot, k.cast_const(), v),
                    }
                }
            }
        }
    }
}

/// The page of a token's position, and its slot in it.
fn slot_of(step: &StepInput, token: usize) -> Option<(PageId, usize)> {
    let position = *step.positions.get(token)?;
    let row = token as u32;
    let index = step.sequences.partition_point(|sequence| sequence.rows.end <= row);
    let pages = &step.sequences.get(index)?.pages;
    let table = step.pages.get(pages.start as usize..pages.end as usize)?;
    let slot = position as usize % PAGE_TOKENS;
    let start = position - slot as u32;
    let entry = table.binary_search_by_key(&start, |entry| entry.start).ok()?;
    Some((table[entry].page, slot))
}

impl Append<'_> {
    #[inline(always)]
    unsafe fn prepare<L: Lanes>(&self, head: *mut f32, norm: Option<(*const f32, f32)>, token: usize) {
        // SAFETY: a head of `dim` elements, the norm's weight and the rotation are made for it.
        unsafe {
            if let Some((weight, eps)) = norm {
                normalise::<L>(head, head.cast_const(), weight, self.heads.dim, eps, false);
            }
            if let Some(rotation) = self.rotation {
                rotation.rotate::<L>(head, token);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_f16<L: Lanes>(&self, block: *mut u8, slot: usize, k: *const f32, v: *const f32) {
        let dim = self.heads.dim;
        // SAFETY: the block has `dim` elements of keys and values for each slot.
        unsafe {
            let keys = block.cast::<f16>();
            let values = block.add(self.layer.shape.values).cast::<f16>().add(slot * dim);
            let mut rounded = [f16::ZERO; LANES];
            for col in (0..dim).step_by(LANES) {
                let n = (dim - col).min(LANES);
                L::store_f16(rounded.as_mut_ptr(), L::load_n(k.add(col), n));
                for (i, &element) in rounded[..n].iter().enumerate() {
                    *keys.add((col + i) * PAGE_TOKENS + slot) = element;
                }
                L::store_f16(rounded.as_mut_ptr(), L::load_n(v.add(col), n));
                values.add(col).copy_from_nonoverlapping(rounded.as_ptr(), n);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_int8<L: Lanes>(&self, block: *mut u8, slot: usize, k: *const f32, v: *const f32) {
        let (dim, shape) = (self.heads.dim, self.layer.shape);
        // SAFETY: the block has `dim` codes and `groups` scales of keys and values for each slot.
        unsafe {
            let (keys, values) = (block.cast::<i8>(), block.add(shape.values).cast::<i8>().add(slot * dim));
            let key_scales = block.add(shape.key_scales).cast::<f16>();
            let value_scales = block.add(shape.value_scales).cast::<f16>();
            for group in 0..shape.groups {
                let col = group * KV_SCALE_GROUP;
                let n = (dim - col).min(KV_SCALE_GROUP);
                let (codes, scale) = quantise::<L>(k.add(col), n);
                *key_scales.add(group * PAGE_TOKENS + slot) = scale;
                for (i, &code) in codes[..n].iter().enumerate() {
                    *keys.add((col + i) * PAGE_TOKENS + slot) = code;
                }
                let (codes, scale) = quantise::<L>(v.add(col), n);
                *value_scales.add(group * PAGE_TOKENS + slot) = scale;
                values.add(col).copy_from_nonoverlapping(codes.as_ptr(), n);
            }
        }
    }
}

/// Codes and scale of up to 32 elements. The scale is the largest magnitude / 127, rounded to f16 and
/// saturating. An element that is not finite makes the scale NaN, so that everything read back is NaN, too.
#[inline(always)]
unsafe fn quantise<L: Lanes>(p: *const f32, n: usize) -> ([i8; KV_SCALE_GROUP], f16) {
    let mut codes = [0i8; KV_SCALE_GROUP];
    // SAFETY: reads `n` elements; writes 32 codes on the stack.
    unsafe {
        let low = L::load_n(p, n.min(LANES));
        let high = if n > LANES { L::load_n(p.add(LANES), n - LANES) } else { L::splat(0.0) };
        let largest = L::reduce_max(L::max(L::abs(low), L::abs(high)));
        let zero = L::splat(0.0);
        // x · 0 is 0 unless x is infinite or NaN.
        let poison = L::reduce_add(L::fma(low, zero, L::mul(high, zero)));
        let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()) + poison);
        if scale == f16::ZERO || scale.is_nan() {
            return (codes, scale);
        }
        let (divisor, limit) = (L::splat(scale.to_f32()), L::splat(127.0));
        let lowest = L::splat(-127.0);
        for (half, values) in [low, high].into_iter().enumerate() {
            let code = L::max(lowest, L::min(limit, L::div(values, divisor)));
            L::store_i8(codes.as_mut_ptr().add(half * LANES), L::to_i32(code));
        }
        (codes, scale)
    }
}
