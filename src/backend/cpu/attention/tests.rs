//! Attention against naive f64 over explicit lists of keys and values, on every instruction set; and the
//! guarantee that a row's bits depend on nothing but the row and its past.

use std::num::NonZeroUsize;
use std::ops::Range;

use half::f16;

use crate::backend::cpu::{Compute, Cpu, CpuOptions, Isa, KvPool};
use crate::backend::{ArenaMemory, Backend, Frame, PageMemory, Weights};
use crate::ir::{
    Attention, Heads, KV_SCALE_GROUP, KvAppend, KvDtype, KvLayout, Op, PAGE_TOKENS, PageId, PageRef, Place,
    Precision, Rows, StepInput, StepLimits, StepSequence, Window,
};
use crate::token::TokenId;

const TOKENS_MAX: usize = 640;
const PAGES: usize = 160;
const LAYERS: usize = 2;
const LAYER: usize = 1;

/// A stream of numbers in (−1, 1), with occasional outliers.
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let value = (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        if z.is_multiple_of(97) { 8.0 * value } else { value }
    }

    pub(crate) fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    heads: Heads,
    dtype: KvDtype,
    window: Option<u32>,
    soft_cap: Option<f32>,
}

impl Spec {
    fn new(group: usize, kv: usize, dim: usize, dtype: KvDtype) -> Spec {
        Spec { heads: Heads { query: group * kv, kv, dim }, dtype, window: None, soft_cap: None }
    }

    fn scale(&self) -> f32 {
        1.5 / (self.heads.dim as f32).sqrt()
    }

    fn layout(&self) -> KvLayout {
        KvLayout { layers: LAYERS, kv_heads: self.heads.kv, head_dim: self.heads.dim, dtype: self.dtype }
    }
}

/// All queries, keys and values that a sequence will ever have.
#[derive(Clone)]
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    window: Option<Window>,
}

impl Sequence {
    fn new(spec: &Spec, tokens: usize, seed: u64, window: Option<Window>) -> Sequence {
        let mut numbers = Numbers(seed);
        let (q, kv) = (spec.heads.query * spec.heads.dim, spec.heads.kv * spec.heads.dim);
        Sequence {
            q: numbers.take(tokens * q),
            k: numbers.take(tokens * kv),
            v: numbers.take(tokens * kv),
            window,
        }
    }
}

/// A head after rounding by the pool.
fn rounded(head: &[f32], dtype: KvDtype) -> Vec<f64> {
    let group = |values: &[f32]| -> Vec<f64> {
        let largest = values.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = f16::from_f32(largest / 127.0).to_f32();
        let code =
            |x: &f32| if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) };
        values.iter().map(|x| (code(x) * scale) as f64).collect()
    };
    match dtype {
        KvDtype::F16 => head.iter().map(|&x| f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f64()).collect(),
        KvDtype::Int8 => head.chunks(KV_SCALE_GROUP).flat_map(group).collect(),
    }
}

fn visible(spec: &Spec, window: Option<Window>, p: usize, position: usize) -> bool {
    let in_layer = spec.window.is_none_or(|w| position + w as usize > p);
    let in_sequence = window.is_none_or(|w| position < w.sinks as usize || position + w.window as usize > p);
    position <= p && in_layer && in_sequence
}

/// The naive oracle: one query head at one position.
fn oracle(spec: &Spec, sequence: &Sequence, p: usize, head: usize) -> Vec<f64> {
    let Heads { query, kv, dim } = spec.heads;
    let kv_head = head / (query / kv);
    let at =
        |all: &[f32], position: usize| rounded(&all[(position * kv + kv_head) * dim..][..dim], spec.dtype);
    let q = &sequence.q[(p * query + head) * dim..][..dim];
    let seen = (0..=p).filter(|&position| visible(spec, sequence.window, p, position)).collect::<Vec<_>>();
    let score = |&position: &usize| -> f64 {
        let dot: f64 = q.iter().zip(at(&sequence.k, position)).map(|(&q, k)| q as f64 * k).sum();
        let scaled = dot * spec.scale() as f64;
        spec.soft_cap.map_or(scaled, |cap| cap as f64 * (scaled / cap as f64).tanh())
    };
    let scores = seen.iter().map(score).collect::<Vec<_>>();
    let max = scores.iter().cloned().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let mut out = vec![0.0; dim];
    for (position, s) in seen.iter().zip(&scores) {
        for (o, v) in out.iter_mut().zip(at(&sequence.v, *position)) {
            *o += (s - max).exp() / total * v;
        }
    }
    out
}

