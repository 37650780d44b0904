//! A recurrent block: convolution, delta rule, MLP, however its rows are cut and batched.

use ottava::backend::{Backend, PageMemory as _, Reference};
use ottava::graph::{CompileOptions, DeltaOperands, Fusion, Graph, GraphError};
use ottava::ir::{Activation, DeltaHeads, Precision, Rows, StateSlot, StateSlots, StepLimits};
use ottava::session::Session;

use crate::{Builder, HIDDEN, Outcome, Values, WIDTH, by_sequence, cpu, gelu, session, step, vector_of};

const DELTA: DeltaHeads = DeltaHeads { key: 2, value: 4, key_dim: 6, value_dim: 10 };
/// Rows that a convolution sees.
const TAPS: usize = 3;

/// Convolution, delta rule, MLP.
fn recurrent_block() -> Result<Graph, GraphError> {
    let mut b = Builder(Graph::new());
    let x = b.0.input("x", Rows::Tokens, WIDTH)?;
    let (rows, cols) = DELTA.state();
    let (past, state) = (b.0.state("past", TAPS - 1, WIDTH)?, b.0.state("state", rows, cols)?);
    let h = b.layer_norm(x, "norm1")?;
    let taps = b.0.vector("taps", TAPS * WIDTH)?;
    let h = b.0.short_conv(h, taps, past)?;
    let h = b.0.activation(h, Activation::Silu)?;
    let (keys, values) = (DELTA.key * DELTA.key_dim, DELTA.value * DELTA.value_dim);
    let (q, k, v) = (b.linear(h, "q", keys)?, b.linear(h, "k", keys)?, b.linear(h, "v", values)?);
    let (decay, beta) = (b.linear(h, "decay", DELTA.value)?, b.linear(h, "beta", DELTA.value)?);
    let decay = b.0.mul(decay, decay)?;
    let decay = b.0.scale(decay, -1.0)?;
    let mixed = b.0.gated_delta(DeltaOperands { q, k, v, decay, beta }, DELTA, 0.5, state)?;
    let mixed = b.linear(mixed, "out", WIDTH)?;
    let h = b.0.add(x, mixed)?;
    let up = b.layer_norm(h, "norm2")?;
    let up = b.linear(up, "up", HIDDEN)?;
    let up = b.0.activation(up, Activation::GeluTanh)?;
    let down = b.linear(up, "down", WIDTH)?;
    let y = b.0.add(h, down)?;
    b.0.output("y", y)?;
    Ok(b.0)
}

/// What [`recurrent_block`] computes of one sequence, from its start.
fn recurred(x: &Values) -> Values {
    let (normed, taps) = (x.layer_norm("norm1"), vector_of("taps", TAPS * WIDTH));
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let convolved = |row: usize, col: usize| {
        let seen = (0..TAPS).filter(|tap| row + tap + 1 >= TAPS);
        silu(seen.map(|tap| taps[col * TAPS + tap] * normed.rows[row + tap + 1 - TAPS][col]).sum())
    };
    let row = |row| (0..WIDTH).map(|col| convolved(row, col)).collect();
    let h = Values { cols: WIDTH, rows: (0..x.rows.len()).map(row).collect() };
    let mixed = delta_rule(&h).linear("out", WIDTH);
    let h = x.plus(&mixed);
    let up = h.layer_norm("norm2").linear("up", HIDDEN);
    h.plus(&up.map(HIDDEN, |x| x.iter().map(|&x| gelu(x)).collect()).linear("down", WIDTH))
}

fn delta_rule(h: &Values) -> Values {
    let DeltaHeads { key, value, key_dim, value_dim } = DELTA;
    let [q, k] = ["q", "k"].map(|name| h.linear(name, key * key_dim));
    let v = h.linear("v", value * value_dim);
    let [decay, beta] = ["decay", "beta"].map(|name| h.linear(name, value));
    let mut out = Values { cols: v.cols, rows: vec![vec![0.0; v.cols]; v.rows.len()] };
    for head in 0..value {
        // A matrix from keys to values, by columns.
        let mut memory = vec![vec![0.0; key_dim]; value_dim];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for row in 0..h.rows.len() {
            let part = head / (value / key) * key_dim..(head / (value / key) + 1) * key_dim;
            let (q, k) = (&q.rows[row][part.clone()], &k.rows[row][part]);
            let left = (-decay.rows[row][head].powi(2)).exp();
            for (col, column) in memory.iter_mut().enumerate() {
                column.iter_mut().for_each(|x| *x *= left);
                let missing = v.rows[row][head * value_dim + col] - dot(column, k);
                column.iter_mut().zip(k).for_each(|(x, k)| *x += k * beta.rows[row][head] * missing);
                out.rows[row][head * value_dim + col] = 0.5 * dot(column, q);
            }
        }
    }
    out
}

