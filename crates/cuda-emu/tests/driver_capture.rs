//! Stream capture: what graphs replay, and the errors of what is not allowed meanwhile.

mod support;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result, sys};
use std::sync::Arc;
use support::card::{ADD, begin_capture, block_of, card, code, function, no_flags};

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const CAPTURED_EVENT: u32 = 907;

fn end(stream: &Arc<CudaStream>) -> CudaGraph {
    stream.end_capture(no_flags()).unwrap().unwrap()
}

fn status(stream: &CudaStream) -> sys::CUstreamCaptureStatus {
    stream.capture_status().unwrap()
}

fn zeros(stream: &Arc<CudaStream>) -> CudaSlice<u32> {
    let slice = stream.alloc_zeros(8).unwrap();
    stream.synchronize().unwrap();
    slice
}

#[test]
fn captured_work_runs_at_launches_only() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut buffer = zeros(&stream);
    let source = stream.clone_htod(&[3u32; 8]).unwrap();
    stream.synchronize().unwrap();

    begin_capture(&stream);
    assert_eq!(status(&stream), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    stream.memcpy_dtod(&source, &mut buffer).unwrap();
    let graph = end(&stream);
    assert_eq!(status(&stream), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [0; 8]);

    graph.upload().unwrap();
    for _ in 0..3 {
        stream.memset_zeros(&mut buffer).unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [3; 8]);
    }
}

#[test]
fn parameters_are_copied_at_capture_and_kernels_run_at_each_launch() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = zeros(&stream);
    let mut value = 2u32;
    begin_capture(&stream);
    for _ in 0..3 {
        // SAFETY: `add` takes an address and a number, and has 8 elements.
        unsafe {
            stream.launch_builder(&add).arg(&mut buffer).arg(&value).launch(block_of(8)).unwrap();
        }
    }
    let graph = end(&stream);
    value = 100;
    std::hint::black_box(value);
    for _ in 0..20 {
        graph.launch().unwrap();
    }
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [120; 8]);
}

#[test]
fn a_fork_joined_by_events_is_one_graph() {
    let card = card();
    let (main, side) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let (mut a, mut b) = (zeros(&main), zeros(&main));
    let (ones, twos) = (main.clone_htod(&[1u32; 8]).unwrap(), main.clone_htod(&[2u32; 8]).unwrap());
    let (mut sum, mut own) = (zeros(&main), zeros(&main));
    begin_capture(&main);
    main.memcpy_dtod(&ones, &mut a).unwrap();
    side.join(&main).unwrap();
    main.memcpy_dtod(&twos, &mut own).unwrap();
    assert_eq!(status(&side), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    side.memcpy_dtod(&a, &mut b).unwrap();
    main.join(&side).unwrap();
    main.memcpy_dtod(&twos, &mut a).unwrap();
    main.memcpy_dtod(&b, &mut sum).unwrap();
    let graph = end(&main);
    assert_eq!(status(&side), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    for seed in 0..20 {
        if card.emulator.is_emulated() {
            card.emulator.set_seed(seed).unwrap();
        }
        graph.launch().unwrap();
        assert_eq!(main.clone_dtoh(&sum).unwrap(), [1; 8], "seed {seed}");
        assert_eq!(main.clone_dtoh(&own).unwrap(), [2; 8], "seed {seed}");
    }
}

#[test]
fn waiting_for_uncaptured_work_is_an_isolation_error() {
    let card = card();
    let (stream, other) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let outside = other.record_event(None).unwrap();
    begin_capture(&stream);
    assert_eq!(code(stream.wait(&outside)), ISOLATION);
    assert_eq!(status(&stream), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let mut buffer = zeros(&other);
    assert_eq!(code(stream.memset_zeros(&mut buffer)), INVALIDATED);
    assert_eq!(code(stream.end_capture(no_flags())), INVALIDATED);
    // The stream is as before.
    stream.memset_zeros(&mut buffer).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn synchronizing_in_a_capture_is_unsupported_and_spoils_it() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    begin_capture(&stream);
    assert_eq!(code(stream.synchronize()), UNSUPPORTED);
    assert_eq!(code(stream.end_capture(no_flags())), INVALIDATED);
    begin_capture(&stream);
    assert_eq!(code(card.context.synchronize()), UNSUPPORTED);
    assert_eq!(code(stream.end_capture(no_flags())), INVALIDATED);
}

#[test]
fn synchronous_allocation_in_a_capture_is_unsupported() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    begin_capture(&stream);
    // SAFETY: what would be allocated is not used.
    assert_eq!(code(unsafe { result::malloc_sync(64) }), UNSUPPORTED);
    assert_eq!(code(stream.end_capture(no_flags())), INVALIDATED);
}

#[test]
fn another_thread_may_allocate_during_a_thread_local_capture() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    begin_capture(&stream);
    std::thread::scope(|scope| {
        let allocated = scope.spawn(|| {
            card.context.bind_to_thread().unwrap();
            // SAFETY: freed below, and not used.
            unsafe { result::malloc_sync(64) }.unwrap()
        });
        let address = allocated.join().unwrap();
        end(&stream);
        // SAFETY: allocated above.
        unsafe { result::free_sync(address) }.unwrap();
    });
}

#[test]
fn stream_ordered_memory_of_a_capture_belongs_to_the_graph() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut seen = zeros(&stream);
    let source = stream.clone_htod(&[4u32; 8]).unwrap();
    stream.synchronize().unwrap();
    begin_capture(&stream);
    let mut scratch: CudaSlice<u32> = stream.alloc_zeros(8).unwrap();
    stream.memcpy_dtod(&source, &mut scratch).unwrap();
    stream.memcpy_dtod(&scratch, &mut seen).unwrap();
    drop(scratch);
    let graph = end(&stream);
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    assert_eq!(stream.clone_dtoh(&seen).unwrap(), [4; 8]);
}

