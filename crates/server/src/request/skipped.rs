//! Parts of a request that this server skips: tools, items and blocks of other services.

use std::collections::BTreeSet;

/// Most names kept of a request.
const NAMES_MAX: usize = 64;
/// Longest type that is named.
const TYPE_BYTES_MAX: usize = 48;

/// Names of skipped parts, such as `input.web_search_call`, for the header `x-ottava-ignored`.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    names: BTreeSet<String>,
}

impl Skipped {
    /// Adds a part of a field by its type.
    pub(crate) fn add(&mut self, field: &str, kind: &str) {
        let is_plain = kind.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-".contains(&c));
        let kind = if is_plain && kind.len() <= TYPE_BYTES_MAX { kind } else { "unknown" };
        if self.names.len() < NAMES_MAX {
            self.names.insert(format!("{field}.{kind}"));
        }
    }

    pub(crate) fn names(self) -> impl Iterator<Item = String> {
        self.names.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_few() {
        let mut skipped = Skipped::default();
        let long = "x".repeat(TYPE_BYTES_MAX + 1);
        for kind in ["web_search", "web_search", "a\nb", &long] {
            skipped.add("tools", kind);
        }
        (0..2 * NAMES_MAX).for_each(|number| skipped.add("input", &format!("kind_{number}")));
        let names: Vec<String> = skipped.names().collect();
        assert_eq!(names.len(), NAMES_MAX);
        assert!(names.ends_with(&["tools.unknown".into(), "tools.web_search".into()]), "{names:?}");
    }
}
