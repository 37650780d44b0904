//! Errors that stick, failures that tests inject, and the reports of both.

mod support;

use cuda_emu::Injection;
use cudarc::driver::{PushKernelArg, result, sys};
use std::time::{Duration, Instant};
use support::card::{ADD, Card, begin_capture, block_of, card, code, function, no_flags};

/// The card, if it is emulated: a real one's errors would end its process.
fn emulated() -> Option<Card> {
    let card = card();
    if !card.emulator.is_emulated() {
        eprintln!("skipped: failures are injected into the emulator only");
        return None;
    }
    Some(card)
}

/// Launches `add` over so many elements of a buffer that has 8.
fn launch(card: &Card, elements: u32) -> u32 {
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.alloc_zeros::<u32>(8).unwrap();
    // SAFETY: `add` takes an address and a number; the emulator reports what lies outside.
    let launched =
        unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(block_of(elements)) };
    launched.unwrap();
    code(stream.synchronize())
}

#[test]
fn memory_runs_out_at_the_chosen_allocation() {
    let Some(card) = emulated() else { return };
    let stream = card.context.new_stream().unwrap();
    card.emulator.inject(Injection::OutOfMemory { allocation: 3 }).unwrap();
    let kept: Vec<_> = (0..2).map(|_| stream.alloc_zeros::<u8>(16).unwrap()).collect();
    assert_eq!(code(stream.alloc_zeros::<u8>(16)), 2);
    stream.alloc_zeros::<u8>(16).unwrap();
    assert_eq!(kept.len(), 2);
    card.emulator.inject(Injection::OutOfMemory { allocation: 1 }).unwrap();
    // SAFETY: nothing is allocated.
    assert_eq!(code(unsafe { result::malloc_host(16, 0) }), 2, "page-locked memory counts");
}

#[test]
fn memory_runs_out_when_it_is_used_up_and_frees_that_wait_make_room() {
    let Some(card) = emulated() else { return };
    let stream = card.context.new_stream().unwrap();
    let (free, total) = card.context.mem_get_info().unwrap();
    assert!(free <= total);
    assert_eq!(code(unsafe_alloc(total + 1)), 2);
    // Stream-ordered frees have not run when the next allocation needs their room.
    for _ in 0..4 {
        let half = unsafe_alloc_on(&stream, free / 2 + 1);
        drop(half);
    }
}

fn unsafe_alloc(bytes: usize) -> Result<u64, cudarc::driver::DriverError> {
    // SAFETY: what is allocated is not used.
    unsafe { result::malloc_sync(bytes) }
}

fn unsafe_alloc_on(
    stream: &std::sync::Arc<cudarc::driver::CudaStream>,
    bytes: usize,
) -> cudarc::driver::CudaSlice<u8> {
    // SAFETY: what is allocated is not read.
    unsafe { stream.alloc(bytes) }.unwrap()
}

#[test]
fn an_injected_error_sticks_until_reset() {
    let Some(card) = emulated() else { return };
    card.emulator.inject(Injection::Error { launch: 1, code: 214 }).unwrap();
    assert_eq!(launch(&card, 8), 214);
    assert_eq!(code(card.context.new_stream()), 214, "every later call fails");
    assert_eq!(code(card.context.synchronize()), 214);
    assert_eq!(card.context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE), Ok(32));
    let report = cuda_emu::last_fault().unwrap();
    assert_eq!((report.code, report.kind.as_str(), report.kernel.as_str()), (214, "Injected", "add"));
    card.emulator.reset().unwrap();
    assert_eq!(card.emulator.last_fault(), None);
    assert_eq!(launch(&card, 8), 0);
}

#[test]
fn a_launch_that_never_ends_hangs_its_stream_and_is_stopped() {
    let Some(card) = emulated() else { return };
    let stopped_after = Duration::from_millis(150);
    card.emulator.inject(Injection::NeverEnds { launch: 1, stopped_after }).unwrap();
    let (stream, other) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.alloc_zeros::<u32>(8).unwrap();
    // SAFETY: `add` takes an address and a number.
    unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(block_of(8)) }.unwrap();
    let after = stream.record_event(None).unwrap();
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(after.try_is_complete(), Ok(false));
    }
    assert_eq!(other.clone_dtoh(&other.clone_htod(&[5u8; 4]).unwrap()).unwrap(), [5; 4], "others go on");
    assert_eq!(code(stream.synchronize()), 702);
    assert!(started.elapsed() >= Duration::from_millis(100));
}

