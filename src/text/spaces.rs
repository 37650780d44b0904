//! SentencePiece's treatment of spaces: the mark `▁` in place of a space, and the optional space prefix.

/// Mark for a space in pieces.
#[cfg(any(feature = "text", feature = "safetensors"))]
pub(crate) const MARK: char = '▁';

/// Condition for a mark before plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have the others"))]
pub(crate) enum SpacePrefix {
    #[default]
    Never,
    /// Before each stretch of text between special tokens.
    Each,
    /// Before each stretch that does not start with a mark.
    EachUnlessMarked,
    /// Before the stretch at the start of the text, unless it starts with a mark.
    FirstUnlessMarked,
}

/// Treatment of the spaces of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spaces {
    pub(crate) prefix: SpacePrefix,
    /// Whether pieces have marks only at their start.
    pub(crate) are_cut: bool,
}

impl Spaces {
    /// A mark before each stretch, or none.
    pub(crate) fn before_each(is_wanted: bool) -> Spaces {
        let prefix = if is_wanted { SpacePrefix::Each } else { SpacePrefix::Never };
        Spaces { prefix, ..Spaces::default() }
    }
}

#[cfg(feature = "text")]
impl Spaces {
    /// Plain text with marks for spaces. `start` is its byte offset in the whole text.
    pub(crate) fn marked(self, plain: &str, start: usize) -> String {
        let is_marked = plain.starts_with([' ', MARK]);
        let prefixed = match self.prefix {
            SpacePrefix::Never => false,
            SpacePrefix::Each => true,
            SpacePrefix::EachUnlessMarked => !is_marked,
            SpacePrefix::FirstUnlessMarked => start == 0 && !is_marked,
        };
        let mut marked = String::with_capacity(plain.len() + MARK.len_utf8());
        marked.extend(prefixed.then_some(MARK));
        marked.extend(plain.chars().map(|c| if c == ' ' { MARK } else { c }));
        marked
    }

    /// The parts of a marked text that are merged separately.
    pub(crate) fn parts(self, marked: &str) -> impl Iterator<Item = &str> {
        let marks = marked.match_indices(MARK).map(|(at, _)| at).filter(|&at| at > 0);
        let cuts = marks.take(if self.are_cut { usize::MAX } else { 0 });
        let mut start = 0;
        cuts.chain([marked.len()]).map(move |end| {
            let part = marked.get(start..end).unwrap_or_default();
            start = end;
            part
        })
    }
}
