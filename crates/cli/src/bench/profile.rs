//! A profile compared with the machine's limits: the time and work of each kind of operation, and its
//! floor, the minimum time in which memory and cores could do that work (Williams et al. 2009, "Roofline").

use std::time::Duration;

use ottava::engine::StepProfile;
use ottava::ir::{OpKind, Work};
use serde_json::{Value, json};

use super::super::{Failure, output};
use super::ceiling::Ceiling;
use super::{Machine, Measurement};

const HEAD: &str = "µs a token | % of time | MB a token | GB/s | % of bandwidth | MMAC a token | GMAC/s \
                    | % of peak | floor, µs | % of floor |\n\
                    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
const LEGEND: &str = "\nfloor: the larger of what the memory needs for the bytes and the cores for the \
                      multiply-adds, where these are known. Each byte of weights, keys and values counts once \
                      a step, each multiply-add once, in however many terms it is computed. host: what the \
                      engine does between operations.";

/// A row of a profile; times (in seconds) and amounts are per token.
#[derive(Debug, PartialEq)]
struct Row {
    name: &'static str,
    time: f64,
    /// Share of the total time, 0 to 1.
    share: f64,
    bytes: f64,
    macs: f64,
    /// Minimum time for the bytes, and for the multiply-adds; `None` without any or without a known ceiling.
    memory: Option<f64>,
    cores: Option<f64>,
}

impl Row {
    fn floor(&self) -> Option<f64> {
        [self.memory, self.cores].into_iter().flatten().reduce(f64::max)
    }

    /// `least` in per cent of the row's time.
    fn percent(&self, least: Option<f64>) -> Option<f64> {
        least.filter(|_| self.time > 0.0).map(|least| 100.0 * least / self.time)
    }

    /// `amount` per second; `None` if it or the time is 0.
    fn rate(&self, amount: f64) -> Option<f64> {
        (amount > 0.0 && self.time > 0.0).then(|| amount / self.time)
    }
}

/// Rows for the kinds of operations, the host, and the total; none without tokens.
fn rows(steps: &StepProfile, ceiling: &Ceiling) -> Vec<Row> {
    if steps.tokens == 0 {
        return Vec::new();
    }
    let (tokens, whole) = (steps.tokens as f64, steps.busy.as_secs_f64());
    let row = |name, time: Duration, work: Work| {
        let (bytes, int8, float) =
            (work.bytes as f64 / tokens, work.int8_macs as f64 / tokens, work.float_macs as f64 / tokens);
        let (time, macs) = (time.as_secs_f64(), int8 + float);
        Row {
            name,
            time: time / tokens,
            share: time / whole,
            bytes,
            macs,
            memory: ceiling.bandwidth.filter(|_| bytes > 0.0).map(|rate| bytes / rate),
            cores: ceiling.peaks.filter(|_| macs > 0.0).map(|peaks| int8 / peaks.int8 + float / peaks.f32),
        }
    };
    let all = steps.ops.iter().map(|time| time.work).sum();
    let kinds = OpKind::ALL.into_iter().zip(&steps.ops);
    kinds
        .map(|(kind, time)| row(kind.name(), time.total, time.work))
        .chain([row("host", steps.host(), Work::default()), row("total", steps.busy, all)])
        .collect()
}

/// Prints the ceilings and a table for each measurement that has a profile.
pub fn print(machine: &Machine, results: &[Measurement]) -> Result<(), Failure> {
    if machine.ceilings.is_empty() {
        return Ok(());
    }
    output::print_line("\n| threads | read bandwidth, GB/s | int8 peak, GMAC/s | f32 peak, GMAC/s |")?;
    output::print_line("| ---: | ---: | ---: | ---: |")?;
    for ceiling in &machine.ceilings {
        let giga = |rate: Option<f64>| cell(rate.map(|rate| rate / 1e9), 1);
        let (int8, f32) = (ceiling.peaks.map(|peaks| peaks.int8), ceiling.peaks.map(|peaks| peaks.f32));
        let (bandwidth, int8, f32) = (giga(ceiling.bandwidth), giga(int8), giga(f32));
        output::print_line(format_args!("| {} | {bandwidth} | {int8} | {f32} |", ceiling.threads))?;
    }
    if let Some(hint) = machine.prefetch {
        output::print_line(format_args!("weight prefetch of one token: {hint}"))?;
    }
    for result in results {
        let Some(steps) = &result.profile else { continue };
        output::print_line(format_args!("\n| {} | {HEAD}", result.test.name))?;
        for row in rows(steps, &machine.ceiling) {
            print_row(&row)?;
        }
    }
    output::print_line(LEGEND)?;
    if machine.ceiling.threads == 0 {
        output::print_line("On a GPU each operation was waited for: less time passes where they run on.")?;
    }
    Ok(())
}

