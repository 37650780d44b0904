//! Attention of single tokens on the CUDA backend: where it appends its own keys it has the bits of two
//! operations, is near the f64 reference, and what is no number stays none. On the emulated driver or,
//! with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/case.rs"]
#[allow(dead_code, reason = "its numbers are enough here")]
mod case;

use case::Numbers;
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{
    Attention, Backend, Frame, Heads, KvAppend, KvDtype, KvLayout, Op, PAGE_TOKENS, PageId, PageRef, Place,
    Precision, Reference, RmsNorm, Rope, RopeAngles, RopePairing, Rows, StepInput, StepLimits, StepSequence,
    VectorId, Weights,
};

const LIMITS: StepLimits = StepLimits { tokens_max: 352, outputs_max: 1 };
/// Positions of the sequences' tokens: on the first page, at its end, on the next, and of the pages of
/// several splits the last.
const POSITIONS: [usize; 5] = [0, 15, 16, 100, 330];

fn emulator() -> cuda_emu::Emulator {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator")
}

fn cuda() -> Cuda {
    emulator();
    Cuda::new(&CudaOptions::default()).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

/// What varies.
struct Decode {
    heads: Heads,
    dtype: KvDtype,
    norms: bool,
    rope: Option<(RopePairing, usize)>,
    window: Option<u32>,
}

/// Where its operations find their operands.
struct Places {
    q: Place,
    k: Place,
    v: Place,
    dst: Place,
    angles: Place,
    arena_bytes: usize,
}

/// A step of sequences: of each the positions, from one to below another, and its first page.
fn step(sequences: &[(usize, usize)], first_pages: &[usize]) -> StepInput {
    let mut step = StepInput::default();
    for (&(start, end), first) in sequences.iter().zip(first_pages) {
        let positions = start..end;
        let (row, table) = (step.tokens.len() as u32, step.pages.len() as u32);
        let pages = end.div_ceil(PAGE_TOKENS);
        step.tokens.extend(positions.clone().map(|_| TokenId(0)));
        step.positions.extend(positions.map(|position| position as u32));
        let page = |i: usize| PageRef { page: PageId((first + i) as u32), start: (i * PAGE_TOKENS) as u32 };
        step.pages.extend((0..pages).map(page));
        let (rows, pages) = (row..step.tokens.len() as u32, table..step.pages.len() as u32);
        step.sequences.push(StepSequence { rows, pages, window: None });
    }
    step
}

impl Decode {
    fn places(&self, element_bytes: usize) -> Places {
        let Heads { query, kv, dim } = self.heads;
        let mut arena_bytes = 0;
        let mut place = |cols: usize| {
            let place = Place { offset: arena_bytes, rows: Rows::Tokens, cols, precision: Precision::F32 };
            arena_bytes += (LIMITS.tokens_max * cols * element_bytes).next_multiple_of(64);
            place
        };
        let [q, k, v, dst] = [query, kv, kv, query].map(|heads| place(heads * dim));
        let angles = place(self.rope.map_or(2, |(_, dims)| dims));
        Places { q, k, v, dst, angles, arena_bytes }
    }

    /// Angles, append, attention.
    fn ops(&self, places: &Places) -> [Op; 3] {
        let Places { q, k, v, dst, angles, .. } = *places;
        let (heads, window) = (self.heads, self.window);
        let inv_freq = (0..angles.cols / 2).map(|i| 0.9f64.powi(i as i32)).collect();
        let rope = self.rope.map(|(pairing, _)| Rope { angles, pairing });
        let norm = |id| self.norms.then_some(RmsNorm { weight: VectorId(id), eps: 1e-6 });
        let (q_norm, k_norm, scale) = (norm(0), norm(1), 1.0 / (heads.dim as f32).sqrt());
        [
            Op::RopeAngles(RopeAngles { dst: angles, inv_freq, magnitude: 1.0 }),
            Op::KvAppend(KvAppend { q, k, v, layer: 0, heads, q_norm, k_norm, rope }),
            Op::Attention(Attention { dst, q, layer: 0, heads, scale, window, soft_cap: None }),
        ]
    }

    /// The attentions of one token of each sequence behind a past that was appended before, and the
    /// pages: the operations by `run`, or one by one.
    fn run<B: Backend>(&self, backend: &B, whole: bool) -> (Vec<f32>, Vec<Vec<u8>>) {
        let Heads { kv, dim, .. } = self.heads;
        let places = self.places(backend.element_bytes(Precision::F32));
        let ops = self.ops(&places);
        let mut arena = backend.arena(places.arena_bytes, &ops, LIMITS).expect("an arena");
        let layout = KvLayout { layers: 1, kv_heads: kv, head_dim: dim, dtype: self.dtype };
        let mut first_pages = Vec::new();
        let mut pages = 0;
        for position in POSITIONS {
            first_pages.push(pages);
            pages += position / PAGE_TOKENS + 1;
        }
        let mut pool = backend.kv_pool(layout, pages).expect("a pool");
        let mut numbers = Numbers(dim as u64);
        let vectors = [0, 1].map(|_| backend.upload_vector(&numbers.take(dim)).expect("memory"));
        let weights = Weights { matrices: vec![], vectors: vectors.into() };
        let mut take = |step: &StepInput, ops: &[Op], whole: bool| {
            for place in [places.q, places.k, places.v] {
                let values = numbers.take(step.tokens.len() * place.cols);
                backend.write(&mut arena, &place, &values).expect("a value");
            }
            let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step };
            backend.begin(&mut frame).expect("a step");
            if whole {
                backend.run(ops, &mut frame).expect("operations");
            } else {
                ops.iter().for_each(|op| backend.execute(op, &mut frame).expect("an operation"));
            }
        };
        for (position, first) in POSITIONS.into_iter().zip(&first_pages).filter(|(position, _)| *position > 0)
        {
            take(&step(&[(0, position)], &[*first]), &ops[..2], false);
        }
        take(&step(&POSITIONS.map(|position| (position, position + 1)), &first_pages), &ops, whole);
        let mut out = vec![f32::NAN; POSITIONS.len() * places.dst.cols];
        backend.read(&arena, &places.dst, 0, &mut out).expect("a value");
        let page = |page| {
            let mut bytes = Vec::new();
            backend.export_page(&pool, PageId(page), &mut bytes).expect("a page");
            bytes
        };
        (out, (0..pages as u32).map(page).collect())
    }

    /// Fails where a row is further from the reference than its format's rounding.
    fn assert_near_reference(&self, found: &[f32], what: &str) {
        let cols = self.heads.query * self.heads.dim;
        // A code of a key that was normed and turned in f32 may differ by one.
        let eps = if self.dtype == KvDtype::Int8 { 0.05 } else { 1e-4 };
        let (want, _) = self.run(&Reference, true);
        for (row, (found, want)) in found.chunks(cols).zip(want.chunks(cols)).enumerate() {
            let most = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let off = found.iter().zip(want).fold(0.0f32, |off, (x, y)| off.max((x - y).abs()));
            assert!(off <= eps * most, "{what}, row {row}: off by {off} of {most}");
        }
    }
}

