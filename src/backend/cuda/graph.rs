//! CUDA graphs: the launches of a decode step, recorded once per shape and replayed with one call. Values
//! that change from step to step (ids, positions, pages) are in device memory, so a recording is valid for
//! every step of its shape. Also measures the device time of such a graph.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUstreamCaptureMode as CaptureMode};

use super::driver::{Context, Event};
use super::params::Address;
use super::step::StepBuffers;
use super::{Cuda, Op};
use crate::backend::{Backend, BackendError, Frame};
use crate::ir::StepInput;

/// Maximum recordings per arena; a new one replaces the oldest.
const GRAPHS_MAX: usize = 128;

/// All step-dependent arguments of a recording's launches: equal keys imply equal launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    tokens: usize,
    outputs: usize,
    sequences: usize,
    splits: usize,
    /// Whether attention appends keys and values itself.
    appends: bool,
    /// Addresses of the step's tables and, with splits, of the partial results. They change when the buffers
    /// grow.
    tables: Address,
    partial: Address,
}

impl Key {
    /// The key of a step of single tokens; prompts rarely repeat a shape.
    fn of(step: &StepInput, buffers: &StepBuffers, partial: Address) -> Option<Key> {
        let shape = buffers.shape();
        shape.decodes_only().then(|| Key {
            tokens: step.tokens.len(),
            outputs: step.outputs.len(),
            sequences: shape.sequences,
            splits: shape.splits,
            appends: shape.appends,
            tables: buffers.params().tokens,
            partial: if shape.splits > 1 { partial } else { 0 },
        })
    }
}

/// A recording in progress on the stream. Dropping it ends the recording.
struct Capture<'c>(&'c Context);

impl<'c> Capture<'c> {
    fn begin(context: &'c Context) -> Result<Capture<'c>, BackendError> {
        context.enter()?;
        // Other threads may use the driver during the capture.
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the context; dropping this ends the capture.
        let begun = unsafe { result::stream::begin_capture(context.stream(), mode) };
        context.done("cuStreamBeginCapture", begun).map(|()| Capture(context))
    }

    fn end(self) -> Result<Recording, BackendError> {
        let context = self.0;
        std::mem::forget(self);
        // SAFETY: the capture is under way.
        let ended = unsafe { result::stream::end_capture(context.stream()) };
        context.done("cuStreamEndCapture", ended).map(Recording)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // SAFETY: the capture is under way. Its recording is discarded.
        let _ = unsafe { result::stream::end_capture(self.0.stream()) }.map(Recording);
    }
}

/// A recorded graph, not yet executable.
struct Recording(sys::CUgraph);

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by the end of a capture; an executable form does not need it.
            let _ = unsafe { result::graph::destroy(self.0) };
        }
    }
}

/// An executable recording.
#[derive(Debug)]
struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `record`; launches under way keep what they need.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// The recordings of an arena. `None` marks a shape that was seen once.
#[derive(Debug, Default)]
pub(super) struct Graphs(Vec<(Key, Option<Graph>)>);

impl Graphs {
    /// Adds a shape; drops recordings with outdated addresses, and the oldest one if there are too many.
    fn remember(&mut self, key: Key) {
        let moved =
            |old: &Key| old.tables != key.tables || old.splits == key.splits && old.partial != key.partial;
        self.0.retain(|(old, _)| !moved(old));
        if self.0.len() == GRAPHS_MAX {
            self.0.remove(0);
        }
        self.0.push((key, None));
    }
}

impl Cuda {
    /// Runs a plan and starts the copy of its sampled tokens to the host.
    pub(super) fn run_plan(
        &self,
        ops: &[Op],
        frame: &mut Frame<'_, Cuda>,
    ) -> Result<(), (usize, BackendError)> {
        self.run_or_replay(ops, frame).inspect_err(|_| frame.arena.sampled.fail())?;
        if frame.arena.samples {
            frame.arena.sampled.copy().map_err(|error| (ops.len(), error))?;
        }
        Ok(())
    }

