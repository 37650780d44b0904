//! `ottava bench`: prefill and decode speed as a table like llama-bench's.
//!
//! `pp N` processes a prompt of N tokens in one request; `tg N` generates N tokens from a prompt
//! of one, `tg N xR` in each of R requests at once. Each is warmed up once and repeated; the table gives
//! mean and standard deviation, and decode's share of the read bandwidth measured on the same machine
//! with the same threads. Where a GPU tells of its health, each measurement has its hottest moment beside
//! it: it is asked after each repetition, when no clock runs.

use std::time::Instant;

use clap::Args;
use ottava::backend::{DeviceHealth, NoHealth};
use ottava::engine::{EngineConfig, Timings};
use ottava::{Bytes, Engine, Request, TokenId};
use serde_json::json;

use super::options::ModelOptions;
use super::run::{Flow, answer};
use super::{Failure, bandwidth, health, memory, output};

/// Arguments of `bench`.
#[derive(Args)]
pub struct Bench {
    /// Prompt lengths to measure
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Numbers of generated tokens to measure
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,
    /// Requests at once that generate
    #[arg(long, value_delimiter = ',', default_value = "1")]
    parallel: Vec<usize>,
    /// Repetitions of each
    #[arg(short = 'r', long, default_value_t = 5)]
    repetitions: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// One line of the table.
struct Measurement {
    test: String,
    tokens_per_s: f64,
    spread: f64,
    /// Bytes a second of weights that the speed means; decode only.
    weight_bytes_per_s: Option<f64>,
    /// How the device was meanwhile.
    health: Option<DeviceHealth>,
}

/// What the measurements are read against.
struct Machine {
    /// Bytes a second that the same threads, or the same GPU, read from memory.
    bandwidth: Option<f64>,
    /// Most memory that the model and its runs took.
    peak_bytes: Option<u64>,
    /// How the device is at the end.
    health: Result<DeviceHealth, NoHealth>,
}

impl Bench {
    /// Measures and prints.
    pub fn run(mut self) -> Result<(), Failure> {
        if self.repetitions == 0 {
            return Err(Failure::Usage("-r must be at least 1".into()));
        }
        let longest = self.prompt.iter().chain(&self.generate).max().copied().unwrap_or(0) + 2;
        // The cache has room for two contexts unless told otherwise.
        let room = longest * self.parallel.iter().max().map_or(1, |requests| requests.div_ceil(2).max(1));
        if self.model.context.is_none_or(|context| context.get() < room) {
            self.model.context = std::num::NonZeroUsize::new(room);
        }
        let scheduling = EngineConfig { share_prefixes: false, ..EngineConfig::default() };
        let engine = self.model.engine_with(scheduling)?;
        let mut results = Vec::new();
        for &tokens in self.prompt.iter().filter(|&&tokens| tokens > 0) {
            let run = || Ok(once(&engine, tokens, 1)?.prefill_tokens_per_s);
            results.push(self.measure(&engine, format!("pp{tokens}"), None, run)?);
        }
        let step_bytes = engine.info().step_weight_bytes as f64;
        for &tokens in self.generate.iter().filter(|&&tokens| tokens > 0) {
            for &requests in self.parallel.iter().filter(|&&requests| requests > 0) {
                let bytes_a_token = Some(step_bytes / requests as f64);
                let measurement = match requests {
                    1 => self.measure(&engine, format!("tg{tokens}"), bytes_a_token, || {
                        Ok(once(&engine, 1, tokens)?.decode_tokens_per_s)
                    }),
                    _ => self.measure(&engine, format!("tg{tokens} x{requests}"), bytes_a_token, || {
                        at_once(&engine, requests, tokens)
                    }),
                };
                results.push(measurement?);
            }
        }
        let (peak_bytes, health) = (memory::peak_bytes(), engine.health());
        // Last, since its buffer is larger than many a model.
        let bandwidth = match engine.info().threads {
            0 => bandwidth::of_gpu(self.model.device),
            threads => Some(bandwidth::measure(threads)),
        };
        let machine = Machine { bandwidth, peak_bytes, health };
        if self.json {
            print_json(&engine, &machine, &results)
        } else {
            print_table(&engine, &machine, &results)
        }
    }

