//! Conditions of the fusion passes: one test for each pattern that must not be fused. Where the order in
//! [`fuse::fuse`] would hide a condition, the passes are called in another order.

use super::*;
use crate::ir::Binary;

type Outcome = Result<(), GraphError>;

/// A graph with an input `x` of eight columns.
fn with_x() -> Result<(Graph, NodeId), GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8)?;
    Ok((g, x))
}

fn product(g: &mut Graph, x: NodeId, name: &str) -> Result<NodeId, GraphError> {
    let m = g.matrix(name, 8, 8)?;
    g.matmul(x, m)
}

/// Names of the operations after a pass over the graph with `outputs`.
fn after(
    g: &mut Graph,
    outputs: &[NodeId],
    pass: impl FnOnce(&mut Ssa),
) -> Result<Vec<&'static str>, GraphError> {
    for (at, &node) in outputs.iter().enumerate() {
        g.output(&format!("out{at}"), node)?;
    }
    let mut program = lower(g, Precision::F32)?;
    pass(&mut program);
    Ok(names(&program))
}

/// Asserts that `pass` leaves the operations of the graph unchanged.
fn assert_stays(mut g: Graph, outputs: &[NodeId], pass: impl FnOnce(&mut Ssa)) -> Outcome {
    let before = after(&mut g.clone(), outputs, |_| {})?;
    assert_eq!(after(&mut g, outputs, pass)?, before);
    Ok(())
}

/// A graph with q, and a shared k and v, as inputs.
fn heads() -> Result<(Graph, NodeId, NodeId), GraphError> {
    let mut g = Graph::new();
    let q = g.input("q", Rows::Tokens, 32)?;
    let k = g.input("k", Rows::Tokens, 16)?;
    Ok((g, q, k))
}

fn attend(g: &mut Graph, q: NodeId, k: NodeId, v: NodeId, layer: usize) -> Result<NodeId, GraphError> {
    g.attention(q, k, v, AttentionSpec { layer, heads: HEADS, scale: 1.0, window: None, soft_cap: None })
}

#[test]
fn a_rotation_that_something_else_reads_stays() -> Outcome {
    for both in [0, 1] {
        let (mut g, q, k) = heads()?;
        let (turned_q, turned_k) = (g.rope(q, 8, &rope_spec(8))?, g.rope(k, 8, &rope_spec(8))?);
        let a = attend(&mut g, turned_q, turned_k, k, 0)?;
        let other = g.scale([turned_q, turned_k][both], 2.0)?;
        assert_stays(g, &[a, other], fuse::rope_into_append)?;
    }
    Ok(())
}

#[test]
fn a_rotation_that_is_an_output_stays() -> Outcome {
    for both in [0, 1] {
        let (mut g, q, k) = heads()?;
        let (turned_q, turned_k) = (g.rope(q, 8, &rope_spec(8))?, g.rope(k, 8, &rope_spec(8))?);
        let a = attend(&mut g, turned_q, turned_k, k, 0)?;
        assert_stays(g, &[a, [turned_q, turned_k][both]], fuse::rope_into_append)?;
    }
    Ok(())
}

#[test]
fn a_rotation_of_one_side_alone_stays() -> Outcome {
    for side in [0, 1] {
        let (mut g, mut q, mut k) = heads()?;
        let v = k;
        let turned = [&mut q, &mut k][side].to_owned();
        let turned = g.rope(turned, 8, &rope_spec(8))?;
        *[&mut q, &mut k][side] = turned;
        let a = attend(&mut g, q, k, v, 0)?;
        assert_stays(g, &[a], fuse::rope_into_append)?;
    }
    Ok(())
}

/// The append rotates heads of its own size, with one rotation for q and k.
#[test]
fn rotations_of_other_heads_or_other_pairs_stay() -> Outcome {
    let interleaved = RopeSpec { pairing: RopePairing::Interleaved, ..rope_spec(8) };
    let cases = [
        (8, rope_spec(4), 4, rope_spec(4)),
        (4, rope_spec(4), 8, rope_spec(4)),
        (8, rope_spec(8), 8, interleaved),
    ];
    for (q_dim, q_spec, k_dim, k_spec) in cases {
        let (mut g, q, k) = heads()?;
        let (turned_q, turned_k) = (g.rope(q, q_dim, &q_spec)?, g.rope(k, k_dim, &k_spec)?);
        let a = attend(&mut g, turned_q, turned_k, k, 0)?;
        assert_stays(g, &[a], fuse::rope_into_append)?;
    }
    Ok(())
}

