//! Tensor-core multiplication of four warps (`wgmma`).
//!
//! A multiplication reads shared memory when it is issued and keeps its result aside: registers hold
//! NaN until the wait, and whoever touches them before is told. So is who overwrites what it reads:
//! its reads are those of an agent of its own, which the wait orders before the warp. Each warp
//! computes its own 16 rows.

use super::Env;
pub(super) use super::accumulators::check_untouched;
use super::accumulators::deliver;
use super::convert::format_of;
use super::isa::Isa;
use super::lanes::{LANES, Lane, Registers};
use super::matrix::{all_lanes, elements};
use super::number::{BF16, F16};
use super::trap::{Step, invalid};
use super::warp::Warp;
use crate::decode::{Inst, Op, Rounding, Slot, WgmmaKind};
use crate::memory::shadow::{Access, Kind};
use crate::ptx::Type;
use crate::tensor_map::Swizzle;

/// A matrix in shared memory, as a descriptor says.
struct Matrix {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
    /// Elements of the outer dimension (M or N) follow each other, not those of K.
    outer_major: bool,
}

impl Matrix {
    fn new(descriptor: u64, outer_major: bool) -> Self {
        let field = |shift: u32| ((descriptor >> shift & 0x3fff) << 4) as u32;
        let swizzle = match descriptor >> 62 {
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            3 => Swizzle::Bytes32,
            _ => Swizzle::None,
        };
        Self { start: field(0), leading: field(16), stride: field(32), swizzle, outer_major }
    }

    /// Where the element of an outer index and byte along K (or K index and byte along the outer
    /// dimension) lies.
    fn address(&self, outer: u32, k: u32, size: u32) -> u32 {
        let linear = match (self.swizzle.inner_bytes_max(), self.outer_major) {
            // Rows of the swizzle's width, eight to a group.
            (Some(width), false) => outer / 8 * self.stride + outer % 8 * width + k * size,
            // Core matrices of 8 rows of 16 bytes.
            (None, false) => {
                let byte = k * size;
                outer / 8 * self.stride + byte / 16 * self.leading + outer % 8 * 16 + byte % 16
            }
            (Some(width), true) => {
                let byte = outer * size;
                k / 8 * self.stride + byte / width * self.leading + k % 8 * width + byte % width
            }
            (None, true) => {
                let byte = outer * size;
                k / 8 * self.leading + byte / 16 * self.stride + k % 8 * 16 + byte % 16
            }
        };
        self.swizzle.apply(self.start + linear)
    }

    /// Elements of rows `from` on, as f32: [rows, k].
    fn read(
        &self,
        env: &mut Env,
        warp: &Warp,
        access: &mut Access,
        ty: Type,
        from: u32,
        rows: u32,
    ) -> Step<Vec<[f32; 32]>> {
        let size = ty.bytes();
        let mut found = vec![[0.0; 32]; rows as usize];
        let own = warp.block;
        for (row, values) in found.iter_mut().enumerate() {
            for k in 0..32 / size {
                let at = self.address(from + row as u32, k, size);
                let block = &mut env.blocks[own];
                block.check_range(u64::from(at), size, size, "read", 0)?;
                // Chunks of 16 bytes stay together: one check each.
                if at.is_multiple_of(16) {
                    let clocks = &env.clusters[block.cluster].clocks;
                    block.note(access, clocks, env.program, at, 16.min(block.memory.len() as u32 - at), 0)?;
                }
                let bytes = &block.memory[at as usize..at as usize + size as usize];
                values[k as usize] = element(bytes, ty);
            }
        }
        env.traffic.shared_bytes_read += u64::from(rows * 32);
        Ok(found)
    }
}

fn element(bytes: &[u8], ty: Type) -> f32 {
    let word = bytes.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    match ty {
        Type::F16 => F16.decode(word) as f32,
        Type::Bf16 => f32::from_bits(word << 16),
        Type::Tf32 => f32::from_bits(word & 0xffff_e000),
        Type::S8 => f32::from(word as u8 as i8),
        Type::U8 => f32::from(word as u8),
        ty => format_of(ty).unwrap_or(BF16).decode(word) as f32,
    }
}

