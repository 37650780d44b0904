//! Case conversion and character classes of strings.

use super::origin::Text;
use super::repr;
use regex::Regex;

/// Python's white space: Unicode's, and the ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

pub(super) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Capitalises every letter after a non-letter.
pub(super) fn titled(text: &str) -> String {
    let (mut out, mut within) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        within = is_cased(c);
    }
    out
}

/// Text in another case. If a method depends on more than one character, a text of mixed origin becomes a
/// user's.
pub(super) fn cased(text: &Text, method: &str) -> Text {
    let swapped = |part: &str| {
        let swap = |c: char| -> String {
            if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
        };
        part.chars().map(swap).collect()
    };
    match method {
        "upper" => text.map(str::to_uppercase),
        "lower" | "casefold" => text.map(str::to_lowercase),
        "swapcase" => text.map(swapped),
        "title" => Text::like(text, titled(text.as_str())),
        _ => Text::like(text, capitalized(text.as_str())),
    }
}

/// Whether the string satisfies the method `is…`.
pub(super) fn holds(text: &str, method: &str) -> bool {
    let class = |class: &str| Regex::new(&format!("^{class}$")).is_ok_and(|class| class.is_match(text));
    let cased = || text.chars().any(is_cased);
    match method {
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(repr::is_printable),
        "isspace" => !text.is_empty() && text.chars().all(is_space),
        "islower" => cased() && !text.chars().any(char::is_uppercase),
        "isupper" => cased() && !text.chars().any(char::is_lowercase),
        "istitle" => cased() && titled(text) == text,
        "isidentifier" => class(r"[_\p{XID_Start}]\p{XID_Continue}*"),
        "isalpha" => class(r"\p{L}+"),
        "isalnum" => class(r"[\p{L}\p{N}]+"),
        "isdecimal" => class(r"\p{Nd}+"),
        "isdigit" => {
            class("[\\p{Nd}\u{b2}\u{b3}\u{b9}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}\u{2460}-\u{2468}]+")
        }
        _ => class(r"\p{N}+"),
    }
}
