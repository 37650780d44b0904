//! One table of operations, run by every backend that the machine has and held against the f64
//! reference; the reference itself against numbers worked out by hand.
//!
//! A new operation is an entry in `table`; a new backend is a call of `assert_agrees`.

#[path = "op_table/case.rs"]
mod case;
#[path = "op_table/literals.rs"]
mod literals;
#[path = "op_table/table.rs"]
mod table;

use std::num::NonZeroUsize;

use case::{Bench, Case, run};
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::backend::{Backend, BackendError, Op, Reference};

fn cpu(isa: Isa, compute: Compute, threads: usize) -> Cpu {
    let threads = NonZeroUsize::new(threads);
    Cpu::new(&CpuOptions { threads, isa: Some(isa), compute }).expect("an available instruction set")
}

/// The place of an operation in the list that the table must cover: the compiler asks for a new
/// one here.
fn kind(op: &Op) -> usize {
    match op {
        Op::Embed { .. } => 0,
        Op::Norm { .. } => 1,
        Op::Matmul(_) => 2,
        Op::RopeAngles(_) => 3,
        Op::Rope { .. } => 4,
        Op::KvAppend(_) => 5,
        Op::Attention(_) => 6,
        Op::GatherOutputs { .. } => 7,
        Op::Unary { .. } => 8,
        Op::Binary { .. } => 9,
        Op::Softmax { .. } => 10,
        Op::Transpose { .. } => 11,
    }
}

/// Results below this count as this large: near the smallest f32, precision is lost by design.
const ABSOLUTE: f32 = 1e-24;

/// The error as a fraction of the row's largest magnitude, the worst of all rows; infinite where
/// one has a NaN or an infinity that the other does not have.
fn error(found: &[f32], want: &[f32], cols: usize) -> f64 {
    let mut worst = 0.0f64;
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

/// Runs the table on `backend` and prints the case that came nearest to its tolerance.
fn assert_agrees<B: Backend>(backend: &B, eps: fn(&Case) -> f64) {
    let (mut nearest, mut failed) = ((0.0, String::new()), Vec::new());
    for case in table::cases() {
        let (found, want) = (run(backend, &case), run(&Reference, &case));
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

#[test]
fn the_table_has_every_operation() {
    let mut seen = [false; 12];
    for case in table::cases() {
        case.ops.iter().for_each(|op| seen[kind(op)] = true);
    }
    assert_eq!(seen, [true; 12]);
}

#[test]
fn every_instruction_set_agrees_with_the_reference() {
    for isa in Isa::available() {
        assert_agrees(&cpu(isa, Compute::F32, 2), |case| case.eps);
        assert_agrees(&cpu(isa, Compute::Int8, 2), |case| case.eps_int8);
    }
}

fn assert_same_bits(found: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    let bits = |values: &[Vec<f32>]| values.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(found) == bits(want), "{what}: {found:?} for {want:?}");
}

#[test]
fn threads_do_not_change_a_bit() {
    for isa in Isa::available() {
        for compute in [Compute::F32, Compute::Int8] {
            let [one, others @ ..] = [1, 2, 3].map(|threads| cpu(isa, compute, threads));
            for case in table::cases() {
                let want = run(&one, &case);
                for other in &others {
                    assert_same_bits(
                        &run(other, &case),
                        &want,
                        &format!("{} {}", other.describe(), case.name),
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_among_others() {
    for isa in Isa::available() {
        for compute in [Compute::F32, Compute::Int8] {
            let cpu = cpu(isa, compute, 2);
            let mut rows = 0;
            for case in table::cases() {
                let whole = run(&cpu, &case);
                for (row, alone) in case.rows_alone().iter().enumerate() {
                    let of_row = whole.iter().zip(&case.results);
                    let of_row = of_row.map(|(all, place)| all[row * place.cols..][..place.cols].to_vec());
                    let want: Vec<Vec<f32>> = of_row.collect();
                    assert_same_bits(&run(&cpu, alone), &want, &format!("{isa} {} row {row}", case.name));
                    rows += 1;
                }
            }
            assert!(rows > 100, "only {rows} rows were run alone");
        }
    }
}

fn assert_refuses<B: Backend>(backend: &B) {
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

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_runs() {
    assert_refuses(&Reference);
    for isa in Isa::available() {
        assert_refuses(&cpu(isa, Compute::Int8, 2));
    }
}
