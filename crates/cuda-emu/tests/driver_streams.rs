//! Deferred streams: what a program forgot shows, and what it did right never does. No kernels:
//! copies and memsets are work enough.

mod support;

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, result, sys};
use std::sync::Arc;
use support::card::{Card, card, code};

const LENGTH: usize = 64;

/// A producer fills a buffer, a consumer on another stream copies it; gives what the consumer saw.
fn produce_and_consume(card: &Card, seed: u64, with_wait: bool) -> Vec<u32> {
    let producer = card.context.new_stream().unwrap();
    let consumer = card.context.new_stream().unwrap();
    let mut buffer: CudaSlice<u32> = producer.clone_htod(&[1u32; LENGTH]).unwrap();
    let mut seen: CudaSlice<u32> = producer.clone_htod(&[7u32; LENGTH]).unwrap();
    card.context.synchronize().unwrap();
    if card.emulator.is_emulated() {
        card.emulator.set_seed(seed).unwrap();
    }

    producer.memcpy_htod(&[2u32; LENGTH], &mut buffer).unwrap();
    if with_wait {
        consumer.join(&producer).unwrap();
    }
    consumer.memcpy_dtod(&buffer, &mut seen).unwrap();
    consumer.clone_dtoh(&seen).unwrap()
}

#[test]
fn a_missing_event_wait_shows() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: a card may happen to be fast enough");
    }
    let wrong = (0..20).filter(|seed| produce_and_consume(&card, *seed, false) != [2; LENGTH]).count();
    assert!(wrong >= 5, "only {wrong} of 20 seeds showed it");
    assert_ne!(produce_and_consume(&card, 0, false), [2; LENGTH], "the default order must show it");
}

#[test]
fn an_event_wait_is_kept_for_every_seed() {
    let card = card();
    for seed in 0..20 {
        assert_eq!(produce_and_consume(&card, seed, true), [2; LENGTH], "seed {seed}");
    }
}

#[test]
fn an_overwritten_source_shows() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: a card may happen to be fast enough");
    }
    let (reader, writer) = (card.context.new_stream().unwrap(), card.context.new_stream().unwrap());
    let mut buffer = reader.clone_htod(&[1u32; LENGTH]).unwrap();
    let mut seen = reader.clone_htod(&[0u32; LENGTH]).unwrap();
    card.context.synchronize().unwrap();
    reader.memcpy_dtod(&buffer, &mut seen).unwrap();
    writer.memset_zeros(&mut buffer).unwrap();
    writer.synchronize().unwrap();
    assert_eq!(reader.clone_dtoh(&seen).unwrap(), [0; LENGTH], "the reader ran after the writer");
}

/// Pinned memory: the driver poisons it, and copies run when somebody waits.
fn pinned(card: &Card, value: u32) -> cudarc::driver::PinnedHostSlice<u32> {
    // SAFETY: the memory is filled before it is read.
    let mut slice = unsafe { card.context.alloc_pinned_with_flags::<u32>(LENGTH, 0) }.unwrap();
    slice.as_mut_slice().unwrap().fill(value);
    slice
}

/// A device-to-host copy into pinned memory that does not wait.
fn download(stream: &CudaStream, target: &mut cudarc::driver::PinnedHostSlice<u32>, source: &CudaSlice<u32>) {
    use cudarc::driver::DevicePtr;
    let (address, _guard) = source.device_ptr(stream);
    let bytes = LENGTH * 4;
    let pointer = target.as_mut_ptr().unwrap();
    // SAFETY: both sides have `LENGTH` elements and live until the stream is synchronized.
    let result = unsafe { sys::cuMemcpyDtoHAsync_v2(pointer.cast(), address, bytes, stream.cu_stream()) };
    result.result().unwrap();
}

#[test]
fn an_early_host_read_of_pinned_memory_shows() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut host = pinned(&card, 5);
    let device = stream.clone_htod(&[9u32; LENGTH]).unwrap();
    stream.synchronize().unwrap();
    download(&stream, &mut host, &device);
    if card.emulator.is_emulated() {
        // SAFETY: the emulated copy has not run: nobody writes.
        let early = unsafe { host.as_ptr().unwrap().read_volatile() };
        assert_eq!(early, 5, "the copy runs when it is waited for");
    }
    stream.synchronize().unwrap();
    assert_eq!(host.as_slice().unwrap(), [9; LENGTH]);
}

