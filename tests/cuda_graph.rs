//! Recorded steps of the CUDA backend where what they name has moved since: bits are those of the
//! operations one by one. On the emulated driver or, with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[allow(dead_code, reason = "its steps are of one sequence")]
mod layer;

use cuda_emu::{Emulator, InstallOptions};
use layer::Shape;
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::ir::{
    Heads, KvDtype, LogitAdjustment, PAGE_TOKENS, PageId, PageRef, RowSampling, StepInput, StepLimits,
    StepSequence,
};
use ottava::session::Session;

/// With so many tokens that an adjustment for each is more than a step's tables hold at first.
const SHAPE: Shape = Shape {
    width: 64,
    hidden: 72,
    heads: Heads { query: 4, kv: 2, dim: 32 },
    vocab: 600,
    layers: 1,
    group: 32,
    window: None,
};
const SEQUENCES: u32 = 3;
/// Of each sequence: so many that attention over it is split.
const PAST: u32 = 70;
const PAGES_EACH: u32 = 8;
const LIMITS: StepLimits = StepLimits { tokens_max: 80, outputs_max: 4 };

fn session() -> Session<Cuda> {
    let cuda = Cuda::new(&CudaOptions::default());
    let cuda = cuda.unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()));
    SHAPE.session(cuda, LIMITS, KvDtype::F16, (SEQUENCES * PAGES_EACH) as usize)
}

/// One session, whose decodes are recorded, and another that runs the same steps one by one.
struct Both {
    graphs: Session<Cuda>,
    apart: Session<Cuda>,
    /// Tokens of each sequence.
    lengths: [u32; SEQUENCES as usize],
}

impl Both {
    fn new() -> Both {
        let mut both = Both { graphs: session(), apart: session(), lengths: [0; SEQUENCES as usize] };
        (0..SEQUENCES).for_each(|sequence| both.run(sequence..sequence + 1, PAST, 0));
        both
    }

    /// So many more tokens of some sequences, with logits of so many tokens adjusted.
    fn run(&mut self, sequences: std::ops::Range<u32>, tokens: u32, adjusted: u32) {
        let adjust = |id| LogitAdjustment {
            token: TokenId(id),
            bias: 0.5,
            repetition: 1.0,
            penalty: id as f32 / 99.0,
        };
        let mut step = StepInput { adjustments: (0..adjusted).map(adjust).collect(), ..StepInput::default() };
        for sequence in sequences {
            let length = &mut self.lengths[sequence as usize];
            let (row, page) = (step.tokens.len() as u32, step.pages.len() as u32);
            let positions = *length..*length + tokens;
            *length += tokens;
            let pages = length.div_ceil(PAGE_TOKENS as u32);
            step.tokens.extend(positions.clone().map(|p| TokenId((p * 7 + sequence * 13) % 600)));
            step.positions.extend(positions);
            let of = |i| PageRef { page: PageId(sequence * PAGES_EACH + i), start: i * PAGE_TOKENS as u32 };
            step.pages.extend((0..pages).map(of));
            let (rows, pages) = (row..row + tokens, page..page + pages);
            step.outputs.push(rows.end - 1);
            step.sequences.push(StepSequence { rows, pages, window: None });
            step.sampling.push(RowSampling { adjustments: 0..adjusted, ..RowSampling::default() });
        }
        self.graphs.main().run(&step).expect("a step");
        self.apart.main().run_timed(&step, |_, _| {}).expect("the same step");
        let [found, want] = [&mut self.graphs, &mut self.apart].map(|session| results(session, &step));
        assert_eq!(found, want, "{:?} adjusted {adjusted}", self.lengths);
    }
}

/// The probabilities' bits and the sampled tokens of the last step.
fn results(session: &mut Session<Cuda>, step: &StepInput) -> (Vec<u32>, Vec<Option<TokenId>>) {
    let mut values = vec![f32::NAN; step.outputs.len() * SHAPE.vocab];
    session.read("probabilities", 0, &mut values).expect("probabilities");
    let mut sampled = vec![None; step.outputs.len()];
    let step = session.steps();
    session.main().sampled("sampled", step, &mut sampled).expect("tokens");
    (values.into_iter().map(f32::to_bits).collect(), sampled)
}

/// Recordings made and replayed since the start.
fn graphs(emulator: Emulator) -> [u64; 2] {
    let calls = emulator.calls();
    ["cuGraphInstantiateWithFlags", "cuGraphLaunch"].map(|name| calls.get(name).copied().unwrap_or(0))
}

#[test]
fn steps_are_recorded_again_where_their_memory_has_moved() {
    let emulator = cuda_emu::install(&InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator");
    let mut both = Both::new();
    // What is run, and how many of its runs make a recording and replay one.
    let script = [
        ("one sequence: launched, recorded, replayed", 0..1, 0, 3, [1, 2]),
        ("more sequences need more room for parts of their splits", 0..3, 0, 2, [1, 1]),
        ("the first's parts have moved", 0..1, 0, 3, [1, 2]),
        ("a step's tables need more room", 1..2, 600, 3, [1, 2]),
        ("the tables of the second have moved", 0..3, 0, 3, [1, 2]),
        ("nothing has moved", 1..2, 0, 2, [0, 2]),
    ];
    for (what, sequences, adjusted, runs, want) in script {
        let before = graphs(emulator);
        (0..runs).for_each(|_| both.run(sequences.clone(), 1, adjusted));
        if emulator.is_emulated() {
            let after = graphs(emulator);
            assert_eq!([after[0] - before[0], after[1] - before[1]], want, "{what}");
        }
    }
}
