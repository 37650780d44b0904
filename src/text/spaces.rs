//! Spaces in pieces that are written as text: each is a mark, and a text may get one before it that it does not have.

/// The mark for a space.
#[cfg(any(feature = "text", feature = "safetensors"))]
pub(crate) const MARK: char = '▁';

/// When a mark comes before plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have the others"))]
pub(crate) enum SpacePrefix {
    #[default]
    Never,
    /// Before each stretch between special tokens.
    Each,
    /// Before each of them that does not begin with a mark itself.
    EachUnlessMarked,
    /// Before the one at the beginning of the text, if it does not begin with a mark itself.
    FirstUnlessMarked,
}

/// What becomes of the spaces of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spaces {
    pub(crate) prefix: SpacePrefix,
    /// Whether a piece has a mark nowhere but at its beginning.
    pub(crate) are_cut: bool,
}

impl Spaces {
    /// With a mark before each stretch, or before none.
    pub(crate) fn before_each(is_wanted: bool) -> Spaces {
        let prefix = if is_wanted { SpacePrefix::Each } else { SpacePrefix::Never };
        Spaces { prefix, ..Spaces::default() }
    }
}

#[cfg(feature = "text")]
impl Spaces {
    /// The plain text that begins at `start` of the whole text, with marks for spaces.
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

    /// The parts of a marked text that merge each for itself.
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