/// A rotation before a head norm cannot be fused like one after it.
#[test]
fn rotations_before_a_head_norm_stay() -> Outcome {
    for (normed_q, normed_k, turned_again) in
        [(true, true, false), (true, false, false), (false, true, false), (true, true, true)]
    {
        let (mut g, q, k) = heads()?;
        let w = g.vector("w", 8)?;
        let (mut q, mut turned_k) = (g.rope(q, 8, &rope_spec(8))?, g.rope(k, 8, &rope_spec(8))?);
        if normed_q {
            q = g.head_norm(q, 8, w, 1e-5)?;
        }
        if normed_k {
            turned_k = g.head_norm(turned_k, 8, w, 1e-5)?;
        }
        if turned_again {
            (q, turned_k) = (g.rope(q, 8, &rope_spec(4))?, g.rope(turned_k, 8, &rope_spec(4))?);
        }
        let a = attend(&mut g, q, turned_k, k, 0)?;
        assert_stays(g, &[a], fuse::rope_into_append)?;
    }
    Ok(())
}

#[test]
fn a_norm_of_a_norm_goes_into_no_matmul() -> Outcome {
    let (mut g, x) = with_x()?;
    let w = g.vector("w", 8)?;
    let h = g.rms_norm(x, w, 1e-5)?;
    let h = g.rms_norm(h, w, 1e-5)?;
    let y = product(&mut g, h, "m")?;
    assert_eq!(after(&mut g, &[y], fuse::norm_into_matmul)?, ["norm", "matmul"]);
    Ok(())
}

/// The residual is not part of the norm's source.
#[test]
fn a_norm_that_is_added_goes_into_no_matmul() -> Outcome {
    let (mut g, x) = with_x()?;
    let w = g.vector("w", 8)?;
    let (x, other) = (g.scale(x, 2.0)?, g.scale(x, 3.0)?);
    let h = g.rms_norm(other, w, 1e-5)?;
    let sum = g.add(x, h)?;
    let y = product(&mut g, sum, "m")?;
    let pass = |program: &mut Ssa| {
        fuse::add_norms_to_residual(program);
        fuse::norm_into_matmul(program);
    };
    assert_eq!(after(&mut g, &[y], pass)?, ["unary", "unary", "norm", "matmul"]);
    Ok(())
}

/// A matmul added to the norm's result reads it as the residual, not as its source.
#[test]
fn a_norm_that_a_matmul_is_added_to_stays() -> Outcome {
    let (mut g, x) = with_x()?;
    let w = g.vector("w", 8)?;
    let h = g.rms_norm(x, w, 1e-5)?;
    let y = product(&mut g, x, "m")?;
    let sum = g.add(h, y)?;
    let pass = |program: &mut Ssa| {
        fuse::add_products_to_residual(program);
        fuse::norm_into_matmul(program);
    };
    assert_eq!(after(&mut g, &[sum], pass)?, ["norm", "matmul"]);
    Ok(())
}

/// Matmuls of one source are merged only under equal norms.
#[test]
fn matmuls_under_different_norms_stay_apart() -> Outcome {
    let (mut g, x) = with_x()?;
    let (w, other) = (g.vector("w", 8)?, g.vector("other", 8)?);
    let sources = [g.rms_norm(x, w, 1e-5)?, g.rms_norm(x, other, 1e-5)?, g.rms_norm(x, w, 1e-6)?, x];
    let products = ["a", "b", "c", "d"].map(|name| product(&mut g, sources[0], name));
    let mut outputs = products.into_iter().collect::<Result<Vec<_>, _>>()?;
    for source in &sources[1..] {
        outputs.push(product(&mut g, *source, "e")?);
    }
    let pass = |program: &mut Ssa| {
        fuse::norm_into_matmul(program);
        fuse::merge_shared_sources(program);
    };
    // The four under the first norm are merged; the three others are separate.
    assert_eq!(after(&mut g, &outputs, pass)?, ["matmul"; 4]);
    Ok(())
}

