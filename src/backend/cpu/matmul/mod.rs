//! [`Matmul`]: checks shapes, packs the activations once, and runs the panels of all products on the pool as
//! one list. The arithmetic is in `panel`.

mod experts;
mod formats;
pub(crate) mod panel;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

use crate::backend::cpu::arena::Arena;
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::memory::Rows;
use crate::backend::cpu::pack::{
    FloatGroup, INT8_BYTES, Int8Group, Layout, Matrix, Pack, ROWS_PER_CHUNK, groups,
};
use crate::backend::cpu::{Cpu, check_vector};
use crate::backend::{BackendError, Frame, PreparedMatrix, Weights};
use crate::backend::{overlap_error, shape_error};
use crate::ir::{Epilogue, Matmul, MatrixId, Operation, Product, RmsNorm, StepInput, WriteMode};
use crate::quant::{Bits, Codes};
use formats::{Dense, E2M1, E4m3, Float, Int8};
pub(crate) use panel::PanelArgs;
use panel::{Finish, RunPanel, activate_panel, k_block_groups, run_panel};

const OP: &str = "matmul";

/// Minimum chunks per thread, if there are enough panels. Small chunks let other threads take over from a
/// late one, and keep the wait at the end short.
const CHUNKS_PER_THREAD: usize = 64;

impl Cpu {
    /// See [`Matmul`].
    pub(crate) fn matmul(&self, op: &Matmul, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
        let Frame { weights, arena, step, .. } = frame;
        op.check()?;
        let src = arena.rows(OP, &op.src, step)?;
        if src.rows == 0 {
            return Ok(());
        }
        let norm = op.norm.as_ref().map(|norm| norm_weight(norm, weights, src.cols)).transpose()?;
        let mut call = Call { cpu: self, weights, arena, step, src, panels: 0, int8: false, float: false };
        call.arena.products.clear();
        for product in &op.products {
            call.add(product)?;
        }
        call.check_scratch()?;
        call.run(norm);
        Ok(())
    }

    fn panels_per_chunk(&self, panels: usize) -> usize {
        (panels / (self.threads() * CHUNKS_PER_THREAD)).max(1)
    }
}

/// An operation's call: its operands, and the products resolved so far.
struct Call<'a> {
    cpu: &'a Cpu,
    weights: &'a Weights<Cpu>,
    arena: &'a mut Arena,
    step: &'a StepInput,
    src: Rows,
    panels: usize,
    int8: bool,
    float: bool,
}

