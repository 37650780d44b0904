//! What the products of a layer read through the second-level cache, counted by the emulated card at the shape of
//! Llama-3.1-8B: each load as often as it is made, and not each byte once, as `cuda_step.rs` counts. A kernel may
//! read a matrix once from memory and be slow all the same, because each of its blocks reads all activations.
//! The first-level cache, which may have some of it, is not emulated.

#![cfg(feature = "cuda")]

use std::collections::BTreeMap;

use cuda_emu::{Checks, DeviceConfig, Emulator, InstallOptions};
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{Backend, PreparedMatrix, Weights};
use ottava::ir::{
    Epilogue, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Product, RmsNorm, VectorId, WriteMode,
};
use ottava::quant::WeightMatrix;

#[path = "../benches/support/mod.rs"]
mod support;
use support::decodes;
use support::machine::{Layout, Machine, Room};
use support::random::{Codes, Random};
use support::shapes::LLAMA_3_1_8B;

/// Sequences that decode side by side.
const TOKENS: [usize; 4] = [16, 24, 32, 64];
/// Rows of a tile, whose block reads its tokens' activations once.
const TILE_ROWS: usize = 128;
/// Bytes that are read, at most, for each one that is needed.
const READ_MAX: f64 = 1.4;
/// Bytes of a sector, which is the least that a request moves.
const SECTOR_BYTES: u64 = 32;

/// One launch of a layer: its name, the rows of its matrices, their columns.
struct Launch {
    name: &'static str,
    rows: Vec<usize>,
    cols: usize,
}

fn layer() -> [Launch; 4] {
    let (width, hidden, heads) = (LLAMA_3_1_8B.width, LLAMA_3_1_8B.hidden, LLAMA_3_1_8B.heads);
    let [query, kv] = [heads.query, heads.kv].map(|count| count * heads.dim);
    [
        Launch { name: "qkv", rows: vec![query, kv, kv], cols: width },
        Launch { name: "o", rows: vec![width], cols: query },
        Launch { name: "gate+up", rows: vec![hidden, hidden], cols: width },
        Launch { name: "down", rows: vec![width], cols: hidden },
    ]
}

impl Launch {
    fn is_gate(&self) -> bool {
        self.name == "gate+up"
    }

    /// Whether its results are added to what is there.
    fn adds(&self) -> bool {
        matches!(self.name, "o" | "down")
    }

    /// Bytes of the weights once, of the activations in f16 once for each tile, and of what is added to.
    fn needed(&self, tokens: usize, weight_bytes: usize) -> usize {
        let all_rows: usize = self.rows.iter().sum();
        let activations = all_rows.div_ceil(TILE_ROWS) * tokens * self.cols * size_of::<half::f16>();
        let results = if self.adds() { all_rows * tokens * size_of::<f32>() } else { 0 };
        weight_bytes + activations + results
    }

    fn op(&self, src: Place, results: &[Place]) -> Op {
        let epilogue = match (self.is_gate(), self.adds()) {
            (true, _) => Epilogue::Gated { up: MatrixId(1), activation: LLAMA_3_1_8B.activation },
            (_, true) => Epilogue::Write(WriteMode::Add),
            _ => Epilogue::Write(WriteMode::Store),
        };
        let product = |(index, &dst): (usize, &Place)| Product {
            dst,
            matrix: MatrixId(index as u32),
            bias: None,
            epilogue,
        };
        let norm = (!self.adds()).then_some(RmsNorm { weight: VectorId(0), eps: 1e-5 });
        let count = if self.is_gate() { 1 } else { results.len() };
        let products = results[..count].iter().enumerate().map(product).collect();
        Op::Matmul(Matmul { src, norm, products })
    }

    /// The launch on a card, for so many tokens at most; and the bytes of its weights.
    fn machine(&self, tokens: usize) -> (Machine<Cuda>, Op, usize) {
        let cuda = Cuda::new(&CudaOptions::default()).expect("a card");
        let prepare = |&rows: &usize| {
            let matrix = Random(7).matrix(rows, self.cols, Codes::W8G128);
            cuda.prepare(&WeightMatrix::Quant(matrix)).expect("memory")
        };
        let matrices: Vec<_> = self.rows.iter().map(prepare).collect();
        let weight_bytes = matrices.iter().map(PreparedMatrix::bytes).sum();
        let vectors = vec![cuda.upload_vector(&vec![1.0; self.cols]).expect("memory")];
        let mut layout = Layout::new(tokens);
        let src = layout.place(self.cols);
        let results: Vec<Place> = self.rows.iter().map(|&rows| layout.place(rows)).collect();
        let op = self.op(src, &results);
        // The operation needs no keys and values; a frame does.
        let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        let room = Room { layout, kv, pages: 1, ops: std::slice::from_ref(&op) };
        let mut machine = Machine::new(cuda, Weights { matrices, vectors }, decodes(tokens, 0), room);
        machine.write(&src, &Random(9).values(tokens * self.cols));
        results.iter().for_each(|place| machine.write(place, &vec![0.0; tokens * place.cols]));
        (machine, op, weight_bytes)
    }
}

/// Bytes read so far, by kernel: sectors of all requests and copies, less what was written.
fn bytes_read(emulator: Emulator) -> BTreeMap<String, u64> {
    let bytes = |stats: cuda_emu::KernelStats| {
        (stats.sum.global_sectors * SECTOR_BYTES).saturating_sub(stats.sum.global_bytes_written)
    };
    emulator.statistics().into_iter().map(|(name, stats)| (name, bytes(stats))).collect()
}

/// The card, which counts; `None` for a real one, which does not.
fn card() -> Option<Emulator> {
    let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    // What goes wrong in a kernel is for the tests of its answers.
    let device = DeviceConfig { checks: Checks::Bounds, memory_statistics: true, ..options.device.clone() };
    let emulator = cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator");
    if !emulator.is_emulated() {
        println!("skipped: a real card does not count");
    }
    emulator.is_emulated().then_some(emulator)
}

/// Runs a launch with each number of tokens. Prints what was read, and gives how many times what is needed.
fn times_needed(emulator: Emulator, launch: &Launch) -> [f64; TOKENS.len()] {
    let most = TOKENS.into_iter().max().unwrap_or_default();
    let (mut machine, op, weight_bytes) = launch.machine(most);
    TOKENS.map(|tokens| {
        machine.step = decodes(tokens, 0);
        let before = bytes_read(emulator);
        machine.execute(std::slice::from_ref(&op));
        let mut by_kernel = bytes_read(emulator);
        by_kernel.iter_mut().for_each(|(name, bytes)| *bytes -= before.get(name).unwrap_or(&0));
        by_kernel.retain(|_, bytes| *bytes > 0);
        let (read, needed) = (by_kernel.values().sum::<u64>(), launch.needed(tokens, weight_bytes));
        assert!(read > weight_bytes as u64, "a count that sees less than the weights: {by_kernel:?}");
        let times = read as f64 / needed as f64;
        println!("{}, {tokens} tokens: {times:.2} times {needed} bytes: {by_kernel:?}", launch.name);
        times
    })
}

#[test]
fn products_read_weights_and_activations_once_a_tile() {
    let Some(emulator) = card() else { return };
    for launch in &layer() {
        for (times, tokens) in times_needed(emulator, launch).into_iter().zip(TOKENS) {
            assert!(times <= READ_MAX, "{}, {tokens} tokens: {times:.2}, at most {READ_MAX}", launch.name);
        }
    }
}
