//! A line for each case, printed and as JSON; and until when cases are measured.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cuda_emu::Emulator;
use ottava::backend::Backend;
use ottava::backend::cuda::{Bandwidth, Cuda};
use serde_json::{Value, json};

use super::cost::{Launches, Measured, counts, since};
use super::support::brief;
use super::support::machine::Machine;

/// What the ceilings are measured with.
const CEILING_BYTES: usize = 1 << 30;
/// Replays of a graph that are timed.
const REPLAYS: usize = 7;

/// Where rows go, and until when they are made.
pub struct Report {
    json: Option<File>,
    end: Option<Instant>,
    ended: bool,
    read: f64,
    /// The emulated card, which counts.
    counter: Option<Emulator>,
    pub wrong: usize,
}

impl Report {
    pub fn new(counter: Option<Emulator>) -> Report {
        let json = argument("--json").map(|path| File::create(path).expect("a file that can be written"));
        let seconds = argument("--seconds").map(|seconds| seconds.parse().expect("a number of seconds"));
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let counter = counter.filter(Emulator::is_emulated);
        Report { json, end, ended: false, read: 0.0, counter, wrong: 0 }
    }

    /// Whether there is time for another case; says once if there is none.
    pub fn goes_on(&mut self, what: &str) -> bool {
        let goes_on = self.end.is_none_or(|end| Instant::now() < end);
        if !goes_on && !self.ended {
            println!("MISSING  {what} and what follows: out of time");
            self.ended = true;
        }
        goes_on
    }

    fn line(&mut self, value: &Value) {
        if let Some(file) = &mut self.json {
            writeln!(file, "{value}").expect("room for a line");
        }
    }

    pub fn ceilings(&mut self, cuda: &Cuda) {
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

    /// Measures a case if there is time; a wrong answer is told, and others are measured all the same.
    pub fn attempt(&mut self, case: Value, measure: impl FnOnce(&mut Report, Value)) {
        let name = case.to_string();
        if self.goes_on(&name) && catch_unwind(AssertUnwindSafe(|| measure(self, case))).is_err() {
            println!("WRONG    {name}");
            self.wrong += 1;
        }
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

    pub fn row(&mut self, mut case: Value, measured: &Measured) {
        let Measured { cost, seconds, .. } = measured;
        let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
        let name = format!("{} {} {}", text("op"), text("shape"), text("format"));
        let keys = case["keys"].as_u64().map_or_else(String::new, |keys| format!("{keys} keys, "));
        let rate = cost.moved as f64 / seconds;
        println!(
            "{name:30} {keys}{} tokens: {:10.2} us {:7.1} GB/s {:3.0} % of read {:7.1} TFLOP/s",
            case["tokens"],
            seconds * 1e6,
            rate / 1e9,
            100.0 * rate / self.read,
            2.0 * cost.macs as f64 / seconds / 1e12,
        );
        case["us"] = (seconds * 1e6).into();
        case["bytes"] = cost.moved.into();
        case["macs"] = cost.macs.into();
        self.line(&case);
    }
}

/// The argument after a name.
fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}
