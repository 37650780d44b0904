//! A prompt's tokens with the request that answers it.

use ottava::chat::Tools;
use ottava::{Engine, Prepared, Request, TokenId};

/// A prompt and the parser of its answers.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<TokenId>,
    /// Continues the prompt; parameters are applied for each choice.
    pub(crate) request: Request,
    /// Prepared chat, which makes the answers' parsers; `None` for plain text.
    pub(crate) chat: Option<Prepared>,
}

impl Prompt {
    /// A prompt with plain text as its answer.
    pub(crate) fn plain(ids: Vec<TokenId>) -> Prompt {
        Prompt { request: Request::tokens(ids.clone()), ids, chat: None }
    }

    /// A chat's prompt. The answers show the markers that the parser needs.
    pub(crate) fn chat(engine: &Engine, prepared: Prepared, tools: &Tools) -> Prompt {
        let request = Request::from(prepared.clone()).show_control_tokens(engine.marker_tokens(tools));
        Prompt { ids: prepared.prompt_ids().to_vec(), request, chat: Some(prepared) }
    }
}
