//! The arithmetic of a tile's rows on one page: scores, the online softmax, weighted values. Keys and
//! values come as f16 or as int8 with their scales; sums are f32.

use half::f16;

use super::{Tile, WHOLE};
use crate::backend::cpu::elementwise::soft_cap;
use crate::backend::cpu::lanes::{LANES, Lanes};
use crate::backend::{KV_SCALE_GROUP, KvDtype, PAGE_TOKENS};

impl Tile<'_> {
    /// `R` rows on one page, all of which see the keys `seen`; gives `R`.
    ///
    /// # Safety
    /// `block` is one of the layer's, the rows from `row` on are the tile's, the CPU has the features
    /// of `L`.
    #[inline(always)]
    pub(super) unsafe fn rows_on_page<L: Lanes, const R: usize>(
        &mut self,
        block: *const u8,
        row: usize,
        seen: u32,
    ) -> usize {
        let mut weights = [[0.0f32; LANES]; R];
        let mut correction = [0.0f32; R];
        // SAFETY: a block of the layer's shape; stores go to the stack.
        unsafe {
            let scores = self.scores::<L, R>(block, row);
            for r in 0..R {
                let mut s = L::mul(scores[r], L::splat(self.op.scale));
                if let Some(cap) = self.op.soft_cap {
                    s = soft_cap::<L>(s, cap);
                }
                if seen != WHOLE {
                    s = hide::<L>(s, seen);
                }
                let max = self.max[row + r].max(L::reduce_max(s));
                let p = L::exp(L::sub(s, L::splat(max)));
                // The first page's correction of minus infinity is 0, as it should be.
                correction[r] = exp_scalar::<L>(self.max[row + r] - max);
                self.sum[row + r] = self.sum[row + r] * correction[r] + L::reduce_add(p);
                self.max[row + r] = max;
                L::store(weights[r].as_mut_ptr(), p);
            }
            match self.layer.shape.dtype {
                KvDtype::F16 => self.values_f16::<L, R>(block, row, seen, &weights, &correction),
                KvDtype::Int8 => self.values_int8::<L, R>(block, row, seen, &weights, &correction),
            }
        }
        R
    }

    /// `q · k` of the page's 16 keys, in two strands of columns.
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize>(&self, block: *const u8, row: usize) -> [L::F; R] {
        let (dim, shape) = (self.op.heads.dim, self.layer.shape);
        // SAFETY: keys are `[dim][16]`, `dim` is even, a row of q has `dim` elements.
        unsafe {
            let zero = L::splat(0.0);
            match shape.dtype {
                KvDtype::F16 => {
                    let keys = block.cast::<f16>();
                    let mut strands = [[zero; R]; 2];
                    for d in 0..dim {
                        let k = L::load_f16(keys.add(d * PAGE_TOKENS));
                        self.accumulate::<L, R>(&mut strands[d % 2], row, d, k);
                    }
                    join::<L, R>(strands)
                }
                KvDtype::Int8 => {
                    let (keys, scales) = (block.cast::<i8>(), block.add(shape.key_scales).cast::<f16>());
                    let mut total = [zero; R];
                    for group in 0..shape.groups {
                        let first = group * KV_SCALE_GROUP;
                        let mut strands = [[zero; R]; 2];
                        for d in first..(first + KV_SCALE_GROUP).min(dim) {
                            let k = L::load_i8(keys.add(d * PAGE_TOKENS));
                            self.accumulate::<L, R>(&mut strands[d % 2], row, d, k);
                        }
                        let (sums, scale) =
                            (join::<L, R>(strands), L::load_f16(scales.add(group * PAGE_TOKENS)));
                        for r in 0..R {
                            total[r] = L::fma(sums[r], scale, total[r]);
                        }
                    }
                    total
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulate<L: Lanes, const R: usize>(
        &self,
        sums: &mut [L::F; R],
        row: usize,
        d: usize,
        k: L::F,
    ) {
        for (sum, q) in sums.iter_mut().zip(&self.q[row..]) {
            // SAFETY: `d` is below the head's dimension.
            *sum = unsafe { L::fma(L::splat(*q.add(d)), k, *sum) };
        }
    }

    #[inline(always)]
    unsafe fn values_f16<L: Lanes, const R: usize>(
        &self,
        block: *const u8,
        row: usize,
        seen: u32,
        weights: &[[f32; LANES]; R],
        correction: &[f32; R],
    ) {
        let dim = self.op.heads.dim;
        // SAFETY: values are `[16][dim]`; a last vector may read past a row, into the next or the
        // layer's slack, and what it reads there is not stored.
        unsafe {
            let values = block.add(self.layer.shape.values).cast::<f16>();
            for col in (0..dim).step_by(LANES) {
                let mut out = self.corrected::<L, R>(row, col, correction);
                for_each_key(seen, |key| {
                    let v = L::load_f16(values.add(key * dim + col));
                    for r in 0..R {
                        out[r] = L::fma(L::splat(weights[r][key]), v, out[r]);
                    }
                });
                self.put::<L, R>(row, col, out);
            }
        }
    }

    #[inline(always)]
    unsafe fn values_int8<L: Lanes, const R: usize>(
        &self,
        block: *const u8,
        row: usize,
        seen: u32,
        weights: &[[f32; LANES]; R],
        correction: &[f32; R],
    ) {
        let (dim, shape) = (self.op.heads.dim, self.layer.shape);
        // SAFETY: as for f16; scales are `[groups][16]`.
        unsafe {
            let values = block.add(shape.values).cast::<i8>();
            let scales = block.add(shape.value_scales).cast::<f16>();
            let mut scaled = [[0.0f32; LANES]; R];
            for col in (0..dim).step_by(LANES) {
                if col % KV_SCALE_GROUP == 0 {
                    let scale = L::load_f16(scales.add(col / KV_SCALE_GROUP * PAGE_TOKENS));
                    for r in 0..R {
                        L::store(scaled[r].as_mut_ptr(), L::mul(L::load(weights[r].as_ptr()), scale));
                    }
                }
                let mut out = self.corrected::<L, R>(row, col, correction);
                for_each_key(seen, |key| {
                    let v = L::load_i8(values.add(key * dim + col));
                    for r in 0..R {
                        out[r] = L::fma(L::splat(scaled[r][key]), v, out[r]);
                    }
                });
                self.put::<L, R>(row, col, out);
            }
        }
    }

    /// What the outputs hold, scaled to the new maximum.
    #[inline(always)]
    unsafe fn corrected<L: Lanes, const R: usize>(&self, row: usize, col: usize, by: &[f32; R]) -> [L::F; R] {
        let n = (self.op.heads.dim - col).min(LANES);
        // SAFETY: within each row's output.
        std::array::from_fn(|r| unsafe { L::mul(L::load_n(self.out[row + r].add(col), n), L::splat(by[r])) })
    }

    #[inline(always)]
    unsafe fn put<L: Lanes, const R: usize>(&self, row: usize, col: usize, out: [L::F; R]) {
        let n = (self.op.heads.dim - col).min(LANES);
        for (r, value) in out.into_iter().enumerate() {
            // SAFETY: within the row's output.
            unsafe { L::store_n(self.out[row + r].add(col), n, value) };
        }
    }
}

/// Calls `f` for each key whose bit is set, the oldest first.
#[inline(always)]
fn for_each_key(seen: u32, mut f: impl FnMut(usize)) {
    if seen == WHOLE {
        for key in 0..PAGE_TOKENS {
            f(key);
        }
        return;
    }
    let mut left = seen;
    while left != 0 {
        f(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

#[inline(always)]
unsafe fn join<L: Lanes, const R: usize>([even, odd]: [[L::F; R]; 2]) -> [L::F; R] {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    std::array::from_fn(|r| unsafe { L::add(even[r], odd[r]) })
}

/// Scores of keys that are not seen become minus infinity, whatever they were.
#[inline(always)]
unsafe fn hide<L: Lanes>(scores: L::F, seen: u32) -> L::F {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: sixteen elements on the stack.
    unsafe {
        L::store(lanes.as_mut_ptr(), scores);
        for (key, lane) in lanes.iter_mut().enumerate() {
            if seen >> key & 1 == 0 {
                *lane = f32::NEG_INFINITY;
            }
        }
        L::load(lanes.as_ptr())
    }
}

/// `e^x` with the lanes' own polynomial, so that it agrees with the weights'.
#[inline(always)]
unsafe fn exp_scalar<L: Lanes>(x: f32) -> f32 {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe { L::reduce_max(L::exp(L::splat(x))) }
}
