//! A session's run allocates nothing, on any thread: counted by the allocator, over the CPU
//! backend, for a prompt and for decodes. Nor do the engine's steps around it, while sequences decode.
//! Without the test harness, whose threads allocate too.

#[path = "layer/allocations.rs"]
mod allocations;
mod layer;

use std::num::NonZeroUsize;

use layer::Shape;
use ottava::TokenId;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::backend::{Backend, BackendError, PageMemory, Weights};
use ottava::engine::{EngineConfig, Handle, TokenRequest};
use ottava::graph::{CompileOptions, DeltaOperands, Fusion, Graph};
use ottava::ir::{
    DeltaHeads, Heads, KvDtype, KvLayout, PageId, Precision, RowSampling, Rows, StateLayout, StateSlot,
    StateSlots, StepInput, StepLimits, StepSequence,
};
use ottava::model::{Decoder, DecoderMemory, ModelError};
use ottava::session::Session;

const SHAPE: Shape = Shape {
    width: 64,
    hidden: 192,
    heads: Heads { query: 4, kv: 2, dim: 16 },
    vocab: 50,
    layers: 1,
    group: 32,
    window: Some(30),
};

fn main() {
    for (threads, compute, dtype) in
        [(1, Compute::Int8, KvDtype::F16), (2, Compute::Int8, KvDtype::Int8), (2, Compute::F32, KvDtype::F16)]
    {
        let cpu =
            Cpu::new(&CpuOptions { threads: NonZeroUsize::new(threads), compute, ..CpuOptions::default() })
                .unwrap();
        let limits = StepLimits { tokens_max: 40, outputs_max: 1 };
        let mut session = SHAPE.session(cpu, limits, dtype, 4);
        let steps = [(0, 40), (40, 1), (41, 1), (42, 7)].map(|(first, tokens)| SHAPE.step(first, tokens));
        let mut out = [0.0; SHAPE.vocab];
        let mut run = |steps: &[StepInput]| {
            for step in steps {
                session.main().run(step).unwrap();
                session.main().run_timed(step, |_, _| {}).unwrap();
                session.read("probabilities", 0, &mut out).unwrap();
                assert!((out.iter().sum::<f32>() - 1.0).abs() < 1e-4, "a softmax adds up");
            }
        };
        run(&steps);
        let before = allocations::count();
        run(&steps);
        assert_eq!(allocations::count(), before, "{threads} threads, {compute:?}");
    }
    states_are_carried_in_place();
    for (runs_ahead, slots) in [(false, 0), (true, 0), (true, 6)] {
        steps_around_a_decoder(runs_ahead, slots);
    }
    allocations::assert_counted();
}

/// A convolution and a delta rule, of a prompt and of its next token.
fn states_are_carried_in_place() {
    let mut g = Graph::new();
    let heads = DeltaHeads { key: 1, value: 2, key_dim: 8, value_dim: 12 };
    let ((rows, cols), wide) = (heads.state(), heads.value * heads.value_dim);
    let mut input = |name, cols| g.input(name, Rows::Tokens, cols).unwrap();
    let ([q, k], v, [decay, beta]) = (
        ["q", "k"].map(|name| input(name, 8)),
        input("v", wide),
        ["decay", "beta"].map(|name| input(name, 2)),
    );
    let (past, state) = (g.state("past", 2, wide).unwrap(), g.state("state", rows, cols).unwrap());
    let weight = g.vector("weight", 3 * wide).unwrap();
    let v = g.short_conv(v, weight, past).unwrap();
    let y = g.gated_delta(DeltaOperands { q, k, v, decay, beta }, heads, 1.0, state).unwrap();
    g.output("y", y).unwrap();
    let cpu = Cpu::new(&CpuOptions { threads: NonZeroUsize::new(2), ..CpuOptions::default() }).unwrap();
    let options = CompileOptions {
        limits: StepLimits { tokens_max: 9, outputs_max: 1 },
        element_bytes: &|_| 4,
        fuse: Fusion::On,
        activations: Precision::F32,
    };
    let plan = g.compile(&options).unwrap();
    let weights =
        Weights { matrices: vec![], vectors: vec![cpu.upload_vector(&vec![1.0; 3 * wide]).unwrap()] };
    let mut session = Session::new(cpu, plan, weights, None).unwrap().with_states(2).unwrap();
    let step = |tokens: u32, read: Option<StateSlot>, write: u32| StepInput {
        tokens: vec![TokenId(0); tokens as usize],
        positions: (0..tokens).collect(),
        sequences: vec![StepSequence { rows: 0..tokens, pages: 0..0, window: None }],
        states: vec![StateSlots { read, write: StateSlot(write) }],
        ..StepInput::default()
    };
    let steps = [step(9, None, 0), step(1, Some(StateSlot(0)), 1)];
    let mut run = || steps.iter().for_each(|step| session.main().run(step).unwrap());
    run();
    let before = allocations::count();
    run();
    assert_eq!(allocations::count(), before, "states");
}

