//! The host's sampler: one choice from one row of logits, with scratch that is kept between choices.

use super::{History, SampleError, Sampling, TokenSet, row_sampling};
use crate::ir::{LogitAdjustment, RowSampling};
use crate::token::TokenId;

/// Chooses tokens; allocates only while its scratch grows.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Ranked,
    adjustments: Vec<LogitAdjustment>,
}

impl Sampler {
    /// Chooses the next token, among `allowed` if given. `logits` (`[vocab]`) are changed in place by bias,
    /// penalties and that set.
    ///
    /// # Errors
    /// [`SampleError::NonFinite`] for NaN or +∞ among the logits, [`SampleError::NothingAllowed`]
    /// if bias and `allowed` leave nothing.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        sampling: &Sampling,
        allowed: Option<&TokenSet>,
        history: History<'_>,
    ) -> Result<TokenId, SampleError> {
        self.adjustments.clear();
        let row = row_sampling(sampling, history, history.position(), &mut self.adjustments);
        for adjustment in &self.adjustments {
            if let Some(logit) = logits.get_mut(adjustment.token.index()) {
                *logit = adjustment.apply(*logit);
            }
        }
        // Checked after the adjustments: they make no unusable logit usable, but some of them overflow.
        check_logits(logits)?;
        if let Some(allowed) = allowed {
            allowed.mask(logits);
        }
        self.pick(logits, &row).ok_or(SampleError::NothingAllowed)
    }

    /// The token of logits that are adjusted already and neither NaN nor +∞; `None` if all are −∞.
    pub(crate) fn pick(&mut self, logits: &[f32], row: &RowSampling) -> Option<TokenId> {
        if row.temperature == 0.0 { argmax(logits) } else { self.draw(logits, row) }
    }

    /// Draws by inverting the cumulative distribution of the kept candidates, in the order of their ids.
    fn draw(&mut self, logits: &[f32], sampling: &RowSampling) -> Option<TokenId> {
        let candidates = &mut self.candidates;
        candidates.fill(logits, sampling.top_k as usize);
        let best = f64::from(largest(logits));
        candidates.items.iter_mut().for_each(|(_, value)| {
            *value = ((*value - best) / f64::from(sampling.temperature)).exp();
        });
        let (kept, sum) = candidates.nucleus(f64::from(sampling.top_p), f64::from(sampling.min_p));
        let kept = &mut candidates.items[..kept];
        if candidates.sorted > 0 {
            kept.sort_unstable_by_key(|&(token, _)| token);
        }
        let mut left = sampling.draw as f64 / 2f64.powi(64) * sum;
        let passed = kept.iter().find(|&&(_, weight)| {
            left -= weight;
            left < 0.0
        });
        passed.or(kept.last()).map(|&(token, _)| token)
    }
}

/// Candidates with their logits, later their weights. The first `sorted` are sorted, best first and ties by
/// the lower id; the rest is in any order. If `sorted` is 0, all are in the order of their ids. Sorting is
/// lazy: a draw rarely needs many, and sorting a whole vocabulary takes as long as a small model's step.
#[derive(Debug, Default)]
struct Ranked {
    items: Vec<(TokenId, f64)>,
    sorted: usize,
}

impl Ranked {
    /// Takes the `top_k` largest logits above −∞, or all of them if it is 0.
    fn fill(&mut self, logits: &[f32], top_k: usize) {
        if top_k > 0 {
            best_logits(logits, top_k, &mut self.items);
            self.sorted = self.items.len();
            return;
        }
        let finite = logits.iter().enumerate().filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        self.items.clear();
        self.items.extend(finite.map(|(id, &logit)| (TokenId(id as u32), f64::from(logit))));
        self.sorted = 0;
    }

    fn get(&mut self, rank: usize) -> Option<(TokenId, f64)> {
        const AT_LEAST: usize = 64;
        if rank >= self.sorted && self.sorted < self.items.len() {
            let rest = &mut self.items[self.sorted..];
            let more = (self.sorted + AT_LEAST).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, better);
            }
            rest[..more].sort_unstable_by(better);
            self.sorted += more;
        }
        self.items.get(rank).copied()
    }

    /// Number of the best weights that make up `top_p` of the whole and are at least `min_p` (at least one),
    /// and their sum. The best weight must be 1, so that weights are probabilities relative to it.
    fn nucleus(&mut self, top_p: f64, min_p: f64) -> (usize, f64) {
        let whole = self.items.iter().map(|&(_, weight)| weight).sum::<f64>();
        if top_p >= 1.0 && min_p <= 0.0 {
            return (self.items.len(), whole);
        }
        let goal = if top_p >= 1.0 { f64::INFINITY } else { top_p * whole };
        let (mut kept, mut sum) = (0, 0.0);
        while let Some((_, weight)) = self.get(kept) {
            if kept > 0 && (sum >= goal || weight < min_p) {
                break;
            }
            sum += weight;
            kept += 1;
        }
        (kept, sum)
    }
}

