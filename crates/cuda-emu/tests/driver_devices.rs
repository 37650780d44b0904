//! Several devices: what tells them apart, memory that is one's and not the other's, failures that stay
//! where they happened.

mod support;

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_emu::{Arch, DeviceConfig, Emulator, Injection, InstallOptions};
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result, sys,
};
use support::card::{ADD, block_of, code, function};

const MEMORY_BYTES: [u64; 2] = [32 << 20, 48 << 20];

/// Two devices of this process, for one test.
struct Cards {
    emulator: Emulator,
    contexts: [Arc<CudaContext>; 2],
    _turn: MutexGuard<'static, ()>,
}

fn install() -> Emulator {
    let base = DeviceConfig { threads: 2, ..InstallOptions::default().device };
    let device = DeviceConfig { arch: Arch::Sm80, memory_bytes: MEMORY_BYTES[0], ..base.clone() };
    let (memory_bytes, reserved_is_static) = (MEMORY_BYTES[1], true);
    let others = vec![DeviceConfig { arch: Arch::Sm90, memory_bytes, reserved_is_static, ..base }];
    cuda_emu::install(&InstallOptions { device, others, ..InstallOptions::skipped_by("CUDA_EMU_TEST_GPU") })
        .unwrap()
}

fn cards() -> Option<Cards> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let emulator = install();
    if emulator.reset().is_err() {
        eprintln!("skipped: a machine with two cards is not at hand");
        return None;
    }
    let contexts = [0, 1].map(|ordinal| {
        let context = CudaContext::new(ordinal).unwrap();
        // SAFETY: the tests use one stream each.
        unsafe { context.disable_event_tracking() };
        context
    });
    Some(Cards { emulator, contexts, _turn: turn })
}

/// Adds 1 to the first `threads` elements.
fn add(context: &Arc<CudaContext>, stream: &CudaStream, target: &CudaSlice<u32>, threads: u32) -> u32 {
    let add = function(context, ADD, "add");
    // As a number: cudarc's own check of contexts is not what is tested.
    let address = target.device_ptr(target.stream()).0;
    // SAFETY: `add` takes an address and a number; the emulator reports what lies outside.
    let launched = unsafe { stream.launch_builder(&add).arg(&address).arg(&1u32).launch(block_of(threads)) };
    launched.map_or_else(|error| error.0 as u32, |_| code(stream.synchronize()))
}

#[test]
fn devices_differ_in_name_place_and_memory() {
    let Some(cards) = cards() else { return };
    assert_eq!(CudaContext::device_count(), Ok(2));
    assert_eq!(code(CudaContext::new(2)), 101, "an index too many");
    let names = cards.contexts.each_ref().map(|context| context.name().unwrap());
    assert!(names[0].ends_with("(cuda-emu)") && names[1].ends_with("(cuda-emu 1)"), "{names:?}");
    let uuids = cards.contexts.each_ref().map(|context| context.uuid().unwrap().bytes);
    assert_ne!(uuids[0], uuids[1]);
    let bus = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
    assert_eq!(cards.contexts.each_ref().map(|context| context.attribute(bus).unwrap()), [1, 2]);
    for (ordinal, context) in cards.contexts.iter().enumerate() {
        assert_eq!(context.total_mem(), Ok(MEMORY_BYTES[ordinal] as usize));
        context.bind_to_thread().unwrap();
        let mut device = -1;
        // SAFETY: writes the index.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result().unwrap();
        assert_eq!(device, ordinal as i32);
    }
    assert_ne!(cards.contexts[0].cu_ctx(), cards.contexts[1].cu_ctx());
}

