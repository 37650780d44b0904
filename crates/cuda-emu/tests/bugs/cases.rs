//! The kernels of `bugs.cu` and `llm.cu` with data and answers, and wrong ways to launch them.

use cuda_emu::{Arch, Device};

use super::scene::{File, Found, Scene, near};
use crate::support::{Random, download_halves, half};

pub static BUGS: File = File {
    ptx: include_str!("../ptx/bugs.sm_90a.ptx"),
    source: include_str!("../kernels/bugs.cu"),
    arch: Arch::Sm90,
};
pub static LLM: File = File {
    ptx: include_str!("../ptx/llm.sm_80.ptx"),
    source: include_str!("../kernels/llm.cu"),
    arch: Arch::Sm80,
};

type Outcome = Result<(), Found>;

fn p(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn i(value: usize) -> [u8; 4] {
    (value as i32).to_le_bytes()
}

fn wide(values: &[u16]) -> Vec<f64> {
    values.iter().map(|v| f64::from(half(*v))).collect()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|n| n as f32).collect()
}

fn doubled(count: usize) -> Vec<f64> {
    (0..count).map(|n| 2.0 * n as f64).collect()
}

/// Sixteen numbers doubled, at an offset of the input, and of so many that are there.
fn twice_with(ptx: &str, seed: u64, input: impl Fn(&Scene) -> u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(64), input(&scene));
    scene.launch("twice", (1, 32, 0), &[&p(y), &p(x), &i(16)])?;
    scene.expect(y, &doubled(16), 0.0)
}

pub fn twice(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| scene.floats(&numbers(16)))
}

pub fn twice_misaligned(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| scene.floats(&numbers(20)) + 4)
}

pub fn twice_short(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| scene.floats(&numbers(15)))
}

pub fn twice_freed(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| {
        let x = scene.floats(&numbers(16));
        scene.device.memory().free(x).unwrap();
        x
    })
}

pub fn twice_unwritten(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| scene.room(64))
}

/// The input is a part of a pool.
fn of_pool(scene: &Scene, floats: u64) -> u64 {
    let pool = scene.floats(&numbers(256));
    scene.device.memory().register_part(pool, floats * 4).unwrap();
    pool
}

pub fn twice_in_pool(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| of_pool(scene, 16))
}

pub fn twice_past_part(ptx: &str, _: Arch, seed: u64) -> Outcome {
    twice_with(ptx, seed, |scene| of_pool(scene, 12))
}

/// A kernel that takes an output and an input of as many numbers, and moves them.
fn moves(
    ptx: &str,
    seed: u64,
    kernel: &str,
    threads: u32,
    count: usize,
    from: fn(usize) -> usize,
) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(count * 4), scene.floats(&numbers(count)));
    scene.launch(kernel, (1, threads, 0), &[&p(y), &p(x)])?;
    scene.expect(y, &(0..count).map(|n| from(n) as f64).collect::<Vec<_>>(), 0.0)
}

pub fn swap_lanes(ptx: &str, _: Arch, seed: u64) -> Outcome {
    moves(ptx, seed, "swap_lanes", 32, 32, |n| n ^ 1)
}

pub fn swap_half(ptx: &str, _: Arch, seed: u64) -> Outcome {
    moves(ptx, seed, "swap_half", 32, 32, |n| if n < 16 { n ^ 1 } else { n })
}

pub fn hand_over(ptx: &str, _: Arch, seed: u64) -> Outcome {
    moves(ptx, seed, "hand_over", 128, 64, |n| 63 - n)
}

pub fn staged(ptx: &str, _: Arch, seed: u64) -> Outcome {
    moves(ptx, seed, "staged", 128, 128, |n| 127 - n)
}

fn histogram_with(ptx: &str, seed: u64, offset: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let values: Vec<u8> = (0..2000usize).map(|n| (n * n) as u8).collect();
    let (bins, x) = (scene.ints(&[0; 257]), scene.bytes(&values));
    scene.launch("histogram", (1, 256, 0), &[&p(bins + offset), &p(x), &i(values.len())])?;
    let mut wanted = [0; 256];
    values.iter().for_each(|value| wanted[*value as usize] += 1);
    scene.expect_ints(bins, &wanted)
}

