//! What a machine can do: the ceilings that measurements are held against.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use ottava::Device;
use ottava::backend::cpu::{Cpu, CpuOptions, Peaks, ReadProbe};
use serde_json::{Value, json};

use super::super::Failure;
use super::super::options::ModelOptions;

/// Bytes of the buffer that is read: well beyond any cache.
const BUFFER_BYTES: usize = 512 << 20;

/// What so many threads reach together, or a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// 0 for a GPU.
    pub threads: usize,
    /// Bytes a second, read from memory.
    pub bandwidth: Option<f64>,
    /// Multiply-adds a second.
    pub peaks: Option<Peaks>,
}

/// Measures the read bandwidth whenever it is asked.
pub struct Meter {
    threads: usize,
    cpu: Option<(Cpu, ReadProbe)>,
    /// A GPU's, measured once.
    gpu: Option<f64>,
}

impl Meter {
    /// For so many threads of the CPU; for a GPU if there are none.
    pub fn new(threads: usize, model: &ModelOptions) -> Result<Meter, Failure> {
        let Some(count) = NonZeroUsize::new(threads) else {
            return Ok(Meter { threads, cpu: None, gpu: of_gpu(model.device) });
        };
        let cpu = cpu(Some(count), model)?;
        Ok(Meter { threads, cpu: ReadProbe::new(BUFFER_BYTES).ok().map(|probe| (cpu, probe)), gpu: None })
    }

    /// Bytes a second; none where there is no room to measure.
    pub fn bandwidth(&self) -> Option<f64> {
        self.cpu.as_ref().map(|(cpu, probe)| cpu.read_bandwidth(probe)).or(self.gpu)
    }

    /// What the memory does now, and nothing of the cores.
    pub fn ceiling(&self) -> Ceiling {
        Ceiling { threads: self.threads, bandwidth: self.bandwidth(), peaks: None }
    }

    /// Measures the same threads, all cores, and the powers of two below; of a GPU the memory.
    pub fn all(&self, model: &ModelOptions) -> Result<Vec<Ceiling>, Failure> {
        let Some((_, probe)) = &self.cpu else { return Ok(vec![self.ceiling()]) };
        let measure = |threads| {
            let cpu = cpu(NonZeroUsize::new(threads), model)?;
            let (bandwidth, peaks) = (Some(cpu.read_bandwidth(probe)), Some(cpu.peaks()));
            Ok(Ceiling { threads: cpu.threads(), bandwidth, peaks })
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
    let options = CpuOptions { threads, isa: model.isa, ..CpuOptions::default() };
    Cpu::new(&options).map_err(|error| Failure::from(ottava::Error::from(error)))
}

/// Bytes a second that a GPU reads from its memory, where there is one with room to measure.
fn of_gpu(device: Device) -> Option<f64> {
    #[cfg(feature = "cuda")]
    {
        use ottava::backend::cuda::{Cuda, CudaOptions};
        let ordinal = if let Device::Cuda(ordinal) = device { ordinal } else { 0 };
        let cuda = Cuda::new(&CudaOptions { ordinal, ..CudaOptions::default() }).ok()?;
        Some(cuda.bandwidth(ottava::Bytes::mib(256).0).ok()?.read)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// The powers of two below `cores`, `cores` itself, and what is used.
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
