//! Branches on which lanes part: where they go, and what becomes of their fragment.

use super::lanes::{Lane, lanes_of};
use super::trap::{Step, invalid};
use super::warp::{Fragment, Wait, Warp};
use super::{Env, barrier, bulk};

/// Where lanes go that branch by an index: targets with the lanes that go there.
#[inline(never)]
pub(super) fn targets(warp: &Warp, a: u32, lists: &[u32], mask: u32) -> Step<Vec<(u32, u32)>> {
    let index = u32::get(&warp.registers, a);
    let mut targets: Vec<(u32, u32)> = Vec::new();
    for lane in lanes_of(mask) {
        let Some(target) = lists.get(index[lane] as usize) else {
            return invalid(format!("index {} of a table of {} branch targets", index[lane], lists.len()));
        };
        match targets.iter_mut().find(|(t, _)| t == target) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => targets.push((*target, 1 << lane)),
        }
    }
    Ok(targets)
}

/// Splits a fragment: `rest` goes on, others go to their targets or exit.
#[cold]
pub(super) fn leave(
    env: &mut Env,
    warp: &mut Warp,
    index: usize,
    pc: u32,
    rest: u32,
    targets: &[(u32, u32)],
    mask: u32,
) -> Step<()> {
    warp.fragments.swap_remove(index);
    if rest != 0 {
        warp.fragments.push(Fragment { pc: pc + 1, mask: rest, wait: Wait::None });
    }
    for (target, lanes) in targets {
        warp.fragments.push(Fragment { pc: *target, mask: *lanes, wait: Wait::None });
    }
    if targets.is_empty() {
        env.events += 1;
        env.blocks[warp.block].alive -= mask.count_ones();
        barrier::after_exit(env, warp);
        if warp.done() {
            bulk::at_exit(env, warp)?;
        }
    }
    // Lanes that others wait for may have gone.
    warp.desperate = false;
    for fragment in warp.fragments.iter_mut().filter(|f| f.wait == Wait::Lanes) {
        fragment.wait = Wait::None;
    }
    warp.merge();
    Ok(())
}
