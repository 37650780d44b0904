//! An answer as a sequence of sections: text, reasoning, call. Responses makes items of them, Messages
//! blocks.

use ottava::chat::ChatPart;

/// A section's kind at its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Text,
    Reasoning,
    Call { id: String, name: String },
}

/// An event of the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A section begins. None is open.
    Open(Section),
    /// The next characters of the open one.
    More(String),
    /// The open one has ended.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    /// By its number.
    Call(usize),
}

/// Splits an answer's parts into sections. At most one is open at a time.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    open: Option<Kind>,
    begun: usize,
    calls: usize,
    reasoning_counter: ReasoningCounter,
}

/// Counts reasoning tokens, the marks of reasoning included.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReasoningCounter {
    is_open: bool,
    tokens: usize,
}

impl ReasoningCounter {
    /// Counts a token by its parts. A token with no parts is held back and belongs to the open section.
    pub(crate) fn token(&mut self, parts: &[ChatPart]) {
        if let Some(last) = parts.last() {
            self.is_open = matches!(last, ChatPart::Reasoning(_));
        }
        self.tokens += usize::from(self.is_open);
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Sections {
    /// The steps of a token's parts.
    pub(crate) fn token(&mut self, parts: Vec<ChatPart>) -> Vec<Step> {
        self.reasoning_counter.token(&parts);
        self.steps(parts)
    }

    /// Steps of the parts held back, and of the end. An answer has at least one section.
    pub(crate) fn end(&mut self, parts: Vec<ChatPart>) -> Vec<Step> {
        let mut steps = self.steps(parts);
        if self.begun == 0 {
            self.begin(Kind::Text, Section::Text, &mut steps);
        }
        self.close(&mut steps);
        steps
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Number of reasoning tokens.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_counter.tokens()
    }

    fn steps(&mut self, parts: Vec<ChatPart>) -> Vec<Step> {
        let mut steps = Vec::new();
        for part in parts {
            match part {
                ChatPart::Text(text) => self.more(Kind::Text, Section::Text, text, &mut steps),
                ChatPart::Reasoning(text) => self.more(Kind::Reasoning, Section::Reasoning, text, &mut steps),
                ChatPart::CallStart { index, id, name } => {
                    self.calls += 1;
                    self.begin(Kind::Call(index), Section::Call { id, name }, &mut steps);
                }
                // Calls are sequential, so the arguments belong to the open call.
                ChatPart::CallArguments { index, text } if self.open == Some(Kind::Call(index)) => {
                    steps.push(Step::More(text));
                }
                _ => {}
            }
        }
        steps
    }

    fn more(&mut self, kind: Kind, section: Section, text: String, steps: &mut Vec<Step>) {
        if self.open != Some(kind) {
            self.begin(kind, section, steps);
        }
        steps.push(Step::More(text));
    }

    fn begin(&mut self, kind: Kind, section: Section, steps: &mut Vec<Step>) {
        self.close(steps);
        self.open = Some(kind);
        self.begun += 1;
        steps.push(Step::Open(section));
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        steps.extend(self.open.take().map(|_| Step::Close));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ottava::TokenId;
    use ottava::engine::{Timings, Usage};
    use serde_json::Value;

    use super::*;
    use crate::answer::stream::ResponseFormat;
    use crate::answer::{End, Output, Piece};

    pub(crate) fn text(text: &str) -> ChatPart {
        ChatPart::Text(text.into())
    }

    pub(crate) fn thought(text: &str) -> ChatPart {
        ChatPart::Reasoning(text.into())
    }

    pub(crate) fn call(index: usize, name: &str) -> ChatPart {
        ChatPart::CallStart { index, id: format!("call_{index}"), name: name.into() }
    }

    pub(crate) fn arguments(index: usize, text: &str) -> ChatPart {
        ChatPart::CallArguments { index, text: text.into() }
    }

    /// Parts of an answer with one section of each kind.
    pub(crate) fn all_parts() -> Vec<ChatPart> {
        vec![
            thought("Let me "),
            thought("look."),
            text("I "),
            text("look."),
            call(0, "f"),
            arguments(0, "{\"x\":"),
            arguments(0, "1}"),
            call(1, "g"),
            arguments(1, "{}"),
        ]
    }

    /// A token for each part, and an end; 7 tokens of the prompt, 4 of them cached.
    pub(crate) fn outputs(parts: Vec<ChatPart>, finish: &'static str, stop: Option<&str>) -> Vec<Output> {
        let mut usage = Usage::default();
        (usage.prompt_tokens, usage.cached_tokens) = (7, 4);
        let mut pieces = Vec::new();
        for part in parts {
            usage.completion_tokens += 1;
            pieces.push(Piece::Token { id: TokenId(1), parts: vec![part], logprobs: None, usage });
        }
        let (stop, timings) = (stop.map(str::to_owned), Timings::default());
        pieces.push(Piece::End(End {
            parts: Vec::new(),
            finish,
            stop,
            token: None,
            at_stop_token: false,
            usage,
            timings,
        }));
        pieces.into_iter().map(|piece| Output { index: 0, piece }).collect()
    }

    /// Chunks of a streamed answer.
    pub(crate) fn streamed(format: &mut impl ResponseFormat, outputs: Vec<Output>) -> Vec<Value> {
        let mut chunks = format.begin();
        chunks.extend(outputs.into_iter().flat_map(|output| format.chunks(output)));
        chunks.extend(format.end());
        chunks
    }

    /// The chunks folded into a whole answer.
    pub(crate) fn folded(format: &impl ResponseFormat, chunks: &[Value]) -> Value {
        let mut whole = format.empty();
        chunks.iter().for_each(|chunk| format.fold(&mut whole, chunk.clone()));
        whole
    }

    #[test]
    fn sections_follow_each_other() {
        let mut sections = Sections::default();
        let more = |text: &str| Step::More(text.into());
        assert_eq!(sections.token(vec![thought("hm")]), [Step::Open(Section::Reasoning), more("hm")]);
        assert_eq!(sections.token(Vec::new()), []);
        let found = sections.token(vec![text("a"), text("b"), call(0, "f")]);
        let called = Section::Call { id: "call_0".into(), name: "f".into() };
        let expected = [
            Step::Close,
            Step::Open(Section::Text),
            more("a"),
            more("b"),
            Step::Close,
            Step::Open(called.clone()),
        ];
        assert_eq!(found, expected);
        assert_eq!(sections.token(vec![arguments(0, "{\"x\":"), arguments(1, "no")]), [more("{\"x\":")]);
        assert_eq!(sections.end(vec![arguments(0, "1}")]), [more("1}"), Step::Close]);
        assert_eq!((sections.calls(), sections.reasoning_tokens()), (1, 2));
    }

    #[test]
    fn an_answer_has_a_section() {
        assert_eq!(Sections::default().end(Vec::new()), [Step::Open(Section::Text), Step::Close]);
    }
}
