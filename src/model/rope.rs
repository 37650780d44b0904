//! RoPE scaling schemes (linear, YaRN, Llama 3): computes the frequencies of the graph's rotary embedding.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::graph::RopeSpec;
use crate::ir::RopePairing;

/// Scaling of rotary frequencies for contexts beyond the trained one. All parts combine.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeScaling {
    /// Per-frequency divisors: Llama 3's `rope_freqs.weight`, `[dims / 2]`.
    pub factors: Option<Vec<f64>>,
    /// Interpolation, applied after the divisors.
    pub interpolation: Interpolation,
    /// Factor of the rotated elements.
    pub magnitude: f64,
}

impl Default for RopeScaling {
    /// No scaling.
    fn default() -> Self {
        RopeScaling { factors: None, interpolation: Interpolation::Linear { factor: 1.0 }, magnitude: 1.0 }
    }
}

/// Interpolation of positions beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interpolation {
    /// Position interpolation (Chen et al. 2023): all frequencies are divided by a factor.
    Linear {
        /// Extended context divided by trained context.
        factor: f64,
    },
    /// YaRN: interpolation by wavelength (Peng et al. 2023).
    Yarn(Yarn),
    /// Llama 3.1's interpolation by wavelength.
    Llama3(Llama3),
}

/// Parameters of Llama 3.1's scheme, named as in its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Number of rotations over the trained context below which a frequency is low.
    pub low_freq_factor: f64,
    /// Number of rotations above which a frequency is unchanged.
    pub high_freq_factor: f64,
    /// Trained context, in tokens.
    pub original_context: f64,
}

/// Parameters of YaRN, named as in the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Extended context divided by trained context (s).
    pub factor: f64,
    /// Trained context, in tokens (L).
    pub original_context: f64,
    /// Share of extrapolation in the ramp; 1 in the paper.
    pub extrapolation: f64,
    /// Multiplier of ln(s) in the divisor of the magnitude; 0 for a divisor of 1 (DeepSeek-V2's
    /// `mscale_all_dim`).
    pub log_multiplier: f64,
    /// Number of rotations over the trained context above which a frequency is unchanged (β).
    pub beta_fast: f64,
    /// Number of rotations below which a frequency is fully interpolated (α).
    pub beta_slow: f64,
}

/// Unscaled rotation: `base^(−2i / dims)` radians per position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeBase {
    /// Rotated elements of a head.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Pairs of elements that rotate together.
    pub pairing: RopePairing,
}

impl RopeScaling {
    /// The rotation of `rope` under this scaling.
    pub fn spec(&self, rope: RopeBase) -> RopeSpec {
        let RopeBase { dims, base, pairing } = rope;
        let own = |i: usize| self.factors.as_ref().and_then(|factors| factors.get(i)).copied().unwrap_or(1.0);
        let share = |i: usize| match self.interpolation {
            Interpolation::Linear { factor } => 1.0 / factor,
            Interpolation::Yarn(yarn) => yarn.share(i, rope),
            Interpolation::Llama3(llama3) => llama3.share(base.powf(-2.0 * i as f64 / dims as f64)),
        };
        let scaled = |i: usize| base.powf(-2.0 * i as f64 / dims as f64) / own(i) * share(i);
        let magnitude = match self.interpolation {
            Interpolation::Linear { .. } | Interpolation::Llama3(_) => self.magnitude,
            Interpolation::Yarn(yarn) => self.magnitude * yarn.magnitude(),
        };
        let inv_freq: Arc<[f64]> = (0..dims / 2).map(scaled).collect();
        RopeSpec { dims, inv_freq, magnitude: magnitude as f32, pairing }
    }
}

impl Llama3 {
    /// Factor of a frequency, by its rotations over the trained context: 1 for many, `1 / factor` for few,
    /// linear between.
    fn share(&self, frequency: f64) -> f64 {
        let rotations = self.original_context * frequency / (2.0 * PI);
        let between = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let kept = between.clamp(0.0, 1.0);
        (1.0 - kept) / self.factor + kept
    }
}

impl Yarn {
    /// Factor of pair `i`'s frequency, by its rotations over the trained context: 1 for many, `1 / factor`
    /// for few, a ramp between.
    fn share(&self, i: usize, rope: RopeBase) -> f64 {
        let last = rope.dims as f64 - 1.0;
        // `max` comes first: it turns the NaN of base 1 into 0.
        let low = self.pair_of(self.beta_fast, rope).floor().max(0.0).min(last);
        let high = self.pair_of(self.beta_slow, rope).ceil().max(0.0).min(last);
        let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let kept = (1.0 - ramp) * self.extrapolation;
        (1.0 - kept) / self.factor + kept
    }

