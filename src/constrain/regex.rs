//! Limits on regular expressions. The work of the lexer grows with the square of the parts that may be empty
//! in a row, which its fuel does not count.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Maximum number of nodes of a regular expression, and of all those of a grammar.
const NODES_MAX: usize = 2048;
/// Number of ranges in a class of characters that count as a node.
const RANGES: usize = 16;

/// Whether a JSON string in an answer can contain a character. Escapes with `\u` are not allowed there.
pub(super) fn is_writable(c: char) -> bool {
    !c.is_control() || u32::from(c) > 0x7f || "\u{8}\t\n\u{c}\r".contains(c)
}

/// Checks a regular expression for JSON strings.
///
/// # Errors
/// A character that a JSON string in an answer cannot contain.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    let literals = |hir: &Hir| match hir.kind() {
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0).ok()?.chars().find(|&c| !is_writable(c)),
        _ => None,
    };
    match parsed(pattern).and_then(|hir| nodes(&hir).find_map(literals)) {
        Some(c) => Err(format!("the character U+{:04X} is not supported", u32::from(c))),
        None => Ok(()),
    }
}

/// Number of nodes of a regular expression; none if it is invalid, for which llguidance has the error.
pub(super) fn size(pattern: &str) -> usize {
    let weight = |hir: &Hir| match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => 1 + class.ranges().len() / RANGES,
        _ => 1,
    };
    parsed(pattern).map_or(0, |hir| nodes(&hir).map(weight).sum())
}

/// Rejects regular expressions with too many nodes.
pub(super) fn within_limit(nodes: usize) -> Result<(), String> {
    if nodes <= NODES_MAX {
        Ok(())
    } else {
        Err(format!("expected a regular expression of at most {NODES_MAX} nodes, found {nodes}"))
    }
}

fn parsed(pattern: &str) -> Option<Hir> {
    regex_syntax::Parser::new().parse(pattern).ok()
}

/// All nodes of an expression.
fn nodes(hir: &Hir) -> impl Iterator<Item = &Hir> {
    let mut open = vec![hir];
    std::iter::from_fn(move || {
        let next = open.pop()?;
        open.extend(next.kind().subs());
        Some(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_and_texts_are_one() {
        assert_eq!((size("abc"), size("a*"), size("(((")), (1, 2, 0));
        assert!(size(r"\p{L}") > 10);
        assert!(within_limit(size(&".*".repeat(1000))).is_ok());
        assert!(within_limit(size(&".*".repeat(6500))).is_err());
    }

    #[test]
    fn characters_that_a_string_cannot_contain_are_refused() {
        for pattern in ["^a\\n\\t[^\\x00-\\x1f]é$", "[\\x00b]", "((("] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
        for pattern in ["a\\x00b", "\\x7f", "(b\\u{1b})*"] {
            assert!(check(pattern).unwrap_err().contains("U+"), "{pattern}");
        }
    }
}
