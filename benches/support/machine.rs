//! A CPU backend with the memory of a step.

use ottava::backend::cpu::Cpu;
use ottava::backend::{Backend, Frame, KvLayout, Op, Place, Precision, Rows, StepInput, StepLimits, Weights};

/// Lays values of a step out in an arena, one behind the other.
pub struct Layout {
    /// Most rows of a value.
    pub tokens: usize,
    /// Bytes so far.
    pub bytes: usize,
}

impl Layout {
    pub fn new(tokens: usize) -> Layout {
        Layout { tokens, bytes: 0 }
    }

    /// The next value, a row a token.
    pub fn place(&mut self, cols: usize) -> Place {
        let offset = self.bytes;
        self.bytes = (offset + self.tokens * cols * size_of::<f32>()).next_multiple_of(64);
        Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 }
    }
}

/// What operations need besides weights.
pub struct Room<'o> {
    pub layout: Layout,
    pub kv: KvLayout,
    pub pages: usize,
    /// All that will run.
    pub ops: &'o [Op],
}

/// Operations run on it, a step's as a plan would run them.
pub struct Machine {
    pub cpu: Cpu,
    pub weights: Weights<Cpu>,
    pub step: StepInput,
    arena: <Cpu as Backend>::Arena,
    kv: <Cpu as Backend>::KvPool,
}

impl Machine {
    pub fn new(cpu: Cpu, weights: Weights<Cpu>, step: StepInput, room: Room<'_>) -> Machine {
        let tokens = room.layout.tokens;
        let limits = StepLimits { tokens_max: tokens, outputs_max: tokens };
        let arena = cpu.arena(room.layout.bytes, room.ops, limits).expect("memory");
        let kv = cpu.kv_pool(room.kv, room.pages).expect("memory");
        Machine { cpu, weights, step, arena, kv }
    }

    pub fn run(&mut self, ops: &[Op]) {
        let Machine { cpu, weights, arena, kv, step } = self;
        for op in ops {
            cpu.execute(op, &mut Frame { weights, arena, kv, step }).expect("a valid operation");
        }
    }

    pub fn write(&mut self, place: &Place, values: &[f32]) {
        self.cpu.write(&mut self.arena, place, values).expect("a place in the arena");
    }

    /// All rows of a value.
    pub fn read(&self, place: &Place) -> Vec<f32> {
        let mut out = vec![f32::NAN; place.rows.count(&self.step) * place.cols];
        self.cpu.read(&self.arena, place, 0, &mut out).expect("a place in the arena");
        out
    }
}