#[test]
fn a_capture_frees_its_own_memory_only() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let buffer = zeros(&stream);
    let address = buffer.device_ptr(&stream).0;
    begin_capture(&stream);
    // SAFETY: it is refused.
    assert_eq!(code(unsafe { result::free_async(address, stream.cu_stream()) }), 1);
    end(&stream);
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [0; 8]);
}

#[test]
fn captures_end_in_their_stream_and_with_all_forks_joined() {
    let card = card();
    let (main, side) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let mut buffer = zeros(&main);
    begin_capture(&main);
    side.join(&main).unwrap();
    side.memset_zeros(&mut buffer).unwrap();
    assert_eq!(code(main.end_capture(no_flags())), UNJOINED);

    begin_capture(&main);
    side.join(&main).unwrap();
    assert_eq!(code(side.end_capture(no_flags())), UNMATCHED);
    assert_ne!(code(main.end_capture(no_flags())), 0);
    assert_ne!(code(main.end_capture(no_flags())), 0, "there is no capture to end");
}

#[test]
fn captured_events_cannot_be_asked_or_waited_for() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    begin_capture(&stream);
    let event = stream.record_event(None).unwrap();
    let graph = end(&stream);
    assert_eq!(code(event.try_is_complete()), CAPTURED_EVENT);
    assert_eq!(code(event.synchronize()), CAPTURED_EVENT);
    drop(graph);
    assert_eq!(code(stream.wait(&event)), 1, "as cudarc's issue 590 tells");
    event.record(&stream).unwrap();
    event.synchronize().unwrap();
}

#[test]
fn the_legacy_stream_cannot_be_captured() {
    let card = card();
    let legacy = card.context.default_stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    assert_eq!(code(legacy.begin_capture(mode)), UNSUPPORTED);
}

#[test]
fn graph_flags_are_checked_and_the_stream_stays_usable() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    type Flags = sys::CUgraphInstantiate_flags;
    begin_capture(&stream);
    let wrong = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    assert_eq!(code(stream.end_capture(wrong)), 1);
    begin_capture(&stream);
    let graph = end(&stream);
    graph.launch().unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_kernel_node_takes_new_parameters() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = zeros(&stream);
    let value = 1u32;
    begin_capture(&stream);
    // SAFETY: `add` takes an address and a number, and has 8 elements.
    unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&value).launch(block_of(8)).unwrap() };
    let graph = end(&stream);
    graph.launch().unwrap();

    use cudarc::driver::DevicePtr;
    let (mut address, guard) = buffer.device_ptr(&stream);
    let mut value = 10u32;
    let mut params = [(&raw mut address).cast(), (&raw mut value).cast()];
    // SAFETY: handles and parameters live; the graph has one node.
    unsafe {
        let (mut nodes, mut count) = ([std::ptr::null_mut(); 1], 0);
        sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut count).result().unwrap();
        assert_eq!(count, 1);
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &mut count).result().unwrap();
        let new = sys::CUDA_KERNEL_NODE_PARAMS {
            func: add.cu_function(),
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 4,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: params.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        sys::cuGraphExecKernelNodeSetParams_v2(graph.cu_graph_exec(), nodes[0], &new).result().unwrap();
    }
    drop(guard);
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [11, 11, 11, 11, 1, 1, 1, 1]);
}
