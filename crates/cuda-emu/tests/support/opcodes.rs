//! The opcodes of PTX text.

use std::collections::BTreeSet;

/// All that a text has; those of one word, such as `ret`, are left out.
pub fn of(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for statement in text.split([';', '{', '}']) {
        // The opcode is the first word of the last line, after a guard.
        let line = statement.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with('@'));
        found.extend(words.next().filter(|word| is_opcode(word)));
    }
    found
}

fn is_opcode(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._:".contains(c))
        && word.contains('.')
}
