//! Intel's AMX: products of tiles of sixteen rows, for `avx512`.
//!
//! Rust has no stable intrinsics for AMX, hence `asm!`. Tiles keep their contents from one `asm!` to the
//! next: to the compiler they are only clobber registers of `asm!`, so it keeps no values in them.
//! Source: Intel's Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;

use super::{LANES, Tile};
use crate::backend::cpu::memory::cache::cpuid;
use crate::backend::cpu::pack::QUADS;

/// Bytes from a row of a tile in memory to the next.
const STRIDE: usize = 64;

/// Whether the CPU has int8 tiles and the system grants them. Linux grants them per process, on request.
pub(crate) fn is_available() -> bool {
    const TILE_AND_INT8: u32 = 0b11 << 24;
    let features = cpuid(7, 0);
    features.edx & TILE_AND_INT8 == TILE_AND_INT8 && is_granted()
}

#[cfg(target_os = "linux")]
fn is_granted() -> bool {
    /// From `asm/prctl.h`, and the number of the tile data among the processor's extended states.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: the call touches no memory of this process; systems without it return an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_granted() -> bool {
    false
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Configures tiles 0 and 1 as sixteen rows of sixteen sums, tile 2 as sixteen rows of `4 quads` activations,
/// and tiles 3 and 4 as `quads` rows of codes.
///
/// # Safety
/// [`is_available`], and `quads` is in 1..=16.
#[inline(always)]
pub(crate) unsafe fn begin(quads: usize) {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let line = STRIDE as u16;
    config.row_bytes[..5].copy_from_slice(&[line, line, 4 * quads as u16, line, line]);
    let (rows, quads) = (LANES as u8, quads as u8);
    config.rows[..5].copy_from_slice(&[rows, rows, rows, quads, quads]);
    // SAFETY: the configuration is complete; no compiler-generated code uses tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags)) }
}

/// Releases the tiles, because live tiles slow down context switches.
///
/// # Safety
/// [`is_available`].
#[inline(always)]
pub(crate) unsafe fn end() {
    // SAFETY: no compiler-generated code uses tiles.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// [`Lanes::tile_dots`](super::lanes::Lanes::tile_dots)
///
/// # Safety
/// Between [`begin`] and [`end`]; the pointers are valid for their rows.
#[inline(always)]
pub(crate) unsafe fn dots<const SIGNED: bool>(a: *const i8, codes: *const u8) {
    /// Both products of activations and codes, by the instruction `$multiply`.
    macro_rules! product {
        ($multiply:literal) => {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tileloadd tmm2, [{a} + {stride}]",
                "tileloadd tmm3, [{codes} + {stride}]",
                "tileloadd tmm4, [{codes} + {stride} + {tile}]",
                concat!($multiply, " tmm0, tmm2, tmm3"),
                concat!($multiply, " tmm1, tmm2, tmm4"),
                a = in(reg) a,
                codes = in(reg) codes,
                stride = in(reg) STRIDE,
                tile = const QUADS * STRIDE,
                options(nostack, readonly, preserves_flags),
            )
        };
    }
    // SAFETY: the caller's pointers are valid for their rows; no compiler-generated code uses tiles.
    unsafe { if SIGNED { product!("tdpbssd") } else { product!("tdpbsud") } }
}

/// [`Lanes::store_dots`](super::lanes::Lanes::store_dots)
///
/// # Safety
/// After [`dots`] and before [`end`]; two tiles are writable.
#[inline(always)]
pub(crate) unsafe fn store(to: *mut Tile) {
    // SAFETY: the caller's two tiles are writable, and a product was computed before.
    unsafe {
        asm!(
            "tilestored [{to} + {stride}], tmm0",
            "tilestored [{to} + {stride} + {tile}], tmm1",
            to = in(reg) to,
            stride = in(reg) STRIDE,
            tile = const size_of::<Tile>(),
            options(nostack, preserves_flags),
        )
    }
}
