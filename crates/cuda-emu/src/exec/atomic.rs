//! Atomics and reductions on memory, lane by lane.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Env;
use super::address::{addresses, by_space, check_local};
use super::isa::Portable;
use super::lanes::{LANES, Lane, lanes_of, mask_of};
use super::number::{BF16, F16, Format};
use super::strong;
use super::trap::Step;
use super::warp::Warp;
use crate::decode::{AtomicOp, Inst, Order, Rounding, SINK, Slot};
use crate::memory::Space;
use crate::memory::shadow::Kind;
use crate::ptx::Type;

/// Runs an atomic.
pub(super) fn atomic(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    what: (Space, AtomicOp, Type, Order),
    mask: u32,
) -> Step<()> {
    let (space, op, ty, order) = what;
    let bytes = ty.bytes();
    let mut at = addresses::<Portable>(&warp.registers, i.a, lists[0] != 0, i.imm);
    let read = |slot: Slot| {
        if bytes == 8 {
            u64::get(&warp.registers, slot)
        } else {
            u32::get(&warp.registers, slot).map(u64::from)
        }
    };
    let (b, c) = (read(i.b), read(i.c));
    let mut old = [0; LANES];
    let update = |lane: usize, old: u64| apply(op, ty, old, b[lane], c[lane]);
    by_space(space, &mut at, mask, |space, at, mask| {
        match space {
            Space::Global | Space::Generic => {
                let region = env.check_global::<Portable>(at, mask, bytes, "atomic")?;
                env.check_written(at, region, mask, bytes)?;
                env.count_global(at, mask);
                let total = u64::from(bytes * mask.count_ones());
                env.traffic.global_bytes_read += total;
                env.traffic.global_bytes_written += total;
                let kind = if i.d == SINK { Kind::StrongWrite } else { Kind::Atomic };
                env.note_arrival(warp, kind, order, at, mask);
                for lane in lanes_of(mask) {
                    old[lane] = global(at[lane], bytes, |old| update(lane, old));
                }
                env.looked_outside = true;
            }
            Space::Shared => {
                let mut access = env.shared_access(warp, Kind::Atomic);
                env.count_shared_atomic(at, mask, bytes);
                let total = u64::from(bytes * mask.count_ones());
                env.traffic.shared_bytes_read += total;
                env.traffic.shared_bytes_written += total;
                for lane in lanes_of(mask) {
                    let (block, offset) = env.check_shared(warp.block, &mut access, at[lane], bytes, lane)?;
                    let place = &mut env.blocks[block].memory[offset as usize..][..bytes as usize];
                    old[lane] = in_place(place, |old| update(lane, old));
                }
                let missed = if op == AtomicOp::Cas { mask_of(|lane| old[lane] != b[lane]) } else { 0 };
                // A reduction gives nothing back that could tell its warp what others did.
                let told = if i.d == SINK { 0 } else { mask };
                strong::flags(env, warp, at, told, (Kind::StrongRead, order))?;
                strong::flags(env, warp, at, mask & !missed, (Kind::Atomic, order))?;
            }
            Space::Local => {
                let length = warp.local.len() / LANES;
                for lane in lanes_of(mask) {
                    check_local(at[lane], bytes, length, "atomic", lane)?;
                    let start = lane * length + at[lane] as usize;
                    let place = &mut warp.local[start..][..bytes as usize];
                    old[lane] = in_place(place, |old| update(lane, old));
                }
            }
        }
        // Some other warp may wait for it. Who polls changes nothing, and may be waiting for a copy.
        env.events += u64::from(lanes_of(mask).any(|lane| update(lane, old[lane]) != old[lane]));
        Ok(())
    })?;
    if bytes == 8 {
        u64::put(&mut warp.registers, i.d, old, mask);
    } else {
        u32::put(&mut warp.registers, i.d, old.map(|v| v as u32), mask);
    }
    Ok(())
}

fn in_place(memory: &mut [u8], f: impl Fn(u64) -> u64) -> u64 {
    let mut raw = [0; 8];
    raw[..memory.len()].copy_from_slice(memory);
    let old = u64::from_le_bytes(raw);
    memory.copy_from_slice(&f(old).to_le_bytes()[..memory.len()]);
    old
}

/// Updates global memory; the caller has checked the address.
fn global(address: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    let order = Ordering::SeqCst;
    macro_rules! update {
        ($atomic:ty, $ty:ty) => {{
            // SAFETY: `check_global` found the bytes inside of a live allocation and aligned.
            let place = unsafe { <$atomic>::from_ptr(address as *mut $ty) };
            let old = place.fetch_update(order, order, |old| Some(f(u64::from(old)) as $ty));
            old.map_or(0, u64::from)
        }};
    }
    match bytes {
        2 => update!(AtomicU16, u16),
        4 => update!(AtomicU32, u32),
        _ => update!(AtomicU64, u64),
    }
}

/// The new value.
fn apply(op: AtomicOp, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    match (op, ty) {
        (AtomicOp::Exch, _) => b,
        (AtomicOp::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (_, Type::F32) => u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
        (_, Type::F64) => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        (_, Type::F16) => halves(op, F16, 1, old, b),
        (_, Type::F16x2) => halves(op, F16, 2, old, b),
        (_, Type::Bf16) => halves(op, BF16, 1, old, b),
        (_, Type::Bf16x2) => halves(op, BF16, 2, old, b),
        _ => integer(op, ty, old, b),
    }
}

fn integer(op: AtomicOp, ty: Type, old: u64, b: u64) -> u64 {
    let unused = 64 - ty.bytes() * 8;
    let signed = |v: u64| (v << unused) as i64;
    match op {
        AtomicOp::Add => old.wrapping_add(b) << unused >> unused,
        AtomicOp::Min if ty.is_signed() => {
            if signed(b) < signed(old) {
                b
            } else {
                old
            }
        }
        AtomicOp::Max if ty.is_signed() => {
            if signed(b) > signed(old) {
                b
            } else {
                old
            }
        }
        AtomicOp::Min => old.min(b),
        AtomicOp::Max => old.max(b),
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomicOp::Exch | AtomicOp::Cas => b,
    }
}

fn halves(op: AtomicOp, format: Format, count: u32, old: u64, b: u64) -> u64 {
    (0..count).fold(0, |all, n| {
        let part = |v: u64| format.decode((v >> (16 * n)) as u32 & 0xffff);
        let (x, y) = (part(old), part(b));
        let value = match op {
            AtomicOp::Min => x.min(y),
            AtomicOp::Max => x.max(y),
            // Exact in f64 but for far exponents, where the sum is rounded away from any tie anyway.
            _ => super::number::add_odd(x, y),
        };
        all | u64::from(format.encode(value, Rounding::Nearest, false)) << (16 * n)
    })
}
