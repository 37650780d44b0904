//! Entry points that cudarc's own types do not call, or not with all that they can be asked: what the
//! manual of the driver says of each.

mod support;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use cudarc::driver::sys::{
    CUctx_flags, CUfunc_cache, CUlimit, CUpointer_attribute as Pointer, CUresult, CUstreamCaptureMode,
};
use cudarc::driver::{DevicePtr, PushKernelArg, sys};
use support::card::{ADD, block_of, card, code, function};

/// What a call hands out through its pointer.
fn given<T>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, u32> {
    let mut value = MaybeUninit::<T>::zeroed();
    match call(value.as_mut_ptr()) {
        // SAFETY: a call that succeeds has written the value.
        CUresult::CUDA_SUCCESS => Ok(unsafe { value.assume_init() }),
        error => Err(error as u32),
    }
}

#[track_caller]
fn done(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

fn fails(result: CUresult) -> u32 {
    code(result.result())
}

#[test]
fn contexts_are_a_stack_of_each_thread() {
    let card = card();
    // SAFETY: pointers are to locals, and contexts are used while they live, or only compared.
    unsafe {
        let primary = given(|p| sys::cuCtxGetCurrent(p)).unwrap();
        assert_eq!(primary, card.context.cu_ctx());
        let own: sys::CUcontext = given(|p| sys::cuCtxCreate_v2(p, 4, 0)).unwrap();
        assert_eq!(given(|p| sys::cuCtxGetCurrent(p)), Ok(own));
        assert_eq!(given(|p| sys::cuCtxGetDevice(p)), Ok(0));
        assert_eq!(given(|p| sys::cuCtxGetFlags(p)), Ok(4));
        assert!(given(|p| sys::cuCtxGetApiVersion(own, p)).unwrap() >= 3020);
        done(sys::cuCtxPushCurrent_v2(primary));
        assert_eq!(given(|p| sys::cuCtxGetCurrent(p)), Ok(primary));
        assert_eq!(given(|p| sys::cuCtxPopCurrent_v2(p)), Ok(primary));
        let stream = given(|p| sys::cuStreamCreate(p, 0)).unwrap();
        assert_eq!(given(|p| sys::cuStreamGetCtx(stream, p)), Ok(own));
        done(sys::cuCtxSynchronize());
        done(sys::cuCtxDestroy_v2(own));
        assert_eq!(given(|p| sys::cuCtxGetCurrent(p)), Ok(primary), "what was below");
        assert_eq!(fails(sys::cuCtxSetCurrent(own)), 201);
        assert_eq!(fails(sys::cuCtxPushCurrent_v2(own)), 201);
        assert_eq!(fails(sys::cuStreamSynchronize(stream)), 400, "gone with its context");
        done(sys::cuCtxDestroy_v2(given(|p| sys::cuCtxCreate_v3(p, null_mut(), 0, 0, 0)).unwrap()));
        done(sys::cuCtxDestroy_v2(given(|p| sys::cuCtxCreate_v4(p, null_mut(), 0, 0)).unwrap()));
        assert_eq!(given(|p| sys::cuCtxCreate_v2(p, 0, 7)), Err(101));
        done(sys::cuCtxSetCurrent(null_mut()));
        assert_eq!(given(|p| sys::cuMemAlloc_v2(p, 4)), Err(201));
        assert_eq!(fails(sys::cuCtxSynchronize()), 201);
        done(sys::cuCtxSetCurrent(primary));
        // Another thread has none until it takes one.
        let there =
            std::thread::spawn(|| given(|p| sys::cuCtxGetCurrent(p)).map(|context| context.is_null()));
        assert_eq!(there.join().unwrap(), Ok(true));
    }
}

#[test]
fn settings_of_a_context_are_kept() {
    let _card = card();
    // SAFETY: pointers are to locals.
    unsafe {
        let own: sys::CUcontext = given(|p| sys::cuCtxCreate_v2(p, 0, 0)).unwrap();
        let limit = CUlimit::CU_LIMIT_STACK_SIZE;
        done(sys::cuCtxSetLimit(limit, 4096));
        assert_eq!(given(|p| sys::cuCtxGetLimit(p, limit)), Ok(4096));
        assert_eq!(given(|p| sys::cuCtxGetLimit(p, CUlimit::CU_LIMIT_MAX)), Err(215));
        assert_eq!(fails(sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MAX, 1)), 215);
        let more = CUfunc_cache::CU_FUNC_CACHE_PREFER_L1;
        done(sys::cuCtxSetCacheConfig(more));
        assert_eq!(given(|p| sys::cuCtxGetCacheConfig(p)), Ok(more));
        done(sys::cuCtxSetFlags(CUctx_flags::CU_CTX_SCHED_YIELD as u32));
        assert_eq!(given(|p| sys::cuCtxGetFlags(p)), Ok(CUctx_flags::CU_CTX_SCHED_YIELD as u32));
        let (mut least, mut greatest) = (7, 7);
        done(sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(least == 0 && greatest < 0, "{least} to {greatest}");
        let stream = given(|p| sys::cuStreamCreateWithPriority(p, 1, greatest - 10)).unwrap();
        assert_eq!(given(|p| sys::cuStreamGetPriority(stream, p)), Ok(greatest), "as far as it goes");
        assert_eq!(given(|p| sys::cuStreamGetFlags(stream, p)), Ok(1));
        assert_eq!(given(|p| sys::cuStreamCreate(p, 2)), Err(1));
        done(sys::cuProfilerStart());
        done(sys::cuProfilerStop());
        done(sys::cuCtxDestroy_v2(own));
    }
}

#[test]
fn devices_are_counted_and_named() {
    let card = card();
    // SAFETY: pointers are to locals, with their sizes.
    unsafe {
        assert_eq!(fails(sys::cuInit(1)), 1);
        done(sys::cuInit(0));
        assert!(given(|p| sys::cuDriverGetVersion(p)).unwrap() >= 12080);
        assert_eq!(given(|p| sys::cuDeviceGetCount(p)), Ok(1));
        assert_eq!(given(|p| sys::cuDeviceGet(p, 0)), Ok(0));
        assert_eq!(given(|p| sys::cuDeviceGet(p, 1)), Err(101));
        let uuids = [given(|p| sys::cuDeviceGetUuid(p, 0)), given(|p| sys::cuDeviceGetUuid_v2(p, 0))];
        let [first, second] = uuids.map(|uuid| uuid.unwrap().bytes);
        assert_eq!(first, second);
        let mut name = [1; 4];
        done(sys::cuDeviceGetName(name.as_mut_ptr(), 4, 0));
        assert_eq!(name[3], 0, "cut off");
        let total = given(|p| sys::cuDeviceTotalMem_v2(p, 0)).unwrap();
        let (mut free, mut whole) = (0, 0);
        done(sys::cuMemGetInfo_v2(&mut free, &mut whole));
        assert!(free <= whole && whole == total);
        let active = || {
            let (mut flags, mut active) = (0, 0);
            done(sys::cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
            (flags, active)
        };
        assert_eq!(active().1, 1);
        done(sys::cuDevicePrimaryCtxSetFlags_v2(0, 2));
        assert_eq!(active(), (2, 1));
        assert_eq!(given(|p| sys::cuDevicePrimaryCtxRetain(p, 0)), Ok(card.context.cu_ctx()));
        done(sys::cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(active().1, 1, "the card's own is left");
    }
}

#[test]
fn memory_tells_what_it_is() {
    let card = card();
    // SAFETY: pointers are to locals or to memory that was allocated here.
    unsafe {
        let (mut free, mut total) = (0, 0);
        done(sys::cuMemGetInfo_v2(&mut free, &mut total));
        let device = given(|p| sys::cuMemAlloc_v2(p, 1000)).unwrap();
        let mut left = 0;
        done(sys::cuMemGetInfo_v2(&mut left, &mut total));
        assert!(left + 1000 <= free);
        let (mut start, mut bytes) = (0, 0);
        done(sys::cuMemGetAddressRange_v2(&mut start, &mut bytes, device + 999));
        assert_eq!((start, bytes), (device, 1000));
        let is = |which, at| given::<u64>(|p| sys::cuPointerGetAttribute(p.cast(), which, at));
        let memory_type = Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        assert_eq!(is(memory_type, device + 5), Ok(2));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_CONTEXT, device), Ok(card.context.cu_ctx() as u64));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device), Ok(0));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 5), Ok(device));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE, device + 5), Ok(1000));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_HOST_POINTER, device), Err(1));
        let local = 0u64;
        assert_eq!(is(memory_type, &raw const local as u64), Err(1));

        let host: *mut c_void = given(|p| sys::cuMemHostAlloc(p, 64, 1)).unwrap();
        assert_eq!(given(|p| sys::cuMemHostGetFlags(p, host)), Ok(1));
        assert_eq!(is(memory_type, host as u64), Ok(1));
        assert_eq!(is(Pointer::CU_POINTER_ATTRIBUTE_HOST_POINTER, host as u64 + 8), Ok(host as u64 + 8));
        done(sys::cuMemFreeHost(host));
        let host: *mut c_void = given(|p| sys::cuMemAllocHost_v2(p, 64)).unwrap();
        assert_eq!(fails(sys::cuMemFree_v2(host as u64)), 1, "not the device's");
        done(sys::cuMemFreeHost(host));
        assert_ne!(fails(sys::cuMemFreeHost(host)), 0);
        done(sys::cuMemFree_v2(device));
        assert_eq!(given(|p| sys::cuMemAlloc_v2(p, 0)), Err(1));
    }
}

