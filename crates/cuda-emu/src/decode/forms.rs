//! Which opcodes there are: what none of the patterns in `forms.txt` gives is refused, so that no
//! modifier is passed over in silence.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::body::Reason;

/// A pattern's part: its texts and choices follow each other.
#[derive(Debug)]
enum Part {
    Text(&'static str),
    Choice(Vec<Vec<Part>>),
}

/// Patterns by their first word.
static FORMS: LazyLock<HashMap<&'static str, Vec<Vec<Part>>>> = LazyLock::new(|| {
    let mut forms: HashMap<&str, Vec<Vec<Part>>> = HashMap::new();
    let lines = include_str!("forms.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        for head in heads(&parse(line)) {
            forms.entry(head).or_default().push(parse(line));
        }
    }
    forms
});

/// Fails on an opcode that is no form.
pub(super) fn check(opcode: &str) -> Result<(), Reason> {
    let head = opcode.split('.').next().unwrap_or_default();
    let Some(patterns) = FORMS.get(head) else { return Err("instruction is not supported".to_string()) };
    let found = |end: usize, short| {
        let whole = |pattern: &Vec<Part>| matches(pattern, &opcode[..end], short, &str::is_empty);
        patterns.iter().any(whole)
    };
    if found(opcode.len(), |_, _| false) {
        return Ok(());
    }
    // The longest beginning that could go on says where it is wrong.
    let ends = opcode.match_indices('.').map(|(at, _)| at).chain([opcode.len()]);
    let good = ends.take_while(|end| found(*end, goes_on)).last().unwrap_or(head.len());
    match opcode[good..].split('.').nth(1) {
        Some(part) => Err(format!("modifier `.{part}` is not supported here")),
        None => Err("a modifier or type is missing".to_string()),
    }
}

/// Whether a text is what the parts give, and then what `then` takes; where the text is shorter than
/// a part's, `short` decides.
fn matches(parts: &[Part], text: &str, short: fn(&str, &str) -> bool, then: &dyn Fn(&str) -> bool) -> bool {
    match parts.split_first() {
        None => then(text),
        Some((Part::Text(own), rest)) => match text.strip_prefix(own) {
            Some(text) => matches(rest, text, short, then),
            None => short(own, text),
        },
        Some((Part::Choice(choices), rest)) => {
            let go_on = |text: &str| matches(rest, text, short, then);
            choices.iter().any(|choice| matches(choice, text, short, &go_on))
        }
    }
}

/// Whether a part goes on after a text, at a dot.
fn goes_on(own: &str, text: &str) -> bool {
    own.strip_prefix(text).is_some_and(|more| more.starts_with('.'))
}

/// First words of what the parts give.
fn heads(parts: &[Part]) -> Vec<&'static str> {
    match parts.first() {
        Some(Part::Text(text)) => text.split('.').take(1).collect(),
        Some(Part::Choice(choices)) => {
            let mut found: Vec<_> = choices.iter().flat_map(|choice| heads(choice)).collect();
            found.sort_unstable();
            found.dedup();
            found
        }
        None => Vec::new(),
    }
}

/// Parts of a pattern.
fn parse(text: &'static str) -> Vec<Part> {
    let Some(open) = text.find(['{', '<']) else { return vec![Part::Text(text)] };
    let (mut depth, mut start, mut choices) = (0, open + 1, Vec::new());
    for (at, c) in text.char_indices().skip(open) {
        match c {
            '{' | '<' => depth += 1,
            '}' | '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 || depth == 1 && c == ',' {
            choices.push(parse(&text[start..at]));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    let mut parts = vec![Part::Choice(choices)];
    if open > 0 {
        parts.insert(0, Part::Text(&text[..open]));
    }
    if start < text.len() {
        parts.extend(parse(&text[start..]));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_is_no_form_is_named() {
        let reason = |opcode: &str| check(opcode).unwrap_err();
        assert!(check("ld.global.nc.L1::no_allocate.L2::128B.v4.u32").is_ok());
        assert!(check("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32").is_ok());
        assert_eq!(reason("frob.u32"), "instruction is not supported");
        assert_eq!(reason("ld.global.frob.u32"), "modifier `.frob` is not supported here");
        assert_eq!(reason("add.u32.f64"), "modifier `.f64` is not supported here");
        assert_eq!(reason("mul.s32"), "modifier `.s32` is not supported here");
        assert_eq!(reason("ld.global"), "a modifier or type is missing");
        assert_eq!(reason("ld.global.u32x"), "modifier `.u32x` is not supported here");
    }
}
