//! What the benches share: models' shapes, random numbers, a backend with one step's memory, and
//! the clock. What is measured, and what the answer must be, is each bench's own.

#![allow(dead_code)] // Each bench is a program of its own and uses a part.

pub mod machine;
pub mod product;
pub mod random;
pub mod shapes;
pub mod timing;

use std::ops::Range;

use ottava::TokenId;
use ottava::ir::{PAGE_TOKENS, PageId, PageRef, StepInput, StepSequence};

/// Whether the benches are tested and not timed: a few cases of each, a run a case. Criterion asks
/// in the same way.
pub fn brief() -> bool {
    let has = |name: &str| std::env::args().any(|arg| arg == name);
    has("--test") || !has("--bench")
}

/// One token of each of `count` sequences at `position`, each on pages of its own.
pub fn decodes(count: usize, position: usize) -> StepInput {
    let pages = position / PAGE_TOKENS + 1;
    let page = |i: usize| PageRef { page: PageId(i as u32), start: (i % pages * PAGE_TOKENS) as u32 };
    let rows = 0..count as u32;
    let sequence = |row: u32| {
        let first = row * pages as u32;
        StepSequence { rows: row..row + 1, pages: first..first + pages as u32, window: None }
    };
    StepInput {
        tokens: vec![TokenId(0); count],
        positions: vec![position as u32; count],
        sequences: rows.clone().map(sequence).collect(),
        pages: (0..count * pages).map(page).collect(),
        outputs: rows.collect(),
        ..StepInput::default()
    }
}

/// The `positions` of one sequence on pages in order, token `at · 7919` below `vocab` at each; the
/// last row is an output.
pub fn step(positions: Range<usize>, vocab: usize) -> StepInput {
    let page = |index: usize| PageRef { page: PageId(index as u32), start: (index * PAGE_TOKENS) as u32 };
    let pages: Vec<PageRef> = (0..positions.end.div_ceil(PAGE_TOKENS)).map(page).collect();
    let rows = positions.len() as u32;
    StepInput {
        tokens: positions.clone().map(|at| TokenId((at * 7919 % vocab) as u32)).collect(),
        positions: positions.map(|at| at as u32).collect(),
        sequences: vec![StepSequence { rows: 0..rows, pages: 0..pages.len() as u32, window: None }],
        pages,
        outputs: vec![rows - 1],
        ..StepInput::default()
    }
}