/// Bytes of device memory.
unsafe fn bytes_at(address: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    // SAFETY: the caller's range is of device memory; the vector has room.
    done(unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, count) });
    bytes
}

#[test]
fn copies_and_fills_of_every_kind() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let context = card.context.cu_ctx();
    // SAFETY: all ranges are inside of what is allocated here, and lives until the end.
    unsafe {
        let a = given(|p| sys::cuMemAlloc_v2(p, 16)).unwrap();
        let b = given(|p| sys::cuMemAlloc_v2(p, 16)).unwrap();
        done(sys::cuMemsetD8_v2(a, 0x11, 16));
        assert_eq!(bytes_at(a, 16), [0x11; 16]);
        done(sys::cuMemsetD16_v2(a + 2, 0x2322, 3));
        assert_eq!(bytes_at(a, 9), [0x11, 0x11, 0x22, 0x23, 0x22, 0x23, 0x22, 0x23, 0x11]);
        assert_eq!(fails(sys::cuMemsetD16_v2(a + 1, 0, 1)), 1);
        assert_eq!(fails(sys::cuMemsetD8_v2(a + 15, 0, 2)), 1);
        let s = stream.cu_stream();
        done(sys::cuMemsetD8Async(b, 0x44, 8, s));
        done(sys::cuMemsetD32Async(b + 8, 0x0807_0605, 2, s));
        done(sys::cuStreamSynchronize(s));
        assert_eq!(bytes_at(b, 16), [[0x44; 8], [5, 6, 7, 8, 5, 6, 7, 8]].concat());
        done(sys::cuMemcpyDtoD_v2(a, b + 8, 4));
        done(sys::cuMemcpyDtoDAsync_v2(a + 4, b + 12, 2, s));
        done(sys::cuMemcpyPeerAsync(a + 6, context, b + 14, context, 1, s));
        done(sys::cuStreamSynchronize(s));
        assert_eq!(bytes_at(a, 8), [5, 6, 7, 8, 5, 6, 7, 0x23]);
        // Where to and where from, the addresses tell.
        let (from, mut to) = ([9u8; 3], [0u8; 3]);
        done(sys::cuMemcpy(a, from.as_ptr() as u64, 3));
        done(sys::cuMemcpy(b, a, 2));
        done(sys::cuMemcpy(to.as_mut_ptr() as u64, b, 3));
        assert_eq!(to, [9, 9, 0x44]);
        done(sys::cuMemcpyAsync(b + 1, from.as_ptr() as u64, 3, s));
        done(sys::cuMemcpyAsync(to.as_mut_ptr() as u64, b, 3, s));
        done(sys::cuStreamSynchronize(s));
        assert_eq!(to, [9, 9, 9]);
        assert_eq!(fails(sys::cuMemcpyDtoD_v2(a, b + 8, 9)), 1);
        assert_eq!(fails(sys::cuMemcpyHtoD_v2(a, std::ptr::null(), 1)), 1);
        [a, b].into_iter().for_each(|address| done(sys::cuMemFree_v2(address)));
    }
}

