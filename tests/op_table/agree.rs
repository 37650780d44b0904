//! What it means to agree: within a case's tolerance, to the bit, or by refusing.

use ottava::backend::{Backend, BackendError, Reference};
use ottava::ir::Op;

use crate::case::{Bench, Case, run};

/// Results below this count as this large: near the smallest f32, precision is lost by design.
const ABSOLUTE: f32 = 1e-24;

/// The error as a fraction of the row's largest magnitude, the worst of all rows; infinite where
/// one has a NaN or an infinity that the other does not have. Rows of one column are taken together.
fn error(found: &[f32], want: &[f32], cols: usize) -> f64 {
    let mut worst = 0.0f64;
    let cols = if cols == 1 { want.len() } else { cols };
    for (found, want) in found.chunks(cols).zip(want.chunks(cols)) {
        let finite = want.iter().filter(|x| x.is_finite());
        let magnitude = f64::from(finite.fold(ABSOLUTE, |max, x| max.max(x.abs())));
        for (found, want) in found.iter().zip(want) {
            if found == want || (found.is_nan() && want.is_nan()) {
                continue;
            }
            let error = (f64::from(*found) - f64::from(*want)).abs() / magnitude;
            worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
        }
    }
    worst
}

/// Rows that the backend does not sample itself have no token.
fn leave_to_the_caller<B: Backend>(backend: &B, case: &Case, want: &mut [Vec<f32>]) {
    for (row, sampling) in case.step.sampling.iter().enumerate() {
        if !backend.samples(sampling, 1) {
            want.iter_mut().for_each(|tokens| tokens[row] = -1.0);
        }
    }
}

/// A case and what the reference answers.
pub type Answered = (Case, Vec<Vec<f32>>);

/// What the reference answers, for all backends that are held against it.
pub fn answered(cases: Vec<Case>) -> Vec<Answered> {
    let answer = |case: &Case| run(&Reference, case);
    let answers: Vec<_> = cases.iter().map(answer).collect();
    cases.into_iter().zip(answers).collect()
}

/// Runs the cases on `backend` and prints the one that came nearest to its tolerance.
pub fn assert_agrees<B: Backend>(answered: &[Answered], backend: &B, eps: fn(&Case) -> f64) {
    let (mut nearest, mut failed) = ((0.0, String::new()), Vec::new());
    for (case, want) in answered {
        let (found, mut want) = (run(backend, case), want.clone());
        leave_to_the_caller(backend, case, &mut want);
        for (index, (found, want)) in found.iter().zip(&want).enumerate() {
            // Behind the results come slots of state, which have no rows.
            let cols = case.results.get(index).map_or(1, |place| place.cols);
            let error = error(found, want, cols);
            let what = format!("{}: error {error:.1e}, allowed {:.1e}", case.name, eps(case));
            if error > eps(case) {
                failed.push(what);
            } else if error > nearest.0 * eps(case) {
                nearest = (error / eps(case), what);
            }
        }
    }
    println!("{}: nearest to its tolerance {}", backend.describe(), nearest.1);
    assert!(failed.is_empty(), "{}:\n{}", backend.describe(), failed.join("\n"));
}

pub fn assert_same_bits(found: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    let bits = |values: &[Vec<f32>]| values.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(found) == bits(want), "{what}: {found:?} for {want:?}");
}

/// Runs every so many of a case's rows alone, for the bits that they have among the others, and gives their
/// number.
pub fn assert_rows_alone<B: Backend>(backend: &B, case: &Case, every: usize) -> usize {
    let (whole, alone) = (run(backend, case), case.rows_alone());
    for (row, alone) in alone.iter().enumerate().step_by(every) {
        let of_row = whole.iter().zip(&case.results);
        let want: Vec<_> =
            of_row.map(|(all, place)| all[row * place.cols..][..place.cols].to_vec()).collect();
        assert_same_bits(
            &run(backend, alone),
            &want,
            &format!("{}: {} row {row}", backend.describe(), case.name),
        );
    }
    alone.len().div_ceil(every)
}

pub fn assert_refuses<B: Backend>(backend: &B, (case, ops): (Case, Vec<Op>)) {
    let mut bench = Bench::new(backend, &case);
    for op in ops {
        let found = bench.execute(&op);
        let refused = matches!(found, Err(BackendError::Shape { .. }));
        assert!(refused, "{}: {op:?}: {found:?}", backend.describe());
        for place in &case.results {
            assert!(bench.read(place).iter().all(|&x| x == 1.0), "{op:?} was refused, and ran");
        }
    }
}
