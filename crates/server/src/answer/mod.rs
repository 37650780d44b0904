//! Answers: submits prompts to the engine and turns events into pieces. Nothing else in this crate submits.

pub(crate) mod choices;
pub(crate) mod completion_logprobs;
pub(crate) mod custom_input;
pub(crate) mod json;
pub(crate) mod openai_chunks;
pub(crate) mod output_items;
pub(crate) mod stream;

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::{SelectAll, Stream};
use ottava::chat::{AnswerParser, ChatPart};
use ottava::engine::{Event, FinishReason, GenerationError, Logprobs, Timings, Usage};
use ottava::{ErrorKind, Prepared, TokenId};

use crate::error::{ApiError, of_engine};
use crate::metrics::Ended;
use crate::request::params::Params;
use crate::request::prompt::Prompt;
use crate::state::App;

/// Interval of retries for choices that found the queue full.
const RETRY: Duration = Duration::from_millis(20);

/// An event of one choice.
#[derive(Debug)]
pub(crate) struct Output {
    /// The choice's number.
    pub(crate) index: usize,
    pub(crate) piece: Piece,
}

/// A piece of a choice.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A token, with the parts of the answer that it completed.
    Token { id: TokenId, parts: Vec<ChatPart>, logprobs: Option<Logprobs>, usage: Usage },
    /// The end, with the parts held back until then.
    End(End),
}

/// End of a choice.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) parts: Vec<ChatPart>,
    pub(crate) finish: &'static str,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    /// The token that ended it, with its log-probabilities if they are requested.
    pub(crate) token: Option<(TokenId, Option<Logprobs>)>,
    /// Whether that token is one of the request's stop tokens.
    pub(crate) at_stop_token: bool,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

type Choice = Pin<Box<dyn Stream<Item = (usize, Result<Event, GenerationError>, Usage)> + Send>>;

