//! One step's input: the ragged rows of several sequences, and the pages that hold their past.

use std::ops::Range;

use super::StateSlots;
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

/// The rows that a step has of an axis beside its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisRows {
    /// By sequence: its rows, one sequence's behind the other's.
    pub rows: Vec<Range<u32>>,
}

impl AxisRows {
    /// All of them.
    pub fn count(&self) -> usize {
        self.rows.last().map_or(0, |rows| rows.end as usize)
    }

    fn check(&self, sequences: usize) -> Result<(), String> {
        if self.rows.len() != sequences {
            return Err(format!("rows of {} sequences, expected {sequences}", self.rows.len()));
        }
        let mut next = 0;
        for (index, rows) in self.rows.iter().enumerate() {
            if rows.start != next || rows.end < next {
                return Err(format!("sequence {index}: rows {rows:?} do not follow row {next}"));
            }
            next = rows.end;
        }
        Ok(())
    }
}

/// Everything that a step needs to know; immutable while the step runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInput {
    /// Token ids, `[tokens]`.
    pub tokens: Vec<TokenId>,
    /// Absolute positions, `[tokens]`.
    pub positions: Vec<u32>,
    /// The sequences, by rising `rows`; together they cover all tokens.
    pub sequences: Vec<StepSequence>,
    /// What the sequences have of other axes, by [`Axis::id`](super::Axis::id).
    pub axes: Vec<AxisRows>,
    /// By sequence: its slots of state; empty for a plan without states.
    pub states: Vec<StateSlots>,
    /// The page tables of all sequences, one behind the other.
    pub pages: Vec<PageRef>,
    /// Rows whose logits are wanted, rising, `[outputs]`.
    pub outputs: Vec<u32>,
    /// How [`Op::Sample`](super::Op::Sample) takes each output's token, `[outputs]`; or empty: all greedy.
    pub sampling: Vec<RowSampling>,
    /// The adjusted logits of all outputs, one behind the other.
    pub adjustments: Vec<LogitAdjustment>,
    /// Rows whose tokens are what the step before sampled, whatever [`StepInput::tokens`] says; for
    /// backends that run ahead ([`StepQueue`](crate::backend::StepQueue)).
    pub fed: Vec<FedRow>,
}

/// How one output's token is sampled: adjustments, temperature, top-k, top-p, min-p, draw, in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSampling {
    /// Divides the logits; 0 takes the largest, and the lowest id among equal ones.
    pub temperature: f32,
    /// Keeps the `top_k` largest logits, lower ids first among equal ones; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most likely tokens until their probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// Where the cumulative distribution of the kept tokens, in the order of their ids, is inverted,
    /// in parts of 2^64.
    pub draw: u64,
    /// Its part of [`StepInput::adjustments`], where every token is named once.
    pub adjustments: Range<u32>,
}

impl Default for RowSampling {
    fn default() -> Self {
        RowSampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0, adjustments: 0..0 }
    }
}

/// What biases and penalties make of one logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitAdjustment {
    /// Whose logit.
    pub token: TokenId,
    /// Added first.
    pub bias: f32,
    /// Divides what is then positive, multiplies the rest.
    pub repetition: f32,
    /// Subtracted last.
    pub penalty: f32,
}

impl LogitAdjustment {
    /// The logit after bias and penalties.
    pub fn apply(&self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        let repeated = if biased > 0.0 { biased / self.repetition } else { biased * self.repetition };
        repeated - self.penalty
    }
}

