//! Compiler tests: the fusion passes, liveness, and equal results of fused and unfused plans.

mod binding;
mod layout;
mod lowering;
mod numeric;
mod refusals;

use std::sync::Arc;

use proptest::prelude::*;

use crate::ir::{
    Activation, Epilogue, Heads, Normalize, Op, Place, Precision, RopePairing, Rows, StepLimits, WriteMode,
};

use super::arena::{ALIGN, Slot, first_fit, lay_out};
use super::lower::lower;
use super::ssa::Ssa;
use super::{AttentionSpec, CompileOptions, Dtype, Fusion, Graph, GraphError, NodeId, Plan, RopeSpec, fuse};
use crate::ir::Access;

pub(super) const LIMITS: StepLimits = StepLimits { tokens_max: 8, outputs_max: 3 };

pub(super) fn f64_bytes(_: Precision) -> usize {
    8
}

pub(super) fn options(fuse: Fusion) -> CompileOptions<'static> {
    CompileOptions { limits: LIMITS, element_bytes: &f64_bytes, fuse, activations: Precision::F32 }
}

pub(super) fn rope_spec(dims: usize) -> RopeSpec {
    let inv_freq: Vec<f64> = (0..dims / 2).map(|i| 10000_f64.powf(-2.0 * i as f64 / dims as f64)).collect();
    RopeSpec { dims, inv_freq: Arc::from(inv_freq), magnitude: 1.0, pairing: RopePairing::Halves }
}

const HEADS: Heads = Heads { query: 4, kv: 2, dim: 8 };

/// Optional parts of the test decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub head_norms: bool,
    pub sandwich: bool,
    pub biases: bool,
}

/// A small decoder with `layers` layers, in the structure of the model families.
pub(super) fn decoder(layers: usize, parts: Parts) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let table = g.matrix("table", 20, 24)?;
    let mut x = g.embed(table, 1.5)?;
    for layer in 0..layers {
        x = attention_block(&mut g, x, layer, parts)?;
        x = mlp_block(&mut g, x, layer, parts)?;
    }
    let x = g.outputs(x)?;
    let w = g.vector("final", 24)?;
    let x = g.rms_norm(x, w, 1e-5)?;
    let x = g.matmul(x, table)?;
    g.output("logits", x)?;
    Ok(g)
}

fn attention_block(g: &mut Graph, x: NodeId, layer: usize, parts: Parts) -> Result<NodeId, GraphError> {
    let name = |part: &str| format!("{layer}.{part}");
    let w = g.vector(&name("attn_norm"), 24)?;
    let h = g.rms_norm(x, w, 1e-5)?;
    let mut project = |part: &str, heads: usize| {
        let m = g.matrix(&name(part), heads * HEADS.dim, 24)?;
        if !parts.biases {
            return g.matmul(h, m);
        }
        let bias = g.vector(&name(&format!("{part}.bias")), heads * HEADS.dim)?;
        g.matmul_bias(h, m, bias)
    };
    let (mut q, mut k, v) = (project("q", HEADS.query)?, project("k", HEADS.kv)?, project("v", HEADS.kv)?);
    if parts.head_norms {
        let (qw, kw) = (g.vector(&name("q_norm"), HEADS.dim)?, g.vector(&name("k_norm"), HEADS.dim)?);
        q = g.head_norm(q, HEADS.dim, qw, 1e-5)?;
        k = g.head_norm(k, HEADS.dim, kw, 1e-5)?;
    }
    let spec = rope_spec(HEADS.dim);
    let (q, k) = (g.rope(q, HEADS.dim, &spec)?, g.rope(k, HEADS.dim, &spec)?);
    let spec = AttentionSpec { layer, heads: HEADS, scale: 0.35, window: None, soft_cap: None };
    let a = g.attention(q, k, v, spec)?;
    let m = g.matrix(&name("o"), 24, 32)?;
    let o = g.matmul(a, m)?;
    add_block(g, x, o, &name("post_attn"), parts)
}