/// Runs a wgmma instruction.
#[inline(always)]
pub(super) fn wgmma<I: Isa>(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], mask: u32) -> Step<()> {
    all_lanes(warp, mask, "wgmma")?;
    match i.op {
        Op::WgmmaFence => warp.accumulators.fence(),
        Op::WgmmaCommit => {
            let time = env.clusters[env.blocks[warp.block].cluster].clocks.tick();
            warp.accumulators.commit(time);
        }
        Op::WgmmaWait => {
            deliver(warp, i.imm as u32);
            if let Some(time) = warp.accumulators.waited(i.imm as u32) {
                let block = &env.blocks[warp.block];
                env.clusters[block.cluster].clocks.wait_for(warp.agent, block.reader(warp.id), time);
            }
        }
        Op::Wgmma(kind) => multiply::<I>(env, warp, i, lists, kind)?,
        _ => {}
    }
    Ok(())
}

/// The 16 rows of A that a warp has in its registers.
#[inline(always)]
fn rows_in_registers<I: Isa>(r: &Registers, slots: &[Slot], ty: Type) -> Vec<[f32; 32]> {
    let per = (4 / ty.bytes()) as usize;
    let mut a = vec![[0f32; 32]; 16];
    for (q, slot) in slots.iter().enumerate() {
        for e in 0..per {
            let values = elements::<I>(r, *slot, ty, e as u32);
            for (lane, value) in values.iter().enumerate() {
                a[(lane >> 2) + 8 * (q & 1)][(lane & 3) * per + e + 4 * per * (q >> 1)] = *value;
            }
        }
    }
    a
}

fn multiply<I: Isa>(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], kind: WgmmaKind) -> Step<()> {
    let size = kind.a.bytes();
    let (n, k) = (u32::from(kind.n), 32 / size);
    let count = kind.n as usize / if kind.acc == Type::F16 { 4 } else { 2 };
    let (slots_d, slots_a) = lists.split_at(count);
    warp.accumulators.check(env.program, (env.trap_pc, kind), slots_d, slots_a)?;
    let reader = env.blocks[warp.block].reader(warp.id);
    let mut access = env.shared_access(warp, Kind::Read).asynchronous(reader);
    let uniform = |values: [u64; LANES]| {
        if values == [values[0]; LANES] {
            Ok(values[0])
        } else {
            invalid("a wgmma descriptor differs between lanes")
        }
    };
    let a = if kind.a_registers {
        rows_in_registers::<I>(&warp.registers, slots_a, kind.a)
    } else {
        let matrix = Matrix::new(uniform(u64::get(&warp.registers, i.a))?, i.imm >> 2 & 1 != 0);
        matrix.read(env, warp, &mut access, kind.a, warp.id % 4 * 16, 16)?
    };
    let matrix = Matrix::new(uniform(u64::get(&warp.registers, i.b))?, i.imm >> 3 & 1 != 0);
    let b = matrix.read(env, warp, &mut access, kind.a, 0, n)?;
    env.traffic.tensor_multiply_adds += u64::from(16 * n * k);
    let sign = if (i.imm & 1 != 0) != (i.imm >> 1 & 1 != 0) { -1.0 } else { 1.0 };
    let keep = warp.registers.pred(i.c, i.imm >> 4 & 1 != 0) & 1 != 0;
    let product = |row: usize, column: usize| {
        let mut sum = 0.0;
        for e in 0..k as usize {
            sum += a[row][e] * b[column][e];
        }
        sign * sum
    };
    let (accumulators, registers) = (&warp.accumulators, &warp.registers);
    let result = |(q, slot): (usize, &Slot)| -> [u32; LANES] {
        let old = accumulators.pending(*slot).copied().unwrap_or_else(|| u32::get(registers, *slot));
        std::array::from_fn(|lane| {
            let (g, t) = (lane >> 2, (lane & 3) * 2);
            if kind.acc == Type::F16 {
                let half = |e: usize| {
                    let before = if keep { F16.decode(old[lane] >> (16 * e) & 0xffff) } else { 0.0 };
                    F16.encode(
                        before + f64::from(product(g + 8 * (q & 1), (q >> 1) * 8 + t + e)),
                        Rounding::Nearest,
                        false,
                    )
                };
                return half(0) | half(1) << 16;
            }
            let sum = product(g + 8 * (q >> 1 & 1), (q >> 2) * 8 + t + (q & 1));
            if kind.acc == Type::S32 {
                return (if keep { old[lane] } else { 0 }).wrapping_add(sum as i32 as u32);
            }
            (if keep { f32::from_bits(old[lane]) + sum } else { sum }).to_bits()
        })
    };
    let results: Vec<[u32; LANES]> = slots_d.iter().enumerate().map(result).collect();
    for slot in slots_d {
        u32::put(&mut warp.registers, *slot, [u32::MAX; LANES], u32::MAX);
    }
    warp.accumulators.start((env.trap_pc, kind), slots_d.iter().copied().zip(results), slots_a);
    Ok(())
}