    /// Tokens a second, of which `run` gives one measurement; of decodes also the bytes of weights that a
    /// token takes.
    fn measure(
        &self,
        engine: &Engine,
        test: String,
        bytes_a_token: Option<f64>,
        run: impl Fn() -> Result<f64, Failure>,
    ) -> Result<Measurement, Failure> {
        run()?;
        let (mut rates, mut health) = (Vec::with_capacity(self.repetitions), None);
        for _ in 0..self.repetitions {
            rates.push(run()?);
            health = engine.health().ok().map(|now| health::together(health, now));
        }
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
        let weight_bytes_per_s = bytes_a_token.map(|bytes| mean * bytes);
        Ok(Measurement { test, tokens_per_s: mean, spread: variance.sqrt(), weight_bytes_per_s, health })
    }
}

/// Tokens a second of several requests at once: all that they generate, over the time to the last.
fn at_once(engine: &Engine, requests: usize, generate: usize) -> Result<f64, Failure> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..requests).map(|_| scope.spawn(|| once(engine, 1, generate))).collect();
        readers.into_iter().try_for_each(|reader| match reader.join() {
            Ok(outcome) => outcome.map(|_| ()),
            Err(_) => Err(Failure::Failed("a reader stopped".into())),
        })
    })?;
    Ok((requests * (generate + 1)) as f64 / started.elapsed().as_secs_f64())
}

/// One request of pseudo-random prompt tokens that runs to its full length.
fn once(engine: &Engine, prompt: usize, generate: usize) -> Result<Timings, Failure> {
    let vocab = engine.vocab().len() as u64;
    // Knuth's multiplicative hash spreads the ids over the vocabulary.
    let id =
        |i: usize| TokenId((i as u64).wrapping_mul(2_654_435_761).wrapping_add(17).rem_euclid(vocab) as u32);
    // The first generated token comes from the prompt's own step; `generate` more are decoded.
    let request = Request::tokens((0..prompt).map(id).collect()).ignore_eos().max_tokens(generate + 1);
    Ok(answer(engine, request, |_| Ok(Flow::Continue))?.timings)
}

fn percent(measurement: &Measurement, bandwidth: Option<f64>) -> Option<f64> {
    Some(100.0 * measurement.weight_bytes_per_s? / bandwidth?)
}

fn print_table(engine: &Engine, machine: &Machine, results: &[Measurement]) -> Result<(), Failure> {
    let info = engine.info();
    let size = Bytes(usize::try_from(info.file_bytes).unwrap_or(usize::MAX)).to_string();
    let known = machine.health.is_ok();
    let column = |text: &str| if known { text.to_owned() } else { String::new() };
    output::print_line(format_args!(
        "| model | size | params | device | threads | test | tokens/s | % of read bandwidth |{}",
        column(" GPU |")
    ))?;
    output::print_line(format_args!(
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |{}",
        column(" --- |")
    ))?;
    for result in results {
        output::print_line(format_args!(
            "| {} | {size} | {:.2} M | {} | {} | {} | {:.2} ± {:.2} | {} |{}",
            info.name,
            info.parameters as f64 / 1e6,
            info.device,
            info.threads,
            result.test,
            result.tokens_per_s,
            result.spread,
            percent(result, machine.bandwidth).map_or_else(|| "-".into(), |percent| format!("{percent:.0}")),
            column(&format!(" {} |", result.health.as_ref().map(health::short).unwrap_or_default())),
        ))?;
    }
    let bandwidth =
        machine.bandwidth.map_or_else(|| "unknown".into(), |rate| format!("{:.1} GB/s", rate / 1e9));
    let peak = machine.peak_bytes.map_or_else(|| "unknown".into(), |peak| Bytes(peak as usize).to_string());
    output::print_line(format_args!(
        "\nread bandwidth {bandwidth}; weights {} resident, {} read a token; peak memory {peak}; loaded in {:.2} s",
        Bytes(info.weight_bytes),
        Bytes(info.step_weight_bytes),
        info.load_seconds
    ))?;
    match &machine.health {
        Ok(_) | Err(NoHealth::Cpu) => Ok(()),
        Err(why) => output::print_line(format_args!("the GPU's health is not known: {why}")),
    }
}

fn print_json(engine: &Engine, machine: &Machine, results: &[Measurement]) -> Result<(), Failure> {
    let info = engine.info();
    let results: Vec<_> = results
        .iter()
        .map(|result| {
            json!({
                "test": result.test,
                "tokens_per_s": result.tokens_per_s,
                "spread": result.spread,
                "bandwidth_percent": percent(result, machine.bandwidth),
                "device_health": result.health.as_ref().map(health::known),
            })
        })
        .collect();
    output::print_json(&json!({
        "model": info.name,
        "file": info.path,
        "file_bytes": info.file_bytes,
        "parameters": info.parameters,
        "device": info.device,
        "threads": info.threads,
        "weight_bytes": info.weight_bytes,
        "step_weight_bytes": info.step_weight_bytes,
        "kv_bytes": info.kv_bytes,
        "load_s": info.load_seconds,
        "peak_memory_bytes": machine.peak_bytes,
        "read_bandwidth_bytes_per_s": machine.bandwidth,
        "device_health": health::as_json(&machine.health),
        "results": results,
    }))
}
