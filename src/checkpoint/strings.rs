//! String arrays: [`Strings`] stores a vocabulary of hundreds of thousands of strings in two allocations,
//! because one allocation per string takes longer than reading them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An array of strings in two allocations. Clones share them; a write to a shared array copies first.
///
/// ```
/// use ottava::checkpoint::Strings;
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
    ends: Ends,
}

/// End offsets of concatenated strings, four bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends(Vec<u32>);

impl Strings {
    /// Reserves space for the offsets of `strings` strings; their text grows on demand.
    pub fn with_capacity(strings: usize) -> Strings {
        Strings(Arc::new(Shared { text: String::new(), ends: Ends::with_capacity(strings) }))
    }

    /// Remaining capacity in bytes: all strings together have at most 4 GiB.
    pub fn room(&self) -> usize {
        Ends::LAST.saturating_sub(self.0.text.len())
    }

    /// Appends a string.
    ///
    /// # Panics
    /// If the string exceeds the remaining [capacity](Strings::room).
    pub fn push(&mut self, string: &str) {
        assert!(string.len() <= self.room(), "a string of {} bytes, room for {}", string.len(), self.room());
        let Shared { text, ends } = Arc::make_mut(&mut self.0);
        text.push_str(string);
        ends.push(text.len());
    }

    /// Frees unused capacity.
    pub(super) fn shrink(&mut self) {
        Arc::make_mut(&mut self.0).text.shrink_to_fit();
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let Shared { text, ends } = &*self.0;
        text.get(ends.range(index)?)
    }

    /// All strings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl Ends {
    /// Largest end offset.
    const LAST: usize = u32::MAX as usize;

    /// Reserves space for `strings` offsets.
    pub(crate) fn with_capacity(strings: usize) -> Ends {
        Ends(Vec::with_capacity(strings))
    }

    /// Appends a string that ends before byte `end`, at most [`Ends::LAST`].
    pub(crate) fn push(&mut self, end: usize) {
        debug_assert!(end <= Ends::LAST, "a string that ends at {end}");
        self.0.push(end.min(Ends::LAST) as u32);
    }

    /// Number of strings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Byte range of string `index`.
    pub(crate) fn range(&self, index: usize) -> Option<Range<usize>> {
        let end = *self.0.get(index)?;
        let start = index.checked_sub(1).map_or(Some(0), |before| self.0.get(before).copied())?;
        Some(start as usize..end as usize)
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
