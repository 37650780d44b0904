//! Counter-based random numbers: the number at (seed, index), without any state.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"). No state
//! is carried from draw to draw, so preemption, batching and replay cannot change a sequence's samples, and a
//! GPU thread computes the same number.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// A uniform number in `[0, 1)` with 53 random bits.
pub fn uniform(seed: u64, index: u64) -> f64 {
    let [a, b, _, _] = philox([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let products = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        let (high, low) = (products.map(|p| (p >> 32) as u32), products.map(|p| p as u32));
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        let ones = u32::MAX;
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in answers {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval_evenly() {
        let mut bins = [0; 10];
        for index in 0..10_000 {
            let u = uniform(42, index);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 10.0) as usize] += 1;
        }
        // Ten standard deviations of a binomial(10000, 1/10) are 300.
        assert!(bins.iter().all(|&n| (700..1300).contains(&n)), "{bins:?}");
        assert_ne!(uniform(1, 0), uniform(2, 0));
        assert_ne!(uniform(1, 0), uniform(1, 1 << 32));
    }
}
