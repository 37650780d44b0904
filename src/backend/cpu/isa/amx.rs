//! Intel's AMX: products of tiles of sixteen rows. `avx512` uses them.
//!
//! Rust has no stable intrinsics for AMX, hence `asm!`. Tiles keep their contents from one `asm!` to the
//! next: the compiler knows them only as registers that `asm!` may clobber, and keeps nothing in them.
//! Source: Intel's Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;

use super::{LANES, Tile};
use crate::backend::cpu::memory::cache::cpuid;
use crate::backend::cpu::pack::QUADS;

/// Bytes from a row of a tile in memory to the next.
const STRIDE: usize = 64;

/// Whether the CPU has int8 tiles and the system grants them; Linux wants to be asked.
pub(crate) fn is_available() -> bool {
    const TILE_AND_INT8: u32 = 0b11 << 24;
    let features = cpuid(7, 0);
    features.edx & TILE_AND_INT8 == TILE_AND_INT8 && is_granted()
}

#[cfg(target_os = "linux")]
fn is_granted() -> bool {
    /// `asm/prctl.h`, and the number of the tiles' state among those that the processor saves.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: touches no memory of this process; refused where the system does not know it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_granted() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Makes tiles 0 and 1 sixteen rows of sixteen sums, 2 those of `4 quads` activations, 3 and 4 `quads` rows of codes.
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
    // SAFETY: a whole configuration; the compiler knows no tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags)) }
}

/// Releases the tiles: a thread with live tiles takes longer to switch.
///
/// # Safety
/// [`is_available`].
#[inline(always)]
pub(crate) unsafe fn end() {
    // SAFETY: the compiler knows no tiles.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// [`Lanes::tile_dots`](super::lanes::Lanes::tile_dots)
///
/// # Safety
/// Between [`begin`] and [`end`]; the pointers are valid for their rows.
#[inline(always)]
pub(crate) unsafe fn dots<const SIGNED: bool>(a: *const i8, codes: *const u8) {
    /// With the product `$multiply` of activations and codes.
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
/// Behind [`dots`], before [`end`]; two tiles are writable.
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