/// Order of candidates: best first, ties by the lower id.
fn better(a: &(TokenId, f64), b: &(TokenId, f64)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Fills `best` with the `k` largest logits above −∞, largest first, ties by the lower id.
pub fn best_logits(logits: &[f32], k: usize, best: &mut Vec<(TokenId, f64)>) {
    best.clear();
    if k == 0 {
        return;
    }
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        // Later ids lose ties, so equality with the k-th best does not matter.
        if logit > threshold {
            best.push((TokenId(id as u32), f64::from(logit)));
            if best.len() == k.saturating_mul(2) {
                let (_, kth, _) = best.select_nth_unstable_by(k - 1, better);
                threshold = kth.1 as f32;
                best.truncate(k);
            }
        }
    }
    best.sort_unstable_by(better);
    best.truncate(k);
}

/// The largest logit's token, the lowest id among equals; `None` if all are −∞.
fn argmax(logits: &[f32]) -> Option<TokenId> {
    let max = largest(logits);
    let id = logits.iter().position(|&logit| logit == max && logit > f32::NEG_INFINITY)?;
    Some(TokenId(id as u32))
}

/// The largest value, −∞ for an empty row. Sixteen strands let it run in vector registers.
fn largest(logits: &[f32]) -> f32 {
    let mut strands = [f32::NEG_INFINITY; 16];
    let mut blocks = logits.chunks_exact(16);
    for block in &mut blocks {
        for (strand, &logit) in strands.iter_mut().zip(block) {
            *strand = if logit > *strand { logit } else { *strand };
        }
    }
    strands.iter().chain(blocks.remainder()).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Refuses NaN and +∞.
fn check_logits(logits: &[f32]) -> Result<(), SampleError> {
    if logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
        return Ok(());
    }
    let bad = |&(_, logit): &(usize, &f32)| logit.is_nan() || *logit == f32::INFINITY;
    match logits.iter().enumerate().find(bad) {
        Some((id, &value)) => Err(SampleError::NonFinite { token: TokenId(id as u32), value }),
        None => Ok(()),
    }
}

