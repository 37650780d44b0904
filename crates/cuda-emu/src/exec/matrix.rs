//! Tensor-core multiplication of a warp (`mma.sync`), and the loads and stores of its fragments.
//!
//! Products are exact; sums are in f32 in order of the reduced dimension, the accumulator last. A
//! card sums in another order and may truncate: compare with a tolerance.
//!
//! All fragments follow one rule. With `p` elements to a register, lane = 4·g + t: register q of A
//! holds row g + 8·(q mod 2), columns t·p + 4p·(q / 2) onwards; register q of B holds rows
//! t·p + 4p·q onwards of column g; accumulators hold rows g and g + 8, columns 2t and 2t + 1.

use super::Env;
use super::address::{Offsets, addresses, offsets};
use super::convert::format_of;
use super::half::{narrowed, widened};
use super::isa::Isa;
use super::lanes::{LANES, Lane, Registers, lanes_of};
use super::trap::{Step, trap};
use super::warp::Warp;
use crate::decode::{Inst, MmaKind, Op, Slot};
use crate::error::FaultKind;
use crate::memory::shadow::Kind;
use crate::ptx::Type;

/// `ldmatrix` and `stmatrix`: lane 8·m + r gives the address of row r of matrix m.
#[inline(always)]
pub(super) fn access<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    mask: u32,
) -> Step<()> {
    let (transposed, wide, load) = match i.op {
        Op::Ldmatrix { transposed, wide, .. } => (transposed, wide, true),
        Op::Stmatrix { transposed, wide, .. } => (transposed, wide, false),
        _ => return Ok(()),
    };
    all_lanes(warp, mask, if load { "ldmatrix" } else { "stmatrix" })?;
    let bytes = 128 * lists.len() as u64;
    // A row of 16 bytes for each of eight lanes a matrix: four matrices take the parts of a request
    // of 128 bits.
    let lanes = u32::MAX >> (32 - 8 * lists.len());
    if load {
        env.traffic.shared_bytes_read += bytes;
        // Whoever gave a row's address, all lanes read it.
        let mut access = env.shared_access(warp, Kind::Read).for_all();
        let mut rows = [0; LANES];
        if wide {
            let addresses = addresses::<I>(&warp.registers, i.a, false, i.imm);
            env.count_shared(&addresses, lanes, 16);
            for lane in lanes_of(lanes) {
                rows[lane] = env.check_own_shared(warp.block, &mut access, addresses[lane], 16, lane)?;
            }
        } else {
            rows = offsets(&warp.registers, i.a, i.imm);
            env.count_shared(&rows, lanes, 16);
            env.check_shared_each::<4>(warp.block, &mut access, &mut rows, lanes)?;
        }
        load_matrices(&env.blocks[warp.block].memory, &mut warp.registers, lists, &rows, transposed);
        return Ok(());
    }
    env.traffic.shared_bytes_written += bytes;
    // A store counts as that of the row's owner.
    let mut access = env.shared_access(warp, Kind::Write);
    let rows = addresses::<I>(&warp.registers, i.a, !wide, i.imm);
    env.count_shared(&rows, lanes, 16);
    for (matrix, slot) in lists.iter().enumerate() {
        let mut places = [(warp.block, 0); 8];
        for (row, place) in places.iter_mut().enumerate() {
            let lane = matrix * 8 + row;
            place.1 = env.check_own_shared(warp.block, &mut access, rows[lane], 16, lane)?;
        }
        store_matrix(env, &places, transposed, &warp.registers.narrow[*slot as usize].0);
    }
    Ok(())
}

/// Lane 4·g + t gets elements 2t and 2t + 1 of row g; transposed, of column g.
#[inline(always)]
fn load_matrices(memory: &[u8], r: &mut Registers, lists: &[Slot], rows: &Offsets, transposed: bool) {
    let memory = memory.as_chunks::<4>().0.as_chunks::<4>().0;
    for (slot, rows) in lists.iter().zip(rows.as_chunks::<8>().0) {
        let values = r.narrow[*slot as usize].0.as_chunks_mut::<16>().0;
        // Joined, so that a vector of several rows, read soon, is of one store.
        for (values, rows) in values.iter_mut().zip(rows.as_chunks::<4>().0) {
            let mut joined: [[u8; 4]; 16] = [[0; 4]; 16];
            let parts = joined.as_chunks_mut::<4>().0.iter_mut();
            parts.zip(rows).for_each(|(to, row)| *to = memory[*row as usize / 16]);
            *values = joined.map(u32::from_le_bytes);
        }
    }
    for slot in lists.iter().filter(|_| transposed) {
        let values = &mut r.narrow[*slot as usize].0;
        let rows = *values;
        let half = |row: usize, column: usize| rows[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        for g in 0..8 {
            for t in 0..4 {
                values[4 * g + t] = half(2 * t, g) | half(2 * t + 1, g) << 16;
            }
        }
    }
}

/// The opposite, of one matrix.
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

/// A register of a fragment in f32: eight rows of up to 16 columns, one after another.
pub(super) type Rows = [f32; 128];

/// Registers of fragments in f32. They are kept, so that they need not be cleared for each instruction.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Unfolded {
    /// Of A the upper eight rows, from left to right, then the lower ones.
    a: [[Rows; 2]; 2],
    /// Of B the columns of eight rows, as they come, and as rows.
    columns: Rows,
    b: [Rows; 2],
    /// The product, as the registers of an accumulator.
    pub(super) sums: [[f32; LANES]; 4],
}