fn mlp_block(g: &mut Graph, x: NodeId, layer: usize, parts: Parts) -> Result<NodeId, GraphError> {
    let name = |part: &str| format!("{layer}.{part}");
    let w = g.vector(&name("mlp_norm"), 24)?;
    let h = g.rms_norm(x, w, 1e-5)?;
    let (gate, up) = (g.matrix(&name("gate"), 40, 24)?, g.matrix(&name("up"), 40, 24)?);
    let (gate, up) = (g.matmul(h, gate)?, g.matmul(h, up)?);
    let gate = g.activation(gate, Activation::Silu)?;
    let h = g.mul(gate, up)?;
    let m = g.matrix(&name("down"), 24, 40)?;
    let y = g.matmul(h, m)?;
    add_block(g, x, y, &name("post_mlp"), parts)
}

fn add_block(g: &mut Graph, x: NodeId, y: NodeId, norm: &str, parts: Parts) -> Result<NodeId, GraphError> {
    if !parts.sandwich {
        return g.add(x, y);
    }
    let w = g.vector(norm, 24)?;
    let y = g.rms_norm(y, w, 1e-5)?;
    g.add(x, y)
}

const LLAMA: Parts = Parts { head_norms: false, sandwich: false, biases: false };
const QWEN2: Parts = Parts { biases: true, ..LLAMA };
const QWEN3: Parts = Parts { head_norms: true, ..LLAMA };
const GEMMA: Parts = Parts { sandwich: true, ..QWEN3 };

fn program(g: &Graph) -> Ssa {
    lower(g, Precision::F32).expect("lowers")
}

fn names(program: &Ssa) -> Vec<&'static str> {
    program.instrs.iter().map(|step| step.op.name()).collect()
}

#[test]
fn a_llama_layer_becomes_five_operations() {
    let g = decoder(1, LLAMA).expect("builds");
    let plan = g.compile(&options(Fusion::On)).expect("compiles");
    let names: Vec<&str> = plan.ops().iter().map(Op::name).collect();
    let layer = ["matmul", "kv_append", "attention", "matmul", "matmul", "matmul"];
    let expected = [&["rope_angles", "embed"][..], &layer, &["gather_outputs", "matmul"]].concat();
    assert_eq!(names, expected, "{plan}");
}

#[test]
fn sandwich_norms_are_added_in_place() {
    let g = decoder(1, GEMMA).expect("builds");
    let plan = g.compile(&options(Fusion::On)).expect("compiles");
    let added = |op: &&Op| matches!(op, Op::Norm(Normalize { write: WriteMode::Add, .. }));
    assert_eq!(plan.ops().iter().filter(added).count(), 2, "{plan}");
    assert!(!plan.ops().iter().any(|op| matches!(op, Op::Binary(_))), "{plan}");
}

#[test]
fn rotation_goes_into_the_append() {
    let mut program = program(&decoder(1, LLAMA).expect("builds"));
    let before = names(&program);
    assert_eq!(before.iter().filter(|name| **name == "rope").count(), 2);
    fuse::rope_into_append(&mut program);
    assert!(!names(&program).contains(&"rope"));
    let rotates = |op: &Op| matches!(op, Op::KvAppend(append) if append.rope.is_some());
    assert!(program.instrs.iter().any(|step| rotates(&step.op)));
}

