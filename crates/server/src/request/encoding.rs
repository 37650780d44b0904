//! Encoding of a body's text: UTF-8, with or without a byte-order mark.

/// Byte-order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The text without a byte-order mark of UTF-8.
pub(crate) fn unmarked(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// Name of a JSON text's encoding if that is another one of Unicode: by its byte-order mark, or by zero
/// bytes, since JSON begins with an ASCII character.
pub(crate) fn other_unicode(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0, 0, 0, 1..=255, ..] | [1..=255, 0, 0, 0, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..] => Some("UTF-16"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_encodings_of_unicode_are_recognised_with_and_without_a_mark() {
        let utf16 = |text: &str, order: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(order).collect()
        };
        let utf32 = |text: &str, order: fn(u32) -> [u8; 4]| -> Vec<u8> {
            text.chars().map(u32::from).flat_map(order).collect()
        };
        for text in ["{\"a\": \"é\"}", "\u{feff}{}", "\u{feff}\"é\"", "[]"] {
            for bytes in [utf16(text, u16::to_le_bytes), utf16(text, u16::to_be_bytes)] {
                assert_eq!(other_unicode(&bytes), Some("UTF-16"), "{bytes:x?}");
            }
            for bytes in [utf32(text, u32::to_le_bytes), utf32(text, u32::to_be_bytes)] {
                assert_eq!(other_unicode(&bytes), Some("UTF-32"), "{bytes:x?}");
            }
            assert_eq!(other_unicode(text.as_bytes()), None);
        }
        assert_eq!(unmarked("\u{feff}{}".as_bytes()), b"{}");
        assert_eq!((unmarked(b"{}"), other_unicode(b"")), (&b"{}"[..], None));
    }
}
