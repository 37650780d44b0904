//! Arena places: overwriting of dying sources, copies, and the tightness of the arena.

use super::*;
use crate::graph::arena::bytes;
use crate::graph::ssa::ValueInfo;
use crate::ir::{Attention, Binary, KvAppend};

type Outcome = Result<(), GraphError>;

fn compiled(g: &Graph, activations: Precision) -> Result<Plan, GraphError> {
    g.compile(&CompileOptions { activations, ..options(Fusion::On) })
}

fn overlap(a: &Place, b: &Place) -> bool {
    range(a).start < range(b).end && range(b).start < range(a).end
}

/// A backend may fuse append and attention, so the append's sources must stay intact while the attention
/// writes.
#[test]
fn an_attentions_result_lies_apart_from_what_its_append_reads() -> Outcome {
    for parts in [LLAMA, QWEN2, QWEN3, GEMMA] {
        for fusion in [Fusion::On, Fusion::Off] {
            let plan = decoder(2, parts)?.compile(&options(fusion))?;
            let mut pairs = 0;
            for pair in plan.ops().windows(2) {
                let (Op::KvAppend(append), Op::Attention(Attention { dst, .. })) = (&pair[0], &pair[1])
                else {
                    continue;
                };
                pairs += 1;
                let KvAppend { q, k, v, rope, .. } = append;
                let angles = rope.map(|rope| rope.angles);
                for place in [Some(*q), Some(*k), Some(*v), angles].into_iter().flatten() {
                    assert!(!overlap(&place, dst), "{place:?} under {dst:?}\n{plan}");
                }
            }
            assert_eq!(pairs, 2, "{plan}");
        }
    }
    Ok(())
}

fn binaries(plan: &Plan) -> Vec<(Place, Place, Place)> {
    let binary = |op: &Op| match *op {
        Op::Binary(Binary { dst, a, b, .. }) => Some((dst, a, b)),
        _ => None,
    };
    plan.ops().iter().filter_map(binary).collect()
}

#[test]
fn a_result_lies_over_a_dying_source_and_over_no_other() -> Outcome {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    let (a, b) = (g.softmax(x)?, g.scale(x, 3.0)?);
    let y = g.mul(a, b)?;
    let y = g.softmax(y)?;
    g.output("y", y)?;
    let plan = compiled(&g, Precision::F32)?;
    let (dst, a, b) = binaries(&plan)[0];
    assert_eq!(dst, a, "the first source dies");
    assert!(!overlap(&dst, &b), "never over the second");

    // A value with a later reader, an output, and a value that is both sources.
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    let (a, b) = (g.softmax(x)?, g.scale(x, 3.0)?);
    let y = g.mul(a, b)?;
    let z = g.mul(b, b)?;
    let y = g.mul(y, a)?;
    let y = g.mul(y, z)?;
    g.output("b", b)?;
    g.output("y", y)?;
    let plan = compiled(&g, Precision::F32)?;
    let found = binaries(&plan);
    assert!(!overlap(&found[0].0, &found[0].1), "read later");
    assert!(!overlap(&found[1].0, &found[1].1), "an output");
    check_places(&plan);
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    let a = g.softmax(x)?;
    let y = g.mul(a, a)?;
    let y = g.scale(y, 2.0)?;
    g.output("y", y)?;
    let (dst, a, b) = binaries(&compiled(&g, Precision::F32)?)[0];
    assert_eq!(a, b);
    assert!(!overlap(&dst, &a), "only the first source may be the result's place");
    Ok(())
}

/// Unary operations, and whether the result overwrites the source.
#[test]
fn unary_operations_lie_over_their_source_if_it_has_their_shape() -> Outcome {
    let over = |make: &dyn Fn(&mut Graph, NodeId) -> Result<NodeId, GraphError>| -> Result<bool, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", Rows::Fixed(8), 8)?;
        let h = g.scale(x, 2.0)?;
        let y = make(&mut g, h)?;
        let y = g.mul(y, y)?;
        g.output("y", y)?;
        let plan = compiled(&g, Precision::F32)?;
        let places = plan.ops()[1].places();
        let [(_, src), (_, dst)] = places[..] else { panic!("{plan}") };
        assert!(src == dst || !overlap(&src, &dst), "{plan}");
        Ok(src == dst)
    };
    assert!(over(&|g, x| g.softmax(x))?);
    assert!(over(&|g, x| g.activation(x, Activation::Silu))?);
    assert!(over(&|g, x| {
        let w = g.vector("w", 8)?;
        g.rms_norm(x, w, 1e-5)
    })?);
    assert!(!over(&|g, x| g.cast(x, Precision::F16))?, "another precision");
    assert!(!over(&|g, x| g.transpose(x))?, "rows are columns");
    Ok(())
}