pub fn histogram(ptx: &str, _: Arch, seed: u64) -> Outcome {
    histogram_with(ptx, seed, 0)
}

pub fn histogram_misaligned(ptx: &str, _: Arch, seed: u64) -> Outcome {
    histogram_with(ptx, seed, 2)
}

pub fn relay(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(6 * 128), scene.floats(&numbers(6 * 32)));
    scene.launch("relay", (1, 64, 0), &[&p(y), &p(x), &i(6)])?;
    scene.expect(y, &(0..6 * 32).map(|n| f64::from(n ^ 1)).collect::<Vec<_>>(), 0.0)
}

pub fn fragments(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(512), scene.ints(&(0..128).collect::<Vec<_>>()));
    scene.launch("fragments", (1, 32, 0), &[&p(y), &p(x)])?;
    // Lane 4 r + c holds columns 2 c and 2 c + 1 of row r of each matrix, in its register m.
    scene.expect_ints(y, &(0..128).map(|n| n % 32 * 4 + n / 32).collect::<Vec<_>>())
}

pub fn rows_out(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(3 * 256), scene.floats(&numbers(3 * 64)));
    scene.launch("rows_out", (1, 64, 0), &[&p(y), &p(x), &i(3)])?;
    scene.expect(y, &doubled(3 * 64), 0.0)
}

fn look_up_with(ptx: &str, seed: u64, most: i32) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let index: Vec<i32> = (0..32).map(|n| n % (most + 1)).collect();
    let (y, x) = (scene.room(128), scene.ints(&index));
    scene.launch("look_up", (1, 32, 0), &[&p(y), &p(x)])?;
    scene.expect_ints(y, &index.iter().map(|n| n * n).collect::<Vec<_>>())
}

pub fn look_up(ptx: &str, _: Arch, seed: u64) -> Outcome {
    look_up_with(ptx, seed, 7)
}

pub fn look_up_outside(ptx: &str, _: Arch, seed: u64) -> Outcome {
    look_up_with(ptx, seed, 8)
}

pub fn around(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed).cooperative();
    let (y, x) = (scene.room(4 * 256), scene.room(4 * 256));
    scene.launch("around", (4, 64, 0), &[&p(y), &p(x)])?;
    scene.expect_ints(y, &(0..256).map(|n| (n + 64) % 256).collect::<Vec<_>>())
}

pub fn around_alone(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(4 * 256), scene.room(4 * 256));
    scene.launch("around", (4, 64, 0), &[&p(y), &p(x)])
}

fn positions_below(ptx: &str, seed: u64, most: usize) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (y, x) = (scene.room(128), scene.ints(&(0..32).collect::<Vec<_>>()));
    scene.launch("positions", (1, 32, 0), &[&p(y), &p(x), &i(most)])?;
    scene.expect_ints(y, &(0..32).collect::<Vec<_>>())
}

pub fn positions(ptx: &str, _: Arch, seed: u64) -> Outcome {
    positions_below(ptx, seed, 32)
}

pub fn positions_outside(ptx: &str, _: Arch, seed: u64) -> Outcome {
    positions_below(ptx, seed, 31)
}

pub fn rmsnorm(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let (rows, n) = (3, 579);
    let mut random = Random(seed);
    let (x, w) = (random.halves(rows * n), random.halves(n));
    let (y, dx, dw) = (scene.room(rows * n * 2), scene.halves(&x), scene.halves(&w));
    let params: [&[u8]; 5] = [&p(y), &p(dx), &p(dw), &i(n), &1e-5f32.to_le_bytes()];
    scene.launch("rmsnorm", (rows as u32, 256, 0), &params)?;
    let (x, w) = (wide(&x), wide(&w));
    let mean = |row: usize| x[row * n..][..n].iter().map(|v| v * v).sum::<f64>() / n as f64;
    let wanted = |e: usize| x[e] / (mean(e / n) + 1e-5).sqrt() * w[e % n];
    near(&halves_of(&scene.device, y, rows * n), &(0..rows * n).map(wanted).collect::<Vec<_>>(), 1e-3)
}

