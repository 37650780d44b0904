//! What a decode step costs on the CUDA backend, counted by the emulated card at the shape of Llama-3.2-1B,
//! of one layer and of all: launches, bytes of memory, calls of the driver, allocations of the host. And
//! that a replayed step has the bits of its launches. And what the products of a prompt read and write.
//! Without the test harness, whose threads allocate.

#[path = "layer/allocations.rs"]
mod allocations;
mod layer;

use std::collections::BTreeMap;

use cuda_emu::{DeviceConfig, Emulator, InstallOptions, KernelStats};
use layer::Shape;
use ottava::TokenId;
use ottava::backend::PageMemory as _;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::ir::{Heads, KvDtype, PAGE_TOKENS, PageId, PageRef, StepInput, StepLimits, StepSequence};
use ottava::session::Session;

/// A layer of it with 512 tokens.
const SHAPE: Shape = Shape {
    width: 2048,
    hidden: 8192,
    heads: Heads { query: 32, kv: 8, dim: 64 },
    vocab: 512,
    layers: 1,
    group: 32,
    window: None,
};
/// All of it.
const WHOLE: Shape = Shape { vocab: 128_256, layers: 16, group: 128, ..SHAPE };
/// Its past, and what a decode behind it reads at least: 988 MB of layers, 267 MB of head and 17 MB of
/// keys and values.
const WHOLE_PAST: u32 = 512;
const WHOLE_FLOOR: f64 = 1272e6;
/// Tokens in the cache.
const PAST: u32 = 1000;
/// Tokens of a prompt: one tile of `matmul_many.cu`, and so few that blocks share tiles.
const PROMPT: u32 = 100;
/// Sequences that decode side by side, so many that `matmul_many.cu` multiplies.
const CROWD: u32 = 40;
/// How far above the floor the bytes may be.
const ABOVE_FLOOR: f64 = 0.03;

/// Calls of the driver and work of the kernels between two looks.
struct Cost {
    /// Of the host.
    allocated: u64,
    calls: BTreeMap<String, u64>,
    kernels: BTreeMap<String, KernelStats>,
}

/// Runs a step of so many tokens and gives its last probabilities and what it cost.
fn run(session: &mut Session<Cuda>, emulator: Emulator, first: u32, tokens: u32) -> (Vec<f32>, Cost) {
    run_step(session, emulator, &SHAPE.step(first, tokens))
}

fn run_step(session: &mut Session<Cuda>, emulator: Emulator, step: &StepInput) -> (Vec<f32>, Cost) {
    let vocab = session.plan().vocab().expect("a plan that embeds");
    let mut out = vec![0.0; step.outputs.len() * vocab];
    let mut sampled = vec![None; step.outputs.len()];
    let (calls, kernels) = (emulator.calls(), emulator.statistics());
    let allocated = allocations::count();
    let mut main = session.main();
    main.run(step).expect("a step");
    main.sampled("sampled", main.steps(), &mut sampled).expect("tokens");
    let allocated = allocations::count() - allocated;
    let mut cost = Cost { allocated, calls: emulator.calls(), kernels: emulator.statistics() };
    session.read("probabilities", 0, &mut out).expect("probabilities");
    for (token, row) in sampled.iter().zip(out.chunks(vocab)) {
        let best = (0..vocab).rev().max_by(|&a, &b| row[a].total_cmp(&row[b]));
        assert_eq!(token.map(|token| token.index()), best, "the token of the largest logit");
    }
    for (name, count) in calls {
        *cost.calls.entry(name).or_default() -= count;
    }
    for (name, before) in kernels {
        let of_kernel = cost.kernels.entry(name).or_default();
        of_kernel.launches -= before.launches;
        of_kernel.sum.global_footprint_bytes -= before.sum.global_footprint_bytes;
        of_kernel.sum.tensor_multiply_adds -= before.sum.tensor_multiply_adds;
        of_kernel.sum.global_bytes_written -= before.sum.global_bytes_written;
    }
    cost.calls.retain(|_, count| *count > 0);
    cost.kernels.retain(|_, stats| stats.launches > 0);
    (out, cost)
}

/// Bytes that a kernel's launches touched.
fn footprint(cost: &Cost, kernel: &str) -> f64 {
    cost.kernels.get(kernel).map_or(0.0, |stats| stats.sum.global_footprint_bytes as f64)
}

fn assert_near_floor(what: &str, bytes: f64, floor: f64) {
    println!("{what}: {bytes} bytes, {:.4} of the floor", bytes / floor);
    // Counters of tiles are written more than once, which the floor of a prompt counts.
    assert!((0.9999..1.0 + ABOVE_FLOOR).contains(&(bytes / floor)), "{what}: {bytes} bytes for {floor}");
}

