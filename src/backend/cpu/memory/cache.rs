//! The size of a core's L1 data cache.

/// Bytes of L1d; 48 KiB if the CPU does not report it.
pub(crate) fn first_level_bytes() -> usize {
    let levels = levels();
    levels.iter().find_map(|&registers| first_level(registers)).unwrap_or(48 << 10)
}

/// EAX, EBX and ECX for each cache that the CPU lists.
///
/// Sources: Intel's Software Developer's Manual, volume 2, CPUID leaf 4; AMD's Architecture Programmer's
/// Manual, volume 3, leaf 8000001d, which has the same format.
#[cfg(target_arch = "x86_64")]
fn levels() -> Vec<[u32; 3]> {
    const LEAVES: [u32; 2] = [4, 0x8000_001d];
    /// More caches than any CPU has.
    const CACHES: u32 = 8;
    let there = LEAVES.into_iter().filter(|leaf| cpuid(leaf & 0x8000_0000, 0).eax >= *leaf);
    let all = there.flat_map(|leaf| (0..CACHES).map(move |cache| cpuid(leaf, cache)));
    all.map(|found| [found.eax, found.ebx, found.ecx]).collect()
}

/// CPUID. Every x86-64 has the instruction; Rust 1.89 to 1.93 still mark it unsafe.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)]
pub(crate) fn cpuid(leaf: u32, part: u32) -> std::arch::x86_64::CpuidResult {
    // SAFETY: every x86-64 has the instruction.
    unsafe { std::arch::x86_64::__cpuid_count(leaf, part) }
}

#[cfg(not(target_arch = "x86_64"))]
fn levels() -> Vec<[u32; 3]> {
    Vec::new()
}

/// Size of a cache in bytes, if it is an L1 data cache.
fn first_level([eax, ebx, ecx]: [u32; 3]) -> Option<usize> {
    const DATA: u32 = 1;
    const UNIFIED: u32 = 3;
    let (kind, level) = (eax & 31, eax >> 5 & 7);
    let (ways, partitions, line) = ((ebx >> 22) + 1, (ebx >> 12 & 0x3ff) + 1, (ebx & 0xfff) + 1);
    let bytes = [ways, partitions, line, ecx].map(|factor| factor as usize);
    (level == 1 && [DATA, UNIFIED].contains(&kind)).then(|| bytes[0] * bytes[1] * bytes[2] * (bytes[3] + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_level_for_data_is_found_by_its_kind_and_level() {
        // Zen 5: 12 ways, 64 sets, lines of 64 bytes.
        let data = [0x0000_0121, 0x02c0_003f, 63];
        assert_eq!(first_level(data), Some(48 << 10));
        let instructions = [0x0000_0122, 0x01c0_003f, 63];
        let second = [0x0000_0143, 0x03c0_003f, 1023];
        for other in [instructions, second, [0; 3]] {
            assert_eq!(first_level(other), None);
        }
    }

    #[test]
    fn this_cpu_has_one() {
        assert!((8 << 10..=1 << 20).contains(&first_level_bytes()));
    }
}
