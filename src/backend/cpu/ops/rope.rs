//! Rotary position embedding: the angles of a step, and the rotation of heads in place.
//! (Su et al. 2021, "RoFormer".)

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::{BackendError, Frame, shape_error};
use crate::ir::{Place, Rope, RopeAngles, RopePairing};

/// Rows per chunk.
const ROWS_PER_CHUNK: usize = 16;

/// See [`RopeAngles`].
pub(crate) fn angles(op: &RopeAngles, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    const OP: &str = "rope_angles";
    let (positions, half) = (&frame.step.positions, op.inv_freq.len());
    if op.dst.cols != 2 * half || half == 0 {
        return Err(shape_error(OP, format!("{} columns, at least 2", 2 * half), format!("{}", op.dst.cols)));
    }
    let [out] = frame.arena.slices(OP, [(&op.dst, positions.len())])?;
    for (&position, row) in positions.iter().zip(out.chunks_exact_mut(2 * half)) {
        let (cos, sin) = row.split_at_mut(half);
        for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(op.inv_freq.iter()) {
            let (s, c) = (f64::from(position) * freq).sin_cos();
            *cos = (c * f64::from(op.magnitude)) as f32;
            *sin = (s * f64::from(op.magnitude)) as f32;
        }
    }
    Ok(())
}

/// A checked rotation: the angles and the pairing of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    angles: Rows,
    pairing: RopePairing,
}

impl Rotation {
    /// Checks that there is a row of angles per token, and that it fits a head.
    pub(crate) fn new(
        op: &'static str,
        rope: &Rope,
        head_dim: usize,
        frame: &mut Frame<'_, Cpu>,
    ) -> Result<Rotation, BackendError> {
        let angles = frame.arena.rows(op, &rope.angles, frame.step)?;
        let tokens = frame.step.tokens.len();
        if angles.rows != tokens || !angles.cols.is_multiple_of(2) || angles.cols > head_dim {
            let expected = format!("angles [{tokens}, at most {head_dim}, even]");
            return Err(shape_error(op, expected, format!("[{}, {}]", angles.rows, angles.cols)));
        }
        Ok(Rotation { angles, pairing: rope.pairing })
    }

    pub(crate) fn overlaps(&self, other: &Rows) -> bool {
        self.angles.overlaps(other)
    }

    /// Rotates one head of token `token`.
    ///
    /// # Safety
    /// `head` has the `head_dim` elements that [`Rotation::new`] has checked, `token` is one of the step's.
    #[inline(always)]
    pub(crate) unsafe fn rotate<L: Lanes>(&self, head: *mut f32, token: usize) {
        let half = self.angles.cols / 2;
        // SAFETY: within the head and within the token's row of angles.
        unsafe {
            let cos = self.angles.row(token).cast_const();
            let sin = cos.add(half);
            match self.pairing {
                RopePairing::Halves => rotate_halves::<L>(head, cos, sin, half),
                RopePairing::Interleaved => rotate_interleaved(head, cos, sin, half),
            }
        }
    }
}

#[inline(always)]
unsafe fn rotate_halves<L: Lanes>(head: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    // SAFETY: `2 · half` elements of the head, `half` of each table.
    unsafe {
        for i in (0..half).step_by(LANES) {
            let left = half - i;
            let load = |p: *const f32| L::load_n(p, left);
            let (x, y) = (load(head.add(i)), load(head.add(half + i)));
            let (c, s) = (load(cos.add(i)), load(sin.add(i)));
            let turned = [L::sub(L::mul(x, c), L::mul(y, s)), L::add(L::mul(y, c), L::mul(x, s))];
            for (at, value) in [i, half + i].into_iter().zip(turned) {
                L::store_n(head.add(at), left, value);
            }
        }
    }
}

#[inline(always)]
unsafe fn rotate_interleaved(head: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    for i in 0..half {
        // SAFETY: `2 · half` elements of the head, `half` of each table.
        unsafe {
            let (x, y) = (*head.add(2 * i), *head.add(2 * i + 1));
            let (c, s) = (*cos.add(i), *sin.add(i));
            *head.add(2 * i) = x * c - y * s;
            *head.add(2 * i + 1) = y * c + x * s;
        }
    }
}

/// See [`crate::ir::Op::Rope`].
pub(crate) fn rope(
    cpu: &Cpu,
    x: &Place,
    head_dim: usize,
    rope: &Rope,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "rope";
    let rotation = Rotation::new(OP, rope, head_dim, frame)?;
    let x = frame.arena.rows(OP, x, frame.step)?;
    let tokens = frame.step.tokens.len();
    if head_dim == 0 || !x.cols.is_multiple_of(head_dim) || x.rows != tokens || rotation.overlaps(&x) {
        let expected = format!("x [{tokens}, heads of {head_dim}] apart from the angles");
        return Err(shape_error(OP, expected, format!("[{}, {}]", x.rows, x.cols)));
    }
    let kernel = RotateRows { x, head_dim, rotation };
    // SAFETY: shapes are checked; a chunk writes its own rows.
    unsafe { cpu.parallel(&kernel, x.rows.div_ceil(ROWS_PER_CHUNK)) };
    Ok(())
}

struct RotateRows {
    x: Rows,
    head_dim: usize,
    rotation: Rotation,
}

impl Kernel for RotateRows {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * ROWS_PER_CHUNK;
        for row in first..(first + ROWS_PER_CHUNK).min(self.x.rows) {
            for head in (0..self.x.cols).step_by(self.head_dim) {
                // SAFETY: the head lies in the row, and the row is this chunk's.
                unsafe { self.rotation.rotate::<L>(self.x.row(row).add(head), row) }
            }
        }
    }
}
