//! Emulated tiles in thread-local memory, for tests. Code that uses tiles is tested on every machine, and
//! misuse panics, which hardware tiles would not report.

use std::cell::RefCell;

use super::{LANES, Tile};
use crate::backend::cpu::pack::QUADS;

/// Bytes from a row of a tile to the next.
const STRIDE: usize = 64;

thread_local! {
    static TILES: RefCell<Option<Tiles>> = const { RefCell::new(None) };
}

/// A thread's configured tiles.
struct Tiles {
    quads: usize,
    /// The last product, until it is stored.
    dots: Option<[Tile; 2]>,
}

/// Calls `f` with the thread's configured tiles.
fn with(f: impl FnOnce(&mut Tiles)) {
    TILES.with_borrow_mut(|tiles| f(tiles.as_mut().expect("tiles have begun")));
}

pub(crate) fn begin(quads: usize) {
    assert!((1..=16).contains(&quads));
    let before = TILES.replace(Some(Tiles { quads, dots: None }));
    assert!(before.is_none(), "tiles are given back before others begin");
}

pub(crate) fn end() {
    with(|tiles| assert!(tiles.dots.is_none(), "a product is stored"));
    TILES.set(None);
}

/// [`Lanes::tile_dots`](super::lanes::Lanes::tile_dots)
///
/// # Safety
/// The pointers are valid for their rows.
pub(crate) unsafe fn dots<const SIGNED: bool>(a: *const i8, codes: *const u8) {
    with(|tiles| {
        assert!(tiles.dots.is_none(), "a product is stored before the next");
        let mut dots = [Tile([[0; LANES]; LANES]); 2];
        for (t, dots) in dots.iter_mut().enumerate() {
            for (m, sums) in dots.0.iter_mut().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    for k in 0..4 * tiles.quads {
                        let (q, k_of_quad) = (k / 4, k % 4);
                        // SAFETY: within the rows.
                        let (code, a) = unsafe {
                            let code = *codes.add((t * QUADS + q) * STRIDE + 4 * r + k_of_quad);
                            (code, *a.add(m * STRIDE + k))
                        };
                        let code = if SIGNED { i32::from(code as i8) } else { i32::from(code) };
                        *sum += code * i32::from(a);
                    }
                }
            }
        }
        tiles.dots = Some(dots);
    });
}

/// [`Lanes::store_dots`](super::lanes::Lanes::store_dots)
///
/// # Safety
/// Two tiles are writable.
pub(crate) unsafe fn store(to: *mut Tile) {
    with(|tiles| {
        let dots = tiles.dots.take().expect("a product was computed");
        // SAFETY: the caller's two tiles are writable.
        unsafe { to.cast::<[Tile; 2]>().write(dots) }
    });
}