#[test]
fn managed_memory_is_the_hosts_too() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let add = function(&card.context, ADD, "add");
    let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let advice = sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
    // SAFETY: the host touches the memory while no kernel runs; ranges beyond it are refused.
    unsafe {
        let address = given(|p| sys::cuMemAllocManaged(p, 8, 1)).unwrap();
        assert_eq!(given(|p| sys::cuMemAllocManaged(p, 8, 3)), Err(1));
        std::slice::from_raw_parts_mut(address as *mut u32, 2).copy_from_slice(&[5, 6]);
        done(sys::cuMemsetD32_v2(address, 5, 1));
        done(sys::cuMemsetD32_v2(address + 4, 6, 1));
        done(sys::cuMemAdvise_v2(address, 8, advice, location));
        assert_eq!(fails(sys::cuMemAdvise_v2(address, 9, advice, location)), 1);
        done(sys::cuMemPrefetchAsync_v2(address, 8, location, 0, stream.cu_stream()));
        assert_eq!(fails(sys::cuMemPrefetchAsync_v2(address, 9, location, 0, stream.cu_stream())), 1);
        done(sys::cuStreamAttachMemAsync(stream.cu_stream(), address, 8, 4));
        stream.launch_builder(&add).arg(&address).arg(&10u32).launch(block_of(2)).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(std::slice::from_raw_parts(address as *const u32, 2), [15, 16]);
        // The free waits for the kernel.
        stream.launch_builder(&add).arg(&address).arg(&10u32).launch(block_of(2)).unwrap();
        done(sys::cuMemFree_v2(address));
        stream.synchronize().unwrap();
    }
}