    /// Runs prompts and new shapes launch by launch, known shapes as a graph.
    fn run_or_replay(&self, ops: &[Op], frame: &mut Frame<'_, Cuda>) -> Result<(), (usize, BackendError)> {
        let key = Key::of(frame.step, &frame.arena.step, frame.arena.partial.address());
        let Some(key) = key else { return self.run_each(ops, frame) };
        let whole = |error| (ops.len(), error);
        let graphs = &mut frame.arena.graphs.0;
        let Some(index) = graphs.iter().position(|(known, _)| *known == key) else {
            self.run_each(ops, frame)?;
            frame.arena.graphs.remember(key);
            return Ok(());
        };
        if graphs[index].1.is_none() {
            let graph = self.record(ops, frame)?;
            frame.arena.graphs.0[index].1 = Some(graph);
        }
        // Among the checks in launches, only those of indices depend on the step.
        for (index, op) in ops.iter().enumerate() {
            self.check_indices(op, frame).map_err(|error| (index, error))?;
        }
        match &frame.arena.graphs.0[index].1 {
            Some(graph) => self.replay(graph).map_err(whole),
            None => self.run_each(ops, frame),
        }
    }

    /// Device seconds for each of `replays` replays of the operations as one graph, over the step that
    /// [`Frame::begin`] began. Replays follow each other without the host. Before that, the operations run
    /// twice, launched one by one and replayed once, so that the times exclude a driver's first-use work. The
    /// graph is not kept.
    ///
    /// # Errors
    /// As [`Backend::execute`].
    pub fn replay_seconds(
        &self,
        ops: &[Op],
        frame: &mut Frame<'_, Cuda>,
        replays: usize,
    ) -> Result<Vec<f64>, BackendError> {
        let of_op = |(_, error)| error;
        self.run_each(ops, frame).map_err(of_op)?;
        let graph = self.record(ops, frame).map_err(of_op)?;
        let ends = (0..=replays).map(|_| Event::timed(&self.context)).collect::<Result<Vec<Event>, _>>()?;
        for end in &ends {
            self.replay(&graph)?;
            end.record()?;
        }
        self.context.wait()?;
        ends.windows(2).map(|pair| pair[0].seconds_until(&pair[1])).collect()
    }

    /// Runs a plan launch by launch. If all sequences have one token, an append and its attention are one
    /// launch, unless a written page belongs to another sequence, too.
    fn run_each(&self, ops: &[Op], frame: &mut Frame<'_, Cuda>) -> Result<(), (usize, BackendError)> {
        let appends = frame.arena.step.shape().appends;
        let mut index = 0;
        while let Some(op) = ops.get(index) {
            let (ran, next) = match (op, ops.get(index + 1)) {
                (Op::KvAppend(append), Some(Op::Attention(attention)))
                    if appends && append.prepares(attention) =>
                {
                    (self.append_and_attend(append, attention, frame), index + 2)
                }
                _ => (self.execute(op, frame), index + 1),
            };
            ran.map_err(|error| (index, error))?;
            index = next;
        }
        Ok(())
    }

    /// Records the launches of a step without running them.
    fn record(&self, ops: &[Op], frame: &mut Frame<'_, Cuda>) -> Result<Graph, (usize, BackendError)> {
        let (context, whole) = (&self.context, |error| (ops.len(), error));
        let capture = Capture::begin(context).map_err(whole)?;
        // A failed launch invalidates the capture; the launch's error is the more precise one.
        self.run_each(ops, frame)?;
        let recording = capture.end().map_err(whole)?;
        // SAFETY: the graph was just made; its executable form does not need it.
        let executable = unsafe { result::graph::instantiate(recording.0, sys::CUgraphInstantiate_flags(0)) };
        let executable = context.done("cuGraphInstantiate", executable).map_err(whole)?;
        Ok(Graph { context: Arc::clone(context), executable })
    }