/// `ln Σ exp(logit)` in f64.
///
/// # Errors
/// [`SampleError::NonFinite`] for the first NaN or +∞.
pub fn log_sum_exp(logits: &[f32]) -> Result<f64, SampleError> {
    check_logits(logits)?;
    let max = f64::from(largest(logits));
    if max == f64::NEG_INFINITY {
        return Ok(max);
    }
    Ok(max + logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choose(
        logits: &[f32],
        sampling: &Sampling,
        tokens: &[u32],
        prompt: usize,
    ) -> Result<u32, SampleError> {
        let tokens: Vec<_> = tokens.iter().map(|&id| TokenId(id)).collect();
        let history = History { tokens: &tokens, prompt };
        Sampler::default().choose(&mut logits.to_vec(), sampling, None, history).map(|token| token.0)
    }

    /// The kept tokens with their probabilities, computed from the definitions.
    fn oracle(logits: &[f32], s: &Sampling) -> Vec<(u32, f64)> {
        let mut kept: Vec<(u32, f64)> = logits
            .iter()
            .enumerate()
            .filter(|(_, x)| **x > f32::NEG_INFINITY)
            .map(|(i, &x)| (i as u32, (f64::from(x) / f64::from(s.temperature)).exp()))
            .collect();
        kept.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if s.top_k > 0 {
            kept.truncate(s.top_k);
        }
        let total: f64 = kept.iter().map(|x| x.1).sum();
        let mut sum = 0.0;
        let mut nucleus = Vec::new();
        for &(id, weight) in &kept {
            nucleus.push((id, weight));
            sum += weight / total;
            if s.top_p < 1.0 && sum >= f64::from(s.top_p) {
                break;
            }
        }
        let best = nucleus[0].1;
        nucleus.retain(|x| x.1 / best >= f64::from(s.min_p));
        nucleus.sort_by_key(|x| x.0);
        let total: f64 = nucleus.iter().map(|x| x.1).sum();
        nucleus.iter().map(|&(id, weight)| (id, weight / total)).collect()
    }

    proptest! {
        #[test]
        fn draws_follow_the_definition(
            logits in prop::collection::vec(-6.0f32..6.0, 2..400),
            temperature in 0.3f32..3.0, top_k in 0usize..12, top_p in 0.05f32..1.0, min_p in 0.0f32..0.5,
            u in 0.0f64..1.0,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
            let expected = oracle(&logits, &sampling);
            let draw = (u * 2f64.powi(64)) as u64;
            let row = RowSampling { temperature, top_k: top_k as u32, top_p, min_p, draw, adjustments: 0..0 };
            let drawn = Sampler::default().draw(&logits, &row).unwrap().0;
            let mut below = 0.0;
            let mut hit = false;
            for (id, p) in expected {
                // Rounding may move a boundary by a hair.
                if id == drawn {
                    hit = (below - 1e-9..below + p + 1e-9).contains(&u);
                }
                below += p;
            }
            prop_assert!(hit, "token {drawn} at u = {u}");
        }

        #[test]
        fn the_best_are_those_of_a_full_sort(
            logits in prop::collection::vec((-3i8..3).prop_map(f32::from), 1..200), k in 0usize..30,
        ) {
            let mut expected: Vec<_> = logits.iter().enumerate().map(|(i, &x)| (TokenId(i as u32), f64::from(x))).collect();
            expected.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            expected.truncate(k);
            let mut found = Vec::new();
            best_logits(&logits, k, &mut found);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn replay_is_exact_and_independent_of_other_draws(
            logits in prop::collection::vec(-2.0f32..2.0, 50), seed: u64, n in 0usize..9,
        ) {
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let history = vec![1; n + 3];
            let first = choose(&logits, &sampling, &history, 3);
            let _ = choose(&logits, &sampling, &history[..3], 3);
            prop_assert_eq!(choose(&logits, &sampling, &history, 3), first);
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(choose(&[1.0, 3.0, 3.0, 2.0], &Sampling::default(), &[], 0), Ok(1));
        let forbidden = Sampling { logit_bias: vec![(TokenId(1), f32::NEG_INFINITY)], ..Sampling::default() };
        assert_eq!(choose(&[1.0, 3.0, 3.0, 2.0], &forbidden, &[], 0), Ok(2));
    }

    #[test]
    fn penalties_are_those_defined() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(choose(&[4.0, 3.0, 1.0], &sampling, &[0], 1), Ok(1), "4 / 2 is below 3");
        assert_eq!(choose(&[-1.0, -1.5, -9.0], &sampling, &[0], 1), Ok(1), "-1 · 2 is below -1.5");
        let presence = Sampling { presence_penalty: 2.0, ..Sampling::default() };
        assert_eq!(choose(&[4.0, 3.0], &presence, &[0], 1), Ok(0), "the prompt does not count");
        assert_eq!(choose(&[4.0, 3.0], &presence, &[0], 0), Ok(1));
        let frequency = Sampling { frequency_penalty: 0.6, ..Sampling::default() };
        assert_eq!(choose(&[4.0, 3.0], &frequency, &[0], 0), Ok(0));
        assert_eq!(choose(&[4.0, 3.0], &frequency, &[0, 0], 0), Ok(1));
        let short = Sampling { frequency_penalty: 0.6, penalty_last_n: 1, ..Sampling::default() };
        assert_eq!(choose(&[4.0, 3.0], &short, &[0, 0], 0), Ok(0), "only the last token is looked at");
    }

    #[test]
    fn unusable_logits_are_refused() {
        let bad = choose(&[1.0, f32::NAN], &Sampling::default(), &[], 0);
        assert!(matches!(bad, Err(SampleError::NonFinite { token: TokenId(1), .. })));
        let bad = choose(&[f32::INFINITY, 0.0], &Sampling::default(), &[], 0);
        assert!(matches!(bad, Err(SampleError::NonFinite { token: TokenId(0), .. })));
        let nothing = choose(&[f32::NEG_INFINITY; 3], &Sampling::default(), &[], 0);
        assert_eq!(nothing, Err(SampleError::NothingAllowed));
        let drawn = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(choose(&[f32::NEG_INFINITY; 3], &drawn, &[], 0), Err(SampleError::NothingAllowed));
    }

    #[test]
    fn what_is_not_allowed_is_not_chosen() {
        let history = History { tokens: &[], prompt: 0 };
        let mut allowed = TokenSet::new(3);
        allowed.insert(TokenId(2));
        let choose =
            |sampling| Sampler::default().choose(&mut [5.0, 4.0, 3.0], &sampling, Some(&allowed), history);
        assert_eq!(choose(Sampling::default()), Ok(TokenId(2)));
        assert_eq!(choose(Sampling { temperature: 50.0, ..Sampling::default() }), Ok(TokenId(2)));
        let logit_bias = vec![(TokenId(2), f32::NEG_INFINITY)];
        let nothing = choose(Sampling { logit_bias, ..Sampling::default() });
        assert_eq!(nothing, Err(SampleError::NothingAllowed));
    }

    #[test]
    fn log_sum_exp_is_the_plain_sum_where_that_fits() {
        let logits = [0.5f32, -1.0, 2.0];
        let plain: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        approx::assert_relative_eq!(log_sum_exp(&logits).unwrap(), plain, epsilon = 1e-12);
        assert!(log_sum_exp(&[f32::NAN]).is_err());
        assert_eq!(log_sum_exp(&[1000.0, 1000.0]).unwrap(), 1000.0 + 2f64.ln());
    }
}
