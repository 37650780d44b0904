//! `ottava bench`: prefill and decode speed as a table like llama-bench's.
//!
//! `pp N` processes a prompt of N tokens in one request; `tg N` generates N tokens, `tg N xR` in each of R
//! concurrent requests; `@ dD` follows a past of D tokens, which is in the cache before the clock runs. Each
//! test is warmed up once and repeated. The table has mean and standard deviation, and decode's share of the
//! read bandwidth.
//!
//! The bandwidth of a shared machine varies. So the share is measured in pieces of a tenth of a second, each
//! relative to the bandwidth of the same threads right before and after it; the median counts. If a GPU
//! reports its health, each row has the hottest sample; one is taken after each repetition, off the clock.
//! `--profile` repeats each test with its operations timed, and compares them with the machine's limits.

mod ceiling;
mod load;
mod profile;
mod report;
mod warnings;

use clap::Args;
use ottava::Engine;
use ottava::backend::cpu::PrefetchHint;
use ottava::backend::{DeviceHealth, NoHealth};
use ottava::engine::{EngineConfig, StepProfile};
use ottava::ir::PAGE_TOKENS;
use ottava::model::ModelConfig;

use self::ceiling::{Ceiling, Meter};
use self::load::{Load, Prompt};
use super::numbers::whole;
use super::options::{ModelOptions, of_file};
use super::{Failure, health, memory};

/// Decode pieces per repetition that are compared with the read bandwidth.
const PIECES: usize = 8;
/// Duration of a piece: that of a bandwidth measurement.
const PIECE_SECONDS: f64 = 0.1;

/// Maximum tokens of a prompt, an answer or a past.
const LENGTH_MAX: usize = 1 << 20;
/// Maximum concurrent requests: the engine's limit.
const REQUESTS_MAX: usize = 256;
/// Maximum repetitions.
const REPETITIONS_MAX: usize = 1000;
/// Maximum rows of the table.
const TESTS_MAX: usize = 1000;

/// Arguments of `bench`.
#[derive(Args)]
pub struct Bench {
    /// Prompt lengths to measure, in tokens, each 0 to 1048576; 0 skips the test
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512",
          allow_hyphen_values = true, value_parser = whole(0, LENGTH_MAX))]
    prompt: Vec<usize>,
    /// Numbers of generated tokens to measure, each 0 to 1048576; 0 skips the test
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128",
          allow_hyphen_values = true, value_parser = whole(0, LENGTH_MAX))]
    generate: Vec<usize>,
    /// Lengths of the cached past before each test, in tokens, each 0 to 1048576
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0",
          allow_hyphen_values = true, value_parser = whole(0, LENGTH_MAX))]
    depth: Vec<usize>,
    /// Numbers of concurrent requests that generate, each 1 to 256
    #[arg(long, value_delimiter = ',', default_value = "1",
          allow_hyphen_values = true, value_parser = whole(1, REQUESTS_MAX))]
    parallel: Vec<usize>,
    /// Repetitions of each test, 1 to 1000; the lists may make at most 1000 tests
    #[arg(short = 'r', long, default_value_t = 5,
          allow_hyphen_values = true, value_parser = whole(1, REPETITIONS_MAX))]
    repetitions: usize,
    /// Repeat each test with its operations timed, and print them with the machine's limits
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// A row of the table, measured after a past of `depth` tokens.
struct Test {
    name: String,
    depth: usize,
    work: TestWork,
}

enum TestWork {
    /// Number of prompt tokens.
    Prefill(usize),
    /// `tokens` generated tokens in each of `requests` concurrent requests.
    Decode { tokens: usize, requests: usize },
}

/// Bytes that a decode step reads.
#[derive(Clone, Copy)]
struct StepBytes {
    weights: f64,
    /// Keys and values of one token.
    kv_token: f64,
}

/// The result of one test.
struct Measurement {
    test: Test,
    tokens_per_s: f64,
    spread: f64,
    /// Share of the read bandwidth that reading weights, keys and values takes; decode only.
    bandwidth_percent: Option<f64>,
    /// Device health during the test.
    health: Option<DeviceHealth>,
    /// With `--profile`: the prefill steps or the decode steps.
    profile: Option<StepProfile>,
}

