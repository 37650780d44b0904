//! The kernels of `model.cu` with data and answers, and wrong ways to launch them.

use cuda_emu::Arch;

use super::scene::{File, Found, Scene, near};
use crate::support::{Random, download_halves, half};

pub static MODEL: File = File {
    ptx: include_str!("../ptx/model.sm_80.ptx"),
    source: include_str!("../kernels/model.cu"),
    arch: Arch::Sm80,
};

type Outcome = Result<(), Found>;

fn i(value: usize) -> [u8; 4] {
    (value as i32).to_le_bytes()
}

fn wide(values: &[u16]) -> Vec<f64> {
    values.iter().map(|v| f64::from(half(*v))).collect()
}

/// Two heads over one of keys and values, [tokens, heads, 64].
struct Attention {
    q: Vec<u16>,
    k: Vec<u16>,
    v: Vec<u16>,
}

const HEADS: usize = 2;

impl Attention {
    fn new(seed: u64, queries: usize, seq: usize) -> Self {
        let mut random = Random(seed);
        let [q, k, v] = [queries * HEADS, seq, seq].map(|rows| random.halves(rows * 64));
        Self { q, k, v }
    }

    /// Of each query, the answer over the first tokens, as many as `seen` says.
    fn wanted(&self, seen: impl Fn(usize) -> usize) -> Vec<f64> {
        let (q, k, v) = (wide(&self.q), wide(&self.k), wide(&self.v));
        let rows = q.chunks(64).enumerate().flat_map(|(row, query)| {
            let dot = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
            let weights: Vec<f64> =
                k.chunks(64).take(seen(row / HEADS)).map(|key| (dot(key) * 0.125).exp()).collect();
            let total: f64 = weights.iter().sum();
            let sum = |d: usize| weights.iter().zip(v.chunks(64)).map(|(w, value)| w * value[d]).sum::<f64>();
            (0..64).map(|d| sum(d) / total).collect::<Vec<_>>()
        });
        rows.collect()
    }
}

fn decode_with(ptx: &str, seed: u64, shared: u32) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let (seq, chunk, chunks) = (150, 64, 3);
    let attention = Attention::new(seed, 1, seq);
    let [q, k, v] = [&attention.q, &attention.k, &attention.v].map(|v| scene.halves(v).to_le_bytes());
    let parts = scene.room(HEADS * chunks * 256).to_le_bytes();
    let stats = scene.room(HEADS * chunks * 8).to_le_bytes();
    let out = scene.room(HEADS * 128);
    let params: [&[u8]; 9] = [&parts, &stats, &q, &k, &v, &i(seq), &i(chunk), &i(1), &0.125f32.to_le_bytes()];
    scene.launch_grid("decode_split", [chunks as u32, HEADS as u32, 1], (128, shared), &params)?;
    let params: [&[u8]; 4] = [&out.to_le_bytes(), &parts, &stats, &i(chunks)];
    scene.launch("decode_combine", (HEADS as u32, 64, 0), &params)?;
    near(&download_halves(&scene.device, out, HEADS * 64), &attention.wanted(|_| seq), 1e-3)
}

pub fn decode(ptx: &str, _: Arch, seed: u64) -> Outcome {
    decode_with(ptx, seed, 256)
}

pub fn decode_short_of_shared(ptx: &str, _: Arch, seed: u64) -> Outcome {
    decode_with(ptx, seed, 128)
}

fn flash_with(ptx: &str, seed: u64, shared: u32) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let seq = 101;
    let attention = Attention::new(seed, seq, seq);
    let [q, k, v] = [&attention.q, &attention.k, &attention.v].map(|v| scene.halves(v).to_le_bytes());
    let out = scene.room(seq * HEADS * 128);
    let params: [&[u8]; 7] = [&out.to_le_bytes(), &q, &k, &v, &i(seq), &i(1), &0.125f32.to_le_bytes()];
    scene.launch_grid("flash_prefill", [2, HEADS as u32, 1], (128, shared), &params)?;
    near(&download_halves(&scene.device, out, seq * HEADS * 64), &attention.wanted(|row| row + 1), 2e-3)
}

pub fn flash(ptx: &str, _: Arch, seed: u64) -> Outcome {
    flash_with(ptx, seed, 3 * 64 * 144)
}

pub fn flash_short_of_shared(ptx: &str, _: Arch, seed: u64) -> Outcome {
    flash_with(ptx, seed, 3 * 64 * 128)
}

/// Weights with room for so many rows.
fn gemm_with(ptx: &str, seed: u64, rows: usize) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm80, seed);
    let (m, n, k) = (20, 70, 96);
    let mut random = Random(seed);
    let a = random.halves(m * k);
    let w: Vec<u8> = (0..n * k).map(|_| random.next() as u8).collect();
    let (c, da, dw) = (scene.room(m * n * 2), scene.halves(&a), scene.bytes(&w[..rows * k]));
    let scale = scene.floats(&vec![0.01; n]);
    let [to, a_at, w_at, scale] = [c, da, dw, scale].map(u64::to_le_bytes);
    let params: [&[u8]; 7] = [&to, &a_at, &w_at, &scale, &i(m), &i(n), &i(k)];
    scene.launch("gemm_w8a16", (2, 128, 0), &params)?;
    let a = wide(&a);
    let dot = |e: usize| (0..k).map(|s| a[e / n * k + s] * f64::from(w[e % n * k + s] as i8)).sum::<f64>();
    let wanted: Vec<f64> = (0..m * n).map(|e| dot(e) * 0.01).collect();
    near(&download_halves(&scene.device, c, m * n), &wanted, 1e-3)
}

pub fn gemm(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, 70)
}

pub fn gemm_without_last_weights(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, 69)
}
