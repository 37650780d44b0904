//! [`Trie`]: prefix tree over the pieces of a vocabulary.

use super::error::TextError;
use crate::TokenId;

/// Prefix tree over byte strings. Nodes are in breadth-first order, so the children of a node are adjacent: a
/// node takes 9 bytes and no allocation of its own.
#[derive(Debug)]
pub(crate) struct Trie {
    /// Last byte of each node's string.
    labels: Vec<u8>,
    /// First child of each node. The children end where those of the next node begin.
    firsts: Vec<u32>,
    /// Token of each node, or [`NONE`].
    ids: Vec<u32>,
}

/// Marks a node without a token.
const NONE: u32 = u32::MAX;

impl Trie {
    /// Tree of these pieces. Of equal pieces, the lowest id is found.
    pub(crate) fn new<'p>(pieces: impl Iterator<Item = (&'p [u8], TokenId)>) -> Result<Trie, TextError> {
        let mut entries: Vec<(&[u8], TokenId)> = pieces.collect();
        entries.sort_unstable();
        entries.dedup_by(|later, first| later.0 == first.0);
        let bytes = entries.iter().map(|(piece, _)| piece.len()).sum::<usize>();
        if u32::try_from(bytes).is_err() {
            return Err(TextError::Tokenizer(format!(
                "expected pieces of less than 4 GiB in all, found {bytes} bytes"
            )));
        }
        let mut trie = Trie { labels: vec![0], firsts: Vec::new(), ids: Vec::new() };
        let (mut level, mut depth) = (vec![&*entries], 0);
        while !level.is_empty() {
            level = level.into_iter().flat_map(|group| trie.push(group, depth)).collect();
            depth += 1;
        }
        trie.firsts.push(trie.next());
        Ok(trie)
    }

    /// Appends the node of the entries that share their first `depth` bytes. Returns the entries of each
    /// child.
    fn push<'e, 'p>(
        &mut self,
        group: &'e [(&'p [u8], TokenId)],
        depth: usize,
    ) -> impl Iterator<Item = &'e [(&'p [u8], TokenId)]> + use<'e, 'p> {
        let (own, rest) = match group.split_first() {
            Some((entry, rest)) if entry.0.len() == depth => (Some(entry.1), rest),
            _ => (None, group),
        };
        self.ids.push(own.map_or(NONE, |id| id.0));
        self.firsts.push(self.next());
        let children = rest.chunk_by(move |a, b| a.0.get(depth) == b.0.get(depth));
        let label =
            |child: &[(&[u8], TokenId)]| child.first().and_then(|(piece, _)| piece.get(depth)).copied();
        self.labels.extend(children.clone().filter_map(label));
        children
    }

    /// Number of the next child.
    fn next(&self) -> u32 {
        self.labels.len() as u32
    }

    /// Pieces at the start of `text`, shortest first: length and token. The search ends with the longest
    /// piece.
    pub(crate) fn prefixes(&self, text: &[u8]) -> impl Iterator<Item = (usize, TokenId)> {
        let mut node = 0;
        let nodes = text.iter().map_while(move |&byte| {
            node = self.child(node, byte)?;
            Some(node)
        });
        let token = |node: usize| self.ids.get(node).copied().filter(|&id| id != NONE).map(TokenId);
        nodes.enumerate().filter_map(move |(index, node)| Some((index + 1, token(node)?)))
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let (first, end) = (*self.firsts.get(node)? as usize, *self.firsts.get(node + 1)? as usize);
        let index = self.labels.get(first..end)?.binary_search(&byte).ok()?;
        Some(first + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_are_those_of_a_list(
            pieces in proptest::collection::vec("[ab]{1,4}|[aé日]{1,3}", 0..20),
            text in "[abé日]{0,8}",
        ) {
            let entries = pieces.iter().enumerate().map(|(id, piece)| (piece.as_bytes(), TokenId(id as u32)));
            let trie = Trie::new(entries).unwrap();
            let listed = (1..=text.len()).filter_map(|len| {
                let id = pieces.iter().position(|piece| piece.as_bytes() == &text.as_bytes()[..len])?;
                Some((len, TokenId(id as u32)))
            });
            prop_assert!(trie.prefixes(text.as_bytes()).eq(listed));
        }
    }

    #[test]
    fn a_piece_of_a_megabyte_is_found() {
        let piece = vec![b'a'; 1 << 20];
        let trie = Trie::new([(&*piece, TokenId(7)), (b"ab".as_slice(), TokenId(8))].into_iter()).unwrap();
        assert!(trie.prefixes(&piece).eq([(1 << 20, TokenId(7))]));
        assert!(Trie::new(std::iter::empty()).unwrap().prefixes(b"a").next().is_none());
    }
}
