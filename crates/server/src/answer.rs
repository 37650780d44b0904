//! From a prompt and parameters to a stream of pieces: the one place that submits to the engine.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::stream::{SelectAll, Stream};
use ottava::chat::{AnswerParser, ChatPart, Tools};
use ottava::constrain::Grammar;
use ottava::engine::{Event, FinishReason, GenerationError, Logprobs, Timings, Usage};
use ottava::{Engine, Request, TokenId};

use crate::app::App;
use crate::error::{ApiError, of_engine};
use crate::metrics::Ended;
use crate::params::Params;

/// A prompt, and how its answers are read.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<TokenId>,
    /// Continues it, by no parameters yet.
    request: Request,
    /// What may be called, where answers are more than text.
    tools: Option<Tools>,
}

impl Prompt {
    /// A prompt whose answers are text.
    pub(crate) fn plain(ids: Vec<TokenId>) -> Prompt {
        Prompt { request: Request::tokens(ids.clone()), ids, tools: None }
    }

    /// The prompt of a chat, whose text may have to follow a grammar. It may take a second: what has to be enforced is
    /// compiled here.
    pub(crate) fn chat(
        engine: &Engine,
        ids: Vec<TokenId>,
        tools: &Tools,
        says: Option<&Grammar>,
    ) -> Result<Prompt, ApiError> {
        let request = Request::tokens(ids.clone());
        let request = match says {
            Some(says) => engine.with_format(request, &ids, tools, says)?,
            None => engine.with_tools(request, &ids, tools)?,
        };
        Ok(Prompt { ids, request, tools: Some(tools.clone()) })
    }
}

/// What comes of one choice.
#[derive(Debug)]
pub(crate) struct Output {
    /// The choice's number.
    pub(crate) index: usize,
    pub(crate) piece: Piece,
}

/// A piece of a choice.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A token, and what became certain with it.
    Token { id: TokenId, parts: Vec<ChatPart>, logprobs: Option<Logprobs>, usage: Usage },
    /// The end, with what was held back.
    End(End),
}

/// How a choice ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) parts: Vec<ChatPart>,
    pub(crate) finish: &'static str,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    /// The token that ended its turn, where log-probabilities are asked for.
    pub(crate) token: Option<(TokenId, Logprobs)>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

type Choice = Pin<Box<dyn Stream<Item = (usize, Result<Event, GenerationError>, Usage)> + Send>>;

/// The choices of a request at work. Dropping it cancels them.
pub(crate) struct Answers {
    app: Arc<App>,
    /// What is known already.
    ready: VecDeque<Output>,
    running: SelectAll<Choice>,
    /// Further choices of a prompt, submitted when its first has a token: they find the prompt in the cache.
    waiting: Vec<VecDeque<Request>>,
    /// What reads each choice; nothing does where answers are text.
    parsers: Vec<Option<AnswerParser>>,
    /// Choices of each prompt.
    n: usize,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Answers {
    /// Submits the first choice of each prompt.
    ///
    /// # Errors
    /// The engine's: too long, overloaded, a parameter out of its range.
    pub(crate) fn begin(app: &Arc<App>, prompts: Vec<Prompt>, params: &Params) -> Result<Answers, ApiError> {
        let mut answers = Answers {
            app: Arc::clone(app),
            ready: VecDeque::new(),
            running: SelectAll::new(),
            waiting: Vec::with_capacity(prompts.len()),
            parsers: Vec::with_capacity(prompts.len() * params.n),
            n: params.n,
        };
        let context_max = app.engine.info().context_max;
        let deadline = app.guard.config.request_timeout.and_then(|time| Instant::now().checked_add(time));
        for (number, prompt) in prompts.into_iter().enumerate() {
            let room = context_max.saturating_sub(prompt.ids.len());
            let parser = |tools: &Tools| app.engine.answer_parser(&prompt.ids, tools);
            answers.parsers.extend((0..params.n).map(|_| prompt.tools.as_ref().map(parser)));
            let request = |choice| {
                let request = params.apply(prompt.request.clone(), choice, room);
                match deadline {
                    Some(deadline) => request.deadline(deadline),
                    None => request,
                }
            };
            answers.submit(number * params.n, request(0))?;
            answers.waiting.push((1..params.n).map(request).collect());
        }
        Ok(answers)
    }

    /// Choices that nothing is generated for.
    pub(crate) fn ended(app: &Arc<App>, outputs: Vec<Output>) -> Answers {
        let (ready, running) = (outputs.into(), SelectAll::new());
        Answers { app: Arc::clone(app), ready, running, waiting: Vec::new(), parsers: Vec::new(), n: 1 }
    }

    fn submit(&mut self, index: usize, request: Request) -> Result<(), ApiError> {
        let generation = self.app.engine.submit(request)?;
        let pieces = futures_util::stream::unfold(generation, move |mut generation| async move {
            let event = generation.next().await?;
            let usage = generation.usage();
            Some(((index, event, usage), generation))
        });
        self.running.push(Box::pin(pieces));
        Ok(())
    }

    /// The next piece of any choice; `None` after the last.
    ///
    /// # Errors
    /// One choice's error ends all.
    pub(crate) async fn next(&mut self) -> Option<Result<Output, ApiError>> {
        if let Some(output) = self.ready.pop_front() {
            return Some(Ok(output));
        }
        let (index, event, usage) = self.running.next().await?;
        if let Err(error) = self.submit_the_rest(index / self.n.max(1)) {
            return Some(Err(error));
        }
        Some(match event {
            Ok(event) => self.piece(index, event, usage).map(|piece| Output { index, piece }),
            Err(error) => {
                self.app.metrics.ended(Ended::Failed, None);
                Err(of_engine(error.kind(), error.field(), &error))
            }
        })
    }

    /// Submits the other choices of a prompt whose first has come so far.
    fn submit_the_rest(&mut self, prompt: usize) -> Result<(), ApiError> {
        let rest = self.waiting.get_mut(prompt).map(std::mem::take).unwrap_or_default();
        for (choice, request) in (1..).zip(rest) {
            self.submit(prompt * self.n + choice, request)?;
        }
        Ok(())
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
            FinishReason::Deadline => {
                self.app.metrics.ended(Ended::Failed, None);
                let status = axum::http::StatusCode::REQUEST_TIMEOUT;
                return Err(
                    ApiError::new(status, "server_error", "the answer took too long").with_code("timeout")
                );
            }
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
            token: done.end.and_then(|token| Some((token.id, token.logprobs?))),
            usage: done.usage,
            timings: done.timings,
        }))
    }
}

/// A text as the parts that it is.
fn parts(parser: Option<&mut AnswerParser>, text: String) -> Vec<ChatPart> {
    match parser {
        Some(parser) => parser.push(&text),
        None if text.is_empty() => Vec::new(),
        None => vec![ChatPart::Text(text)],
    }
}

/// What the parts say, but for reasoning and calls.
pub(crate) fn text_of(parts: Vec<ChatPart>) -> String {
    let text = |part| match part {
        ChatPart::Text(text) => Some(text),
        _ => None,
    };
    parts.into_iter().filter_map(text).collect()
}

fn internal(message: &str) -> ApiError {
    ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
}
