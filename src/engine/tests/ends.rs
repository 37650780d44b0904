//! Ends of answers: a least number of tokens before them, and stops that the text includes.

use super::text::{spelled, told, with_text, words};
use super::*;

/// The answer by the definition, without an engine: before `min_tokens` tokens the stop id has no
/// probability.
fn ended(request: &TokenRequest) -> (Vec<TokenId>, FinishReason) {
    let (mut tokens, prompt) = (request.prompt.clone(), request.prompt.len());
    let mut sampler = Sampler::default();
    while tokens.len() - prompt < request.max_tokens {
        let history = History { tokens: &tokens, prompt };
        let mut sampling = request.sampling.clone();
        if tokens.len() - prompt < request.min_tokens {
            sampling.logit_bias.extend(request.stop_ids.iter().map(|&id| (id, f32::NEG_INFINITY)));
        }
        let chosen = sampler.choose(&mut logits_after(&tokens), &sampling, None, history).unwrap();
        if request.stop_ids.contains(&chosen) {
            return (tokens.split_off(prompt), FinishReason::Eos);
        }
        tokens.push(chosen);
    }
    (tokens.split_off(prompt), FinishReason::Length)
}

/// On the host, and in steps that run ahead; with and without penalties.
#[test]
fn no_stop_id_is_sampled_before_the_least_number_of_tokens() {
    let mut held = 0;
    for (seed, presence_penalty) in [(3, 0.0), (4, 0.0), (5, 0.5)] {
        let mut asked = request(seed, 21, 40);
        asked.sampling.presence_penalty = presence_penalty;
        let all = expected(&asked);
        // An id outside the vocabulary is never sampled.
        let stop_ids = vec![all[2], all[5], all[2], TokenId(VOCAB as u32)];
        for min_tokens in [0, 1, 3, 20, 40, usize::MAX] {
            let asked = || TokenRequest { min_tokens, stop_ids: stop_ids.clone(), ..request(seed, 21, 40) };
            let asked = || {
                let mut asked = asked();
                asked.sampling.presence_penalty = presence_penalty;
                asked
            };
            let expected = ended(&asked());
            held += usize::from(min_tokens == 20 && expected.0.len() >= 20);
            for fake in [Fake::new(60), Fake::new(60).in_step()] {
                let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
                let (found, end) = read(handle.submit(asked()).unwrap());
                assert_eq!((found, end.unwrap().0), expected, "at least {min_tokens}");
            }
        }
    }
    assert_eq!(held, 3);
}

#[test]
fn a_stop_string_ends_no_text_within_the_least_number_of_tokens() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let spells = |range: std::ops::Range<usize>| spelled(&all[range]);
    let ended = |stop: &str, min_tokens| {
        let asked = TokenRequest { min_tokens, ..with_text(&words(), &[stop]) };
        let (ids, text, finish) = told(handle.submit(asked).unwrap());
        (ids.len(), text, finish)
    };
    // The string is that of the tokens 4 and 5: it ends with the sixth token.
    let stop = spells(4..6);
    assert_eq!(ended(&stop, 5), (6, spells(0..4), FinishReason::Stop), "it may begin there");
    let (count, text, _) = ended(&stop, 6);
    assert!(count > 6 && text.starts_with(&spells(0..6)), "{text}");
}

#[test]
fn a_stop_is_in_the_text_if_it_is_included() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let stop = spelled(&all[4..6]);
    let asked = TokenRequest { include_stop: true, ..with_text(&words(), &[&stop]) };
    let answer = handle.submit(asked).unwrap().text().unwrap();
    assert_eq!((answer.text, answer.stop), (spelled(&all[..6]), Some(stop)));
    let first = all.iter().position(|id| *id == all[7]).unwrap();
    // Text held back for a stop string precedes that of the stop id.
    let held = format!("{}#", spelled(&all[first..=first]));
    let asked = TokenRequest { include_stop: true, stop_ids: vec![all[7]], ..with_text(&words(), &[&held]) };
    let answer = handle.submit(asked).unwrap().text().unwrap();
    assert_eq!((answer.text, answer.finish), (spelled(&all[..=first]), FinishReason::Eos));
    assert_eq!(answer.tokens, all[..first], "it is not a part of the answer");
}

/// Allows token 8 or the end of the turn, and after `0` tokens the end alone.
struct EndsAfter(usize);

impl TokenMask for EndsAfter {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        allowed.insert(TokenId(9));
        if answer.len() < self.0 {
            allowed.insert(TokenId(8));
        }
    }
}

#[test]
fn a_complete_mask_prevails_over_the_least_number_of_tokens() {
    let handle = spawn(60, EngineConfig::default());
    for (complete, min_tokens) in [(12, 6), (4, 6), (0, 6)] {
        let asked = TokenRequest {
            min_tokens,
            stop_ids: vec![TokenId(9)],
            mask: Some(Box::new(EndsAfter(complete))),
            ..request(1, 10, 50)
        };
        let answer = handle.submit(asked).unwrap().text().unwrap();
        assert_eq!(answer.finish, FinishReason::Eos);
        let (least, most) = (complete.min(min_tokens), complete);
        assert!((least..=most).contains(&answer.tokens.len()), "{complete}: {:?}", answer.tokens);
    }
}
