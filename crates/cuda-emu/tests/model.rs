//! A language model's kernels as a program runs them: through cudarc, at once and from a captured
//! graph, for many orders of warps, against plain code in f64.

mod support;

use cudarc::driver::sys::{self, CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use support::card::{Card, begin_capture, card, function, no_flags};
use support::{Random, assert_near, half};

const LLM: &str = include_str!("ptx/llm.sm_80.ptx");
const MODEL: &str = include_str!("ptx/model.sm_80.ptx");
const HOPPER: &str = include_str!("ptx/hopper.sm_90a.ptx");

/// Enqueues work, checks what it gave: at once for 20 seeds, and from a graph that is launched twice.
fn every_way(card: &Card, stream: &Arc<CudaStream>, enqueue: impl Fn(), check: impl Fn()) {
    let seed = |seed| {
        if card.emulator.is_emulated() {
            card.emulator.set_seed(seed).unwrap();
        }
    };
    stream.synchronize().unwrap();
    for n in 0..20 {
        seed(n);
        enqueue();
        check();
    }
    begin_capture(stream);
    enqueue();
    let graph = stream.end_capture(no_flags()).unwrap().unwrap();
    for n in 0..2 {
        seed(n);
        graph.launch().unwrap();
        check();
    }
}

fn launch(grid: (u32, u32), threads: u32, shared_mem_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid.0, grid.1, 1), block_dim: (threads, 1, 1), shared_mem_bytes }
}

/// Fills with NaN, so that a result of the last time does not count.
fn poison<T>(stream: &CudaStream, target: &CudaSlice<T>) {
    let (address, _guard) = target.device_ptr(stream);
    // SAFETY: the slice has as many bytes.
    unsafe { sys::cuMemsetD8Async(address, 0xff, target.num_bytes(), stream.cu_stream()) }.result().unwrap();
}

fn wide(values: &[u16]) -> Vec<f64> {
    values.iter().map(|v| f64::from(half(*v))).collect()
}

fn halves(stream: &Arc<CudaStream>, slice: &CudaSlice<u16>) -> Vec<f32> {
    stream.clone_dtoh(slice).unwrap().into_iter().map(half).collect()
}

#[test]
fn rmsnorm_and_rope() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let (norm, rope) = (function(&card.context, LLM, "rmsnorm"), function(&card.context, LLM, "rope"));
    let (rows, n, columns, position) = (3usize, 576usize, 576, 1234);
    let mut random = Random(1);
    let (x, w) = (random.halves(rows * n), random.halves(n));
    let (dx, dw) = (stream.clone_htod(&x).unwrap(), stream.clone_htod(&w).unwrap());
    let y = stream.alloc_zeros::<u16>(rows * n).unwrap();
    let (x, w) = (wide(&x), wide(&w));
    let normal = |e: usize| {
        let row = &x[e / n * n..][..n];
        x[e] / (row.iter().map(|v| v * v).sum::<f64>() / n as f64 + 1e-5).sqrt() * w[e % n]
    };
    let rotated = |e: usize| {
        let (start, d) = (e / 64 * 64, e % 64);
        let angle = f64::from(position as f32 * 10_000f32.powf(-2.0 * (d % 32) as f32 / 64.0));
        let (a, b) = (normal(start + d % 32), normal(start + d % 32 + 32));
        if d < 32 { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }
    };
    let wanted: Vec<f64> = (0..rows * n).map(rotated).collect();
    let enqueue = || {
        poison(&stream, &y);
        // SAFETY: parameters and shapes are those of the kernels.
        unsafe {
            let mut call = stream.launch_builder(&norm);
            call.arg(&y).arg(&dx).arg(&dw).arg(&columns).arg(&1e-5f32);
            call.launch(launch((rows as u32, 1), 256, 0)).unwrap();
            let mut call = stream.launch_builder(&rope);
            call.arg(&y).arg(&position).arg(&10_000f32);
            call.launch(launch(((rows * n / 64) as u32, 1), 32, 0)).unwrap();
        }
    };
    every_way(&card, &stream, enqueue, || assert_near(&halves(&stream, &y), &wanted, 3e-3));
}

