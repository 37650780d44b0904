//! Attention on the CUDA backend: where it appends its own keys it has the bits of two operations; with windows,
//! dropped pages and long pasts it is near the f64 reference; what is no number makes none of what sees it, and of
//! nothing else. On the emulated driver or, with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/case.rs"]
#[allow(dead_code, reason = "its numbers are enough here")]
mod case;

use std::ops::Range;

use case::Numbers;
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{ArenaMemory, Backend, Frame, PageMemory, Reference, Weights};
use ottava::ir::{
    Attention, Heads, KvAppend, KvDtype, KvLayout, Op, PAGE_TOKENS, PageId, PageRef, Place, Precision,
    RmsNorm, Rope, RopeAngles, RopePairing, Rows, StepInput, StepLimits, StepSequence, VectorId, Window,
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
    fn places(&self, element_bytes: usize, tokens_max: usize) -> Places {
        let Heads { query, kv, dim } = self.heads;
        let mut arena_bytes = 0;
        let mut place = |cols: usize| {
            let place = Place { offset: arena_bytes, rows: Rows::Tokens, cols, precision: Precision::F32 };
            arena_bytes += (tokens_max * cols * element_bytes).next_multiple_of(64);
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
        let places = self.places(backend.element_bytes(Precision::F32), LIMITS.tokens_max);
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
                arena.write(&place, &values).expect("a value");
            }
            let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step };
            frame.begin(backend).expect("a step");
            if whole {
                frame.run(backend, ops).expect("operations");
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
        arena.read(&places.dst, 0, &mut out).expect("a value");
        let page = |page| {
            let mut bytes = Vec::new();
            pool.export_page(PageId(page), &mut bytes).expect("a page");
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
        let places = decode.places(backend.element_bytes(Precision::F32), LIMITS.tokens_max);
        let ops = decode.ops(&places);
        let mut arena = backend.arena(places.arena_bytes, &ops, LIMITS).expect("an arena");
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 64, dtype: KvDtype::F16 };
        let mut pool = backend.kv_pool(layout, 1).expect("a pool");
        let weights = Weights { matrices: vec![], vectors: vec![] };
        for place in [places.q, places.k, places.v] {
            arena.write(&place, &Numbers(7).take(2 * 64)).expect("a value");
        }
        let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step };
        frame.begin(backend).expect("a step");
        frame.run(backend, &ops).expect("operations");
        let mut out = vec![f32::NAN; 2 * 64];
        arena.read(&places.dst, 0, &mut out).expect("a value");
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
        let places = decode.places(4, LIMITS.tokens_max);
        let ops = &decode.ops(&places)[2..];
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 64, dtype };
        let mut pool = cuda.kv_pool(layout, 1).expect("a pool");
        // An f16 of these bytes is no number, whether it is an element or a scale.
        pool.import_page(PageId(0), &vec![0x7e; layout.page_bytes()]).expect("a page");
        let mut arena = cuda.arena(places.arena_bytes, ops, LIMITS).expect("an arena");
        arena.write(&places.q, &[1.0; 64]).expect("a value");
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let step = step(&[(3, 4)], &[0]);
        let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step: &step };
        frame.begin(&cuda).expect("a step");
        frame.run(&cuda, ops).expect("an attention");
        let mut out = [0.0; 64];
        arena.read(&places.dst, 0, &mut out).expect("a value");
        assert!(out.iter().all(|x| x.is_nan()), "{dtype:?}: {out:?}");
    }
}

/// A sequence whose rows attend.
struct Attending {
    /// Positions of its rows; those before were appended in earlier steps.
    rows: Range<usize>,
    /// Positions whose pages it has no more.
    dropped: Range<usize>,
    window: Option<Window>,
}

impl Attending {
    fn new(rows: Range<usize>) -> Attending {
        Attending { rows, dropped: 0..0, window: None }
    }

    fn within(self, window: u32, sinks: u32) -> Attending {
        Attending { window: Some(Window { window, sinks }), ..self }
    }

    fn without(self, dropped: Range<usize>) -> Attending {
        Attending { dropped, ..self }
    }

    /// Its pages, one behind the other from `first` on.
    fn pages(&self, first: usize) -> impl Iterator<Item = PageRef> {
        let page = move |i| PageRef { page: PageId((first + i) as u32), start: (i * PAGE_TOKENS) as u32 };
        let kept = |page: &PageRef| !self.dropped.contains(&(page.start as usize));
        (0..self.rows.end.div_ceil(PAGE_TOKENS)).map(page).filter(kept)
    }
}

