//! Session binding: the number of weights, the shape of the KV memory, and inputs and outputs.

use super::*;
use crate::backend::{Backend, Reference, Weights};
use crate::ir::{KvDtype, KvLayout, StepInput};
use crate::session::{KvMemory, Session, SessionError};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A plan with one attention at layer 1, and without weights.
fn attention() -> Result<Plan, GraphError> {
    let mut g = Graph::new();
    let (q, k) = (g.input("q", Rows::Tokens, 32)?, g.input("k", Rows::Tokens, 16)?);
    let spec = AttentionSpec { layer: 1, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
    let a = g.attention(q, k, k, spec)?;
    g.output("a", a)?;
    g.compile(&options(Fusion::On))
}

fn no_weights() -> Weights<Reference> {
    Weights { matrices: Vec::new(), vectors: Vec::new() }
}

const LAYOUT: KvLayout = KvLayout { layers: 2, kv_heads: 2, head_dim: 8, dtype: KvDtype::F16 };

#[test]
fn memory_for_keys_and_values_has_the_plans_shape() -> Outcome {
    let plan = attention()?;
    let bind = |layout: Option<KvLayout>| {
        let kv = layout.map(|layout| KvMemory { layout, pages: 2 });
        Session::new(Reference, plan.clone(), no_weights(), kv).map(drop)
    };
    bind(Some(LAYOUT))?;
    bind(Some(KvLayout { layers: 3, dtype: KvDtype::Int8, ..LAYOUT }))?;
    for wrong in [
        None,
        Some(KvLayout { layers: 1, ..LAYOUT }),
        Some(KvLayout { kv_heads: 4, ..LAYOUT }),
        Some(KvLayout { head_dim: 16, ..LAYOUT }),
    ] {
        let error = bind(wrong).expect_err("another shape");
        assert!(matches!(error, SessionError::Binding { ref what, .. } if what == "KV memory"), "{error}");
    }
    // A plan without attention needs no KV memory and accepts any.
    let plain = || {
        let mut g = Graph::new();
        let x = g.input("x", Rows::Tokens, 8)?;
        g.output("x", x)?;
        g.compile(&options(Fusion::On))
    };
    Session::new(Reference, plain()?, no_weights(), None)?;
    Session::new(Reference, plain()?, no_weights(), Some(KvMemory { layout: LAYOUT, pages: 1 }))?;
    Ok(())
}

#[test]
fn weights_are_as_many_as_the_plan_has() -> Outcome {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", Rows::Tokens, 8)?, g.vector("w", 8)?);
    let x = g.rms_norm(x, w, 1e-5)?;
    g.output("x", x)?;
    let plan = g.compile(&options(Fusion::On))?;
    let vector = || Reference.upload_vector(&[1.0; 8]);
    for (count, fits) in [(0, false), (1, true), (2, false)] {
        let vectors = (0..count).map(|_| vector()).collect::<Result<_, _>>()?;
        let weights = Weights { matrices: Vec::new(), vectors };
        let bound = Session::new(Reference, plan.clone(), weights, None);
        assert_eq!(bound.is_ok(), fits, "{count} vectors");
        if let Err(error) = bound {
            assert_eq!(error.to_string(), format!("weight vectors: expected 1, found {count}"));
        }
    }
    Ok(())
}

#[test]
fn rows_go_in_and_come_out_within_their_places() -> Outcome {
    let mut g = Graph::new();
    let (x, none) = (g.input("x", Rows::Tokens, 8)?, g.input("none", Rows::Tokens, 0)?);
    g.output("x", x)?;
    g.output("none", none)?;
    let mut session = Session::new(Reference, g.compile(&options(Fusion::On))?, no_weights(), None)?;
    let values: Vec<f32> = (0..64).map(|at| at as f32).collect();
    session.main().set_input("x", &values)?;
    // Empty rows may be refused with a typed error, but must not cause a division by zero.
    assert!(matches!(session.main().set_input("none", &[]), Ok(()) | Err(SessionError::Backend(_))));
    for wrong in [&values[..7], &[1.0; 72]] {
        assert!(matches!(session.main().set_input("x", wrong), Err(SessionError::Binding { .. })));
    }
    assert!(matches!(session.main().set_input("none", &[1.0]), Err(SessionError::Binding { .. })));
    session.main().run(&StepInput::default())?;
    let mut rows = [f32::NAN; 16];
    session.read("x", 6, &mut rows)?;
    assert_eq!(rows, values[48..]);
    assert!(matches!(session.read("none", 0, &mut []), Ok(()) | Err(SessionError::Backend(_))));
    session.read("x", 8, &mut [])?;
    for (first, len) in [(7, 16), (8, 8), (0, 7), (usize::MAX, 8)] {
        let found = session.read("x", first, &mut vec![0.0; len]);
        assert!(matches!(found, Err(SessionError::Binding { .. })), "{len} values from row {first}");
    }
    Ok(())
}

/// A plan without attention ignores sequences and pages; all other parts of a step are checked.
#[test]
fn steps_of_a_plan_without_attention_are_checked() -> Outcome {
    use crate::TokenId;
    let mut g = Graph::new();
    let table = g.matrix("table", 20, 8)?;
    let x = g.embed(table, 1.0)?;
    let x = g.outputs(x)?;
    g.output("x", x)?;
    let plan = g.compile(&options(Fusion::On))?;
    let dense = crate::quant::DenseValues::F32(vec![0.5; 160]);
    let dense = crate::quant::DenseMatrix::new(20, 8, dense).expect("a matrix");
    let matrices = vec![Reference.prepare(&crate::quant::WeightMatrix::Dense(dense))?];
    let mut session = Session::new(Reference, plan, Weights { matrices, vectors: Vec::new() }, None)?;
    let step = |tokens: usize, positions: usize, outputs: &[u32]| StepInput {
        tokens: vec![TokenId(19); tokens],
        positions: vec![0; positions],
        outputs: outputs.to_vec(),
        ..StepInput::default()
    };
    session.main().run(&step(8, 8, &[0, 3, 7]))?;
    let unknown = StepInput { tokens: vec![TokenId(20); 8], ..step(8, 8, &[0]) };
    for (wrong, why) in [
        (step(9, 9, &[0]), "more tokens"),
        (step(8, 7, &[0]), "position"),
        (step(8, 8, &[0, 1, 2, 3]), "more outputs"),
        (step(8, 8, &[1, 1]), "rise"),
        (step(8, 8, &[8]), "beyond"),
        (unknown, "vocabulary"),
    ] {
        let error = session.main().run(&wrong).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(session.steps(), 1, "what is refused is no step");
    Ok(())
}
