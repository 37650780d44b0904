//! Step input: the ragged rows of several sequences, and the page tables of their past.

use std::ops::Range;

use super::StateSlots;
use crate::token::TokenId;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 16;

/// Index of a page in a backend's KV pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// The page as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A page of a sequence, with the positions `start .. start + PAGE_TOKENS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// The page in the KV pool.
    pub page: PageId,
    /// Absolute position of the page's first token, a multiple of [`PAGE_TOKENS`].
    pub start: u32,
}

/// Sliding window with attention sinks: a query at position `p` sees positions below `sinks` and positions
/// above `p − window`. (Xiao et al. 2023, "Efficient streaming language models with attention sinks"; here
/// positions stay absolute.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Window size in tokens, including the query's own.
    pub window: u32,
    /// Number of sinks: first tokens visible to every query.
    pub sinks: u32,
}

/// A sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSequence {
    /// Rows among the step's tokens, with consecutive ascending positions.
    pub rows: Range<u32>,
    /// Range in [`StepInput::pages`], by ascending `start`. The pages cover every position of the rows
    /// (written by the step) and the retained past of the sequence.
    pub pages: Range<u32>,
    /// Window of the sequence, in addition to a layer's window.
    pub window: Option<Window>,
}

/// Rows of a step on an axis other than tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisRows {
    /// Row range of each sequence; contiguous.
    pub rows: Vec<Range<u32>>,
}

impl AxisRows {
    /// Total number of rows.
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

/// Complete input of a step, immutable while the step runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInput {
    /// Token ids, `[tokens]`.
    pub tokens: Vec<TokenId>,
    /// Absolute positions, `[tokens]`.
    pub positions: Vec<u32>,
    /// Sequences by ascending `rows`; together they cover all tokens.
    pub sequences: Vec<StepSequence>,
    /// Rows on other axes, indexed by [`Axis::id`](super::Axis::id).
    pub axes: Vec<AxisRows>,
    /// State slots of each sequence; empty for a plan without states.
    pub states: Vec<StateSlots>,
    /// Page tables of all sequences, concatenated.
    pub pages: Vec<PageRef>,
    /// Rows that need logits, ascending, `[outputs]`.
    pub outputs: Vec<u32>,
    /// Sampling parameters of [`Op::Sample`](super::Op::Sample), `[outputs]`. Empty: all greedy.
    pub sampling: Vec<RowSampling>,
    /// Logit adjustments of all outputs, concatenated.
    pub adjustments: Vec<LogitAdjustment>,
    /// Rows with tokens sampled by the previous step, instead of [`StepInput::tokens`]; for backends that run
    /// ahead ([`StepQueue`](crate::backend::StepQueue)).
    pub fed: Vec<FedRow>,
}

/// Sampling parameters of one output, applied in this order: adjustments, temperature, top-k, top-p, min-p,
/// draw.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSampling {
    /// Divisor of the logits. 0 is greedy: the largest logit, ties to the lowest id.
    pub temperature: f32,
    /// Number of largest logits to keep, ties to lower ids; 0 keeps all.
    pub top_k: u32,
    /// Cumulative probability of the most likely tokens to keep; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability relative to the most likely token; 0 keeps all.
    pub min_p: f32,
    /// Uniform random number in units of 2^-64. It is inverted through the cumulative distribution of the
    /// kept tokens, in the order of their ids.
    pub draw: u64,
    /// Range in [`StepInput::adjustments`], with at most one entry per token.
    pub adjustments: Range<u32>,
}

impl Default for RowSampling {
    fn default() -> Self {
        RowSampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0, adjustments: 0..0 }
    }
}

/// Bias and penalties of one logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitAdjustment {
    /// The token to adjust.
    pub token: TokenId,
    /// Bias, added first.
    pub bias: f32,
    /// Repetition penalty: divides positive logits, multiplies others.
    pub repetition: f32,
    /// Penalty, subtracted last.
    pub penalty: f32,
}

impl LogitAdjustment {
    /// Applies bias and penalties to a logit.
    pub fn apply(&self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        let repeated = if biased > 0.0 { biased / self.repetition } else { biased * self.repetition };
        repeated - self.penalty
    }
}

/// A row with a token sampled by the previous step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedRow {
    /// The row to fill.
    pub row: u32,
    /// Output of the previous step.
    pub output: u32,
}

/// Limits of a compiled plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Maximum tokens per step.
    pub tokens_max: usize,
    /// Maximum output rows per step.
    pub outputs_max: usize,
}

/// A malformed step, refused before any operation ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed step: {0}")]
pub struct StepError(pub String);

impl StepInput {
    /// Clears the step and keeps its allocations.
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

    /// Checks all assumptions of the kernels: counts, order, coverage, ranges.
    ///
    /// # Errors
    /// [`StepError`] names the violated rule and its position.
    pub fn check(&self, limits: StepLimits, pages: usize, vocab: usize) -> Result<(), StepError> {
        self.check_rows(limits, vocab)?;
        for (index, sequence) in self.sequences.iter().enumerate() {
            self.check_pages(sequence, pages)
                .map_err(|text| StepError(format!("sequence {index}: {text}")))?;
        }
        Ok(())
    }

    /// [`StepInput::check`] without the pages, for plans without attention.
    ///
    /// # Errors
    /// [`StepError`] names the violated rule and its position.
    pub fn check_rows(&self, limits: StepLimits, vocab: usize) -> Result<(), StepError> {
        let fail = |text: String| Err(StepError(text));
        let tokens = self.tokens.len();
        // A program without tokens works on other axes of the sequences.
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

    /// Checks the state slots against a memory of `slots` slots: each sequence has a write slot of its own,
    /// and no slot is both read and written, so that a failed step can be repeated.
    ///
    /// # Errors
    /// [`StepError`] names the violated rule and its position.
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

    /// Checks the sampling inputs: counts, ranges, ids and rows.
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