fn print_row(row: &Row) -> Result<(), Failure> {
    let amount = |amount: f64| cell((amount > 0.0).then_some(amount / 1e6), 3);
    let rate = |amount| cell(row.rate(amount).map(|rate| rate / 1e9), 1);
    output::print_line(format_args!(
        "| {} | {:.1} | {:.1} | {} | {} | {} | {} | {} | {} | {} | {} |",
        row.name,
        1e6 * row.time,
        100.0 * row.share,
        amount(row.bytes),
        rate(row.bytes),
        cell(row.percent(row.memory), 0),
        amount(row.macs),
        rate(row.macs),
        cell(row.percent(row.cores), 0),
        cell(row.floor().map(|floor| 1e6 * floor), 1),
        cell(row.percent(row.floor()), 0),
    ))
}

/// A number as a cell of a table; a dash if unknown.
fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// The profile as JSON.
pub fn as_json(steps: &StepProfile, ceiling: &Ceiling) -> Value {
    let row = |row: Row| {
        json!({
            "kind": row.name,
            "us_per_token": 1e6 * row.time,
            "share_percent": 100.0 * row.share,
            "bytes_per_token": row.bytes,
            "bytes_per_s": row.rate(row.bytes),
            "bandwidth_percent": row.percent(row.memory),
            "macs_per_token": row.macs,
            "macs_per_s": row.rate(row.macs),
            "peak_percent": row.percent(row.cores),
            "floor_us_per_token": row.floor().map(|floor| 1e6 * floor),
            "floor_percent": row.percent(row.floor()),
        })
    };
    let rows: Vec<Value> = rows(steps, ceiling).into_iter().map(row).collect();
    json!({ "steps": steps.steps, "tokens": steps.tokens, "kinds": rows })
}

#[cfg(test)]
mod tests {
    use ottava::backend::cpu::Peaks;
    use ottava::ir::{OpTime, OpTimes};

    use super::*;

    /// Four tokens in two steps of 10 ms: 12 ms of matmul, 4 of attention, 1 of sampling, 3 of the host.
    fn profile() -> StepProfile {
        let time = |ms, bytes, int8_macs, float_macs| OpTime {
            runs: 2,
            total: Duration::from_millis(ms),
            work: Work { bytes, int8_macs, float_macs },
        };
        let mut ops = OpTimes::default();
        ops[OpKind::Matmul as usize] = time(12, 40_000_000, 200_000_000, 100_000_000);
        ops[OpKind::Attention as usize] = time(4, 8_000_000, 0, 100_000_000);
        ops[OpKind::Sampling as usize] = time(1, 0, 0, 0);
        StepProfile { steps: 2, tokens: 4, busy: Duration::from_millis(20), ops }
    }

    fn near(found: Option<f64>, expected: f64) {
        let found = found.expect("known");
        assert!((found - expected).abs() < 1e-9 * expected, "{found}, expected {expected}");
    }

    #[test]
    fn rows_are_held_against_the_higher_of_two_floors() {
        let peaks = Peaks { int8: 100e9, f32: 50e9 };
        let ceiling = Ceiling { threads: 2, bandwidth: Some(10e9), peaks: Some(peaks) };
        let rows = rows(&profile(), &ceiling);
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["matmul", "attention", "norms", "sampling", "rest", "host", "total"]);
        let [matmul, attention, norms, _, _, host, total] = &rows[..] else { panic!("seven rows") };
        // 10 MB a token at 10 GB/s are 1 ms; 50 and 25 million multiply-adds 0.5 ms each.
        near(matmul.floor(), 1e-3);
        near(matmul.percent(matmul.cores), 100.0 / 3.0);
        near(matmul.rate(matmul.bytes), 10e6 / 3e-3);
        // 2 MB are 0.2 ms; 25 million 0.5 ms.
        near(attention.floor(), 0.5e-3);
        near(attention.percent(attention.floor()), 50.0);
        assert_eq!((norms.floor(), norms.rate(norms.bytes), norms.share), (None, None, 0.0));
        near(Some(host.share), 0.15);
        // 12 MB, 1.2 ms; the cores need 1.5 ms of the 5.
        near(total.floor(), 1.5e-3);
        near(total.percent(total.memory), 24.0);
        near(Some(rows[..6].iter().map(|row| row.share).sum()), 1.0);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let rows = rows(&profile(), &Ceiling { threads: 0, bandwidth: Some(10e9), peaks: None });
        assert_eq!(rows[0].percent(rows[0].cores), None);
        near(rows[1].floor(), 0.2e-3);
        let nothing =
            super::rows(&StepProfile::default(), &Ceiling { threads: 1, bandwidth: None, peaks: None });
        assert_eq!(nothing, []);
        assert_eq!((cell(None, 1), cell(Some(1.26), 1)), ("-".to_owned(), "1.3".to_owned()));
    }
}