#[test]
fn pools_have_attributes() {
    use sys::CUmemPool_attribute as Attribute;
    let card = card();
    let stream = card.context.new_stream().unwrap();
    // SAFETY: attributes are read and written with their sizes.
    unsafe {
        let pool: sys::CUmemoryPool = given(|p| sys::cuDeviceGetDefaultMemPool(p, 0)).unwrap();
        assert_eq!(given(|p| sys::cuDeviceGetMemPool(p, 0)), Ok(pool));
        done(sys::cuDeviceSetMemPool(0, pool));
        let wide = |which| given::<u64>(|p| sys::cuMemPoolGetAttribute(pool, which, p.cast()));
        let (threshold, used) =
            (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        assert_eq!(wide(threshold), Ok(0));
        let mut value = u64::MAX;
        done(sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut value).cast()));
        assert_eq!(wide(threshold), Ok(u64::MAX));
        let reuse = Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
        let mut narrow = [1i32, 77];
        done(sys::cuMemPoolGetAttribute(pool, reuse, narrow.as_mut_ptr().cast()));
        assert_eq!(narrow, [1, 77], "32 bits of it");
        let before = wide(used).unwrap();
        let address = given(|p| sys::cuMemAllocFromPoolAsync(p, 4096, pool, stream.cu_stream())).unwrap();
        assert_eq!(wide(used), Ok(before + 4096));
        done(sys::cuMemFreeAsync(address, stream.cu_stream()));
        done(sys::cuStreamSynchronize(stream.cu_stream()));
        assert_eq!(wide(used), Ok(before));
        done(sys::cuMemPoolTrimTo(pool, 0));
        let own: sys::CUmemoryPool =
            given(|p| sys::cuMemPoolCreate(p, &MaybeUninit::zeroed().assume_init())).unwrap();
        done(sys::cuMemPoolDestroy(own));
        assert_eq!(fails(sys::cuMemPoolTrimTo(own, 0)), 400);
        assert_eq!(given(|p| sys::cuMemAllocFromPoolAsync(p, 8, own, stream.cu_stream())), Err(400));
        value = 0;
        done(sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut value).cast()));
    }
}

#[test]
fn modules_come_from_files_and_images() {
    let card = card();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("add.ptx");
    std::fs::write(&path, ADD).unwrap();
    let name = |path: &std::path::Path| std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let text = std::ffi::CString::new(ADD).unwrap();
    // SAFETY: texts end with zeros; pointers are to locals.
    unsafe {
        assert_eq!(given(|p| sys::cuModuleLoad(p, name(&path.with_extension("none")).as_ptr())), Err(301));
        for module in [
            given(|p| sys::cuModuleLoad(p, name(&path).as_ptr())),
            given(|p| sys::cuModuleLoadFatBinary(p, text.as_ptr().cast())),
        ] {
            let module: sys::CUmodule = module.unwrap();
            assert_eq!(given(|p| sys::cuModuleGetFunctionCount(p, module)), Ok(1));
            let add = given(|p| sys::cuModuleGetFunction(p, module, c"add".as_ptr())).unwrap();
            assert_eq!(given(|p| sys::cuFuncGetModule(p, add)), Ok(module));
            done(sys::cuFuncSetCacheConfig(add, CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED));
            done(sys::cuModuleUnload(module));
            assert_eq!(given(|p| sys::cuFuncGetModule(p, add)), Err(400), "gone with its module");
            assert_eq!(fails(sys::cuModuleUnload(module)), 400);
        }
        assert_eq!(given(|p| sys::cuModuleLoadData(p, std::ptr::null())), Err(1));
    }
    drop(card);
}

