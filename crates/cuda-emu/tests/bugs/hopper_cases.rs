//! The kernels of `hopper.cu` with data and answers, and wrong ways to launch them.

use cuda_emu::{Arch, Element, Swizzle, TensorMap};

use super::scene::{File, Found, Scene};
use crate::support::{Random, half};

pub static HOPPER: File = File {
    ptx: include_str!("../ptx/hopper.sm_90a.ptx"),
    source: include_str!("../kernels/hopper.cu"),
    arch: Arch::Sm90,
};

/// Written by hand: it has no source, and its reports name no line of one.
pub static CHAINED: File =
    File { ptx: include_str!("../ptx/chained.sm_90a.ptx"), source: "", arch: Arch::Sm90 };

type Outcome = Result<(), Found>;

fn map(address: u64, rows: usize, k: usize, swizzle: Swizzle) -> [u8; 128] {
    let (dims, strides, box_dims) = (vec![k as u64, rows as u64], vec![k as u64 * 2], vec![64, 64]);
    let element = Element::Half;
    TensorMap { element, address, dims, strides, box_dims, swizzle, fill_nan: false }.encode().unwrap()
}

/// How the host describes the matrices.
struct Layout {
    swizzle: Swizzle,
    /// Rows of a that its map has more than there are.
    more_rows: usize,
    shared: u32,
}

const RIGHT: Layout = Layout { swizzle: Swizzle::Bytes128, more_rows: 0, shared: 32768 };

fn gemm_with(ptx: &str, seed: u64, layout: Layout) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (m, n, k) = (128usize, 64usize, 384usize);
    let mut random = Random(seed);
    let (a, b) = (random.halves(m * k), random.halves(n * k));
    let (c, da, db) = (scene.room(m * n * 4), scene.halves(&a), scene.halves(&b));
    // What is more than there is lies before: the last rows of the last tile are there.
    let before = (layout.more_rows * k * 2) as u64;
    let (map_a, map_b) =
        (map(da - before, m + layout.more_rows, k, layout.swizzle), map(db, n, k, layout.swizzle));
    let params: [&[u8]; 5] =
        [&c.to_le_bytes(), &map_a, &map_b, &(n as i32).to_le_bytes(), &(k as i32).to_le_bytes()];
    scene.launch_grid("gemm", [1, 2, 1], (256, layout.shared), &params)?;
    let value = |v: u16| f64::from(half(v));
    let dot = |e: usize| (0..k).map(|s| value(a[e / n * k + s]) * value(b[e % n * k + s])).sum::<f64>();
    scene.expect(c, &(0..m * n).map(dot).collect::<Vec<_>>(), 1e-4)
}

pub fn gemm(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, RIGHT)
}

pub fn gemm_swizzled_wrongly(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, Layout { swizzle: Swizzle::None, ..RIGHT })
}

pub fn gemm_mapped_wrongly(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, Layout { more_rows: 2, ..RIGHT })
}

pub fn gemm_short_of_shared(ptx: &str, _: Arch, seed: u64) -> Outcome {
    gemm_with(ptx, seed, Layout { shared: 24576, ..RIGHT })
}

pub fn chained(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let (out, steps) = (scene.room(128 * 16), 3);
    scene.launch("chained", (1, 128, 0), &[&out.to_le_bytes(), &i32::to_le_bytes(steps)])?;
    // 16 times 1/2 in the first sum, 16 times 1/4 in the second.
    let row = |thread: i32| f64::from(thread / 4 % 4 + 1) / 4.0;
    let wanted = |n: i32| f64::from(steps) * 4.0 * 8.0 * row(n / 4);
    scene.expect(out, &(0..512).map(wanted).collect::<Vec<_>>(), 0.0)
}

pub fn exchange(ptx: &str, _: Arch, seed: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let out = scene.room(4 * 128);
    scene.launch("exchange", (4, 32, 0), &[&out.to_le_bytes()])?;
    let wanted = |n: i32| ((n / 32 % 2) ^ 1) * 100 + n % 32;
    scene.expect_ints(out, &(0..128).map(wanted).collect::<Vec<_>>())
}

fn bulk_with(ptx: &str, seed: u64, offset: u64) -> Outcome {
    let scene = Scene::new(ptx, Arch::Sm90, seed);
    let values: Vec<f32> = (0..260).map(|n| n as f32).collect();
    let (to, from) = (scene.room(1024), scene.floats(&values));
    scene.launch("bulk", (1, 256, 0), &[&to.to_le_bytes(), &(from + offset).to_le_bytes()])?;
    scene.expect(to, &(0..256).map(|n| 2.0 * f64::from(n)).collect::<Vec<_>>(), 0.0)
}

pub fn bulk(ptx: &str, _: Arch, seed: u64) -> Outcome {
    bulk_with(ptx, seed, 0)
}

pub fn bulk_misaligned(ptx: &str, _: Arch, seed: u64) -> Outcome {
    bulk_with(ptx, seed, 8)
}

pub fn bulk_past_the_end(ptx: &str, _: Arch, seed: u64) -> Outcome {
    bulk_with(ptx, seed, 32)
}