#[test]
fn gemm_and_gemv_of_eight_bit_weights() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let gemm = function(&card.context, MODEL, "gemm_w8a16");
    let gemv = function(&card.context, LLM, "gemv_int8");
    let (m, n, k) = (37usize, 70usize, 160usize);
    let mut random = Random(2);
    let a = random.halves(m * k);
    let w: Vec<i8> = (0..n * k).map(|_| random.next() as i8).collect();
    let scale: Vec<f32> = (0..n).map(|i| 0.001 + i as f32 * 1e-5).collect();
    let da = stream.clone_htod(&a).unwrap();
    let (dw, ds) = (stream.clone_htod(&w).unwrap(), stream.clone_htod(&scale).unwrap());
    let (c, y) = (stream.alloc_zeros::<u16>(m * n).unwrap(), stream.alloc_zeros::<f32>(n).unwrap());
    let a = wide(&a);
    let dot = |row: usize, column: usize| {
        let products = (0..k).map(|e| a[row * k + e] * f64::from(w[column * k + e]));
        products.sum::<f64>() * f64::from(scale[column])
    };
    let wanted: Vec<f64> = (0..m * n).map(|e| dot(e / n, e % n)).collect();
    let enqueue = || {
        poison(&stream, &c);
        poison(&stream, &y);
        let sizes = [m as i32, n as i32, k as i32];
        // SAFETY: parameters and shapes are those of the kernels; the GEMV takes the first row of a.
        unsafe {
            let mut call = stream.launch_builder(&gemm);
            call.arg(&c).arg(&da).arg(&dw).arg(&ds).arg(&sizes[0]).arg(&sizes[1]).arg(&sizes[2]);
            call.launch(launch((n.div_ceil(64) as u32, m.div_ceil(64) as u32), 128, 0)).unwrap();
            let mut call = stream.launch_builder(&gemv);
            call.arg(&y).arg(&dw).arg(&ds).arg(&da).arg(&sizes[1]).arg(&sizes[2]);
            call.launch(launch((n.div_ceil(4) as u32, 1), 128, 0)).unwrap();
        }
    };
    every_way(&card, &stream, enqueue, || {
        assert_near(&halves(&stream, &c), &wanted, 1e-3);
        assert_near(&stream.clone_dtoh(&y).unwrap(), &wanted[..n], 1e-2);
    });
}

/// Queries of `heads` heads, keys and values of `kv_heads`: [tokens, heads, 64].
struct Attention {
    heads: usize,
    kv_heads: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Attention {
    /// One element of the answer: of a query's row and a head, over the first `seen` tokens.
    fn wanted(&self, row: usize, head: usize, seen: usize, d: usize) -> f64 {
        let q = &self.q[(row * self.heads + head) * 64..][..64];
        let at = |t: usize| (t * self.kv_heads + head / (self.heads / self.kv_heads)) * 64;
        let score = |t: usize| q.iter().zip(&self.k[at(t)..]).map(|(a, b)| a * b).sum::<f64>() * 0.125;
        let weights: Vec<f64> = (0..seen).map(|t| score(t).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().enumerate().map(|(t, weight)| weight * self.v[at(t) + d]).sum::<f64>() / total
    }
}

/// Random numbers on the device, and as f64.
fn random(stream: &Arc<CudaStream>, seed: u64, count: usize) -> (CudaSlice<u16>, Vec<f64>) {
    let values = Random(seed).halves(count);
    (stream.clone_htod(&values).unwrap(), wide(&values))
}

#[test]
fn decode_attention_in_chunks() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let split = function(&card.context, MODEL, "decode_split");
    let combine = function(&card.context, MODEL, "decode_combine");
    let (heads, kv_heads, seq, chunk) = (6usize, 2usize, 201usize, 64usize);
    let chunks = seq.div_ceil(chunk);
    let ((dq, q), (dk, k), (dv, v)) = (
        random(&stream, 3, heads * 64),
        random(&stream, 4, seq * kv_heads * 64),
        random(&stream, 5, seq * kv_heads * 64),
    );
    let parts = stream.alloc_zeros::<f32>(heads * chunks * 64).unwrap();
    let stats = stream.alloc_zeros::<f32>(heads * chunks * 2).unwrap();
    let out = stream.alloc_zeros::<u16>(heads * 64).unwrap();
    let attention = Attention { heads, kv_heads, q, k, v };
    let wanted: Vec<f64> = (0..heads * 64).map(|e| attention.wanted(0, e / 64, seq, e % 64)).collect();
    let enqueue = || {
        poison(&stream, &parts);
        poison(&stream, &out);
        let sizes = [seq as i32, chunk as i32, kv_heads as i32, chunks as i32];
        // SAFETY: parameters and shapes are those of the kernels.
        unsafe {
            let mut call = stream.launch_builder(&split);
            call.arg(&parts).arg(&stats).arg(&dq).arg(&dk).arg(&dv);
            call.arg(&sizes[0]).arg(&sizes[1]).arg(&sizes[2]).arg(&0.125f32);
            call.launch(launch((chunks as u32, heads as u32), 128, chunk as u32 * 4)).unwrap();
            let mut call = stream.launch_builder(&combine);
            call.arg(&out).arg(&parts).arg(&stats).arg(&sizes[3]);
            call.launch(launch((heads as u32, 1), 64, 0)).unwrap();
        }
    };
    every_way(&card, &stream, enqueue, || assert_near(&halves(&stream, &out), &wanted, 1e-3));
}

#[test]
fn flash_attention_of_a_prompt() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let flash = function(&card.context, MODEL, "flash_prefill");
    let (heads, kv_heads, seq) = (4usize, 2usize, 101usize);
    let ((dq, q), (dk, k), (dv, v)) = (
        random(&stream, 6, seq * heads * 64),
        random(&stream, 7, seq * kv_heads * 64),
        random(&stream, 8, seq * kv_heads * 64),
    );
    let out = stream.alloc_zeros::<u16>(seq * heads * 64).unwrap();
    let attention = Attention { heads, kv_heads, q, k, v };
    let element = |e: usize| {
        let (row, head, d) = (e / 64 / heads, e / 64 % heads, e % 64);
        attention.wanted(row, head, row + 1, d)
    };
    let wanted: Vec<f64> = (0..seq * heads * 64).map(element).collect();
    let enqueue = || {
        poison(&stream, &out);
        let sizes = [seq as i32, kv_heads as i32];
        // SAFETY: parameters and shapes are those of the kernel.
        unsafe {
            let mut call = stream.launch_builder(&flash);
            call.arg(&out).arg(&dq).arg(&dk).arg(&dv).arg(&sizes[0]).arg(&sizes[1]).arg(&0.125f32);
            call.launch(launch((seq.div_ceil(64) as u32, heads as u32), 128, 3 * 64 * 72 * 2)).unwrap();
        }
    };
    every_way(&card, &stream, enqueue, || assert_near(&halves(&stream, &out), &wanted, 2e-3));
}

