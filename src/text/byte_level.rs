//! The byte-level alphabet of GPT-2: a printable character for every byte. `gpt2` vocabularies use it.
//!
//! Printable Latin-1 characters represent themselves; the other 68 bytes are mapped to the characters from
//! U+0100 on, in order.

/// The byte of a character in the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character of a byte in the alphabet.
#[cfg(any(test, feature = "text"))]
pub(crate) fn char_of(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0x00..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + code - 0x7f,
        0xad => 0x143,
        _ => code,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        let mut shifted: Vec<char> = (0..=255).map(char_of).filter(|&c| c > '\u{ff}').collect();
        shifted.sort_unstable();
        assert!(shifted.iter().copied().eq('\u{100}'..='\u{143}'));
        assert_eq!((byte_of(' '), byte_of('日')), (None, None));
    }
}
