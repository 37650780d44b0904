//! Lowering: accepted and refused graphs, and the listing of a plan.

use super::*;
use crate::graph::{DeltaOperands, KvShape};
use crate::ir::DeltaHeads;

type Outcome = Result<(), GraphError>;

fn compile(g: &Graph) -> Result<Plan, GraphError> {
    g.compile(&options(Fusion::On))
}

/// Error text of a graph that does not compile.
fn refused(g: &Graph) -> String {
    compile(g).expect_err("cannot be compiled").to_string()
}

fn spec(layer: usize, heads: Heads) -> AttentionSpec {
    AttentionSpec { layer, heads, scale: 1.0, window: None, soft_cap: None }
}

/// A graph with q and k of [`HEADS`].
fn heads() -> Result<(Graph, NodeId, NodeId), GraphError> {
    let mut g = Graph::new();
    let q = g.input("q", Rows::Tokens, 32)?;
    let k = g.input("k", Rows::Tokens, 16)?;
    Ok((g, q, k))
}

fn normed(g: &mut Graph, x: NodeId, dim: usize) -> Result<NodeId, GraphError> {
    let w = g.vector(&format!("w{dim}"), dim)?;
    g.head_norm(x, dim, w, 1e-5)
}

#[test]
fn what_no_output_needs_costs_nothing() -> Outcome {
    let mut g = decoder(1, LLAMA)?;
    let whole = compile(&g)?;
    let (table, w) = (g.matrix("table", 20, 24)?, g.vector("final", 24)?);
    let x = g.embed(table, 1.0)?;
    let x = g.rms_norm(x, w, 1e-5)?;
    g.matmul(x, table)?;
    assert_eq!((compile(&g)?.ops(), compile(&g)?.arena_bytes()), (whole.ops(), whole.arena_bytes()));
    Ok(())
}

#[test]
fn layers_of_one_shape_of_keys_and_values_follow_each_other() -> Outcome {
    let with = |shapes: &[Heads]| -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        for (layer, heads) in shapes.iter().copied().enumerate() {
            let q = g.input(&format!("q{layer}"), Rows::Tokens, heads.query * heads.dim)?;
            let k = g.input(&format!("k{layer}"), Rows::Tokens, heads.kv * heads.dim)?;
            let a = g.attention(q, k, k, spec(layer, heads))?;
            g.output(&format!("a{layer}"), a)?;
        }
        Ok(g)
    };
    let layers = |plan: &Plan| -> Vec<(usize, usize)> {
        let pair = |pair: &[Op]| match pair {
            [Op::KvAppend(append), Op::Attention(attention)] => Some((append.layer, attention.layer)),
            _ => None,
        };
        plan.ops().windows(2).filter_map(pair).collect()
    };
    let plan = compile(&with(&[HEADS, Heads { query: 6, ..HEADS }])?)?;
    assert_eq!(plan.kv(), [KvShape { layers: 2, kv_heads: 2, head_dim: 8 }], "query heads may differ");
    let (wide, long) = (Heads { kv: 4, ..HEADS }, Heads { dim: 16, ..HEADS });
    let plan = compile(&with(&[HEADS, wide, HEADS, long, wide])?)?;
    let shape = |layers, kv_heads, head_dim| KvShape { layers, kv_heads, head_dim };
    assert_eq!(plan.kv(), [shape(2, 2, 8), shape(2, 4, 8), shape(1, 2, 16)]);
    assert_eq!(layers(&plan), [(0, 0), (2, 2), (1, 1), (4, 4), (3, 3)]);
    Ok(())
}

#[test]
fn the_pool_has_a_place_for_the_highest_layer() -> Outcome {
    let (mut g, q, k) = heads()?;
    for layer in [3, 1] {
        let a = g.attention(q, k, k, spec(layer, HEADS))?;
        g.output(&format!("a{layer}"), a)?;
    }
    assert_eq!(compile(&g)?.kv(), [KvShape { layers: 4, kv_heads: 2, head_dim: 8 }]);
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    g.output("x", x)?;
    assert_eq!((compile(&g)?.kv().len(), compile(&g)?.vocab()), (0, None));
    Ok(())
}

#[test]
fn tokens_are_below_the_rows_of_every_table() -> Outcome {
    let mut g = Graph::new();
    for (name, rows) in [("large", 30), ("small", 20), ("middle", 25)] {
        let table = g.matrix(name, rows, 8)?;
        let x = g.embed(table, 1.0)?;
        g.output(name, x)?;
    }
    assert_eq!(compile(&g)?.vocab(), Some(20));
    Ok(())
}