impl Unfolded {
    pub(super) fn new() -> Self {
        Self { a: [[[0.0; 128]; 2]; 2], columns: [0.0; 128], b: [[0.0; 128]; 2], sums: [[0.0; LANES]; 4] }
    }
}

/// A fragment's register: 8 rows by `W` columns, of which lane 4·g + t has row g, columns t·W/4 onwards.
#[inline(always)]
fn unfold<I: Isa, const W: usize>(r: &Registers, slot: Slot, ty: Type, rows: &mut Rows) {
    if ty == Type::F16 {
        let parts = rows.as_chunks_mut().0.iter_mut().zip(r.narrow[slot as usize].0.as_chunks().0);
        for (rows, pairs) in parts {
            *rows = I::widen_pairs(pairs);
        }
        return;
    }
    I::run(
        #[inline(always)]
        || {
            for n in 0..W / 4 {
                let part = elements::<I>(r, slot, ty, n as u32);
                rows.iter_mut().skip(n).step_by(W / 4).zip(part).for_each(|(to, value)| *to = value);
            }
        },
    );
}

/// The product of fragments A, [16, k], and B, [k, 8]. Each product is exact in f32 but for far exponents,
/// so that it does not matter whether it is rounded before it is added; sums of 32 products of bytes
/// are exact.
#[inline(always)]
pub(super) fn products<I: Isa, const W: usize>(
    r: &mut Registers,
    kind: MmaKind,
    slots_a: &[Slot],
    slots_b: &[Slot],
    unfolded: &mut Unfolded,
) {
    let Unfolded { a: [upper, lower], columns, b, sums } = unfolded;
    // Registers of A go down first, then to the right. They come first: their elements are then in the
    // cache, where vectors that have just been written would have to be waited for.
    for ((slots, upper), lower) in slots_a.as_chunks::<2>().0.iter().zip(&mut *upper).zip(&mut *lower) {
        unfold::<I, W>(r, slots[0], kind.a, upper);
        unfold::<I, W>(r, slots[1], kind.a, lower);
    }
    for (slot, b) in slots_b.iter().zip(&mut *b) {
        unfold::<I, W>(r, *slot, kind.b, columns);
        for part in 0..W.div_ceil(8) {
            let mut square = [[0f32; 8]; 8];
            for (square, column) in square.iter_mut().zip(columns.as_chunks::<W>().0) {
                square.iter_mut().zip(&column[8 * part..]).for_each(|(to, value)| *to = *value);
            }
            let rows = b.as_chunks_mut().0.iter_mut().skip(8 * part);
            rows.zip(I::transpose(&square)).for_each(|(to, row)| *to = row);
        }
    }
    let parts = slots_b.len();
    // Even columns, then odd ones.
    for (rows, sums) in [upper, lower].into_iter().zip(sums.as_chunks_mut::<2>().0) {
        *sums = I::split_pairs(&I::multiply::<W>(&rows[..parts], &b[..parts]));
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
    let k = kind.k as usize;
    env.traffic.tensor_multiply_adds += 16 * 8 * k as u64;
    let registers_a = k * kind.a.bytes() as usize / 8;
    let acc = if kind.acc == Type::F16 { 2 } else { 4 };
    let (slots_d, rest) = lists.split_at(acc);
    let (slots_a, rest) = rest.split_at(registers_a);
    let (slots_b, slots_c) = rest.split_at(registers_a / 2);
    let unfolded = &mut env.unfolded;
    match kind.a.bytes() {
        1 => products::<I, 16>(r, kind, slots_a, slots_b, unfolded),
        2 => products::<I, 8>(r, kind, slots_a, slots_b, unfolded),
        _ => products::<I, 4>(r, kind, slots_a, slots_b, unfolded),
    }
    let sums = &mut unfolded.sums;
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
                // Sixteen at once: for single ones the compiler takes no vectors.
                let parts =
                    sums.as_chunks_mut::<16>().0.iter_mut().zip(f32::stored(r, *c).as_chunks::<16>().0);
                parts.for_each(|(sums, c)| *sums = std::array::from_fn(|n| sums[n] + f32::of(c[n])));
            }
            slots_d.iter().zip(sums).for_each(|(d, sums)| f32::put(r, *d, *sums, mask));
        }
    }
    Ok(())
}
