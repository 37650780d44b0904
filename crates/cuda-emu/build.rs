//! Gives the shared library the name under which CUDA programs look for their driver, so that a
//! later `dlopen("libcuda.so")` finds it once [`install`](https://docs.rs/cuda-emu) has loaded it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let linux = std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux");
    let musl = std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl");
    if linux && !musl {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
