//! Batch-invariant mode of the CUDA backend: a token's results have the bits of its sequence alone,
//! token by token, whatever shares its steps and however its prompt is cut. On the emulated driver or,
//! with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/agree.rs"]
#[allow(dead_code, reason = "the table is held against the reference elsewhere")]
mod agree;
#[path = "op_table/case.rs"]
mod case;
#[allow(dead_code, reason = "its steps are of one sequence")]
mod layer;
#[path = "op_table/table.rs"]
#[allow(dead_code, reason = "nothing is refused here")]
mod table;

use std::collections::BTreeMap;
use std::ops::Range;

use agree::assert_rows_alone;
use layer::Shape;
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::ir::{Heads, KvDtype, PAGE_TOKENS, PageId, PageRef, StepInput, StepLimits, StepSequence, Window};
use table::large;

/// More columns than eight units of 128, and a tail.
const SHAPE: Shape = Shape {
    width: 1096,
    hidden: 72,
    heads: Heads { query: 4, kv: 2, dim: 32 },
    vocab: 50,
    layers: 1,
    group: 32,
    window: None,
};
/// Tokens of the sequences: of one, three and seven pages, the last past one split of attention.
const LENGTHS: [u32; 4] = [100, 4, 40, 33];
const PAGES_EACH: u32 = 7;
const LIMITS: StepLimits = StepLimits { tokens_max: 80, outputs_max: 80 };

fn emulator() -> cuda_emu::Emulator {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator")
}

fn cuda(batch_invariant: bool) -> Cuda {
    emulator();
    let options = CudaOptions { batch_invariant, ..CudaOptions::default() };
    Cuda::new(&options).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

/// Positions of a sequence.
type Part = (u32, Range<u32>);

/// A step, without the pages that a window of the sequences has left behind.
fn step(parts: &[Part], window: Option<Window>) -> StepInput {
    let mut step = StepInput::default();
    for (sequence, positions) in parts {
        let (row, table) = (step.tokens.len() as u32, step.pages.len() as u32);
        let kept = |page: &PageRef| {
            let sees = |window: Window| {
                page.start < window.sinks
                    || page.start + PAGE_TOKENS as u32 + window.window > positions.start + 1
            };
            window.is_none_or(sees)
        };
        let token = |position: u32| TokenId((position * 7 + sequence * 13) % SHAPE.vocab as u32);
        step.tokens.extend(positions.clone().map(token));
        step.positions.extend(positions.clone());
        let page =
            |i: u32| PageRef { page: PageId(sequence * PAGES_EACH + i), start: i * PAGE_TOKENS as u32 };
        step.pages.extend((0..positions.end.div_ceil(PAGE_TOKENS as u32)).map(page).filter(kept));
        let (rows, pages) = (row..step.tokens.len() as u32, table..step.pages.len() as u32);
        step.outputs.extend(rows.clone());
        step.sequences.push(StepSequence { rows, pages, window });
    }
    step
}

/// The bits of the probabilities that each row of the steps gives, by sequence and position.
fn probabilities(
    batch_invariant: bool,
    (dtype, window): (KvDtype, Option<Window>),
    steps: &[Vec<Part>],
) -> BTreeMap<(u32, u32), Vec<u32>> {
    let pages = LENGTHS.len() * PAGES_EACH as usize;
    let mut session = SHAPE.session(cuda(batch_invariant), LIMITS, dtype, pages);
    let mut found = BTreeMap::new();
    for parts in steps {
        session.main().run(&step(parts, window)).expect("a step");
        let rows = parts.iter().flat_map(|(sequence, positions)| positions.clone().map(|p| (*sequence, p)));
        for (row, key) in rows.enumerate() {
            let mut values = vec![f32::NAN; SHAPE.vocab];
            session.read("probabilities", row, &mut values).expect("probabilities");
            assert!((values.iter().sum::<f32>() - 1.0).abs() < 1e-4, "a softmax adds up");
            assert!(found.insert(key, values.iter().map(|x| x.to_bits()).collect()).is_none());
        }
    }
    found
}

/// Each sequence by itself, token by token.
fn alone() -> Vec<Vec<Part>> {
    let tokens = |(sequence, length): (usize, u32)| (0..length).map(move |p| (sequence as u32, p..p + 1));
    LENGTHS.into_iter().enumerate().flat_map(tokens).map(|part| vec![part]).collect()
}

/// In steps of 1 to 75 rows: prompts whole and cut, beside each other and beside decodes.
fn mixed() -> Vec<Vec<Part>> {
    vec![
        vec![(2, 0..5)],
        vec![(0, 0..33), (1, 0..1), (2, 5..6)],
        vec![(3, 0..33)],
        vec![(0, 33..70), (1, 1..2), (2, 6..39)],
        vec![(0, 70..71), (1, 2..3), (2, 39..40)],
        vec![(1, 3..4)],
        vec![(0, 71..88)],
        vec![(0, 88..100)],
    ]
}

#[test]
fn a_token_has_the_bits_of_its_sequence_alone() {
    let window = Some(Window { window: 20, sinks: 3 });
    for (dtype, window, seeds) in
        [(KvDtype::F16, None, 0..3), (KvDtype::Int8, None, 0..1), (KvDtype::F16, window, 0..1)]
    {
        let want = probabilities(true, (dtype, window), &alone());
        assert_eq!(want.len() as u32, LENGTHS.iter().sum::<u32>());
        for seed in seeds {
            // A real card has an order of its own.
            let _ = emulator().set_seed(seed);
            let found = probabilities(true, (dtype, window), &mixed());
            assert!(want.keys().eq(found.keys()), "both have every token");
            let other: Vec<_> = want.keys().filter(|key| want[key] != found[key]).collect();
            assert!(
                other.is_empty(),
                "{dtype:?}, {window:?}, seed {seed}: other bits at (sequence, position) {other:?}"
            );
        }
    }
}

/// What the mode is for: were it not needed, it could go.
#[test]
fn without_the_mode_bits_depend_on_the_batch() {
    let whole = vec![vec![(0, 0..33)]];
    let alone = (0..33).map(|position| vec![(0, position..position + 1)]).collect();
    let [alone, whole] =
        [alone, whole].map(|steps: Vec<_>| probabilities(false, (KvDtype::F16, None), &steps));
    assert!(alone.keys().eq(whole.keys()) && alone != whole);
}

#[test]
fn a_row_of_many_has_the_bits_it_has_alone() {
    let cuda = cuda(true);
    let mut rows = 0;
    for case in table::cases() {
        let count = case.rows_alone().len();
        // Some of very many: the first, the last of a block, and what lies between.
        let run = assert_rows_alone(&cuda, &case, if count > 100 { 21 } else { 1 });
        rows += if count > 32 { run } else { 0 };
    }
    // Many in chunks, and one at once.
    for case in large::long_rows() {
        assert_rows_alone(&cuda, &case, 31);
    }
    assert!(rows > 400, "only {rows} rows of many were run alone");
}
