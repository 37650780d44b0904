//! Bugs of host code: what a program forgets about streams, copies and the life of buffers, a row
//! each. Every row's program is run as it should be, too.

mod support;

use cudarc::driver::{
    CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PinnedHostSlice, PushKernelArg,
    sys,
};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;
use support::card::{Card, begin_capture, block_of, card, code, function, no_flags};
use support::edit::Edit;

const PTX: &str = include_str!("ptx/bugs.sm_90a.ptx");
const COUNT: usize = 64;

/// A program, right or with its bug; gives what it computed, which should be 10 (n + 1).
type Program = fn(&Card, bool) -> Vec<i32>;

/// What shows of the bug.
#[derive(PartialEq)]
enum Shows {
    /// The answer is wrong, at the default order of streams.
    Wrong,
    /// The device fails with this kind of fault.
    Fault(&'static str),
}

const BUGS: &[(&str, Program, Shows)] = &[
    ("a stream does not wait for another", without_event, Shows::Wrong),
    ("an event is recorded too early", early_event, Shows::Wrong),
    ("the host reads before the copy is there", early_read, Shows::Wrong),
    ("the host overwrites what a copy has yet to read", early_write, Shows::Wrong),
    ("a dependent kernel does not wait", without_grid_wait, Shows::Wrong),
    ("a buffer is freed before its kernel has run", early_free, Shows::Fault("UseAfterFree")),
    ("a graph outlives its buffer", early_free_of_graph, Shows::Fault("UseAfterFree")),
    ("a module is unloaded before its kernel has run", early_unload, Shows::Fault("UseAfterFree")),
    ("a buffer is shorter than the kernel thinks", short_buffer, Shows::Fault("OutOfBounds")),
    ("a buffer is read that nothing wrote", unwritten, Shows::Fault("Uninitialised")),
];

struct Kernels {
    first: CudaFunction,
    second: CudaFunction,
}

/// `first` adds 1 to its numbers, `second` multiplies by 10 into others.
fn kernels(card: &Card, ptx: &str) -> Kernels {
    Kernels { first: function(&card.context, ptx, "first"), second: function(&card.context, ptx, "second") }
}

fn numbers() -> Vec<i32> {
    (0..COUNT as i32).collect()
}

impl Kernels {
    fn first(&self, stream: &CudaStream, x: &CudaSlice<i32>) {
        // SAFETY: the kernel takes the address of an element for each thread.
        unsafe { stream.launch_builder(&self.first).arg(x).launch(block_of(COUNT as u32)) }.unwrap();
    }

    fn second(&self, stream: &CudaStream, y: &CudaSlice<i32>, x: &CudaSlice<i32>) {
        let config: LaunchConfig = block_of(COUNT as u32);
        // SAFETY: the kernel takes two addresses of an element for each thread.
        unsafe { stream.launch_builder(&self.second).arg(y).arg(x).launch(config) }.unwrap();
    }
}

/// Numbers on the device, zeros to write to, and everything before done.
fn buffers(card: &Card, stream: &Arc<CudaStream>) -> (CudaSlice<i32>, CudaSlice<i32>) {
    let both = (stream.clone_htod(&numbers()).unwrap(), stream.alloc_zeros(COUNT).unwrap());
    card.context.synchronize().unwrap();
    both
}

fn two_streams(card: &Card) -> (Arc<CudaStream>, Arc<CudaStream>) {
    (card.context.new_stream().unwrap(), card.context.new_stream().unwrap())
}

fn without_event(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (one, two)) = (kernels(card, PTX), two_streams(card));
    let (x, y) = buffers(card, &one);
    kernels.first(&one, &x);
    if !broken {
        two.join(&one).unwrap();
    }
    kernels.second(&two, &y, &x);
    let found = two.clone_dtoh(&y).unwrap();
    one.synchronize().unwrap();
    found
}

fn early_event(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (one, two)) = (kernels(card, PTX), two_streams(card));
    let (x, y) = buffers(card, &one);
    let early = one.record_event(None).unwrap();
    kernels.first(&one, &x);
    let event = if broken { early } else { one.record_event(None).unwrap() };
    two.wait(&event).unwrap();
    kernels.second(&two, &y, &x);
    let found = two.clone_dtoh(&y).unwrap();
    one.synchronize().unwrap();
    found
}

fn pinned(card: &Card, values: &[i32]) -> PinnedHostSlice<i32> {
    // SAFETY: the memory is filled before it is read.
    let mut slice = unsafe { card.context.alloc_pinned_with_flags::<i32>(COUNT, 0) }.unwrap();
    slice.as_mut_slice().unwrap().copy_from_slice(values);
    slice
}

fn early_read(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, _)) = (kernels(card, PTX), two_streams(card));
    let (x, y) = buffers(card, &stream);
    let mut host = pinned(card, &[0; COUNT]);
    kernels.first(&stream, &x);
    kernels.second(&stream, &y, &x);
    let target = host.as_mut_ptr().unwrap();
    let from = y.device_ptr(&stream).0;
    // SAFETY: both sides have as many elements, and live until the stream is synchronized below.
    unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), from, COUNT * 4, stream.cu_stream()) }
        .result()
        .unwrap();
    if !broken {
        stream.synchronize().unwrap();
    }
    // SAFETY: the emulated copy runs when somebody waits: nobody writes now.
    let found = (0..COUNT).map(|n| unsafe { target.add(n).read_volatile() }).collect();
    stream.synchronize().unwrap();
    found
}