#[test]
fn kernels_of_graphs_count() {
    let Some(card) = emulated() else { return };
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.alloc_zeros::<u32>(8).unwrap();
    stream.synchronize().unwrap();
    begin_capture(&stream);
    for _ in 0..2 {
        // SAFETY: `add` takes an address and a number.
        unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(block_of(8)) }.unwrap();
    }
    let graph = stream.end_capture(no_flags()).unwrap().unwrap();
    card.emulator.inject(Injection::Error { launch: 4, code: 719 }).unwrap();
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    graph.launch().unwrap();
    assert_eq!(code(stream.synchronize()), 719);
}

#[test]
fn an_access_out_of_bounds_is_reported_and_sticks() {
    let Some(card) = emulated() else { return };
    assert_eq!(launch(&card, 9), 700);
    assert_eq!(code(card.context.synchronize()), 700);
    let report = card.emulator.last_fault().unwrap();
    assert_eq!((report.kind.as_str(), report.kernel.as_str()), ("OutOfBounds", "add"));
    assert!(report.text.contains("lane 8"), "{}", report.text);
}

#[test]
fn memory_freed_too_early_in_another_stream_is_reported() {
    let Some(card) = emulated() else { return };
    let (user, owner) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let mut target = user.alloc_zeros::<u32>(8).unwrap();
    let source = owner.clone_htod(&[1u32; 8]).unwrap();
    card.context.synchronize().unwrap();
    user.memcpy_dtod(&source, &mut target).unwrap();
    drop(source);
    owner.synchronize().unwrap();
    assert_eq!(code(user.synchronize()), 700, "the copy ran after the free");
    assert_eq!(card.emulator.last_fault().unwrap().kind, "Memory");
}

#[test]
fn pinned_memory_freed_before_its_copy_is_reported() {
    let Some(card) = emulated() else { return };
    let stream = card.context.new_stream().unwrap();
    let buffer = stream.alloc_zeros::<u8>(16).unwrap();
    for waits in [true, false] {
        // SAFETY: freed below.
        let host = unsafe { result::malloc_host(16, 0) }.unwrap();
        let address = {
            use cudarc::driver::DevicePtr;
            buffer.device_ptr(&stream).0
        };
        // SAFETY: both have 16 bytes, and the emulator does not run the copy of what is gone.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(host, address, 16, stream.cu_stream()) };
        assert_eq!(copied, sys::CUresult::CUDA_SUCCESS);
        if waits {
            stream.synchronize().unwrap();
        }
        // SAFETY: allocated above.
        let freed = code(unsafe { result::free_host(host) });
        assert_eq!(freed, if waits { 0 } else { 700 });
    }
    let report = card.emulator.last_fault().unwrap();
    assert!(report.kind == "Memory" && report.text.contains("copy from device to host"), "{report:?}");
    card.emulator.reset().unwrap();
}

#[test]
fn statistics_are_summed_by_kernel() {
    let Some(card) = emulated() else { return };
    assert_eq!((launch(&card, 8), launch(&card, 4)), (0, 0));
    let statistics = card.emulator.statistics();
    let add = &statistics["add"];
    assert_eq!(add.launches, 2);
    assert_eq!(add.sum.global_bytes_read, (8 + 4) * 4);
    assert_eq!(add.sum.global_bytes_written, (8 + 4) * 4);
    // Two launches of a warp, each with a load and a store of one sector.
    assert_eq!((add.sum.global_requests, add.sum.global_sectors), (4, 4));
}

#[test]
fn parts_of_a_pool_have_bounds_of_their_own() {
    let Some(card) = emulated() else { return };
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut pool = stream.alloc_zeros::<u32>(64).unwrap();
    stream.synchronize().unwrap();
    let address = {
        use cudarc::driver::DevicePtr;
        pool.device_ptr(&stream).0
    };
    assert_eq!(card.emulator.register_part(address, 32), Ok(true));
    assert_eq!(card.emulator.register_part(address + 1024, 32), Ok(false));
    // SAFETY: `add` takes an address and a number; the emulator reports what lies outside.
    unsafe { stream.launch_builder(&add).arg(&mut pool).arg(&1u32).launch(block_of(16)) }.unwrap();
    assert_eq!(code(stream.synchronize()), 700);
    card.emulator.reset().unwrap();
    assert_eq!(card.emulator.unregister_part(address), Ok(true));
}
