//! Optimisations that benches can turn off to measure their effect. Not part of the public interface: they
//! exist with the private feature `_bench` only.

/// Options of loading and launching kernels; all are on in releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Whether all kernels prefer the same, largest share of a multiprocessor's L1 as shared memory.
    /// Otherwise the driver chooses one per kernel, and a multiprocessor drains when it changes.
    pub carve_out: bool,
    /// Whether a kernel may start before the previous one has ended (programmatic dependent launch).
    pub overlap: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Cuda, CudaOptions};
    use super::*;

    #[test]
    fn what_is_turned_off_is_off_in_that_backend_alone() {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        let of = |cuda: &Cuda| cuda.kernels.switches().unwrap();
        let off = Switches { carve_out: false, overlap: false };
        let on = Switches { carve_out: true, overlap: true };
        let shipped = of(&Cuda::new(&CudaOptions::default()).unwrap());
        let cuda = Cuda::with_switches(&CudaOptions::default(), off).unwrap();
        assert_eq!(of(&cuda), (false, false));
        assert_eq!(shipped.1, cuda.device().compute_capability.0 >= 9);
        assert_eq!(of(&Cuda::with_switches(&CudaOptions::default(), on).unwrap()), shipped);
    }
}