/// An element of a key or a value that is no number.
struct NoNumber {
    sequence: usize,
    position: usize,
    element: usize,
    key: bool,
}

impl Decode {
    /// The attentions of the sequences' rows, in one step, over pages that hold no numbers but where something was
    /// appended.
    fn attend<B: Backend>(&self, backend: &B, sequences: &[Attending], none: &[NoNumber]) -> Vec<f32> {
        let limits = StepLimits { tokens_max: 4200, outputs_max: 1 };
        let places = self.places(backend.element_bytes(Precision::F32), limits.tokens_max);
        let ops = &self.ops(&places)[1..];
        let mut arena = backend.arena(places.arena_bytes, ops, limits).expect("an arena");
        let Heads { kv, dim, .. } = self.heads;
        let layout = KvLayout { layers: 1, kv_heads: kv, head_dim: dim, dtype: self.dtype };
        let pages = sequences.iter().map(|sequence| sequence.rows.end.div_ceil(PAGE_TOKENS)).sum();
        let mut pool = backend.kv_pool(layout, pages).expect("a pool");
        for page in 0..pages as u32 {
            pool.import_page(PageId(page), &vec![0x7e; layout.page_bytes()]).expect("a page");
        }
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let mut numbers = Numbers(dim as u64);
        let mut take = |parts: &[(usize, Range<usize>, usize)], ops: &[Op]| {
            let mut step = StepInput::default();
            let tokens: usize = parts.iter().map(|(_, positions, _)| positions.len()).sum();
            let [mut q, mut k, mut v] =
                [places.q, places.k, places.v].map(|place| numbers.take(tokens * place.cols));
            // Scores up to 10: what f16 misses of larger ones shows where many keys compete.
            q.iter_mut().for_each(|q| *q /= 32.0);
            for (index, positions, first) in parts {
                let (row, table) = (step.positions.len(), step.pages.len() as u32);
                for one in
                    none.iter().filter(|one| one.sequence == *index && positions.contains(&one.position))
                {
                    let values = if one.key { &mut k } else { &mut v };
                    values[(row + one.position - positions.start) * kv * dim + one.element] = f32::NAN;
                }
                step.tokens.extend(positions.clone().map(|_| TokenId(0)));
                step.positions.extend(positions.clone().map(|position| position as u32));
                step.pages.extend(sequences[*index].pages(*first));
                let (rows, pages) = (row as u32..step.positions.len() as u32, table..step.pages.len() as u32);
                step.sequences.push(StepSequence { rows, pages, window: sequences[*index].window });
            }
            for (place, values) in [(places.q, q), (places.k, k), (places.v, v)] {
                arena.write(&place, &values).expect("a value");
            }
            let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut pool, step: &step };
            frame.begin(backend).expect("a step");
            frame.run(backend, ops).expect("operations");
            tokens
        };
        let mut first = 0;
        let mut parts = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            // What was dropped has no page to be appended to.
            let Range { start, end } = sequence.dropped;
            for past in [0..start.min(sequence.rows.start), end..sequence.rows.start] {
                if !past.is_empty() {
                    take(&[(index, past, first)], &ops[..1]);
                }
            }
            parts.push((index, sequence.rows.clone(), first));
            first += sequence.rows.end.div_ceil(PAGE_TOKENS);
        }
        let rows = take(&parts, ops);
        let mut out = vec![f32::NEG_INFINITY; rows * places.dst.cols];
        arena.read(&places.dst, 0, &mut out).expect("a value");
        out
    }

    /// Fails where a row is further from the reference than `eps` of its largest value. What the reference makes
    /// no number must be none; the row's other elements may be none then, too.
    fn assert_agrees(&self, sequences: &[Attending], none: &[NoNumber], eps: f32) {
        let cols = self.heads.dim;
        let (found, want) = (self.attend(&cuda(), sequences, none), self.attend(&Reference, sequences, none));
        let what = format!("{:?} {:?} window {:?}", self.heads, self.dtype, self.window);
        let mut nowhere = want.iter().all(|x| !x.is_nan());
        for (row, (found, want)) in found.chunks(cols).zip(want.chunks(cols)).enumerate() {
            let most = want.iter().filter(|x| x.is_finite()).fold(0.0f32, |most, x| most.max(x.abs()));
            let none = want.iter().any(|x| x.is_nan());
            nowhere |= none;
            for (found, want) in found.iter().zip(want) {
                let right = if want.is_nan() || none && found.is_nan() {
                    found.is_nan()
                } else {
                    (found - want).abs() <= eps * most
                };
                assert!(right, "{what}: {found} for {want} of row and head {row}, at most {most}");
            }
        }
        assert!(nowhere || none.is_empty(), "{what}: nothing that is no number was seen");
    }
}

