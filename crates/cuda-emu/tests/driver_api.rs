//! What needs no kernel to run: the card's figures, modules and fat binaries, the rules of launches,
//! memory, tensor maps.

mod support;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUfunction_attribute_enum as FunctionAttribute};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use support::card::{ADD, card, code, function};

#[test]
fn the_card_poses_as_an_h200() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: the card is what it is");
    }
    let attribute = |which| card.context.attribute(which).unwrap();
    assert_eq!(card.context.compute_capability().unwrap(), (9, 0));
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 227 * 1024);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE), 50 << 20);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH), 1);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH), 0);
    assert!(card.context.name().unwrap().contains("H200"));
    assert_eq!(card.context.total_mem().unwrap() as u64, support::card::MEMORY_BYTES);
    assert!(card.context.has_async_alloc());
    assert_eq!(CudaContext::device_count(), Ok(1));
    assert_eq!(code(CudaContext::new(1)), 101);
    card.context.uuid().unwrap();
}

#[test]
fn errors_have_names_and_texts() {
    let _card = card();
    let error = CudaContext::new(7).unwrap_err();
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_INVALID_DEVICE");
    assert_eq!(error.error_string().unwrap(), c"invalid device ordinal");
}

/// A fat binary by hand: a 16-byte header, then entries of a 64-byte header and a padded payload.
fn fat_binary(entries: &[(u16, u32, u64, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, target, flags, payload) in entries {
        let start = body.len();
        let padded = payload.len().next_multiple_of(8);
        body.extend(kind.to_le_bytes());
        body.extend(0x101_u16.to_le_bytes());
        body.extend(64_u32.to_le_bytes());
        body.extend((padded as u64).to_le_bytes());
        body.resize(start + 28, 0);
        body.extend(target.to_le_bytes());
        body.resize(start + 40, 0);
        body.extend(flags.to_le_bytes());
        body.resize(start + 64, 0);
        body.extend(payload.as_bytes());
        body.resize(start + 64 + padded, 0);
    }
    let mut bytes = 0xba55_ed50_u32.to_le_bytes().to_vec();
    bytes.extend([1, 0, 16, 0]);
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn empty_kernel(target: &str, name: &str) -> String {
    format!(".version 8.0\n.target {target}\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n")
}

#[test]
fn fat_binaries_give_their_best_ptx() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: the entries' headers are as the emulator reads them");
    }
    let (old, new, later) =
        (empty_kernel("sm_80", "old"), empty_kernel("sm_90a", "new"), empty_kernel("sm_100", "later"));
    let image =
        fat_binary(&[(2, 90, 0, "\u{7f}ELF"), (1, 80, 0, &old), (1, 90, 0, &new), (1, 100, 0, &later)]);
    let module = card.context.load_module(Ptx::from_binary(image)).unwrap();
    assert_eq!(code(module.load_function("old")), 500);
    assert_eq!(code(module.load_function("later")), 500);
    module.load_function("new").unwrap();

    let cubins = fat_binary(&[(2, 90, 0, "\u{7f}ELF")]);
    assert_eq!(code(card.context.load_module(Ptx::from_binary(cubins))), 209);
    let compressed = fat_binary(&[(1, 80, 0x8000, &old)]);
    assert_eq!(code(card.context.load_module(Ptx::from_binary(compressed))), 209);
}

#[test]
fn ptx_that_cannot_be_loaded_is_refused() {
    let card = card();
    assert_eq!(code(card.context.load_module(Ptx::from_src("this is no PTX"))), 218);
    if card.emulator.is_emulated() {
        assert_eq!(code(card.context.load_module(Ptx::from_src(empty_kernel("sm_100", "later")))), 209);
    }
}

/// The code of loading PTX, and what is in the log of errors then.
fn load_log(text: &str) -> (u32, String) {
    let text = std::ffi::CString::new(text).unwrap();
    let mut log = [0u8; 256];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast(), log.len() as *mut std::ffi::c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends with zero, and each option has its value; the log outlives the call.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if !module.is_null() {
        // SAFETY: it was loaded here, and nothing of it is used.
        unsafe { result::module::unload(module) }.unwrap();
    }
    let length = log.iter().position(|byte| *byte == 0).unwrap();
    (result as u32, String::from_utf8_lossy(&log[..length]).into_owned())
}

