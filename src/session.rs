//! The session: a plan, its weights and its memory on one backend; runs step after step.

mod error;
mod named;

use std::time::Instant;

use crate::backend::{ArenaMemory, Backend, BackendError, Frame, PageMemory, PreparedMatrix, Weights};
use crate::graph::{KvShape, Plan};
use crate::ir::{
    Counting, KvDtype, KvLayout, MatrixId, MatrixSize, Op, OpTime, PageId, Place, Rows, StateLayout,
    StateSlot, StepError, StepInput,
};
use crate::token::TokenId;
pub use error::SessionError;
pub use named::NamedWeights;

/// The memory for keys and values that a session allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvMemory {
    /// The first shape of [`Plan::kv`] with a dtype; layers of other shapes are stored alike.
    pub layout: KvLayout,
    /// Pages of it.
    pub pages: usize,
}

/// A plan bound to a backend. Everything is allocated when it is made; [`Session::run`] allocates
/// nothing.
#[derive(Debug)]
pub struct Session<B: Backend> {
    backend: B,
    plan: Plan,
    weights: Weights<B>,
    arena: B::Arena,
    kv: B::KvPool,
    kv_memory: KvMemory,
    /// Of all layers.
    page_bytes: usize,
    state_slots: usize,
    /// Steps that the backend has taken up, and outputs of the last one.
    steps: u64,
    outputs: usize,
}

impl<B: Backend> Session<B> {
    /// Allocates the arena and the KV pool. A plan without attention needs no `kv`.
    ///
    /// # Errors
    /// [`SessionError::Binding`] if the number of weights or the KV layout is not what the plan
    /// asks for, [`SessionError::Backend`] if there is no memory.
    pub fn new(
        backend: B,
        plan: Plan,
        weights: Weights<B>,
        kv: Option<KvMemory>,
    ) -> Result<Self, SessionError> {
        Session::sized(backend, plan, weights, |_| Ok(kv))
    }

    /// As [`Session::new`]; the KV memory is sized when all else is allocated.
    pub(crate) fn sized<E: From<SessionError>>(
        backend: B,
        plan: Plan,
        weights: Weights<B>,
        size: impl FnOnce(&B) -> Result<Option<KvMemory>, E>,
    ) -> Result<Self, E> {
        expect_count("matrices", plan.matrices().len(), weights.matrices.len())?;
        expect_count("vectors", plan.vectors().len(), weights.vectors.len())?;
        let refused = SessionError::from;
        let arena = backend.arena(plan.arena_bytes(), plan.ops(), plan.limits()).map_err(refused)?;
        let kv_memory = kv_memory(&plan, size(&backend)?)?;
        let mut kv = backend.kv_pool(kv_memory.layout, kv_memory.pages).map_err(refused)?;
        let mut page_bytes = kv_memory.layout.page_bytes();
        for &KvShape { layers, kv_heads, head_dim } in plan.kv().iter().skip(1) {
            let others = KvLayout { layers, kv_heads, head_dim, dtype: kv_memory.layout.dtype };
            kv.add_layers(others).map_err(refused)?;
            page_bytes = page_bytes.saturating_add(others.page_bytes());
        }
        Ok(Session {
            backend,
            plan,
            weights,
            arena,
            kv,
            kv_memory,
            page_bytes,
            state_slots: 0,
            steps: 0,
            outputs: 0,
        })
    }

    /// Allocates `slots` slots for the states of sequences: a plan that has states runs no step without.
    ///
    /// # Errors
    /// [`SessionError::Backend`] if there is no memory, or the backend keeps no states.
    pub fn with_states(mut self, slots: usize) -> Result<Self, SessionError> {
        let states = self.kv.states_mut().ok_or_else(|| no_states(&self.backend))?;
        states.allocate(self.plan.state_elements(), slots)?;
        self.state_slots = slots;
        Ok(self)
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The backend that it runs on.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What it has for keys and values.
    pub fn kv_memory(&self) -> KvMemory {
        self.kv_memory
    }

    /// The bound weights.
    pub fn weights(&self) -> &Weights<B> {
        &self.weights
    }

    /// Checks the step, then runs the plan over it. A plan without attention takes any rows: it
    /// looks at neither sequences nor pages.
    ///
    /// # Errors
    /// [`SessionError::Backend`] if the step is malformed: nothing was run. [`SessionError::Op`] if
    /// the backend failed: what the step was to write is undefined.
    pub fn run(&mut self, step: &StepInput) -> Result<(), SessionError> {
        self.check(step).map_err(BackendError::from)?;
        let Session { backend, plan, weights, arena, kv, steps, outputs, .. } = self;
        let mut frame = Frame { weights, arena, kv, step };
        frame.begin(backend)?;
        (*steps, *outputs) = (*steps + 1, step.outputs.len());
        frame.run(backend, plan.ops()).map_err(|(index, source)| op_error(plan, index, source))
    }

    /// As [`Session::run`], operation by operation: each is waited for, and then `seen` is told what it
    /// took. A backend that does several operations in one does them apart here.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_timed(
        &mut self,
        step: &StepInput,
        mut seen: impl FnMut(&Op, OpTime),
    ) -> Result<(), SessionError> {
        self.check(step).map_err(BackendError::from)?;
        let Session { backend, plan, weights, arena, kv, kv_memory, steps, outputs, .. } = self;
        let (backend, weights): (&B, &Weights<B>) = (backend, weights);
        let matrix = |id: MatrixId| {
            let both = plan.matrices().get(id.0 as usize).zip(weights.matrices.get(id.0 as usize));
            both.map_or_else(MatrixSize::default, |(spec, matrix)| MatrixSize {
                rows: spec.rows,
                cols: spec.cols,
                bytes: matrix.bytes(),
                int8: matrix.multiplies_int8(),
            })
        };
        let counting = Counting { step, kv: kv_memory.layout.dtype, matrix: &matrix };
        let mut frame = Frame { weights, arena, kv, step };
        frame.begin(backend)?;
        (*steps, *outputs) = (*steps + 1, step.outputs.len());
        for (index, op) in plan.ops().iter().enumerate() {
            let start = Instant::now();
            let ran = backend.execute(op, &mut frame);
            let ran = ran.and_then(|()| backend.queue().map_or(Ok(()), |queue| queue.wait()));
            let total = start.elapsed();
            ran.map_err(|source| op_error(plan, index, source))?;
            seen(op, OpTime { runs: 1, total, work: op.work(&counting) });
        }
        Ok(())
    }