/// A part of a step: rows of `x`, and the slots of their sequence.
type RecurrentPart = (std::ops::Range<usize>, Option<u32>, u32);

/// Runs a step over parts of `x`; their results, one behind the other.
fn advance<B: Backend>(
    session: &mut Session<B>,
    x: &Values,
    parts: &[RecurrentPart],
) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let counts: Vec<u32> = parts.iter().map(|(rows, ..)| rows.len() as u32).collect();
    let mut step = step(&counts, &[]);
    let slots =
        |&(_, read, write): &RecurrentPart| StateSlots { read: read.map(StateSlot), write: StateSlot(write) };
    step.states = parts.iter().map(slots).collect();
    let rows = parts.iter().flat_map(|(rows, ..)| &x.rows[rows.clone()]);
    session.main().set_input("x", &rows.flatten().map(|&x| x as f32).collect::<Vec<_>>())?;
    session.main().run(&step)?;
    let mut out = vec![0.0; step.tokens.len() * WIDTH];
    session.read("y", 0, &mut out)?;
    Ok(out)
}

/// Runs rows of `x` alone from a slot in chunks; their results, and the slot where their state is then.
fn in_chunks<B: Backend>(
    session: &mut Session<B>,
    x: &Values,
    (rows, mut read, write): RecurrentPart,
    chunk: usize,
) -> Result<(Vec<f32>, u32), Box<dyn std::error::Error>> {
    let (mut out, mut slots) = (Vec::new(), [write, write + 1]);
    for first in rows.clone().step_by(chunk) {
        let part = (first..(first + chunk).min(rows.end), read, slots[0]);
        out.extend(advance(session, x, &[part])?);
        read = Some(slots[0]);
        slots.reverse();
    }
    Ok((out, read.unwrap_or(write)))
}