/// Limits and state of the machine, for comparison with the measurements.
struct Machine {
    /// Limits of the same threads, or the same GPU.
    ceiling: Ceiling,
    /// With `--profile`: the limits of several numbers of threads.
    ceilings: Vec<Ceiling>,
    /// Peak memory of the model and its runs.
    peak_bytes: Option<u64>,
    /// Device health after the last measurement.
    health: Result<DeviceHealth, NoHealth>,
    /// Hint of the CPU's weight prefetches; `None` for a GPU.
    prefetch: Option<PrefetchHint>,
    /// A line per slow decode; empty for a GPU.
    warnings: Vec<String>,
}

impl Bench {
    /// Measures and prints.
    pub fn run(mut self) -> Result<(), Failure> {
        for list in [&mut self.prompt, &mut self.generate] {
            list.retain(|&count| count > 0);
        }
        self.check_tests()?;
        let kv_token = self.make_room()?;
        // A past has to be found in the cache. Without one, prompts must not be.
        let share_prefixes = self.depth.iter().any(|&depth| depth > 0);
        let engine = self.model.engine_with(EngineConfig { share_prefixes, ..EngineConfig::default() })?;
        let loaded = memory::peak_bytes();
        let meter = Meter::new(engine.info().threads, &self.model)?;
        let load = Load::new(&engine);
        let bytes = StepBytes { weights: engine.info().step_weight_bytes as f64, kv_token };
        let tests = self.tests().into_iter();
        let results = tests.map(|test| self.measure(test, bytes, &engine, &load, &meter));
        let results = results.collect::<Result<Vec<_>, Failure>>()?;
        // The meter's buffer is larger than many models, so the peak is corrected by its size.
        let running = memory::peak_bytes().map(|peak| peak.saturating_sub(meter.bytes()));
        let (peak_bytes, health) = (loaded.max(running), engine.health());
        let ceilings = if self.profile { meter.all(&self.model)? } else { Vec::new() };
        let own = ceilings.iter().find(|ceiling| ceiling.threads == engine.info().threads);
        let ceiling = own.copied().unwrap_or_else(|| meter.ceiling());
        let prefetch = meter.prefetch();
        let warnings = if prefetch.is_some() { warnings::warnings(&results) } else { Vec::new() };
        let machine = Machine { ceiling, ceilings, peak_bytes, health, prefetch, warnings };
        if self.json {
            report::print_json(&engine, &machine, &results)
        } else {
            report::print_table(&engine, &machine, &results)
        }
    }

    /// Fails if there is nothing to measure, or more than [`TESTS_MAX`] tests.
    fn check_tests(&self) -> Result<(), Failure> {
        let decodes = self.generate.len().saturating_mul(self.parallel.len());
        let tests = self.depth.len().saturating_mul(self.prompt.len().saturating_add(decodes));
        match tests {
            0 => Err(Failure::Usage("nothing to measure: -p and -n are 0".into())),
            1..=TESTS_MAX => Ok(()),
            _ => Err(Failure::Usage(format!(
                "-p, -n, -d and --parallel: expected at most {TESTS_MAX} measurements, found {tests}"
            ))),
        }
    }

    /// Raises the context so that all tests fit, and sets the size of the KV cache unless it is given.
    /// Returns the bytes of a token's keys and values.
    fn make_room(&mut self) -> Result<f64, Failure> {
        let most = |list: &[usize]| list.iter().max().copied().unwrap_or(0);
        let (depth, generate) = (most(&self.depth), most(&self.generate));
        let longest = depth + most(&self.prompt).max(generate) + 2;
        if self.model.context.is_none_or(|context| context < longest) {
            self.model.context = Some(longest);
        }
        let file = self.model.checkpoint()?;
        let config = ModelConfig::from_file(&*file).map_err(|error| of_file(file.path(), error.into()))?;
        if longest > config.context_length {
            let context = config.context_length;
            return Err(Failure::Failed(format!(
                "-d, -p and -n: the longest measurement takes {longest} tokens, the model's context has {context}"
            )));
        }
        let page = config.kv_layout(self.model.kv_dtype()).page_bytes();
        // The cache keeps the tokens of one repetition during the next one.
        let decodes = most(&self.parallel) * (depth + 2 * generate + 2 * PAGE_TOKENS);
        let pages = (decodes + 2 * longest).div_ceil(PAGE_TOKENS);
        self.model.kv_budget.get_or_insert(pages.saturating_mul(page).div_ceil(1 << 20));
        Ok(page as f64 / PAGE_TOKENS as f64)
    }

