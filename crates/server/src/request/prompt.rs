//! A prompt's tokens with the tools and the grammar that its answers follow.

use ottava::chat::Tools;
use ottava::constrain::Grammar;
use ottava::{Engine, Request, TokenId};

use crate::error::ApiError;

/// A prompt, with the tools of its answers.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<TokenId>,
    /// Continues the prompt; parameters are applied for each choice.
    pub(crate) request: Request,
    /// Tools of a chat; `None` for plain text.
    pub(crate) tools: Option<Tools>,
}

impl Prompt {
    /// A prompt with plain text as its answer.
    pub(crate) fn plain(ids: Vec<TokenId>) -> Prompt {
        Prompt { request: Request::tokens(ids.clone()), ids, tools: None }
    }

    /// A chat's prompt, with an optional grammar for the answer's text. Compiling constraints here may take a
    /// second.
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
