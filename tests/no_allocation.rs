//! A session's run allocates nothing, on any thread: counted by the allocator, over the CPU
//! backend, for a prompt and for decodes. Without the test harness, whose threads allocate too.

#[path = "layer/allocations.rs"]
mod allocations;
mod layer;

use std::num::NonZeroUsize;

use layer::Shape;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::ir::{Heads, KvDtype, StepInput, StepLimits};

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
    allocations::assert_counted();
}
