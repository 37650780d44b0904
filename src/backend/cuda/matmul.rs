//! [`Matmul`]: the choice of kernel and launch shape by number of tokens.

use super::arena::Arena;
use super::kernels::{Grid, Kernel};
use super::many::parts;
use super::pack::half_cols;
use super::params::{self, Finish, PRODUCTS_MAX, SLAB_TOKENS, activation_code};
use super::view::Rows;
use super::weights::{Matrix, matrix, norm, vector};
use super::{Cuda, overlap_error, shape_error};
use crate::backend::{BackendError, Frame, Weights};
use crate::ir::{Activation, Epilogue, Matmul, Operation, Product, StepInput, WriteMode};

const OP: &str = "matmul";

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
        let few = self.few_bytes(src.rows, src.cols);
        if few.is_none() {
            self.activations(&mut call, arena)?;
        }
        for group in op.products.chunks(PRODUCTS_MAX) {
            let mut products = [params::Product::default(); PRODUCTS_MAX];
            for (to, product) in products.iter_mut().zip(group) {
                *to = resolve(product, src, arena, weights, step)?;
            }
            let products = &mut products[..group.len()];
            let stores_maxima = few.is_some() || !self.is_sm90(src.rows);
            if let Some(maxima) = arena.maxima.as_mut().filter(|_| stores_maxima) {
                group.iter().zip(&mut *products).for_each(|(op, product)| maxima.store_in(op, product));
            }
            call.parts = parts(products, src.cols, self.context.info().multiprocessors) as u32;
            match few {
                Some(fixed_bytes) => self.launch_few(call, products, fixed_bytes)?,
                None => self.many(call, products)?,
            }
        }
        Ok(())
    }

    /// Converts the activations of a call to f16, once for all its products.
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
        // Sized for the same number of tokens.
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
        unsafe { self.kernels.launch(kernel, Grid::line(tokens, 256), &params) }
    }

    /// Multiplies packed activations. A warp multiplies both matrices of a gate with the same code, so a gate
    /// with two formats takes two launches: the gate's values, then the product with them.
    fn many(&self, call: params::Matmul, products: &[params::Product]) -> Result<(), BackendError> {
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
        call: params::Matmul,
        products: impl Iterator<Item = params::Product>,
    ) -> Result<(), BackendError> {
        if self.is_sm90(call.tokens as usize) {
            self.launch_sm90(call, products)
        } else {
            self.launch_tiles(call, products)
        }
    }
}

/// Checks a product's shapes and resolves its addresses.
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
        Epilogue::Write(WriteMode::Store) => (Finish::Store, None, Activation::Silu),
        Epilogue::Write(WriteMode::Add) => (Finish::Add, None, Activation::Silu),
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
        first_block: 0,
        epilogue: finish as u32,
        activation: activation_code(activation)?,
        ..params::Product::default()
    })
}