fn check_recurrent<B: Backend>(backend: B, tolerance: f64) -> Outcome {
    let (lengths, x) = ([9, 1, 14], Values::named("x", 24, WIDTH));
    let starts = [0, 9, 10];
    let mut session = session(backend, &recurrent_block()?)?.with_states(6)?;
    let whole = advance(&mut session, &x, &[(0..9, None, 0), (9..10, None, 1), (10..24, None, 2)])?;
    let want = by_sequence(&x, &lengths, |x, _| recurred(x)).rows.concat();
    let largest = want.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let error = whole.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(error <= tolerance * largest, "{error:e} of {largest}");
    let of = |index: usize| {
        whole[starts[index] * WIDTH..(starts[index] + lengths[index] as usize) * WIDTH].to_vec()
    };
    for (index, start) in starts.into_iter().enumerate() {
        let rows = start..start + lengths[index] as usize;
        for chunk in [1, 7, rows.len()] {
            let (found, _) = in_chunks(&mut session, &x, (rows.clone(), None, 3), chunk)?;
            assert_eq!(found, of(index), "sequence {index} alone in chunks of {chunk}");
        }
    }
    // Batched: one is in its middle while the next ones start, and a slot is used again by another.
    let first = advance(&mut session, &x, &[(0..4, None, 0)])?;
    let second = advance(&mut session, &x, &[(9..10, None, 1), (0..5, None, 3), (10..12, None, 2)])?;
    let third = advance(&mut session, &x, &[(12..24, Some(2), 3), (4..9, Some(0), 1)])?;
    assert_eq!([&first[..], &third[12 * WIDTH..]].concat(), of(0), "the first, cut at 4");
    assert_eq!(second[..WIDTH], of(1), "the second");
    assert_eq!(second[WIDTH..6 * WIDTH], of(0)[..5 * WIDTH], "the first again, up to 5");
    assert_eq!([&second[6 * WIDTH..], &third[..12 * WIDTH]].concat(), of(2), "the third, cut at 2");
    // Preempted after 5 rows, and resumed from a snapshot, which is a slot kept, or from a copy of its
    // content.
    let (head, kept) = in_chunks(&mut session, &x, (10..15, None, 0), 2)?;
    let mut content = vec![0.0; session.plan().state_elements()];
    session.kv().states().ok_or("no states")?.read(StateSlot(kept), &mut content)?;
    for restored in [kept, 5] {
        let (tail, _) = in_chunks(&mut session, &x, (15..24, Some(restored), 3), 4)?;
        // A copy is f32, which the reference's state is not.
        let exact = restored == kept || tolerance > 1e-6;
        let found = [head.clone(), tail].concat();
        let error = found.iter().zip(&of(2)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(if exact { found == of(2) } else { error < 1e-6 }, "from slot {restored}: {error:e}");
        session.kv_mut().states_mut().ok_or("no states")?.write(StateSlot(5), &content)?;
    }
    Ok(())
}

#[test]
fn a_recurrent_block_however_its_rows_are_cut_and_batched() -> Outcome {
    check_recurrent(Reference, 1e-6)?;
    check_recurrent(cpu()?, 1e-5)
}

#[test]
fn states_that_do_not_fit_are_refused() -> Outcome {
    let mut session = session(cpu()?, &recurrent_block()?)?;
    let x = Values::named("x", 2, WIDTH);
    assert!(advance(&mut session, &x, &[(0..2, None, 0)]).is_err(), "no slots");
    let mut session = session.with_states(3)?;
    advance(&mut session, &x, &[(0..1, None, 0), (1..2, None, 1)])?;
    for (parts, what) in [
        ([(0..1, None, 0), (1..2, None, 0)], "two that write one slot"),
        ([(0..1, None, 0), (1..2, Some(0), 1)], "one that reads what the other writes"),
        ([(0..1, None, 0), (1..2, Some(1), 1)], "one that writes what it reads"),
        ([(0..1, None, 0), (1..2, Some(3), 1)], "a slot too many"),
    ] {
        assert!(advance(&mut session, &x, &parts).is_err(), "{what}");
    }
    assert!(session.main().run(&step(&[2], &[])).is_err(), "no states");
    let mut state = vec![0.0; session.plan().state_elements()];
    assert!(session.kv().states().ok_or("no states")?.read(StateSlot(3), &mut state).is_err());
    assert!(session.kv_mut().states_mut().ok_or("no states")?.write(StateSlot(0), &[0.0]).is_err());

    let mut g = Graph::new();
    let (x, w) = (g.input("x", Rows::Tokens, WIDTH)?, g.vector("w", 2 * WIDTH)?);
    let past = g.state("past", 1, WIDTH)?;
    assert!(matches!(g.state("past", 1, WIDTH), Err(GraphError::Duplicate { .. })));
    assert!(matches!(g.state("large", usize::MAX, 2), Err(GraphError::TooLarge { .. })));
    let longer = g.state("longer", 2, WIDTH)?;
    let fixed = g.input("fixed", Rows::Fixed(3), WIDTH)?;
    let misfits = [g.short_conv(x, w, longer), g.short_conv(fixed, w, past)];
    assert!(misfits.iter().all(|found| matches!(found, Err(GraphError::Shape { .. }))), "{misfits:?}");
    let heads = DeltaHeads { key: 1, value: 1, key_dim: WIDTH, value_dim: WIDTH };
    let operands = DeltaOperands { q: x, k: x, v: x, decay: x, beta: x };
    assert!(matches!(g.gated_delta(operands, heads, 1.0, past), Err(GraphError::Shape { .. })));
    let one = g.short_conv(x, w, past)?;
    let two = g.short_conv(one, w, past)?;
    g.output("y", two)?;
    let options = CompileOptions {
        limits: StepLimits { tokens_max: 4, outputs_max: 1 },
        element_bytes: &|_| 4,
        fuse: Fusion::On,
        activations: Precision::F32,
    };
    assert!(matches!(g.compile(&options), Err(GraphError::Unsupported { .. })), "a state of two operations");
    Ok(())
}