#[test]
fn occupancy_counts_blocks_and_clusters() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: figures are those of the emulated card");
    }
    let add = function(&card.context, ADD, "add");
    // SAFETY: a launch configuration without attributes is zeros and numbers; the rest is locals.
    unsafe {
        let f = add.cu_function();
        let blocks = |threads, shared| {
            let plain = given(|p| sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(p, f, threads, shared));
            let flags = given(|p| {
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(p, f, threads, shared, 0)
            });
            assert_eq!(plain, flags);
            plain
        };
        // 2048 threads and 32 blocks a multiprocessor, 228 KiB of which each block takes one more.
        assert_eq!(blocks(32, 0), Ok(32));
        assert_eq!(blocks(256, 0), Ok(8));
        assert_eq!(blocks(256, 47 * 1024), Ok(4));
        assert_eq!(blocks(0, 0), Err(1));
        let available = |blocks| given(|p| sys::cuOccupancyAvailableDynamicSMemPerBlock(p, f, blocks, 128));
        assert_eq!(available(6), Ok(37 * 1024));
        assert_eq!(available(0), Err(1));
        let best = |limit| {
            let (mut grid, mut block) = (0, 0);
            done(sys::cuOccupancyMaxPotentialBlockSizeWithFlags(&mut grid, &mut block, f, None, 0, limit, 0));
            (grid, block)
        };
        assert_eq!(best(1024), (132 * 2, 1024));
        assert_eq!(best(64), (132 * 32, 64));
        let mut config: sys::CUlaunchConfig = MaybeUninit::zeroed().assume_init();
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (132, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (1024, 1, 1);
        assert_eq!(given(|p| sys::cuOccupancyMaxActiveClusters(p, f, &config)), Ok(264));
        assert_eq!(given(|p| sys::cuOccupancyMaxPotentialClusterSize(p, f, &config)), Ok(8));
    }
}

