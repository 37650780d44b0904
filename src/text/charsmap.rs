//! SentencePiece's precompiled normaliser: a map from short strings to their replacements.
//!
//! The file has a double array over the strings (darts-clone), and the replacements, each with a NUL at
//! its end.

use regex::Regex;

use super::error::TextError;

/// Maximum bytes of a string in the map. Bounds the search in a damaged array, which may have cycles.
const KEY_MAX: usize = 64;
/// Maximum bytes of a replacement. The longest of Unicode's normal forms has 33.
const REPLACEMENT_MAX: usize = 64;
/// Clusters are looked up as a whole up to this length, as in Hugging Face's implementation.
const CLUSTER_MAX: usize = 5;

/// Extended grapheme clusters, as in Unicode's annex 29, with the combining marks of Unicode 17.
const CLUSTER: &str = r"(?s)\r\n|\p{gcb=Prepend}*(?:\p{gcb=RI}{2}|\p{gcb=L}*(?:\p{gcb=V}+|\p{gcb=LV}\p{gcb=V}*|\p{gcb=LVT})\p{gcb=T}*|\p{gcb=L}+|\p{gcb=T}+|\p{Extended_Pictographic}(?:\p{gcb=Extend}*\p{gcb=ZWJ}\p{Extended_Pictographic})*|[^\p{gcb=Control}\r\n])[\p{gcb=Extend}\p{gcb=ZWJ}\p{gcb=SpacingMark}\x{1ACF}-\x{1ADD}\x{1AE0}-\x{1AEB}]*|.";

/// A precompiled normaliser.
#[derive(Clone, Debug)]
pub(crate) struct Charsmap {
    units: Box<[u32]>,
    replacements: Box<str>,
    matching: Matching,
}

/// Choice among the strings of the map at a place of the text.
#[derive(Clone, Debug)]
enum Matching {
    /// The longest: SentencePiece.
    Longest,
    /// The shortest within a cluster: Hugging Face's `tokenizers`.
    Clusters(Regex),
}

impl Charsmap {
    /// Reads a map; `None` if it is damaged. The longest string at a place is replaced.
    pub(crate) fn new(bytes: &[u8]) -> Option<Charsmap> {
        let (size, rest) = bytes.split_first_chunk::<4>()?;
        let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
        let (units, replacements) = rest.split_at_checked(size)?;
        let (units, []) = units.as_chunks::<4>() else { return None };
        let replacements = std::str::from_utf8(replacements).ok()?;
        if replacements.split('\0').any(|replacement| replacement.len() > REPLACEMENT_MAX) {
            return None;
        }
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Some(Charsmap { units, replacements: replacements.into(), matching: Matching::Longest })
    }

    /// The map with the matching of Hugging Face.
    #[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have it"))]
    pub(crate) fn by_clusters(self) -> Result<Charsmap, TextError> {
        let clusters = Regex::new(CLUSTER).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Charsmap { matching: Matching::Clusters(clusters), ..self })
    }

    /// The text with replacements.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let taken = match &self.matching {
                Matching::Longest => self.replace(rest, self.prefixes(rest).last(), &mut out),
                Matching::Clusters(clusters) => self.replace_cluster(cluster(clusters, rest), &mut out),
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        out
    }

    /// Replaces the found string at the start of the text, or else copies its first character. Returns the
    /// bytes taken.
    fn replace(&self, text: &str, found: Option<(usize, &str)>, out: &mut String) -> usize {
        // A string may end within a character only in a damaged map.
        let found = found.filter(|&(len, _)| text.is_char_boundary(len));
        match (found, text.chars().next()) {
            (Some((len, replacement)), _) => {
                out.push_str(replacement);
                len
            }
            (None, Some(first)) => {
                out.push(first);
                first.len_utf8()
            }
            (None, None) => 0,
        }
    }

    /// Replaces a cluster by the replacement of its shortest string in the map, or else each character by
    /// its own.
    fn replace_cluster(&self, cluster: &str, out: &mut String) -> usize {
        let whole = Some(cluster).filter(|cluster| cluster.len() <= CLUSTER_MAX);
        if let Some((_, replacement)) = whole.and_then(|cluster| self.prefixes(cluster).next()) {
            out.push_str(replacement);
            return cluster.len();
        }
        for part in cluster.split_inclusive(|_| true) {
            self.replace(part, self.prefixes(part).next().map(|(_, text)| (part.len(), text)), out);
        }
        cluster.len()
    }

    /// Strings of the map at the start of the text, shortest first: length and replacement.
    fn prefixes<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, &'t str)> + 't {
        let unit = |at: usize| self.units.get(at).copied();
        let mut at = unit(0).map_or(usize::MAX, offset);
        let steps = text.bytes().take(KEY_MAX).enumerate().map_while(move |(index, byte)| {
            at ^= usize::from(byte);
            let node = unit(at).filter(|&node| byte != 0 && label(node) == u32::from(byte))?;
            at ^= offset(node);
            Some((index + 1, has_value(node).then_some(at)))
        });
        steps.filter_map(move |(len, at)| {
            let start = usize::try_from(unit(at?)? & !(1 << 31)).ok()?;
            let (replacement, _) = self.replacements.get(start..)?.split_once('\0')?;
            Some((len, replacement))
        })
    }
}