/// Heads of several kernels; f16 and int8.
fn each_kernel(window: Option<u32>) -> impl Iterator<Item = Decode> {
    let heads = [(4, 1, 64), (3, 1, 128), (2, 1, 256), (2, 2, 40), (7, 1, 72)];
    heads.into_iter().flat_map(move |(query, kv, dim)| {
        [KvDtype::F16, KvDtype::Int8].map(|dtype| {
            let heads = Heads { query, kv, dim };
            Decode { heads, dtype, norms: false, rope: None, window }
        })
    })
}

#[test]
fn pasts_that_windows_clip_agree_with_the_reference() {
    let decodes = [
        Attending::new(700..701),
        Attending::new(1300..1301).without(32..1104).within(190, 20),
        Attending::new(505..506).without(16..336).within(150, 4),
        Attending::new(64..65).within(1, 1),
        Attending::new(0..1),
    ];
    let prompts = [
        Attending::new(0..150),
        Attending::new(600..690).without(48..400).within(150, 20),
        Attending::new(33..35),
        Attending::new(130..221).within(66, 3),
        Attending::new(40..41),
    ];
    for window in [None, Some(40), Some(300)] {
        for decode in each_kernel(window) {
            decode.assert_agrees(&decodes, &[], 1e-4);
            decode.assert_agrees(&prompts, &[], if decode.dtype == KvDtype::Int8 { 0.03 } else { 6e-3 });
        }
    }
}

#[test]
fn a_past_of_64_splits_agrees_with_the_reference() {
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        let heads = Heads { query: 2, kv: 1, dim: 8 };
        let decode = Decode { heads, dtype, norms: false, rope: None, window: None };
        decode.assert_agrees(&[Attending::new(4120..4121), Attending::new(17..18)], &[], 1e-4);
    }
}

/// In tiles that all rows see wholly, in those that the diagonal or a window cuts, in decodes.
#[test]
fn a_value_that_is_no_number_makes_none_of_what_sees_it_and_of_nothing_else() {
    let sequences = [
        Attending::new(0..150),
        Attending::new(130..221),
        Attending::new(600..690).without(48..400).within(150, 20),
        Attending::new(90..91),
        Attending::new(80..81),
    ];
    let at = |sequence, position, element, key| NoNumber { sequence, position, element, key };
    let none = [
        at(0, 20, 3, false),
        at(0, 70, 5, false),
        at(0, 100, 7, true),
        at(1, 3, 1, false),
        at(2, 610, 6, false),
        at(3, 11, 2, true),
    ];
    for window in [None, Some(40)] {
        for decode in each_kernel(window) {
            decode.assert_agrees(&sequences, &none, if decode.dtype == KvDtype::Int8 { 0.03 } else { 6e-3 });
        }
    }
}

/// How many blocks share a past shows in what they hand over: a layer's window is cut before it is shared out.
#[test]
fn pages_that_a_layer_does_not_see_are_no_blocks_share() {
    // A kernel of its own, whose count no other test of this program changes meanwhile.
    let (heads, kernel) = (Heads { query: 4, kv: 1, dim: 136 }, "attention_decode_4_32");
    for (past, window, splits) in [(4095, None, 32), (4095, Some(513), 9), (4095, Some(17), 1), (63, None, 1)]
    {
        let decode = Decode { heads, dtype: KvDtype::F16, norms: false, rope: None, window };
        let emulator = emulator();
        let written = || match emulator.statistics().get(kernel) {
            Some(kernel) => kernel.sum.global_bytes_written as usize,
            None => 0,
        };
        let before = written();
        decode.attend(&cuda(), &[Attending::new(past..past + 1)], &[]);
        if emulator.is_emulated() {
            // A token's key and value; of each split sums, maximum, sum of weights, arrival; the result; a count reset.
            let (appended, part, result) = (2 * 2 * 136, 4 * 4 * (136 + 2) + 4, 4 * 4 * 136);
            let shared = if splits > 1 { splits * part + 4 } else { 0 };
            assert_eq!(written() - before, appended + shared + result, "{past} keys, window {window:?}");
        }
    }
}