/// A card, and one whose driver counts what the system takes of each block as the kernel's own.
#[test]
fn reserved_shared_memory_counts_as_the_kernels_where_the_configuration_says_so() {
    use sys::CUfunction_attribute as Attribute;
    let Some(cards) = cards() else { return };
    for (context, fixed) in cards.contexts.iter().zip([0, 1024]) {
        context.bind_to_thread().unwrap();
        let opt_in = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let block_max = context.attribute(opt_in).unwrap();
        let add = function(context, ADD, "add");
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(add.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), Ok(fixed));
        assert_eq!(add.get_attribute(most), Ok((48 << 10) - fixed));
        assert_eq!(code(add.set_attribute(most, block_max - fixed + 1)), 1);
        add.set_attribute(most, block_max - fixed).unwrap();
        let stream = context.new_stream().unwrap();
        let target = stream.alloc_zeros::<u32>(32).unwrap();
        let launch = |shared_mem_bytes| {
            let config = LaunchConfig { shared_mem_bytes, ..block_of(32) };
            // SAFETY: `add` takes an address and a number, and has 32 elements.
            code(unsafe { stream.launch_builder(&add).arg(&target).arg(&1u32).launch(config) })
        };
        assert_eq!([launch((block_max - fixed) as u32), launch((block_max - fixed) as u32 + 1)], [0, 1]);
        // A block takes the same of a multiprocessor, however it is counted.
        assert_eq!(
            add.occupancy_max_active_blocks_per_multiprocessor(32, block_max as usize / 2 - 1024, None),
            Ok(2)
        );
        stream.synchronize().unwrap();
    }
}

/// The share of shared memory is a wish in per cent, or -1 for the driver's own choice.
#[test]
fn the_carve_out_is_kept_and_nonsense_refused() {
    let Some(cards) = cards() else { return };
    cards.contexts[0].bind_to_thread().unwrap();
    let add = function(&cards.contexts[0], ADD, "add");
    let carveout = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    assert_eq!(add.get_attribute(carveout), Ok(-1));
    for (wish, refused) in [(100, 0), (101, 1), (-2, 1), (0, 0), (-1, 0), (100, 0)] {
        assert_eq!(code(add.set_attribute(carveout, wish)), refused, "{wish}");
    }
    assert_eq!(add.get_attribute(carveout), Ok(100));
}

#[test]
fn one_device_full_leaves_the_other_its_memory_and_both_compute() {
    let Some(cards) = cards() else { return };
    let streams = cards.contexts.each_ref().map(|context| context.new_stream().unwrap());
    // SAFETY: what is allocated is not read.
    let _most = unsafe { streams[0].alloc::<u8>(MEMORY_BYTES[0] as usize - 4096) }.unwrap();
    assert_eq!(code(streams[0].alloc_zeros::<u8>(1 << 20)), 2);
    let buffers = streams.each_ref().map(|stream| stream.clone_htod(&[7u32; 8]).unwrap());
    for ((context, stream), buffer) in cards.contexts.iter().zip(&streams).zip(&buffers) {
        assert_eq!(add(context, stream, buffer, 8), 0);
        assert_eq!(stream.clone_dtoh(buffer).unwrap(), [8; 8]);
    }
}

#[test]
fn a_kernel_that_uses_the_other_devices_memory_is_told_whose_it_is() {
    let Some(cards) = cards() else { return };
    let [zero, one] = cards.contexts.each_ref().map(|context| context.new_stream().unwrap());
    let buffer = zero.clone_htod(&[7u32; 8]).unwrap();
    assert_eq!(add(&cards.contexts[1], &one, &buffer, 8), 700);
    let report = cards.emulator.device(1).unwrap().last_fault().unwrap();
    assert_eq!((report.kind.as_str(), report.kernel.as_str()), ("Peer", "add"));
    assert!(report.text.contains("memory of device 0, used in a context of device 1"), "{}", report.text);
    // The device that was asked wrongly is broken, the owner is not.
    assert_eq!(cards.emulator.last_fault(), None);
    assert_eq!(code(one.alloc_zeros::<u8>(1)), 700);
    assert_eq!(add(&cards.contexts[0], &zero, &buffer, 8), 0);
    assert_eq!(zero.clone_dtoh(&buffer).unwrap(), [8; 8]);
}

