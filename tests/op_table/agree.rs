//! What it means to agree: within a case's tolerance, to the bit, or by refusing.

use ottava::backend::{Backend, BackendError, Reference};

use crate::case::{Bench, Case, run};
use crate::table;

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

/// Runs the table on `backend` and prints the case that came nearest to its tolerance.
pub fn assert_agrees<B: Backend>(backend: &B, eps: fn(&Case) -> f64) {
    assert_agrees_in(table::cases(), backend, eps);
}

/// As [`assert_agrees`], in these cases.
pub fn assert_agrees_in<B: Backend>(cases: Vec<Case>, backend: &B, eps: fn(&Case) -> f64) {
    let (mut nearest, mut failed) = ((0.0, String::new()), Vec::new());
    for case in cases {
        let (found, mut want) = (run(backend, &case), run(&Reference, &case));
        leave_to_the_caller(backend, &case, &mut want);
        for ((found, want), place) in found.iter().zip(&want).zip(&case.results) {
            let error = error(found, want, place.cols);
            let what = format!("{}: error {error:.1e}, allowed {:.1e}", case.name, eps(&case));
            if error > eps(&case) {
                failed.push(what);
            } else if error > nearest.0 * eps(&case) {
                nearest = (error / eps(&case), what);
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

pub fn assert_refuses<B: Backend>(backend: &B) {
    let (case, ops) = table::refused();
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
