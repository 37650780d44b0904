//! The clock: criterion's statistics, and beside them a line with the fastest run.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};

/// What must be read and written, and multiplied and added.
#[derive(Clone, Copy)]
pub struct Work {
    pub bytes: usize,
    pub macs: usize,
}

/// A benchmark's name and its cost.
pub struct Bench<'n> {
    pub group: &'n str,
    pub name: &'n str,
    /// Of one operation.
    pub work: Work,
    /// Operations in a run: alike, each on memory of its own. The line gives the time of one.
    pub operations: usize,
}

/// Times what `make` makes, if criterion's filter names it. `make` has asserted its answer.
///
/// Each run is timed by itself, which adds the 30 ns of reading a clock: the fastest of many is
/// what other processes have not touched.
pub fn time<R: FnMut()>(criterion: &mut Criterion, bench: &Bench<'_>, make: impl FnOnce() -> R) {
    let (mut make, mut made) = (Some(make), None);
    let mut best = Duration::MAX;
    let mut group = criterion.benchmark_group(bench.group);
    group.throughput(Throughput::Bytes((bench.work.bytes * bench.operations) as u64)).sample_size(10);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
    group.bench_function(bench.name, |bencher| {
        if let Some(make) = make.take() {
            made = Some(make());
        }
        let Some(run) = &mut made else { return };
        bencher.iter_custom(|runs| {
            let mut total = Duration::ZERO;
            for _ in 0..runs {
                let begin = Instant::now();
                run();
                let passed = begin.elapsed();
                total += passed;
                best = best.min(passed);
            }
            total
        });
    });
    group.finish();
    if made.is_some() {
        report(bench, best.as_secs_f64() / bench.operations as f64);
    }
}

fn report(bench: &Bench<'_>, seconds: f64) {
    let Work { bytes, macs } = bench.work;
    let (name, gigabytes) = (format!("{}/{}", bench.group, bench.name), bytes as f64 / seconds / 1e9);
    print!("{name:48} {:10.2} us {gigabytes:7.2} GB/s", seconds * 1e6);
    if macs > 0 {
        print!(" {:7.1} GMAC/s", macs as f64 / seconds / 1e9);
    }
    println!();
}
