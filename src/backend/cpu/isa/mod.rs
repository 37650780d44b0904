//! Instruction sets: the supported ones, their run-time detection, and each kernel's entry point for each
//! set.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod kernel;
mod lanes;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod portable;
#[cfg(test)]
mod tiles_emulated;

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
pub(crate) use kernel::{Kernel, KernelFn, kernel_entry};
pub(crate) use lanes::{LANES, Lanes, Order, Tile, for_each};
#[cfg(target_arch = "aarch64")]
use neon::{Dotprod, I8mm};
use portable::Portable;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// The target's baseline.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX2, FMA, F16C and AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// [`Isa::Avx512`] and AMX with int8 (Linux only).
    Amx,
    /// aarch64 with `sdot`.
    NeonDotprod,
    /// aarch64 with `usdot`.
    NeonI8mm,
    /// [`Isa::Portable`] with emulated tiles.
    #[cfg(test)]
    Tiles,
}

impl Isa {
    const ALL: &[Isa] = &[
        Isa::Amx,
        Isa::Avx512,
        Isa::AvxVnni,
        Isa::Avx2,
        Isa::NeonI8mm,
        Isa::NeonDotprod,
        #[cfg(test)]
        Isa::Tiles,
        Isa::Portable,
    ];

    /// The best instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::ALL.iter().copied().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// All instruction sets of this machine, best first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(test)]
            Isa::Tiles => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => has_avx2() && has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => has_avx2() && has_avx512() && amx::is_available(),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                std::arch::is_aarch64_feature_detected!("dotprod")
                    && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// [`Lanes::ORDER`] of the instruction set.
    pub(crate) fn order(self) -> Order {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::<false>::ORDER,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Avx2::<true>::ORDER,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => Avx512::<false>::ORDER,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Dotprod::ORDER,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => I8mm::ORDER,
            _ => Portable::<false>::ORDER,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::NeonDotprod => "dotprod",
            Isa::NeonI8mm => "i8mm",
            #[cfg(test)]
            Isa::Tiles => "tiles",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for an unknown instruction set's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected portable, avx2, avxvnni, avx512, amx, dotprod or i8mm, found {0:?}")]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == text).ok_or_else(|| UnknownIsa(text.into()))
    }
}

/// The entry point of kernel `K` for `isa`. Calling it needs a machine that has `isa`.
pub(crate) fn entry<K: Kernel>(isa: Isa) -> KernelFn<K> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::run_avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni if const { K::ON_CODES } => avx2::run_avxvnni::<K>,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avx2::run_avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if const { K::ON_CODES } => avx512::run_amx::<K>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => avx512::run_avx512::<K>,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => neon::run_dotprod::<K>,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => neon::run_i8mm::<K>,
        #[cfg(test)]
        Isa::Tiles if const { K::ON_CODES } => portable::run_tiles::<K>,
        _ => portable::run_portable::<K>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_strangers_are_refused() {
        for &isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        let refused = "sse9".parse::<Isa>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "expected portable, avx2, avxvnni, avx512, amx, dotprod or i8mm, found \"sse9\""
        );
    }

    #[test]
    fn the_best_is_the_first_available() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::detect()));
        assert_eq!(available.last(), Some(&Isa::Portable));
    }
}