/// The products of a prompt: each part of a tile is multiplied by one block alone, and what the blocks
/// that share a tile hand over is less than the weights.
fn assert_prompt_is_read_once(emulator: Emulator) {
    let cuda = Cuda::new(&CudaOptions::default()).expect("a card");
    let limits = StepLimits { tokens_max: PROMPT as usize, outputs_max: 1 };
    let mut session = SHAPE.session(cuda, limits, KvDtype::F16, (PROMPT as usize).div_ceil(PAGE_TOKENS));
    let (_, cost) = run(&mut session, emulator, 0, PROMPT);
    // Of Hopper or of all others.
    let kernels = || cost.kernels.iter().filter(|(name, _)| name.contains("matmul_many"));
    let sum = |of: fn(&KernelStats) -> u64| kernels().map(|(_, stats)| of(stats)).sum::<u64>();
    assert_eq!(sum(|stats| stats.launches), 4, "q, k and v; o; the gate; down");
    let Shape { width, hidden, heads: Heads { query, kv, dim }, .. } = SHAPE;
    // Rows of the result, rows of all matrices, columns.
    let q_k_v = (query + 2 * kv) * dim;
    let products = [
        (q_k_v, q_k_v, width),
        (width, width, query * dim),
        (hidden, 2 * hidden, width),
        (width, width, hidden),
    ];
    let (mut weights, mut activations, mut results) = (0, 0, 0);
    for (result, rows, cols) in products {
        weights += rows * cols;
        activations += 2 * PROMPT as usize * cols;
        results += 4 * PROMPT as usize * result;
    }
    assert_eq!(sum(|stats| stats.sum.tensor_multiply_adds), 128 * weights as u64, "128 tokens, once");
    let weights = weights as f64 * (1.0 + 2.0 / 32.0);
    let handed_over = sum(|stats| stats.sum.global_bytes_written) as f64 - results as f64;
    println!("{PROMPT} tokens: handed over {handed_over} bytes, {:.3} of the weights", handed_over / weights);
    // Hopper's blocks have tiles of their own.
    let shared = if cost.kernels.contains_key("matmul_many_64") { 0.01..0.7 } else { 0.0..f64::MIN_POSITIVE };
    assert!(shared.contains(&(handed_over / weights)), "{handed_over} bytes handed over");
    let floor = weights + (activations + results) as f64 + handed_over;
    assert_near_floor("a prompt's products", sum(|stats| stats.sum.global_footprint_bytes) as f64, floor);
}

/// A replayed step of many sequences, whose blocks share tiles, finds all counts as the launches did.
fn assert_crowd_is_replayed(emulator: Emulator) {
    let cuda = Cuda::new(&CudaOptions::default()).expect("a card");
    let limits = StepLimits { tokens_max: CROWD as usize, outputs_max: CROWD as usize };
    let shape = Shape { hidden: 256, ..SHAPE };
    let mut session = shape.session(cuda, limits, KvDtype::F16, CROWD as usize);
    let step = StepInput {
        tokens: (0..CROWD).map(TokenId).collect(),
        positions: vec![0; CROWD as usize],
        sequences: (0..CROWD)
            .map(|i| StepSequence { rows: i..i + 1, pages: i..i + 1, window: None })
            .collect(),
        pages: (0..CROWD).map(|i| PageRef { page: PageId(i), start: 0 }).collect(),
        outputs: (0..CROWD).collect(),
        ..StepInput::default()
    };
    let runs = [(); 4].map(|()| run_step(&mut session, emulator, &step));
    let [(launched, _), others @ ..] = runs;
    assert!((launched.iter().sum::<f32>() - CROWD as f32).abs() < 1e-2, "softmaxes add up");
    for (replayed, cost) in others {
        assert!(cost.calls.contains_key("cuGraphLaunch") && cost.kernels.contains_key("matmul_many_64"));
        assert_eq!(launched, replayed, "the same step again");
    }
}

/// A decode of the whole model: five launches a layer, and no byte twice.
fn assert_whole_model_is_read_once(emulator: Emulator) {
    let cuda = Cuda::new(&CudaOptions::default()).expect("a card");
    let limits = StepLimits { tokens_max: 1, outputs_max: 1 };
    let pages = (WHOLE_PAST as usize + 1).div_ceil(PAGE_TOKENS);
    let mut session = WHOLE.session(cuda, limits, KvDtype::F16, pages);
    let (_, cost) = run_step(&mut session, emulator, &WHOLE.step(WHOLE_PAST, 1));
    let launches: u64 = cost.kernels.values().map(|stats| stats.launches).sum();
    assert_eq!(launches, 5 * WHOLE.layers as u64 + 6, "the layers', the head and what is done once");
    let bytes: f64 = cost.kernels.keys().map(|kernel| footprint(&cost, kernel)).sum();
    assert_near_floor("a decode of the whole model", bytes, WHOLE_FLOOR);
}