/// Two sequences decode at once; the buffer holds as many events as a queue has room for at first.
fn steps_around_a_decoder(runs_ahead: bool, slots: usize) {
    let config = EngineConfig { event_buffer: 4, ..EngineConfig::default() };
    let handle = Handle::spawn(Same { steps: 0, runs_ahead, slots }, config).unwrap();
    let prompts = [1, 2].map(|token| TokenRequest::new(vec![TokenId(token); 20], 1000));
    let mut answers = prompts.map(|prompt| handle.submit(prompt).unwrap());
    let mut read = |tokens: usize| {
        for _ in 0..tokens {
            answers.iter_mut().for_each(|answer| assert!(answer.recv().unwrap().is_ok()));
        }
    };
    // Buffers for page tables have grown by then.
    read(600);
    let before = allocations::count();
    read(300);
    assert_eq!(allocations::count(), before, "runs ahead: {runs_ahead}, {slots} slots of state");
}

/// A decoder that always favours the same token.
#[derive(Debug)]
struct Same {
    steps: u64,
    runs_ahead: bool,
    slots: usize,
}

impl Decoder for Same {
    fn limits(&self) -> StepLimits {
        StepLimits { tokens_max: 64, outputs_max: 8 }
    }

    fn vocab_size(&self) -> usize {
        SHAPE.vocab
    }

    fn context_max(&self) -> usize {
        2000
    }

    fn pages(&self) -> usize {
        200
    }

    fn kv_layout(&self) -> KvLayout {
        KvLayout { layers: 1, kv_heads: 1, head_dim: 2, dtype: KvDtype::F16 }
    }

    fn states(&self) -> StateLayout {
        StateLayout { elements: 1, slots: self.slots }
    }

    fn memory(&self) -> DecoderMemory {
        DecoderMemory::default()
    }

    fn step(&mut self, _: &StepInput) -> Result<(), ModelError> {
        self.steps += 1;
        Ok(())
    }

    fn logits(&self, _: usize, out: &mut [f32]) -> Result<(), ModelError> {
        out.fill(0.0);
        out[3] = 1.0;
        Ok(())
    }

    fn samples(&self, _: &RowSampling) -> bool {
        self.runs_ahead
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn sampled(&mut self, _: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError> {
        out.fill(Some(TokenId(3)));
        Ok(())
    }

    fn kv(&self) -> &dyn PageMemory {
        self
    }

    fn kv_mut(&mut self) -> &mut dyn PageMemory {
        self
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

impl PageMemory for Same {
    fn copy_page(&mut self, _: PageId, _: PageId) -> Result<(), BackendError> {
        Ok(())
    }

    fn export_page(&self, _: PageId, _: &mut Vec<u8>) -> Result<(), BackendError> {
        Ok(())
    }

    fn import_page(&mut self, _: PageId, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
}