    fn replay(&self, graph: &Graph) -> Result<(), BackendError> {
        self.context.enter()?;
        // SAFETY: equal keys guarantee that all addresses in the graph's launches are unchanged.
        let launched = unsafe { result::graph::launch(graph.executable, self.context.stream()) };
        self.context.done("cuGraphLaunch", launched)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CudaOptions, KvPool, arena::Arena};
    use super::*;
    use crate::TokenId;
    use crate::backend::{ArenaMemory, Weights};
    use crate::ir::{
        Binary, BinaryFn, Embed, GatherOutputs, KvDtype, KvLayout, MatrixId, PAGE_TOKENS, PageId, PageRef,
        Place, Precision, Rows, StepLimits, StepSequence,
    };
    use crate::quant::{DenseMatrix, DenseValues, WeightMatrix};

    /// One token per sequence, all at the same position.
    fn step(tokens: &[u32], position: u32) -> StepInput {
        let count = tokens.len() as u32;
        let pages = position / PAGE_TOKENS as u32 + 1;
        let mut step = StepInput {
            tokens: tokens.iter().map(|&id| TokenId(id)).collect(),
            positions: vec![position; tokens.len()],
            outputs: (0..count).collect(),
            ..StepInput::default()
        };
        for sequence in 0..count {
            let first = sequence * pages;
            let page = |i| PageRef { page: PageId(first + i), start: i * PAGE_TOKENS as u32 };
            step.pages.extend((0..pages).map(page));
            let (rows, pages) = (sequence..sequence + 1, first..first + pages);
            step.sequences.push(StepSequence { rows, pages, window: None });
        }
        step
    }

    /// A plan that embeds tokens and gathers outputs, with its memory.
    struct Lookup {
        cuda: Cuda,
        ops: [Op; 2],
        picked: Place,
        weights: Weights<Cuda>,
        arena: Arena,
        kv: KvPool,
    }

    impl Lookup {
        const TOKENS_MAX: usize = 16;

        fn new() -> Lookup {
            cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
            let cuda = Cuda::new(&CudaOptions::default()).unwrap();
            let place = |offset, rows| Place { offset, rows, cols: 4, precision: Precision::F32 };
            let (x, picked) = (place(0, Rows::Tokens), place(1024, Rows::Outputs));
            let embed = Op::Embed(Embed { dst: x, table: MatrixId(0), scale: 2.0 });
            let ops = [embed, Op::GatherOutputs(GatherOutputs { dst: picked, src: x })];
            let limits = StepLimits { tokens_max: Self::TOKENS_MAX, outputs_max: Self::TOKENS_MAX };
            let values = DenseValues::F32((0..40).map(|i| i as f32).collect());
            let table = WeightMatrix::Dense(DenseMatrix::new(10, 4, values).unwrap());
            let weights = Weights { matrices: vec![cuda.prepare(&table).unwrap()], vectors: vec![] };
            let arena = cuda.arena(4096, &ops, limits).unwrap();
            let layout = KvLayout { layers: 0, kv_heads: 0, head_dim: 0, dtype: KvDtype::F16 };
            let kv = cuda.kv_pool(layout, 0).unwrap();
            Lookup { cuda, ops, picked, weights, arena, kv }
        }

        /// Runs the step and compares each of its outputs.
        fn check(&mut self, step: &StepInput) {
            let Lookup { cuda, ops, picked, weights, arena, kv } = self;
            let mut frame = Frame { weights, arena, kv, step };
            frame.begin(cuda).unwrap();
            frame.run(cuda, ops).unwrap();
            let mut found = vec![0.0; 4 * step.outputs.len()];
            arena.read(picked, 0, &mut found).unwrap();
            let row =
                |&output: &u32| (0..4).map(move |i| (8 * step.tokens[output as usize].0 + 2 * i) as f32);
            assert_eq!(found, step.outputs.iter().flat_map(row).collect::<Vec<_>>(), "{step:?}");
        }