#[test]
fn different_rotations_of_q_and_k_stay_apart() {
    let mut g = Graph::new();
    let q = g.input("q", Rows::Tokens, 32).expect("q");
    let k = g.input("k", Rows::Tokens, 16).expect("k");
    let rotated = g.rope(q, 8, &rope_spec(8)).expect("rope");
    let other = g.rope(k, 8, &rope_spec(4)).expect("rope");
    let spec = AttentionSpec { layer: 0, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
    let a = g.attention(rotated, other, k, spec).expect("attention");
    g.output("a", a).expect("output");
    let mut program = program(&g);
    fuse::rope_into_append(&mut program);
    assert_eq!(names(&program).iter().filter(|name| **name == "rope").count(), 2);
    assert_eq!(names(&program).iter().filter(|name| **name == "rope_angles").count(), 2);
}

#[test]
fn a_norm_goes_into_the_matmuls_that_read_it() {
    let mut program = program(&decoder(1, LLAMA).expect("builds"));
    fuse::norm_into_matmul(&mut program);
    assert!(!names(&program).contains(&"norm"));
    let normed = |op: &Op| matches!(op, Op::Matmul(matmul) if matmul.norm.is_some());
    assert_eq!(program.instrs.iter().filter(|step| normed(&step.op)).count(), 6);
}

#[test]
fn a_norm_that_something_else_reads_stays() {
    let mut g = Graph::new();
    let (x, w, m) = (
        g.input("x", Rows::Tokens, 8).expect("x"),
        g.vector("w", 8).expect("w"),
        g.matrix("m", 8, 8).expect("m"),
    );
    let h = g.rms_norm(x, w, 1e-5).expect("norm");
    let y = g.matmul(h, m).expect("matmul");
    let y = g.add(h, y).expect("add");
    g.output("y", y).expect("output");
    let mut program = program(&g);
    fuse::norm_into_matmul(&mut program);
    assert_eq!(names(&program), ["norm", "matmul", "binary"]);
    // The other reader of the norm is the sum. The product cannot be added to the norm in place, because the
    // norm is also the matmul's own source.
    fuse::add_products_to_residual(&mut program);
    assert_eq!(names(&program), ["norm", "matmul", "binary"]);
}

#[test]
fn matmuls_of_one_source_become_one() {
    let mut program = program(&decoder(1, QWEN2).expect("builds"));
    fuse::norm_into_matmul(&mut program);
    fuse::merge_shared_sources(&mut program);
    let products: Vec<usize> = program
        .instrs
        .iter()
        .filter_map(|step| if let Op::Matmul(matmul) = &step.op { Some(matmul.products.len()) } else { None })
        .collect();
    assert_eq!(products, [3, 1, 2, 1, 1]);
}

#[test]
fn the_gate_becomes_an_epilogue_whichever_side_it_is_on() {
    for swapped in [false, true] {
        let mut g = Graph::new();
        let x = g.input("x", Rows::Tokens, 8).expect("x");
        let (gate, up) = (g.matrix("gate", 12, 8).expect("gate"), g.matrix("up", 12, 8).expect("up"));
        let (gate, up) = (g.matmul(x, gate).expect("gate"), g.matmul(x, up).expect("up"));
        let gate = g.activation(gate, Activation::GeluTanh).expect("activation");
        let y = if swapped { g.mul(up, gate) } else { g.mul(gate, up) }.expect("mul");
        g.output("y", y).expect("output");
        let mut program = program(&g);
        fuse::merge_shared_sources(&mut program);
        fuse::gate_products(&mut program);
        assert_eq!(names(&program), ["matmul"]);
        let Op::Matmul(matmul) = &program.instrs[0].op else { panic!("a matmul") };
        let up = g.matrix("up", 12, 8).expect("up");
        let epilogue = Epilogue::Gated { up, activation: Activation::GeluTanh };
        assert_eq!(matmul.products.len(), 1);
        assert_eq!(matmul.products[0].epilogue, epilogue);
    }
}

#[test]
fn a_norm_that_is_an_output_stays() {
    let mut g = Graph::new();
    let (x, w, m) = (
        g.input("x", Rows::Tokens, 8).expect("x"),
        g.vector("w", 8).expect("w"),
        g.matrix("m", 8, 8).expect("m"),
    );
    let h = g.rms_norm(x, w, 1e-5).expect("norm");
    let y = g.matmul(h, m).expect("matmul");
    g.output("h", h).expect("output");
    g.output("y", y).expect("output");
    let mut program = program(&g);
    fuse::fuse(&mut program);
    assert_eq!(names(&program), ["norm", "matmul"]);
}

#[test]
fn a_gated_product_that_something_else_reads_stays() {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8).expect("x");
    let (gate, up) = (g.matrix("gate", 12, 8).expect("gate"), g.matrix("up", 12, 8).expect("up"));
    let (gate, up) = (g.matmul(x, gate).expect("gate"), g.matmul(x, up).expect("up"));
    let gate = g.activation(gate, Activation::Silu).expect("activation");
    let y = g.mul(gate, up).expect("mul");
    let y = g.softmax(y).expect("softmax");
    let y = g.mul(y, up).expect("mul");
    g.output("y", y).expect("output");
    let mut program = program(&g);
    fuse::fuse(&mut program);
    assert_eq!(names(&program), ["matmul", "unary", "binary", "softmax", "binary"]);
}

