//! The opcode forms that the decoder accepts: it reads them from the same file, written out from the
//! manual's syntax lines, and refuses all else.

#[path = "../support/opcodes.rs"]
mod opcodes;

use std::collections::BTreeSet;

const PATTERNS: &str = include_str!("../../src/decode/forms.txt");

/// Those that stop a kernel: `basics.rs` has tests of `trap`.
pub const WITHOUT_ROW: [&str; 2] = ["brkpt", "trap"];

/// Registers of the environment: what they hold is between CUDA's headers and the driver; kernels
/// of cooperative groups, in `wide.rs`, find the grid barrier by them.
pub const REGISTERS_WITHOUT_ROW: [&str; 2] = ["%envreg1", "%envreg2"];

fn patterns() -> impl Iterator<Item = &'static str> {
    PATTERNS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// All forms that must have a row each.
pub fn all() -> BTreeSet<String> {
    patterns().filter(|pattern| !pattern.contains('<')).flat_map(expand).collect()
}

/// First word, and another one, of each choice that is independent of the rest of a form.
pub fn independent() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for pattern in patterns().filter(|pattern| pattern.contains('<')) {
        let plain = pattern.replace('<', "{").replace('>', "}");
        let head = pattern.split(['.', '<']).next().unwrap_or_default();
        let words = plain.split(['.', ',', '{', '}']).skip(1).filter(|word| !word.is_empty());
        found.extend(words.map(|word| (head.to_string(), word.to_string())));
    }
    found
}

/// The same of a form.
pub fn words(form: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = form.split('.');
    let head = parts.next().unwrap_or_default();
    parts.map(move |part| (head, part))
}

/// All texts of a pattern; choices may stand in choices.
fn expand(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else { return vec![pattern.to_string()] };
    let (mut depth, mut start, mut choices, mut close) = (0, open + 1, Vec::new(), open);
    for (at, c) in pattern.char_indices().skip(open) {
        match c {
            '{' => depth += 1,
            ',' if depth == 1 => {
                choices.push(&pattern[start..at]);
                start = at + 1;
            }
            '}' if depth == 1 => {
                choices.push(&pattern[start..at]);
                close = at;
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    let (before, after) = (&pattern[..open], &pattern[close + 1..]);
    choices.iter().flat_map(|choice| expand(&format!("{before}{choice}{after}"))).collect()
}

/// Special registers that the decoder names, with their axes.
pub fn registers() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let text = include_str!("../../src/decode/operand.rs");
    for line in text.lines().filter(|line| line.contains("=> Special::")) {
        let name = line.split('"').nth(1).unwrap_or_default();
        let axes: &[&str] = if line.contains("(axis_number)") { &[".x", ".y", ".z"] } else { &[""] };
        found.extend(axes.iter().map(|axis| format!("%{name}{axis}")));
    }
    let clocks = include_str!("../../src/decode/simple.rs");
    for line in clocks.lines().filter(|line| line.contains("=> Some(Clock::")) {
        found.extend(line.split('"').skip(1).step_by(2).map(String::from));
    }
    found
}

/// Opcodes of the committed kernels, and of those that ship.
pub fn of_kernels() -> BTreeSet<&'static str> {
    let texts = [
        include_str!("../ptx/bugs.sm_90a.ptx"),
        include_str!("../ptx/chained.sm_90a.ptx"),
        include_str!("../ptx/hopper.sm_90a.ptx"),
        include_str!("../ptx/llm.sm_80.ptx"),
        include_str!("../ptx/model.sm_80.ptx"),
        include_str!("../ptx/scale.sm_80.ptx"),
        include_str!("../ptx/wide.sm_90a.ptx"),
    ];
    let shipped = include_str!("shipped.txt").lines().filter(|line| !line.starts_with('#'));
    texts.into_iter().flat_map(opcodes::of).chain(shipped).collect()
}