#[test]
fn matmuls_of_different_sources_stay_apart() -> Outcome {
    let (mut g, x) = with_x()?;
    let other = g.input("other", Rows::Tokens, 8)?;
    let (a, b) = (product(&mut g, x, "m")?, product(&mut g, other, "m")?);
    assert_stays(g, &[a, b], fuse::merge_shared_sources)
}

/// The residual of a matmul may not be defined yet at the first matmul of the same source.
#[test]
fn a_matmul_that_is_added_to_something_moves_nowhere() -> Outcome {
    let (mut g, x) = with_x()?;
    let a = product(&mut g, x, "a")?;
    let later = g.softmax(a)?;
    let b = product(&mut g, x, "b")?;
    let sum = g.add(later, b)?;
    let pass = |program: &mut Ssa| {
        fuse::add_products_to_residual(program);
        fuse::merge_shared_sources(program);
    };
    assert_eq!(after(&mut g, &[sum], pass)?, ["matmul", "softmax", "matmul"]);
    Ok(())
}

/// Variations of the families' gated MLP.
struct GateParts {
    gate_bias: bool,
    up_bias: bool,
    own_source: bool,
    added: bool,
    scaled: bool,
}

const GATE: GateParts =
    GateParts { gate_bias: false, up_bias: false, own_source: false, added: false, scaled: false };

/// The graph with its gate, activated gate, up and result.
fn gated(parts: &GateParts) -> Result<(Graph, [NodeId; 4]), GraphError> {
    let (mut g, x) = with_x()?;
    let other = g.input("other", Rows::Tokens, 8)?;
    let bias = g.vector("bias", 8)?;
    let (gate_m, up_m) = (g.matrix("gate", 8, 8)?, g.matrix("up", 8, 8)?);
    let gate = if parts.gate_bias { g.matmul_bias(x, gate_m, bias) } else { g.matmul(x, gate_m) }?;
    let source = if parts.own_source { other } else { x };
    let up = if parts.up_bias { g.matmul_bias(source, up_m, bias) } else { g.matmul(source, up_m) }?;
    let activated = if parts.scaled { g.scale(gate, 2.0) } else { g.activation(gate, Activation::Silu) }?;
    let y = if parts.added { g.add(activated, up) } else { g.mul(activated, up) }?;
    Ok((g, [gate, activated, up, y]))
}

fn merge_and_gate(program: &mut Ssa) {
    fuse::merge_shared_sources(program);
    fuse::gate_products(program);
}

#[test]
fn what_is_no_gate_is_not_gated() -> Outcome {
    let (mut g, [.., y]) = gated(&GATE)?;
    assert_eq!(after(&mut g, &[y], merge_and_gate)?, ["matmul"], "the plain one is");
    let merged = ["matmul", "unary", "binary"];
    for parts in [
        GateParts { gate_bias: true, ..GATE },
        GateParts { up_bias: true, ..GATE },
        GateParts { added: true, ..GATE },
        GateParts { scaled: true, ..GATE },
    ] {
        let (mut g, [.., y]) = gated(&parts)?;
        assert_eq!(after(&mut g, &[y], merge_and_gate)?, merged);
    }
    let (mut g, [.., y]) = gated(&GateParts { own_source: true, ..GATE })?;
    assert_eq!(after(&mut g, &[y], merge_and_gate)?, ["matmul", "matmul", "unary", "binary"]);
    Ok(())
}

#[test]
fn a_gate_whose_parts_are_outputs_or_read_again_stays() -> Outcome {
    for part in 0..3 {
        let (mut g, nodes) = gated(&GATE)?;
        assert_eq!(after(&mut g, &[nodes[3], nodes[part]], merge_and_gate)?, ["matmul", "unary", "binary"]);
        let (mut g, nodes) = gated(&GATE)?;
        let again = g.softmax(nodes[part])?;
        let found = after(&mut g, &[nodes[3], again], merge_and_gate)?;
        assert!(found.contains(&"unary") && found.contains(&"binary"), "part {part}: {found:?}");
    }
    Ok(())
}

