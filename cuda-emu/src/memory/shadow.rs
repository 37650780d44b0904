//! The shadow of shared memory.