#[test]
fn attention_that_appends_has_the_bits_of_two_operations() {
    let cuda = cuda();
    let halves = |dims| Some((RopePairing::Halves, dims));
    for (query, kv, dim, rope) in [
        (9, 3, 64, halves(64)),
        (4, 1, 80, halves(40)),
        (2, 2, 72, Some((RopePairing::Interleaved, 72))),
        (6, 1, 256, halves(40)),
        (2, 1, 40, None),
    ] {
        for (dtype, norms, window) in [(KvDtype::F16, false, None), (KvDtype::Int8, true, Some(50))] {
            let decode = Decode { heads: Heads { query, kv, dim }, dtype, norms, rope, window };
            let what = format!("{query}/{kv} of {dim}, {dtype:?}");
            let (apart, pages_apart) = decode.run(&cuda, false);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for seed in 0..3 {
                // Splits end in another order; a real card has one of its own.
                let _ = emulator().set_seed(seed);
                let (in_one, pages) = decode.run(&cuda, true);
                assert!(bits(&in_one) == bits(&apart), "{what}: other bits, seed {seed}");
                assert!(pages == pages_apart, "{what}: other pages, seed {seed}");
            }
            decode.assert_near_reference(&apart, &what);
        }
    }
}

/// One token of a sequence may see what that of another writes: the reference says so.
#[test]
fn a_page_that_two_sequences_share_is_written_before_it_is_read() {
    let cuda = cuda();
    let heads = Heads { query: 1, kv: 1, dim: 64 };
    let decode = Decode { heads, dtype: KvDtype::F16, norms: false, rope: None, window: None };
    let mut shared = step(&[(4, 5), (5, 6)], &[0, 0]);
    shared.pages.truncate(1);
    shared.sequences[1].pages = 0..1;
    fn run<B: Backend>(decode: &Decode, backend: &B, step: &StepInput) -> Vec<f32> {
        let places = decode.places(backend.element_bytes(Precision::F32));
        let ops = decode.ops(&places);
        let mut arena = backend.arena(places.arena_bytes, &ops, LIMITS).expect("an arena");
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 64, dtype: KvDtype::F16 };
        let mut pool = backend.kv_pool(layout, 1).expect("a pool");
        let weights = Weights { matrices: vec![], vectors: vec![] };
        for place in [places.q, places.k, places.v] {
            backend.write(&mut arena, &place, &Numbers(7).take(2 * 64)).expect("a value");
        }
        let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step };
        backend.begin(&mut frame).expect("a step");
        backend.run(&ops, &mut frame).expect("operations");
        let mut out = vec![f32::NAN; 2 * 64];
        backend.read(&arena, &places.dst, 0, &mut out).expect("a value");
        out
    }
    let (found, want) = (run(&decode, &cuda, &shared), run(&decode, &Reference, &shared));
    for (i, (found, want)) in found.iter().zip(&want).enumerate() {
        assert!((found - want).abs() <= 1e-3 * want.abs().max(1.0), "{found} for {want} at {i}");
    }
}

#[test]
fn a_key_that_is_no_number_makes_none_of_what_sees_it() {
    let cuda = cuda();
    let heads = Heads { query: 1, kv: 1, dim: 64 };
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        let decode = Decode { heads, dtype, norms: false, rope: None, window: None };
        let places = decode.places(4);
        let ops = &decode.ops(&places)[2..];
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 64, dtype };
        let mut pool = cuda.kv_pool(layout, 1).expect("a pool");
        // An f16 of these bytes is no number, whether it is an element or a scale.
        cuda.import_page(&mut pool, PageId(0), &vec![0x7e; layout.page_bytes()]).expect("a page");
        let mut arena = cuda.arena(places.arena_bytes, ops, LIMITS).expect("an arena");
        cuda.write(&mut arena, &places.q, &[1.0; 64]).expect("a value");
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let step = step(&[(3, 4)], &[0]);
        let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step: &step };
        cuda.begin(&mut frame).expect("a step");
        cuda.run(ops, &mut frame).expect("an attention");
        let mut out = [0.0; 64];
        cuda.read(&arena, &places.dst, 0, &mut out).expect("a value");
        assert!(out.iter().all(|x| x.is_nan()), "{dtype:?}: {out:?}");
    }
}