/// A product that is already gated or added accepts no second epilogue.
#[test]
fn a_product_with_an_epilogue_takes_no_other() -> Outcome {
    let (mut g, [.., y]) = gated(&GATE)?;
    let residual = g.input("residual", Rows::Tokens, 8)?;
    let zero = g.scale(residual, 1.0)?;
    let sum = g.add(zero, y)?;
    let pass = |program: &mut Ssa| {
        merge_and_gate(program);
        fuse::add_products_to_residual(program);
    };
    assert_eq!(after(&mut g, &[sum], pass)?, ["matmul", "unary", "binary"]);

    let (mut g, x) = with_x()?;
    let (first, second) = (g.scale(x, 2.0)?, g.scale(x, 3.0)?);
    let y = product(&mut g, x, "m")?;
    let y = g.add(first, y)?;
    let sum = g.add(second, y)?;
    let pass = |program: &mut Ssa| {
        fuse::add_products_to_residual(program);
        fuse::add_products_to_residual(program);
    };
    assert_eq!(after(&mut g, &[sum], pass)?, ["unary", "unary", "matmul", "binary"]);

    let (mut g, x) = with_x()?;
    let w = g.vector("w", 8)?;
    let (first, second) = (g.scale(x, 2.0)?, g.scale(x, 3.0)?);
    let y = g.rms_norm(x, w, 1e-5)?;
    let y = g.add(first, y)?;
    let sum = g.add(second, y)?;
    let pass = |program: &mut Ssa| {
        fuse::add_norms_to_residual(program);
        fuse::add_norms_to_residual(program);
    };
    assert_eq!(after(&mut g, &[sum], pass)?, ["unary", "unary", "norm", "binary"]);
    Ok(())
}

/// A residual for the tests: `2x`.
fn residual(g: &mut Graph, x: NodeId) -> Result<NodeId, GraphError> {
    g.scale(x, 2.0)
}

#[test]
fn a_product_is_added_whichever_side_it_is_on_and_multiplied_on_none() -> Outcome {
    for swapped in [false, true] {
        let (mut g, x) = with_x()?;
        let (r, y) = (residual(&mut g, x)?, product(&mut g, x, "m")?);
        let sum = if swapped { g.add(y, r) } else { g.add(r, y) }?;
        assert_eq!(after(&mut g, &[sum], fuse::add_products_to_residual)?, ["unary", "matmul"]);
    }
    let (mut g, x) = with_x()?;
    let (r, y) = (residual(&mut g, x)?, product(&mut g, x, "m")?);
    let y = g.mul(r, y)?;
    assert_stays(g, &[y], fuse::add_products_to_residual)
}

/// The sum of two products is computed by the second one, with the first as its residual.
#[test]
fn of_two_products_one_is_added_to_the_other() -> Outcome {
    let (mut g, x) = with_x()?;
    let other = g.input("other", Rows::Tokens, 8)?;
    let (a, b) = (product(&mut g, x, "a")?, product(&mut g, other, "b")?);
    let sum = g.add(a, b)?;
    g.output("sum", sum)?;
    let mut program = lower(&g, Precision::F32)?;
    fuse::add_products_to_residual(&mut program);
    let epilogues: Vec<Epilogue> = program
        .instrs
        .iter()
        .filter_map(
            |step| if let Op::Matmul(matmul) = &step.op { Some(matmul.products[0].epilogue) } else { None },
        )
        .collect();
    assert_eq!(epilogues, [Epilogue::Write(WriteMode::Store), Epilogue::Write(WriteMode::Add)]);
    assert_eq!(names(&program), ["matmul", "matmul"]);
    assert_eq!(program.instrs[1].renames.len(), 1);
    Ok(())
}

#[test]
fn a_term_that_is_an_output_or_read_again_is_not_added_in_place() -> Outcome {
    let w = |g: &mut Graph| g.vector("w", 8);
    for again in [false, true] {
        let (mut g, x) = with_x()?;
        let (r, y) = (residual(&mut g, x)?, product(&mut g, x, "m")?);
        let sum = g.add(r, y)?;
        let other = if again { g.softmax(y)? } else { y };
        assert_stays(g, &[sum, other], fuse::add_products_to_residual)?;
        let (mut g, x) = with_x()?;
        let w = w(&mut g)?;
        let (r, y) = (residual(&mut g, x)?, g.rms_norm(x, w, 1e-5)?);
        let sum = g.add(r, y)?;
        let other = if again { g.softmax(y)? } else { y };
        assert_stays(g, &[sum, other], fuse::add_norms_to_residual)?;
    }
    Ok(())
}

