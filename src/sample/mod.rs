//! Sampling: from logits to a token. Here are the parameters and their checks; `sampler` makes the choice,
//! and `mask` restricts it.
//!
//! The order is fixed: logit bias and forbidden ends, penalties, mask, temperature, top-k, top-p, min-p,
//! draw. `row` turns a request's parameters into numbers for a backend that samples itself.
//!
//! ```
//! use ottava::Sampling;
//!
//! let mut sampling = Sampling::default();
//! sampling.temperature = -0.5;
//! let error = sampling.check(32_000).unwrap_err().to_string();
//! assert!(error.starts_with("temperature"), "{error}");
//! ```

#![forbid(unsafe_code)]

mod mask;
mod random;
mod row;
mod sampler;

pub use mask::{TokenMask, TokenSet};
pub use random::uniform;
pub use row::History;
pub use row::row_sampling;
pub use sampler::{Sampler, best_logits, log_sum_exp};

use crate::kind::ErrorKind;
use crate::token::TokenId;

/// Sampling parameters of a request. Default: greedy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Divides the logits; 0 is greedy (ties go to the lowest id). Range: 0 to 100. Default: 0.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all. Default: 0.
    pub top_k: usize,
    /// Keeps the most likely tokens until their probability reaches this; 1 keeps all. Range: above 0, at
    /// most 1. Default: 1.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the most likely; 0 keeps all. Range: 0 to 1. Default: 0.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of the last tokens (prompt included); 1 is off.
    /// (Keskar et al. 2019, "CTRL".) Range: 0.01 to 100. Default: 1.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens generated among the last ones. Range: -100 to 100. Default: 0.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated among the last ones. Range: -100 to 100. Default: 0.
    pub frequency_penalty: f32,
    /// Number of last tokens, prompt included, that the penalties cover. Default: 64.
    pub penalty_last_n: usize,
    /// Added to the logits of single tokens; negative infinity forbids a token. At most 1,000,000. Default:
    /// none.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Length of an answer before which `ends` are forbidden. The engine fills in both from the fields of a
    /// [`TokenRequest`](crate::engine::TokenRequest).
    pub(crate) min_tokens: usize,
    /// Tokens that end an answer: sorted, each once.
    pub(crate) ends: Vec<TokenId>,
    /// Seed of the random numbers; equal seeds replay bit-equal. Default: 0.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: Vec::new(),
            min_tokens: 0,
            ends: Vec::new(),
            seed: 0,
        }
    }
}

/// Invalid sampling parameters, unusable logits, or a failed mask.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A parameter is out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its range.
        expected: &'static str,
        /// The value given.
        found: f64,
    },
    /// A bias names a token outside the vocabulary.
    #[error("logit_bias: token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id given.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The model computed unusable logits.
    #[error("the logit of token {token} is {value}")]
    NonFinite {
        /// The first such token.
        token: TokenId,
        /// NaN or positive infinity.
        value: f32,
    },
    /// The backend sampled, and found no token to take.
    #[error("no token can be sampled: a logit is NaN or +inf, or all are -inf")]
    Unusable,
    /// Bias and mask forbid every token.
    #[error("no token is allowed")]
    NothingAllowed,
    /// A mask names a token outside the vocabulary.
    #[error("mask: token {token} is outside the vocabulary of {vocab}")]
    MaskToken {
        /// The id given.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A request's mask could not compute the allowed tokens.
    #[error("mask: {0}")]
    MaskFailed(&'static str),
    /// A request's mask panicked.
    #[error("the mask panicked")]
    MaskPanicked,
}

impl SampleError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SampleError::Parameter { .. }
            | SampleError::Token { .. }
            | SampleError::NothingAllowed
            | SampleError::MaskFailed(_)
            | SampleError::MaskToken { .. } => ErrorKind::Invalid,
            SampleError::NonFinite { .. } | SampleError::Unusable | SampleError::MaskPanicked => {
                ErrorKind::Internal
            }
        }
    }

    /// The parameter at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            SampleError::Parameter { name, .. } => Some(name),
            SampleError::Token { .. } => Some("logit_bias"),
            SampleError::MaskToken { .. } | SampleError::MaskFailed(_) | SampleError::MaskPanicked => {
                Some("mask")
            }
            _ => None,
        }
    }
}

/// Largest logit bias. A penalty may multiply it by a hundred, and the result must stay finite.
const BIAS_MAX: f32 = 1e6;