#[test]
fn copies_and_frees_of_the_other_devices_memory_are_refused() {
    let Some(cards) = cards() else { return };
    let zero = cards.contexts[0].new_stream().unwrap();
    let buffer = zero.clone_htod(&[7u32; 8]).unwrap();
    let address = buffer.device_ptr(&zero).0;
    cards.contexts[1].bind_to_thread().unwrap();
    let mut out = [0u32; 8];
    // SAFETY: the host's memory is valid; the device's is what is refused.
    unsafe {
        assert_eq!(code(result::memcpy_dtoh_sync(&mut out, address)), 1);
        assert_eq!(code(result::memcpy_htod_sync(address, &out)), 1);
        assert_eq!(code(result::memset_d8_sync(address, 0, 32)), 1);
        assert_eq!(code(result::free_sync(address)), 1);
    }
    assert_eq!(zero.clone_dtoh(&buffer).unwrap(), [7; 8], "nothing was touched");
}

#[test]
fn a_function_runs_on_the_device_that_loaded_it_only() {
    let Some(cards) = cards() else { return };
    let [zero, one] = cards.contexts.each_ref().map(|context| context.new_stream().unwrap());
    let buffer = one.clone_htod(&[7u32; 8]).unwrap();
    assert_eq!(add(&cards.contexts[0], &one, &buffer, 8), 400);
    assert_eq!(cards.emulator.device(1).unwrap().last_fault(), None, "nothing ran");
    drop(zero);
}

#[test]
fn pinned_memory_is_seen_by_both() {
    let Some(cards) = cards() else { return };
    // SAFETY: written before it is read.
    let mut pinned = unsafe { cards.contexts[0].alloc_pinned::<u32>(8) }.unwrap();
    pinned.as_mut_slice().unwrap().fill(5);
    for context in &cards.contexts {
        let stream = context.new_stream().unwrap();
        let mut buffer = stream.alloc_zeros::<u32>(8).unwrap();
        stream.memcpy_htod(&pinned, &mut buffer).unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [5; 8]);
    }
}

#[test]
fn an_injected_failure_is_one_devices() {
    let Some(cards) = cards() else { return };
    let streams = cards.contexts.each_ref().map(|context| context.new_stream().unwrap());
    let buffers = streams.each_ref().map(|stream| stream.clone_htod(&[7u32; 8]).unwrap());
    let second = cards.emulator.device(1).unwrap();
    second.inject(Injection::Error { launch: 1, code: 719 }).unwrap();
    let run = |at: usize| add(&cards.contexts[at], &streams[at], &buffers[at], 8);
    assert_eq!([run(0), run(1), run(0)], [0, 719, 0]);
    assert_eq!(code(streams[1].synchronize()), 719, "it sticks");
    assert_eq!(cuda_emu::last_fault(), second.last_fault(), "the first that there is");
    assert!(cards.emulator.device(2).is_none());
    cards.emulator.reset().unwrap();
    assert_eq!(run(1), 0);
}

#[test]
fn the_environment_names_the_devices() {
    let child = |devices: &str| {
        let program = std::env::current_exe().unwrap();
        let arguments = ["--ignored", "--exact", "prints_devices", "--nocapture"];
        let mut command = Command::new(program);
        command.args(arguments).env("CUDA_EMU_DEVICE", devices).env_remove("CUDA_EMU_TEST_GPU");
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert!(child("sm_90").contains("devices: [9, 9]"), "one name is every device's");
    assert!(child("sm_80,sm_90,sm_80").contains("devices: [8, 9, 8]"), "a list is all devices");
    assert!(child("sm_80,sm_70").contains("`sm_70`"));
    assert!(child(&["sm_80"; 9].join(",")).contains("at most 8"));
}

#[test]
#[ignore = "run by another test, in another environment"]
fn prints_devices() {
    install();
    let major = |ordinal| CudaContext::new(ordinal).unwrap().compute_capability().unwrap().0;
    let count = CudaContext::device_count().unwrap() as usize;
    println!("devices: {:?}", (0..count).map(major).collect::<Vec<_>>());
}