/// A head norm is an operation of its own, unless an attention over pages does it: then any other use is
/// refused, naming the node.
#[test]
fn head_norms_that_go_to_attention_and_elsewhere_are_refused() -> Outcome {
    let elsewhere = "may go nowhere else";
    // As an output or as v, with and without rotation.
    for turned in [false, true] {
        let (mut g, _, k) = heads()?;
        let mut x = normed(&mut g, k, 8)?;
        if turned {
            x = g.rope(x, 8, &rope_spec(8))?;
        }
        g.output("x", x)?;
        assert!(compile(&g)?.ops().iter().any(|op| op.name() == "head_norm"));
        let (mut g, q, k) = heads()?;
        let mut v = normed(&mut g, k, 8)?;
        if turned {
            v = g.rope(v, 8, &rope_spec(8))?;
        }
        let a = g.attention(q, k, v, spec(0, HEADS))?;
        g.output("a", a)?;
        assert!(compile(&g)?.ops().iter().any(|op| op.name() == "head_norm"));
    }
    // As q of an attention through a rotation, and additionally as an output.
    let (mut g, q, k) = heads()?;
    let q = normed(&mut g, q, 8)?;
    let (q, turned_k) = (g.rope(q, 8, &rope_spec(8))?, g.rope(k, 8, &rope_spec(8))?);
    let a = g.attention(q, turned_k, k, spec(0, HEADS))?;
    g.output("a", a)?;
    assert!(compile(&g).is_ok());
    g.output("q", q)?;
    assert!(refused(&g).contains(elsewhere), "{}", refused(&g));
    // As both k and v of an attention.
    let (mut g, q, k) = heads()?;
    let (q, k) = (normed(&mut g, q, 8)?, normed(&mut g, k, 8)?);
    let a = g.attention(q, k, k, spec(0, HEADS))?;
    g.output("a", a)?;
    assert!(refused(&g).contains(elsewhere), "v is a head norm: {}", refused(&g));
    Ok(())
}

#[test]
fn a_head_norm_of_other_heads_is_refused() -> Outcome {
    for turned in [false, true] {
        let (mut g, q, k) = heads()?;
        let (normed_dim, turned_dim) = if turned { (8, 4) } else { (4, 8) };
        let q = normed(&mut g, q, normed_dim)?;
        let q = g.rope(q, turned_dim, &rope_spec(4))?;
        let turned_k = g.rope(k, 8, &rope_spec(4))?;
        let a = g.attention(q, turned_k, k, spec(0, HEADS))?;
        g.output("a", a)?;
        assert!(refused(&g).contains("of 4 elements, heads of 8"), "{}", refused(&g));
    }
    // Without a head norm the rotation is a separate operation, for heads of any size.
    let (mut g, q, k) = heads()?;
    let (q, turned_k) = (g.rope(q, 4, &rope_spec(4))?, g.rope(k, 4, &rope_spec(4))?);
    let a = g.attention(q, turned_k, k, spec(0, HEADS))?;
    g.output("a", a)?;
    compile(&g).map(drop)
}

#[test]
fn behind_a_head_norm_both_sides_turn_alike() -> Outcome {
    let both = |q_spec: Option<RopeSpec>, k_spec: Option<RopeSpec>, k_normed: bool| {
        let (mut g, q, v) = heads()?;
        let mut q = normed(&mut g, q, 8)?;
        let mut k = if k_normed { normed(&mut g, v, 8)? } else { v };
        for (x, spec) in [(&mut q, q_spec), (&mut k, k_spec)] {
            if let Some(spec) = spec {
                *x = g.rope(*x, 8, &spec)?;
            }
        }
        let a = g.attention(q, k, v, spec(0, HEADS))?;
        g.output("a", a)?;
        Ok::<_, GraphError>(g)
    };
    let (one, other) = (rope_spec(8), rope_spec(4));
    for k_normed in [true, false] {
        compile(&both(Some(one.clone()), Some(one.clone()), k_normed)?)?;
        compile(&both(None, None, k_normed)?)?;
        let different = [
            (Some(one.clone()), Some(other.clone())),
            (Some(one.clone()), None),
            (Some(one.clone()), Some(RopeSpec { magnitude: 2.0, ..one.clone() })),
            (Some(one.clone()), Some(RopeSpec { pairing: RopePairing::Interleaved, ..one.clone() })),
        ];
        for (q, k) in different {
            let error = refused(&both(q, k, k_normed)?);
            assert!(error.contains("need the same rotation behind it"), "{error}");
        }
    }
    Ok(())
}

#[test]
fn a_rotation_shared_with_a_head_norms_attention_is_refused() -> Outcome {
    let (mut g, q, v) = heads()?;
    let shared = g.rope(v, 8, &rope_spec(8))?;
    let first = normed(&mut g, q, 8)?;
    let first = g.rope(first, 8, &rope_spec(8))?;
    let a = g.attention(first, shared, v, spec(0, HEADS))?;
    let second = g.rope(q, 8, &rope_spec(8))?;
    let b = g.attention(second, shared, v, spec(1, HEADS))?;
    g.output("a", a)?;
    g.output("b", b)?;
    assert!(refused(&g).contains("shares its rotation"), "{}", refused(&g));
    Ok(())
}