    fn check(&self, step: &StepInput) -> Result<(), StepError> {
        let limits = self.plan.limits();
        let vocab = self.plan.vocab().unwrap_or(usize::MAX);
        let runs_ahead = self.backend.queue().is_some();
        if let Some(fed) = step.fed.iter().find(|fed| !runs_ahead || fed.output as usize >= self.outputs) {
            let backend = self.backend.describe();
            return Err(StepError(format!("{fed:?} after a step of {} outputs on {backend}", self.outputs)));
        }
        let stateful = self.plan.state_elements() > 0;
        if stateful {
            step.check_states(self.state_slots)?;
        }
        if !self.plan.kv().is_empty() {
            return step.check(limits, self.kv_memory.pages, vocab);
        }
        // Fixed rows belong to no sequence.
        let by_sequence = |op: &Op| match op {
            Op::RowAttention(_) => true,
            Op::MeanRows(mean) => mean.dst.rows == Rows::Outputs,
            _ => false,
        };
        if stateful || self.plan.ops().iter().any(by_sequence) {
            return step.check_rows(limits, vocab);
        }
        let tokens = step.tokens.len();
        let rising = step.outputs.windows(2).all(|pair| pair[0] < pair[1]);
        let rules = [
            (tokens <= limits.tokens_max, "more tokens than the plan has room for"),
            (step.positions.len() == tokens, "not one position a token"),
            (step.outputs.len() <= limits.outputs_max, "more outputs than the plan has room for"),
            (rising, "outputs do not rise"),
            (step.outputs.last().is_none_or(|&row| (row as usize) < tokens), "an output beyond the tokens"),
            (step.tokens.iter().all(|id| id.index() < vocab), "a token outside the vocabulary"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(StepError(broken.into())),
            None => Ok(()),
        }
    }

    /// Fills rows of an input, from row 0: `values` is `[n, cols]`. It stays set until it is set
    /// again.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], or [`SessionError::Backend`] if the rows do not fit.
    pub fn set_input(&mut self, name: &str, values: &[f32]) -> Result<(), SessionError> {
        let place = self.plan.input(name);
        let place = place.ok_or_else(|| unknown("input", name, self.plan.inputs()))?;
        let rows = place.rows.max(self.plan.limits());
        if !values.len().is_multiple_of(place.cols.max(1)) || values.len() > rows * place.cols {
            return Err(SessionError::Binding {
                what: format!("input {name}"),
                expected: format!("rows of {}, at most {rows}", place.cols),
                found: format!("{} values", values.len()),
            });
        }
        Ok(self.arena.write(&place, values)?)
    }

    /// Copies rows of an output of the last run: `out` is `[n, cols]`, read from `first_row`.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], or [`SessionError::Backend`] if the rows are outside the arena.
    pub fn read(&self, output: &str, first_row: usize, out: &mut [f32]) -> Result<(), SessionError> {
        let place = self.plan.place(output);
        let place = place.ok_or_else(|| unknown("output", output, self.plan.outputs()))?;
        let limit = place.rows.max(self.plan.limits());
        let rows = out.len() / place.cols.max(1);
        if !out.len().is_multiple_of(place.cols.max(1)) || first_row.saturating_add(rows) > limit {
            return Err(SessionError::Binding {
                what: format!("output {output}"),
                expected: format!("rows of {} below {limit}", place.cols),
                found: format!("{} values from row {first_row}", out.len()),
            });
        }
        Ok(self.arena.read(&place, first_row, out)?)
    }

    /// Steps that were taken up.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What the operation behind `output`, an [`Op::Sample`], gave the first `out.len()` outputs of step
    /// number `step`, counted by [`Session::steps`]: see
    /// [`StepQueue::sampled`](crate::backend::StepQueue::sampled). Without a queue the last step's alone are there.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], or [`SessionError::Backend`] if the step or its rows are gone.
    pub fn sampled(
        &mut self,
        output: &str,
        step: u64,
        out: &mut [Option<TokenId>],
    ) -> Result<(), SessionError> {
        let place = self.plan.place(output);
        let place = place.ok_or_else(|| unknown("output", output, self.plan.outputs()))?;
        let back = self.steps.checked_sub(step).and_then(|back| usize::try_from(back).ok());
        let back = back.unwrap_or(usize::MAX);
        let taken = match self.backend.queue() {
            Some(queue) => queue.sampled(&mut self.arena, back, out),
            None => read_tokens(&self.arena, &place, back, out),
        };
        Ok(taken?)
    }

    /// Bytes of a page in all layers: what [`Session::export_page`] gives.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Copies one KV page onto another, in all layers.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if a page is outside the pool.
    pub fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        self.kv.copy_page(from, to)
    }

