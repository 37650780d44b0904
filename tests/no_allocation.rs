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
use ottava::engine::{EngineConfig, Handle, TokenRequest};
use ottava::ir::{Heads, KvDtype, KvLayout, PageId, RowSampling, StepInput, StepLimits};
use ottava::model::{Decoder, DecoderMemory, ModelError};

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
        let cpu = Cpu::new(&CpuOptions { threads: NonZeroUsize::new(threads), isa: None, compute }).unwrap();
        let limits = StepLimits { tokens_max: 40, outputs_max: 1 };
        let mut session = SHAPE.session(cpu, limits, dtype, 4);
        let steps = [(0, 40), (40, 1), (41, 1), (42, 7)].map(|(first, tokens)| SHAPE.step(first, tokens));
        let mut out = [0.0; SHAPE.vocab];
        let mut run = |steps: &[StepInput]| {
            for step in steps {
                session.run(step).unwrap();
                session.run_timed(step, |_, _| {}).unwrap();
                session.read("probabilities", 0, &mut out).unwrap();
                assert!((out.iter().sum::<f32>() - 1.0).abs() < 1e-4, "a softmax adds up");
            }
        };
        run(&steps);
        let before = allocations::count();
        run(&steps);
        assert_eq!(allocations::count(), before, "{threads} threads, {compute:?}");
    }
    for runs_ahead in [false, true] {
        steps_around_a_decoder(runs_ahead);
    }
    allocations::assert_counted();
}

/// Two sequences decode at once; the buffer holds as many events as a queue has room for at first.
fn steps_around_a_decoder(runs_ahead: bool) {
    let config = EngineConfig { event_buffer: 4, ..EngineConfig::default() };
    let handle = Handle::spawn(Same { steps: 0, runs_ahead }, config).unwrap();
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
    assert_eq!(allocations::count(), before, "runs ahead: {runs_ahead}");
}

/// A decoder that always favours the same token.
struct Same {
    steps: u64,
    runs_ahead: bool,
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

    fn copy_page(&mut self, _: PageId, _: PageId) -> Result<(), ModelError> {
        Ok(())
    }

    fn export_page(&self, _: PageId, _: &mut Vec<u8>) -> Result<(), ModelError> {
        Ok(())
    }

    fn import_page(&mut self, _: PageId, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}
