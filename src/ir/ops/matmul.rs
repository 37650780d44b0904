//! Matrix products with fused norm, bias and epilogue.

use std::fmt;

use crate::ir::listing::{Listed, sign};
use crate::ir::{
    Access, Activation, Counting, InvalidOp, MatrixId, MatrixSize, Names, OpKind, Operation, Place, RmsNorm,
    VectorId, Work, WriteMode,
};

/// Epilogue of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    /// `dst = y (+ bias)`, or `dst += y (+ bias)`.
    Write(WriteMode),
    /// `dst = activation(y) · (x · upᵀ)` with `y = x · matrixᵀ`; without bias.
    Gated {
        /// Up projection, of the same shape as the first matrix.
        up: MatrixId,
        /// Activation of the first product.
        activation: Activation,
    },
}

/// One product of a [`Matmul`]: `y = x · matrixᵀ`, `[rows, matrix.rows]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// `[rows of src, matrix.rows]`
    pub dst: Place,
    /// `[dst.cols, src.cols]`
    pub matrix: MatrixId,
    /// Bias added to every row, `[dst.cols]`.
    pub bias: Option<VectorId>,
    /// Epilogue of the product.
    pub epilogue: Epilogue,
}

impl Product {
    /// All matrices of the product.
    pub fn matrices(&self) -> impl Iterator<Item = MatrixId> {
        let up = match self.epilogue {
            Epilogue::Gated { up, .. } => Some(up),
            Epilogue::Write(_) => None,
        };
        std::iter::once(self.matrix).chain(up)
    }
}

/// Products of one source with several matrices. The source is normalised and (depending on the backend)
/// quantised once for all products.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// `[rows, K]`
    pub src: Place,
    /// Norm applied to each row of `src` before the products; `src` itself is unchanged.
    pub norm: Option<RmsNorm>,
    /// The products; at least one.
    pub products: Vec<Product>,
}

impl Operation for Matmul {
    const NAME: &'static str = "matmul";
    const KIND: OpKind = OpKind::Matmul;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        for product in &mut self.products {
            let access = match product.epilogue {
                Epilogue::Write(write) => write.access(),
                Epilogue::Gated { .. } => Access::Write,
            };
            visit(access, &mut product.dst);
        }
    }

    /// At least one column and one product; no bias on gated products.
    fn check(&self) -> Result<(), InvalidOp> {
        let biased_gate =
            |product: &Product| product.bias.is_some() && matches!(product.epilogue, Epilogue::Gated { .. });
        match &self.products[..] {
            [] => Self::invalid("at least one product", "none"),
            _ if self.src.cols == 0 => Self::invalid("a source of at least one column", "none"),
            products if products.iter().any(biased_gate) => {
                Self::invalid("a gated product without bias", "one")
            }
            _ => Ok(()),
        }
    }

    /// Each matrix is read once for all rows, and not at all without rows.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let rows = self.src.rows.count(counting.step);
        if rows == 0 {
            return Work::default();
        }
        let matrices = self.products.iter().flat_map(Product::matrices).map(counting.matrix);
        let work = |matrix: MatrixSize| {
            let macs = (rows * matrix.rows * matrix.cols) as u64;
            let (int8_macs, float_macs) = if matrix.int8 { (macs, 0) } else { (0, macs) };
            Work { bytes: matrix.bytes as u64, int8_macs, float_macs }
        };
        matrices.map(work).sum()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        match self.norm {
            Some(RmsNorm { weight, .. }) => {
                writeln!(f, "x = norm({}, {})", Listed(self.src), names.vector(weight))?;
            }
            None => writeln!(f, "x = {}", Listed(self.src))?,
        }
        for Product { dst, matrix, bias, epilogue } in &self.products {
            let matrix = names.matrix(*matrix);
            write!(f, "{:21} {}", "", Listed(*dst))?;
            match epilogue {
                Epilogue::Write(write) => write!(f, " {} x · {matrix}", sign(*write))?,
                Epilogue::Gated { up, activation } => {
                    write!(f, " = {activation:?}(x · {matrix}) · (x · {})", names.matrix(*up))?;
                }
            }
            bias.map_or(Ok(()), |bias| write!(f, " + {}", names.vector(bias)))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
