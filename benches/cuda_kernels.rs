//! The CUDA kernels on this machine's card at the shapes of real models: matrix products from one
//! token to a long prompt and attention over long pasts, beside what the card's memory can do.
//!
//! Each kernel runs over copies of its operands, too many for the second-level cache, launched so often
//! that a run takes milliseconds; where a step has a token a sequence the launches are one graph. A run
//! ends with one wait; a figure is the median of several runs, divided by the launches. Answers are
//! asserted against f64 first. `--json FILE` writes a line a case, for benches/cuda_table.py;
//! `--seconds N` ends after so many, the cases of most worth first. `--test` runs a few on the emulated
//! card and holds the bytes and multiply-adds that are printed against what it counts.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cuda_emu::{DeviceConfig, Emulator, InstallOptions};
use ottava::backend::cuda::{Bandwidth, Cuda, CudaOptions};
use ottava::backend::{Attention, Backend, Heads, KvDtype, KvLayout, Op, StepInput, Weights};
use ottava::quant::QuantMatrix;
use serde_json::{Value, json};

mod support;
use support::machine::{Layout, Machine, Room};
use support::product::{Products, Repeats};
use support::random::{Codes, Random};
use support::{brief, decodes, step};

/// Operands of a run together: five times the cache of an H200.
const COPIES_BYTES: usize = 320 << 20;
/// What the ceilings are measured with.
const CEILING_BYTES: usize = 1 << 30;
/// Bytes that the launches of a run read: milliseconds on any card.
const RUN_BYTES: usize = 8 << 30;
/// Runs that are timed, after one that is not.
const RUNS: usize = 7;

/// Matrices of Llama-3.1-8B, Llama-3.2-1B and Qwen2.5-1.5B: name, rows, columns. benches/cuda_peers.py has
/// them too.
const MATRICES: [(&str, usize, usize); 8] = [
    ("8b up", 14336, 4096),
    ("1b up", 8192, 2048),
    ("8b down", 4096, 14336),
    ("1.5b up", 8960, 1536),
    ("1b down", 2048, 8192),
    ("8b qkv", 6144, 4096),
    ("1b o", 2048, 2048),
    ("1.5b down", 1536, 8960),
];
const FORMATS: [(&str, Codes); 3] =
    [("w8g128", Codes::W8G128), ("w8g32", Codes::Q8_0), ("w4g32", Codes::Q4_0)];
const TOKENS: [usize; 6] = [1, 4, 16, 64, 512, 2048];
const HEADS: [(&str, Heads); 3] = [
    ("8b", Heads { query: 32, kv: 8, dim: 128 }),
    ("1b", Heads { query: 32, kv: 8, dim: 64 }),
    ("1.5b", Heads { query: 12, kv: 2, dim: 128 }),
];

/// Where rows go, and until when they are made.
struct Report {
    json: Option<File>,
    end: Option<Instant>,
    read: f64,
    /// The emulated card, which counts.
    counter: Option<Emulator>,
    wrong: usize,
}

/// A case's answer to how long it takes, and what it must move and multiply.
struct Row {
    /// What tells it from other cases.
    case: Value,
    bytes: usize,
    macs: usize,
    seconds: f64,
}

impl Report {
    fn new(counter: Option<Emulator>) -> Report {
        let json = argument("--json").map(|path| File::create(path).expect("a file that can be written"));
        let seconds = argument("--seconds").map(|seconds| seconds.parse().expect("a number of seconds"));
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        Report { json, end, read: 0.0, counter, wrong: 0 }
    }

    /// Whether there is time for another case; says so if there is none.
    fn goes_on(&self, what: &str) -> bool {
        let goes_on = self.end.is_none_or(|end| Instant::now() < end);
        if !goes_on {
            println!("MISSING  {what} and what follows: out of time");
        }
        goes_on
    }

    fn line(&mut self, value: &Value) {
        if let Some(file) = &mut self.json {
            writeln!(file, "{value}").expect("room for a line");
        }
    }

    fn ceilings(&mut self, cuda: &Cuda) {
        let Bandwidth { read, copy } =
            cuda.bandwidth(if brief() { 1 << 20 } else { CEILING_BYTES }).expect("memory");
        assert!(read > 0.0 && copy > 0.0);
        let (read_gb_s, copy_gb_s, device) = (read / 1e9, copy / 1e9, cuda.describe());
        println!("{device}\nmemory: read {read_gb_s:.1} GB/s, copy {copy_gb_s:.1} GB/s");
        let row =
            json!({ "op": "ceiling", "device": device, "read_gb_s": read_gb_s, "copy_gb_s": copy_gb_s });
        self.line(&row);
        self.read = read;
    }

    /// Measures a case; a wrong answer is told, and others are measured all the same.
    fn attempt(&mut self, case: Value, measure: impl FnOnce(&mut Report, Value)) {
        let name = case.to_string();
        if catch_unwind(AssertUnwindSafe(|| measure(self, case))).is_err() {
            println!("WRONG    {name}");
            self.wrong += 1;
        }
    }