/// Angles depend on frequencies and magnitude, not on the pairing of elements.
#[test]
fn rotations_share_angles_if_they_turn_as_fast() -> Outcome {
    let angles = |other: RopeSpec| -> Result<usize, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", Rows::Tokens, 16)?;
        for (name, spec) in [("one", rope_spec(8)), ("other", other)] {
            let y = g.rope(x, 8, &spec)?;
            g.output(name, y)?;
        }
        Ok(compile(&g)?.ops().iter().filter(|op| op.name() == "rope_angles").count())
    };
    assert_eq!(angles(rope_spec(8))?, 1);
    assert_eq!(angles(RopeSpec { pairing: RopePairing::Interleaved, ..rope_spec(8) })?, 1);
    assert_eq!(angles(RopeSpec { magnitude: 1.5, ..rope_spec(8) })?, 2);
    assert_eq!(angles(rope_spec(4))?, 2);
    Ok(())
}

/// Attention parameters come from the node: scale, window, cap, heads, layer.
#[test]
fn an_attention_keeps_what_its_node_says() -> Outcome {
    let (mut g, q, k) = heads()?;
    let said = AttentionSpec { layer: 2, heads: HEADS, scale: 0.125, window: Some(7), soft_cap: Some(30.0) };
    let a = g.attention(q, k, k, said)?;
    g.output("a", a)?;
    let plan = compile(&g)?;
    let found = plan
        .ops()
        .iter()
        .find_map(|op| if let Op::Attention(found) = op { Some(found.clone()) } else { None });
    let found = found.expect("an attention");
    assert_eq!(
        (found.layer, found.heads, found.scale, found.window, found.soft_cap),
        (2, HEADS, 0.125, Some(7), Some(30.0))
    );
    Ok(())
}

/// Listing of every kind of operation.
#[test]
fn the_listing_of_every_operation() -> Outcome {
    let mut g = Graph::new();
    let (table, w) = (g.matrix("table", 20, 16)?, g.vector("w", 16)?);
    let head = g.vector("head", 8)?;
    let x = g.embed(table, 1.5)?;
    let h = g.rms_norm(x, w, 1e-5)?;
    let (mq, mk, bias) = (g.matrix("q", 32, 16)?, g.matrix("k", 16, 16)?, g.vector("bias", 16)?);
    let (q, k) = (g.matmul(h, mq)?, g.matmul_bias(h, mk, bias)?);
    let v = g.soft_cap(k, 5.0)?;
    let (q, k) = (g.head_norm(q, 8, head, 1e-5)?, g.head_norm(k, 8, head, 1e-5)?);
    let (q, k) = (g.rope(q, 8, &rope_spec(8))?, g.rope(k, 8, &rope_spec(8))?);
    let said = AttentionSpec { layer: 0, heads: HEADS, scale: 0.5, window: Some(9), soft_cap: Some(50.0) };
    let a = g.attention(q, k, v, said)?;
    let out = g.matrix("out", 16, 32)?;
    let o = g.matmul(a, out)?;
    let x = g.add(x, o)?;
    let turned = g.rope(v, 8, &rope_spec(8))?;
    let x = g.mul(x, turned)?;
    let x = g.outputs(x)?;
    let token = g.sample(x)?;
    g.output("token", token)?;
    let f = g.input("f", Rows::Fixed(2), 16)?;
    let t = g.softmax(f)?;
    let t = g.transpose(t)?;
    let t = g.cast(t, Precision::F16)?;
    let t = g.scale(t, 3.0)?;
    let t = g.activation(t, Activation::Silu)?;
    g.output("t", t)?;
    let (window, state) = (g.state("window", 2, 16)?, g.state("delta", 8, 8)?);
    let r = g.input("r", Rows::Tokens, 16)?;
    let taps = g.vector("taps", 48)?;
    let c = g.short_conv(r, taps, window)?;
    let (short, gate) = (g.input("short", Rows::Tokens, 4)?, g.input("gate", Rows::Tokens, 2)?);
    let heads = DeltaHeads { key: 1, value: 2, key_dim: 4, value_dim: 8 };
    let operands = DeltaOperands { q: short, k: short, v: c, decay: gate, beta: gate };
    let d = g.gated_delta(operands, heads, 0.5, state)?;
    g.output("d", d)?;
    let text =
        g.compile(&CompileOptions { activations: Precision::Bf16, ..options(Fusion::On) })?.to_string();
    assert_eq!(text, include_str!("listing.txt"), "{text}");
    Ok(())
}
