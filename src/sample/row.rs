//! Sampling parameters in a backend's form: a random number instead of a seed, logit adjustments instead of a
//! history.

use super::{Sampling, uniform};
use crate::ir::{LogitAdjustment, RowSampling};
use crate::token::TokenId;

/// The tokens so far.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens.
    pub tokens: &'a [TokenId],
    /// Number of prompt tokens.
    pub prompt: usize,
}

impl History<'_> {
    /// Index of the next token among the generated ones.
    pub fn position(&self) -> u64 {
        self.tokens.len().saturating_sub(self.prompt) as u64
    }
}

/// The sampling row of an answer's token number `position`. Its logit adjustments, computed from `history`,
/// are appended to `adjustments`.
pub fn row_sampling(
    sampling: &Sampling,
    history: History<'_>,
    position: u64,
    adjustments: &mut Vec<LogitAdjustment>,
) -> RowSampling {
    let first = adjustments.len();
    adjust(sampling, history, position, adjustments);
    RowSampling {
        temperature: sampling.temperature,
        top_k: u32::try_from(sampling.top_k).unwrap_or(u32::MAX),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        draw: (uniform(sampling.seed, position) * 2f64.powi(64)) as u64,
        adjustments: first as u32..adjustments.len() as u32,
    }
}

/// Appends the adjustments by biases, forbidden ends and penalties, one per token. The repetition penalty
/// covers the last tokens of prompt and answer; presence and frequency penalties cover those of the answer.
fn adjust(sampling: &Sampling, history: History<'_>, position: u64, adjustments: &mut Vec<LogitAdjustment>) {
    let first = adjustments.len();
    let entry = |token| LogitAdjustment { token, bias: 0.0, repetition: 1.0, penalty: 0.0 };
    let biases = sampling.logit_bias.iter();
    adjustments.extend(biases.map(|&(token, bias)| LogitAdjustment { bias, ..entry(token) }));
    let forbidden = sampling.forbidden_at(position).iter();
    adjustments.extend(forbidden.map(|&token| LogitAdjustment { bias: f32::NEG_INFINITY, ..entry(token) }));
    if sampling.penalises() {
        let start = history.tokens.len().saturating_sub(sampling.penalty_last_n);
        let recent = history.tokens.iter().enumerate().skip(start);
        // `penalty` counts the occurrences in the answer until entries are merged.
        adjustments.extend(recent.map(|(index, &token)| LogitAdjustment {
            repetition: sampling.repetition_penalty,
            penalty: if index >= history.prompt { 1.0 } else { 0.0 },
            ..entry(token)
        }));
    }
    let merged = merge(&mut adjustments[first..]);
    adjustments.truncate(first + merged);
    for LogitAdjustment { penalty, .. } in &mut adjustments[first..] {
        if *penalty > 0.0 {
            *penalty = sampling.presence_penalty + sampling.frequency_penalty * *penalty;
        }
    }
}

/// Merges entries of the same token, at the front. Returns the number left.
fn merge(entries: &mut [LogitAdjustment]) -> usize {
    entries.sort_unstable_by_key(|entry| entry.token);
    let mut kept = 0;
    for index in 0..entries.len() {
        let entry = entries[index];
        match entries[..kept].last_mut() {
            Some(last) if last.token == entry.token => {
                last.bias += entry.bias;
                last.penalty += entry.penalty;
                if entry.repetition != 1.0 {
                    last.repetition = entry.repetition;
                }
            }
            _ => {
                entries[kept] = entry;
                kept += 1;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;

    #[test]
    fn biases_and_penalties_of_a_token_are_one_adjustment() {
        for repetition_penalty in [0.5, 2.0] {
            let sampling = Sampling {
                temperature: 0.5,
                top_k: 7,
                logit_bias: vec![(TokenId(9), -1.0), (TokenId(3), 2.0), (TokenId(9), -2.0)],
                repetition_penalty,
                presence_penalty: 0.25,
                frequency_penalty: 0.125,
                penalty_last_n: 4,
                ..Sampling::default()
            };
            let tokens = [8, 7, 3, 9, 9].map(TokenId);
            let mut adjustments =
                vec![LogitAdjustment { token: TokenId(3), bias: 9.0, repetition: 1.0, penalty: 0.0 }];
            let row = row_sampling(&sampling, History { tokens: &tokens, prompt: 3 }, 2, &mut adjustments);
            assert_eq!((row.temperature, row.top_k, row.adjustments), (0.5, 7, 1..4));
            assert_eq!(row.draw >> 11, (uniform(0, 2) * 2f64.powi(53)) as u64);
            let entry = |token, bias, penalty| LogitAdjustment {
                token: TokenId(token),
                bias,
                repetition: repetition_penalty,
                penalty,
            };
            assert_eq!(adjustments[1..], [entry(3, 2.0, 0.0), entry(7, 0.0, 0.0), entry(9, -3.0, 0.5)]);
        }
    }

    #[test]
    fn ends_are_forbidden_before_the_least_number_of_tokens() {
        let sampling = Sampling {
            logit_bias: vec![(TokenId(3), 100.0)],
            min_tokens: 2,
            ends: vec![TokenId(3), TokenId(5)],
            ..Sampling::default()
        };
        let biases = |position| {
            let mut adjustments = Vec::new();
            row_sampling(&sampling, History { tokens: &[], prompt: 0 }, position, &mut adjustments);
            adjustments.iter().map(|entry| (entry.token.0, entry.bias)).collect::<Vec<_>>()
        };
        for position in [0, 1] {
            assert_eq!(biases(position), [(3, f32::NEG_INFINITY), (5, f32::NEG_INFINITY)]);
        }
        assert_eq!(biases(2), [(3, 100.0)]);
    }
}