impl Call<'_> {
    /// Adds a product: one entry, or three for a gated one.
    fn add(&mut self, product: &Product) -> Result<(), BackendError> {
        let matrix = matrix(self.weights, product.matrix)?;
        let dst = self.arena.rows(OP, &product.dst, self.step)?;
        if matrix.cols() != self.src.cols || matrix.rows() != dst.cols || dst.rows != self.src.rows {
            let expected = format!("dst [{}, {}]", self.src.rows, matrix.rows());
            let found = format!(
                "src [{}, {}], matrix [{}, {}], dst [{}, {}]",
                self.src.rows,
                self.src.cols,
                matrix.rows(),
                matrix.cols(),
                dst.rows,
                dst.cols
            );
            return Err(shape_error(OP, expected, found));
        }
        let clash = |args: &PanelArgs| {
            let rows = Rows { ptr: args.dst, rows: args.tokens, cols: args.rows };
            rows.overlaps(&dst)
        };
        if dst.overlaps(&self.src) || self.arena.products.iter().any(clash) {
            return Err(overlap_error(OP, product));
        }
        let bias = match product.bias {
            Some(id) => check_vector(OP, self.weights, id, matrix.rows())?.as_ptr(),
            None => std::ptr::null(),
        };
        match product.epilogue {
            Epilogue::Write(WriteMode::Store) => self.push(matrix, dst, bias, Finish::Store),
            Epilogue::Write(WriteMode::Add) => self.push(matrix, dst, bias, Finish::Add),
            Epilogue::Gated { up, activation } => {
                // Three entries over the same panels: a thread computes a chunk's gates, activations and
                // products before its next chunk, so that the values are still in its caches. The two
                // matrices may have different formats.
                let up = matrix_like(self.weights, up, matrix)?;
                self.push(matrix, dst, bias, Finish::Store);
                self.push(matrix, dst, std::ptr::null(), Finish::Activate(activation));
                self.push(up, dst, std::ptr::null(), Finish::Multiply);
            }
        }
        self.panels += matrix.panels();
        Ok(())
    }

    fn push(&mut self, matrix: &Matrix, dst: Rows, bias: *const f32, finish: Finish) {
        let (run, int8) = (kernel(matrix), matrix.multiplies_int8());
        self.int8 |= int8;
        self.float |= !int8;
        let activations = match int8 {
            true => self.arena.activations.int8.as_ptr(),
            false => self.arena.activations.float.as_ptr(),
        };
        let (groups, tokens) = (groups(matrix.cols()), dst.rows);
        self.arena.products.push(PanelArgs {
            run: if matches!(finish, Finish::Activate(_)) { activate_panel } else { run },
            weights: matrix.as_ptr(),
            panel_bytes: matrix.panel_bytes(),
            groups,
            rows: matrix.rows(),
            tokens,
            k_block_groups: k_block_groups(tokens, groups, matrix.layout().group_bytes(), self.cpu.cache),
            hint: self.cpu.hint,
            activations,
            dst: dst.ptr,
            bias,
            finish,
            first_panel: self.panels,
        });
    }

    fn check_scratch(&self) -> Result<(), BackendError> {
        let needed = self.src.rows * groups(self.src.cols);
        let room = self.arena.activations.int8.bytes() / INT8_BYTES;
        if needed > room {
            let expected = format!("at most {room} groups of activations, as the arena was made for");
            return Err(shape_error(OP, expected, format!("{needed}")));
        }
        Ok(())
    }

    fn run(&mut self, norm: Option<(*const f32, f32)>) {
        let scratch = &mut self.arena.activations;
        let int8 =
            if self.int8 { scratch.int8.as_mut_ptr().cast::<Int8Group>() } else { std::ptr::null_mut() };
        let float =
            if self.float { scratch.float.as_mut_ptr().cast::<FloatGroup>() } else { std::ptr::null_mut() };
        let pack = Pack { src: self.src, norm, int8, float };
        let per_chunk = self.cpu.panels_per_chunk(self.panels);
        let list =
            PanelList { isa: self.cpu.isa, products: &self.arena.products, panels: self.panels, per_chunk };
        let pack_chunks = self.src.rows.div_ceil(ROWS_PER_CHUNK);
        let chunks = self.panels.div_ceil(per_chunk);
        let prepare = || {
            // SAFETY: the instruction set is available; the scratch has room for all groups
            // (`check_scratch`), each chunk of `pack` writes the records of its own rows.
            unsafe { self.cpu.parallel(&pack, pack_chunks) };
        };
        // SAFETY: shapes were checked in `add`, weights and arena outlive the call, destinations
        // do not overlap each other or the source, and a panel's columns belong to one chunk.
        unsafe {
            if pack_chunks == 1 {
                self.cpu.pool.run_after(prepare, run_panels, &list, chunks);
            } else {
                prepare();
                self.cpu.pool.run(run_panels, &list, chunks);
            }
        }
    }
}

/// The panels of all products, in the order of the products.
struct PanelList<'a> {
    isa: Isa,
    products: &'a [PanelArgs],
    panels: usize,
    per_chunk: usize,
}

impl PanelList<'_> {
    /// The panels of chunk `chunk` in working order, each as its product and its index there.
    fn steps(&self, chunk: usize) -> impl Iterator<Item = (&PanelArgs, usize)> + Clone {
        let first = chunk * self.per_chunk;
        let chunk = first..(first + self.per_chunk).min(self.panels);
        let of = move |product| PanelArgs::own_panels(product, &chunk).map(move |panel| (product, panel));
        self.products.iter().flat_map(of)
    }
}

