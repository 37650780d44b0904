//! The entry points, a file per family of objects. The manual of the CUDA driver API says what each
//! does; here stand only the deviations. All have one contract: pointers and handles are as the
//! manual demands.

mod context;
mod copy;
mod device;
mod error;
mod event;
mod function;
mod graph;
mod launch;
mod memory;
mod module;
mod pointer;
mod stream;
mod tensor_map;
