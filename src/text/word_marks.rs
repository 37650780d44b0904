//! Marks of WordPiece vocabularies for the first piece of a word or for the others.

/// Marks of a vocabulary's pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WordMarks {
    /// GGUF: `▁` before the first piece of a word.
    Starts,
    /// `tokenizer.json`: a prefix, usually `##`, before the other pieces.
    #[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have them"))]
    Rests(Box<str>),
}

/// Place of a piece in its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Start,
    Rest,
}

/// Pieces without a space before them in decoded text, as in the decoder of Hugging Face.
const CLOSING: [&str; 4] = [".", ",", "?", "!"];

impl WordMarks {
    /// Place and text of a piece.
    pub(crate) fn place<'p>(&self, piece: &'p str) -> (Place, &'p str) {
        let (place, marked) = match self {
            WordMarks::Starts => (Place::Start, piece.strip_prefix('▁')),
            WordMarks::Rests(prefix) => {
                (Place::Rest, piece.strip_prefix(&**prefix).filter(|_| !prefix.is_empty()))
            }
        };
        match (marked, place) {
            (Some(text), _) => (place, text),
            (None, Place::Start) => (Place::Rest, piece),
            (None, Place::Rest) => (Place::Start, piece),
        }
    }

    /// Space and text of a piece in decoded text.
    pub(crate) fn spelled<'p>(&self, piece: &'p str) -> (&'static str, &'p str) {
        let (place, text) = self.place(piece);
        let is_apart = place == Place::Start && !CLOSING.contains(&text);
        (if is_apart { " " } else { "" }, text)
    }
}
