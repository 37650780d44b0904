//! Sampling from whole vocabularies: where a GPU skips logits that cannot matter, lists the few that can, and
//! searches among many that are nearly or quite equal.

use ottava::TokenId;
use ottava::ir::{LogitAdjustment, Op, RowSampling, SampleRows};

use crate::case::{Case, Numbers};

/// Of columns that are loaded by fours, and that are not.
const VOCABULARIES: [usize; 2] = [32_000, 32_003];

/// How the logits of a row lie.
#[derive(Clone, Copy)]
enum Logits {
    /// Some hundreds far above the others.
    Peaked,
    /// All within a few units of each other, none equal.
    Flat,
    /// Most of them equal.
    Equal,
    /// Some hundreds far above the others, all in one stretch.
    Crowded,
    /// Rounded: many small groups of equal ones.
    Stepped,
}

impl Logits {
    fn row(self, cols: usize, numbers: &mut Numbers) -> Vec<f32> {
        let mut row = numbers.take(cols);
        match self {
            Logits::Peaked => {}
            Logits::Flat => row.iter_mut().for_each(|x| *x = x.clamp(-2.0, 2.0)),
            Logits::Equal => row.iter_mut().for_each(|x| *x = x.clamp(-0.5, 0.5)),
            Logits::Crowded => row.iter_mut().skip(cols / 2).take(700).for_each(|x| *x += 30.0),
            Logits::Stepped => row.iter_mut().for_each(|x| *x = (8.0 * *x).round() / 8.0),
        }
        row
    }
}

/// What a request may ask for: cuts among few candidates, among some hundreds, and among most of all.
fn kinds() -> Vec<RowSampling> {
    let warm = RowSampling { temperature: 0.8, ..RowSampling::default() };
    vec![
        RowSampling::default(),
        warm.clone(),
        RowSampling { top_p: 0.3, ..warm.clone() },
        RowSampling { top_p: 0.95, ..warm.clone() },
        RowSampling { top_k: 40, top_p: 0.95, ..warm.clone() },
        RowSampling { top_k: 240, min_p: 0.01, ..warm.clone() },
        RowSampling { top_k: 1000, top_p: 0.9, temperature: 20.0, ..warm.clone() },
        RowSampling { top_k: 9000, top_p: 0.999, temperature: 20.0, ..warm.clone() },
        RowSampling { min_p: 0.3, ..warm },
    ]
}

/// A case for each vocabulary, a row for each of [`kinds`] and way that logits lie.
pub fn cases() -> Vec<Case> {
    VOCABULARIES.map(case).to_vec()
}

fn case(cols: usize) -> Case {
    let shapes = [Logits::Peaked, Logits::Flat, Logits::Equal, Logits::Crowded, Logits::Stepped];
    let rows = shapes.into_iter().flat_map(|shape| kinds().into_iter().map(move |kind| (shape, kind)));
    let rows: Vec<_> = rows.collect();
    let mut numbers = Numbers(cols as u64 + 5);
    let mut case = Case::new(format!("sampling from {cols}")).at(0..rows.len() as u32);
    case.step.outputs = (0..rows.len() as u32).collect();
    // The largest by far, and one that was.
    let entry = |token: usize, bias| LogitAdjustment {
        token: TokenId(token as u32),
        bias,
        repetition: 1.0,
        penalty: 0.0,
    };
    case.step.adjustments = vec![entry(cols - 1, 41.0), entry(cols / 2 + 3, -50.0)];
    let mut logits = Vec::with_capacity(rows.len() * cols);
    for (number, (shape, kind)) in rows.into_iter().enumerate() {
        let adjustments = if number % 4 == 3 { 0..2 } else { 0..0 };
        case.step.sampling.push(RowSampling { draw: numbers.draw(), adjustments, ..kind });
        logits.extend(shape.row(cols, &mut numbers));
    }
    let src = case.input(&logits, cols);
    let dst = case.gathered(1);
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    case.within(0.0)
}
