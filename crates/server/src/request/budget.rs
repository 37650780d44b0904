//! Bounds on the memory and the work of a request's answers, checked before any work. A request of a hundred
//! bytes could otherwise have an answer of gigabytes.

use crate::error::ApiError;
use crate::request::params::Params;

/// Most units of the answers of a request: 40 MiB as text. A token has one unit as a part of a text, and
/// [`LOGPROB`] for its own log-probability and for that of each alternative.
const UNITS_MAX: usize = 8 << 20;
const LOGPROB: usize = 16;
/// Most token ids of prompts, listed for all choices together.
const PROMPT_IDS_MAX: usize = 1 << 19;
/// Most biases of all choices together.
const BIASES_MAX: usize = 1 << 20;

impl Params {
    /// Bounds the choices of `prompts` prompts, which are echoed with `echoed` tokens in all. A stream keeps
    /// only its echo. Answers without a limit of their own get the one that fits.
    ///
    /// # Errors
    /// By the field that is too large.
    pub(crate) fn bound(&mut self, context: usize, prompts: usize, echoed: usize) -> Result<(), ApiError> {
        let n = self.n.max(1);
        let choices = prompts.saturating_mul(n).max(1);
        if self.logit_bias.len() > BIASES_MAX / choices {
            let (most, found) = (BIASES_MAX / choices, self.logit_bias.len());
            let message =
                format!("logit_bias: expected at most {most} tokens for {choices} choices, found {found}");
            return Err(ApiError::invalid("logit_bias", message));
        }
        let units = self.logprobs.map_or(1, |top| LOGPROB * (top + 1));
        let most = UNITS_MAX / units;
        let Some(left) = most.checked_sub(echoed.saturating_mul(n)) else {
            let (most, each) = (most / n, self.logprobs.map_or(0, |top| top + 1));
            let message =
                format!("echo: expected at most {most} tokens with {each} log-probabilities, found {echoed}");
            return Err(ApiError::invalid("echo", message));
        };
        let room = left / choices;
        match self.max_tokens {
            _ if self.stream || room >= context => {}
            Some(found) if found < context && found > room => {
                let message = format!(
                    "max_tokens: expected at most {room} for each of {choices} choices by its log-probabilities, \
                     found {found}; a stream has no such limit"
                );
                return Err(ApiError::invalid("max_tokens", message));
            }
            Some(0) => {}
            limit => self.max_tokens = Some(limit.map_or(room, |limit| limit.min(room)).max(1)),
        }
        Ok(())
    }

    /// Bounds the token ids of prompts with `tokens` tokens in all, which each choice lists on request.
    ///
    /// # Errors
    /// By the field `return_token_ids`.
    pub(crate) fn bound_prompt_ids(&self, tokens: usize) -> Result<(), ApiError> {
        let most = PROMPT_IDS_MAX / self.n.max(1);
        if !self.token_ids || tokens <= most {
            return Ok(());
        }
        let message = format!("return_token_ids: expected at most {most} tokens of prompts, found {tokens}");
        Err(ApiError::invalid("return_token_ids", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(n: usize, max_tokens: Option<usize>, logprobs: Option<usize>) -> Params {
        let mut params = Params::default();
        (params.n, params.max_tokens, params.logprobs) = (n, max_tokens, logprobs);
        params
    }

    /// The limit of tokens, or the name of the refused field.
    fn bound(
        mut params: Params,
        context: usize,
        prompts: usize,
        echoed: usize,
    ) -> Result<Option<usize>, String> {
        let refused =
            |error: ApiError| error.to_json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        params.bound(context, prompts, echoed).map(|()| params.max_tokens).map_err(refused)
    }

    #[test]
    fn usual_requests_keep_their_limits() {
        for params in [params(1, None, None), params(8, None, Some(5)), params(1, Some(131_072), None)] {
            assert_eq!(bound(params.clone(), 8192, 1, 0), Ok(params.max_tokens));
        }
        assert_eq!(bound(params(8, Some(16), Some(20)), 131_072, 64, 0), Ok(Some(16)));
        assert_eq!(bound(params(1, Some(0), Some(0)), 131_072, 1, 131_072), Ok(Some(0)));
    }

    #[test]
    fn token_ids_of_prompts_are_bounded_for_all_choices_together() {
        let mut params = params(8, None, None);
        assert!(params.bound_prompt_ids(usize::MAX).is_ok());
        params.token_ids = true;
        assert!(params.bound_prompt_ids(PROMPT_IDS_MAX / 8).is_ok());
        assert!(params.bound_prompt_ids(PROMPT_IDS_MAX / 8 + 1).is_err());
    }

    #[test]
    fn an_answer_that_is_kept_is_bounded_by_its_log_probabilities() {
        let room = UNITS_MAX / (LOGPROB * 21) / 8;
        assert_eq!(bound(params(8, None, Some(20)), 131_072, 1, 0), Ok(Some(room)));
        assert_eq!(bound(params(8, Some(usize::MAX), Some(20)), 131_072, 1, 0), Ok(Some(room)), "all");
        assert_eq!(bound(params(8, Some(room), Some(20)), 131_072, 1, 0), Ok(Some(room)));
        assert_eq!(bound(params(8, Some(room + 1), Some(20)), 131_072, 1, 0), Err("max_tokens".into()));
        let mut stream = params(8, Some(100_000), Some(20));
        stream.stream = true;
        assert_eq!(bound(stream, 131_072, 1, 0), Ok(Some(100_000)));
    }

    #[test]
    fn echoes_and_biases_count_for_every_choice() {
        let echoed = UNITS_MAX / (LOGPROB * 21) / 8;
        assert_eq!(bound(params(8, Some(0), Some(20)), 131_072, 6, echoed), Ok(Some(0)));
        assert_eq!(bound(params(8, Some(0), Some(20)), 131_072, 6, echoed + 1), Err("echo".into()));
        let mut biased = params(8, Some(1), None);
        biased.logit_bias = vec![(ottava::TokenId(1), 1.0); BIASES_MAX / 8];
        assert!(bound(biased.clone(), 4096, 1, 0).is_ok());
        assert_eq!(bound(biased, 4096, 2, 0), Err("logit_bias".into()));
    }
}
