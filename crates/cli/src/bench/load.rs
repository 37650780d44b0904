//! Requests of `ottava bench`: pseudo-random tokens, in one request or several concurrent ones, from an empty
//! cache or after a cached past.

use std::cell::Cell;
use std::time::Instant;

use ottava::{Engine, Request, TokenId};

use super::super::Failure;
use super::super::run::answer;

/// The parts of a request's prompt.
#[derive(Clone, Copy)]
pub struct Prompt {
    /// Past: tokens in the cache, once a first request has computed them.
    pub depth: usize,
    /// Tokens not in the cache.
    pub fresh: usize,
}

/// Sends requests to an engine.
pub struct Load<'e> {
    engine: &'e Engine,
    /// Number of prefill requests: a salt, so that each request's fresh tokens differ from earlier ones.
    sent: Cell<usize>,
}

/// Arrival times of one request's tokens at its reader.
struct Arrivals {
    tokens: Vec<Instant>,
    /// Decode speed by the engine's clock.
    tokens_per_s: f64,
}

impl<'e> Load<'e> {
    pub fn new(engine: &'e Engine) -> Load<'e> {
        Load { engine, sent: Cell::new(0) }
    }

    /// Prompt tokens per second of one request.
    pub fn prefill(&self, prompt: Prompt) -> Result<f64, Failure> {
        self.sent.set(self.sent.get() + 1);
        let request = request(self.engine, prompt, [0, self.sent.get()], 1);
        let answer = answer(self.engine, request, |_| Ok(()))?;
        check_cached(prompt, answer.usage.cached_tokens)?;
        Ok(answer.timings.prefill_tokens_per_s)
    }

    /// Generated tokens per second of `requests` concurrent requests. Each has a past of `depth` tokens, and
    /// generates `generate` tokens after its first one.
    pub fn decode(&self, depth: usize, generate: usize, requests: usize) -> Result<f64, Failure> {
        let prompt = Prompt { depth, fresh: usize::from(depth == 0) };
        let engine = self.engine;
        let began = Instant::now();
        let arrivals = std::thread::scope(|scope| {
            let reader = |lane| {
                std::thread::Builder::new().spawn_scoped(scope, move || once(engine, prompt, lane, generate))
            };
            let readers: Vec<_> = (0..requests).map(reader).collect();
            let join = |reader: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match reader {
                Ok(reader) => {
                    reader.join().unwrap_or_else(|_| Err(Failure::Failed("a reader stopped".into())))
                }
                Err(error) => {
                    Err(Failure::Failed(format!("--parallel {requests}: a reader's thread: {error}")))
                }
            };
            readers.into_iter().map(join).collect::<Result<Vec<Arrivals>, Failure>>()
        })?;
        // The engine's clock is exact but covers a single request; a reader may be late.
        Ok(if let [alone] = &*arrivals { alone.tokens_per_s } else { together(&arrivals, began) })
    }

    /// Computes the pasts of `requests` requests, one after another.
    pub fn fill(&self, depth: usize, requests: usize) -> Result<(), Failure> {
        for lane in 0..requests {
            let request = request(self.engine, Prompt { depth, fresh: 0 }, [lane, 0], 0);
            answer(self.engine, request, |_| Ok(()))?;
        }
        Ok(())
    }
}

/// A request of pseudo-random tokens that runs to its full length: the first token comes from the prefill
/// step, `generate` more are decoded. The past depends on the lane, the fresh tokens on the salt.
fn request(engine: &Engine, prompt: Prompt, [lane, salt]: [usize; 2], generate: usize) -> Request {
    let vocab = engine.vocab().len() as u64;
    // Knuth's multiplicative hash spreads the ids over the vocabulary.
    let hash = |i: usize| (i as u64).wrapping_mul(2_654_435_761).wrapping_add(17).rem_euclid(vocab);
    let past = (0..prompt.depth).map(|i| i + lane * 1_000_003);
    let fresh = (0..prompt.fresh).map(|i| i + salt * 7_000_003);
    let ids = past.chain(fresh).map(|i| TokenId(hash(i) as u32)).collect();
    Request::tokens(ids).ignore_eos().max_tokens(generate + 1)
}

fn once(engine: &Engine, prompt: Prompt, lane: usize, generate: usize) -> Result<Arrivals, Failure> {
    let mut tokens = Vec::with_capacity(generate + 2);
    let answer = answer(engine, request(engine, prompt, [lane, 0], generate), |_| {
        tokens.push(Instant::now());
        Ok(())
    })?;
    check_cached(prompt, answer.usage.cached_tokens)?;
    // The rest of the text comes with the end of the answer, not with a token.
    tokens.truncate(answer.ids.len());
    Ok(Arrivals { tokens, tokens_per_s: answer.timings.decode_tokens_per_s })
}

/// Fails if a past is not in the cache, since computing it again would be measured too. Its last page, and
/// the token before the first new one, are always computed.
fn check_cached(prompt: Prompt, cached: usize) -> Result<(), Failure> {
    let kept = prompt.depth.saturating_sub(2 * ottava::ir::PAGE_TOKENS);
    if cached < kept {
        return Err(Failure::Failed(format!(
            "of a past of {} tokens the cache has {cached} only: give --kv-budget more MiB",
            prompt.depth
        )));
    }
    // Repeated prompts would be found in the cache, too.
    if cached > prompt.depth {
        let depth = prompt.depth;
        return Err(Failure::Failed(format!("{cached} tokens came from the cache, of a past of {depth}")));
    }
    Ok(())
}

/// Tokens per second while all requests decode: after the latest first token, up to the earliest last one.
/// If that is less than half of the tokens, all tokens over the whole time.
fn together(requests: &[Arrivals], began: Instant) -> f64 {
    let ends = |pick: fn(&[Instant]) -> Option<&Instant>| {
        requests.iter().filter_map(move |request| pick(&request.tokens))
    };
    let (start, end) = (ends(<[_]>::first).max().copied(), ends(<[_]>::last).min().copied());
    let all: usize = requests.iter().map(|request| request.tokens.len()).sum();
    if let (Some(start), Some(end)) = (start, end) {
        let tokens = requests.iter().flat_map(|request| &request.tokens);
        let tokens = tokens.filter(|&&at| start < at && at <= end).count();
        if 2 * tokens >= all {
            return tokens as f64 / (end - start).as_secs_f64();
        }
    }
    let last = ends(<[_]>::last).max().copied().unwrap_or(began);
    all as f64 / (last - began).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn arrivals(began: Instant, milliseconds: &[u64]) -> Arrivals {
        let tokens = milliseconds.iter().map(|&ms| began + Duration::from_millis(ms)).collect();
        Arrivals { tokens, tokens_per_s: 0.0 }
    }

    #[test]
    fn only_the_time_in_which_all_decode_counts() {
        let began = Instant::now();
        let early = arrivals(began, &[1000, 1100, 1200, 1300, 1400]);
        let late = arrivals(began, &[1100, 1200, 1300, 1400, 1500]);
        // Three tokens each between 1.1 s and 1.4 s.
        assert!((together(&[early, late], began) - 20.0).abs() < 1e-6);
        let apart = [arrivals(began, &[100, 200]), arrivals(began, &[800, 1000])];
        assert!((together(&apart, began) - 4.0).abs() < 1e-6, "four tokens in a second");
    }

    #[test]
    fn a_past_that_is_gone_is_an_error() {
        let prompt = Prompt { depth: 100, fresh: 1 };
        assert!(check_cached(prompt, 96).is_ok());
        assert!(matches!(check_cached(prompt, 32), Err(Failure::Failed(why)) if why.contains("--kv-budget")));
        assert!(check_cached(Prompt { depth: 0, fresh: 9 }, 0).is_ok());
    }
}
