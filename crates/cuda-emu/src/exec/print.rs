//! `printf` and `assert` of kernels.

use super::lanes::{LANES, lanes_of};
use super::trap::{Step, trap_at};
use super::warp::Warp;
use super::{Env, LOCAL_WINDOW};
use crate::decode::Slot;
use crate::error::FaultKind;

/// Longest text that is read from a kernel's memory.
const TEXT_BYTES_MAX: u64 = 4096;

impl Env<'_> {
    /// Bytes at a generic address, as far as they can be read.
    fn bytes_at(&self, warp: &Warp, lane: usize, address: u64, bytes: u64) -> Option<Vec<u8>> {
        if address >> 60 == LOCAL_WINDOW >> 60 {
            let length = warp.local.len() / LANES;
            let start = (address - LOCAL_WINDOW) as usize;
            let own = &warp.local[lane * length..(lane + 1) * length];
            return own.get(start..start.checked_add(bytes as usize)?).map(<[u8]>::to_vec);
        }
        self.view.find(address, bytes)?;
        let mut found = vec![0; bytes as usize];
        // SAFETY: the view has a region that holds all the bytes, and keeps it alive.
        unsafe { std::ptr::copy(address as *const u8, found.as_mut_ptr(), bytes as usize) };
        Some(found)
    }

    /// Text up to its zero.
    fn text_at(&self, warp: &Warp, lane: usize, address: u64) -> String {
        let bytes: Vec<u8> = (0..TEXT_BYTES_MAX)
            .map_while(|n| {
                self.bytes_at(warp, lane, address.checked_add(n)?, 1).map(|b| b[0]).filter(|b| *b != 0)
            })
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A call's argument, in local memory.
    fn argument(&self, warp: &Warp, lane: usize, local: Slot, bytes: usize) -> u64 {
        let mut raw = [0; 8];
        let found =
            self.bytes_at(warp, lane, LOCAL_WINDOW + u64::from(local), bytes as u64).unwrap_or_default();
        raw[..found.len()].copy_from_slice(&found);
        u64::from_le_bytes(raw)
    }
}

/// Prints to the standard output, as the driver does.
pub(super) fn printf(env: &mut Env, warp: &mut Warp, lists: &[Slot], mask: u32) -> Step<()> {
    for lane in lanes_of(mask) {
        let format = env.text_at(warp, lane, env.argument(warp, lane, lists[0], 8));
        let mut next = env.argument(warp, lane, lists[1], 8);
        let text = formatted(
            &format,
            |bytes| {
                next = next.next_multiple_of(bytes);
                let found = env.bytes_at(warp, lane, next, bytes).unwrap_or_default();
                next += bytes;
                let mut raw = [0; 8];
                raw[..found.len()].copy_from_slice(&found);
                u64::from_le_bytes(raw)
            },
            |address| env.text_at(warp, lane, address),
        );
        print!("{text}");
    }
    Ok(())
}

/// A format filled in: `argument` gives the next one of a size, `text` the string at an address.
fn formatted(format: &str, mut argument: impl FnMut(u64) -> u64, text: impl Fn(u64) -> String) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        out += &rest[..start];
        rest = &rest[start + 1..];
        let end = rest
            .find(|c: char| c.is_ascii_alphabetic() && !"hlzjtL".contains(c) || c == '%')
            .unwrap_or(rest.len());
        let (flags, kind) = (&rest[..end], rest[end..].chars().next().unwrap_or('%'));
        rest = rest.get(end + 1..).unwrap_or("");
        let long = flags.contains(['l', 'z', 'j', 't']);
        let width: String = flags.chars().filter(|c| c.is_ascii_digit() || *c == '.' || *c == '-').collect();
        let (width, precision) = width.split_once('.').unwrap_or((&width, ""));
        let zero = width.starts_with('0');
        let (left, width) = (
            width.starts_with('-'),
            width.trim_start_matches('-').parse::<usize>().unwrap_or(0).min(1 << 10),
        );
        let precision = precision.parse::<usize>().unwrap_or(6).min(1 << 10);
        let mut integer = |signed: bool| {
            let raw = argument(if long { 8 } else { 4 });
            if signed && !long {
                i128::from(raw as u32 as i32)
            } else if signed {
                i128::from(raw as i64)
            } else {
                i128::from(raw)
            }
        };
        let value = match kind {
            '%' => "%".to_string(),
            'd' | 'i' => integer(true).to_string(),
            'u' => integer(false).to_string(),
            'x' => format!("{:x}", integer(false)),
            'X' => format!("{:X}", integer(false)),
            'o' => format!("{:o}", integer(false)),
            'c' => char::from(argument(4) as u8).to_string(),
            's' => text(argument(8)),
            'p' => format!("{:#x}", argument(8)),
            'e' | 'E' => format!("{:.precision$e}", f64::from_bits(argument(8))),
            'f' | 'F' => format!("{:.precision$}", f64::from_bits(argument(8))),
            _ => format!("{}", f64::from_bits(argument(8))),
        };
        out += &match (left, zero) {
            (true, _) => format!("{value:<width$}"),
            (_, true) => format!("{value:0>width$}"),
            _ => format!("{value:>width$}"),
        };
    }
    out + rest
}

/// A failed `assert` stops the launch.
pub(super) fn assert_fail(env: &mut Env, warp: &mut Warp, lists: &[Slot], mask: u32) -> Step<()> {
    let lane = mask.trailing_zeros() as usize & 31;
    let text = |n: usize| env.text_at(warp, lane, env.argument(warp, lane, lists[n], 8));
    let kind = FaultKind::Assert {
        message: text(0),
        file: text(1),
        line: env.argument(warp, lane, lists[2], 4) as u32,
        function: text(3),
    };
    trap_at(kind, lane, 0).map_err(|mut trap: Box<super::trap::Trap>| {
        trap.address = None;
        trap
    })
}

#[cfg(test)]
mod tests {
    use super::formatted;

    #[test]
    fn formats() {
        let mut arguments = vec![7u64, u64::from(-3i32 as u32), 2.5f64.to_bits(), 0xff, 9].into_iter();
        let out =
            formatted("n=%d %5d|%.2f|%08x|%s 100%%", |_| arguments.next().unwrap(), |at| format!("<{at}>"));
        assert_eq!(out, "n=7    -3|2.50|000000ff|<9> 100%");
    }
}
