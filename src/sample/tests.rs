//! The sampler against the naive definition in f64: what is kept, with what probability, and
//! which token each number of the unit interval draws.

use proptest::prelude::*;

use super::*;

/// The kept tokens by rising id with their probabilities, by the book: every probability by
/// name, whole sorts, no scratch.
fn oracle(logits: &[f32], sampling: &Sampling, tokens: &[TokenId], prompt_len: usize) -> Vec<(TokenId, f64)> {
    let adjusted: Vec<f32> = (0u32..)
        .map(TokenId)
        .zip(logits)
        .map(|(token, &logit)| {
            let bias = sampling.logit_bias.iter().find(|(biased, _)| *biased == token).map_or(0.0, |b| b.1);
            let biased = logit + bias;
            let start = tokens.len().saturating_sub(sampling.penalty_last_n);
            let seen = tokens[start..].contains(&token);
            let drawn = tokens[start.max(prompt_len)..].iter().filter(|&&t| t == token).count() as f32;
            let mut adjusted = biased;
            if seen && biased > 0.0 {
                adjusted = biased / sampling.repetition_penalty;
            } else if seen {
                adjusted = biased * sampling.repetition_penalty;
            }
            adjusted -= drawn * sampling.frequency_penalty;
            if drawn > 0.0 { adjusted - sampling.presence_penalty } else { adjusted }
        })
        .collect();
    let max = adjusted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut kept: Vec<(TokenId, f32, f64)> = (0u32..)
        .map(TokenId)
        .zip(&adjusted)
        .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
        .map(|(token, &logit)| {
            let below = f64::from(logit) - f64::from(max);
            let weight = match sampling.temperature {
                0.0 => f64::from(u8::from(below == 0.0)),
                temperature => (below / f64::from(temperature)).exp(),
            };
            (token, logit, weight)
        })
        .collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.temperature == 0.0 {
        return vec![(kept[0].0, 1.0)];
    }
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k);
    }
    let total: f64 = kept.iter().map(|k| k.2).sum();
    let mut sum = 0.0;
    let mut enough = 0;
    while enough < kept.len() {
        sum += kept[enough].2;
        enough += 1;
        if sum >= f64::from(sampling.top_p) * total && sampling.top_p < 1.0 {
            break;
        }
    }
    kept.truncate(enough);
    let best = kept[0].2;
    kept.retain(|k| k.2 >= f64::from(sampling.min_p) * best);
    kept.sort_by_key(|k| k.0);
    let total: f64 = kept.iter().map(|k| k.2).sum();
    kept.into_iter().map(|k| (k.0, k.2 / total)).collect()
}

fn sample(logits: &[f32], sampling: &Sampling, tokens: &[TokenId], prompt_len: usize) -> TokenId {
    sampling.validate(logits.len()).unwrap();
    let mut sampler = Sampler::new(logits.len());
    let draw = Draw { sampling, tokens, prompt_len };
    let first = sampler.sample(&mut logits.to_vec(), &draw, None).unwrap();
    let again = sampler.sample(&mut logits.to_vec(), &draw, None).unwrap();
    assert_eq!(first, again, "scratch must not remember");
    first
}

