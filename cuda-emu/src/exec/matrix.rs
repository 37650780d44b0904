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
    // Where a lane's two elements are: row and column of each.
    let element = |lane: usize, n: usize| {
        if transposed { ((lane & 3) * 2 + n, lane >> 2) } else { (lane >> 2, (lane & 3) * 2 + n) }
    };
    for (matrix, slot) in lists.iter().enumerate() {
        env.count_shared(&std::array::from_fn(|lane| rows[matrix * 8 + lane % 8]), 0xff, 16);
        let mut values = u32::get(&warp.registers, *slot);
        let mut places = [(0, 0); 8];
        for (row, place) in places.iter_mut().enumerate() {
            let lane = matrix * 8 + row;
            // A store counts as the row's owner's, a load is each lane's: no lane's writes are safe
            // to read before the lanes have met, so that any lane will do for the check.
            *place = env.check_shared(warp.block, &mut access, rows[lane], 16, lane)?;
        }
        if load {
            let rows = places.map(|(block, offset)| {
                let bytes: [u8; 16] =
                    env.blocks[block].memory[offset as usize..].first_chunk().copied().unwrap_or_default();
                std::array::from_fn::<u32, 8, _>(|n| {
                    u32::from(bytes[2 * n]) | u32::from(bytes[2 * n + 1]) << 8
                })
            });
            for (lane, value) in values.iter_mut().enumerate() {
                let half = |n: usize| {
                    let (row, column) = element(lane, n);
                    rows[row][column]
                };
                *value = half(0) | half(1) << 16;
            }
            u32::put(&mut warp.registers, *slot, values, u32::MAX);
        } else {
            for (lane, value) in values.iter().enumerate() {
                for n in 0..2 {
                    let (row, column) = element(lane, n);
                    let (block, offset) = places[row];
                    let at = offset as usize + column * 2;
                    env.blocks[block].memory[at..at + 2]
                        .copy_from_slice(&((value >> (16 * n)) as u16).to_le_bytes());
                }
            }
        }
    }
    Ok(())
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
    let per = 4 / kind.a.bytes() as usize;
    let k = kind.k as usize;
    let registers_a = k / (2 * per);
    let acc = if kind.acc == Type::F16 { 2 } else { 4 };
    let (slots_d, rest) = lists.split_at(acc);
    let (slots_a, rest) = rest.split_at(registers_a);
    let (slots_b, slots_c) = rest.split_at(registers_a / 2);
    let mut a = [[0f32; K_MAX]; 16];
    let mut b = [[0f32; 8]; K_MAX];
    for (q, slot) in slots_a.iter().enumerate() {
        for n in 0..per {
            let values = elements::<I>(r, *slot, kind.a, n as u32);
            for (lane, value) in values.iter().enumerate() {
                a[(lane >> 2) + 8 * (q & 1)][(lane & 3) * per + n + 4 * per * (q >> 1)] = *value;
            }
        }
    }
    for (q, slot) in slots_b.iter().enumerate() {
        for n in 0..per {
            let values = elements::<I>(r, *slot, kind.b, n as u32);
            for (lane, value) in values.iter().enumerate() {
                b[(lane & 3) * per + n + 4 * per * q][lane >> 2] = *value;
            }
        }
    }
    env.traffic.tensor_multiply_adds += 16 * 8 * k as u64;
    // Sums of 32 products of bytes are exact in f32: below 2^24.
    let mut sums = [[0f32; 8]; 16];
    for (sums, row) in sums.iter_mut().zip(&a) {
        let mut line = [0f32; 8];
        for n in 0..k {
            for column in 0..8 {
                line[column] += row[n] * b[n][column];
            }
        }
        *sums = line;
    }
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