extern "C" fn count(value: *mut c_void) {
    // SAFETY: it is the test's atomic, which outlives the stream's work.
    unsafe { &*value.cast::<std::sync::atomic::AtomicU32>() }
        .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn streams_and_events_say_how_far_they_are() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let calls = std::sync::atomic::AtomicU32::new(0);
    let seen = || calls.load(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: the counter lives until the stream was waited for.
    unsafe {
        let s = stream.cu_stream();
        let event = |flags| given(|p| sys::cuEventCreate(p, flags)).unwrap();
        let (start, end, untimed) = (event(0), event(0), event(2));
        assert_eq!(given(|p| sys::cuEventCreate(p, 8)), Err(1));
        done(sys::cuEventQuery(start));
        assert_eq!(given(|p| sys::cuEventElapsedTime(p, start, end)), Err(400), "not recorded");
        done(sys::cuEventRecord(start, s));
        done(sys::cuLaunchHostFunc(s, Some(count), (&raw const calls).cast_mut().cast()));
        done(sys::cuEventRecordWithFlags(end, s, 0));
        done(sys::cuEventRecord(untimed, s));
        if card.emulator.is_emulated() {
            // Nothing has run yet; each question lets a piece of work run.
            assert_eq!((seen(), given(|p| sys::cuEventElapsedTime(p, start, end))), (0, Err(600)));
            assert_eq!(fails(sys::cuStreamQuery(s)), 600);
        }
        done(sys::cuEventSynchronize(end));
        assert_eq!(seen(), 1);
        done(sys::cuEventQuery(end));
        for elapsed in [
            given(|p| sys::cuEventElapsedTime(p, start, end)),
            given(|p| sys::cuEventElapsedTime_v2(p, start, end)),
        ] {
            assert!(elapsed.unwrap() >= 0.0);
        }
        done(sys::cuStreamSynchronize(s));
        done(sys::cuStreamQuery(s));
        assert_eq!(given(|p| sys::cuEventElapsedTime(p, start, untimed)), Err(400), "has no time");
        [start, end, untimed].into_iter().for_each(|event| done(sys::cuEventDestroy_v2(event)));
        assert_eq!(fails(sys::cuEventQuery(end)), 400);
    }
}

#[test]
fn captures_and_graphs_are_described() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut buffer = stream.alloc_zeros::<u32>(4).unwrap();
    stream.synchronize().unwrap();
    let address = buffer.device_ptr(&stream).0;
    let add = function(&card.context, ADD, "add");
    let s = stream.cu_stream();
    // SAFETY: the buffer outlives the graphs; out pointers are to locals.
    unsafe {
        let info = || {
            let (mut status, mut id, mut count) =
                (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, 9);
            let (mut other, mut other_id) = (status, 0);
            let none = null_mut();
            done(sys::cuStreamGetCaptureInfo_v2(s, &mut status, &mut id, none, null_mut(), &mut count));
            done(sys::cuStreamGetCaptureInfo_v3(
                s,
                &mut other,
                &mut other_id,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
            ));
            assert_eq!((status, id), (other, other_id));
            (status as u32, id, count)
        };
        assert_eq!(info(), (0, 0, 0));
        let mut capture = |value: u32, twice: bool| {
            done(sys::cuStreamBeginCapture_v2(s, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
            assert!(matches!(info(), (1, 1.., 0)));
            done(sys::cuMemsetD32Async(address, value, 4, s));
            assert!(matches!(info(), (1, 1.., 1)));
            for _ in 0..=u32::from(twice) {
                stream.launch_builder(&add).arg(&mut buffer).arg(&1u32).launch(block_of(4)).unwrap();
            }
            given(|p| sys::cuStreamEndCapture(s, p)).unwrap()
        };
        let (one, same, longer): (sys::CUgraph, _, _) =
            (capture(5, false), capture(8, false), capture(5, true));
        let mut nodes = [null_mut(); 4];
        let mut count = 0;
        done(sys::cuGraphGetNodes(longer, null_mut(), &mut count));
        assert_eq!(count, 3);
        count = 4;
        done(sys::cuGraphGetNodes(longer, nodes.as_mut_ptr(), &mut count));
        assert_eq!((count, nodes[3]), (3, null_mut()));
        let kinds = [0, 1, 2].map(|n| given(|p| sys::cuGraphNodeGetType(nodes[n], p)).unwrap() as u32);
        assert_eq!(kinds, [2, 0, 0], "memset, kernel, kernel");
        assert_eq!(given(|p| sys::cuGraphNodeGetType(null_mut(), p)), Err(400));

        let exec = given(|p| sys::cuGraphInstantiateWithFlags(p, one, 0)).unwrap();
        done(sys::cuGraphUpload(exec, s));
        let run = || {
            done(sys::cuGraphLaunch(exec, s));
            done(sys::cuStreamSynchronize(s));
            bytes_at(address, 4)[0]
        };
        assert_eq!(run(), 6);
        let mut result: sys::CUgraphExecUpdateResultInfo = MaybeUninit::zeroed().assume_init();
        done(sys::cuGraphExecUpdate_v2(exec, same, &mut result));
        assert_eq!(run(), 9);
        assert_eq!(fails(sys::cuGraphExecUpdate_v2(exec, longer, &mut result)), 910);
        assert_eq!(result.result, sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        assert_eq!(run(), 9, "as before");
        done(sys::cuGraphExecDestroy(exec));
        [one, same, longer].into_iter().for_each(|graph| done(sys::cuGraphDestroy(graph)));
        assert_eq!(fails(sys::cuGraphDestroy(one)), 400);
    }
}

#[test]
fn a_threads_capture_mode_is_exchanged() {
    let _card = card();
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the mode is a local, of a thread of its own: others' captures are not touched.
    let modes = std::thread::spawn(move || unsafe {
        done(sys::cuThreadExchangeStreamCaptureMode(&mut mode));
        let first = mode;
        done(sys::cuThreadExchangeStreamCaptureMode(&mut mode));
        (first, mode)
    });
    let (global, relaxed) = (
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    );
    assert_eq!(modes.join().unwrap(), (global, relaxed));
}
