//! The arithmetic of sliding windows with attention sinks. Mirrors the rule of [`Window`]: a query at `p`
//! sees positions below `sinks` and those above `p − window`.

use crate::ir::{PAGE_TOKENS, Window};

/// The first position that a query at `len` or later still sees, except for sinks.
pub(super) fn horizon(window: Option<Window>, len: usize) -> usize {
    window.map_or(0, |w| (len + 1).saturating_sub(w.window as usize))
}

/// Queries below this position see all of their past, so they compute the same as in a sequence without a
/// window. Only such positions may be shared.
pub(super) fn unclipped(window: Option<Window>) -> usize {
    window.map_or(usize::MAX, |w| (w.window as usize).saturating_add(w.sinks as usize))
}

/// Pages at the front that hold sinks and are never dropped.
pub(super) fn sink_pages(window: Option<Window>) -> usize {
    window.map_or(0, |w| (w.sinks as usize).div_ceil(PAGE_TOKENS))
}

/// End of the dropped region of a sequence of `len` tokens: all pages from the sinks up to here are out of
/// sight. 0 if there are none.
pub(super) fn dropped_to(window: Option<Window>, len: usize) -> usize {
    let end = horizon(window, len) / PAGE_TOKENS * PAGE_TOKENS;
    if end > sink_pages(window) * PAGE_TOKENS { end } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sees(w: Window, query: i64, key: i64) -> bool {
        key <= query && (key < i64::from(w.sinks) || key > query - i64::from(w.window))
    }

    #[test]
    fn the_arithmetic_agrees_with_the_rule_spelt_out() {
        for (window, sinks) in [(1, 0), (1, 5), (7, 0), (16, 16), (20, 4), (40, 33)] {
            let w = Window { window, sinks };
            for len in 0..150i64 {
                let all = (0..len).all(|key| sees(w, len, key));
                assert_eq!(all, (len as usize) < unclipped(Some(w)), "{w:?} at {len}");
                let gone = |start: i64| (start..start + 16).all(|key| key < len && !sees(w, len, key));
                for page in 0..len / 16 {
                    let region = sink_pages(Some(w)) as i64..dropped_to(Some(w), len as usize) as i64 / 16;
                    assert_eq!(gone(16 * page), region.contains(&page), "{w:?} at {len}, page {page}");
                }
            }
        }
        assert_eq!((horizon(None, 99), unclipped(None), dropped_to(None, 99)), (0, usize::MAX, 0));
    }
}