fn halves_of(device: &Device, address: u64, count: usize) -> Vec<f32> {
    download_halves(device, address, count)
}

/// c = a · bᵀ, with room for so many rows of c.
fn gemm_with(ptx: &str, seed: u64, (m, n, k): (usize, usize, usize), rows: usize) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let mut random = Random(seed + 7);
    let (a, b) = (random.halves(m * k), random.halves(n * k));
    let (c, da, db) = (scene.room(rows * n * 4), scene.halves(&a), scene.halves(&b));
    let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
    scene.launch_grid("gemm", grid, (128, 0), &[&p(c), &p(da), &p(db), &i(m), &i(n), &i(k)])?;
    let (a, b) = (wide(&a), wide(&b));
    let dot = |e: usize| (0..k).map(|s| a[e / n * k + s] * b[e % n * k + s]).sum::<f64>();
    scene.expect(c, &(0..m * n).map(dot).collect::<Vec<_>>(), 1e-4)
}

pub fn gemm(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, (37, 70, 128), 37)
}

pub fn gemm_without_last_row(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, (37, 70, 128), 36)
}

/// y = (w · x) · scale, the weights at an offset.
fn gemv_with(ptx: &str, seed: u64, blocks: u32, offset: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let (n, k) = (7, 576);
    let mut random = Random(seed);
    let x = random.halves(k);
    let w: Vec<u8> = (0..n * k).map(|_| random.next() as u8).collect();
    let (y, dw) = (scene.room(n * 4), scene.bytes(&[&w[..], &[0; 16]].concat()[..n * k + offset as usize]));
    let (ds, dx) = (scene.floats(&vec![0.01; n]), scene.halves(&x));
    scene.launch("gemv_int8", (blocks, 128, 0), &[&p(y), &p(dw + offset), &p(ds), &p(dx), &i(n), &i(k)])?;
    let x = wide(&x);
    let dot = |row: usize| (0..k).map(|e| f64::from(w[row * k + e] as i8) * x[e]).sum::<f64>() * 0.01;
    scene.expect(y, &(0..n).map(dot).collect::<Vec<_>>(), 0.05)
}

pub fn gemv(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemv_with(ptx, seed, 2, 0)
}

pub fn gemv_misaligned(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemv_with(ptx, seed, 2, 8)
}

/// Attention of one token over 101, with so many bytes of shared memory and so many keys there.
fn attention_with(ptx: &str, seed: u64, shared: u32, there: usize) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let (heads, seq) = (3, 101);
    let mut random = Random(seed);
    let (q, k, v) = (random.halves(heads * 64), random.halves(seq * 64), random.halves(seq * 64));
    let [dq, dk, dv] = [&q[..], &k[..there * 64], &v[..]].map(|values| scene.halves(values));
    let out = scene.room(heads * 256);
    let params: [&[u8]; 6] = [&p(out), &p(dq), &p(dk), &p(dv), &i(seq), &0.125f32.to_le_bytes()];
    scene.launch("attention", (heads as u32, 128, shared), &params)?;
    let (q, k, v) = (wide(&q), wide(&k), wide(&v));
    let wanted = |e: usize| {
        let (head, d) = (e / 64, e % 64);
        let score = |t: usize| (0..64).map(|c| q[head * 64 + c] * k[t * 64 + c]).sum::<f64>() * 0.125;
        let weights: Vec<f64> = (0..seq).map(|t| score(t).exp()).collect();
        (0..seq).map(|t| weights[t] * v[t * 64 + d]).sum::<f64>() / weights.iter().sum::<f64>()
    };
    scene.expect(out, &(0..heads * 64).map(wanted).collect::<Vec<_>>(), 1e-5)
}

pub fn attention(ptx: &str, _: Arch, seed: u64) -> Outcome {
    attention_with(ptx, seed, 404, 101)
}

pub fn attention_short_of_shared(ptx: &str, _: Arch, seed: u64) -> Outcome {
    attention_with(ptx, seed, 380, 101)
}

pub fn attention_past_the_keys(ptx: &str, _: Arch, seed: u64) -> Outcome {
    attention_with(ptx, seed, 404, 100)
}