/// Running choices of a request. Dropping it cancels them.
pub(crate) struct Answers {
    app: Arc<App>,
    /// Outputs to return before any event of the engine.
    ready: VecDeque<Output>,
    running: SelectAll<Choice>,
    prompts: Vec<Prompt>,
    params: Params,
    deadline: Option<Instant>,
    /// By prompt: further choices, held until the first has a token. They then find the prompt in the prefix
    /// cache.
    waiting: Vec<Range<usize>>,
    /// Choices to submit when the engine's queue has room.
    due: VecDeque<usize>,
    /// Time of the last attempt.
    tried: Instant,
    /// Parser of each choice; `None` for plain text.
    parsers: Vec<Option<AnswerParser>>,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Answers {
    /// Submits the first choice of each prompt, or of as many as the engine's queue has room for.
    ///
    /// # Errors
    /// The engine's: too long, overloaded so that there is room for none, a parameter out of its range.
    pub(crate) fn begin(app: &Arc<App>, prompts: Vec<Prompt>, params: &Params) -> Result<Answers, ApiError> {
        params.check(&app.engine)?;
        let n = params.n;
        let parsers = prompts
            .iter()
            .flat_map(|prompt| (0..n).map(move |_| prompt.chat.as_ref().map(Prepared::answer_parser)));
        let mut answers = Answers {
            parsers: parsers.collect(),
            params: params.clone(),
            deadline: app.guard.config.request_timeout.and_then(|time| Instant::now().checked_add(time)),
            waiting: (0..prompts.len()).map(|prompt| prompt * n + 1..(prompt + 1) * n).collect(),
            due: (0..prompts.len()).map(|prompt| prompt * n).collect(),
            prompts,
            ..Answers::ended(app, Vec::new())
        };
        match answers.submit_due()? {
            Some(full) if answers.running.is_empty() => Err(full),
            _ => Ok(answers),
        }
    }

    /// The token ids of a prompt.
    pub(crate) fn prompt_ids(&self, prompt: usize) -> &[TokenId] {
        self.prompts.get(prompt).map_or(&[], |prompt| &prompt.ids)
    }

    /// Answers without generation.
    pub(crate) fn ended(app: &Arc<App>, outputs: Vec<Output>) -> Answers {
        Answers {
            app: Arc::clone(app),
            ready: outputs.into(),
            running: SelectAll::new(),
            prompts: Vec::new(),
            params: Params::default(),
            deadline: None,
            waiting: Vec::new(),
            due: VecDeque::new(),
            tried: Instant::now(),
            parsers: Vec::new(),
        }
    }

    /// Submits due choices until the engine's queue is full; returns the refusal then. The rest keep their
    /// turn: a client that retried would have to send the whole request again.
    fn submit_due(&mut self) -> Result<Option<ApiError>, ApiError> {
        self.tried = Instant::now();
        while let Some(&index) = self.due.front() {
            match self.submit(index) {
                Ok(()) => self.due.pop_front(),
                Err(error) if error.kind() == ErrorKind::Overloaded => return Ok(Some(error.into())),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(None)
    }

    fn submit(&mut self, index: usize) -> ottava::Result<()> {
        let n = self.params.n.max(1);
        let Some(prompt) = self.prompts.get(index / n) else { return Ok(()) };
        let room = self.app.engine.info().context_max.saturating_sub(prompt.ids.len());
        let request = self.params.apply(prompt.request.clone(), index % n, room);
        let request = match self.deadline {
            Some(deadline) => request.deadline(deadline),
            None => request,
        };
        let generation = self.app.engine.submit(request)?;
        let pieces = futures_util::stream::unfold(generation, move |mut generation| async move {
            let event = generation.next().await?;
            let usage = generation.usage();
            Some(((index, event, usage), generation))
        });
        self.running.push(Box::pin(pieces));
        Ok(())
    }

    /// The next piece of any choice; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// The first choice's error ends all.
    pub(crate) async fn next(&mut self) -> Option<Result<Output, ApiError>> {
        if let Some(output) = self.ready.pop_front() {
            return Some(Ok(output));
        }
        loop {
            if let Some((index, event, usage)) = self.running.next().await {
                return Some(self.output(index, event, usage));
            }
            // All running choices have ended, and other requests may have taken their places.
            match self.submit_due() {
                Err(error) => return Some(Err(error)),
                Ok(_) if !self.running.is_empty() => {}
                Ok(None) => return None,
                Ok(Some(_)) if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    return Some(Err(too_late(&self.app)));
                }
                Ok(Some(_)) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Converts an event. A prompt's further choices become due with its first event. An end frees a place in
    /// the queue; other requests free places at any time, so due choices are also retried every [`RETRY`].
    fn output(
        &mut self,
        index: usize,
        event: Result<Event, GenerationError>,
        usage: Usage,
    ) -> Result<Output, ApiError> {
        let further = self.waiting.get_mut(index / self.params.n.max(1)).map(std::mem::take);
        let further = further.unwrap_or_default();
        let is_token = matches!(event, Ok(Event::Token(_)));
        if !is_token || !further.is_empty() || self.tried.elapsed() > RETRY {
            self.due.extend(further);
            self.submit_due()?;
        }
        match event {
            Ok(event) => self.piece(index, event, usage).map(|piece| Output { index, piece }),
            Err(error) => {
                self.app.metrics.ended(Ended::Failed, None);
                Err(of_engine(error.kind(), error.field(), &error))
            }
        }
    }

    fn piece(&mut self, index: usize, event: Event, usage: Usage) -> Result<Piece, ApiError> {
        let parser = self.parsers.get_mut(index).and_then(Option::as_mut);
        let done = match event {
            Event::Token(token) => {
                let parts = parts(parser, token.text);
                return Ok(Piece::Token { id: token.id, parts, logprobs: token.logprobs, usage });
            }
            Event::Done(done) => done,
            _ => return Err(internal("the engine sent an event that the server does not know")),
        };
        let finish = match done.finish {
            FinishReason::Stop | FinishReason::Eos | FinishReason::Mask => "stop",
            FinishReason::Length => "length",
            FinishReason::Deadline => return Err(too_late(&self.app)),
            _ => return Err(internal("the answer was cancelled")),
        };
        let ended = if finish == "stop" { Ended::Stop } else { Ended::Length };
        self.app.metrics.ended(ended, Some((&done.usage, &done.timings)));
        let (parts, calls) = match parser {
            Some(parser) => {
                let mut parts = parser.push(&done.text);
                parts.extend(parser.finish());
                self.app.metrics.called(parser.calls(), parser.malformed());
                (parts, parser.calls())
            }
            None => (parts(None, done.text), 0),
        };
        Ok(Piece::End(End {
            parts,
            finish: if calls > 0 && finish == "stop" { "tool_calls" } else { finish },
            stop: done.stop,
            at_stop_token: done
                .end
                .as_ref()
                .is_some_and(|end| self.params.stops_at(end.id, &self.app.engine)),
            token: done.end.map(|token| (token.id, token.logprobs)),
            usage: done.usage,
            timings: done.timings,
        }))
    }
}

/// Parts of a text, by the parser if there is one.
fn parts(parser: Option<&mut AnswerParser>, text: String) -> Vec<ChatPart> {
    match parser {
        Some(parser) => parser.push(&text),
        None if text.is_empty() => Vec::new(),
        None => vec![ChatPart::Text(text)],
    }
}

/// Text of the parts, without reasoning and calls.
pub(crate) fn text_of(parts: Vec<ChatPart>) -> String {
    let text = |part| match part {
        ChatPart::Text(text) => Some(text),
        _ => None,
    };
    parts.into_iter().filter_map(text).collect()
}

/// The error of an answer beyond the time limit.
pub(crate) fn too_late(app: &App) -> ApiError {
    app.metrics.ended(Ended::Failed, None);
    let status = axum::http::StatusCode::REQUEST_TIMEOUT;
    ApiError::new(status, "server_error", "the answer took too long").with_code("timeout")
}

fn internal(message: &str) -> ApiError {
    ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
}
