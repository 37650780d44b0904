//! What a machine can do: the ceilings that measurements are held against.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use ottava::Device;
use ottava::backend::cpu::{Cpu, CpuOptions, Peaks};
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

impl Ceiling {
    /// Measures the memory alone.
    pub fn of_memory(threads: usize, model: &ModelOptions) -> Result<Ceiling, Failure> {
        if threads == 0 {
            return Ok(Ceiling { threads, bandwidth: of_gpu(model.device), peaks: None });
        }
        Ok(Ceiling::of_cpu(&cpu(NonZeroUsize::new(threads), model)?))
    }

    /// Measures the engine's own threads, all cores, and the powers of two below; of a GPU the memory.
    pub fn all(threads: usize, model: &ModelOptions) -> Result<Vec<Ceiling>, Failure> {
        if threads == 0 {
            return Ok(vec![Ceiling::of_memory(0, model)?]);
        }
        let measure = |threads| {
            let cpu = cpu(NonZeroUsize::new(threads), model)?;
            Ok(Ceiling { peaks: Some(cpu.peaks()), ..Ceiling::of_cpu(&cpu) })
        };
        counts(cpu(None, model)?.threads(), threads).into_iter().map(measure).collect()
    }

    fn of_cpu(cpu: &Cpu) -> Ceiling {
        Ceiling { threads: cpu.threads(), bandwidth: cpu.read_bandwidth(BUFFER_BYTES).ok(), peaks: None }
    }

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
