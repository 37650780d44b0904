//! String literals in a template's source, with Python's escapes.

use super::super::error::TextError;

/// Body of a string literal, with the engine's escapes for a string in `"`.
pub(super) fn requoted(string: &str, line: u16) -> Result<String, TextError> {
    let inner = string.get(1..string.len().saturating_sub(1)).unwrap_or_default();
    let wrong = |what: &str| TextError::TemplateSyntax(format!("a string has {what} (line {line})"));
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    // First half of a surrogate pair.
    let mut half: Option<u32> = None;
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut out, c);
            continue;
        }
        let escape = chars.next().ok_or_else(|| wrong("a backslash at its end"))?;
        let digits = match escape {
            '\n' => continue,
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => {
                let mut code = escape.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    chars.next();
                }
                push(&mut out, char::from_u32(code).unwrap_or_default());
                continue;
            }
            other => {
                match simple(other) {
                    Some(c) => push(&mut out, c),
                    None => ['\\', other].into_iter().for_each(|c| push(&mut out, c)),
                }
                continue;
            }
        };
        let code: String = chars.by_ref().take(digits).collect();
        let code = if code.len() == digits { u32::from_str_radix(&code, 16).ok() } else { None };
        let code = code.ok_or_else(|| wrong("an escape without its digits"))?;
        match (half.take(), code) {
            (Some(first), 0xdc00..=0xdfff) => {
                let whole = 0x1_0000 + ((first - 0xd800) << 10) + (code - 0xdc00);
                push(&mut out, char::from_u32(whole).unwrap_or_default());
            }
            (None, 0xd800..=0xdbff) => half = Some(code),
            (_, code) => {
                push(&mut out, char::from_u32(code).ok_or_else(|| wrong("an escape of no character"))?)
            }
        }
    }
    match half {
        Some(_) => Err(wrong("half a character at its end")),
        None => Ok(out),
    }
}

/// Escapes with one letter.
fn simple(escape: char) -> Option<char> {
    Some(match escape {
        '\\' | '\'' | '"' => escape,
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        _ => return None,
    })
}

fn push(out: &mut String, c: char) {
    if matches!(c, '\\' | '"') {
        out.push('\\');
    }
    out.push(c);
}
