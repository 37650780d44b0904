//! A row of the table: one or several operations with all that they read, the results to compare,
//! and how far they may be from the reference; and how any backend runs it.

use std::collections::BTreeSet;

use half::f16;
use ottava::TokenId;
use ottava::backend::{ArenaMemory, Backend, BackendError, Frame, PageMemory, Weights};
use ottava::ir::{
    Access, KvDtype, KvLayout, MatrixId, Op, PAGE_TOKENS, PageId, PageRef, Place, Precision, Rows, StateSlot,
    StateSlots, StepInput, StepLimits, StepSequence, VectorId, Window,
};
use ottava::quant::{Bits, Codes, QuantMatrix, QuantParts, WeightMatrix, code_bytes_per_row};

/// Bytes that the widest backend takes for an element.
const ELEMENT_BYTES: usize = 8;
/// Elements between a value and the next at least, and how many of them are looked at at most.
const GAP: usize = 8;
const GUARD_MAX: usize = 64;
const PAGES: usize = 64;
const TOKENS_MAX: usize = 1024;
/// A byte of pages that a step does not name: as f16, elements and scales of it are no numbers.
const FOREIGN: u8 = 0xff;

/// A reproducible stream of numbers in (−2, 2), with an outlier now and then.
pub struct Numbers(pub u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn take(&mut self, n: usize) -> Vec<f32> {
        let value = || {
            let value = self.next() as f32 / (1u32 << 29) as f32 - 2.0;
            if self.next().is_multiple_of(61) { 20.0 * value } else { value }
        };
        std::iter::repeat_with(value).take(n).collect()
    }

    /// Where a distribution is inverted.
    pub fn draw(&mut self) -> u64 {
        u64::from(self.next()) << 33 | u64::from(self.next()) << 2
    }

    pub fn matrix(
        &mut self,
        [rows, cols]: [usize; 2],
        kind: impl Into<Codes>,
        group: usize,
        mins: bool,
    ) -> WeightMatrix {
        let kind = kind.into();
        let count = rows * cols.div_ceil(group);
        let mut code = || match kind {
            Codes::Int(Bits::Four | Bits::Eight) | Codes::E2m1 => self.next() as u8,
            // All but the two of NaN.
            Codes::E4m3 => ((self.next() % 2) << 7) as u8 | (self.next() % 127) as u8,
            Codes::Int(bits @ (Bits::Five | Bits::Six)) => {
                (bits.codes(mins).start() + (self.next() % (1 << bits.count())) as i32) as u8
            }
        };
        let codes = (0..rows * code_bytes_per_row(kind, cols)).map(|_| code()).collect();
        let mut halves = |size: f32| -> Vec<f16> {
            self.take(count).iter().map(|x| f16::from_f32(x.clamp(-2.0, 2.0) * size)).collect()
        };
        let (scales, mins) = (halves(0.01), mins.then(|| halves(0.05)));
        let parts = QuantParts { rows, cols, kind, group, codes, scales, mins };
        WeightMatrix::Quant(QuantMatrix::new(parts).expect("parts that fit"))
    }
}

/// A row of the table.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "each program looks at its backends' tolerances")]
pub struct Case {
    pub name: String,
    pub step: StepInput,
    pub kv: KvLayout,
    pub vectors: Vec<Vec<f32>>,
    pub matrices: Vec<WeightMatrix>,
    /// What the arena holds at first; destinations are poisoned with NaN.
    pub values: Vec<(Place, Vec<f32>)>,
    /// What the slots of state hold at first, each as many elements; they are compared, too.
    pub slots: Vec<Vec<f32>>,
    pub ops: Vec<Op>,
    pub results: Vec<Place>,
    /// Allowed error as a fraction of the largest magnitude in the result's row, in f32.
    pub eps: f64,
    /// The same where activations are quantised to int8.
    pub eps_int8: f64,
    /// The same where weights and activations are multiplied in f16.
    pub eps_f16: f64,
}