unsafe fn run_panels(list: &PanelList<'_>, chunk: usize, _worker: usize) {
    let mut steps = list.steps(chunk);
    while let Some((product, panel)) = steps.next() {
        // A thread's next chunk is usually the following one.
        let mut later = steps.clone().chain(list.steps(chunk + 1));
        let next = later.find_map(|(product, panel)| product.weights_of(panel));
        // SAFETY: promised by `Call::run`.
        unsafe { (product.run)(product, list.isa, panel, next.unwrap_or(product.end())) }
    }
}

/// The kernel for a matrix.
fn kernel(matrix: &Matrix) -> RunPanel {
    macro_rules! quant {
        ($format:ident, $form:expr) => {
            match $form {
                (Codes::Int(Bits::Four), false, false) => run_panel::<$format<4, false, false>>,
                (Codes::Int(Bits::Four), false, true) => run_panel::<$format<4, false, true>>,
                (Codes::Int(Bits::Four), true, false) => run_panel::<$format<4, true, false>>,
                (Codes::Int(Bits::Four), true, true) => run_panel::<$format<4, true, true>>,
                (Codes::Int(Bits::Five), false, false) => run_panel::<$format<5, false, false>>,
                (Codes::Int(Bits::Five), true, false) => run_panel::<$format<5, true, false>>,
                (Codes::Int(Bits::Six), false, true) => run_panel::<$format<6, false, true>>,
                (Codes::Int(Bits::Eight), false, false) => run_panel::<$format<8, false, false>>,
                (Codes::Int(Bits::Eight), false, true) => run_panel::<$format<8, false, true>>,
                (Codes::Int(Bits::Eight), true, false) => run_panel::<$format<8, true, false>>,
                (Codes::Int(Bits::Eight), true, true) => run_panel::<$format<8, true, true>>,
                (Codes::E2m1, _, false) => run_panel::<$format<E2M1, false, false>>,
                (Codes::E2m1, _, true) => run_panel::<$format<E2M1, false, true>>,
                _ => unreachable!("`Layout::of` has no such form"),
            }
        };
    }
    match matrix.layout() {
        Layout::Quant { kind: Codes::E4m3, .. } => run_panel::<Dense<E4m3>>,
        Layout::Quant { kind, mins, halves } if matrix.multiplies_int8() => {
            quant!(Int8, (kind, mins, halves))
        }
        Layout::Quant { kind, mins, halves } => quant!(Float, (kind, mins, halves)),
        Layout::F32 => run_panel::<Dense<f32>>,
        Layout::F16 => run_panel::<Dense<f16>>,
        Layout::Bf16 => run_panel::<Dense<bf16>>,
    }
}

fn matrix(weights: &Weights<Cpu>, id: MatrixId) -> Result<&Matrix, BackendError> {
    let count = weights.matrices.len();
    weights
        .matrices
        .get(id.0 as usize)
        .ok_or_else(|| shape_error(OP, format!("a matrix id below {count}"), format!("{}", id.0)))
}

fn matrix_like<'a>(
    weights: &'a Weights<Cpu>,
    id: MatrixId,
    like: &Matrix,
) -> Result<&'a Matrix, BackendError> {
    let found = matrix(weights, id)?;
    if (found.rows(), found.cols()) == (like.rows(), like.cols()) {
        return Ok(found);
    }
    let expected = format!("an up matrix [{}, {}]", like.rows(), like.cols());
    Err(shape_error(OP, expected, format!("[{}, {}]", found.rows(), found.cols())))
}

fn norm_weight(
    norm: &RmsNorm,
    weights: &Weights<Cpu>,
    cols: usize,
) -> Result<(*const f32, f32), BackendError> {
    Ok((check_vector(OP, weights, norm.weight, cols)?.as_ptr(), norm.eps))
}
