//! A backend with the memory of a step.

use ottava::backend::{ArenaMemory, Backend, Frame, PageMemory, Weights};
use ottava::ir::{KvLayout, Op, PageId, Place, Precision, Rows, StepInput, StepLimits};

/// Lays values of a step out in an arena, one behind the other.
pub struct Layout {
    /// Most rows of a value.
    pub tokens: usize,
    /// Bytes so far.
    pub bytes: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
}

impl Layout {
    pub fn new(tokens: usize) -> Layout {
        Layout { tokens, bytes: 0, element_bytes: size_of::<f32>() }
    }

    /// The next value, a row a token.
    pub fn place(&mut self, cols: usize) -> Place {
        let offset = self.bytes;
        self.bytes = (offset + self.tokens * cols * self.element_bytes).next_multiple_of(64);
        Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 }
    }
}

/// What operations need besides weights.
pub struct Room<'o> {
    pub layout: Layout,
    pub kv: KvLayout,
    pub pages: usize,
    /// All that will run, or an operation that is like all others.
    pub ops: &'o [Op],
}

/// Operations run on it, a step's as a plan would run them.
pub struct Machine<B: Backend> {
    pub weights: Weights<B>,
    pub step: StepInput,
    pub backend: B,
    pub kv_layout: KvLayout,
    arena: B::Arena,
    kv: B::KvPool,
}

impl<B: Backend> Machine<B> {
    pub fn new(backend: B, weights: Weights<B>, step: StepInput, room: Room<'_>) -> Machine<B> {
        let tokens = room.layout.tokens;
        let limits = StepLimits { tokens_max: tokens, outputs_max: tokens };
        let arena = backend.arena(room.layout.bytes, room.ops, limits).expect("memory");
        let kv = backend.kv_pool(room.kv, room.pages).expect("memory");
        Machine { weights, step, backend, kv_layout: room.kv, arena, kv }
    }

    /// Takes up the step, and gives what its operations work on.
    pub fn with_frame<R>(&mut self, work: impl FnOnce(&B, &mut Frame<'_, B>) -> R) -> R {
        let Machine { backend, weights, arena, kv, step, .. } = self;
        let mut frame = Frame { weights, arena, kv, step };
        frame.begin(backend).expect("a step within the limits");
        work(backend, &mut frame)
    }

    /// Runs a step's operations and waits for them.
    pub fn run(&mut self, ops: &[Op]) {
        self.with_frame(|backend, frame| {
            frame.run(backend, ops).expect("valid operations");
            backend.queue().map_or(Ok(()), |queue| queue.wait()).expect("operations that end");
        });
    }

    /// Runs operations one by one, others than a plan's, and waits for them.
    pub fn execute(&mut self, ops: &[Op]) {
        self.with_frame(|backend, frame| {
            ops.iter().for_each(|op| backend.execute(op, frame).expect("a valid operation"));
            backend.queue().map_or(Ok(()), |queue| queue.wait()).expect("operations that end");
        });
    }

    /// Gives all pages the same bytes.
    pub fn fill_pages(&mut self, pages: usize, bytes: &[u8]) {
        for page in 0..pages as u32 {
            self.kv.import_page(PageId(page), bytes).expect("a page's bytes");
        }
    }

    pub fn write(&mut self, place: &Place, values: &[f32]) {
        self.arena.write(place, values).expect("a place in the arena");
    }

    /// All rows of a value.
    pub fn read(&self, place: &Place) -> Vec<f32> {
        let mut out = vec![f32::NAN; place.rows.count(&self.step) * place.cols];
        self.arena.read(place, 0, &mut out).expect("a place in the arena");
        out
    }
}