/// An append overwrites k: a second operand or a later operation that reads it gets a copy.
#[test]
fn an_append_destroys_only_what_nobody_needs() {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 16).expect("x");
    let m = g.matrix("q", 32, 16).expect("q");
    let (q, k) = (g.matmul(x, m).expect("q"), g.scale(x, 2.0).expect("k"));
    let spec = AttentionSpec { layer: 0, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
    let a = g.attention(q, k, k, spec).expect("attention");
    let both = g.add(a, q).expect("add");
    g.output("both", both).expect("output");
    let mut program = program(&g);
    program.copy_what_is_needed_later();
    let expected = ["matmul", "unary", "unary", "unary", "kv_append", "attention", "binary"];
    assert_eq!(names(&program), expected);
    for fusion in [Fusion::On, Fusion::Off] {
        check_places(&g.compile(&options(fusion)).expect("compiles"));
    }
}

#[test]
fn products_are_added_to_the_residual() {
    let mut program = program(&decoder(2, LLAMA).expect("builds"));
    fuse::fuse(&mut program);
    assert!(!names(&program).contains(&"binary"));
    let added = |op: &Op| match op {
        Op::Matmul(matmul) => matmul.products[0].epilogue == Epilogue::Write(WriteMode::Add),
        _ => false,
    };
    assert_eq!(program.instrs.iter().filter(|step| added(&step.op)).count(), 4);
}

#[test]
fn a_residual_that_is_read_later_is_not_overwritten() {
    let mut g = Graph::new();
    let (x, m) = (g.input("x", Rows::Tokens, 8).expect("x"), g.matrix("m", 8, 8).expect("m"));
    let x = g.scale(x, 2.0).expect("scale");
    let h = g.scale(x, 3.0).expect("scale");
    let y = g.matmul(h, m).expect("matmul");
    let sum = g.add(x, y).expect("add");
    let twice = g.mul(sum, x).expect("mul");
    g.output("y", twice).expect("output");
    let mut program = program(&g);
    fuse::fuse(&mut program);
    assert!(names(&program).contains(&"binary"));
    assert!(program.instrs.iter().all(|step| step.renames.is_empty()));
}

#[test]
fn angles_are_computed_once_and_first() {
    let g = decoder(3, GEMMA).expect("builds");
    for fusion in [Fusion::On, Fusion::Off] {
        let plan = g.compile(&options(fusion)).expect("compiles");
        let angles = |op: &&Op| matches!(op, Op::RopeAngles(_));
        assert_eq!(plan.ops().iter().filter(angles).count(), 1);
        assert!(matches!(plan.ops().first(), Some(Op::RopeAngles(_))));
    }
}

#[test]
fn the_head_runs_over_output_rows_alone() {
    let plan = decoder(1, LLAMA).expect("builds").compile(&options(Fusion::On)).expect("compiles");
    let logits = plan.place("logits").expect("logits");
    assert_eq!((logits.rows, logits.cols), (Rows::Outputs, 20));
    assert_eq!(plan.vocab(), Some(20));
    assert_eq!(plan.kv().first().map(|kv| kv.layers), Some(1));
}

#[test]
fn errors_name_the_node() {
    let mut g = Graph::new();
    let x = g.input("x", Rows::Tokens, 8).expect("x");
    let m = g.matrix("blk.0.attn_q.weight", 8, 9).expect("m");
    let error = g.matmul(x, m).expect_err("columns differ").to_string();
    assert_eq!(error, "matmul blk.0.attn_q.weight (node 1): expected a matrix of 8 columns, found [8, 9]");
    let error = g.matrix("blk.0.attn_q.weight", 9, 9).expect_err("declared twice").to_string();
    assert!(error.contains("blk.0.attn_q.weight") && error.contains("[8, 9]"), "{error}");
    assert_eq!(g.compile(&options(Fusion::On)).expect_err("no output"), GraphError::NoOutput);
    let error = g.embed(crate::ir::MatrixId(7), 1.0).expect_err("no such matrix").to_string();
    assert!(error.contains("matrix 7"), "{error}");
}

/// A head norm works in place, so an input that is read later is copied first.
#[test]
fn a_head_norm_outside_of_attention_is_an_operation() {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", Rows::Tokens, 16).expect("x"), g.vector("w", 8).expect("w"));
    let h = g.head_norm(x, 8, w, 1e-5).expect("head norm");
    let y = g.add(x, h).expect("add");
    g.output("y", y).expect("output");
    let plan = g.compile(&options(Fusion::On)).expect("a plan");
    let names: Vec<&str> = plan.ops().iter().map(|op| op.name()).collect();
    assert_eq!(names, ["unary", "head_norm", "binary"]);
}