fn main() {
    let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    let device = DeviceConfig { memory_statistics: true, ..options.device.clone() };
    let emulator = cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator");
    if !emulator.is_emulated() {
        println!("skipped: a real card does not count");
        return;
    }
    let cuda = Cuda::new(&CudaOptions::default()).expect("a card");
    let limits = StepLimits { tokens_max: 4, outputs_max: 1 };
    let pages = (PAST as usize + 16).div_ceil(PAGE_TOKENS);
    let mut session = SHAPE.session(cuda, limits, KvDtype::F16, pages);
    let Heads { kv, dim, .. } = SHAPE.heads;
    let layout = SHAPE.kv_layout(KvDtype::F16);
    for page in 0..pages {
        // Small numbers of either sign, as f16.
        let half =
            |i: usize| half::f16::from_f32(((i * 37 + page * 11) % 64) as f32 / 64.0 - 0.5).to_le_bytes();
        let bytes: Vec<u8> = (0..layout.page_bytes() / 2).flat_map(half).collect();
        session.kv_mut().import_page(PageId(page as u32), &bytes).expect("a page");
    }

    assert_whole_model_is_read_once(emulator);
    assert_prompt_is_read_once(emulator);
    assert_crowd_is_replayed(emulator);

    // The first of a shape is launched, the second recorded, the third replayed only.
    let (launched, _) = run(&mut session, emulator, PAST, 1);
    assert!((launched.iter().sum::<f32>() - 1.0).abs() < 1e-4, "a softmax adds up");
    let (recorded, _) = run(&mut session, emulator, PAST, 1);
    assert_eq!(launched, recorded, "the same step again, as a graph");
    let (replayed, cost) = run(&mut session, emulator, PAST + 2, 1);
    assert_ne!(launched, replayed, "another token");
    // A profile runs each operation by itself: keys appended first, then attention.
    let mut apart = vec![f32::NAN; SHAPE.vocab];
    session.main().run_timed(&SHAPE.step(PAST + 2, 1), |_, _| {}).expect("a step");
    session.read("probabilities", 0, &mut apart).expect("probabilities");
    assert_eq!(replayed, apart, "the same step, operation by operation");

    assert_eq!(cost.allocated, 0, "allocations in a replayed step");
    let launches: BTreeMap<&str, u64> =
        cost.kernels.iter().map(|(name, stats)| (name.as_str(), stats.launches)).collect();
    // A layer's are five: the products before and after the attention, the gate, and down.
    let layer = [("attention_decode_4_8", 1), ("matmul_few", 4 + 1)];
    let once = [("embed", 1), ("gather_outputs", 1), ("rope_angles", 1), ("sample", 1), ("softmax", 1)];
    assert_eq!(launches, layer.into_iter().chain(once).collect(), "launches");

    let calls: BTreeMap<&str, u64> = cost
        .calls
        .iter()
        .map(|(name, count)| (name.as_str(), *count))
        .filter(|(name, _)| *name != "cuCtxSetCurrent")
        .collect();
    let want = [
        // Behind the sampled token's copy to the host, which waits for nothing else.
        ("cuEventRecord", 1),
        ("cuEventSynchronize", 1),
        ("cuGraphLaunch", 1),
        ("cuMemcpyDtoHAsync_v2", 1),
        ("cuMemcpyHtoDAsync_v2", 1),
    ];
    assert_eq!(calls, want.into_iter().collect(), "calls of the driver");

    // 8 bits a weight and an f16 scale for 32; the embedding's table is read again for the logits.
    let weight_bytes = |rows: usize, cols: usize| (rows * cols) as f64 * (1.0 + 2.0 / 32.0);
    let Shape { width, hidden, heads, vocab, .. } = SHAPE;
    let weights = weight_bytes((heads.query + 2 * heads.kv) * heads.dim, width)
        + weight_bytes(width, heads.query * heads.dim)
        + weight_bytes(3 * hidden, width)
        + weight_bytes(vocab, width);
    assert_near_floor("weights", footprint(&cost, "matmul_few"), weights);
    let past = f64::from(PAST + 3) * 2.0 * (kv * dim * 2) as f64;
    // What 16 splits hand over: for each head its sums, their maximum and the weights' sum.
    let parts = (16 * SHAPE.heads.query * (dim + 2) * 4) as f64;
    assert_near_floor("keys, values and parts", footprint(&cost, "attention_decode_4_8"), past + parts);
    let all: f64 = cost.kernels.keys().map(|kernel| footprint(&cost, kernel)).sum();
    assert_near_floor("the step", all, weights + past);
    allocations::assert_counted();
}
