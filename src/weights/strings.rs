//! [`Strings`]: a vocabulary has hundreds of thousands, and an allocation for each takes longer than to
//! read them.

use std::fmt;

/// Many strings in one allocation.
///
/// ```
/// use ottava::weights::Strings;
///
/// let strings: Strings = ["a", "", "bc"].into_iter().collect();
/// assert_eq!((strings.len(), strings.get(2), strings.get(3)), (3, Some("bc"), None));
/// assert_eq!(strings.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// Room for so many strings; their bytes are found room for as they come.
    pub fn with_capacity(strings: usize) -> Strings {
        Strings { text: String::new(), ends: Vec::with_capacity(strings) }
    }

    /// Adds a string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// Strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string number `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.text.get(start..end)
    }

    /// All strings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Strings::default();
        strings.into_iter().for_each(|string| all.push(string.as_ref()));
        all
    }
}