#[test]
fn two_attentions_cannot_share_a_layer() {
    let mut g = Graph::new();
    let q = g.input("q", Rows::Tokens, 32).expect("q");
    let k = g.input("k", Rows::Tokens, 16).expect("k");
    let spec = AttentionSpec { layer: 0, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
    let a = g.attention(q, k, k, spec).expect("attention");
    let b = g.attention(a, k, k, spec).expect("attention");
    g.output("b", b).expect("output");
    let error = g.compile(&options(Fusion::On)).expect_err("same layer").to_string();
    assert!(error.contains("layer 0 has an attention already"), "{error}");
}

#[test]
fn types_follow_the_residual_stream_and_casts() {
    let mut g = decoder(1, GEMMA).expect("builds");
    let x = g.input("x", Rows::Tokens, 24).expect("x");
    let w = g.vector("final", 24).expect("w");
    let h = g.rms_norm(x, w, 1e-5).expect("norm");
    assert_eq!(g.dtype(h), Ok(Dtype::Activation));
    let sum = g.add(h, x).expect("add");
    assert_eq!(g.dtype(sum), Ok(Dtype::Exact(Precision::F32)));
    let half = g.cast(h, Precision::F16).expect("cast");
    assert_eq!(g.dtype(half), Ok(Dtype::Exact(Precision::F16)));
    let narrow = CompileOptions { activations: Precision::Bf16, ..options(Fusion::On) };
    let plan = g.compile(&narrow).expect("compiles");
    assert_eq!(plan.place("logits").map(|place| place.precision), Some(Precision::F32));
    let attention = plan.ops().iter().find_map(|op| match op {
        Op::Attention(attention) => Some(attention.dst.precision),
        _ => None,
    });
    assert_eq!(attention, Some(Precision::Bf16));
    let residual = plan.ops().iter().find_map(|op| match op {
        Op::Norm(Normalize { dst, write: WriteMode::Add, .. }) => Some(dst.precision),
        _ => None,
    });
    assert_eq!(residual, Some(Precision::F32));
}

#[test]
fn the_arena_is_smaller_than_the_sum() {
    for parts in [LLAMA, QWEN2, QWEN3, GEMMA] {
        let g = decoder(4, parts).expect("builds");
        for fusion in [Fusion::On, Fusion::Off] {
            let plan = g.compile(&options(fusion)).expect("compiles");
            assert!(plan.arena_bytes() < plan.unfused_sum_bytes() / 4, "{plan}");
            check_places(&plan);
        }
    }
}

#[test]
fn the_listing_names_weights_and_places() {
    let plan = decoder(1, QWEN3).expect("builds").compile(&options(Fusion::On)).expect("compiles");
    let text = plan.to_string();
    for part in ["0.q", "0.q_norm", "Silu(x · 0.gate) · (x · 0.up)", "+= x · 0.down", "out  logits"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// Byte range of a place at the plan's limits.
fn range(place: &Place) -> std::ops::Range<usize> {
    place.offset..place.offset + place.rows.max(LIMITS) * place.cols * f64_bytes(place.precision)
}

/// Simulates a plan. Every place must be read with the shape of its last write, and no part of it may have
/// been overwritten since. Results may overlap sources only where the operation allows it.
pub(super) fn check_places(plan: &Plan) {
    let mut live: Vec<Place> = plan.inputs().filter_map(|name| plan.input(name)).collect();
    for (index, op) in plan.ops().iter().enumerate() {
        assert_eq!(op.check(), Ok(()));
        let places = op.places();
        for (access, place) in &places {
            assert_eq!(place.offset % ALIGN, 0);
            assert!(range(place).end <= plan.arena_bytes(), "operation {index} leaves the arena\n{plan}");
            let valid = *access == Access::Write || live.contains(place);
            assert!(valid, "operation {index} reads {place:?}, which is not there\n{plan}");
        }
        check_overlaps(op, &places);
        for (access, place) in &places {
            if *access != Access::Read {
                live.retain(|other| {
                    range(other).start >= range(place).end || range(place).start >= range(other).end
                });
            }
            if matches!(access, Access::Write | Access::Update) {
                live.push(*place);
            }
        }
    }
    let ends = plan.outputs().filter_map(|name| plan.place(name));
    let starts = plan.inputs().filter_map(|name| plan.input(name));
    ends.chain(starts).for_each(|place| assert!(live.contains(&place), "{place:?} is lost\n{plan}"));
}

fn check_overlaps(op: &Op, places: &[(Access, Place)]) {
    let over_source = matches!(
        op,
        Op::Unary(_) | Op::Softmax(_) | Op::Norm(Normalize { write: WriteMode::Store, .. }) | Op::Binary(_)
    );
    for (at, (access, place)) in places.iter().enumerate() {
        for (other_access, other) in &places[at + 1..] {
            let reads = *access == Access::Read && *other_access == Access::Read;
            let apart = range(place).end <= range(other).start || range(other).end <= range(place).start;
            let legal = over_source && place == other;
            assert!(reads || apart || legal, "{op:?} overlaps itself");
        }
    }
}

/// One random choice while building a graph: operation and two earlier nodes.
type Choice = (u8, usize, usize);

/// A random graph over `[tokens, 8]` values: chains, diamonds, residuals, gates and reuse.
pub(super) fn random_graph(choices: &[Choice], outputs: &[usize]) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let mut nodes = vec![g.input("x", Rows::Tokens, 8)?, g.input("y", Rows::Tokens, 8)?];
    for &(op, a, b) in choices {
        let (a, b) = (nodes[a % nodes.len()], nodes[b % nodes.len()]);
        let m = g.matrix(&format!("m{}", op % 5), 8, 8)?;
        let w = g.vector(&format!("w{}", op % 3), 8)?;
        nodes.push(match op % 11 {
            0 => g.rms_norm(a, w, 1e-3)?,
            1 | 2 => g.matmul(a, m)?,
            3 => g.matmul_bias(a, m, w)?,
            4 | 5 => g.add(a, b)?,
            6 => g.mul(a, b)?,
            7 => g.activation(a, Activation::Silu)?,
            8 => g.sub(a, b)?,
            9 => g.rope(a, 4, &rope_spec(4))?,
            _ => g.softmax(a)?,
        });
    }
    for (index, output) in outputs.iter().enumerate() {
        g.output(&format!("out{index}"), nodes[output % nodes.len()])?;
    }
    Ok(g)
}

/// Slots with overlapping lifetimes do not overlap in memory.
fn check_slots(slots: &[Slot]) {
    let used: Vec<&Slot> = slots.iter().filter(|slot| slot.life.0 <= slot.life.1).collect();
    for (index, a) in used.iter().enumerate() {
        for b in &used[index + 1..] {
            let together = a.life.0 <= b.life.1 && b.life.0 <= a.life.1;
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            assert!(!together || apart, "{a:?} and {b:?}");
        }
    }
}

pub(super) fn choices() -> impl Strategy<Value = (Vec<Choice>, Vec<usize>)> {
    let choice = (any::<u8>(), any::<usize>(), any::<usize>());
    (prop::collection::vec(choice, 1..40), prop::collection::vec(any::<usize>(), 1..4))
}

proptest! {
    #[test]
    fn no_two_live_values_overlap((choices, outputs) in choices()) {
        let g = random_graph(&choices, &outputs).expect("builds");
        for fusion in [Fusion::On, Fusion::Off] {
            let mut program = program(&g);
            if fusion == Fusion::On {
                fuse::fuse(&mut program);
            }
            program.copy_what_is_needed_later();
            check_slots(&lay_out(&program, &options(fusion)).expect("lays out").slots);
            let plan = g.compile(&options(fusion)).expect("compiles");
            check_places(&plan);
        }
    }

    #[test]
    fn first_fit_keeps_slots_apart(lives in prop::collection::vec((0_usize..20, 0_usize..6, 1_usize..9), 1..30)) {
        let slot = |&(start, length, units): &(usize, usize, usize)| {
            Slot { bytes: units * ALIGN, life: (start, start + length), offset: 0 }
        };
        let mut slots: Vec<Slot> = lives.iter().map(slot).collect();
        let end = first_fit(&mut slots).expect("fits");
        check_slots(&slots);
        let sum: usize = slots.iter().map(|slot| slot.bytes).sum();
        let peak = (0..30).map(|at| {
            let live = |slot: &&Slot| slot.life.0 <= at && at <= slot.life.1;
            slots.iter().filter(live).map(|slot| slot.bytes).sum::<usize>()
        });
        prop_assert!(end <= sum && Some(end) >= peak.max());
    }
}