impl Sampling {
    /// Checks every parameter.
    ///
    /// # Errors
    /// [`SampleError::Parameter`] or [`SampleError::Token`] for the first that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), SampleError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0, "0 to 100"),
            ("top_p", self.top_p, f32::MIN_POSITIVE, 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "0.01 to 100"),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0, "-100 to 100"),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0, "-100 to 100"),
        ];
        for (name, value, low, high, expected) in ranges {
            if !(low..=high).contains(&value) {
                return Err(SampleError::Parameter { name, expected, found: value.into() });
            }
        }
        for &(token, bias) in &self.logit_bias {
            if token.index() >= vocab {
                return Err(SampleError::Token { token, vocab });
            }
            if bias.is_nan() || bias > BIAS_MAX {
                let expected = "at most 1000000";
                return Err(SampleError::Parameter { name: "logit_bias", expected, found: bias.into() });
            }
        }
        Ok(())
    }

    /// The tokens forbidden at a position of the answer: its ends, before `min_tokens`.
    pub(crate) fn forbidden_at(&self, position: u64) -> &[TokenId] {
        if position < self.min_tokens as u64 { &self.ends } else { &[] }
    }

    /// Whether earlier tokens change the logits of later ones.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_out_of_range_are_named() {
        let check = |sampling: Sampling| sampling.check(10).unwrap_err().to_string();
        let base = Sampling::default;
        assert_eq!(base().check(10), Ok(()));
        assert!(check(Sampling { temperature: f32::NAN, ..base() }).starts_with("temperature"));
        assert!(check(Sampling { temperature: -0.1, ..base() }).starts_with("temperature"));
        assert!(check(Sampling { top_p: 0.0, ..base() }).starts_with("top_p"));
        assert!(check(Sampling { top_p: 1.1, ..base() }).starts_with("top_p"));
        assert!(check(Sampling { min_p: f32::INFINITY, ..base() }).starts_with("min_p"));
        assert!(check(Sampling { repetition_penalty: 0.0, ..base() }).starts_with("repetition_penalty"));
        assert!(check(Sampling { presence_penalty: 1e9, ..base() }).starts_with("presence_penalty"));
        assert!(check(Sampling { frequency_penalty: f32::NAN, ..base() }).starts_with("frequency_penalty"));
        assert!(check(Sampling { logit_bias: vec![(TokenId(10), 0.0)], ..base() }).contains("token 10"));
        assert!(
            check(Sampling { logit_bias: vec![(TokenId(1), f32::NAN)], ..base() }).contains("logit_bias")
        );
        assert_eq!(
            Sampling { logit_bias: vec![(TokenId(1), f32::NEG_INFINITY)], ..base() }.check(10),
            Ok(())
        );
    }

    /// Default parameters with one of them changed, by name.
    fn with(name: &str, value: f32) -> Sampling {
        let mut sampling = Sampling::default();
        match name {
            "temperature" => sampling.temperature = value,
            "top_p" => sampling.top_p = value,
            "min_p" => sampling.min_p = value,
            "repetition_penalty" => sampling.repetition_penalty = value,
            "presence_penalty" => sampling.presence_penalty = value,
            "frequency_penalty" => sampling.frequency_penalty = value,
            _ => sampling.logit_bias = vec![(TokenId(9), value)],
        }
        sampling
    }

    /// Each bound is allowed; values beyond it, NaN and infinities are not.
    #[test]
    fn every_parameter_keeps_to_its_bounds() {
        let bounds: [(&str, f32, f32); 6] = [
            ("temperature", 0.0, 100.0),
            ("top_p", f32::MIN_POSITIVE, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
        ];
        for (name, low, high) in bounds {
            for good in [low, low.next_up(), high.next_down(), high] {
                assert_eq!(with(name, good).check(10), Ok(()), "{name} {good}");
            }
            let bad = [
                low.next_down(),
                high.next_up(),
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::MAX,
                f32::MIN,
            ];
            for bad in bad {
                let SampleError::Parameter { name: named, found, .. } =
                    with(name, bad).check(10).unwrap_err()
                else {
                    panic!("{name} {bad}: another error");
                };
                assert_eq!(named, name);
                assert!(found == f64::from(bad) || found.is_nan() && bad.is_nan(), "{name}: {found}");
            }
        }
        for good in [f32::NEG_INFINITY, f32::MIN, -0.0, BIAS_MAX] {
            assert_eq!(with("logit_bias", good).check(10), Ok(()), "{good}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::MAX, BIAS_MAX.next_up()] {
            let found = with("logit_bias", bad).check(10);
            assert!(matches!(found, Err(SampleError::Parameter { name: "logit_bias", .. })), "{bad}");
        }
        let outside = SampleError::Token { token: TokenId(9), vocab: 9 };
        assert_eq!(with("logit_bias", 1.0).check(9), Err(outside));
    }

    /// Counts have no upper bound.
    #[test]
    fn counts_may_be_anything() {
        for count in [0, 1, usize::MAX] {
            let sampling = Sampling { top_k: count, penalty_last_n: count, ..Sampling::default() };
            assert_eq!(sampling.check(10), Ok(()));
        }
    }

    #[test]
    fn penalties_are_noticed_one_by_one() {
        assert!(!Sampling::default().penalises());
        for name in ["repetition_penalty", "presence_penalty", "frequency_penalty"] {
            assert!(with(name, 0.5).penalises(), "{name}");
        }
        for name in ["temperature", "top_p", "min_p", "logit_bias"] {
            assert!(!with(name, 0.5).penalises(), "{name}");
        }
    }
}
