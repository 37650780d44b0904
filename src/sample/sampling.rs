//! The parameters of sampling and what makes them acceptable.

use crate::token::TokenId;

/// How the next token is chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it, 0 to 100. 0: the highest logit wins, whatever comes after.
    pub temperature: f32,
    /// Only this many of the most probable tokens are kept. 0: all.
    pub top_k: usize,
    /// Only the fewest most probable tokens that together have this probability are kept, 0 to 1.
    /// 1: all. At least one is kept.
    pub top_p: f32,
    /// Only tokens at least this fraction as probable as the most probable one are kept, 0 to 1.
    pub min_p: f32,
    /// Logits of tokens in prompt or output are divided by it if positive, else multiplied with
    /// it, 0.01 to 100. 1: none. (Keskar et al. 2019, "CTRL".)
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens that the output has, −100 to 100.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens that the output has, once for each time, −100 to 100.
    pub frequency_penalty: f32,
    /// The penalties look back this many tokens. `usize::MAX`: at all; 0: no penalties.
    pub penalty_last_n: usize,
    /// Added to the logits of single tokens, −1,000 to 1,000, or −∞ for never; no token twice.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Which stream of random numbers is drawn from.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: usize::MAX,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A parameter that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// Outside its range, or not a number.
    #[error("{parameter}: expected {min} to {max}, found {found}")]
    Range {
        /// The field of [`Sampling`].
        parameter: &'static str,
        /// Least value.
        min: f32,
        /// Greatest value.
        max: f32,
        /// The value.
        found: f32,
    },
    /// A bias for a token that there is none of.
    #[error("logit_bias: token {token} is outside the vocabulary of {vocab_size}")]
    BiasToken {
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// Two biases for one token.
    #[error("logit_bias: token {token} is given twice")]
    BiasTwice {
        /// The token.
        token: TokenId,
    },
}

impl Sampling {
    /// Checks every parameter, for a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// [`SamplingError`] names the first parameter that is not acceptable.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        self.validate_bias(vocab_size)
    }

    fn validate_bias(&self, vocab_size: usize) -> Result<(), SamplingError> {
        for &(token, bias) in &self.logit_bias {
            if token.index() >= vocab_size {
                return Err(SamplingError::BiasToken { token, vocab_size });
            }
            if bias != f32::NEG_INFINITY {
                within("logit_bias", bias, -1000.0, 1000.0)?;
            }
        }
        let mut tokens: Vec<TokenId> = self.logit_bias.iter().map(|&(token, _)| token).collect();
        tokens.sort_unstable();
        match tokens.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(SamplingError::BiasTwice { token: pair[0] }),
            None => Ok(()),
        }
    }

    /// Whether the highest logit wins.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

fn within(parameter: &'static str, found: f32, min: f32, max: f32) -> Result<(), SamplingError> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(SamplingError::Range { parameter, min, max, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_and_the_limits_are_accepted() {
        Sampling::default().validate(10).unwrap();
        let extreme = Sampling {
            temperature: 100.0,
            top_k: usize::MAX,
            top_p: 0.0,
            min_p: 1.0,
            repetition_penalty: 0.01,
            presence_penalty: -100.0,
            frequency_penalty: 100.0,
            penalty_last_n: 0,
            logit_bias: vec![(TokenId(9), f32::NEG_INFINITY), (TokenId(0), 1000.0)],
            seed: u64::MAX,
        };
        extreme.validate(10).unwrap();
    }

    #[test]
    fn every_number_is_refused_when_it_is_none_or_out_of_range() {
        type Field = fn(&mut Sampling) -> &mut f32;
        let fields: [(&str, Field, f32); 6] = [
            ("temperature", |s| &mut s.temperature, -0.1),
            ("top_p", |s| &mut s.top_p, 1.1),
            ("min_p", |s| &mut s.min_p, -0.1),
            ("repetition_penalty", |s| &mut s.repetition_penalty, 0.0),
            ("presence_penalty", |s| &mut s.presence_penalty, 101.0),
            ("frequency_penalty", |s| &mut s.frequency_penalty, -101.0),
        ];
        for (name, field, out) in fields {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, out] {
                let mut sampling = Sampling::default();
                *field(&mut sampling) = bad;
                let error = sampling.validate(10).unwrap_err();
                let named = matches!(error, SamplingError::Range { parameter, .. } if parameter == name);
                assert!(named, "{name} = {bad}: {error}");
            }
        }
    }

    #[test]
    fn biases_are_finite_or_a_ban_and_each_token_has_one() {
        let refuse = |logit_bias| Sampling { logit_bias, ..Sampling::default() }.validate(10).unwrap_err();
        assert!(matches!(refuse(vec![(TokenId(1), f32::NAN)]), SamplingError::Range { .. }));
        assert!(matches!(refuse(vec![(TokenId(1), f32::INFINITY)]), SamplingError::Range { .. }));
        assert_eq!(
            refuse(vec![(TokenId(10), 1.0)]),
            SamplingError::BiasToken { token: TokenId(10), vocab_size: 10 }
        );
        assert_eq!(
            refuse(vec![(TokenId(3), 1.0), (TokenId(2), 1.0), (TokenId(3), 2.0)]),
            SamplingError::BiasTwice { token: TokenId(3) }
        );
    }
}