    /// Holds a case's bytes against those that the launches of a run touch, which have scratch of up to so
    /// great a part, too; gives the multiply-adds of tensor cores for each launch.
    fn check(&self, row: &Row, scratch: f64, launches: usize, run: impl FnOnce()) -> Option<f64> {
        let counter = self.counter.filter(Emulator::is_emulated)?;
        let counted = || {
            let kernels = counter.statistics().into_values();
            kernels.fold((0, 0), |(bytes, macs), kernel| {
                (bytes + kernel.sum.global_footprint_bytes, macs + kernel.sum.tensor_multiply_adds)
            })
        };
        let before = counted();
        run();
        let after = counted();
        let of_one = |before: u64, after: u64| (after - before) as f64 / launches as f64;
        let (bytes, macs) = (of_one(before.0, after.0), of_one(before.1, after.1));
        let expected = row.bytes as f64..row.bytes as f64 * (1.0 + scratch);
        assert!(expected.contains(&bytes), "{}: {bytes} bytes, expected {expected:?}", row.case);
        Some(macs)
    }

    fn row(&mut self, row: Row) {
        let Row { mut case, bytes, macs, seconds } = row;
        let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
        let name = format!("{} {} {}", text("op"), text("shape"), text("format"));
        let keys = case["keys"].as_u64().map_or_else(String::new, |keys| format!("{keys} keys, "));
        let rate = bytes as f64 / seconds;
        println!(
            "{name:28} {keys}{} tokens: {:10.2} us {:7.1} GB/s {:3.0} % of read {:7.1} TFLOP/s",
            case["tokens"],
            seconds * 1e6,
            rate / 1e9,
            100.0 * rate / self.read,
            2.0 * macs as f64 / seconds / 1e12,
        );
        case["us"] = (seconds * 1e6).into();
        case["bytes"] = bytes.into();
        case["macs"] = macs.into();
        self.line(&case);
    }
}

/// The argument after a name.
fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn cuda() -> Cuda {
    Cuda::new(&CudaOptions::default()).expect("a card")
}

/// Copies of an operand and how often kernels go over them, for one that reads so many bytes.
fn repeats(bytes: usize) -> Repeats {
    if brief() {
        return Repeats { copies: 1, launches: 2 };
    }
    Repeats {
        copies: COPIES_BYTES.div_ceil(bytes).clamp(1, 512),
        launches: RUN_BYTES.div_ceil(bytes).clamp(24, 1024),
    }
}

/// The median of several runs, divided by their launches, in seconds.
fn seconds(launches: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..if brief() { 1 } else { RUNS })
        .map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] / launches as f64
}

/// As many tokens: of as many sequences where a decode has so many, else of a prompt.
fn tokens_of(count: usize) -> StepInput {
    if count <= 64 { decodes(count, 0) } else { step(0..count, 1) }
}

fn products(report: &mut Report) {
    let (matrices, tokens): (&[_], &[usize]) =
        if brief() { (&MATRICES[6..7], &[1, 8, 96]) } else { (&MATRICES, &TOKENS) };
    for &(shape, rows, cols) in matrices {
        for (format, codes) in FORMATS {
            if !report.goes_on(&format!("matmul {shape} {format}")) {
                return;
            }
            let source = Random(7).matrix(rows, cols, codes);
            let case = json!({ "op": "matmul", "shape": shape, "format": format });
            report.attempt(case, |report, case| product(report, case, &source, tokens));
        }
    }
}

/// A matrix with steps of each number of tokens: few on copies of it, many on one.
fn product(report: &mut Report, case: Value, source: &QuantMatrix, tokens: &[usize]) {
    let few = |&count: &usize| count <= 64;
    for group in tokens.chunk_by(|a, b| few(a) == few(b)) {
        let most = *group.last().expect("a group has a member");
        let Repeats { copies, launches } = repeats(source.bytes());
        let repeats = Repeats {
            copies: if few(&most) { copies } else { copies.min(16) },
            launches: if few(&most) { launches } else { launches.min(48) },
        };
        let mut products = Products::new(cuda(), source, repeats, tokens_of(most));
        for &count in group {
            products.set_step(tokens_of(count));
            products.assert_answer(source);
            let (rows, cols) = (source.rows(), source.cols());
            let mut case = case.clone();
            case["tokens"] = count.into();
            let bytes = source.bytes() + size_of::<f32>() * count * (rows + cols);
            let mut row = Row { case, bytes, macs: rows * cols * count, seconds: 0.0 };
            // Of many tokens there is a copy in f16, and sums that blocks hand over.
            let (scratch, tile) = if count <= 16 { (0.03, 8) } else { (1.5, 128) };
            if let Some(macs) = report.check(&row, scratch, repeats.launches, || products.run()) {
                assert_eq!(macs, (rows * cols * count.next_multiple_of(tile)) as f64, "{}", row.case);
            }
            row.seconds = seconds(repeats.launches, || products.run());
            report.row(row);
        }
    }
}