#[test]
fn unsupported_kernels_are_refused_one_by_one() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: a card knows no such instruction");
    }
    let text = empty_kernel("sm_80", "good") + ".visible .entry bad() { frobnicate.sync; ret; }\n";
    assert_eq!(
        load_log(&text),
        (0, "PTX line 5 in `bad`: instruction is not supported: `frobnicate.sync;`".to_string())
    );
    assert_eq!(load_log("this is no PTX").0, 218);
    let module = card.context.load_module(Ptx::from_src(text)).unwrap();
    module.load_function("good").unwrap();
    assert_eq!(code(module.load_function("bad")), 801);
    assert_eq!(code(module.load_function("none")), 500);
}

#[test]
fn module_variables_have_addresses() {
    let card = card();
    let text = empty_kernel("sm_80", "k")
        .replace(".visible .entry", ".visible .global .align 4 .u32 v[4] = {1, 2, 3, 4};\n.visible .entry");
    let module = card.context.load_module(Ptx::from_src(text)).unwrap();
    let stream = card.context.new_stream().unwrap();
    let view = module.get_global("v", &stream).unwrap();
    let bytes = stream.clone_dtoh(&view).unwrap();
    assert_eq!(bytes, [1u32, 2, 3, 4].map(u32::to_le_bytes).concat());
    assert_eq!(code(module.get_global("w", &stream)), 500);
}

#[test]
fn launches_must_keep_the_rules() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let mut buffer = stream.alloc_zeros::<u32>(8).unwrap();
    stream.synchronize().unwrap();
    let mut launch = |grid: (u32, u32, u32), block: (u32, u32, u32), shared: u32| {
        let config = LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes: shared };
        // SAFETY: every launch here is refused.
        code(unsafe { stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(config) })
    };
    assert_eq!(launch((1, 1, 1), (2048, 1, 1), 0), 1);
    assert_eq!(launch((1, 1, 1), (1, 1, 65), 0), 1);
    assert_eq!(launch((0, 1, 1), (8, 1, 1), 0), 1);
    assert_eq!(launch((1, 65536, 1), (8, 1, 1), 0), 1);
    assert_eq!(launch((1, 1, 1), (8, 1, 1), 48 * 1024 + 1), 1);
    stream.synchronize().unwrap();
}

/// Launches one thread in each of 16 blocks, in clusters.
fn launch_clusters(function: &CudaFunction, stream: &CudaStream, blocks: u32) -> u32 {
    // SAFETY: the union is plain numbers.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let config = sys::CUlaunchConfig {
        gridDimX: 16,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    // SAFETY: the kernel has no parameters.
    let result = unsafe {
        sys::cuLaunchKernelEx(&config, function.cu_function(), std::ptr::null_mut(), std::ptr::null_mut())
    };
    code(result.result())
}

#[test]
fn clusters_divide_the_grid_and_are_portable_unless_asked_for() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let kernel = function(&card.context, &empty_kernel("sm_90", "k"), "k");
    assert_eq!(launch_clusters(&kernel, &stream, 8), 0);
    assert_eq!(launch_clusters(&kernel, &stream, 3), 1);
    assert_eq!(launch_clusters(&kernel, &stream, 0), 1);
    if card.emulator.is_emulated() {
        assert_eq!(launch_clusters(&kernel, &stream, 16), 1);
        let non_portable = FunctionAttribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        kernel.set_attribute(non_portable, 1).unwrap();
        assert_eq!(launch_clusters(&kernel, &stream, 16), 0);
    }
    stream.synchronize().unwrap();
}

#[test]
fn more_than_48_kib_of_shared_memory_must_be_asked_for() {
    let card = card();
    let add = function(&card.context, ADD, "add");
    let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(add.get_attribute(most), Ok(48 * 1024));
    if card.emulator.is_emulated() {
        assert_eq!(code(add.set_attribute(most, 227 * 1024 + 1)), 1);
        add.set_attribute(most, 227 * 1024).unwrap();
        assert_eq!(add.get_attribute(most), Ok(227 * 1024));
        assert_eq!(add.occupancy_max_active_blocks_per_multiprocessor(256, 100 * 1024, None), Ok(2));
    }
    assert_eq!(add.occupancy_max_active_blocks_per_multiprocessor(1024, 0, None), Ok(2));
    let (_, block) = add.occupancy_max_potential_block_size(no_shared, 0, 0, None).unwrap();
    assert!(block >= 512 && block.is_multiple_of(32));
}

extern "C" fn no_shared(_block: std::ffi::c_int) -> usize {
    0
}

