//! Tensor-core multiplication of a warp (`mma.sync`), and the loads and stores of its fragments.
//!
//! Products are exact; sums are in f32 in order of the reduced dimension, the accumulator last. A
//! card sums in another order and may truncate: compare with a tolerance.
//!
//! All fragments follow one rule. With `p` elements to a register, lane = 4·g + t: register q of A
//! holds row g + 8·(q mod 2), columns t·p + 4p·(q / 2) onwards; register q of B holds rows
//! t·p + 4p·q onwards of column g; accumulators hold rows g and g + 8, columns 2t and 2t + 1.

use super::Env;
use super::address::addresses;
use super::convert::format_of;
use super::half::{narrowed, widened};
use super::isa::Isa;
use super::lanes::{LANES, Lane, Registers};
use super::trap::{Step, trap};
use super::warp::Warp;
use crate::decode::{Inst, MmaKind, Op, Slot};
use crate::error::FaultKind;
use crate::memory::shadow::Kind;
use crate::ptx::Type;

/// Columns of the reduced dimension, at most.
const K_MAX: usize = 32;

/// `ldmatrix` and `stmatrix`: lane 8·m + r gives the address of row r of matrix m.
#[inline(always)]
pub(super) fn access(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], mask: u32) -> Step<()> {
    let (transposed, wide, load) = match i.op {
        Op::Ldmatrix { transposed, wide, .. } => (transposed, wide, true),
        Op::Stmatrix { transposed, wide, .. } => (transposed, wide, false),
        _ => return Ok(()),
    };
    all_lanes(warp, mask, if load { "ldmatrix" } else { "stmatrix" })?;
    let rows = addresses(&warp.registers, i.a, !wide, i.imm);
    let mut access = env.shared_access(warp, if load { Kind::Read } else { Kind::Write });
    let bytes = 128 * lists.len() as u64;
    if load {
        env.traffic.shared_bytes_read += bytes
    } else {
        env.traffic.shared_bytes_written += bytes
    }
    // A row of 16 bytes for each of eight lanes a matrix: four matrices take the parts of a request
    // of 128 bits.
    env.count_shared(&rows, u32::MAX >> (32 - 8 * lists.len()), 16);
    for (matrix, slot) in lists.iter().enumerate() {
        let mut places = [(0, 0); 8];
        for (row, place) in places.iter_mut().enumerate() {
            let lane = matrix * 8 + row;
            // A store counts as the row's owner's, a load is each lane's: no lane's writes are safe
            // to read before the lanes have met, so that any lane will do for the check.
            *place = env.check_shared(warp.block, &mut access, rows[lane], 16, lane)?;
        }
        if load {
            load_matrix(env, &places, transposed, &mut warp.registers.narrow[*slot as usize].0);
        } else {
            store_matrix(env, &places, transposed, &warp.registers.narrow[*slot as usize].0);
        }
    }
    Ok(())
}

