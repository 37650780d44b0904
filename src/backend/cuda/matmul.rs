//! [`Matmul`]: which kernel, in which shape, for how many tokens.

use super::arena::{Arena, Rows, half_cols};
use super::driver::DeviceInfo;
use super::kernels::{Grid, Kernel};
use super::pack::{STEP_COLS, STRIP_ROWS, UNIT_STEPS};
use super::params::{self, PRODUCTS_MAX};
use super::weights::{Matrix, matrix, norm, vector};
use super::{Cuda, overlap_error, shape_error};
use crate::backend::{Activation, BackendError, Epilogue, Frame, Matmul, Product, StepInput, Weights, Write};

const OP: &str = "matmul";

/// From so many tokens on `matmul_many.cu` multiplies; fewer are `matmul_few.cu`'s.
pub(super) const MANY_TOKENS: usize = 33;
/// Warps of a block of `matmul_few.cu`: each takes every eighth unit of columns, so the bits of a
/// result depend on how columns are cut only if they are cut elsewhere than at multiples of 8.
const FEW_WARPS: usize = 8;
/// Strips of a block of `matmul_many.cu`.
const BLOCK_STRIPS: usize = 8;
/// Shared memory that the hardware keeps of each block.
const RESERVED_BYTES: usize = 1024;

/// How `matmul_few.cu` is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FewShape {
    kernel: Kernel,
    /// Units of columns whose activations are in shared memory at a time.
    chunk_units: usize,
    shared_bytes: usize,
    /// Blocks that a multiprocessor holds.
    blocks_per_multiprocessor: usize,
}

impl FewShape {
    fn new(tokens: usize, cols: usize, device: &DeviceInfo) -> FewShape {
        let (kernel, tiles, registers_allow) = match tokens {
            0..=8 => (Kernel::MatmulFew8, 1, 2),
            9..=16 => (Kernel::MatmulFew16, 2, 2),
            _ => (Kernel::MatmulFew32, 4, 1),
        };
        // As `FewShared` in matmul_few.cu: the warps' parts and the rows' scales.
        let fixed = FEW_WARPS * STRIP_ROWS * 8 * tiles * 4 + 8 * tiles * 8;
        let unit = UNIT_STEPS * STEP_COLS;
        let activations = |units: usize| tokens * (units * unit + STEP_COLS) * 2;
        let units = cols.div_ceil(unit).max(1);
        let room = |blocks: usize| {
            let share = (device.shared_multiprocessor / blocks).saturating_sub(RESERVED_BYTES);
            share.min(device.shared_block_max).saturating_sub(fixed)
        };
        // All activations at once if they fit, in as many blocks as registers allow; else in parts.
        let fits = (1..=registers_allow).rev().find(|&blocks| activations(units) <= room(blocks));
        let (blocks, chunk_units) = match fits {
            Some(blocks) => (blocks, units),
            None => {
                let most = (room(1) / (2 * tokens)).saturating_sub(STEP_COLS) / unit;
                (1, (most / FEW_WARPS * FEW_WARPS).clamp(FEW_WARPS, units.next_multiple_of(FEW_WARPS)))
            }
        };
        FewShape {
            kernel,
            chunk_units,
            shared_bytes: fixed + activations(chunk_units),
            blocks_per_multiprocessor: blocks,
        }
    }
}

/// One product of a launch, resolved; `up` is [`None`] where it is not gated.
#[derive(Clone, Copy)]
struct Resolved<'a> {
    matrix: &'a Matrix,
    up: Option<&'a Matrix>,
    params: params::Product,
}

/// What `matmul.cuh` calls the epilogues.
#[derive(Clone, Copy)]
enum Finish {
    Store = 0,
    Add = 1,
    Gated = 2,
    Multiply = 3,
}

impl Cuda {
    pub(super) fn matmul(&self, op: &Matmul, frame: &mut Frame<'_, Cuda>) -> Result<(), BackendError> {
        let Frame { weights, arena, step, .. } = frame;
        op.check()?;
        let src = arena.rows(OP, &op.src, step)?;
        let mut products = Vec::with_capacity(PRODUCTS_MAX);
        let mut destinations: Vec<Rows> = Vec::with_capacity(PRODUCTS_MAX);
        for product in &op.products {
            let (dst, resolved) = resolve(product, src, arena, weights, step)?;
            if dst.overlaps(&src) || destinations.iter().any(|other| other.overlaps(&dst)) {
                return Err(overlap_error(OP, product));
            }
            destinations.push(dst);
            products.push(resolved);
        }
        let (norm, eps) = norm(OP, weights, op.norm.as_ref(), src.cols)?;
        if src.rows == 0 {
            return Ok(());
        }
        let call = params::Matmul {
            src: src.address,
            norm,
            eps,
            tokens: src.rows as u32,
            cols: src.cols as u32,
            half_cols: half_cols(src.cols) as u32,
            ..params::Matmul::default()
        };
        if src.rows < MANY_TOKENS {
            self.few(call, &products)
        } else {
            self.many(call, &products, src, arena)
        }
    }

