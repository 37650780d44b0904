//! Philox4x32-10, a counter-based random number generator: any number of the stream can be had
//! without the numbers before it. (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011.)

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The golden ratio and √3 − 1, which the key moves by between rounds.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut words, mut key) = (counter, key);
    for _ in 0..ROUNDS {
        let product = |word: u32, by: u32| {
            let wide = u64::from(word) * u64::from(by);
            ((wide >> 32) as u32, wide as u32)
        };
        let (high0, low0) = product(words[0], MULTIPLIERS[0]);
        let (high1, low1) = product(words[2], MULTIPLIERS[1]);
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    words
}

/// Number `index` of the stream `seed`, uniform in `[0, 1)`: a multiple of 2⁻⁵³.
pub fn uniform(seed: u64, index: u64) -> f64 {
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let [low, high] = halves(index);
    let [first, second, ..] = philox4x32([low, high, 0, 0], halves(seed));
    let bits = (u64::from(second) << 32 | u64::from(first)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their implementation.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn numbers_fill_the_unit_interval_and_never_reach_one() {
        let numbers: Vec<f64> = (0..10_000).map(|index| uniform(7, index)).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        for tenth in 0..10 {
            let count = numbers.iter().filter(|&&u| (u * 10.0) as usize == tenth).count();
            assert!((850..1150).contains(&count), "{count} of 10,000 in tenth {tenth}");
        }
    }

    #[test]
    fn seeds_and_indices_beyond_32_bits_count() {
        let distinct: std::collections::BTreeSet<u64> =
            [(0, 0), (1 << 32, 0), (0, 1 << 32), (1, 0), (0, 1)].map(|(s, i)| uniform(s, i).to_bits()).into();
        assert_eq!(distinct.len(), 5);
    }
}