impl Case {
    pub fn new(name: impl Into<String>) -> Case {
        Case {
            name: name.into(),
            step: StepInput::default(),
            kv: KvLayout { layers: 1, kv_heads: 1, head_dim: 8, dtype: KvDtype::F16 },
            vectors: vec![],
            matrices: vec![],
            values: vec![],
            slots: vec![],
            ops: vec![],
            results: vec![],
            eps: 1e-6,
            eps_int8: 1e-6,
            eps_f16: 1e-6,
        }
    }

    /// Within `eps` of the reference in either compute mode.
    pub fn within(self, eps: f64) -> Case {
        Case { eps, eps_int8: eps, eps_f16: eps, ..self }
    }

    /// A step of one sequence at these positions, on pages in falling order.
    pub fn at(mut self, positions: std::ops::Range<u32>) -> Case {
        self.sequence(positions, None);
        self
    }

    /// One more sequence in the step, on pages of its own.
    pub fn sequence(&mut self, positions: std::ops::Range<u32>, window: Option<Window>) {
        let step = &mut self.step;
        let (row, first) = (step.tokens.len() as u32, step.pages.len() as u32);
        let count = positions.end.div_ceil(PAGE_TOKENS as u32);
        let page =
            |i: u32| PageRef { page: PageId(PAGES as u32 - 1 - first - i), start: i * PAGE_TOKENS as u32 };
        step.pages.extend((0..count).map(page));
        step.tokens.extend(positions.clone().map(|p| TokenId(p * 7 % 11)));
        step.positions.extend(positions);
        let rows = row..step.tokens.len() as u32;
        step.sequences.push(StepSequence { rows, pages: first..first + count, window });
    }

    /// One more sequence, whose past is the sequence before: it has the same pages, and more where
    /// it needs them.
    pub fn continued(&mut self, positions: std::ops::Range<u32>, window: Option<Window>) {
        let past = self.step.sequences.last().map_or(0..0, |sequence| sequence.pages.clone());
        let first = self.step.pages.len();
        self.sequence(positions, window);
        for (own, past) in (first..self.step.pages.len()).zip(past) {
            self.step.pages[own] = self.step.pages[past as usize];
        }
    }

    /// Rows of tokens, whose sequences have their state in these slots: what they read, and what they write.
    pub fn on_slots(mut self, slots: &[(Option<u32>, u32)]) -> Case {
        let slots = slots
            .iter()
            .map(|&(read, write)| StateSlots { read: read.map(StateSlot), write: StateSlot(write) });
        self.step.states = slots.collect();
        self
    }

    fn place(&mut self, rows: Rows, cols: usize, values: Vec<f32>) -> Place {
        let offset = self.bytes();
        let place = Place { offset, rows, cols, precision: Precision::F32 };
        self.values.push((place, values));
        place
    }

    /// An input, `[values.len() / cols, cols]`.
    pub fn input(&mut self, values: &[f32], cols: usize) -> Place {
        self.place(Rows::Fixed(values.len() / cols), cols, values.to_vec())
    }

    /// A destination of poison.
    pub fn output(&mut self, rows: usize, cols: usize) -> Place {
        let place = self.place(Rows::Fixed(rows), cols, vec![f32::NAN; rows * cols]);
        self.results.push(place);
        place
    }

    /// As [`Case::output`], of one row an output of the step.
    pub fn gathered(&mut self, cols: usize) -> Place {
        let place = self.output(self.step.outputs.len(), cols);
        let place = Place { rows: Rows::Outputs, ..place };
        *self.results.last_mut().expect("just pushed") = place;
        place
    }

    pub fn vector(&mut self, values: Vec<f32>) -> VectorId {
        self.vectors.push(values);
        VectorId(self.vectors.len() as u32 - 1)
    }