    /// `0.1 ln(s) + 1`, divided by the same with the multiplier.
    fn magnitude(&self) -> f64 {
        let of = |multiplier: f64| 0.1 * multiplier * self.factor.max(1.0).ln() + 1.0;
        of(1.0) / of(self.log_multiplier)
    }

    /// The (fractional) pair with `rotations` rotations over the trained context.
    fn pair_of(&self, rotations: f64, rope: RopeBase) -> f64 {
        rope.dims as f64 * (self.original_context / (rotations * 2.0 * PI)).ln() / (2.0 * rope.base.ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROPE: RopeBase = RopeBase { dims: 128, base: 1e6, pairing: RopePairing::Halves };

    fn linear(factor: f64) -> RopeScaling {
        RopeScaling { interpolation: Interpolation::Linear { factor }, ..RopeScaling::default() }
    }

    /// Qwen2.5's published setting: factor 4 over 32768.
    const YARN: Yarn = Yarn {
        factor: 4.0,
        original_context: 32768.0,
        extrapolation: 1.0,
        log_multiplier: 0.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };

    fn yarn(yarn: Yarn) -> RopeScaling {
        RopeScaling { interpolation: Interpolation::Yarn(yarn), ..RopeScaling::default() }
    }

    fn ratio(scaling: &RopeScaling, i: usize) -> f64 {
        scaling.spec(ROPE).inv_freq[i] / RopeScaling::default().spec(ROPE).inv_freq[i]
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let rope = RopeBase { dims: 4, base: 10_000.0, pairing: RopePairing::Halves };
        let spec = RopeScaling::default().spec(rope);
        assert_eq!((spec.inv_freq[0], spec.inv_freq[1]), (1.0, 0.01));
        assert_eq!(spec.magnitude, 1.0);
    }

    #[test]
    fn linear_and_factors_divide_together() {
        assert!((ratio(&linear(8.0), 17) - 0.125).abs() < 1e-15);
        let factors: Vec<f64> = (0..64).map(|i| 1.0 + f64::from(i)).collect();
        let both = RopeScaling { factors: Some(factors), ..linear(2.0) };
        assert!((ratio(&both, 9) - 0.05).abs() < 1e-15);
        assert_eq!(RopeScaling { magnitude: 1.5, ..both }.spec(ROPE).magnitude, 1.5);
    }

    /// With base 1e6 the ramp runs from pair 23 to pair 40, by the paper's equation 23 worked out by hand:
    /// 128 · ln(32768 / (32 · 2π)) / (2 ln 1e6) = 23.596, and with 1 rotation 39.65.
    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let scaling = yarn(YARN);
        assert_eq!(ratio(&scaling, 23), 1.0);
        assert!((ratio(&scaling, 40) - 0.25).abs() < 1e-12);
        let middle = (32.0 - 23.0) / 17.0;
        assert!((ratio(&scaling, 32) - (middle / 4.0 + 1.0 - middle)).abs() < 1e-12);
        let magnitude = scaling.spec(ROPE).magnitude;
        assert!((f64::from(magnitude) - 1.138_629_436_111_989).abs() < 1e-6);
    }

    #[test]
    fn yarn_extrapolates_as_much_as_it_should() {
        // Half of the fast pairs' frequency stays, the other half is divided by 4.
        let half = yarn(Yarn { extrapolation: 0.5, ..YARN });
        assert!((ratio(&half, 0) - 0.625).abs() < 1e-12);
        assert!((ratio(&half, 63) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn yarn_divides_its_magnitude_by_that_of_the_multiplier() {
        let magnitude = |log_multiplier| yarn(Yarn { log_multiplier, ..YARN }).spec(ROPE).magnitude;
        assert_eq!(magnitude(1.0), 1.0);
        // (0.1 ln 4 + 1) / (0.05 ln 4 + 1)
        assert!((magnitude(0.5) - 1.064_821).abs() < 1e-5, "{}", magnitude(0.5));
        let shorter = yarn(Yarn { factor: 0.5, ..YARN }).spec(ROPE);
        assert_eq!((shorter.magnitude, shorter.inv_freq[63]), (1.0, linear(0.5).spec(ROPE).inv_freq[63]));
    }

    #[test]
    fn no_base_makes_frequencies_that_are_not_finite() {
        for base in [1e-30, 1.0, 1e30] {
            let spec = yarn(YARN).spec(RopeBase { base, ..ROPE });
            assert!(spec.inv_freq.iter().all(|freq| freq.is_finite()), "{base}");
        }
    }
}
