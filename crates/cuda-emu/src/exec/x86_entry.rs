//! Where the code of a version begins: functions that are compiled for features of the processor, and all
//! that is inlined into them.

use super::isa::{Version, nothing};
use super::lanes::Registers;
use super::trap::Step;
use super::warp::{Pause, Warp};
use super::x86::X86;
use super::{Env, arithmetic, interpret};
use crate::decode::{Inst, Slot};

/// A version with these features.
macro_rules! version {
    ($name:ident, $wide:literal, $features:literal) => {
        pub(super) mod $name {
            use super::*;

            /// To be used only where the features are there.
            pub(in crate::exec) const VERSION: Version =
                Version { run, compute: arithmetic::compute::<X86<$wide>> };

            fn run(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
                // SAFETY: `version` gives this function out only where the features are there.
                unsafe { run_here(env, warp) }
            }

            #[target_feature(enable = $features)]
            fn run_here(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
                interpret::run::<X86<$wide>>(env, warp)
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(in crate::exec) fn with_features<R>(work: impl FnOnce() -> R) -> R {
                work()
            }

            #[target_feature(enable = $features)]
            pub(in crate::exec) fn compute<F: Fn(&mut Registers, &Inst, &[Slot], u32) + Copy + 'static>(
                r: &mut Registers,
                i: &Inst,
                lists: &[Slot],
                mask: u32,
            ) {
                // SAFETY: `compile` was given one.
                let work = unsafe { nothing::<F>() };
                work(r, i, lists, mask);
            }
        }
    };
}

version!(narrow, false, "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt");
version!(wide, true, "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl");