/// What the driver makes of a matrix of f16 in tiles of 64 x 64, swizzled.
fn tensor_map(address: u64, rows: usize, columns: usize) -> sys::CUtensorMap {
    // SAFETY: the map is plain bytes, which the driver writes; all arrays have the rank's length.
    unsafe {
        let mut map: sys::CUtensorMap = std::mem::zeroed();
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            address as *mut _,
            [columns as u64, rows as u64].as_ptr(),
            [columns as u64 * 2].as_ptr(),
            [64, 64].as_ptr(),
            [1, 1].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()
        .unwrap();
        map
    }
}

#[test]
fn hopper_gemm_by_tma_and_wgmma() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let gemm = function(&card.context, HOPPER, "gemm");
    let (m, n, k) = (128usize, 128usize, 320usize);
    let ((da, a), (db, b)) = (random(&stream, 9, m * k), random(&stream, 10, n * k));
    let c = stream.alloc_zeros::<f32>(m * n).unwrap();
    let mut map_a = tensor_map(da.device_ptr(&stream).0, m, k);
    let mut map_b = tensor_map(db.device_ptr(&stream).0, n, k);
    let dot = |e: usize| (0..k).map(|s| a[e / n * k + s] * b[e % n * k + s]).sum::<f64>();
    let wanted: Vec<f64> = (0..m * n).map(dot).collect();
    let (mut to, mut columns, mut depth) = (c.device_ptr(&stream).0, n as i32, k as i32);
    let mut params = [
        (&raw mut to).cast(),
        (&raw mut map_a).cast(),
        (&raw mut map_b).cast(),
        (&raw mut columns).cast(),
        (&raw mut depth).cast(),
    ];
    let params = std::cell::RefCell::new(&mut params);
    let enqueue = || {
        poison(&stream, &c);
        let (grid, mut params) = ((n / 64, m / 64), params.borrow_mut());
        // SAFETY: the parameters are those of the kernel, which copies them at the call.
        unsafe {
            let (kernel, stream) = (gemm.cu_function(), stream.cu_stream());
            let params = params.as_mut_ptr();
            let (x, y) = (grid.0 as u32, grid.1 as u32);
            sys::cuLaunchKernel(kernel, x, y, 1, 256, 1, 1, 32768, stream, params, std::ptr::null_mut())
        }
        .result()
        .unwrap();
    };
    every_way(&card, &stream, enqueue, || assert_near(&stream.clone_dtoh(&c).unwrap(), &wanted, 1e-4));
}
