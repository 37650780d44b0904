//! Kernels through cudarc: launches with attributes, and that kernels see what streams promise.

mod support;

use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use support::card::{ADD, begin_capture, block_of, card, code, function, launch_programmatic, no_flags};

#[test]
fn a_kernel_adds() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.clone_htod(&(0..64u32).collect::<Vec<_>>()).unwrap();
    // SAFETY: `add` takes an address and a number, and has 64 elements.
    unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&5u32).launch(block_of(64)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), (5..69).collect::<Vec<u32>>());
}

#[test]
fn cudarcs_own_event_tracking_keeps_streams_in_order() {
    let card = card();
    // SAFETY: no slice was made while it was off.
    unsafe { card.context.enable_event_tracking() };
    let add = function(&card.context, ADD, "add");
    for seed in 0..20 {
        if card.emulator.is_emulated() {
            card.emulator.set_seed(seed).unwrap();
        }
        let (a, b) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
        let mut buffer = a.alloc_zeros::<u32>(32).unwrap();
        for stream in [&a, &b, &a, &b] {
            // SAFETY: `add` takes an address and a number, and has 32 elements.
            unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(block_of(32)) }.unwrap();
        }
        assert_eq!(b.clone_dtoh(&buffer).unwrap(), [4; 32], "seed {seed}");
    }
    // SAFETY: all slices are gone.
    unsafe { card.context.disable_event_tracking() };
}

/// `produce` writes tid + 1; `consume` copies it, after `griddepcontrol.wait` or without.
const PROGRAMMATIC: &str = "
    .version 8.0
    .target sm_90
    .address_size 64
    .visible .entry produce(.param .u64 out) {
        .reg .b32 %r<3>; .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [out];
        mov.u32 %r1, %tid.x;
        griddepcontrol.launch_dependents;
        mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd3, %rd1, %rd2;
        add.u32 %r2, %r1, 1;
        st.global.u32 [%rd3], %r2;
        ret;
    }
    .visible .entry consume(.param .u64 in, .param .u64 out) {
        .reg .b32 %r<3>; .reg .b64 %rd<6>;
        ld.param.u64 %rd1, [in];
        ld.param.u64 %rd2, [out];
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %rd3, %r1, 4;
        add.s64 %rd4, %rd1, %rd3;
        add.s64 %rd5, %rd2, %rd3;
        griddepcontrol.wait;
        ld.global.u32 %r2, [%rd4];
        st.global.u32 [%rd5], %r2;
        ret;
    }";

fn address(slice: &CudaSlice<u32>, stream: &CudaStream) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(stream).0
}

/// Runs producer and consumer, the second with programmatic serialization; gives what it saw.
fn run_programmatic(ptx: &str, captured: bool) -> Vec<u32> {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let (produce, consume) =
        (function(&card.context, ptx, "produce"), function(&card.context, ptx, "consume"));
    let buffer = stream.alloc_zeros::<u32>(32).unwrap();
    let seen = stream.alloc_zeros::<u32>(32).unwrap();
    let (mut from, mut to) = (address(&buffer, &stream), address(&seen, &stream));
    stream.synchronize().unwrap();
    if captured {
        begin_capture(&stream);
    }
    // SAFETY: `produce` takes an address of 32 elements.
    unsafe { stream.launch_builder(&produce).arg(&buffer).launch(block_of(32)) }.unwrap();
    launch_programmatic(&stream, &consume, 32, &mut [(&raw mut from).cast(), (&raw mut to).cast()]);
    if captured {
        stream.end_capture(no_flags()).unwrap().unwrap().launch().unwrap();
    }
    stream.clone_dtoh(&seen).unwrap()
}

#[test]
fn a_dependent_kernel_that_waits_sees_its_predecessors_results() {
    for captured in [false, true] {
        assert_eq!(run_programmatic(PROGRAMMATIC, captured), (1..33).collect::<Vec<u32>>());
    }
}

#[test]
fn a_dependent_kernel_that_does_not_wait_sees_what_was_before() {
    if !card().emulator.is_emulated() {
        return eprintln!("skipped: a card may happen to be fast enough");
    }
    let without = PROGRAMMATIC.replace("griddepcontrol.wait;", "");
    for captured in [false, true] {
        assert_eq!(run_programmatic(&without, captured), [0; 32]);
    }
}

/// Every wait of a chain is inside the one before; on one stack, this many overflowed it.
#[test]
fn long_chains_of_dependent_kernels_run_to_their_end() {
    const COUNT: usize = 1000;
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let consume = function(&card.context, PROGRAMMATIC, "consume");
    for captured in [false, true] {
        // Each kernel copies its predecessor's row.
        let mut rows = stream.alloc_zeros::<u32>((COUNT + 1) * 32).unwrap();
        let first: Vec<u32> = (1..33).collect();
        stream.memcpy_htod(&first, &mut rows.slice_mut(..32)).unwrap();
        let start = address(&rows, &stream);
        stream.synchronize().unwrap();
        if captured {
            begin_capture(&stream);
        }
        for row in 0..COUNT as u64 {
            let (mut from, mut to) = (start + row * 128, start + (row + 1) * 128);
            launch_programmatic(&stream, &consume, 32, &mut [(&raw mut from).cast(), (&raw mut to).cast()]);
        }
        if captured {
            stream.end_capture(no_flags()).unwrap().unwrap().launch().unwrap();
        }
        assert_eq!(stream.clone_dtoh(&rows.slice(COUNT * 32..)).unwrap(), first);
    }
}

#[test]
fn cooperative_launches_are_bounded_by_what_fits() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.alloc_zeros::<u32>(1024).unwrap();
    let mut launch = |blocks: u32| {
        let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (1024, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: `add` takes an address and a number, and has 1024 elements.
        code(unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch_cooperative(config) })
    };
    assert_eq!(launch(1), 0);
    assert_eq!(launch(100_000), 720);
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [1; 1024]);
}