    /// Appends a KV page's bytes to `out`.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool.
    pub fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.kv.export_page(page, out)
    }

    /// Fills a KV page with what [`Session::export_page`] gave.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool or the length is wrong.
    pub fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        self.kv.import_page(page, bytes)
    }

    /// The memory for the states of sequences.
    pub fn states(&self) -> StateLayout {
        StateLayout { elements: self.plan.state_elements(), slots: self.state_slots }
    }

    /// Copies out a slot of state, [`Plan::state_elements`].
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there is no such slot or `out` is not as long.
    pub fn read_state(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError> {
        self.kv.states().ok_or_else(|| no_states(&self.backend))?.read(slot, out)
    }

    /// Fills a slot of state with what [`Session::read_state`] gave.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there is no such slot or the length is wrong.
    pub fn write_state(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), BackendError> {
        self.kv.states_mut().ok_or_else(|| no_states(&self.backend))?.write(slot, values)
    }
}

fn op_error(plan: &Plan, index: usize, source: BackendError) -> SessionError {
    let op = plan.ops().get(index).map_or("plan", Op::name);
    SessionError::Op { index, op, source }
}

fn no_states(backend: &impl Backend) -> BackendError {
    let reason = format!("{} keeps none", backend.describe());
    BackendError::Unavailable { what: "the state of recurrent layers".into(), reason }
}

/// What an [`Op::Sample`] that has ended wrote to `place`.
fn read_tokens(
    arena: &impl ArenaMemory,
    place: &Place,
    steps_back: usize,
    out: &mut [Option<TokenId>],
) -> Result<(), BackendError> {
    if steps_back > 0 {
        let (expected, found) = ("the last step".into(), format!("{steps_back} steps back"));
        return Err(BackendError::Shape { op: "sampled", expected, found });
    }
    let mut ids = [0.0; 64];
    for (first, part) in (0..).step_by(ids.len()).zip(out.chunks_mut(ids.len())) {
        let ids = &mut ids[..part.len()];
        arena.read(place, first, ids)?;
        for (to, &id) in part.iter_mut().zip(&*ids) {
            *to = (id >= 0.0).then_some(TokenId(id as u32));
        }
    }
    Ok(())
}

fn expect_count(what: &str, expected: usize, found: usize) -> Result<(), SessionError> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (expected.to_string(), found.to_string());
    Err(SessionError::Binding { what: format!("weight {what}"), expected, found })
}

fn kv_memory(plan: &Plan, kv: Option<KvMemory>) -> Result<KvMemory, SessionError> {
    let nothing = KvLayout { layers: 0, kv_heads: 0, head_dim: 0, dtype: KvDtype::F16 };
    // Behind the first layers come those of other shapes, so there may be no more of the first.
    let fits = |layout: &KvLayout| {
        plan.kv().first().is_none_or(|shape| {
            let layers =
                if plan.kv().len() == 1 { shape.layers..=usize::MAX } else { shape.layers..=shape.layers };
            layers.contains(&layout.layers)
                && (layout.kv_heads, layout.head_dim) == (shape.kv_heads, shape.head_dim)
        })
    };
    match kv {
        Some(kv) if fits(&kv.layout) => Ok(kv),
        None if plan.kv().is_empty() => Ok(KvMemory { layout: nothing, pages: 0 }),
        other => Err(SessionError::Binding {
            what: "KV memory".into(),
            expected: format!("{:?}", plan.kv()),
            found: format!("{:?}", other.map(|kv| kv.layout)),
        }),
    }
}

fn unknown<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> SessionError {
    let known = known.collect::<Vec<_>>().join(", ");
    SessionError::Unknown { what, name: name.into(), known }
}