fn early_write(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, _)) = (kernels(card, PTX), two_streams(card));
    let (mut x, y) = buffers(card, &stream);
    let mut host = pinned(card, &numbers());
    stream.memcpy_htod(&host, &mut x).unwrap();
    if !broken {
        stream.synchronize().unwrap();
    }
    // Through the pointer: `as_mut_slice` would wait for the copy.
    let source = host.as_mut_ptr().unwrap();
    // SAFETY: the emulated copy runs when somebody waits: nobody reads now.
    (0..COUNT).for_each(|n| unsafe { source.add(n).write_volatile(0) });
    kernels.first(&stream, &x);
    kernels.second(&stream, &y, &x);
    stream.clone_dtoh(&y).unwrap()
}

fn without_grid_wait(card: &Card, broken: bool) -> Vec<i32> {
    let wait = Edit::all(1, "second", "griddepcontrol.wait;", "");
    let ptx = if broken { wait.apply(PTX) } else { PTX.to_string() };
    let (kernels, (stream, _)) = (kernels(card, &ptx), two_streams(card));
    let (x, y) = buffers(card, &stream);
    kernels.first(&stream, &x);
    let (mut to, mut from) = (y.device_ptr(&stream).0, x.device_ptr(&stream).0);
    let mut params = [(&raw mut to).cast(), (&raw mut from).cast()];
    support::card::launch_programmatic(&stream, &kernels.second, COUNT as u32, &mut params);
    stream.clone_dtoh(&y).unwrap()
}

fn early_free(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, other)) = (kernels(card, PTX), two_streams(card));
    let y = buffers(card, &stream).1;
    // Freed in the stream that made it.
    let x = other.clone_htod(&(1..=COUNT as i32).collect::<Vec<_>>()).unwrap();
    card.context.synchronize().unwrap();
    kernels.second(&stream, &y, &x);
    if broken {
        drop(x);
        other.synchronize().unwrap();
    }
    stream.clone_dtoh(&y).unwrap_or_default()
}

fn graph_of_second(
    stream: &Arc<CudaStream>,
    kernels: &Kernels,
    y: &CudaSlice<i32>,
    x: &CudaSlice<i32>,
) -> CudaGraph {
    begin_capture(stream);
    kernels.first(stream, x);
    kernels.second(stream, y, x);
    stream.end_capture(no_flags()).unwrap().unwrap()
}

fn early_free_of_graph(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, _)) = (kernels(card, PTX), two_streams(card));
    let (x, y) = buffers(card, &stream);
    let graph = graph_of_second(&stream, &kernels, &y, &x);
    if broken {
        drop(x);
        stream.synchronize().unwrap();
    }
    graph.launch().unwrap();
    stream.clone_dtoh(&y).unwrap_or_default()
}

/// `by_code` reads the module's own memory.
fn early_unload(card: &Card, broken: bool) -> Vec<i32> {
    let stream = card.context.new_stream().unwrap();
    let module = card.context.load_module(Ptx::from_src(include_str!("ptx/wide.sm_90a.ptx"))).unwrap();
    let kernel = module.load_function("by_code").unwrap();
    let code = stream.clone_htod(&[0u8; COUNT]).unwrap();
    let zeros = stream.alloc_zeros::<f32>(COUNT).unwrap();
    // SAFETY: the kernel takes two addresses of an element for each thread.
    unsafe { stream.launch_builder(&kernel).arg(&zeros).arg(&code).launch(block_of(COUNT as u32)) }.unwrap();
    if broken {
        drop((module, kernel));
    }
    let found = stream.clone_dtoh(&zeros).unwrap_or_default();
    found.iter().zip(wanted()).map(|(zero, right)| *zero as i32 + right).collect()
}

fn short_buffer(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, _)) = (kernels(card, PTX), two_streams(card));
    let y = buffers(card, &stream).1;
    let count = if broken { COUNT - 1 } else { COUNT };
    let x = stream.clone_htod(&numbers()[..count]).unwrap();
    kernels.first(&stream, &x);
    kernels.second(&stream, &y, &x);
    stream.clone_dtoh(&y).unwrap_or_default()
}

fn unwritten(card: &Card, broken: bool) -> Vec<i32> {
    let (kernels, (stream, _)) = (kernels(card, PTX), two_streams(card));
    let y = buffers(card, &stream).1;
    // SAFETY: whether it is written is what the row is about.
    let mut x = unsafe { stream.alloc::<i32>(COUNT) }.unwrap();
    if !broken {
        stream.memcpy_htod(&numbers(), &mut x).unwrap();
    }
    kernels.first(&stream, &x);
    kernels.second(&stream, &y, &x);
    stream.clone_dtoh(&y).unwrap_or_default()
}

fn wanted() -> Vec<i32> {
    numbers().iter().map(|n| (n + 1) * 10).collect()
}

#[test]
fn bugs_show() {
    for (name, program, shows) in BUGS {
        let card = card();
        if !card.emulator.is_emulated() {
            return eprintln!("skipped: a card may happen to be fast enough");
        }
        let found = program(&card, true);
        assert_ne!(found, wanted(), "{name}");
        let failed = code(card.context.synchronize()) != 0;
        assert_eq!(failed, *shows != Shows::Wrong, "{name}");
        if let Shows::Fault(kind) = shows {
            assert_eq!(card.emulator.last_fault().unwrap().kind, *kind, "{name}");
        }
        card.emulator.reset().unwrap();
    }
}

#[test]
fn right_programs_pass_for_every_seed() {
    for (name, program, _) in BUGS {
        for seed in 0..20 {
            let card = card();
            if card.emulator.is_emulated() {
                card.emulator.set_seed(seed).unwrap();
            }
            assert_eq!(program(&card, false), wanted(), "{name}, seed {seed}");
        }
    }
}
