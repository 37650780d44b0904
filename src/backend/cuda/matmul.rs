//! [`Matmul`]: which kernel, in which shape, for how many tokens.

use super::arena::{Arena, Rows, half_cols};
use super::driver::DeviceInfo;
use super::kernels::{Grid, Kernel};
use super::many::{BLOCK_STRIPS, MANY_TOKENS, ManyShape};
use super::pack::{STEP_COLS, STRIP_ROWS, UNIT_STEPS};
use super::params::{self, PRODUCTS_MAX};
use super::sm90_matmul::SLAB_TOKENS;
use super::weights::{Matrix, matrix, norm, vector};
use super::{Cuda, overlap_error, shape_error};
use crate::backend::{Activation, BackendError, Epilogue, Frame, Matmul, Product, StepInput, Weights, Write};

const OP: &str = "matmul";

/// Warps of a block of `matmul_few.cu`: each takes every eighth unit of columns, so the bits of a
/// result depend on how columns are cut only if they are cut elsewhere than at multiples of 8.
const FEW_WARPS: usize = 8;
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
        // As `FewShared` in matmul_few.cu: the warps' sums, and of each row its parts and its scale.
        let fixed = 8 * tiles * (FEW_WARPS * STRIP_ROWS * 4 + 8 * 8 + 8);
        let unit = UNIT_STEPS * STEP_COLS;
        // A token's activations, and their sums over each step.
        let token_bytes = |units: usize| (units * unit + STEP_COLS) * 2 + (units * UNIT_STEPS + 1) * 4;
        let activations = |units: usize| tokens * token_bytes(units);
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
                let most =
                    (room(1) / tokens).saturating_sub(token_bytes(0)) / (token_bytes(1) - token_bytes(0));
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

/// The same kernel of `matmul_few.cu` for batch-invariant mode.
fn invariant(kernel: Kernel) -> Kernel {
    match kernel {
        Kernel::MatmulFew8 => Kernel::MatmulFewInvariant8,
        Kernel::MatmulFew16 => Kernel::MatmulFewInvariant16,
        _ => Kernel::MatmulFewInvariant32,
    }
}

/// What `matmul.cuh` calls the epilogues.
#[derive(Clone, Copy)]
pub(super) enum Finish {
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
        for (n, product) in op.products.iter().enumerate() {
            let dst = arena.rows(OP, &product.dst, step)?;
            let mut before = op.products[..n].iter().map(|other| arena.rows(OP, &other.dst, step));
            if dst.overlaps(&src) || before.any(|other| other.is_ok_and(|other| other.overlaps(&dst))) {
                return Err(overlap_error(OP, product));
            }
        }
        let (norm, eps) = norm(OP, weights, op.norm.as_ref(), src.cols)?;
        if src.rows == 0 {
            return Ok(());
        }
        let mut call = params::Matmul {
            src: src.address,
            norm,
            eps,
            tokens: src.rows as u32,
            cols: src.cols as u32,
            half_cols: half_cols(src.cols) as u32,
            ..params::Matmul::default()
        };
        let many = src.rows >= MANY_TOKENS;
        if many {
            self.activations(&mut call, arena)?;
        }
        for group in op.products.chunks(PRODUCTS_MAX) {
            let mut products = [params::Product::default(); PRODUCTS_MAX];
            for (to, product) in products.iter_mut().zip(group) {
                *to = resolve(product, src, arena, weights, step)?;
            }
            let products = &products[..group.len()];
            if many { self.many(call, products)? } else { self.few(call, products)? }
        }
        Ok(())
    }

    fn few(&self, mut call: params::Matmul, products: &[params::Product]) -> Result<(), BackendError> {
        let device = self.context.info();
        let shape = FewShape::new(call.tokens as usize, call.cols as usize, device);
        let kernel = if self.batch_invariant { invariant(shape.kernel) } else { shape.kernel };
        call.chunk_units = shape.chunk_units as u32;
        for (to, product) in call.products.iter_mut().zip(products) {
            *to = params::Product { first_strip: call.strips, ..*product };
            call.strips += product.matrix.rows.div_ceil(STRIP_ROWS as u32);
            call.product_count += 1;
        }
        let blocks = (call.strips as usize).min(device.multiprocessors * shape.blocks_per_multiprocessor);
        let grid = Grid { shared_bytes: shape.shared_bytes, ..Grid::line(blocks, 256) };
        // SAFETY: every shape and place was checked by `resolve` and `norm`.
        unsafe { self.kernels.launch(kernel, grid, &call) }
    }

    /// Rounds the activations of a call for many tokens to f16, once for all its products.
    fn activations(&self, call: &mut params::Matmul, arena: &Arena) -> Result<(), BackendError> {
        let (tokens, cols) = (call.tokens as usize, call.half_cols as usize);
        let (kernel, room) = if self.is_sm90(tokens) {
            (Kernel::Sm90Activations, tokens.next_multiple_of(SLAB_TOKENS))
        } else {
            (Kernel::Activations, tokens)
        };
        let needed = room * cols * 2;
        if needed > arena.halves.bytes() || 4 * tokens > arena.inverse.bytes() {
            let expected =
                format!("at most {} bytes of activations, as the arena was made for", arena.halves.bytes());
            return Err(shape_error(OP, expected, format!("{needed}")));
        }
        (call.halves, call.inverse) = (arena.halves.address(), arena.inverse.address());
        // Made for as many tokens.
        (call.partial, call.arrived) = (arena.sums.address(), arena.sums_arrived.address());
        let params = params::Activations {
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
        unsafe { self.kernels.launch(kernel, Grid::line(tokens.div_ceil(8), 256), &params) }
    }

    fn many(&self, call: params::Matmul, products: &[params::Product]) -> Result<(), BackendError> {
        // A warp multiplies both matrices of a gate with the same code, so those of different
        // formats are two launches: the gate's values, then the product with them.
        let separate = |p: &params::Product| p.epilogue == Finish::Gated as u32 && p.up.bits != p.matrix.bits;
        let gate = |p: &params::Product| params::Product {
            up: params::Matrix::default(),
            epilogue: Finish::Store as u32,
            ..*p
        };
        let times_gate = |p: &params::Product| params::Product {
            matrix: p.up,
            epilogue: Finish::Multiply as u32,
            ..gate(p)
        };
        self.launch_many(call, products.iter().filter(|p| separate(p)).map(gate))?;
        self.launch_many(call, products.iter().map(|p| if separate(p) { times_gate(p) } else { *p }))
    }

    fn launch_many(
        &self,
        mut call: params::Matmul,
        products: impl Iterator<Item = params::Product>,
    ) -> Result<(), BackendError> {
        if self.is_sm90(call.tokens as usize) {
            return self.launch_sm90(call, products);
        }
        for (to, product) in call.products.iter_mut().zip(products) {
            let gated = product.epilogue == Finish::Gated as u32;
            let strips = if gated { BLOCK_STRIPS / 2 } else { BLOCK_STRIPS };
            *to = params::Product { first_strip: call.strips, ..product };
            call.strips += product.matrix.rows.div_ceil((strips * STRIP_ROWS) as u32);
            call.product_count += 1;
        }
        let [tokens, cols, row_blocks] = [call.tokens, call.half_cols, call.strips].map(|n| n as usize);
        let shape = if self.batch_invariant {
            ManyShape::batch_invariant(tokens, row_blocks)
        } else {
            ManyShape::new(tokens, cols, row_blocks, self.context.info().multiprocessors)
        };
        let grid = Grid { shared_bytes: shape.shared_bytes(), ..Grid::line(shape.blocks, 256) };
        // SAFETY: every shape and place was checked by `resolve` and `norm`, the scratch by `activations`.
        unsafe { self.kernels.launch(shape.kernel, grid, &call) }
    }
}

