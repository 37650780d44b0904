//! Tests of the step rules, one change per rule.

use super::*;
use crate::ir::{PageId, StateSlot};

const LIMITS: StepLimits = StepLimits { tokens_max: 5, outputs_max: 2 };
const PAGES: usize = 3;
const VOCAB: usize = 10;

/// The end of a prompt in two pages, and a sequence of two rows.
fn step() -> StepInput {
    let last = PAGE_TOKENS as u32 - 1;
    let page = |page, start| PageRef { page: PageId(page), start };
    StepInput {
        tokens: vec![TokenId(9); 5],
        positions: vec![last, last + 1, last + 2, 4, 5],
        sequences: vec![
            StepSequence { rows: 0..3, pages: 0..2, window: None },
            StepSequence { rows: 3..5, pages: 2..3, window: None },
        ],
        pages: vec![page(1, 0), page(2, last + 1), page(0, 0)],
        outputs: vec![2, 4],
        sampling: vec![RowSampling { adjustments: 0..1, ..RowSampling::default() }, RowSampling::default()],
        adjustments: vec![LogitAdjustment { token: TokenId(9), bias: 0.0, repetition: 1.0, penalty: 0.0 }],
        fed: vec![FedRow { row: 4, output: 0 }],
        ..StepInput::default()
    }
}

#[test]
fn a_step_that_keeps_every_rule_passes_and_each_rule_is_told_apart() {
    assert_eq!(step().check(LIMITS, PAGES, VOCAB), Ok(()));
    type Change = fn(&mut StepInput);
    let cases: &[(&str, Change)] = &[
        ("6 tokens, expected 1 to 5", |step| step.tokens.push(TokenId(0))),
        ("0 tokens, expected 1 to 5", |step| step.clear()),
        ("4 positions for 5 tokens", |step| step.positions.truncate(4)),
        ("token 10 is outside", |step| step.tokens[0] = TokenId(10)),
        ("3 outputs, expected at most 2", |step| step.outputs.insert(0, 0)),
        ("not rising rows below 5", |step| step.outputs = vec![4, 4]),
        ("not rising rows below 5", |step| step.outputs = vec![4, 2]),
        ("not rising rows below 5", |step| step.outputs = vec![2, 5]),
        ("sampling of 1 rows for 2", |step| step.sampling.truncate(1)),
        ("output 1: adjustments 0..2 of 1", |step| step.sampling[1].adjustments = 0..2),
        ("an adjustment of token 10", |step| step.adjustments[0].token = TokenId(10)),
        ("row 5 is fed, of 5 rows", |step| step.fed[0].row = 5),
        ("sequence 1: rows 2..5 do not follow row 3", |step| step.sequences[1].rows.start = 2),
        ("sequence 1: rows 3..3 do not follow row 3", |step| step.sequences[1].rows.end = 3),
        ("sequences cover 4 of 5 tokens", |step| step.sequences[1].rows.end = 4),
        // The last of three rows, and the last of two.
        ("sequence 0: positions are not consecutive", |step| step.positions[2] += 1),
        ("sequence 1: positions are not consecutive", |step| step.positions[4] = 4),
        ("sequence 1: positions are not consecutive", |step| {
            step.positions[3..].copy_from_slice(&[u32::MAX, 0])
        }),
        ("sequence 1: pages beyond the step's table", |step| step.sequences[1].pages.end = 4),
        ("sequence 0: page starts do not rise", |step| step.pages[1].start = 0),
        ("sequence 0: bad page 3", |step| step.pages[0].page = PageId(3)),
        ("sequence 1: bad page 0 at position 1", |step| step.pages[2].start = 1),
        ("sequence 0: no page for position", |step| step.sequences[0].pages.end = 1),
        ("axis 0: ", |step| step.axes = vec![AxisRows::default()]),
    ];
    for (why, change) in cases {
        let mut step = step();
        change(&mut step);
        let error = step.check(LIMITS, PAGES, VOCAB).expect_err(why).to_string();
        assert!(error.contains(why), "expected {why}, found {error}");
    }
}

#[test]
fn states_are_apart_unless_they_are_only_read() {
    let slots = |read: Option<u32>, write| StateSlots { read: read.map(StateSlot), write: StateSlot(write) };
    let check = |states: [StateSlots; 2]| {
        let step = StepInput { states: states.to_vec(), ..step() };
        step.check_states(4).map_err(|error| error.to_string())
    };
    assert_eq!(check([slots(Some(0), 1), slots(Some(0), 2)]), Ok(()));
    assert_eq!(check([slots(None, 0), slots(None, 3)]), Ok(()));
    for (states, why) in [
        ([slots(Some(4), 1), slots(None, 2)], "sequence 0: state slot 4 of 4"),
        ([slots(None, 1), slots(None, 4)], "sequence 1: state slot 4 of 4"),
        ([slots(Some(1), 1), slots(None, 2)], "sequence 0: state slot 1 is written and used twice"),
        ([slots(None, 1), slots(None, 1)], "sequence 0: state slot 1 is written and used twice"),
        ([slots(Some(0), 1), slots(Some(1), 2)], "sequence 0: state slot 1 is written and used twice"),
    ] {
        let error = check(states).expect_err(why);
        assert!(error.contains(why), "expected {why}, found {error}");
    }
    let error = step().check_states(4).expect_err("none").to_string();
    assert!(error.contains("states of 0 sequences, expected 2"), "{error}");
}
