//! [`Strings`]: a vocabulary has hundreds of thousands, and an allocation for each takes longer than to
//! read them.

use std::fmt;
use std::sync::Arc;

/// Many strings in few allocations, which clones share.
///
/// ```
/// use ottava::weights::Strings;
///
/// let strings: Strings = ["a", "", "bc"].into_iter().collect();
/// assert_eq!((strings.len(), strings.get(2), strings.get(3)), (3, Some("bc"), None));
/// assert_eq!(strings.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings(Arc<Shared>);

#[derive(Clone, Default, PartialEq, Eq)]
struct Shared {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// Room for so many strings; their bytes are found room for as they come.
    pub fn with_capacity(strings: usize) -> Strings {
        Strings(Arc::new(Shared { text: String::new(), ends: Vec::with_capacity(strings) }))
    }

    /// Adds a string.
    pub fn push(&mut self, string: &str) {
        let Shared { text, ends } = Arc::make_mut(&mut self.0);
        text.push_str(string);
        ends.push(text.len());
    }

    /// Gives unused capacity back.
    pub(super) fn shrink(&mut self) {
        Arc::make_mut(&mut self.0).text.shrink_to_fit();
    }

    /// Strings.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// The string number `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let Shared { text, ends } = &*self.0;
        let end = *ends.get(index)?;
        let start = index.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied())?;
        text.get(start..end)
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
