//! A line for each case, printed and as JSON; and until when cases are measured.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cuda_emu::Emulator;
use ottava::backend::Backend;
use ottava::backend::cuda::{Bandwidth, Cuda, CudaOptions};
use serde_json::{Map, Value, json};

use super::cost::{Launches, Measured, counts, since};
use super::selection::{Case, Variant};
use super::support::brief;
use super::support::machine::Machine;

/// What the ceilings are measured with.
const CEILING_BYTES: usize = 1 << 30;
/// Replays of a graph that are timed.
const REPLAYS: usize = 7;

/// Where rows go, and until when they are made.
pub struct Report {
    /// How backends are set up; by its name rows are told apart where there are several.
    pub variant: Variant,
    pub names_variants: bool,
    json: Option<File>,
    end: Option<Instant>,
    ended: bool,
    /// The card's name, which every row has.
    device: String,
    read: f64,
    /// The emulated card, which counts.
    counter: Option<Emulator>,
    /// What a case gave first.
    first: HashMap<String, Vec<f32>>,
    pub wrong: usize,
}

impl Report {
    pub fn new(counter: Option<Emulator>, variant: Variant) -> Report {
        let json = argument("--json").map(|path| File::create(path).expect("a file that can be written"));
        let seconds = argument("--seconds").map(|seconds| seconds.parse().expect("a number of seconds"));
        Report {
            variant,
            names_variants: false,
            json,
            end: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            ended: false,
            device: String::new(),
            read: 0.0,
            counter: counter.filter(Emulator::is_emulated),
            first: HashMap::new(),
            wrong: 0,
        }
    }

    /// A backend as the variant has it.
    pub fn cuda(&self) -> Cuda {
        Cuda::with_switches(&CudaOptions::default(), self.variant.switches).expect("a card")
    }

    /// Whether there is time for another case; says once if there is none.
    fn has_time_for(&mut self, what: &str) -> bool {
        let has_time = self.end.is_none_or(|end| Instant::now() < end);
        if !has_time && !self.ended {
            println!("MISSING  {what} and what follows: out of time");
            self.ended = true;
        }
        has_time
    }

    fn line(&mut self, mut row: Map<String, Value>) {
        row.insert("device".into(), self.device.as_str().into());
        if self.names_variants {
            row.insert("switch".into(), self.variant.name.into());
        }
        if let Some(file) = &mut self.json {
            writeln!(file, "{}", Value::Object(row)).expect("room for a line");
        }
    }

    pub fn ceilings(&mut self, cuda: &Cuda) {
        self.device.clone_from(&cuda.device().name);
        let bytes = if brief() { 1 << 20 } else { CEILING_BYTES };
        let Bandwidth { read, copy } = cuda.bandwidth(bytes).expect("memory");
        assert!(read > 0.0 && copy > 0.0);
        let (read_gb_s, copy_gb_s) = (read / 1e9, copy / 1e9);
        println!("{}\nmemory: read {read_gb_s:.1} GB/s, copy {copy_gb_s:.1} GB/s", cuda.describe());
        if let Value::Object(row) = json!({ "op": "ceiling", "read_gb_s": read_gb_s, "copy_gb_s": copy_gb_s })
        {
            self.line(row);
        }
        self.read = read;
    }

    /// Says that a profiler has seen a case.
    pub fn profiled(&self, case: &Case) {
        println!("profiled {} {} {}, {} tokens", case.op, case.shape, case.format, case.tokens);
    }

    /// Measures a case if there is time; a wrong answer is told, and others are measured all the same.
    pub fn attempt(&mut self, case: &Case, measure: impl FnOnce(&mut Report)) {
        let name = format!("{case:?}");
        if self.has_time_for(&name) && catch_unwind(AssertUnwindSafe(|| measure(self))).is_err() {
            println!("WRONG    {name}, {}", self.variant.name);
            self.wrong += 1;
        }
    }

    /// Panics unless an answer has the bits that it had with other switches: they change when kernels run,
    /// never what they compute.
    pub fn assert_bits_of_others(&mut self, case: &Case, found: &[f32]) {
        assert!(found.iter().all(|x| x.is_finite()), "numbers");
        let first = self.first.entry(format!("{case:?}")).or_insert_with(|| found.to_vec());
        let same = first.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "other bits than with other switches: {:?} for {:?}", &found[..4], &first[..4]);
    }

    /// Times a graph of launches: the median of its replays, by the card's clock.
    pub fn time(&self, machine: &mut Machine<Cuda>, launches: &Launches<'_>) -> Measured {
        let replays = if brief() { 1 } else { REPLAYS };
        let before = self.counter.map(counts);
        let timed = machine.with_frame(|cuda, frame| cuda.replay_seconds(launches.ops, frame, replays));
        let mut seconds = timed.expect("operations that can be replayed");
        seconds.sort_by(f64::total_cmp);
        // What is timed has run twice before.
        let runs = replays + 2;
        let counted = self.counter.zip(before);
        let counted =
            counted.map(|(counter, before)| (since(&before, counts(counter)), runs * launches.count()));
        let seconds = seconds[seconds.len() / 2] / launches.count() as f64;
        Measured { cost: launches.cost(machine), seconds, counted }
    }

    pub fn row(&mut self, case: &Case, measured: &Measured) {
        let Measured { cost, seconds, .. } = measured;
        let Case { op, shape, format, tokens, keys, .. } = case;
        let keys = if *keys > 0 { format!("{keys} keys, ") } else { String::new() };
        let variant = if self.names_variants { self.variant.name } else { "" };
        let rate = cost.moved as f64 / seconds;
        println!(
            "{:30} {keys}{tokens} tokens: {:10.2} us {:7.1} GB/s {:3.0} % of read {:7.1} TFLOP/s {variant}",
            format!("{op} {shape} {format}"),
            seconds * 1e6,
            rate / 1e9,
            100.0 * rate / self.read,
            2.0 * cost.macs as f64 / seconds / 1e12,
        );
        let mut row = case.as_json();
        row.insert("us".into(), (seconds * 1e6).into());
        row.insert("bytes".into(), cost.moved.into());
        row.insert("macs".into(), cost.macs.into());
        self.line(row);
    }
}

/// The argument after a name.
fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}