#[test]
fn copies_outside_of_memory_are_refused() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let buffer = stream.alloc_zeros::<u8>(64).unwrap();
    stream.synchronize().unwrap();
    let address = {
        use cudarc::driver::DevicePtr;
        buffer.device_ptr(&stream).0
    };
    if card.emulator.is_emulated() {
        // SAFETY: both calls are refused before they copy.
        unsafe {
            assert_eq!(code(result::memcpy_htod_sync(address + 32, &[0u8; 33])), 1);
            assert_eq!(code(result::memcpy_htod_sync(8, &[0u8; 3])), 1);
        }
    }
    // SAFETY: the ranges are inside.
    unsafe {
        result::memcpy_htod_sync(address + 31, &[7u8; 33]).unwrap();
        let mut back = [0u8; 2];
        result::memcpy_dtoh_sync(&mut back, address + 62).unwrap();
        assert_eq!(back, [7; 2]);
        sys::cuMemsetD32_v2(address, 0x0403_0201, 16).result().unwrap();
        sys::cuMemsetD16Async(address + 8, 0x0605, 2, stream.cu_stream()).result().unwrap();
        assert_ne!(code(sys::cuMemsetD32_v2(address + 1, 0, 1).result()), 0, "not aligned");
    }
    assert_eq!(stream.clone_dtoh(&buffer).unwrap()[..16], [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 5, 6, 1, 2, 3, 4]);
}

#[test]
fn empty_slices_work() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let empty = stream.clone_htod::<u32, _>(&[0u32; 0]).unwrap();
    assert_eq!(stream.clone_dtoh(&empty).unwrap(), [0u32; 0]);
}

#[test]
fn registered_memory_is_pinned_once() {
    let card = card();
    let mut memory = vec![0u8; 8192];
    let pointer = memory.as_mut_ptr().cast();
    // SAFETY: the memory outlives its registration.
    unsafe {
        sys::cuMemHostRegister_v2(pointer, 8192, 0).result().unwrap();
        assert_eq!(code(sys::cuMemHostRegister_v2(pointer.byte_add(4096), 4096, 0).result()), 712);
        let mut device = 0;
        sys::cuMemHostGetDevicePointer_v2(&mut device, pointer, 0).result().unwrap();
        assert_ne!(device, 0);
        sys::cuMemHostUnregister(pointer).result().unwrap();
        assert_eq!(code(sys::cuMemHostUnregister(pointer).result()), 713);
    }
    drop(card);
}

#[test]
fn handles_that_are_none_are_errors() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: a card's driver may crash");
    }
    // SAFETY: handles are numbers to the emulator.
    unsafe {
        assert_eq!(code(sys::cuStreamSynchronize(0x77 as _).result()), 400);
        assert_eq!(code(sys::cuEventDestroy_v2(0x77 as _).result()), 400);
        assert_eq!(code(sys::cuGraphLaunch(0x77 as _, std::ptr::null_mut()).result()), 400);
        assert_eq!(code(sys::cuMemFree_v2(0x77).result()), 1);
    }
}

#[repr(C, align(64))]
struct Map(sys::CUtensorMap);

/// Encodes a map of f16 with the strides, the box and the swizzle given.
fn encode(address: u64, stride: u64, box_dims: [u32; 2], swizzle: sys::CUtensorMapSwizzle) -> u32 {
    let mut map = Map(sys::CUtensorMap { opaque: [0; 16] });
    let (dims, strides, steps) = ([128u64, 16], [stride], [1u32, 1]);
    // SAFETY: the arrays have as many elements as the rank demands.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map.0,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            address as _,
            dims.as_ptr(),
            strides.as_ptr(),
            box_dims.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    code(result.result())
}

#[test]
fn tensor_maps_are_checked() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let buffer = stream.alloc_zeros::<u16>(128 * 16).unwrap();
    let address = {
        use cudarc::driver::DevicePtr;
        buffer.device_ptr(&stream).0
    };
    let (none, wide) = (
        sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    );
    assert_eq!(encode(address, 256, [64, 16], wide), 0);
    assert_eq!(encode(address, 256, [128, 16], none), 0);
    assert_eq!(encode(address, 256, [128, 16], wide), 1, "a row of the box is wider than the swizzle");
    assert_eq!(encode(address + 8, 256, [64, 16], wide), 1, "address");
    assert_eq!(encode(address, 250, [64, 16], wide), 1, "stride");
    assert_eq!(encode(address, 256, [64, 257], wide), 1, "box");
    assert_eq!(encode(address, 256, [4, 16], none), 1, "a row of the box of 8 bytes");
}

#[test]
fn installing_again_is_the_same_or_refused() {
    use cuda_emu::{Arch, DeviceConfig, InstallError, InstallOptions};
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: nothing is installed");
    }
    let options = InstallOptions::default();
    let other = DeviceConfig { arch: Arch::Sm80, ..options.device };
    let error = cuda_emu::install(&InstallOptions { device: other, ..options }).unwrap_err();
    assert_eq!(error, InstallError::OtherOptions);
}