/// A rotation works in place, so a value with a later reader or another precision is copied first.
#[test]
fn a_rotation_destroys_only_what_nobody_needs() -> Outcome {
    let copies = |outputs: &[usize], activations| -> Result<usize, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", Rows::Tokens, 8)?;
        let m = g.matrix("m", 8, 8)?;
        let h = g.matmul(x, m)?;
        let turned = g.rope(h, 8, &rope_spec(8))?;
        let both = g.softmax(turned)?;
        let later = g.softmax(h)?;
        for &output in outputs {
            g.output(&format!("{output}"), [both, later, h, turned][output])?;
        }
        let plan = compiled(&g, activations)?;
        check_places(&plan);
        Ok(plan.ops().iter().filter(|op| op.name() == "unary").count())
    };
    assert_eq!(copies(&[0], Precision::F32)?, 0);
    assert_eq!(copies(&[0, 1], Precision::F32)?, 1, "read later");
    assert_eq!(copies(&[0, 2], Precision::F32)?, 1, "an output");
    assert_eq!(copies(&[3], Precision::F32)?, 0);
    assert_eq!(copies(&[3], Precision::Bf16)?, 1, "the output is in f32");
    Ok(())
}

/// Inputs keep their values between runs, read or not; outputs stay readable until the next run.
#[test]
fn inputs_and_outputs_keep_their_places() -> Outcome {
    let mut g = Graph::new();
    let (x, late) = (g.input("x", Rows::Tokens, 8)?, g.input("late", Rows::Tokens, 8)?);
    g.input("unread", Rows::Tokens, 8)?;
    let early = g.softmax(x)?;
    let mut y = g.scale(x, 2.0)?;
    for _ in 0..3 {
        y = g.softmax(y)?;
    }
    let y = g.add(y, late)?;
    g.output("early", early)?;
    g.output("y", y)?;
    let plan = compiled(&g, Precision::F32)?;
    check_places(&plan);
    let kept = ["x", "late", "unread"].map(|name| plan.input(name)).into_iter();
    let kept: Vec<Place> = kept.chain(["early", "y"].map(|name| plan.place(name))).flatten().collect();
    assert_eq!(kept.len(), 5);
    for (at, a) in kept.iter().enumerate() {
        assert!(kept[at + 1..].iter().all(|b| !overlap(a, b)), "{plan}");
    }
    Ok(())
}

fn slot(units: usize, life: (usize, usize)) -> Slot {
    Slot { bytes: units * ALIGN, life, offset: 0 }
}

#[test]
fn a_gap_of_just_the_size_is_used() -> Outcome {
    let mut slots = [slot(4, (0, 0)), slot(3, (0, 1)), slot(2, (1, 1)), slot(2, (1, 2)), slot(0, (9, 0))];
    assert_eq!(first_fit(&mut slots)?, 7 * ALIGN);
    let mut offsets = slots.map(|slot| slot.offset / ALIGN);
    offsets[2..4].sort_unstable();
    assert_eq!(offsets, [0, 4, 0, 2, 0]);
    Ok(())
}

/// Lifetimes that share one step overlap; consecutive lifetimes do not.
#[test]
fn slots_meet_where_their_lives_share_a_step() -> Outcome {
    let mut touching = [slot(1, (0, 3)), slot(1, (3, 5))];
    assert_eq!(first_fit(&mut touching)?, 2 * ALIGN);
    let mut following = [slot(1, (0, 3)), slot(1, (4, 5))];
    assert_eq!(first_fit(&mut following)?, ALIGN);
    Ok(())
}

#[test]
fn an_arena_beyond_the_address_space_is_refused() {
    let half = isize::MAX as usize / 2 / ALIGN;
    let mut slots = [slot(half, (0, 1)), slot(half, (1, 2)), slot(half, (1, 1))];
    let error = first_fit(&mut slots).expect_err("too large").to_string();
    assert!(error.contains("arena"), "{error}");
    let mut one = [slot(half, (0, 1)), slot(half, (1, 2))];
    assert_eq!(first_fit(&mut one), Ok(2 * half * ALIGN));
}

#[test]
fn bytes_are_those_of_the_plans_limits_and_aligned() {
    let info =
        |rows, cols| ValueInfo { rows, cols, precision: Precision::F32, pinned: false, label: "it".into() };
    let found = |rows, cols| bytes(&info(rows, cols), &options(Fusion::On));
    assert_eq!(found(Rows::Tokens, 8), Ok(8 * 8 * 8));
    assert_eq!(found(Rows::Outputs, 1), Ok(64), "3 rows of 8 bytes");
    assert_eq!(found(Rows::Fixed(9), 1), Ok(128), "9 rows of 8 bytes");
    assert_eq!(found(Rows::Fixed(0), 1), Ok(0));
    for (rows, cols) in [
        (Rows::Fixed(usize::MAX), 2),
        (Rows::Fixed(1), usize::MAX / 8 - 3),
        (Rows::Fixed(1), usize::MAX / 16 + 1),
    ] {
        assert!(matches!(found(rows, cols), Err(GraphError::TooLarge { ref node, .. }) if node == "it"));
    }
}

#[test]
fn values_that_no_memory_could_hold_are_refused_by_name() -> Outcome {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    let m = g.matrix("huge", usize::MAX / 4, 8)?;
    let y = g.matmul(x, m)?;
    g.output("y", y)?;
    let error = g.compile(&options(Fusion::On)).expect_err("too large").to_string();
    assert!(error.contains("matmul huge"), "{error}");
    Ok(())
}