/// A row whose token is what the step before sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedRow {
    /// The row.
    pub row: u32,
    /// The output of the step before.
    pub output: u32,
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
        self.axes.clear();
        self.states.clear();
        self.pages.clear();
        self.outputs.clear();
        self.sampling.clear();
        self.adjustments.clear();
        self.fed.clear();
    }

    /// Checks everything that kernels take for granted: counts, order, coverage, ranges.
    ///
    /// # Errors
    /// [`StepError`] says which rule is broken and where.
    pub fn check(&self, limits: StepLimits, pages: usize, vocab: usize) -> Result<(), StepError> {
        self.check_rows(limits, vocab)?;
        for (index, sequence) in self.sequences.iter().enumerate() {
            self.check_pages(sequence, pages)
                .map_err(|text| StepError(format!("sequence {index}: {text}")))?;
        }
        Ok(())
    }

    /// The same, but for pages: of a plan that has none.
    ///
    /// # Errors
    /// [`StepError`] says which rule is broken and where.
    pub fn check_rows(&self, limits: StepLimits, vocab: usize) -> Result<(), StepError> {
        let fail = |text: String| Err(StepError(text));
        let tokens = self.tokens.len();
        // A program that has no room for tokens works on other rows of the sequences.
        let some = limits.tokens_max > 0;
        if tokens < usize::from(some) || tokens > limits.tokens_max {
            return fail(format!("{tokens} tokens, expected {} to {}", usize::from(some), limits.tokens_max));
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
        self.check_sampling(vocab).or_else(fail)?;
        let mut next = 0;
        for (index, sequence) in self.sequences.iter().enumerate() {
            if sequence.rows.start != next || sequence.rows.end < next + u32::from(some) {
                return fail(format!("sequence {index}: rows {:?} do not follow row {next}", sequence.rows));
            }
            next = sequence.rows.end;
            let rows = sequence.rows.start as usize..sequence.rows.end as usize;
            let positions = self.positions.get(rows).unwrap_or_default();
            if positions.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
                return fail(format!("sequence {index}: positions are not consecutive"));
            }
        }
        if next as usize != tokens {
            return fail(format!("sequences cover {next} of {tokens} tokens"));
        }
        for (id, axis) in self.axes.iter().enumerate() {
            axis.check(self.sequences.len()).or_else(|text| fail(format!("axis {id}: {text}")))?;
        }
        Ok(())
    }

    /// Checks the slots of state of a plan that has states, in a memory of so many slots: each sequence has
    /// its own, and none is written that is read, so that a step which failed may run again.
    ///
    /// # Errors
    /// [`StepError`] says which rule is broken and where.
    pub fn check_states(&self, slots: usize) -> Result<(), StepError> {
        let fail = |text: String| Err(StepError(text));
        let (states, sequences) = (&self.states, self.sequences.len());
        if states.len() != sequences {
            return fail(format!("states of {} sequences, expected {sequences}", states.len()));
        }
        for (index, own) in states.iter().enumerate() {
            let both = own.read.iter().chain([&own.write]);
            if let Some(slot) = both.into_iter().find(|slot| slot.index() >= slots) {
                return fail(format!("sequence {index}: state slot {} of {slots}", slot.0));
            }
            let meets = |(other, state): (usize, &StateSlots)| {
                state.read == Some(own.write) || (other != index && state.write == own.write)
            };
            if states.iter().enumerate().any(meets) {
                return fail(format!(
                    "sequence {index}: state slot {} is written and used twice",
                    own.write.0
                ));
            }
        }
        Ok(())
    }

    /// Checks what concerns sampling only: counts, ranges, ids and rows.
    pub(crate) fn check_sampling(&self, vocab: usize) -> Result<(), String> {
        let (rows, outputs) = (self.sampling.len(), self.outputs.len());
        if rows != 0 && rows != outputs {
            return Err(format!("sampling of {rows} rows for {outputs} outputs"));
        }
        for (output, sampling) in self.sampling.iter().enumerate() {
            let Range { start, end } = sampling.adjustments;
            if start > end || end as usize > self.adjustments.len() {
                let count = self.adjustments.len();
                return Err(format!("output {output}: adjustments {start}..{end} of {count}"));
            }
        }
        if let Some(bad) = self.adjustments.iter().find(|entry| entry.token.index() >= vocab) {
            return Err(format!("an adjustment of token {}, outside the vocabulary of {vocab}", bad.token));
        }
        match self.fed.iter().find(|fed| fed.row as usize >= self.tokens.len()) {
            Some(fed) => Err(format!("row {} is fed, of {} rows", fed.row, self.tokens.len())),
            None => Ok(()),
        }
    }

    fn check_pages(&self, sequence: &StepSequence, pages: usize) -> Result<(), String> {
        let rows = sequence.rows.start as usize..sequence.rows.end as usize;
        let positions = self.positions.get(rows).ok_or("rows beyond the step's tokens")?;
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

#[cfg(test)]
mod tests;
