//! The kernels' parameters, field for field as in `kernels-cu/`; the structs there refer to the ones here.
//! Sizes are asserted on both sides. Pointers are device addresses.

use super::no_kernel;
use crate::backend::BackendError;
use crate::ir::Activation;

/// A device address.
pub(super) type Address = u64;

/// Minimum tokens for `sm90_matmul_many.cu`: fewer do not fill two tiles, and `matmul_many.cu` has one tile
/// for them.
pub(super) const SM90_TOKENS_MIN: usize = 65;
/// Alignment of a slab's tokens: those of the largest tile.
pub(super) const SLAB_TOKENS: usize = 128;

/// The epilogues of `matmul.cuh`.
#[derive(Clone, Copy)]
pub(super) enum Finish {
    Store = 0,
    Add = 1,
    Gated = 2,
    Multiply = 3,
}

/// `Activation` in math.cuh, which has no exact GELU.
pub(super) fn activation_code(activation: Activation) -> Result<u32, BackendError> {
    match activation {
        Activation::Silu => Ok(0),
        Activation::GeluTanh => Ok(1),
        Activation::Gelu => Err(no_kernel("the exact GELU")),
    }
}

macro_rules! mirrored {
    ($($(#[$doc:meta])* struct $name:ident [$bytes:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub(super) $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes, "as in kernels-cu");
    )*};
}

mirrored! {
    /// `matrix.cuh`.
    struct Matrix [48] {
        codes: Address,
        scales: Address,
        mins: Address,
        rows: u32,
        cols: u32,
        bits: u32,
        group_steps: u32,
        groups: u32,
        zero: u32,
    }

    /// `matmul.cuh`.
    struct Product [136] {
        matrix: Matrix,
        up: Matrix,
        bias: Address,
        dst: Address,
        first_block: u32,
        epilogue: u32,
        activation: u32,
        noted_strips: u32,
        largest: Address,
    }

    /// `matmul.cuh`.
    struct Matmul [632] {
        src: Address,
        norm: Address,
        eps: f32,
        tokens: u32,
        cols: u32,
        row_blocks: u32,
        product_count: u32,
        parts: u32,
        halves: Address,
        inverse: Address,
        half_cols: u32,
        ring_slices: u32,
        ring_scale_bytes: u32,
        unused: u32,
        partial: Address,
        arrived: Address,
        products: [Product; PRODUCTS_MAX],
    }

    /// `activations.cu`.
    struct Activations [48] {
        src: Address,
        norm: Address,
        halves: Address,
        inverse: Address,
        eps: f32,
        tokens: u32,
        cols: u32,
        half_cols: u32,
    }

    /// `rms_norm.cu`.
    struct RmsNorm [40] {
        dst: Address,
        src: Address,
        weight: Address,
        eps: f32,
        cols: u32,
        add: u32,
        unused: u32,
    }

    /// `kv.cuh`.
    struct KvLayer [32] {
        base: Address,
        page_bytes: u64,
        kv_heads: u32,
        head_dim: u32,
        dtype: u32,
        scale_groups: u32,
    }

    /// `kv.cuh`.
    struct Step [56] {
        tokens: Address,
        positions: Address,
        sequence_of: Address,
        sequences: Address,
        pages: Address,
        outputs: Address,
        counts: Address,
    }

    /// `kv.cuh`.
    struct Sequence [24] {
        rows_start: u32,
        rows_end: u32,
        pages_start: u32,
        pages_end: u32,
        window: u32,
        sinks: u32,
    }

    /// `append.cuh`.
    struct Inputs [72] {
        q: Address,
        k: Address,
        v: Address,
        q_norm: Address,
        k_norm: Address,
        angles: Address,
        q_eps: f32,
        k_eps: f32,
        query_heads: u32,
        angle_cols: u32,
        interleaved: u32,
        unused: u32,
    }

    /// `kv_append.cu`.
    struct KvAppend [160] {
        step: Step,
        kv: KvLayer,
        inputs: Inputs,
    }

    /// `attention.cuh`.
    struct Attention [216] {
        step: Step,
        kv: KvLayer,
        inputs: Inputs,
        dst: Address,
        partial: Address,
        arrived: Address,
        scale: f32,
        soft_cap: f32,
        window: u32,
        splits: u32,
        tiles: Address,
        by_rows: u32,
        first_row: u32,
    }

    /// `bandwidth.cu`.
    struct Bandwidth [24] {
        src: Address,
        dst: Address,
        count: u64,
    }

    /// `elementwise.cu`.
    struct Unary [32] {
        dst: Address,
        src: Address,
        count: u64,
        function: u32,
        argument: f32,
    }

    /// `elementwise.cu`.
    struct Binary [48] {
        dst: Address,
        a: Address,
        b: Address,
        count: u64,
        b_count: u64,
        multiply: u32,
        unused: u32,
    }

    /// `sampled.cuh`.
    struct Sampled [16] {
        ids: Address,
        outputs_max: u32,
        unused: u32,
    }

    /// `sample.cu`.
    struct RowSampling [32] {
        temperature: f32,
        top_k: u32,
        top_p: f32,
        min_p: f32,
        draw: u64,
        adjustments: u32,
        adjustment_count: u32,
    }

    /// `sample.cu`.
    struct Sample [80] {
        dst: Address,
        src: Address,
        sampling: Address,
        tables: Address,
        counts: Address,
        sampled: Sampled,
        cols: u32,
        noted_strips: u32,
        largest: Address,
        bins: Address,
    }

    /// `rows.cu`.
    struct Embed [136] {
        step: Step,
        table: Matrix,
        dst: Address,
        sampled: Sampled,
        scale: f32,
        unused: u32,
    }

    /// `rows.cu`.
    struct Gather [80] {
        step: Step,
        dst: Address,
        src: Address,
        cols: u32,
        unused: u32,
    }

    /// `rows.cu`.
    struct Rows [24] {
        dst: Address,
        src: Address,
        rows: u32,
        cols: u32,
    }

    /// `rope.cu`.
    struct RopeAngles [80] {
        step: Step,
        dst: Address,
        inv_freq: Address,
        magnitude: f32,
        half: u32,
    }

    /// `rope.cu`.
    struct Rope [40] {
        x: Address,
        angles: Address,
        tokens: u32,
        cols: u32,
        head_dim: u32,
        half: u32,
        interleaved: u32,
        unused: u32,
    }
}

/// Maximum products per launch.
pub(super) const PRODUCTS_MAX: usize = 4;
