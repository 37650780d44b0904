//! Limits of the machine (ceilings), for comparison with measurements.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use ottava::Device;
use ottava::backend::cpu::{Cpu, CpuOptions, Peaks, PrefetchHint, ReadProbe};
use serde_json::{Value, json};

use super::super::Failure;
use super::super::options::ModelOptions;
use super::median;

/// Bytes of the buffer that is read: much larger than any cache.
const BUFFER_BYTES: usize = 512 << 20;
/// Idle time after which a pool's threads are asleep.
const ASLEEP_AFTER: Duration = Duration::from_millis(5);

/// Limits of a number of threads together, or of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// 0 for a GPU.
    pub threads: usize,
    /// Bytes read from memory per second.
    pub bandwidth: Option<f64>,
    /// Multiply-adds per second.
    pub peaks: Option<Peaks>,
}

/// Measures the read bandwidth on each call, and keeps the results.
pub struct Meter {
    /// 0 for a GPU.
    threads: usize,
    cpu: Option<Cpu>,
    /// `None` if there is no memory for it.
    probe: Option<ReadProbe>,
    /// Measurements in bytes per second; one for a GPU.
    found: RefCell<Vec<f64>>,
}

impl Meter {
    /// A meter for `threads` threads of the CPU; for a GPU if `threads` is 0.
    pub fn new(threads: usize, model: &ModelOptions) -> Result<Meter, Failure> {
        let Some(count) = NonZeroUsize::new(threads) else {
            let found = RefCell::new(of_gpu(model.device).into_iter().collect());
            return Ok(Meter { threads, cpu: None, probe: None, found });
        };
        let (cpu, probe) = (cpu(Some(count), model)?, ReadProbe::new(BUFFER_BYTES).ok());
        Ok(Meter { threads, cpu: Some(cpu), probe, found: RefCell::default() })
    }

    /// Bytes of the buffer that is read.
    pub fn bytes(&self) -> u64 {
        self.probe.as_ref().map_or(0, |probe| probe.bytes() as u64)
    }

    /// Whether all calls return the same bandwidth: a GPU's is measured once.
    pub fn is_steady(&self) -> bool {
        self.cpu.is_none()
    }

    /// Hint of the CPU's weight prefetches; `None` for a GPU.
    pub fn prefetch(&self) -> Option<PrefetchHint> {
        self.cpu.as_ref().map(Cpu::prefetch)
    }

    /// Bytes per second, measured now; the one measurement for a GPU.
    pub fn bandwidth(&self) -> Option<f64> {
        let (Some(cpu), Some(probe)) = (&self.cpu, &self.probe) else { return self.known() };
        // The threads of the engine and of the meter stay awake for a while after their work.
        std::thread::sleep(ASLEEP_AFTER);
        let bandwidth = cpu.read_bandwidth(probe);
        std::thread::sleep(ASLEEP_AFTER);
        self.found.borrow_mut().push(bandwidth);
        Some(bandwidth)
    }

    /// The median of the measurements so far, or a first measurement.
    pub fn ceiling(&self) -> Ceiling {
        let bandwidth = self.known().or_else(|| self.bandwidth());
        Ceiling { threads: self.threads, bandwidth, peaks: None }
    }

    fn known(&self) -> Option<f64> {
        median(self.found.borrow().clone())
    }

    /// Measures bandwidth and peaks for all cores, the powers of two below, and the threads in use. For a GPU
    /// only the known bandwidth.
    pub fn all(&self, model: &ModelOptions) -> Result<Vec<Ceiling>, Failure> {
        if self.threads == 0 {
            return Ok(vec![self.ceiling()]);
        }
        let measure = |threads| {
            let cpu = cpu(NonZeroUsize::new(threads), model)?;
            let now = || self.probe.as_ref().map(|probe| cpu.read_bandwidth(probe));
            let bandwidth = if threads == self.threads { self.ceiling().bandwidth } else { now() };
            Ok(Ceiling { threads, bandwidth, peaks: Some(cpu.peaks()) })
        };
        counts(cpu(None, model)?.threads(), self.threads).into_iter().map(measure).collect()
    }
}

impl Ceiling {
    pub fn as_json(&self) -> Value {
        json!({
            "threads": self.threads,
            "read_bandwidth_bytes_per_s": self.bandwidth,
            "int8_macs_per_s": self.peaks.map(|peaks| peaks.int8),
            "f32_macs_per_s": self.peaks.map(|peaks| peaks.f32),
        })
    }
}

fn cpu(threads: Option<NonZeroUsize>, model: &ModelOptions) -> Result<Cpu, Failure> {
    let options = CpuOptions { threads, isa: model.isa, prefetch: model.prefetch, ..CpuOptions::default() };
    Cpu::new(&options).map_err(|error| Failure::from(ottava::Error::from(error)))
}

/// Bytes per second that a GPU reads from its memory; `None` without a GPU or memory for the measurement.
fn of_gpu(device: Device) -> Option<f64> {
    #[cfg(feature = "cuda")]
    {
        use ottava::backend::cuda::{Cuda, CudaOptions};
        let ordinal = if let Device::Cuda(ordinal) = device { ordinal } else { 0 };
        let cuda = Cuda::new(&CudaOptions { ordinal, ..CudaOptions::default() }).ok()?;
        Some(cuda.bandwidth(256 << 20).ok()?.read)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// The powers of two below `cores`, `cores` itself, and `used`.
fn counts(cores: usize, used: usize) -> BTreeSet<usize> {
    let powers = std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|&count| count < cores);
    powers.chain([cores, used]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_double_up_to_all_cores() {
        let counts = |cores, used| super::counts(cores, used).into_iter().collect::<Vec<_>>();
        assert_eq!(counts(12, 12), [1, 2, 4, 8, 12]);
        assert_eq!(counts(4, 3), [1, 2, 3, 4]);
        assert_eq!(counts(1, 2), [1, 2]);
    }
}
