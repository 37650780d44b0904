//! Output of `ottava bench`, as a table or JSON.

use ottava::Engine;
use ottava::backend::NoHealth;
use serde_json::json;

use super::super::output::Bytes;
use super::super::visible::in_line;
use super::super::{Failure, health, output};
use super::ceiling::Ceiling;
use super::{Machine, Measurement, profile};

/// Prints a Markdown table, then the machine's limits and state.
pub fn print_table(engine: &Engine, machine: &Machine, results: &[Measurement]) -> Result<(), Failure> {
    let info = engine.info();
    let size = Bytes(info.file_bytes).to_string();
    let (known, bandwidth) = (machine.health.is_ok(), machine.ceiling.bandwidth);
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
            in_line(&info.name),
            info.parameters as f64 / 1e6,
            in_line(&info.device_name),
            info.threads,
            result.test.name,
            result.tokens_per_s,
            result.spread,
            result.bandwidth_percent.map_or_else(|| "-".into(), |percent| format!("{percent:.0}")),
            column(&format!(" {} |", result.health.as_ref().map(health::short).unwrap_or_default())),
        ))?;
    }
    let bandwidth = bandwidth.map_or_else(|| "unknown".into(), |rate| format!("{:.1} GB/s", rate / 1e9));
    let peak = machine.peak_bytes.map_or_else(|| "unknown".into(), |peak| Bytes(peak).to_string());
    output::print_line(format_args!(
        "\nread bandwidth {bandwidth}; weights {} resident, {} read a token; peak memory {peak}; loaded in {:.2} s",
        Bytes(info.memory.weight_bytes as u64),
        Bytes(info.step_weight_bytes as u64),
        info.load_seconds
    ))?;
    match &machine.health {
        Ok(_) | Err(NoHealth::Cpu) => {}
        Err(why) => output::print_line(format_args!("the GPU's health is not known: {why}"))?,
    }
    for warning in &machine.warnings {
        output::print_line(format_args!("warning: {warning}"))?;
    }
    profile::print(machine, results)
}

/// Prints one JSON object.
pub fn print_json(engine: &Engine, machine: &Machine, results: &[Measurement]) -> Result<(), Failure> {
    let info = engine.info();
    let results: Vec<_> = results
        .iter()
        .map(|result| {
            json!({
                "test": result.test.name,
                "tokens_per_s": result.tokens_per_s,
                "spread": result.spread,
                "bandwidth_percent": result.bandwidth_percent,
                "device_health": result.health.as_ref().map(health::known),
                "profile": result.profile.map(|steps| profile::as_json(&steps, &machine.ceiling)),
            })
        })
        .collect();
    output::print_json(&json!({
        "model": info.name,
        "file": info.path.to_string_lossy(),
        "file_bytes": info.file_bytes,
        "parameters": info.parameters,
        "device": info.device_name,
        "fallback": info.fallback,
        "threads": info.threads,
        "weight_bytes": info.memory.weight_bytes,
        "step_weight_bytes": info.step_weight_bytes,
        "kv_bytes": info.memory.kv_bytes,
        "load_s": info.load_seconds,
        "peak_memory_bytes": machine.peak_bytes,
        "read_bandwidth_bytes_per_s": machine.ceiling.bandwidth,
        "prefetch": machine.prefetch.map(|hint| hint.to_string()),
        "ceilings": machine.ceilings.iter().map(Ceiling::as_json).collect::<Vec<_>>(),
        "device_health": health::as_json(&machine.health),
        "warnings": machine.warnings,
        "results": results,
    }))
}