/// Checks a product's shapes, and finds what the kernel needs.
fn resolve(
    product: &Product,
    src: Rows,
    arena: &Arena,
    weights: &Weights<Cuda>,
    step: &StepInput,
) -> Result<params::Product, BackendError> {
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
    Ok(params::Product {
        matrix: own.params(),
        up: up.map_or_else(params::Matrix::default, Matrix::params),
        bias,
        dst: dst.address,
        first_strip: 0,
        epilogue: finish as u32,
        activation: super::elementwise::activation_code(activation),
        unused: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A card by the shared memory of a block at most, and of a multiprocessor, in KiB.
    fn card(shared_block_max: usize, shared_multiprocessor: usize) -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: String::new(),
            compute_capability: (8, 0),
            multiprocessors: 108,
            pci_bus_id: String::new(),
            memory_bytes: 0,
            shared_block_max: shared_block_max << 10,
            shared_multiprocessor: shared_multiprocessor << 10,
        }
    }

    #[test]
    fn activations_that_fit_no_block_come_in_chunks() {
        let cards = [card(99, 100), card(163, 164), card(227, 228)];
        // (tokens, columns) to (blocks a multiprocessor, units a chunk) on an RTX 4090, an A100 and an H200.
        for (tokens, cols, want) in [
            (1, 14_336, [(2, 112), (2, 112), (2, 112)]),
            (3, 14_336, [(1, 104), (1, 112), (2, 112)]),
            (7, 14_336, [(1, 40), (1, 80), (1, 112)]),
            (8, 8960, [(1, 40), (1, 70), (1, 70)]),
            (9, 8960, [(1, 32), (1, 56), (1, 70)]),
            (16, 2048, [(1, 16), (1, 16), (2, 16)]),
            (16, 14_336, [(1, 16), (1, 32), (1, 48)]),
            // Registers allow no second block.
            (17, 100, [(1, 1), (1, 1), (1, 1)]),
            (32, 2048, [(1, 8), (1, 8), (1, 16)]),
        ] {
            let found = cards.each_ref().map(|card| {
                let shape = FewShape::new(tokens, cols, card);
                (shape.blocks_per_multiprocessor, shape.chunk_units)
            });
            assert_eq!(found, want, "{tokens} x {cols}");
        }
    }

    #[test]
    fn blocks_fit_beside_each_other_and_chunks_end_where_the_warps_turns_do() {
        for card in [card(99, 100), card(163, 164), card(227, 228)] {
            for (tokens, cols) in (1..MANY_TOKENS).flat_map(|n| [32, 576, 2100, 8960, 28_672].map(|k| (n, k)))
            {
                let shape = FewShape::new(tokens, cols, &card);
                let all = shape.blocks_per_multiprocessor * (shape.shared_bytes + RESERVED_BYTES);
                assert!(shape.shared_bytes <= card.shared_block_max, "{tokens} x {cols}: {shape:?}");
                assert!(all <= card.shared_multiprocessor, "{tokens} x {cols}: {shape:?}");
                let whole = shape.chunk_units * UNIT_STEPS * STEP_COLS >= cols;
                assert!(whole || shape.chunk_units.is_multiple_of(FEW_WARPS), "{tokens} x {cols}: {shape:?}");
            }
        }
    }
}
