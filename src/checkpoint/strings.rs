//! [`Strings`]: a vocabulary has hundreds of thousands, and an allocation for each takes longer than to
//! read them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Many strings in few allocations, which clones share.
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

/// Where strings that lie one behind the other end, four bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends(Vec<u32>);

impl Strings {
    /// Room for so many strings; their bytes are found room for as they come.
    pub fn with_capacity(strings: usize) -> Strings {
        Strings(Arc::new(Shared { text: String::new(), ends: Ends::with_capacity(strings) }))
    }

    /// Bytes that there is room for: all strings together have 4 GiB at most.
    pub fn room(&self) -> usize {
        Ends::LAST.saturating_sub(self.0.text.len())
    }

    /// Adds a string.
    ///
    /// # Panics
    /// If there is no [room](Strings::room) for it.
    pub fn push(&mut self, string: &str) {
        assert!(string.len() <= self.room(), "a string of {} bytes, room for {}", string.len(), self.room());
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
        self.len() == 0
    }

    /// The string number `index`.
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
    /// The last place where a string may end.
    const LAST: usize = u32::MAX as usize;

    /// Room for so many.
    pub(crate) fn with_capacity(strings: usize) -> Ends {
        Ends(Vec::with_capacity(strings))
    }

    /// Adds a string that ends before byte `end`, at most [`Ends::LAST`].
    pub(crate) fn push(&mut self, end: usize) {
        debug_assert!(end <= Ends::LAST, "a string that ends at {end}");
        self.0.push(end.min(Ends::LAST) as u32);
    }

    /// Strings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Where the bytes of string `index` are.
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
