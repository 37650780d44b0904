//! One step's input: the ragged rows of several sequences, and the pages that hold their past.

use std::ops::Range;

use crate::token::TokenId;

/// Tokens that one KV page holds.
pub const PAGE_TOKENS: usize = 16;

/// Index of a page in a backend's KV pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A page of a sequence: it holds the positions `start .. start + PAGE_TOKENS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Where the keys and values are.
    pub page: PageId,
    /// Absolute position of the page's first token, a multiple of [`PAGE_TOKENS`].
    pub start: u32,
}

/// Sliding window with attention sinks: a query at position `p` sees positions below `sinks` and
/// those above `p − window`. (Xiao et al. 2023, "Efficient streaming language models with
/// attention sinks"; positions stay absolute here.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens that a query sees, itself included.
    pub window: u32,
    /// First tokens that every query sees.
    pub sinks: u32,
}

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSequence {
    /// Its rows among the step's tokens; their positions are consecutive and rising.
    pub rows: Range<u32>,
    /// Its pages among [`StepInput::pages`], by rising `start`. They cover every position of the
    /// rows (the step writes them) and all of the past that the sequence still keeps.
    pub pages: Range<u32>,
    /// The sequence's own window, on top of what a layer asks for.
    pub window: Option<Window>,
}

/// Everything that a step needs to know; immutable while the step runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepInput {
    /// Token ids, `[tokens]`.
    pub tokens: Vec<TokenId>,
    /// Absolute positions, `[tokens]`.
    pub positions: Vec<u32>,
    /// The sequences, by rising `rows`; together they cover all tokens.
    pub sequences: Vec<StepSequence>,
    /// The page tables of all sequences, one behind the other.
    pub pages: Vec<PageRef>,
    /// Rows whose logits are wanted, rising, `[outputs]`.
    pub outputs: Vec<u32>,
}

/// What a compiled plan has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Most tokens in a step.
    pub tokens_max: usize,
    /// Most output rows in a step.
    pub outputs_max: usize,
}

/// A step that breaks its own rules; nothing was run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed step: {0}")]
pub struct StepError(pub String);

impl StepInput {
    /// Empties the step and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.pages.clear();
        self.outputs.clear();
    }

    /// Checks everything that kernels take for granted: counts, order, coverage, ranges.
    ///
    /// # Errors
    /// [`StepError`] says which rule is broken and where.
    pub fn check(&self, limits: StepLimits, pages: usize, vocab: usize) -> Result<(), StepError> {
        let fail = |text: String| Err(StepError(text));
        let tokens = self.tokens.len();
        if tokens == 0 || tokens > limits.tokens_max {
            return fail(format!("{tokens} tokens, expected 1 to {}", limits.tokens_max));
        }
        if self.positions.len() != tokens {
            return fail(format!("{} positions for {tokens} tokens", self.positions.len()));
        }
        if let Some(id) = self.tokens.iter().find(|id| id.index() >= vocab) {
            return fail(format!("token {id} is outside the vocabulary of {vocab}"));
        }
        if self.outputs.len() > limits.outputs_max {
            return fail(format!("{} outputs, expected at most {}", self.outputs.len(), limits.outputs_max));
        }
        let rising = self.outputs.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || self.outputs.last().is_some_and(|&row| row as usize >= tokens) {
            return fail(format!("outputs are not rising rows below {tokens}"));
        }
        let mut next = 0;
        for (index, sequence) in self.sequences.iter().enumerate() {
            if sequence.rows.start != next || sequence.rows.end <= next {
                return fail(format!("sequence {index}: rows {:?} do not follow row {next}", sequence.rows));
            }
            next = sequence.rows.end;
            self.check_sequence(sequence, pages).or_else(|text| fail(format!("sequence {index}: {text}")))?;
        }
        if next as usize != tokens {
            return fail(format!("sequences cover {next} of {tokens} tokens"));
        }
        Ok(())
    }

    fn check_sequence(&self, sequence: &StepSequence, pages: usize) -> Result<(), String> {
        let rows = sequence.rows.start as usize..sequence.rows.end as usize;
        let positions = self.positions.get(rows).ok_or("rows beyond the step's tokens")?;
        if positions.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            return Err("positions are not consecutive".into());
        }
        let table = sequence.pages.start as usize..sequence.pages.end as usize;
        let table = self.pages.get(table).ok_or("pages beyond the step's table")?;
        if table.windows(2).any(|pair| pair[0].start >= pair[1].start) {
            return Err("page starts do not rise".into());
        }
        for entry in table {
            if entry.page.index() >= pages || !(entry.start as usize).is_multiple_of(PAGE_TOKENS) {
                return Err(format!("bad page {} at position {}", entry.page.0, entry.start));
            }
        }
        let covered = |position: &u32| {
            let start = position / PAGE_TOKENS as u32 * PAGE_TOKENS as u32;
            table.binary_search_by_key(&start, |entry| entry.start).is_ok()
        };
        match positions.iter().find(|position| !covered(position)) {
            Some(position) => Err(format!("no page for position {position}")),
            None => Ok(()),
        }
    }
}