    pub fn matrix(&mut self, matrix: WeightMatrix) -> MatrixId {
        self.matrices.push(matrix);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// Bytes of arena that the values take, with a gap behind each.
    pub fn bytes(&self) -> usize {
        let end = |(place, values): &(Place, Vec<f32>)| place.offset + (values.len() + GAP) * ELEMENT_BYTES;
        self.values.last().map_or(0, end).next_multiple_of(64)
    }

    /// Pages beside those that the step names.
    fn pages_of_others(&self) -> Vec<PageId> {
        let named: BTreeSet<u32> = self.step.pages.iter().map(|entry| entry.page.0).collect();
        let beside: BTreeSet<u32> = named.iter().flat_map(|page| [page.wrapping_sub(1), page + 1]).collect();
        beside.difference(&named).filter(|&&page| page < PAGES as u32).copied().map(PageId).collect()
    }

    /// Each row of a case whose values all have the same fixed rows, as a case of its own.
    pub fn rows_alone(&self) -> Vec<Case> {
        let counts: Vec<Rows> = self.values.iter().map(|(place, _)| place.rows).collect();
        let same = counts.iter().all(|rows| matches!(rows, Rows::Fixed(n) if *n > 1) && *rows == counts[0]);
        let (true, Some(Rows::Fixed(count))) = (same && self.step.tokens.is_empty(), counts.first()) else {
            return vec![];
        };
        let row_of = |row: usize| {
            let mut case = self.clone();
            for (place, values) in &mut case.values {
                *values = values[row * place.cols..(row + 1) * place.cols].to_vec();
            }
            case.each_place(|place| place.rows = Rows::Fixed(1));
            case
        };
        (0..*count).map(row_of).collect()
    }

    fn each_place(&mut self, mut change: impl FnMut(&mut Place)) {
        self.values.iter_mut().for_each(|(place, _)| change(place));
        self.results.iter_mut().for_each(&mut change);
        for op in &mut self.ops {
            op.visit(&mut |_, place| change(place));
        }
    }
}

/// A value and what lies behind it, as one row.
fn guarded<B: Backend>(backend: &B, place: &Place, len: usize) -> Place {
    let room = (len + GAP) * ELEMENT_BYTES / backend.element_bytes(Precision::F32);
    Place { rows: Rows::Fixed(1), cols: room.min(len + GUARD_MAX), ..*place }
}

/// What a backend holds for a case.
pub struct Bench<'a, B: Backend> {
    backend: &'a B,
    case: &'a Case,
    arena: B::Arena,
    weights: Weights<B>,
    kv: B::KvPool,
    /// The pages beside those of the step, as they were at first.
    foreign: Vec<u8>,
}

impl<'a, B: Backend> Bench<'a, B> {
    pub fn new(backend: &'a B, case: &'a Case) -> Bench<'a, B> {
        let limits = StepLimits { tokens_max: TOKENS_MAX, outputs_max: TOKENS_MAX };
        let mut arena = backend.arena(case.bytes(), &case.ops, limits).expect("an arena");
        for (place, values) in &case.values {
            let guarded = guarded(backend, place, values.len());
            let mut values = values.clone();
            values.resize(guarded.cols, f32::NAN);
            arena.write(&guarded, &values).expect("a value within the arena");
        }
        let matrices = case.matrices.iter().map(|matrix| backend.prepare(matrix));
        let vectors = case.vectors.iter().map(|vector| backend.upload_vector(vector));
        let weights = Weights {
            matrices: matrices.collect::<Result<_, _>>().expect("matrices"),
            vectors: vectors.collect::<Result<_, _>>().expect("vectors"),
        };
        let mut kv = backend.kv_pool(case.kv, PAGES).expect("a pool");
        let mut foreign = vec![];
        for page in case.pages_of_others() {
            kv.import_page(page, &vec![FOREIGN; case.kv.page_bytes()]).expect("a page");
            kv.export_page(page, &mut foreign).expect("a page");
        }
        let elements = case.slots.first().map_or(0, Vec::len);
        // Without states a backend refuses their operations.
        if let Some(states) = kv.states_mut() {
            states.allocate(elements, case.slots.len()).expect("states");
            for (slot, values) in (0..).map(StateSlot).zip(&case.slots) {
                states.write(slot, values).expect("a slot");
            }
        }
        let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut kv, step: &case.step };
        frame.begin(backend).expect("a step within the limits");
        Bench { backend, case, arena, weights, kv, foreign }
    }

    pub fn execute(&mut self, op: &Op) -> Result<(), BackendError> {
        let Bench { backend, case, arena, weights, kv, .. } = self;
        backend.execute(op, &mut Frame { weights, arena, kv, step: &case.step })
    }

    /// Fails if what lies behind values, or in pages beside the step's, is not what it was: no numbers,
    /// so that who only reads it shows, too.
    pub fn assert_the_rest_is_untouched(&self) {
        let Bench { backend, case, arena, kv, foreign, .. } = self;
        for (place, values) in &case.values {
            let guarded = guarded(*backend, place, values.len());
            let mut found = vec![0.0; guarded.cols];
            arena.read(&guarded, 0, &mut found).expect("a value within the arena");
            let untouched = found[values.len()..].iter().all(|x| x.is_nan());
            assert!(untouched, "{}: behind {place:?}", case.name);
        }
        let mut pages = vec![];
        for page in case.pages_of_others() {
            kv.export_page(page, &mut pages).expect("a page");
        }
        assert!(pages == *foreign, "{}: a page that the step does not name", case.name);
    }

    pub fn read(&self, place: &Place) -> Vec<f32> {
        let mut out = vec![0.0; place.rows.count(&self.case.step) * place.cols];
        self.arena.read(place, 0, &mut out).expect("a value within the arena");
        out
    }
}

