//! Just enough Rust to tell code from comments, strings and tests. Every function keeps lines
//! and byte offsets as they are, so that what is found can be named by its line.

/// Whether `c` can be in an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The line, counted from 1, that holds byte `at`.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Identifiers and numbers with their places.
pub fn words_of(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = code.char_indices().filter(|&(at, c)| is_word(c) && !code[..at].ends_with(is_word));
    starts.map(|(at, _)| (at, &code[at..at + word_len(&code[at..])]))
}

fn word_len(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// `text` with comments blank and the inside of strings and characters underlined.
pub fn code_of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    while let Some(rest) = text.get(out.len()..).filter(|rest| !rest.is_empty()) {
        let in_word = out.ends_with(is_word);
        if let Some(len) = comment_len(rest) {
            cover(&mut out, &rest[..len], ' ');
        } else if let Some((open, inside, close)) = literal(rest, in_word) {
            out.push_str(&rest[..open]);
            cover(&mut out, &rest[open..open + inside], '_');
            out.push_str(&rest[open + inside..open + inside + close]);
        } else {
            out.extend(rest.chars().next());
        }
    }
    out
}

/// Appends as many bytes as `text` has, its line breaks among them.
fn cover(out: &mut String, text: &str, with: char) {
    out.extend(text.bytes().map(|byte| if byte == b'\n' { '\n' } else { with }));
}

fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = &text.as_bytes()[at..];
        if step.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if step.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    Some(text.len())
}

/// Bytes of the opening, the inside and the closing of the literal that `text` starts with.
fn literal(text: &str, in_word: bool) -> Option<(usize, usize, usize)> {
    if let Some(rest) = text.strip_prefix('"') {
        let inside = end_of(rest, '"');
        return Some((1, inside, text.len().min(inside + 2) - inside - 1));
    }
    if let Some(rest) = text.strip_prefix('\'') {
        let mut chars = rest.char_indices();
        let escaped = chars.next()?.1 == '\\';
        let second = chars.next()?;
        let is_character = escaped || second.1 == '\'';
        return is_character.then(|| (1, end_of(rest, '\''), 1));
    }
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| text.starts_with(prefix))?;
    let hashes = text[prefix.len()..].bytes().take_while(|&byte| byte == b'#').count();
    let open = prefix.len() + hashes + 1;
    if in_word || !text.get(open - 1..)?.starts_with('"') {
        return None;
    }
    let closing = format!("\"{}", "#".repeat(hashes));
    let inside = text[open..].find(&closing)?;
    Some((open, inside, closing.len()))
}

/// Bytes up to the first `quote` that no backslash protects.
fn end_of(text: &str, quote: char) -> usize {
    let mut protected = false;
    for (at, c) in text.char_indices() {
        if c == quote && !protected {
            return at;
        }
        protected = c == '\\' && !protected;
    }
    text.len()
}

/// `code` (from [`code_of`]) with everything blank that is compiled for tests only: from a
/// `#[cfg(test)]` or `#[cfg(all(test, …` to the end of its item.
pub fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    while let Some(rest) = code.get(out.len()..).filter(|rest| !rest.is_empty()) {
        let next = ["#[cfg(test)]", "#[cfg(all(test,"].iter().filter_map(|mark| rest.find(mark)).min();
        let Some(at) = next else {
            out.push_str(rest);
            break;
        };
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        cover(&mut out, &item[..item_len(item)], ' ');
    }
    out
}

/// Bytes up to the brace or semicolon that ends the item; braces of a `use` group end nothing.
fn item_len(item: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in item.bytes().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            _ => {}
        }
        let closes_body = byte == b'}' && depth == 0 && !item[at + 1..].trim_start().starts_with(';');
        if closes_body || (byte == b';' && depth == 0) {
            return at + 1;
        }
    }
    item.len()
}
