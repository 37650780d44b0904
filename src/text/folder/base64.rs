//! Base64 with the standard alphabet, in which `tokenizer.json` has binary data.

/// Decodes a text; `None` if it is not Base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let bits = group.iter().try_fold(0u32, |bits, &byte| Some(bits << 6 | u32::from(digit(byte)?)))?;
        let bits = bits << (6 * (4 - group.len()));
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend_from_slice(bytes.get(..group.len().checked_sub(1).filter(|&len| len > 0)?)?);
    }
    Some(out)
}

fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_rfc_4648() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode("+/8="), Some(vec![0xfb, 0xff]));
        for text in ["Z", "Zm9vZ", "Zm 9", "Zm\u{e9}v", "Z===g"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