    fn few(&self, mut call: params::Matmul, products: &[Resolved<'_>]) -> Result<(), BackendError> {
        let device = self.context.info();
        let shape = FewShape::new(call.tokens as usize, call.cols as usize, device);
        call.chunk_units = shape.chunk_units as u32;
        for products in products.chunks(PRODUCTS_MAX) {
            let mut strips = 0;
            for (to, product) in call.products.iter_mut().zip(products) {
                *to = params::Product { first_strip: strips as u32, ..product.params };
                strips += product.matrix.rows().div_ceil(STRIP_ROWS);
            }
            (call.strips, call.product_count) = (strips as u32, products.len() as u32);
            let blocks = strips.min(device.multiprocessors * shape.blocks_per_multiprocessor);
            let grid = Grid { shared_bytes: shape.shared_bytes, ..Grid::line(blocks, 256) };
            // SAFETY: every shape and place was checked by `resolve` and `norm`.
            unsafe { self.kernels.launch(shape.kernel, grid, &call)? };
        }
        Ok(())
    }

    fn many(
        &self,
        mut call: params::Matmul,
        products: &[Resolved<'_>],
        src: Rows,
        arena: &Arena,
    ) -> Result<(), BackendError> {
        let needed = src.rows * half_cols(src.cols) * 2;
        if needed > arena.halves.bytes() || 4 * src.rows > arena.inverse.bytes() {
            let expected =
                format!("at most {} bytes of activations, as the arena was made for", arena.halves.bytes());
            return Err(shape_error(OP, expected, format!("{needed}")));
        }
        (call.halves, call.inverse) = (arena.halves.address(), arena.inverse.address());
        let activations = params::Activations {
            src: call.src,
            norm: call.norm,
            halves: call.halves,
            inverse: call.inverse,
            eps: call.eps,
            tokens: call.tokens,
            cols: call.cols,
            half_cols: call.half_cols,
        };
        // SAFETY: the scratch has room, as just checked.
        unsafe {
            self.kernels.launch(Kernel::Activations, Grid::line(src.rows.div_ceil(8), 256), &activations)?
        };
        // A warp multiplies both matrices of a gate with the same code, so those of different
        // formats are two launches: the gate's values, then the product with them.
        let separate =
            |product: &Resolved<'_>| product.up.is_some_and(|up| up.bits() != product.matrix.bits());
        let halves_of_gates: Vec<Resolved<'_>> =
            products.iter().filter(|p| separate(p)).map(gate_of).collect();
        let rest: Vec<Resolved<'_>> = products
            .iter()
            .map(|product| match product.up {
                Some(up) if separate(product) => product_of(product, up),
                _ => *product,
            })
            .collect();
        self.launch_many(call, &halves_of_gates)?;
        self.launch_many(call, &rest)
    }

    fn launch_many(&self, mut call: params::Matmul, products: &[Resolved<'_>]) -> Result<(), BackendError> {
        let (kernel, block_tokens) =
            if call.tokens <= 64 { (Kernel::MatmulMany64, 64) } else { (Kernel::MatmulMany128, 128) };
        for products in products.chunks(PRODUCTS_MAX) {
            let mut blocks = 0;
            for (to, product) in call.products.iter_mut().zip(products) {
                *to = params::Product { first_strip: blocks as u32, ..product.params };
                let strips = if product.up.is_some() { BLOCK_STRIPS / 2 } else { BLOCK_STRIPS };
                blocks += product.matrix.rows().div_ceil(strips * STRIP_ROWS);
            }
            call.product_count = products.len() as u32;
            let token_blocks = (call.tokens as usize).div_ceil(block_tokens);
            // STAGES · TOKENS · 160 bytes, see matmul_many.cu.
            let shared_bytes = 4 * block_tokens * 160;
            let grid = Grid { blocks: [blocks, token_blocks, 1], threads: [256, 1], shared_bytes };
            // SAFETY: every shape and place was checked by `resolve` and `norm`.
            unsafe { self.kernels.launch(kernel, grid, &call)? };
        }
        Ok(())
    }
}

/// The gate's values alone.
fn gate_of<'a>(product: &Resolved<'a>) -> Resolved<'a> {
    let params = params::Product { epilogue: Finish::Store as u32, ..product.params };
    Resolved { up: None, params, ..*product }
}

/// The product with the gate's values.
fn product_of<'a>(product: &Resolved<'a>, up: &'a Matrix) -> Resolved<'a> {
    let params = params::Product { matrix: up.params(), epilogue: Finish::Multiply as u32, ..product.params };
    Resolved { matrix: up, up: None, params }
}

/// Checks a product's shapes, and finds what the kernel needs.
fn resolve<'a>(
    product: &Product,
    src: Rows,
    arena: &Arena,
    weights: &'a Weights<Cuda>,
    step: &StepInput,
) -> Result<(Rows, Resolved<'a>), BackendError> {
    let own = matrix(OP, weights, product.matrix)?;
    let dst = arena.rows(OP, &product.dst, step)?;
    let shape = |matrix: &Matrix| (matrix.rows(), matrix.cols());
    if shape(own) != (dst.cols, src.cols) || dst.rows != src.rows {
        let expected = format!("matrix [{}, {}], dst [{}, {}]", own.rows(), src.cols, src.rows, own.rows());
        let found = format!("matrix {:?}, dst [{}, {}]", shape(own), dst.rows, dst.cols);
        return Err(shape_error(OP, expected, found));
    }
    let bias = product.bias.map_or(Ok(0), |id| vector(OP, weights, id, own.rows()))?;
    let (finish, up, activation) = match product.epilogue {
        Epilogue::Write(Write::Store) => (Finish::Store, None, Activation::Silu),
        Epilogue::Write(Write::Add) => (Finish::Add, None, Activation::Silu),
        Epilogue::Gated { up, activation } => {
            let up = matrix(OP, weights, up)?;
            if shape(up) != shape(own) {
                let found = format!("{:?}", shape(up));
                return Err(shape_error(OP, format!("an up matrix {:?}", shape(own)), found));
            }
            (Finish::Gated, Some(up), activation)
        }
    };
    let params = params::Product {
        matrix: own.params(),
        up: up.map_or_else(params::Matrix::default, Matrix::params),
        bias,
        dst: dst.address,
        first_strip: 0,
        epilogue: finish as u32,
        activation: super::elementwise::activation_code(activation),
        unused: 0,
    };
    Ok((dst, Resolved { matrix: own, up, params }))
}
