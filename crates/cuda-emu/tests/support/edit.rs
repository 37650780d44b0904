//! Edits of PTX text, for tests that break a kernel on purpose: each says how often its text must
//! occur, so that it fails where the compiler's output is not what it was made for.

/// Which occurrences an edit is for.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// All: there must be so many.
    All(usize),
    /// One, counted from 0, of so many.
    Nth(usize, usize),
}

/// A replacement in one kernel. In `from`, `*` stands for any text of the line; in `to`, `$1` is
/// what the first of them stood for, up to `$9`.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    pub kernel: &'static str,
    pub from: &'static str,
    pub to: &'static str,
    pub which: Which,
}

impl Edit {
    /// Of all occurrences.
    pub const fn all(count: usize, kernel: &'static str, from: &'static str, to: &'static str) -> Self {
        Self { kernel, from, to, which: Which::All(count) }
    }

    /// Of occurrence `n` of `count`.
    pub const fn nth(
        (n, count): (usize, usize),
        kernel: &'static str,
        from: &'static str,
        to: &'static str,
    ) -> Self {
        Self { kernel, from, to, which: Which::Nth(n, count) }
    }

    /// The text after the edit.
    pub fn apply(&self, ptx: &str) -> String {
        let start = ptx.find(&format!(".entry {}(", self.kernel)).expect(self.kernel);
        let end = start + ptx[start..].find("\n}").expect("the kernel's end");
        let body = &ptx[start..end];
        let (mut edited, mut at, mut count) = (String::new(), 0, 0);
        while let Some((from, to, parts)) = find(body, at, self.from) {
            edited += &body[at..from];
            let wanted =
                matches!(self.which, Which::All(_)) || matches!(self.which, Which::Nth(n, _) if n == count);
            edited += &if wanted { filled(self.to, &parts) } else { body[from..to].to_string() };
            (at, count) = (to, count + 1);
        }
        let (Which::All(wanted) | Which::Nth(_, wanted)) = self.which;
        assert_eq!(count, wanted, "occurrences of `{}` in `{}`", self.from, self.kernel);
        [&ptx[..start], &edited, &body[at..], &ptx[end..]].concat()
    }
}

/// The text after all edits.
pub fn edited(ptx: &str, edits: &[Edit]) -> String {
    edits.iter().fold(ptx.to_string(), |text, edit| edit.apply(&text))
}

/// The first match from `at` on: where it starts and ends, and what its stars stand for.
fn find<'t>(text: &'t str, at: usize, pattern: &str) -> Option<(usize, usize, Vec<&'t str>)> {
    let mut literals = pattern.split('*');
    let first = literals.next().unwrap_or("");
    let rest: Vec<&str> = literals.collect();
    text[at..].match_indices(first).find_map(|(offset, _)| {
        let start = at + offset;
        let line_end = text[start..].find('\n').map_or(text.len(), |n| start + n);
        let (mut end, mut parts) = (start + first.len(), Vec::new());
        for literal in &rest {
            let gap = text.get(end..line_end)?.find(literal)?;
            parts.push(&text[end..end + gap]);
            end += gap + literal.len();
        }
        Some((start, end, parts))
    })
}

fn filled(to: &str, parts: &[&str]) -> String {
    parts
        .iter()
        .enumerate()
        .fold(to.to_string(), |text, (n, part)| text.replace(&format!("${}", n + 1), part))
}