/// Lane 4·g + t gets elements 2t and 2t + 1 of row g; transposed, of column g.
#[inline(always)]
fn load_matrix(env: &Env, places: &[(usize, u32); 8], transposed: bool, values: &mut [u32; LANES]) {
    let row = |(block, offset): (usize, u32)| -> [u8; 16] {
        env.blocks[block].memory[offset as usize..].first_chunk().copied().unwrap_or_default()
    };
    for (g, place) in places.iter().enumerate() {
        let row = row(*place);
        for t in 0..4 {
            values[4 * g + t] =
                u32::from_le_bytes([row[4 * t], row[4 * t + 1], row[4 * t + 2], row[4 * t + 3]]);
        }
    }
    if transposed {
        let rows = *values;
        let half = |row: usize, column: usize| rows[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        for g in 0..8 {
            for t in 0..4 {
                values[4 * g + t] = half(2 * t, g) | half(2 * t + 1, g) << 16;
            }
        }
    }
}

/// The opposite of [`load_matrix`].
fn store_matrix(env: &mut Env, places: &[(usize, u32); 8], transposed: bool, values: &[u32; LANES]) {
    for (lane, value) in values.iter().enumerate() {
        for n in 0..2 {
            let (g, column) = (lane >> 2, (lane & 3) * 2 + n);
            let (row, column) = if transposed { (column, g) } else { (g, column) };
            let (block, offset) = places[row];
            let at = offset as usize + column * 2;
            env.blocks[block].memory[at..at + 2].copy_from_slice(&((value >> (16 * n)) as u16).to_le_bytes());
        }
    }
}

/// Fails unless all 32 lanes take part.
pub(super) fn all_lanes(_warp: &Warp, mask: u32, what: &'static str) -> Step<()> {
    if mask != u32::MAX {
        return trap(FaultKind::Divergent { what, needed: u32::MAX, present: mask });
    }
    Ok(())
}

/// Elements of a register in f32: element n of each lane.
#[inline(always)]
pub(super) fn elements<I: Isa>(r: &Registers, slot: Slot, ty: Type, n: u32) -> [f32; LANES] {
    match ty {
        Type::F16 => widened::<I>(r, slot, false, 16 * n),
        Type::Bf16 => widened::<I>(r, slot, true, 16 * n),
        // Cards look at the upper 19 bits only.
        Type::Tf32 => u32::get(r, slot).map(|bits| f32::from_bits(bits & 0xffff_e000)),
        Type::S8 => u32::get(r, slot).map(|bits| f32::from((bits >> (8 * n)) as i8)),
        Type::U8 => u32::get(r, slot).map(|bits| f32::from((bits >> (8 * n)) as u8)),
        ty => {
            let format = format_of(ty).unwrap_or(super::number::E4M3);
            u32::get(r, slot).map(|bits| format.decode(bits >> (8 * n) & 0xff) as f32)
        }
    }
}

/// The fragments of A, [16, k], and B, [k, 8], with `PER` elements to a register.
#[inline(always)]
fn gather<I: Isa, const PER: usize>(
    r: &Registers,
    (slots_a, slots_b): (&[Slot], &[Slot]),
    (ty_a, ty_b): (Type, Type),
    a: &mut [[f32; K_MAX]; 16],
    b: &mut [[f32; 8]; K_MAX],
) {
    let mut parts = [[0f32; LANES]; PER];
    for (q, slot) in slots_a.iter().enumerate() {
        for (n, part) in parts.iter_mut().enumerate() {
            *part = elements::<I>(r, *slot, ty_a, n as u32);
        }
        let first = 4 * PER * (q >> 1);
        for (g, row) in a[8 * (q & 1)..][..8].iter_mut().enumerate() {
            let row = &mut row[first..first + 4 * PER];
            for t in 0..4 {
                for n in 0..PER {
                    row[t * PER + n] = parts[n][4 * g + t];
                }
            }
        }
    }
    for (q, slot) in slots_b.iter().enumerate() {
        for (n, part) in parts.iter_mut().enumerate() {
            *part = elements::<I>(r, *slot, ty_b, n as u32);
        }
        let first = 4 * PER * q;
        let rows = &mut b[first..first + 4 * PER];
        for t in 0..4 {
            for n in 0..PER {
                for g in 0..8 {
                    rows[t * PER + n][g] = parts[n][4 * g + t];
                }
            }
        }
    }
}

/// The product of A and B. Each product is exact in f32 but for far exponents, so that it does not
/// matter whether it is rounded before it is added; sums of 32 products of bytes are exact.
#[inline(always)]
fn products<I: Isa>(a: &[[f32; K_MAX]; 16], b: &[[f32; 8]]) -> [[f32; 8]; 16] {
    let mut sums = [[0f32; 8]; 16];
    // Four rows at a time: their sums stay in registers, and do not wait for each other.
    for (sums, rows) in sums.as_chunks_mut::<4>().0.iter_mut().zip(a.as_chunks::<4>().0) {
        let mut lines = [[0f32; 8]; 4];
        for (n, b) in b.iter().enumerate().take(K_MAX) {
            for (line, row) in lines.iter_mut().zip(rows) {
                for column in 0..8 {
                    line[column] = I::multiply_add(row[n], b[column], line[column]);
                }
            }
        }
        *sums = lines;
    }
    sums
}

/// Runs `mma.sync`.
#[inline(always)]
pub(super) fn mma<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    kind: MmaKind,
    mask: u32,
) -> Step<()> {
    all_lanes(warp, mask, "mma.sync")?;
    let r = &mut warp.registers;
    let k = kind.k as usize;
    let registers_a = k * kind.a.bytes() as usize / 8;
    let acc = if kind.acc == Type::F16 { 2 } else { 4 };
    let (slots_d, rest) = lists.split_at(acc);
    let (slots_a, rest) = rest.split_at(registers_a);
    let (slots_b, slots_c) = rest.split_at(registers_a / 2);
    let (mut a, mut b) = ([[0f32; K_MAX]; 16], [[0f32; 8]; K_MAX]);
    match kind.a.bytes() {
        1 => gather::<I, 4>(r, (slots_a, slots_b), (kind.a, kind.b), &mut a, &mut b),
        2 => gather::<I, 2>(r, (slots_a, slots_b), (kind.a, kind.b), &mut a, &mut b),
        _ => gather::<I, 1>(r, (slots_a, slots_b), (kind.a, kind.b), &mut a, &mut b),
    }
    env.traffic.tensor_multiply_adds += 16 * 8 * k as u64;
    let sums = products::<I>(&a, &b[..k]);
    let sum = |lane: usize, n: usize| sums[(lane >> 2) + 8 * (n >> 1)][(lane & 3) * 2 + (n & 1)];
    match kind.acc {
        Type::F16 => {
            for (half, (d, c)) in slots_d.iter().zip(slots_c).enumerate() {
                let (low, high) = (widened::<I>(r, *c, false, 0), widened::<I>(r, *c, false, 16));
                let low = narrowed::<I>(std::array::from_fn(|lane| low[lane] + sum(lane, 2 * half)), false);
                let high =
                    narrowed::<I>(std::array::from_fn(|lane| high[lane] + sum(lane, 2 * half + 1)), false);
                u32::put(r, *d, std::array::from_fn(|lane| low[lane] | high[lane] << 16), mask);
            }
        }
        Type::S32 => {
            for (n, (d, c)) in slots_d.iter().zip(slots_c).enumerate() {
                let c = i32::get(r, *c);
                let add = |lane: usize| {
                    let products = sum(lane, n) as i32;
                    if kind.sat { c[lane].saturating_add(products) } else { c[lane].wrapping_add(products) }
                };
                i32::put(r, *d, std::array::from_fn(add), mask);
            }
        }
        _ => {
            // D may be the same registers as C, in the same order.
            for (n, (d, c)) in slots_d.iter().zip(slots_c).enumerate() {
                let mut values = f32::get(r, *c);
                for (lane, value) in values.iter_mut().enumerate() {
                    *value += sum(lane, n);
                }
                f32::put(r, *d, values, mask);
            }
        }
    }
    Ok(())
}
