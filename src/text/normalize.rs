//! Unicode normalisation of plain text (NFC), for tokenizers that were trained on composed characters.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::parts::Normalization;

/// Pre-tokenizers of models whose own tokenizers normalise text to NFC. GGUF has no key for it.
const NFC: [&str; 2] = ["qwen2", "qwen35"];

/// Bound of the factor by which composition shortens a text in bytes. The greatest is 3.5: U+1FBE, U+0308 and
/// U+0301 compose to U+0390.
const SHRINK_MAX: usize = 4;

/// First byte of U+0300, the lowest character that normalisation may change.
const FIRST_CHANGED: u8 = 0xcc;

impl Normalization {
    /// Normalisation by the name of a GGUF file's pre-tokenizer.
    pub(crate) fn of_pre(pre: &str) -> Normalization {
        if NFC.contains(&pre) { Normalization::Nfc } else { Normalization::None }
    }

    /// The normalised text, borrowed if it is normalised already.
    pub(crate) fn apply(self, text: &str) -> Cow<'_, str> {
        match self {
            Normalization::None => Cow::Borrowed(text),
            Normalization::Nfc if is_nfc(text) => Cow::Borrowed(text),
            Normalization::Nfc => Cow::Owned(text.nfc().collect()),
        }
    }

    /// Bound of the bytes of text per byte of normalised text.
    pub(crate) fn shrink_max(self) -> usize {
        match self {
            Normalization::None => 1,
            Normalization::Nfc => SHRINK_MAX,
        }
    }
}

/// Whether the text is certainly in NFC.
fn is_nfc(text: &str) -> bool {
    text.bytes().all(|byte| byte < FIRST_CHANGED) || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_composed() {
        for (text, composed) in [
            ("", ""),
            ("caf\u{e9} \u{2ff}", "caf\u{e9} \u{2ff}"),
            ("cafe\u{301}", "caf\u{e9}"),
            ("Vie\u{323}\u{302}t", "Vi\u{1ec7}t"),
            // Order of marks, and a mark that composes with nothing.
            ("Vie\u{302}\u{323}t", "Vi\u{1ec7}t"),
            ("x\u{301}", "x\u{301}"),
            ("\u{1112}\u{1161}\u{11ab}", "\u{d55c}"),
            // Singletons and exclusions: Kelvin, Hebrew presentation forms.
            ("\u{212a}", "K"),
            ("\u{fb2a}", "\u{5e9}\u{5c1}"),
            ("\u{1fbe}\u{308}\u{301}", "\u{390}"),
            ("日本か\u{3099}", "日本が"),
        ] {
            assert_eq!(Normalization::Nfc.apply(text), composed, "{text:?}");
            assert_eq!(Normalization::None.apply(text), text);
        }
    }

    #[test]
    fn normalised_text_is_borrowed() {
        for text in ["plain", "naïve Größe", "日本語 한국어", "Việt"] {
            assert!(matches!(Normalization::Nfc.apply(text), Cow::Borrowed(_)), "{text}");
        }
    }

    /// Time and memory are linear in the number of marks on a character.
    #[test]
    fn a_million_marks_take_no_time() {
        let text = format!("a{}", "\u{301}\u{323}".repeat(500_000));
        assert_eq!(Normalization::Nfc.apply(&text).chars().count(), 1_000_000);
    }

    proptest! {
        #[test]
        fn the_bound_holds(text in "[\u{1fbe}\u{212a}\u{1112}\u{1161}\u{11ab}a\u{301}\u{308}\u{345}]{0,30}|\\PC{0,30}") {
            let normalised = Normalization::Nfc.apply(&text).into_owned();
            prop_assert!(normalised.len() * SHRINK_MAX >= text.len());
            prop_assert_eq!(normalised, text.nfc().collect::<String>());
        }
    }
}
