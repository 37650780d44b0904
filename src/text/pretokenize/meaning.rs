//! Meaning of an expression: its syntax tree in canonical form. `tokenizer.json` and the table (`rules.rs`)
//! spell the same characters differently (`\r` or the character itself, `\x{4e00}` or `一`, `\#` or `#`).

use regex_syntax::hir::{Hir, HirKind};

use super::rules::{Spaces, Step};

/// Maximum length of an expression in bytes. Character classes take up to 10 kB of tree per 2 bytes.
const BYTES_MAX: usize = 1 << 14;

/// End of an expression with look-ahead, which the table does without.
const LOOK_AHEAD: &str = r"|\s+(?!\S)|\s+";

/// Canonical form of a splitting step. Equal values match the same text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    pattern: Hir,
    spaces: Spaces,
}

impl Meaning {
    /// Meaning of an expression in `tokenizer.json`; `None` outside the syntax of the table.
    pub(super) fn of_expression(expression: &str) -> Option<Meaning> {
        let Some(rest) = expression.strip_suffix(LOOK_AHEAD) else {
            return Some(Meaning { pattern: parsed(expression)?, spaces: Spaces::Kept });
        };
        let spaces = match has_line_ends(&parsed(rest)?)? {
            true => Spaces::LastToWordButLineEnds,
            false => Spaces::LastToWord,
        };
        Some(Meaning { pattern: parsed(&format!(r"{rest}|\s+"))?, spaces })
    }

    /// Meaning of a step of the table.
    pub(super) fn of_step(step: &Step) -> Option<Meaning> {
        Some(Meaning { pattern: parsed(step.pattern)?, spaces: step.spaces })
    }
}

fn parsed(expression: &str) -> Option<Hir> {
    let expression = Some(expression).filter(|expression| expression.len() <= BYTES_MAX)?;
    regex_syntax::parse(expression).ok()
}

/// Whether white space up to a line end is an alternative.
fn has_line_ends(pattern: &Hir) -> Option<bool> {
    let line_ends = [parsed(r"\s*[\r\n]+")?, parsed(r"\s*[\r\n]")?];
    Some(match pattern.kind() {
        HirKind::Alternation(alternatives) => alternatives.iter().any(|one| line_ends.contains(one)),
        _ => line_ends.contains(pattern),
    })
}