/// The cluster at the start of a text.
fn cluster<'t>(clusters: &Regex, text: &'t str) -> &'t str {
    let len = match text.as_bytes() {
        // Most text is ASCII, where only a carriage return joins the next character.
        [first, second, ..] if second.is_ascii() && first.is_ascii() && *first != b'\r' => 1,
        _ => clusters.find(text).map_or(text.len(), |found| found.end()),
    };
    text.get(..len).unwrap_or(text)
}

/// Fields of a double array's unit.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xff)
}

fn has_value(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A map with these replacements: a double array with 256 places for the children of each node.
    pub(crate) fn bytes(entries: &[(&str, &str)]) -> Vec<u8> {
        let keys = entries.iter().map(|(key, _)| key.as_bytes());
        let mut nodes: Vec<&[u8]> = keys.flat_map(|key| (0..=key.len()).map(|len| &key[..len])).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let children = |node: &[u8]| (nodes.binary_search(&node).unwrap() + 1) << 8;
        let mut units = vec![0_u32; (nodes.len() + 2) << 8];
        let mut replacements = String::new();
        for node in &nodes {
            let last = node.last().copied().unwrap_or(0);
            let at = node.split_last().map_or(0, |(_, parent)| children(parent) ^ usize::from(last));
            units[at] = ((at ^ children(node)) << 10) as u32 | u32::from(last);
            if let Some((_, replacement)) = entries.iter().find(|(key, _)| key.as_bytes() == *node) {
                units[at] |= 1 << 8;
                units[children(node)] = 1 << 31 | replacements.len() as u32;
                replacements.push_str(replacement);
                replacements.push('\0');
            }
        }
        let size = (units.len() * 4) as u32;
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        size.to_le_bytes().into_iter().chain(units).chain(replacements.into_bytes()).collect()
    }

    const ENTRIES: [(&str, &str); 7] = [
        ("ﬁ", "fi"),
        ("\u{a0}", " "),
        ("e\u{301}", "é"),
        ("か\u{3099}", "が"),
        ("\t", " "),
        ("\u{7f}", ""),
        ("か\u{3099}\u{301}", "-"),
    ];

    #[test]
    fn strings_of_the_map_are_replaced() {
        let longest = Charsmap::new(&bytes(&ENTRIES)).unwrap();
        let clusters = longest.clone().by_clusters().unwrap();
        for (text, by_longest, by_clusters) in [
            ("", "", ""),
            ("plain text", "plain text", "plain text"),
            ("ﬁn\te\u{301}\u{7f}", "fin é", "fin é"),
            // Six bytes are too long for a cluster.
            ("か\u{3099}か", "がか", "か\u{3099}か"),
            ("か\u{3099}\u{301}", "-", "か\u{3099}\u{301}"),
            // A mark in a replaced cluster is lost.
            ("\u{a0}\u{323}x", " \u{323}x", " x"),
            ("\u{a0}\u{1ae4}x", " \u{1ae4}x", " x"),
            ("e\u{301}\u{323}", "é\u{323}", "é"),
            ("\r\n\t\u{301}", "\r\n \u{301}", "\r\n \u{301}"),
        ] {
            assert_eq!(longest.apply(text), by_longest, "{text:?}");
            assert_eq!(clusters.apply(text), by_clusters, "{text:?}");
        }
    }

    #[test]
    fn damaged_maps_are_refused() {
        let good = bytes(&ENTRIES);
        for cut in [0, 3, 4, 100] {
            assert!(Charsmap::new(&good[..cut]).is_none(), "{cut}");
        }
        assert!(Charsmap::new(&[3, 0, 0, 0, 1, 2, 3]).is_none());
        assert!(Charsmap::new(&[0, 0, 0, 0, 0xff]).is_none());
        assert!(Charsmap::new(&bytes(&[("a", &"b".repeat(REPLACEMENT_MAX + 1))])).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(
            changes in proptest::collection::vec((4..9000_usize, any::<u8>()), 0..40),
            text in "\\PC{0,20}[ﬁ\u{a0}e\u{301}か\u{3099}]{0,40}",
        ) {
            let mut bytes = bytes(&ENTRIES);
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            if let Some(map) = Charsmap::new(&bytes) {
                for map in [map.clone(), map.by_clusters().unwrap()] {
                    prop_assert!(map.apply(&text).len() <= text.len() * REPLACEMENT_MAX);
                }
            }
        }
    }
}
