//! A prompt's tokens with the tools and the grammar that its answers follow.

use ottava::chat::Tools;
use ottava::constrain::Grammar;
use ottava::{Engine, Request, TokenId};

use crate::error::ApiError;

/// A prompt, and how its answers are read.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<TokenId>,
    /// Continues it, by no parameters yet.
    pub(crate) request: Request,
    /// What may be called, where answers are more than text.
    pub(crate) tools: Option<Tools>,
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
