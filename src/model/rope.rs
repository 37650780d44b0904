//! Scaling schemes of rotary embeddings, turned into the frequencies that the graph rotates by.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::backend::RopePairing;
use crate::graph::RopeSpec;

/// How the frequencies are changed for contexts beyond the trained one.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// They are not.
    #[default]
    None,
    /// Divided by a factor: position interpolation (Chen et al. 2023).
    Linear {
        /// Extended context by trained context.
        factor: f64,
    },
    /// Each divided by its own factor: Llama 3's `rope_freqs.weight`, `[dims / 2]`.
    Factors(Vec<f64>),
    /// Interpolated by wavelength (Peng et al. 2023, "YaRN").
    Yarn(Yarn),
}

/// Parameters of YaRN, named as in the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Extended context by trained context (s).
    pub factor: f64,
    /// The trained context (L).
    pub original_context: f64,
    /// Multiplies the attention factor `0.1 ln(s) + 1`.
    pub attention_factor: f64,
    /// Rotations over the trained context above which a frequency stays (β).
    pub beta_fast: f64,
    /// Rotations below which a frequency is interpolated fully (α).
    pub beta_slow: f64,
}

/// The unscaled rotation: `base^(−2i / dims)` radians a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeBase {
    /// Elements of a head that turn.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Which elements turn together.
    pub pairing: RopePairing,
}

impl RopeScaling {
    /// The rotation of `rope` under this scaling.
    pub fn spec(&self, rope: RopeBase) -> RopeSpec {
        let RopeBase { dims, base, pairing } = rope;
        let plain = |i: usize| base.powf(-2.0 * i as f64 / dims as f64);
        let scaled = |i: usize| match self {
            RopeScaling::None => plain(i),
            RopeScaling::Linear { factor } => plain(i) / factor,
            RopeScaling::Factors(factors) => plain(i) / factors.get(i).copied().unwrap_or(1.0),
            RopeScaling::Yarn(yarn) => plain(i) * yarn.share(i, rope),
        };
        let magnitude = match self {
            RopeScaling::Yarn(yarn) => yarn.attention_factor * (0.1 * yarn.factor.ln() + 1.0),
            _ => 1.0,
        };
        let inv_freq: Arc<[f64]> = (0..dims / 2).map(scaled).collect();
        RopeSpec { dims, inv_freq, magnitude: magnitude as f32, pairing }
    }
}

impl Yarn {
    /// What pair `i`'s frequency is multiplied by: 1 for those that turn often in the trained
    /// context, `1 / factor` for those that hardly turn, a ramp between.
    fn share(&self, i: usize, rope: RopeBase) -> f64 {
        let last = rope.dims as f64 - 1.0;
        let low = self.pair_of(self.beta_fast, rope).floor().clamp(0.0, last);
        let high = self.pair_of(self.beta_slow, rope).ceil().clamp(0.0, last);
        let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        ramp / self.factor + (1.0 - ramp)
    }

    /// The (fractional) pair that turns `rotations` times over the trained context.
    fn pair_of(&self, rotations: f64, rope: RopeBase) -> f64 {
        rope.dims as f64 * (self.original_context / (rotations * 2.0 * PI)).ln() / (2.0 * rope.base.ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROPE: RopeBase = RopeBase { dims: 128, base: 1e6, pairing: RopePairing::Halves };

    fn ratio(scaling: &RopeScaling, i: usize) -> f64 {
        scaling.spec(ROPE).inv_freq[i] / RopeScaling::None.spec(ROPE).inv_freq[i]
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let spec = RopeScaling::None.spec(RopeBase { dims: 4, base: 10_000.0, pairing: RopePairing::Halves });
        assert_eq!((spec.inv_freq[0], spec.inv_freq[1]), (1.0, 0.01));
        assert_eq!(spec.magnitude, 1.0);
    }

    #[test]
    fn linear_and_factors_divide() {
        assert!((ratio(&RopeScaling::Linear { factor: 8.0 }, 17) - 0.125).abs() < 1e-15);
        let factors = (0..64).map(|i| 1.0 + f64::from(i)).collect();
        assert!((ratio(&RopeScaling::Factors(factors), 9) - 0.1).abs() < 1e-15);
    }

    /// Qwen2.5's published setting: factor 4 over 32768, base 1e6. The ramp runs from pair 23 to
    /// pair 40, by the paper's equation 23 worked out by hand:
    /// 128 · ln(32768 / (32 · 2π)) / (2 ln 1e6) = 23.596, and with 1 rotation 39.65.
    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let yarn = Yarn {
            factor: 4.0,
            original_context: 32768.0,
            attention_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        let scaling = RopeScaling::Yarn(yarn);
        assert_eq!(ratio(&scaling, 23), 1.0);
        assert!((ratio(&scaling, 40) - 0.25).abs() < 1e-12);
        let middle = (32.0 - 23.0) / 17.0;
        assert!((ratio(&scaling, 32) - (middle / 4.0 + 1.0 - middle)).abs() < 1e-12);
        let magnitude = scaling.spec(ROPE).magnitude;
        assert!((f64::from(magnitude) - 1.138_629_436_111_989).abs() < 1e-6);
    }
}
