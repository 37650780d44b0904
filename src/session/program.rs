//! Programs of a session: a plan with its own arena, over the memory that all programs share.

use std::time::Instant;

use super::{KvMemory, SessionError};
use crate::backend::{ArenaMemory, Backend, BackendError, Frame, PreparedMatrix, Weights};
use crate::graph::Plan;
use crate::ir::{Counting, MatrixId, MatrixSize, Op, OpTime, Place, Rows, StepError, StepInput};
use crate::token::TokenId;

/// State shared by the programs of a session.
#[derive(Debug)]
pub(super) struct Shared<B: Backend> {
    pub(super) backend: B,
    pub(super) weights: Weights<B>,
    pub(super) kv: B::KvPool,
    pub(super) kv_memory: KvMemory,
    /// Bytes of a page in all layers.
    pub(super) page_bytes: usize,
    pub(super) state_slots: usize,
}

/// State of one program.
#[derive(Debug)]
pub(super) struct Loaded<B: Backend> {
    pub(super) plan: Plan,
    pub(super) arena: B::Arena,
    /// Steps begun so far, and the number of outputs of the last one.
    pub(super) steps: u64,
    pub(super) outputs: usize,
    /// Whether steps must assign rows to sequences.
    by_sequence: bool,
}

impl<B: Backend> Loaded<B> {
    /// Allocates the arena of a plan.
    pub(super) fn new(backend: &B, plan: Plan) -> Result<Self, BackendError> {
        let arena = backend.arena(plan.arena_bytes(), plan.ops(), plan.limits())?;
        // Fixed rows belong to no sequence.
        let of_sequences =
            |op: &Op| op.places().iter().any(|(_, place)| !matches!(place.rows, Rows::Fixed(_)));
        let by_sequence = plan.ops().iter().any(|op| op.mixes().is_some() && of_sequences(op));
        Ok(Loaded {
            by_sequence: by_sequence || plan.state_elements() > 0,
            plan,
            arena,
            steps: 0,
            outputs: 0,
        })
    }

    pub(super) fn read(&self, output: &str, first_row: usize, out: &mut [f32]) -> Result<(), SessionError> {
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
}

/// A program of a session: see [`Session::program`](super::Session::program). The arena, with inputs and
/// outputs, is the program's own; pages, states and weights are shared.
#[derive(Debug)]
pub struct Program<'s, B: Backend> {
    pub(super) shared: &'s mut Shared<B>,
    pub(super) loaded: &'s mut Loaded<B>,
}

impl<B: Backend> Program<'_, B> {
    /// The program's plan.
    pub fn plan(&self) -> &Plan {
        &self.loaded.plan
    }

    /// Checks the step, then runs the plan over it. Without attention, sequences and pages of the step are
    /// ignored.
    ///
    /// # Errors
    /// [`SessionError::Backend`] if the step is malformed: no operation ran. [`SessionError::Op`] if the
    /// backend failed: values written by the step are undefined.
    pub fn run(&mut self, step: &StepInput) -> Result<(), SessionError> {
        self.check(step).map_err(BackendError::from)?;
        let Program { shared: Shared { backend, weights, kv, .. }, loaded } = self;
        let Loaded { plan, arena, steps, outputs, .. } = loaded;
        let mut frame = Frame { weights, arena, kv, step };
        frame.begin(backend)?;
        (*steps, *outputs) = (*steps + 1, step.outputs.len());
        frame.run(backend, plan.ops()).map_err(|(index, source)| op_error(plan, index, source))
    }

    /// [`Program::run`] with timing: waits for each operation, then calls `seen` with its time and work.
    /// Operations that a backend would fuse at run time are executed separately.
    ///
    /// # Errors
    /// Those of [`Program::run`].
    pub fn run_timed(
        &mut self,
        step: &StepInput,
        mut seen: impl FnMut(&Op, OpTime),
    ) -> Result<(), SessionError> {
        self.check(step).map_err(BackendError::from)?;
        let Program { shared: Shared { backend, weights, kv, kv_memory, .. }, loaded } = self;
        let Loaded { plan, arena, steps, outputs, .. } = loaded;
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
        let Program { shared, loaded: Loaded { plan, outputs, by_sequence, .. } } = self;
        let limits = plan.limits();
        let vocab = plan.vocab().unwrap_or(usize::MAX);
        let runs_ahead = shared.backend.queue().is_some();
        if let Some(fed) = step.fed.iter().find(|fed| !runs_ahead || fed.output as usize >= *outputs) {
            let backend = shared.backend.describe();
            return Err(StepError(format!("{fed:?} after a step of {} outputs on {backend}", *outputs)));
        }
        if plan.state_elements() > 0 {
            step.check_states(shared.state_slots)?;
        }
        if !plan.kv().is_empty() {
            return step.check(limits, shared.kv_memory.pages, vocab);
        }
        if *by_sequence {
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

    /// Fills rows of an input, from row 0: `values` is `[n, cols]`. The values persist until the next call.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::Binding`] if the rows do not fit, or
    /// [`SessionError::Backend`].
    pub fn set_input(&mut self, name: &str, values: &[f32]) -> Result<(), SessionError> {
        let Loaded { plan, arena, .. } = &mut *self.loaded;
        let place = plan.input(name).ok_or_else(|| unknown("input", name, plan.inputs()))?;
        let rows = place.rows.max(plan.limits());
        if !values.len().is_multiple_of(place.cols.max(1)) || values.len() > rows * place.cols {
            return Err(SessionError::Binding {
                what: format!("input {name}"),
                expected: format!("rows of {}, at most {rows}", place.cols),
                found: format!("{} values", values.len()),
            });
        }
        Ok(arena.write(&place, values)?)
    }

    /// Copies rows of an output of the last run, from `first_row` on: `out` is `[n, cols]`.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::Binding`] for rows out of range, or
    /// [`SessionError::Backend`].
    pub fn read(&self, output: &str, first_row: usize, out: &mut [f32]) -> Result<(), SessionError> {
        self.loaded.read(output, first_row, out)
    }

    /// Number of steps begun so far.
    pub fn steps(&self) -> u64 {
        self.loaded.steps
    }

    /// Tokens sampled by the [`Op::Sample`] of `output` for the first `out.len()` outputs of step number
    /// `step`, as counted by [`Program::steps`]: see
    /// [`StepQueue::sampled`](crate::backend::StepQueue::sampled). Without a queue only the last step is
    /// available.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], or [`SessionError::Backend`] if the step or its rows are no longer
    /// available.
    pub fn sampled(
        &mut self,
        output: &str,
        step: u64,
        out: &mut [Option<TokenId>],
    ) -> Result<(), SessionError> {
        let place = self.loaded.plan.place(output);
        let place = place.ok_or_else(|| unknown("output", output, self.loaded.plan.outputs()))?;
        let back = self.loaded.steps.checked_sub(step).and_then(|back| usize::try_from(back).ok());
        let back = back.unwrap_or(usize::MAX);
        let taken = match self.shared.backend.queue() {
            Some(queue) => queue.sampled(&mut self.loaded.arena, back, out),
            None => read_tokens(&self.loaded.arena, &place, back, out),
        };
        Ok(taken?)
    }
}

fn op_error(plan: &Plan, index: usize, source: BackendError) -> SessionError {
    let op = plan.ops().get(index).map_or("plan", Op::name);
    SessionError::Op { index, op, source }
}

/// Reads the tokens written to `place` by a completed [`Op::Sample`].
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

fn unknown<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> SessionError {
    let known = known.collect::<Vec<_>>().join(", ");
    SessionError::Unknown { what, name: name.into(), known }
}