/// Residuals that may not be overwritten: an input, an output, one defined after the term, and one that the
/// term's own step reads.
#[test]
fn a_residual_that_may_not_be_overwritten_stays() -> Outcome {
    let (mut g, x) = with_x()?;
    let y = product(&mut g, x, "m")?;
    let sum = g.add(x, y)?;
    assert_stays(g, &[sum], fuse::add_products_to_residual)?;

    let (mut g, x) = with_x()?;
    let (r, y) = (residual(&mut g, x)?, product(&mut g, x, "m")?);
    let sum = g.add(r, y)?;
    assert_stays(g, &[sum, r], fuse::add_products_to_residual)?;

    let (mut g, x) = with_x()?;
    let y = product(&mut g, x, "m")?;
    let r = residual(&mut g, x)?;
    let sum = g.add(r, y)?;
    assert_stays(g, &[sum], fuse::add_products_to_residual)?;

    let (mut g, x) = with_x()?;
    let r = residual(&mut g, x)?;
    let y = product(&mut g, r, "m")?;
    let sum = g.add(r, y)?;
    assert_stays(g, &[sum], fuse::add_products_to_residual)?;

    // A reader between the term and the sum.
    let (mut g, x) = with_x()?;
    let (r, y) = (residual(&mut g, x)?, product(&mut g, x, "m")?);
    let between = g.softmax(r)?;
    let sum = g.add(r, y)?;
    assert_stays(g, &[sum, between], fuse::add_products_to_residual)?;

    // A reader before the term does not prevent the fusion.
    let (mut g, x) = with_x()?;
    let r = residual(&mut g, x)?;
    let before = g.softmax(r)?;
    let y = product(&mut g, x, "m")?;
    let sum = g.add(r, y)?;
    let found = after(&mut g, &[sum, before], fuse::add_products_to_residual)?;
    assert_eq!(found, ["unary", "softmax", "matmul"]);
    Ok(())
}

/// A broadcast row can be neither term nor residual of an in-place addition.
#[test]
fn one_row_for_all_is_not_added_in_place() -> Outcome {
    let (mut g, x) = with_x()?;
    let row = g.input("row", Rows::Fixed(1), 8)?;
    let (r, y) = (residual(&mut g, x)?, product(&mut g, row, "m")?);
    let sum = g.add(r, y)?;
    assert_stays(g, &[sum], fuse::add_products_to_residual)?;
    let (mut g, x) = with_x()?;
    let row = g.input("row", Rows::Fixed(1), 8)?;
    let (r, y) = (g.scale(row, 2.0)?, product(&mut g, x, "m")?);
    let sum = g.add(y, r)?;
    assert_stays(g, &[sum], fuse::add_products_to_residual)
}

/// A 16-bit residual cannot hold a sum in f32.
#[test]
fn a_residual_of_another_precision_stays() -> Outcome {
    let (mut g, x) = with_x()?;
    let narrow = g.cast(x, Precision::F16)?;
    let y = product(&mut g, x, "m")?;
    let wide = g.cast(y, Precision::F32)?;
    let y = product(&mut g, wide, "n")?;
    let sum = g.add(narrow, y)?;
    let wide_sum = g.add(sum, x)?;
    g.output("out", wide_sum)?;
    let program = lower(&g, Precision::Bf16)?;
    // In f16 the sum has the shape of its residual and is added in place.
    let mut same = program.clone();
    fuse::add_products_to_residual(&mut same);
    assert_eq!(names(&same).iter().filter(|name| **name == "binary").count(), 1);
    // With an f32 sum it is not.
    let mut other = program;
    let sum_value = other.instrs.iter().find_map(|step| match step.op {
        Op::Binary(Binary { dst, .. }) => Some(dst.offset),
        _ => None,
    });
    other.values[sum_value.expect("a sum")].precision = Precision::F32;
    fuse::add_products_to_residual(&mut other);
    assert_eq!(names(&other).iter().filter(|name| **name == "binary").count(), 2);
    Ok(())
}
