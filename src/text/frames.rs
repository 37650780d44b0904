//! [`Frames`]: the special tokens that a model expects around a text, or around a pair of texts.

/// Special tokens around a text and around a pair. `I` is the kind of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frames<I> {
    pub(crate) single: Vec<Part<I>>,
    pub(crate) pair: Vec<Part<I>>,
}

/// Part of a frame, with its token type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<I> {
    pub(crate) what: What<I>,
    pub(crate) kind: u32,
}

/// A special token or one of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What<I> {
    Special(I),
    First,
    Second,
}

/// Tokens of a model's frames.
#[derive(Clone, Debug)]
pub(crate) struct FrameTokens<I> {
    /// Before the first text.
    pub(crate) leading: Vec<I>,
    /// After each text.
    pub(crate) end: Option<I>,
    /// Between the end of the first text and the second.
    pub(crate) separator: Option<I>,
    /// Token type of the second text.
    pub(crate) second_kind: u32,
}

impl<I: Copy> Frames<I> {
    /// Frames without special tokens.
    #[cfg(feature = "safetensors")]
    pub(crate) fn plain() -> Frames<I> {
        let part = |what, kind| Part { what, kind };
        let first = part(What::First, 0);
        Frames { single: vec![first], pair: vec![first, part(What::Second, 1)] }
    }

    /// Frames of these tokens.
    pub(crate) fn of_tokens(tokens: &FrameTokens<I>) -> Frames<I> {
        let part = |what, kind| Part { what, kind };
        let special = |id: I| part(What::Special(id), 0);
        let mut single: Vec<Part<I>> = tokens.leading.iter().copied().map(special).collect();
        single.push(part(What::First, 0));
        single.extend(tokens.end.map(special));
        let mut pair = single.clone();
        pair.extend(tokens.separator.map(special));
        pair.push(part(What::Second, tokens.second_kind));
        pair.extend(tokens.end.map(|id| part(What::Special(id), tokens.second_kind)));
        Frames { single, pair }
    }

    /// The frames with other ids. A token without one is left out.
    pub(crate) fn map<J>(self, id: &mut impl FnMut(I) -> Option<J>) -> Frames<J> {
        let mut parts = |parts: Vec<Part<I>>| {
            let mut part = |Part { what, kind }| {
                let what = match what {
                    What::Special(token) => What::Special(id(token)?),
                    What::First => What::First,
                    What::Second => What::Second,
                };
                Some(Part { what, kind })
            };
            parts.into_iter().filter_map(&mut part).collect()
        };
        Frames { single: parts(self.single), pair: parts(self.pair) }
    }
}
