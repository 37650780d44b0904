//! Without a driver there is a reason, and no panic: cudarc has one where its library is missing.
//! Nothing is emulated here; on a machine with a card the card is found.

#![cfg(feature = "cuda")]

use ottava::backend::BackendError;
use ottava::backend::cuda::{Cuda, CudaOptions, Unavailable, probe};

#[test]
fn a_machine_without_a_driver_says_so() {
    match probe(0) {
        Ok(info) => assert!(info.memory_bytes > 0, "a card with memory: {info:?}"),
        Err(Unavailable::NoDriver(reason)) => {
            assert!(reason.contains("cuda"), "the loader's words: {reason}");
            let refused = Cuda::new(&CudaOptions::default()).map(drop);
            let Err(BackendError::Unavailable { reason, .. }) = refused else { panic!("{refused:?}") };
            assert!(reason.starts_with("there is no NVIDIA driver"), "{reason}");
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}
