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
    // A store counts as that of the row's owner; a load is each lane's.
    let mut access = match load {
        true => env.shared_access(warp, Kind::Read).for_all(),
        false => env.shared_access(warp, Kind::Write),
    };
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
        let words: [u32; 4] = std::array::from_fn(|t| u32::from_le_bytes(row.as_chunks().0[t]));
        values[4 * g..][..4].copy_from_slice(&words);
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

/// A fragment's registers, each of them 8 rows by `4 * PER` columns: lane 4·g + t has row g, columns
/// t·PER onwards. Every `down` of them lie under each other, then come those to the right.
#[inline(always)]
fn unfold<I: Isa, const PER: usize, const K: usize>(
    r: &Registers,
    slots: &[Slot],
    ty: Type,
    down: usize,
    rows: &mut [[f32; K]],
) {
    for (q, slot) in slots.iter().enumerate() {
        let mut values = [[0f32; PER]; LANES];
        let flat = values.as_flattened_mut();
        match (ty, flat.first_chunk_mut()) {
            (Type::F16, Some(flat)) => *flat = I::widen_pairs(&r.narrow[*slot as usize].0),
            _ => {
                for n in 0..PER {
                    let part = elements::<I>(r, *slot, ty, n as u32);
                    flat.iter_mut().skip(n).step_by(PER).zip(part).for_each(|(to, value)| *to = value);
                }
            }
        }
        let first = 4 * PER * (q / down);
        for (row, values) in rows[8 * (q % down)..].iter_mut().zip(flat.chunks_exact(4 * PER)) {
            row[first..][..4 * PER].copy_from_slice(values);
        }
    }
}

/// The product of A, [16, k], and the transposed B, [8, k]. Each product is exact in f32 but for far
/// exponents, so that it does not matter whether it is rounded before it is added; sums of 32
/// products of bytes are exact.
#[inline(always)]
fn products<I: Isa, const K: usize>(a: &[[f32; K]; 16], b: &[[f32; K]; 8], k: usize) -> [[f32; 8]; 16] {
    let mut columns = [[0f32; 8]; K];
    for (part, columns) in columns.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *columns = I::transpose(&b.each_ref().map(|row| row.as_chunks().0[part]));
    }
    let mut sums = [[0f32; 8]; 16];
    // Eight rows at a time: their sums stay in registers, and do not wait for each other.
    for (sums, rows) in sums.as_chunks_mut::<8>().0.iter_mut().zip(a.as_chunks::<8>().0) {
        let mut lines = [[0f32; 8]; 8];
        for (n, column) in columns.iter().enumerate().take(k) {
            for (line, row) in lines.iter_mut().zip(rows) {
                for (sum, b) in line.iter_mut().zip(column) {
                    *sum = I::multiply_add(row[n], *b, *sum);
                }
            }
        }
        *sums = lines;
    }
    sums
}

/// Sums as the registers of an accumulator: of eight rows, even columns, then odd ones.
#[inline(always)]
fn fold<I: Isa>(sums: &[[f32; 8]; 16]) -> [[f32; LANES]; 4] {
    let mut registers = [[0f32; LANES]; 4];
    let halves = sums.as_flattened().as_chunks().0;
    for (registers, half) in registers.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        *registers = I::split_pairs(half);
    }
    registers
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
    // The reduced dimension has at most two registers of columns, of four lanes each.
    macro_rules! sums {
        ($per:expr) => {{
            let (mut a, mut b) = ([[0f32; 8 * $per]; 16], [[0f32; 8 * $per]; 8]);
            unfold::<I, $per, _>(r, slots_a, kind.a, 2, &mut a);
            unfold::<I, $per, _>(r, slots_b, kind.b, 1, &mut b);
            products::<I, _>(&a, &b, k)
        }};
    }
    let mut sums = fold::<I>(&match kind.a.bytes() {
        1 => sums!(4),
        2 => sums!(2),
        _ => sums!(1),
    });
    env.traffic.tensor_multiply_adds += 16 * 8 * k as u64;
    // D may be registers of C, in any order: none is written before all are read.
    match kind.acc {
        Type::F16 => {
            let mut values = [[0; LANES]; 2];
            for (half, (value, c)) in values.iter_mut().zip(slots_c).enumerate() {
                let (low, high) = (widened::<I>(r, *c, false, 0), widened::<I>(r, *c, false, 16));
                let low = narrowed::<I>(std::array::from_fn(|lane| low[lane] + sums[2 * half][lane]), false);
                let high =
                    narrowed::<I>(std::array::from_fn(|lane| high[lane] + sums[2 * half + 1][lane]), false);
                *value = std::array::from_fn(|lane| low[lane] | high[lane] << 16);
            }
            slots_d.iter().zip(values).for_each(|(d, value)| u32::put(r, *d, value, mask));
        }
        Type::S32 => {
            let mut values = [[0; LANES]; 4];
            for (n, (value, c)) in values.iter_mut().zip(slots_c).enumerate() {
                let c = i32::get(r, *c);
                let add = |lane: usize| {
                    let products = sums[n][lane] as i32;
                    if kind.sat { c[lane].saturating_add(products) } else { c[lane].wrapping_add(products) }
                };
                *value = std::array::from_fn(add);
            }
            slots_d.iter().zip(values).for_each(|(d, value)| i32::put(r, *d, value, mask));
        }
        _ => {
            for (sums, c) in sums.iter_mut().zip(slots_c) {
                sums.iter_mut().zip(f32::get(r, *c)).for_each(|(sum, c)| *sum += c);
            }
            slots_d.iter().zip(sums).for_each(|(d, sums)| f32::put(r, *d, sums, mask));
        }
    }
    Ok(())
}