fn attentions(report: &mut Report) {
    let (contexts, prompts, sequences): (&[usize], &[usize], &[usize]) =
        if brief() { (&[112], &[48], &[3]) } else { (&[512, 4096], &[512, 2048, 8192], &[1, 4, 16, 64]) };
    for (model, heads) in &HEADS[..if brief() { 1 } else { HEADS.len() }] {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let decodes = contexts
                .iter()
                .flat_map(|&keys| sequences.iter().map(move |&count| (keys, decodes(count, keys - 1))));
            let prompts = prompts.iter().map(|&keys| (keys, step(0..keys, 1)));
            for (keys, step) in decodes.chain(prompts) {
                let (tokens, sequences) = (step.tokens.len(), step.sequences.len());
                let format = format!("{dtype:?}");
                let case = json!({
                    "op": "attention", "shape": model, "format": format, "keys": keys, "sequences": sequences,
                    "tokens": tokens,
                });
                if !report.goes_on(&case.to_string()) {
                    return;
                }
                report.attempt(case, |report, case| attention(report, case, (*heads, dtype), step));
            }
        }
    }
}

/// Attention over pages of one value, which is the answer, then timed over others.
fn attention(report: &mut Report, case: Value, (heads, dtype): (Heads, KvDtype), step: StepInput) {
    let (tokens, sequences) = (step.tokens.len(), step.sequences.len());
    let kv = KvLayout { layers: 1, kv_heads: heads.kv, head_dim: heads.dim, dtype };
    let bytes = kv.page_bytes() * step.pages.len();
    let Repeats { copies, launches } = repeats(bytes);
    let prompt = tokens > sequences;
    let (copies, launches) = (copies.min(256), if prompt { launches.min(24) } else { launches.min(256) });
    let seen: usize = step.positions.iter().map(|&position| position as usize + 1).sum();
    let mut layout = Layout::new(tokens);
    let (q, dst) = (layout.place(heads.query * heads.dim), layout.place(heads.query * heads.dim));
    let attention = |launch| {
        let (layer, scale) = (launch % copies, 1.0 / (heads.dim as f32).sqrt());
        Op::Attention(Attention { dst, q, layer, heads, scale, window: None, soft_cap: None })
    };
    let ops: Vec<Op> = (0..launches).map(attention).collect();
    let (kv, pages) = (KvLayout { layers: copies, ..kv }, step.pages.len());
    let room = Room { layout, kv, pages, ops: &ops };
    let weights = Weights { matrices: vec![], vectors: vec![] };
    let mut machine = Machine::new(cuda(), weights, step, room);
    machine.write(&q, &Random(3).values(tokens * q.cols));
    // 1 as f16; or 60 as a code, with a scale of the same bytes.
    let (bytes_of_one, value) = match dtype {
        KvDtype::F16 => ([0x00, 0x3c], 1.0),
        KvDtype::Int8 => ([0x3c, 0x3c], 60.0 * half::f16::from_bits(0x3c3c).to_f32()),
    };
    machine.fill_pages(pages, &bytes_of_one.repeat(kv.page_bytes() / 2));
    for _ in 0..3 {
        machine.write(&dst, &vec![f32::NAN; tokens * dst.cols]);
        machine.run(&ops);
    }
    let found = machine.read(&dst);
    assert!(found.iter().all(|x| (x - value).abs() < 1e-3 * value), "{value}: {:?}", &found[..8]);
    let moved = bytes + 2 * size_of::<f32>() * tokens * q.cols;
    // Timed over ordinary numbers: a card takes less power for equal ones, and so less time.
    let halves = Random(5).values(kv.page_bytes() / 2).into_iter().map(half::f16::from_f32);
    machine.fill_pages(pages, &halves.flat_map(half::f16::to_le_bytes).collect::<Vec<u8>>());
    let mut row = Row { case, bytes: moved, macs: 2 * seen * heads.query * heads.dim, seconds: 0.0 };
    // Splits hand over their parts. Decodes multiply without tensor cores, prompts in whole tiles.
    report.check(&row, 0.25, launches, || machine.run(&ops));
    row.seconds = seconds(launches, || machine.run(&ops));
    report.row(row);
}

fn main() {
    let emulator = brief().then(|| {
        let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
        let device = DeviceConfig { memory_statistics: true, ..options.device.clone() };
        cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator")
    });
    let mut report = Report::new(emulator);
    // Held to the end: the device's context is made once.
    let cuda = cuda();
    report.ceilings(&cuda);
    products(&mut report);
    attentions(&mut report);
    if report.wrong > 0 {
        println!("{} cases gave wrong answers", report.wrong);
        std::process::exit(1);
    }
}