#[test]
fn a_pinned_source_is_read_when_the_copy_runs_and_a_pageable_one_at_the_call() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut device = stream.alloc_zeros::<u32>(LENGTH).unwrap();

    let mut pageable = vec![1u32; LENGTH];
    stream.memcpy_htod(&pageable, &mut device).unwrap();
    pageable.fill(2);
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [1; LENGTH]);

    let mut host = pinned(&card, 3);
    stream.memcpy_htod(&host, &mut device).unwrap();
    if card.emulator.is_emulated() {
        host.as_mut_slice().unwrap().fill(4);
        assert_eq!(stream.clone_dtoh(&device).unwrap(), [4; LENGTH], "overwritten before it was read");
    }
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let card = card();
    let legacy = card.context.default_stream();
    for seed in 0..20 {
        let blocking = blocking_stream(&card);
        let mut buffer = legacy.clone_htod(&[1u32; LENGTH]).unwrap();
        let mut seen = legacy.clone_htod(&[0u32; LENGTH]).unwrap();
        card.context.synchronize().unwrap();
        if card.emulator.is_emulated() {
            card.emulator.set_seed(seed).unwrap();
        }
        blocking.memcpy_htod(&[2u32; LENGTH], &mut buffer).unwrap();
        legacy.memcpy_dtod(&buffer, &mut seen).unwrap();
        blocking.memset_zeros(&mut buffer).unwrap();
        blocking.synchronize().unwrap();
        assert_eq!(legacy.clone_dtoh(&seen).unwrap(), [2; LENGTH], "seed {seed}");
        // SAFETY: made by `blocking_stream`, and not used again.
        unsafe { sys::cuStreamDestroy_v2(blocking.cu_stream()) }.result().unwrap();
    }
}

fn blocking_stream(card: &Card) -> Arc<CudaStream> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is to a variable; flags 0 make a blocking stream.
    unsafe {
        sys::cuStreamCreate(&mut stream, 0).result().unwrap();
        card.context.wrap_borrowed_stream(stream)
    }
}

#[test]
fn events_are_not_ready_until_their_stream_was_run() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let timed = || Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let fresh: CudaEvent = card.context.new_event(None).unwrap();
    assert!(fresh.try_is_complete().unwrap(), "nothing was recorded");
    let start = stream.record_event(timed()).unwrap();
    let mut buffer = stream.alloc_zeros::<u8>(1 << 20).unwrap();
    for _ in 0..10 {
        stream.memset_zeros(&mut buffer).unwrap();
    }
    let end = stream.record_event(timed()).unwrap();
    let mut looks = 0;
    while !end.try_is_complete().unwrap() {
        looks += 1;
    }
    if card.emulator.is_emulated() {
        assert!(looks >= 5, "asking runs one piece of work at a time");
    }
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
    let untimed = stream.record_event(None).unwrap();
    assert_eq!(code(start.elapsed_ms(&untimed)), 400);
}

/// The first record of an event that was recorded again tells nothing.
#[test]
fn an_event_recorded_twice_is_at_its_second_place() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let timed = || Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let (start, event) = (stream.record_event(timed()).unwrap(), stream.record_event(timed()).unwrap());
    let mut buffer = stream.alloc_zeros::<u8>(1 << 20).unwrap();
    for _ in 0..10 {
        stream.memset_zeros(&mut buffer).unwrap();
    }
    event.record(&stream).unwrap();
    // SAFETY: both events live.
    let elapsed = || unsafe { result::event::elapsed(start.cu_event(), event.cu_event()) };
    let mut early = Vec::new();
    loop {
        let found = code(elapsed());
        if event.try_is_complete().unwrap() {
            break;
        }
        early.push(found);
    }
    assert!(early.iter().all(|found| *found == 600), "{early:?}");
    assert!(elapsed().unwrap() >= 0.0);
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    let card = card();
    let other = card.context.new_stream().unwrap();
    let mut buffer = other.alloc_zeros::<u32>(LENGTH).unwrap();
    other.synchronize().unwrap();
    let event = {
        let stream = card.context.new_stream().unwrap();
        stream.memcpy_htod(&[6u32; LENGTH], &mut buffer).unwrap();
        stream.record_event(None).unwrap()
    };
    other.wait(&event).unwrap();
    assert_eq!(other.clone_dtoh(&buffer).unwrap(), [6; LENGTH]);
}

