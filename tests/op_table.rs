//! One table of operations, run by every backend that the machine has and held against the f64
//! reference; the reference itself against numbers worked out by hand.
//!
//! A new operation is an entry in `table`; a new backend is a call of `assert_agrees`.

#[path = "op_table/agree.rs"]
mod agree;
#[path = "op_table/case.rs"]
mod case;
#[path = "op_table/literals.rs"]
mod literals;
#[path = "op_table/table.rs"]
mod table;

use std::num::NonZeroUsize;

use agree::{answered, assert_agrees, assert_refuses, assert_rows_alone, assert_same_bits};
use case::{Case, mixes_rows, run};
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::backend::{Backend, Reference};
use ottava::ir::{Op, Place, Rows, Unary, UnaryFn};

fn cpu(isa: Isa, compute: Compute, threads: usize) -> Cpu {
    let threads = NonZeroUsize::new(threads);
    Cpu::new(&CpuOptions { threads, isa: Some(isa), compute, ..CpuOptions::default() })
        .expect("an available instruction set")
}

/// All rows, those of GPUs and the others.
fn cases() -> Vec<Case> {
    [table::cases(), table::words::cases()].concat()
}

#[test]
fn the_table_has_every_operation() {
    let all = cases();
    let seen = |name: &&&str| all.iter().flat_map(|case| &case.ops).any(|op| op.name() == **name);
    let missing: Vec<_> = Op::NAMES.iter().filter(|name| !seen(name)).collect();
    assert!(missing.is_empty(), "no case has {missing:?}");
}

#[test]
#[should_panic(expected = "behind Place")]
fn a_row_too_many_is_noticed() {
    let mut case = Case::new("two rows, one of them behind its place");
    let (src, dst) = (case.input(&[1.0; 8], 4), case.output(1, 4));
    let dst = Place { rows: Rows::Fixed(2), ..dst };
    case.ops = vec![Op::Unary(Unary { dst, src, f: UnaryFn::Scale(2.0) })];
    run(&Reference, &case);
}

#[test]
fn every_instruction_set_agrees_with_the_reference() {
    let answered = answered(cases());
    for isa in Isa::available() {
        assert_agrees(&answered, &cpu(isa, Compute::F32, 2), |case| case.eps);
        assert_agrees(&answered, &cpu(isa, Compute::Int8, 2), |case| case.eps_int8);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for isa in Isa::available() {
        for compute in [Compute::F32, Compute::Int8] {
            let [one, others @ ..] = [1, 2, 3].map(|threads| cpu(isa, compute, threads));
            for case in cases() {
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
            let rows: usize = cases().iter().map(|case| assert_rows_alone(&cpu, case, 1)).sum();
            assert!(rows > 100, "only {rows} rows were run alone");
        }
    }
}

#[test]
fn operations_say_whose_rows_they_mix() {
    // What a sequence keeps in pages and in a state does not count.
    let keeps =
        |op: &Op| matches!(op, Op::KvAppend(_) | Op::Attention(_) | Op::ShortConv(_) | Op::GatedDelta(_));
    let mut cases = cases();
    cases.sort_by_key(Case::bytes);
    for name in Op::NAMES {
        let of = |op: &Op| op.name() == *name && !keeps(op);
        let all = cases
            .iter()
            .flat_map(|case| case.ops.iter().enumerate().map(move |(index, op)| (case, index, op)));
        let (mut says, mut does) = (false, false);
        // A few will do, and the reference is slow.
        for (case, index, op) in all.filter(|(.., op)| of(op)).take(8) {
            says |= op.mixes().is_some();
            does |= mixes_rows(&Reference, case, index);
        }
        assert_eq!(says, does, "{name}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_runs() {
    for refused in [table::refused, table::words::refused] {
        assert_refuses(&Reference, refused());
        for isa in Isa::available() {
            assert_refuses(&cpu(isa, Compute::Int8, 2), refused());
        }
    }
}

#[test]
fn slots_of_state_that_do_not_fit_are_refused() {
    let (mut case, ops) = table::words::refused();
    let conv = ops.iter().find_map(|op| if let Op::ShortConv(conv) = op { Some(conv.clone()) } else { None });
    let conv = conv.expect("a convolution");
    let fitting = Op::ShortConv(ottava::ir::ShortConv { dst: case.results[0], ..conv });
    run(&Reference, &Case { ops: vec![fitting.clone()], ..case.clone() });
    for states in table::words::slots_that_do_not_fit() {
        case.step.states = states;
        assert_refuses(&Reference, (case.clone(), vec![fitting.clone()]));
        assert_refuses(&cpu(Isa::detect(), Compute::F32, 2), (case.clone(), vec![fitting.clone()]));
    }
}
