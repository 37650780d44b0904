//! Choices that depend on the processor model rather than on its instruction set. The table has only rows
//! that were measured (`benches/record/cpu`); all other processors use [`DEFAULT`].

use std::fmt;
use std::str::FromStr;

/// The cache that software prefetches of weights fill while a single token is multiplied. A hint is an
/// immediate of the instruction, so each one is another copy of the kernels. L1 is not offered, since it was
/// never far better than both others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefetchHint {
    /// `prefetcht1`, `pldl2keep`
    L2,
    /// `prefetchnta`, `pldl1strm`: L1, to be evicted first. Intel's cores bypass L2 and read at half speed.
    NonTemporal,
}

impl PrefetchHint {
    const NAMES: [(&str, PrefetchHint); 2] = [("l2", PrefetchHint::L2), ("nta", PrefetchHint::NonTemporal)];

    /// The hint for the processor that this process runs on.
    pub fn detect() -> PrefetchHint {
        processor().map_or(DEFAULT, |(vendor, family)| hint_of(&vendor, family))
    }
}

impl fmt::Display for PrefetchHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(_, hint)| hint == self);
        f.pad(named.map_or("", |(name, _)| name))
    }
}

/// Error for an unknown prefetch hint's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected l2 or nta, found {0:?}")]
pub struct UnknownHint(String);

impl FromStr for PrefetchHint {
    type Err = UnknownHint;

    fn from_str(text: &str) -> Result<PrefetchHint, UnknownHint> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, hint)| *hint).ok_or_else(|| UnknownHint(text.into()))
    }
}

/// Hint of processors without a row. On AVX-512, L2 lost at most 4 % of the speed where another hint was
/// best; a wrong non-temporal hint lost nearly half of it or more.
const DEFAULT: PrefetchHint = PrefetchHint::L2;

/// Hints by the vendor and the family of CPUID leaves 0 and 1.
const HINTS: &[(&[u8; 12], u32, PrefetchHint)] = &[
    // Zen 5
    (b"AuthenticAMD", 0x1a, PrefetchHint::NonTemporal),
    // Measured on Sapphire Rapids or later; the family covers all recent cores of Intel.
    (b"GenuineIntel", 6, PrefetchHint::L2),
];

fn hint_of(vendor: &[u8; 12], family: u32) -> PrefetchHint {
    let row = HINTS.iter().find(|row| row.0 == vendor && row.1 == family);
    row.map_or(DEFAULT, |row| row.2)
}

/// Vendor and family of this processor by CPUID; `None` on other architectures than x86-64.
fn processor() -> Option<([u8; 12], u32)> {
    #[cfg(target_arch = "x86_64")]
    {
        use super::memory::cache::cpuid;
        let vendor = cpuid(0, 0);
        let mut name = [0; 12];
        for (part, register) in name.chunks_exact_mut(4).zip([vendor.ebx, vendor.edx, vendor.ecx]) {
            part.copy_from_slice(&register.to_le_bytes());
        }
        let version = cpuid(1, 0).eax;
        // Source: Intel's Software Developer's Manual, volume 2, CPUID leaf 1; AMD's has the same form.
        let (family, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
        Some((name, if family == 0xf { family + extended } else { family }))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for (name, hint) in PrefetchHint::NAMES {
            assert_eq!(hint.to_string(), name);
            assert_eq!(name.parse(), Ok(hint));
        }
        let refused = "t2".parse::<PrefetchHint>().unwrap_err();
        assert_eq!(refused.to_string(), "expected l2 or nta, found \"t2\"");
    }

    #[test]
    fn only_measured_processors_take_the_non_temporal_hint() {
        assert_eq!(hint_of(b"AuthenticAMD", 0x1a), PrefetchHint::NonTemporal);
        for (vendor, family) in [
            (b"AuthenticAMD", 0x19),
            (b"AuthenticAMD", 0x1b),
            (b"GenuineIntel", 6),
            (b"GenuineIntel", 0x13),
            (b"CentaurHauls", 7),
        ] {
            assert_ne!(hint_of(vendor, family), PrefetchHint::NonTemporal);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_processor_has_a_vendor_and_a_family() {
        let (vendor, family) = processor().unwrap();
        assert!(vendor.iter().all(u8::is_ascii), "{vendor:?}");
        assert!(family >= 5, "{family}");
    }
}