        fn recorded(&self) -> usize {
            self.arena.graphs.0.iter().filter(|(_, graph)| graph.is_some()).count()
        }
    }

    #[test]
    fn a_replayed_step_has_the_bits_of_its_launches_and_new_inputs() {
        let mut lookup = Lookup::new();
        for (round, tokens) in [[3, 1], [7, 0], [2, 9], [5, 5]].iter().enumerate() {
            lookup.check(&step(tokens, round as u32));
            assert_eq!(lookup.recorded(), usize::from(round > 0), "the second step of a shape is recorded");
        }
    }

    #[test]
    fn the_oldest_recordings_make_room() {
        let mut lookup = Lookup::new();
        let shapes =
            || (1..=Lookup::TOKENS_MAX as u32).flat_map(|n| (1..=n).map(move |outputs| (n, outputs)));
        let shifted = |(n, outputs): (u32, u32), by| {
            let tokens: Vec<u32> = (0..n).map(|i| (i + by) % 10).collect();
            StepInput { outputs: (n - outputs..n).collect(), ..step(&tokens, by) }
        };
        assert!(shapes().count() > GRAPHS_MAX);
        for shape in shapes() {
            (0..2).for_each(|by| lookup.check(&shifted(shape, by)));
        }
        assert_eq!((lookup.arena.graphs.0.len(), lookup.recorded()), (GRAPHS_MAX, GRAPHS_MAX));
        // The first shape is a new one again, the last is still recorded.
        let (first, last) = (shapes().next().unwrap(), shapes().last().unwrap());
        lookup.check(&shifted(first, 2));
        assert_eq!(lookup.recorded(), GRAPHS_MAX - 1);
        for (shape, by) in [(first, 3), (first, 4), (last, 2)] {
            lookup.check(&shifted(shape, by));
            assert_eq!((lookup.arena.graphs.0.len(), lookup.recorded()), (GRAPHS_MAX, GRAPHS_MAX));
        }
    }

    #[test]
    fn replays_are_timed_one_by_one() {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        let cuda = Cuda::new(&CudaOptions::default()).unwrap();
        let place = |offset| Place { offset, rows: Rows::Tokens, cols: 512, precision: Precision::F32 };
        let (sum, one) = (place(0), place(4096));
        let add = Op::Binary(Binary { dst: sum, a: sum, b: one, f: BinaryFn::Add });
        let limits = StepLimits { tokens_max: 2, outputs_max: 2 };
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let mut arena = cuda.arena(8192, std::slice::from_ref(&add), limits).unwrap();
        let layout = KvLayout { layers: 0, kv_heads: 0, head_dim: 0, dtype: KvDtype::F16 };
        let mut kv = cuda.kv_pool(layout, 0).unwrap();
        let step = step(&[0, 0], 0);
        arena.write(&one, &[1.0; 1024]).unwrap();
        let mut check = |ops: usize, replays: usize| {
            arena.write(&sum, &[0.0; 1024]).unwrap();
            let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut kv, step: &step };
            frame.begin(&cuda).unwrap();
            let begin = std::time::Instant::now();
            let times = cuda.replay_seconds(&vec![add.clone(); ops], &mut frame, replays).unwrap();
            let host = begin.elapsed().as_secs_f64();
            assert_eq!(times.len(), replays);
            assert!(times.iter().all(|&time| time > 0.0) && times.iter().sum::<f64>() <= host, "{times:?}");
            assert!(arena.graphs.0.is_empty(), "an arena keeps the recordings of plans only");
            let mut found = [0.0; 1024];
            arena.read(&sum, 0, &mut found).unwrap();
            assert_eq!(found, [(ops * (replays + 2)) as f32; 1024], "{replays} replays of {ops}");
        };
        check(1, 5);
        check(32, 3);
    }
}
