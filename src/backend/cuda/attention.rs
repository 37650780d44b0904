//! [`KvAppend`] and [`Attention`].

use std::f32::consts::LOG2_E;

use super::header::attention_constant;
use super::kernels::{Grid, Kernel};
use super::params;
use super::step::{DECODE_WARPS, Shape, TILE_ROWS, splits_max};
use super::view::Rows;
use super::weights::norm;
use super::{Cuda, overlap_error, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{Attention, Heads, KvAppend, Operation, PAGE_TOKENS, Rope, RopePairing};

/// Bytes of shared memory of `attention_prefill.cu` in addition to its tiles.
const PREFILL_BESIDE: usize = attention_constant("PREFILL_BESIDE");
const APPEND: &str = "kv_append";
const ATTENTION: &str = "attention";

/// Checks that values have `heads.dim` elements per head and one row per token.
fn check_heads(
    op: &'static str,
    heads: Heads,
    values: &[(Rows, usize)],
    tokens: usize,
) -> Result<(), BackendError> {
    match values.iter().find(|(value, count)| value.rows != tokens || value.cols != count * heads.dim) {
        Some((value, count)) => {
            let expected = format!("[{tokens}, {count} heads of {}]", heads.dim);
            Err(shape_error(op, expected, format!("[{}, {}]", value.rows, value.cols)))
        }
        None => Ok(()),
    }
}

/// The angles of a rotation: one row per token, no longer than a head.
pub(super) fn angles(
    op: &'static str,
    rope: &Rope,
    head_dim: usize,
    frame: &Frame<'_, Cuda>,
) -> Result<Rows, BackendError> {
    let angles = frame.arena.rows(op, &rope.angles, frame.step)?;
    let tokens = frame.step.tokens.len();
    if angles.rows != tokens || !angles.cols.is_multiple_of(2) || angles.cols > head_dim {
        let expected = format!("angles [{tokens}, at most {head_dim}, even]");
        return Err(shape_error(op, expected, format!("[{}, {}]", angles.rows, angles.cols)));
    }
    Ok(angles)
}

pub(super) fn interleaved(rope: &Rope) -> u32 {
    u32::from(rope.pairing == RopePairing::Interleaved)
}

impl Cuda {
    pub(super) fn kv_append(&self, op: &KvAppend, frame: &mut Frame<'_, Cuda>) -> Result<(), BackendError> {
        let (heads, tokens) = (op.heads, frame.step.tokens.len());
        let params = params::KvAppend {
            step: frame.arena.step.params(),
            kv: frame.kv.layer(APPEND, op.layer, heads)?,
            inputs: inputs(op, frame)?,
        };
        let blocks = [tokens, heads.query + 2 * heads.kv, 1];
        let grid = Grid { blocks, threads: [32, 1], shared_bytes: 4 * heads.dim };
        // SAFETY: shapes and places are checked, the step's tables are on the device.
        unsafe { self.kernels.launch(Kernel::KvAppend, grid, &params) }
    }

    pub(super) fn attention(&self, op: &Attention, frame: &mut Frame<'_, Cuda>) -> Result<(), BackendError> {
        let q = frame.arena.rows(ATTENTION, &op.q, frame.step)?;
        let query_heads = op.heads.query as u32;
        let inputs = params::Inputs { q: q.address, query_heads, ..params::Inputs::default() };
        let (params, shape) = attention_params(op, q, inputs, frame)?;
        self.attend_decodes(&params, op, shape)?;
        self.attend_prompts(&params, op.heads, shape)
    }

    /// Append and attention as one launch, for a step in which all sequences have one token. They run one
    /// after another if the destination overlaps inputs that other blocks still read.
    pub(super) fn append_and_attend(
        &self,
        append: &KvAppend,
        op: &Attention,
        frame: &mut Frame<'_, Cuda>,
    ) -> Result<(), BackendError> {
        let rows = |place| frame.arena.rows(ATTENTION, place, frame.step);
        let (q, dst) = (rows(&op.q)?, rows(&op.dst)?);
        let angles = append.rope.as_ref().map(|rope| &rope.angles);
        for place in [&append.k, &append.v].into_iter().chain(angles) {
            if rows(place)?.overlaps(&dst) {
                self.kv_append(append, frame)?;
                return self.attention(op, frame);
            }
        }
        let (params, shape) = attention_params(op, q, inputs(append, frame)?, frame)?;
        self.attend_decodes(&params, op, shape)
    }

    fn attend_decodes(
        &self,
        params: &params::Attention,
        op: &Attention,
        shape: Shape,
    ) -> Result<(), BackendError> {
        let heads = op.heads;
        if !shape.decodes {
            return Ok(());
        }
        let by_dim = match heads.dim {
            0..=64 => 0,
            65..=128 => 1,
            _ => 2,
        };
        let (block_heads, kernels) = heads_a_block(heads);
        let kernel = kernels[by_dim];
        // One partial result per warp and head (weighted sum, maximum, sum of weights), then the prepared
        // heads.
        let parts = DECODE_WARPS * block_heads * (heads.dim + 2);
        let shared_bytes = 4 * (parts + (block_heads + 2) * heads.dim);
        // Depends on the operation and the step's shape only, so that recordings stay valid.
        let splits =
            op.window.map_or(shape.splits, |window| shape.splits.min(splits_max(pages_seen(window))));
        let (count, at_once) = (shape.by_rows.unwrap_or(shape.sequences), shape.decodes_a_launch());
        for first in (0..count).step_by(at_once) {
            let params = params::Attention { first_row: first as u32, ..*params };
            let blocks = [splits, heads.query / block_heads, at_once.min(count - first)];
            let grid = Grid { blocks, threads: [32 * DECODE_WARPS as u32, 1], shared_bytes };
            // SAFETY: checked by `attention_params` and `inputs`.
            unsafe { self.kernels.launch(kernel, grid, &params) }?;
        }
        Ok(())
    }

    fn attend_prompts(
        &self,
        params: &params::Attention,
        heads: Heads,
        shape: Shape,
    ) -> Result<(), BackendError> {
        // Maximum head_dim and keys per tile, as instantiated in the kernel's file.
        let (kernel, dim, keys) = match heads.dim {
            0..=64 => (Kernel::AttentionPrefill64, 64, 64),
            65..=128 => (Kernel::AttentionPrefill128, 128, 64),
            _ => (Kernel::AttentionPrefill256, 256, 32),
        };
        let shared_bytes = (TILE_ROWS + 2 * keys) * (dim + 8) * 2 + PREFILL_BESIDE;
        // Heads are the fastest dimension: those of a group read the same keys and values.
        let blocks = [heads.query, shape.tiles, 1];
        // SAFETY: checked by `attention_params` and `inputs`.
        unsafe { self.kernels.launch(kernel, Grid { blocks, threads: [128, 1], shared_bytes }, params) }
    }
}

/// Checks the inputs of an append (queries, keys, values, norms, angles).
fn inputs(op: &KvAppend, frame: &Frame<'_, Cuda>) -> Result<params::Inputs, BackendError> {
    let heads = op.heads;
    let (q_norm, q_eps) = norm(APPEND, frame.weights, op.q_norm.as_ref(), heads.dim)?;
    let (k_norm, k_eps) = norm(APPEND, frame.weights, op.k_norm.as_ref(), heads.dim)?;
    let [q, k, v] = [op.q, op.k, op.v].map(|place| frame.arena.rows(APPEND, &place, frame.step));
    let (q, k, v) = (q?, k?, v?);
    let tokens = frame.step.tokens.len();
    check_heads(APPEND, heads, &[(q, heads.query), (k, heads.kv), (v, heads.kv)], tokens)?;
    let turned = op.rope.as_ref().map(|rope| angles(APPEND, rope, heads.dim, frame)).transpose()?;
    let on_angles = turned.is_some_and(|angles| angles.overlaps(&q) || angles.overlaps(&k));
    if q.overlaps(&k) || q.overlaps(&v) || k.overlaps(&v) || on_angles {
        return Err(overlap_error(APPEND, op));
    }
    Ok(params::Inputs {
        q: q.address,
        k: k.address,
        v: v.address,
        q_norm,
        k_norm,
        angles: turned.map_or(0, |angles| angles.address),
        q_eps,
        k_eps,
        query_heads: heads.query as u32,
        angle_cols: turned.map_or(0, |angles| angles.cols as u32),
        interleaved: op.rope.as_ref().map_or(0, interleaved),
        unused: 0,
    })
}

/// Checks an attention with queries at `q`.
fn attention_params(
    op: &Attention,
    q: Rows,
    inputs: params::Inputs,
    frame: &Frame<'_, Cuda>,
) -> Result<(params::Attention, Shape), BackendError> {
    let dst = frame.arena.rows(ATTENTION, &op.dst, frame.step)?;
    let values = [(q, op.heads.query), (dst, op.heads.query)];
    check_heads(ATTENTION, op.heads, &values, frame.step.tokens.len())?;
    if q.overlaps(&dst) {
        return Err(overlap_error(ATTENTION, op));
    }
    op.check()?;
    let arena = &frame.arena;
    let shape = arena.step.shape();
    let parts = shape.decodes_a_launch() * op.heads.query;
    let partial_bytes = if shape.splits > 1 { 4 * parts * shape.splits * (op.heads.dim + 2) } else { 0 };
    if partial_bytes > arena.partial.bytes() || 4 * parts > arena.arrived.bytes() {
        let expected = "an attention that the arena was made for".into();
        return Err(shape_error(ATTENTION, expected, format!("{:?}", op.heads)));
    }
    let params = params::Attention {
        step: arena.step.params(),
        kv: frame.kv.layer(ATTENTION, op.layer, op.heads)?,
        inputs,
        dst: dst.address,
        partial: arena.partial.address(),
        arrived: arena.arrived.address(),
        scale: op.scale * LOG2_E * op.soft_cap.map_or(1.0, |cap| 2.0 / cap),
        soft_cap: LOG2_E * op.soft_cap.unwrap_or(0.0),
        window: op.window.unwrap_or(u32::MAX),
        splits: shape.splits as u32,
        tiles: arena.step.tiles(),
        by_rows: u32::from(shape.by_rows.is_some()),
        first_row: 0,
    };
    Ok((params, shape))
}

/// Query heads per block, with the kernels for each size of head. Kernels for 5 and 7 heads have a low
/// occupancy (blocks per multiprocessor), so only groups of exactly that size gain from them.
const DECODE_KERNELS: [(usize, [Kernel; 3]); 6] = [
    (7, [Kernel::AttentionDecode7x8, Kernel::AttentionDecode7x16, Kernel::AttentionDecode7x32]),
    (5, [Kernel::AttentionDecode5x8, Kernel::AttentionDecode5x16, Kernel::AttentionDecode5x32]),
    (4, [Kernel::AttentionDecode4x8, Kernel::AttentionDecode4x16, Kernel::AttentionDecode4x32]),
    (3, [Kernel::AttentionDecode3x8, Kernel::AttentionDecode3x16, Kernel::AttentionDecode3x32]),
    (2, [Kernel::AttentionDecode2x8, Kernel::AttentionDecode2x16, Kernel::AttentionDecode2x32]),
    (1, [Kernel::AttentionDecode1x8, Kernel::AttentionDecode1x16, Kernel::AttentionDecode1x32]),
];

/// Maximum number of pages that a window of `window` tokens touches.
fn pages_seen(window: u32) -> usize {
    (window as usize).saturating_sub(1).div_ceil(PAGE_TOKENS) + 1
}

/// The kernels with the most query heads per block that divide a key head's group.
fn heads_a_block(heads: Heads) -> (usize, [Kernel; 3]) {
    let group = heads.query / heads.kv.max(1);
    let divides = |&(count, _): &(usize, [Kernel; 3])| match count {
        5 | 7 => group == count,
        _ => group.is_multiple_of(count),
    };
    DECODE_KERNELS.into_iter().find(divides).unwrap_or(DECODE_KERNELS[DECODE_KERNELS.len() - 1])
}