fn samplings() -> impl Strategy<Value = Sampling> {
    let cuts = (
        prop_oneof![Just(0.0f32), 0.05..3.0f32, Just(1e-6)],
        prop_oneof![Just(0usize), 1..30usize],
        prop_oneof![Just(1.0f32), 0.0..1.0f32],
        prop_oneof![Just(0.0f32), 0.0..1.0f32],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5..2.0f32],
        prop_oneof![Just(0.0f32), -2.0..2.0f32],
        prop_oneof![Just(0.0f32), -2.0..2.0f32],
        prop_oneof![Just(usize::MAX), 0..20usize],
    );
    let bias =
        proptest::collection::btree_map(0..8u32, prop_oneof![Just(f32::NEG_INFINITY), -9.0..9.0f32], 0..4);
    (cuts, penalties, bias, any::<u64>()).prop_map(|(cuts, penalties, bias, seed)| Sampling {
        temperature: cuts.0,
        top_k: cuts.1,
        top_p: cuts.2,
        min_p: cuts.3,
        repetition_penalty: penalties.0,
        presence_penalty: penalties.1,
        frequency_penalty: penalties.2,
        penalty_last_n: penalties.3,
        logit_bias: bias.into_iter().map(|(token, bias)| (TokenId(token), bias)).collect(),
        seed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn draws_what_the_definition_draws(
        logits in proptest::collection::vec(prop_oneof![4 => -8.0..8.0f32, 1 => Just(1.5f32)], 8..300),
        history in proptest::collection::vec(0..8u32, 0..24),
        split in 0..24usize,
        sampling in samplings(),
    ) {
        let tokens: Vec<TokenId> = history.into_iter().map(TokenId).collect();
        let prompt_len = split.min(tokens.len());
        let kept = oracle(&logits, &sampling, &tokens, prompt_len);
        let drawn = sample(&logits, &sampling, &tokens, prompt_len);
        let u = uniform(sampling.seed, (tokens.len() - prompt_len) as u64);
        let mut sum = 0.0;
        let (mut low, mut high) = (f64::NAN, f64::NAN);
        for &(token, probability) in &kept {
            if token == drawn {
                (low, high) = (sum, sum + probability);
            }
            sum += probability;
        }
        prop_assert!(low - 1e-12 <= u && u <= high + 1e-12, "{drawn} has {low}..{high}, u = {u}, of {kept:?}");
    }
}

/// With one seed, the share of each token over many draws is its probability.
#[test]
fn many_draws_have_the_distribution() {
    let logits = [0.0, 1.0, 2.0, -1.0, 2.0, 0.5];
    let sampling = Sampling { temperature: 0.8, top_k: 4, seed: 11, ..Sampling::default() };
    let kept = oracle(&logits, &sampling, &[], 0);
    assert_eq!(kept.iter().map(|k| k.0.0).collect::<Vec<_>>(), [1, 2, 4, 5]);
    let mut sampler = Sampler::new(6);
    let mut counts = [0usize; 6];
    let mut tokens = Vec::new();
    for _ in 0..20_000 {
        let draw = Draw { sampling: &sampling, tokens: &tokens, prompt_len: 0 };
        let token = sampler.sample(&mut logits.to_vec(), &draw, None).unwrap();
        counts[token.index()] += 1;
        tokens.push(token);
    }
    assert_eq!((counts[0], counts[3]), (0, 0));
    for (token, probability) in kept {
        let share = counts[token.index()] as f64 / 20_000.0;
        assert!((share - probability).abs() < 0.015, "token {token}: {share} of the draws, {probability}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    let sampling = Sampling::default();
    assert_eq!(sample(&[1.0, 5.0, 5.0, 2.0], &sampling, &[], 0), TokenId(1));
    let cold = Sampling { temperature: 1e-30, ..Sampling::default() };
    assert!([TokenId(1), TokenId(2)].contains(&sample(&[1.0, 5.0, 5.0, 2.0], &cold, &[], 0)));
}

#[test]
fn rows_that_no_token_can_be_drawn_from_are_errors() {
    let mut sampler = Sampler::new(3);
    let mut result = |mut logits: Vec<f32>, sampling: &Sampling| {
        sampler.sample(&mut logits, &Draw { sampling, tokens: &[], prompt_len: 0 }, None)
    };
    for sampling in [Sampling::default(), Sampling { temperature: 1.0, ..Sampling::default() }] {
        let nan = result(vec![0.0, f32::NAN, 1.0], &sampling);
        assert!(matches!(nan, Err(SampleError::NotFinite { token: TokenId(1), .. })));
        let infinite = result(vec![0.0, 1.0, f32::INFINITY], &sampling);
        assert!(matches!(infinite, Err(SampleError::NotFinite { token: TokenId(2), .. })));
        assert_eq!(result(vec![f32::NEG_INFINITY; 3], &sampling), Err(SampleError::NothingAllowed));
        assert_eq!(result(vec![0.0; 4], &sampling), Err(SampleError::Length { expected: 3, found: 4 }));
        assert_eq!(result(vec![f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY], &sampling), Ok(TokenId(1)));
    }
}

#[derive(Debug)]
struct OnlyEven;

impl TokenMask for OnlyEven {
    fn mask(&mut self, logits: &mut [f32]) {
        logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    }

    fn accept(&mut self, _token: TokenId) {}
}

#[test]
fn masked_tokens_are_never_drawn() {
    let mut sampler = Sampler::new(5);
    for seed in 0..200 {
        let sampling = Sampling { temperature: 5.0, seed, ..Sampling::default() };
        let draw = Draw { sampling: &sampling, tokens: &[], prompt_len: 0 };
        let drawn = sampler.sample(&mut [0.0, 9.0, 0.0, 9.0, 0.0], &draw, Some(&mut OnlyEven)).unwrap();
        assert!(drawn.0.is_multiple_of(2));
    }
}

#[test]
fn scratch_does_not_grow_after_the_first_row() {
    let sampling = Sampling { temperature: 1.0, top_p: 0.9, repetition_penalty: 1.1, ..Sampling::default() };
    let mut sampler = Sampler::new(1000);
    let before = sampler.scratch_capacity();
    let tokens: Vec<TokenId> = (0..1000).map(TokenId).collect();
    for len in [1, 1000, 500] {
        let draw = Draw { sampling: &sampling, tokens: &tokens[..len], prompt_len: 1 };
        sampler.sample(&mut vec![0.5; 1000], &draw, None).unwrap();
    }
    assert_eq!(sampler.scratch_capacity(), before);
}
