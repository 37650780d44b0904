//! Where the code of the AVX2 version begins: functions that are compiled for features of the processor, and all
//! that is inlined into them.

use super::isa::{Version, nothing};
use super::lanes::Registers;
use super::trap::Step;
use super::warp::{Pause, Warp};
use super::x86::X86;
use super::{Env, arithmetic, interpret};
use crate::decode::{Inst, Slot};

/// To be used only where the features are there.
pub(super) const VERSION: Version = Version { run, compute: arithmetic::compute::<X86> };

fn run(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
    // SAFETY: `version` gives this function out only where the features are there.
    unsafe { run_here(env, warp) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
fn run_here(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
    interpret::run::<X86>(env, warp)
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn with_features<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn compute<F: Fn(&mut Registers, &Inst, &[Slot], u32) + Copy + 'static>(
    r: &mut Registers,
    i: &Inst,
    lists: &[Slot],
    mask: u32,
) {
    // SAFETY: `compile` was given one.
    let work = unsafe { nothing::<F>() };
    work(r, i, lists, mask);
}