    /// The table's rows: for each past the prompts, then the decodes.
    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &depth in &self.depth {
            let behind = if depth > 0 { format!(" @ d{depth}") } else { String::new() };
            for &fresh in &self.prompt {
                tests.push(Test {
                    name: format!("pp{fresh}{behind}"),
                    depth,
                    work: TestWork::Prefill(fresh),
                });
            }
            for &tokens in &self.generate {
                for &requests in &self.parallel {
                    let at_once = if requests > 1 { format!(" x{requests}") } else { String::new() };
                    let name = format!("tg{tokens}{at_once}{behind}");
                    tests.push(Test { name, depth, work: TestWork::Decode { tokens, requests } });
                }
            }
        }
        tests
    }

    /// Tokens per second, and a decode's share of the read bandwidth. The profile is made in additional
    /// repetitions, so that it does not slow down those that count.
    fn measure(
        &self,
        test: Test,
        bytes: StepBytes,
        engine: &Engine,
        load: &Load<'_>,
        meter: &Meter,
    ) -> Result<Measurement, Failure> {
        test.prepare(load)?;
        test.run(load)?;
        let (mut rates, mut shares, mut health) = (Vec::new(), Vec::new(), None);
        for _ in 0..self.repetitions {
            let rate = test.run(load)?;
            rates.push(rate);
            test.add_shares(rate, bytes, load, meter, &mut shares)?;
            health = engine.health().ok().map(|now| health::together(health, now));
        }
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance =
            rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (rates.len().max(2) - 1) as f64;
        let mut profile = None;
        if self.profile {
            engine.start_profile()?;
            for _ in 0..self.repetitions {
                test.run(load)?;
            }
            let found = engine.take_profile()?;
            profile = Some(match test.work {
                TestWork::Prefill(_) => found.prefill,
                TestWork::Decode { .. } => found.decode,
            });
        }
        let (spread, bandwidth_percent) = (variance.sqrt(), median(shares));
        Ok(Measurement { test, tokens_per_s: mean, spread, bandwidth_percent, health, profile })
    }
}

impl Test {
    /// Fills the cache with the past.
    fn prepare(&self, load: &Load<'_>) -> Result<(), Failure> {
        let requests = match self.work {
            TestWork::Prefill(_) => 1,
            TestWork::Decode { requests, .. } => requests,
        };
        if self.depth > 0 { load.fill(self.depth, requests) } else { Ok(()) }
    }

    /// Runs the test once; returns tokens per second.
    fn run(&self, load: &Load<'_>) -> Result<f64, Failure> {
        match self.work {
            TestWork::Prefill(fresh) => load.prefill(Prompt { depth: self.depth, fresh }),
            TestWork::Decode { tokens, requests } => load.decode(self.depth, tokens, requests),
        }
    }

    /// Adds a decode's shares of the read bandwidth, in per cent, to `shares`. If the device's bandwidth is
    /// steady, that is one share, computed from `rate` tokens per second; otherwise one per measured piece.
    fn add_shares(
        &self,
        rate: f64,
        bytes: StepBytes,
        load: &Load<'_>,
        meter: &Meter,
        shares: &mut Vec<f64>,
    ) -> Result<(), Failure> {
        let TestWork::Decode { tokens, requests } = self.work else { return Ok(()) };
        let percent = |rate: f64, tokens: usize, bandwidth: f64| {
            let past = self.depth as f64 + tokens as f64 / 2.0;
            100.0 * rate * (bytes.weights / requests as f64 + bytes.kv_token * past) / bandwidth
        };
        let Some(mut before) = meter.bandwidth() else { return Ok(()) };
        if meter.is_steady() {
            shares.push(percent(rate, tokens, before));
            return Ok(());
        }
        // Requests start one after another, so a piece has at least a token for each of them.
        let piece = ((rate / requests as f64 * PIECE_SECONDS) as usize).clamp(requests.min(tokens), tokens);
        for _ in 0..PIECES {
            let rate = load.decode(self.depth, piece, requests)?;
            let Some(after) = meter.bandwidth() else { return Ok(()) };
            shares.push(percent(rate, piece, (before + after) / 2.0));
            before = after;
        }
        Ok(())
    }
}

/// The median; of an even number of values, the mean of the middle two. `None` without values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = values.len().checked_sub(1)? / 2;
    Some((values[lower] + values[upper]) / 2.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn medians() {
        let median = |values: &[f64]| super::median(values.to_vec());
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 9.0, 1.0]), Some(3.0));
        assert_eq!(median(&[4.0, 9.0, 1.0, 2.0]), Some(3.0));
    }
}