/// Whether operation `index` of a case lets a row of a source reach other rows of a result than that row's own: each
/// source's last row becomes as its first, and what the operation writes is compared.
#[allow(dead_code, reason = "the reference alone is asked")]
pub fn mixes_rows<B: Backend>(backend: &B, case: &Case, index: usize) -> bool {
    let (op, places) = (&case.ops[index], case.ops[index].places());
    let last = |source: &Place| source.rows.count(&case.step) - 1;
    // Written back in either case: the reference computes with more digits than can be read.
    let results = |source: &Place, changed: bool| -> Vec<Vec<f32>> {
        let mut bench = Bench::new(backend, case);
        case.ops[..index].iter().for_each(|op| bench.execute(op).expect("an earlier operation"));
        let mut values = bench.read(source);
        if changed {
            values.copy_within(..source.cols, last(source) * source.cols);
        }
        bench.arena.write(source, &values).expect("a value within the arena");
        bench.execute(op).expect("the operation");
        places.iter().map(|(_, place)| bench.read(place)).collect()
    };
    let sources =
        places.iter().filter(|(access, place)| *access != Access::Write && place.rows.count(&case.step) > 1);
    sources.into_iter().any(|(_, source)| {
        let own = |row: usize| match op {
            Op::GatherOutputs(_) => case.step.outputs[row] as usize == last(source),
            _ => row == last(source),
        };
        let (before, after) = (results(source, false), results(source, true));
        places.iter().zip(before.iter().zip(&after)).any(|((access, result), (before, after))| {
            let bits = |row: &[f32]| -> Vec<u32> { row.iter().map(|x| x.to_bits()).collect() };
            let rows = before.chunks_exact(result.cols).zip(after.chunks_exact(result.cols)).enumerate();
            let mut others = rows.filter(|(row, _)| !own(*row));
            matches!(access, Access::Write | Access::Update) && others.any(|(_, (a, b))| bits(a) != bits(b))
        })
    })
}

/// The results of a case on a backend, one after the other, and then its slots of state.
pub fn run<B: Backend>(backend: &B, case: &Case) -> Vec<Vec<f32>> {
    let mut bench = Bench::new(backend, case);
    let Bench { arena, weights, kv, .. } = &mut bench;
    let ran = Frame { weights, arena, kv, step: &case.step }.run(backend, &case.ops);
    ran.unwrap_or_else(|(index, error)| panic!("{}: operation {index}: {error}", case.name));
    bench.assert_the_rest_is_untouched();
    let mut results: Vec<_> = case.results.iter().map(|place| bench.read(place)).collect();
    for slot in (0..).map(StateSlot).take(case.slots.len()) {
        let mut found = vec![0.0; case.slots[0].len()];
        bench.kv.states().expect("states").read(slot, &mut found).expect("a slot");
        results.push(found);
    }
    results
}
