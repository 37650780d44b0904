//! `minProperties` and `maxProperties` next to optional properties, as alternatives that exclude each other:
//! each fixes which of the properties an object has.

use serde_json::{Map, Value, json};

/// Maximum number of alternatives, and of names in all of them.
const ALTERNATIVES_MAX: usize = 256;
const NAMES_MAX: usize = 16_384;

/// A number of properties that an object must have.
pub(super) struct Counts<'x> {
    /// Names of the optional properties.
    pub(super) optional: Vec<&'x str>,
    /// Number of properties that every object has.
    pub(super) required: usize,
    /// Whether an object may have properties with other names.
    pub(super) has_free: bool,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
}

impl Counts<'_> {
    /// Schemas for objects with such a number of properties: `true` if all have it, `None` if llguidance
    /// counts them itself.
    ///
    /// # Errors
    /// Too many alternatives; or a minimum for free names, which an answer may repeat.
    pub(super) fn alternatives(&self) -> Result<Option<Vec<Value>>, String> {
        let count = self.optional.len();
        if self.most.is_some_and(|most| most < self.required) {
            return Ok(Some(Vec::new()));
        }
        let least = self.least.saturating_sub(self.required);
        let most = self
            .most
            .map(|most| most.saturating_sub(self.required))
            .filter(|most| self.has_free || *most < count);
        if self.has_free && least > 1 {
            let most = self.required + 1;
            return Err(format!(
                "minProperties: expected at most {most} next to free names, found {}",
                self.least
            ));
        }
        if least == 0 && most.is_none() {
            return Ok(Some(vec![true.into()]));
        }
        if count == 0 && self.has_free {
            return Ok(None);
        }
        // An object without any of the optional properties may have a free one in their place.
        let first = if self.has_free { 0 } else { least };
        let sizes = match most {
            Some(most) => first..=most.min(count),
            None => first..=least,
        };
        let total = sizes.clone().fold(0, |all: usize, size| all.saturating_add(combinations(count, size)));
        if total > ALTERNATIVES_MAX || total.saturating_mul(count) > NAMES_MAX {
            let keyword = if self.most.is_some() { "maxProperties" } else { "minProperties" };
            return Err(format!("{keyword}: too many combinations of {count} optional properties"));
        }
        let mut any = Vec::with_capacity(total);
        for size in sizes {
            let is_exact = most.is_some() || size < least;
            subsets(count, size, &mut |chosen| any.push(self.alternative(chosen, is_exact, size < least)));
        }
        Ok(Some(any))
    }

    /// Objects with the chosen properties, and of the others with none (`is_exact`) or with those that are
    /// after the last of them.
    fn alternative(&self, chosen: &[usize], is_exact: bool, needs_free: bool) -> Value {
        let end = if is_exact { self.optional.len() } else { chosen.last().map_or(0, |last| last + 1) };
        let (mut required, mut absent) = (Vec::new(), Map::new());
        for (at, &name) in self.optional.iter().enumerate().take(end) {
            match chosen.contains(&at) {
                true => required.push(name),
                false => _ = absent.insert(name.to_owned(), false.into()),
            }
        }
        let mut schema = json!({"type": "object", "required": required, "properties": absent});
        if needs_free {
            schema["minProperties"] = self.least.into();
        }
        if let (true, Some(most)) = (self.has_free, self.most) {
            schema["maxProperties"] = most.into();
        }
        schema
    }
}

/// Number of subsets of a size.
fn combinations(count: usize, size: usize) -> usize {
    if size > count {
        return 0;
    }
    (0..size.min(count - size)).fold(1, |all: usize, at| all.saturating_mul(count - at) / (at + 1))
}

/// Calls `each` with every subset of `0..count` of a size, in order.
fn subsets(count: usize, size: usize, each: &mut impl FnMut(&[usize])) {
    fn extend(
        chosen: &mut Vec<usize>,
        from: usize,
        count: usize,
        size: usize,
        each: &mut impl FnMut(&[usize]),
    ) {
        if size == 0 {
            return each(chosen);
        }
        for at in from..=count.saturating_sub(size) {
            if at < count {
                chosen.push(at);
                extend(chosen, at + 1, count, size - 1, each);
                chosen.pop();
            }
        }
    }
    extend(&mut Vec::with_capacity(size), 0, count, size, each);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(
        count: usize,
        has_free: bool,
        least: usize,
        most: Option<usize>,
    ) -> Result<Option<usize>, String> {
        let optional = vec!["x"; count];
        let counts = Counts { optional, required: 0, has_free, least, most };
        counts.alternatives().map(|any| any.map(|any| any.len()))
    }

    #[test]
    fn alternatives_are_counted_before_they_are_made() {
        assert_eq!(number(3, false, 1, None), Ok(Some(3)));
        assert_eq!(number(3, true, 1, None), Ok(Some(4)));
        assert_eq!(number(5, false, 2, None), Ok(Some(10)));
        assert_eq!(number(4, false, 0, Some(2)), Ok(Some(1 + 4 + 6)));
        assert_eq!(number(4, false, 1, Some(4)), Ok(Some(4)));
        assert_eq!(number(4, false, 5, None), Ok(Some(0)));
        assert_eq!(number(4, false, 0, Some(4)), Ok(Some(1)));
        assert_eq!(number(0, true, 1, None), Ok(None));
        let counts = Counts { optional: vec!["x"], required: 2, has_free: false, least: 0, most: Some(1) };
        assert_eq!(counts.alternatives(), Ok(Some(vec![])));
        for (count, has_free, least, most) in [
            (3, true, 2, None),
            (200, false, 1, None),
            (100, false, 2, None),
            (30, false, 0, Some(15)),
            (usize::from(u16::MAX), false, 40, None),
        ] {
            let error = number(count, has_free, least, most).unwrap_err();
            assert!(error.contains("Properties: "), "{error}");
        }
    }
}