/// Splitmix64, for programs that can be made again.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count as u64) as usize
    }
}

/// A buffer with the events of its last writer and of the readers since.
struct Tracked {
    slice: CudaSlice<u32>,
    written: Option<CudaEvent>,
    read: Vec<CudaEvent>,
    /// What the program's text says it holds.
    expected: u32,
}

#[test]
fn random_programs_with_all_their_waits_are_right() {
    let card = card();
    let mut streams: Vec<_> = (0..3).map(|_| card.context.new_stream().unwrap()).collect();
    let blocking = blocking_stream(&card);
    streams.extend([card.context.default_stream(), blocking.clone(), card.context.per_thread_stream()]);
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut buffers: Vec<Tracked> = (0..5)
            .map(|value| {
                let slice = streams[0].clone_htod(&[value; LENGTH]).unwrap();
                Tracked { slice, written: None, read: Vec::new(), expected: value }
            })
            .collect();
        card.context.synchronize().unwrap();
        if card.emulator.is_emulated() {
            card.emulator.set_seed(seed).unwrap();
        }
        for step in 0..40u32 {
            let stream = &streams[random.below(streams.len())];
            let (source, target) = (random.below(5), random.below(5));
            let target_waits = buffers[target].read.iter().chain(&buffers[target].written);
            let waits = target_waits.chain(&buffers[source].written);
            waits.for_each(|event| stream.wait(event).unwrap());
            if source == target {
                let value = 100 + step;
                stream.memcpy_htod(&[value; LENGTH], &mut buffers[target].slice).unwrap();
                buffers[target].expected = value;
            } else {
                let [from, to] = buffers.get_disjoint_mut([source, target]).unwrap();
                stream.memcpy_dtod(&from.slice, &mut to.slice).unwrap();
                to.expected = from.expected;
                from.read.push(stream.record_event(None).unwrap());
            }
            buffers[target].read.clear();
            buffers[target].written = Some(stream.record_event(None).unwrap());
        }
        for buffer in &buffers {
            let stream = &streams[random.below(streams.len())];
            buffer.written.iter().for_each(|event| stream.wait(event).unwrap());
            assert_eq!(stream.clone_dtoh(&buffer.slice).unwrap(), [buffer.expected; LENGTH], "seed {seed}");
        }
    }
    // SAFETY: made by `blocking_stream`, and not used again.
    unsafe { sys::cuStreamDestroy_v2(blocking.cu_stream()) }.result().unwrap();
}

#[test]
fn long_queues_are_bounded() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut buffer = stream.alloc_zeros::<u32>(LENGTH).unwrap();
    for _ in 0..3000 {
        stream.memset_zeros(&mut buffer).unwrap();
    }
    stream.memcpy_htod(&[1u32; LENGTH], &mut buffer).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [1; LENGTH]);
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    unsafe extern "C" fn note(seen: *mut std::ffi::c_void) {
        let mut value = 0;
        // SAFETY: `seen` is the counter below; asking for memory is what must not be done here.
        unsafe {
            let refused = sys::cuMemAlloc_v2(&mut value, 16) != sys::CUresult::CUDA_SUCCESS;
            *seen.cast::<u32>() += if refused { 1 } else { 100 };
        }
    }
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: a card's driver may hang");
    }
    let stream = card.context.new_stream().unwrap();
    let mut count = 0u32;
    for _ in 0..3 {
        // SAFETY: the counter lives until the stream is synchronized.
        let result =
            unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(note), (&raw mut count).cast()) };
        result.result().unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(count, 3);
}

#[test]
fn threads_share_the_card() {
    let card = card();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let context = card.context.clone();
            scope.spawn(move || {
                context.bind_to_thread().unwrap();
                let stream = context.new_stream().unwrap();
                for round in 0..50 {
                    let values = [thread * 1000 + round; LENGTH];
                    let device = stream.clone_htod(&values).unwrap();
                    assert_eq!(stream.clone_dtoh(&device).unwrap(), values);
                }
            });
        }
    });
}
