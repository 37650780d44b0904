//! Instructions in which lanes of a warp exchange values: shuffles, votes, matches, reductions.

use super::barrier::gather;
use super::isa::Isa;
use super::lanes::{LANES, Lane, lanes_of, mask_of};
use super::trap::{Step, invalid};
use super::warp::{Flow, Warp};
use crate::decode::{AtomicOp, Inst, IntType, Op, ShuffleOp, Slot, VoteOp};

/// Runs a collective instruction. Lanes of different member masks may run it at the same time:
/// each group by itself.
#[inline(always)]
pub(super) fn collective<I: Isa>(
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    active: u32,
    mask: u32,
) -> Step<Flow> {
    let members = match i.op {
        Op::Shuffle(_) => lists[0],
        Op::Elect => i.a,
        _ => i.b,
    };
    let members = u32::stored(&warp.registers, members);
    if I::all_equal(members) {
        let needed = members[0];
        return group::<I>(warp, i, active, mask, needed);
    }
    groups::<I>(warp, i, &members.clone(), active, mask)
}

#[cold]
fn groups<I: Isa>(warp: &mut Warp, i: &Inst, members: &[u32; LANES], active: u32, mask: u32) -> Step<Flow> {
    // Look at all groups before any of them runs: a wait runs the instruction again.
    let mut rest = mask;
    let mut groups = Vec::new();
    while rest != 0 {
        let needed = members[rest.trailing_zeros() as usize];
        let lanes = rest & mask_of(|lane| members[lane] == needed);
        if let Some(flow) = check(warp, active, lanes, needed)? {
            return Ok(flow);
        }
        groups.push((lanes, needed));
        rest &= !lanes;
    }
    for (lanes, needed) in groups {
        group::<I>(warp, i, lanes, lanes, needed)?;
    }
    Ok(Flow::Next)
}

fn check(warp: &mut Warp, active: u32, lanes: u32, needed: u32) -> Step<Option<Flow>> {
    if lanes & !needed != 0 {
        return invalid(format!(
            "lanes {lanes:#010x} run it with member mask {needed:#010x}, which they are not all in"
        ));
    }
    gather(warp, active, lanes, needed, "warp-wide instruction")
}

#[inline(always)]
fn group<I: Isa>(warp: &mut Warp, i: &Inst, active: u32, lanes: u32, needed: u32) -> Step<Flow> {
    if let Some(flow) = check(warp, active, lanes, needed)? {
        return Ok(flow);
    }
    let r = &mut warp.registers;
    match i.op {
        Op::Shuffle(op) => shuffle::<I>(warp, i, op, lanes)?,
        Op::Vote(op) => {
            let truth = r.pred(i.a, i.imm != 0) & lanes;
            let all = |holds: bool| if holds { u32::MAX } else { 0 };
            match op {
                VoteOp::Ballot => u32::put(r, i.d, [truth; LANES], lanes),
                VoteOp::Any => r.put_pred(i.d, all(truth != 0), lanes),
                VoteOp::All => r.put_pred(i.d, all(truth == lanes), lanes),
                VoteOp::Uni => r.put_pred(i.d, all(truth == 0 || truth == lanes), lanes),
            }
        }
        Op::Match(all, wide) => {
            let a = if wide { u64::get(r, i.a) } else { u32::get(r, i.a).map(u64::from) };
            let same: [u32; LANES] = std::array::from_fn(|lane| lanes & mask_of(|other| a[other] == a[lane]));
            if all {
                let equal = lanes_of(lanes).all(|lane| same[lane] == lanes);
                u32::put(r, i.d, [if equal { lanes } else { 0 }; LANES], lanes);
                r.put_pred(i.imm as Slot, if equal { u32::MAX } else { 0 }, lanes);
            } else {
                u32::put(r, i.d, same, lanes);
            }
        }
        Op::Redux(op, ty) => {
            let a = u32::get(r, i.a);
            let result = lanes_of(lanes).map(|lane| a[lane]).reduce(|x, y| reduce(op, ty, x, y)).unwrap_or(0);
            u32::put(r, i.d, [result; LANES], lanes);
        }
        _ => {
            // `elect`: the lowest member leads.
            let leader = needed.trailing_zeros();
            u32::put(r, i.d, [leader; LANES], lanes);
            r.put_pred(i.imm as Slot, 1u32.checked_shl(leader).unwrap_or(0), lanes);
        }
    }
    Ok(Flow::Next)
}

fn reduce(op: AtomicOp, ty: IntType, x: u32, y: u32) -> u32 {
    let signed = ty == IntType::S32;
    match op {
        AtomicOp::Min if signed => (x as i32).min(y as i32) as u32,
        AtomicOp::Max if signed => (x as i32).max(y as i32) as u32,
        AtomicOp::Min => x.min(y),
        AtomicOp::Max => x.max(y),
        AtomicOp::And => x & y,
        AtomicOp::Or => x | y,
        AtomicOp::Xor => x ^ y,
        _ => x.wrapping_add(y),
    }
}

#[inline(always)]
fn shuffle<I: Isa>(warp: &mut Warp, i: &Inst, op: ShuffleOp, lanes: u32) -> Step<()> {
    let r = &mut warp.registers;
    let [a, b, c] = [i.a, i.b, i.c].map(|slot| u32::stored(r, slot));
    // By far the most frequent: the whole warp, each lane with the one whose number differs in the
    // same bits.
    if op == ShuffleOp::Bfly && c[0] == 31 && lanes == u32::MAX && I::all_equal(b) && I::all_equal(c) {
        let (mut sources, by) = ([0; LANES], b[0]);
        for (lane, source) in sources.iter_mut().enumerate() {
            *source = lane as u32 ^ by;
        }
        let d = I::permute(a, &sources);
        u32::put(r, i.d, d, lanes);
        r.put_pred(i.imm as Slot, u32::MAX, lanes);
        return Ok(());
    }
    // Of each lane, the one that it reads (itself, where that is none), and whether there is one.
    let mut sources = [0u32; LANES];
    let mut inside = [0u32; LANES];
    for lane in 0..LANES {
        let (own, segment, clamp, by) = (lane as u32, c[lane] >> 8 & 31, c[lane] & 31, b[lane] & 31);
        let most = own & segment | clamp & !segment;
        let (source, valid) = match op {
            ShuffleOp::Up => (own.wrapping_sub(by), own as i32 - by as i32 >= most as i32),
            ShuffleOp::Down => (own + by, own + by <= most),
            ShuffleOp::Bfly => (own ^ by, own ^ by <= most),
            ShuffleOp::Idx => (own & segment | by & !segment, own & segment | by & !segment <= most),
        };
        sources[lane] = (if valid { source } else { own }) & 31;
        inside[lane] = u32::from(valid) << lane;
    }
    if lanes != u32::MAX
        && let Some(lane) = lanes_of(lanes).find(|lane| lanes >> sources[*lane] & 1 == 0)
    {
        return invalid(format!(
            "lane {lane} reads lane {}, which does not take part ({lanes:#010x} do)",
            sources[lane]
        ));
    }
    let all_inside = inside.iter().fold(0, |all, bit| all | bit);
    let d = I::permute(a, &sources);
    u32::put(r, i.d, d, lanes);
    r.put_pred(i.imm as Slot, all_inside, lanes);
    Ok(())
}