struct Rig {
    cpu: Cpu,
    spec: Spec,
    pool: KvPool,
    arena: <Cpu as Backend>::Arena,
    weights: Weights<Cpu>,
    ops: [Op; 2],
    places: [Place; 4],
    free: Vec<PageId>,
    tables: Vec<Vec<PageRef>>,
    sequences: Vec<Sequence>,
}

pub(crate) fn cpu(isa: Isa, threads: usize) -> Cpu {
    let threads = NonZeroUsize::new(threads);
    Cpu::new(&CpuOptions { threads, isa: Some(isa), compute: Compute::Int8, ..CpuOptions::default() })
        .unwrap()
}

impl Rig {
    fn new(isa: Isa, threads: usize, spec: Spec, sequences: &[Sequence]) -> Rig {
        let cpu = cpu(isa, threads);
        let element = cpu.element_bytes(Precision::F32);
        let Heads { query, kv, dim } = spec.heads;
        let mut offset = 0;
        let places = [query, kv, kv, query].map(|heads| {
            let cols = heads * dim;
            let place = Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 };
            offset += (TOKENS_MAX * cols * element).next_multiple_of(64);
            place
        });
        let [q, k, v, dst] = places;
        let layer = LAYER;
        let append = KvAppend { q, k, v, layer, heads: spec.heads, q_norm: None, k_norm: None, rope: None };
        let (window, soft_cap) = (spec.window, spec.soft_cap);
        let attention = Attention { dst, q, layer, heads: spec.heads, scale: spec.scale(), window, soft_cap };
        let ops = [Op::KvAppend(append), Op::Attention(attention)];
        let limits = StepLimits { tokens_max: TOKENS_MAX, outputs_max: 1 };
        let arena = cpu.arena(offset, &ops, limits).unwrap();
        let mut pool = cpu.kv_pool(spec.layout(), PAGES).unwrap();
        let poison = vec![0xff; spec.layout().page_bytes()];
        for page in 0..PAGES as u32 {
            pool.import_page(PageId(page), &poison).unwrap();
        }
        let free = (0..PAGES as u32).map(PageId).collect();
        let tables = vec![Vec::new(); sequences.len()];
        let weights = Weights { matrices: Vec::new(), vectors: Vec::new() };
        Rig { cpu, spec, pool, arena, weights, ops, places, free, tables, sequences: sequences.to_vec() }
    }

    /// Randomises the order in which pages are handed out, by `seed`.
    fn shuffle(mut self, seed: u64) -> Rig {
        let mut numbers = Numbers(seed);
        self.free.sort_by_cached_key(|_| numbers.next().to_bits());
        self
    }

    fn prepare_pages(&mut self, sequence: usize, positions: &Range<usize>) {
        let table = &mut self.tables[sequence];
        if let Some(window) = self.sequences[sequence].window {
            let keep = |entry: &PageRef| {
                let last = entry.start as usize + PAGE_TOKENS - 1;
                entry.start < window.sinks || last + window.window as usize > positions.start
            };
            let poison = vec![0xff; self.spec.layout().page_bytes()];
            for entry in table.extract_if(.., |entry| !keep(entry)) {
                self.pool.import_page(entry.page, &poison).unwrap();
                self.free.push(entry.page);
            }
        }
        let mut next = table.last().map_or(0, |last| last.start as usize + PAGE_TOKENS);
        while next < positions.end {
            table.push(PageRef { page: self.free.pop().unwrap(), start: next as u32 });
            next += PAGE_TOKENS;
        }
    }

    fn step(&mut self, work: &[(usize, Range<usize>)]) -> StepInput {
        let mut step = StepInput::default();
        for (sequence, positions) in work {
            self.prepare_pages(*sequence, positions);
            let (row, page) = (step.tokens.len() as u32, step.pages.len() as u32);
            step.pages.extend_from_slice(&self.tables[*sequence]);
            step.tokens.extend(positions.clone().map(|_| TokenId(0)));
            step.positions.extend(positions.clone().map(|p| p as u32));
            step.sequences.push(StepSequence {
                rows: row..row + positions.len() as u32,
                pages: page..step.pages.len() as u32,
                window: self.sequences[*sequence].window,
            });
        }
        step.check(StepLimits { tokens_max: TOKENS_MAX, outputs_max: 0 }, PAGES, 1).unwrap();
        step
    }

    /// Runs some positions of some sequences as one step; returns one result per part.
    fn run(&mut self, work: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
        let step = self.step(work);
        let pick = |of: fn(&Sequence) -> &[f32], cols: usize| -> Vec<f32> {
            let part = |(sequence, positions): &(usize, Range<usize>)| {
                of(&self.sequences[*sequence])[positions.start * cols..positions.end * cols].to_vec()
            };
            work.iter().flat_map(part).collect()
        };
        let [q, k, v, dst] = self.places;
        let inputs = [pick(|s| &s.q, q.cols), pick(|s| &s.k, k.cols), pick(|s| &s.v, v.cols)];
        for (place, values) in [q, k, v].iter().zip(&inputs) {
            self.arena.write(place, values).unwrap();
        }
        self.arena.write(&dst, &vec![f32::NAN; TOKENS_MAX * dst.cols]).unwrap();
        for op in &self.ops {
            let frame =
                Frame { weights: &self.weights, arena: &mut self.arena, kv: &mut self.pool, step: &step };
            self.cpu.execute(op, &mut { frame }).unwrap();
        }
        let read = |(index, (_, positions)): (usize, &(usize, Range<usize>))| {
            let mut out = vec![0.0; positions.len() * dst.cols];
            let first = step.sequences[index].rows.start as usize;
            self.arena.read(&dst, first, &mut out).unwrap();
            out
        };
        work.iter().enumerate().map(read).collect()
    }

    /// Runs one sequence alone in chunks; returns all outputs.
    fn chunks(&mut self, sequence: usize, positions: Range<usize>, chunk: usize) -> Vec<f32> {
        let mut out = Vec::new();
        let mut start = positions.start;
        while start < positions.end {
            let end = positions.end.min(start + chunk);
            out.extend(self.run(&[(sequence, start..end)]).remove(0));
            start = end;
        }
        out
    }

    fn assert_near_oracle(&self, sequence: usize, positions: Range<usize>, out: &[f32]) {
        let Heads { query, dim, .. } = self.spec.heads;
        let s = &self.sequences[sequence];
        for (row, p) in positions.clone().enumerate() {
            // Every row near the ends and page edges, some in between.
            if positions.len() > 40 && p % 16 > 1 && p % 37 != 0 {
                continue;
            }
            for head in 0..query {
                let want = oracle(&self.spec, s, p, head);
                let got = &out[(row * query + head) * dim..][..dim];
                let magnitude = want.iter().fold(0.1, |m: f64, x| m.max(x.abs()));
                for (d, (got, want)) in got.iter().zip(&want).enumerate() {
                    let error = (*got as f64 - want).abs();
                    assert!(
                        error <= 4e-5 * magnitude,
                        "{} {:?} position {p} head {head} element {d}: {got} for {want}",
                        self.cpu.isa(),
                        self.spec,
                    );
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn decode_matches_f64_for_all_groups_heads_and_contexts() {
    for isa in Isa::available() {
        for (i, dim) in [16, 64, 80, 100, 128, 256].into_iter().enumerate() {
            for (j, group) in [1, 2, 3, 4, 6].into_iter().enumerate() {
                for dtype in [KvDtype::F16, KvDtype::Int8] {
                    let spec = Spec::new(group, 1 + (i + j) % 2, dim, dtype);
                    let sequence = Sequence::new(&spec, 513, (31 * i + j) as u64, None);
                    let mut rig = Rig::new(isa, 2, spec, &[sequence]).shuffle(5);
                    let mut start = 0;
                    for context in [1, 15, 16, 17, 100, 513] {
                        rig.run(&[(0, start..context)]);
                        let out = rig.run(&[(0, context - 1..context)]).remove(0);
                        rig.assert_near_oracle(0, context - 1..context, &out);
                        start = context;
                    }
                }
            }
        }
    }
}

#[test]
fn prompts_match_f64() {
    for isa in Isa::available() {
        let usual =
            [(64, 3, KvDtype::F16), (72, 1, KvDtype::F16), (40, 2, KvDtype::Int8), (128, 4, KvDtype::Int8)];
        // No multiples of 8: the last vector of a head is partial.
        let odd =
            [(1, 2, KvDtype::F16), (13, 5, KvDtype::Int8), (36, 1, KvDtype::Int8), (100, 3, KvDtype::F16)];
        for (dim, group, dtype) in usual.into_iter().chain(odd) {
            let spec = Spec::new(group, 2, dim, dtype);
            let sequence = Sequence::new(&spec, 131, 3, None);
            let mut rig = Rig::new(isa, 2, spec, &[sequence]).shuffle(9);
            let out = rig.run(&[(0, 0..131)]).remove(0);
            rig.assert_near_oracle(0, 0..131, &out);
        }
    }
}

#[test]
fn windows_sinks_dropped_pages_and_soft_caps_match_f64() {
    let sinks = |window, sinks| Some(Window { window, sinks });
    for isa in Isa::available() {
        for (layer, sequence, soft_cap, dtype) in [
            (Some(1), None, None, KvDtype::F16),
            (Some(20), None, None, KvDtype::Int8),
            (Some(512), None, Some(30.0), KvDtype::F16),
            (None, sinks(24, 4), None, KvDtype::F16),
            (None, sinks(16, 0), Some(2.0), KvDtype::Int8),
            (Some(40), sinks(64, 20), None, KvDtype::F16),
            (None, sinks(100, 1), Some(50.0), KvDtype::F16),
        ] {
            let spec = Spec { window: layer, soft_cap, ..Spec::new(2, 2, 64, dtype) };
            let all = Sequence::new(&spec, 300, 11, sequence);
            let mut rig = Rig::new(isa, 2, spec, &[all]).shuffle(1);
            let out = rig.run(&[(0, 0..120)]).remove(0);
            rig.assert_near_oracle(0, 0..120, &out);
            for positions in [120..121, 121..160, 160..161, 161..299, 299..300] {
                let out = rig.run(&[(0, positions.clone())]).remove(0);
                rig.assert_near_oracle(0, positions, &out);
            }
        }
    }
}

#[test]
fn a_ragged_batch_gives_each_row_the_bits_it_has_alone() {
    for isa in Isa::available() {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let spec = Spec::new(3, 2, 64, dtype);
            let window = |s| Some(Window { window: 33, sinks: s });
            let sequences = [
                Sequence::new(&spec, 90, 1, None),
                Sequence::new(&spec, 18, 2, None),
                Sequence::new(&spec, 200, 3, window(5)),
                Sequence::new(&spec, 65, 4, None),
                Sequence::new(&spec, 120, 5, window(0)),
            ];
            let last = [70..90, 17..18, 199..200, 0..65, 119..120];
            let mut together = Rig::new(isa, 2, spec, &sequences).shuffle(21);
            let mut alone = Rig::new(isa, 1, spec, &sequences).shuffle(4);
            for (index, positions) in last.iter().enumerate() {
                together.chunks(index, 0..positions.start, 50);
            }
            let work = last.iter().cloned().enumerate().collect::<Vec<_>>();
            let results = together.run(&work);
            for (index, positions) in last.into_iter().enumerate() {
                alone.chunks(index, 0..positions.start, 13);
                let out = alone.run(&[(index, positions.clone())]).remove(0);
                assert_eq!(bits(&out), bits(&results[index]), "{isa} sequence {index}");
                together.assert_near_oracle(index, positions, &results[index]);
            }
        }
    }
}

#[test]
fn chunking_threads_and_pages_do_not_change_a_bit() {
    let window = Some(Window { window: 150, sinks: 4 });
    for isa in Isa::available() {
        for (group, dim, dtype, window) in [
            (1, 64, KvDtype::F16, None),
            (3, 64, KvDtype::F16, None),
            (4, 80, KvDtype::Int8, window),
            (6, 128, KvDtype::F16, window),
        ] {
            let spec = Spec { window: Some(290), ..Spec::new(group, 1, dim, dtype) };
            let sequence = Sequence::new(&spec, 600, 77, window);
            let rig = |threads| Rig::new(isa, threads, spec, std::slice::from_ref(&sequence));
            let whole = rig(2).run(&[(0, 0..600)]).remove(0);
            for (threads, chunk, seed) in [(1, 600, 1), (2, 256, 2), (2, 7, 3), (1, 1, 4), (3, 1, 5)] {
                let parts = rig(threads).shuffle(seed).chunks(0, 0..600, chunk);
                assert_eq!(bits(&parts), bits(&whole), "{isa} {spec:?} chunks of {chunk}");
            }
        }
    }
}

/// Later keys that are NaN must not affect earlier rows, in either dtype.
#[test]
fn a_nan_in_a_later_token_stays_out_of_earlier_rows() {
    for isa in Isa::available() {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let spec = Spec::new(2, 1, 64, dtype);
            let clean = Sequence::new(&spec, 40, 8, None);
            let mut dirty = clean.clone();
            dirty.k[21 * 64..].fill(f32::NAN);
            dirty.v[21 * 64..].fill(f32::NAN);
            let want = Rig::new(isa, 1, spec, &[clean]).run(&[(0, 0..40)]).remove(0);
            let got = Rig::new(isa, 1, spec, &[dirty]).run(&[(0, 0..40)]).remove(0);
            assert_eq!(bits(&got[..21 * 128]), bits(&want[..21 * 128]), "{isa}");
        }
    }
}
