//! Sessions: plans of a model bound to weights and memory on a backend, run step by step.

mod error;
mod named;
mod program;

use crate::backend::{Backend, BackendError, PageMemory, Weights};
use crate::graph::{KvShape, Plan};
use crate::ir::{KvDtype, KvLayout, StateLayout};
pub use error::SessionError;
pub use named::NamedWeights;
pub use program::Program;
use program::{Loaded, Shared};

/// KV memory of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvMemory {
    /// The first shape of [`Plan::kv`] with a storage type, which also applies to layers of other shapes.
    pub layout: KvLayout,
    /// Number of pages.
    pub pages: usize,
}

/// A plan bound to a backend, optionally with further programs of the same model. All memory is allocated on
/// construction; [`Program::run`] allocates nothing.
#[derive(Debug)]
pub struct Session<B: Backend> {
    shared: Shared<B>,
    main: Loaded<B>,
    others: Vec<Loaded<B>>,
}

impl<B: Backend> Session<B> {
    /// Binds a plan and allocates its arena and KV pool. A plan without attention needs no `kv`.
    ///
    /// # Errors
    /// [`SessionError::Binding`] if the number of weights or the KV layout does not match the plan;
    /// [`SessionError::Backend`] if memory is exhausted.
    pub fn new(
        backend: B,
        plan: Plan,
        weights: Weights<B>,
        kv: Option<KvMemory>,
    ) -> Result<Self, SessionError> {
        Session::sized(backend, plan, weights, |_| Ok(kv))
    }

    /// [`Session::new`] with KV memory sized after all other allocations.
    pub(crate) fn sized<E: From<SessionError>>(
        backend: B,
        plan: Plan,
        weights: Weights<B>,
        size: impl FnOnce(&B) -> Result<Option<KvMemory>, E>,
    ) -> Result<Self, E> {
        expect_count("matrices", plan.matrices().len(), weights.matrices.len())?;
        expect_count("vectors", plan.vectors().len(), weights.vectors.len())?;
        let refused = SessionError::from;
        let main = Loaded::new(&backend, plan).map_err(refused)?;
        let plan = &main.plan;
        let kv_memory = kv_memory(plan, size(&backend)?)?;
        let mut kv = backend.kv_pool(kv_memory.layout, kv_memory.pages).map_err(refused)?;
        let mut page_bytes = kv_memory.layout.page_bytes();
        for &KvShape { layers, kv_heads, head_dim } in plan.kv().iter().skip(1) {
            let others = KvLayout { layers, kv_heads, head_dim, dtype: kv_memory.layout.dtype };
            kv.add_layers(others).map_err(refused)?;
            page_bytes = page_bytes.saturating_add(others.page_bytes());
        }
        let shared = Shared { backend, weights, kv, kv_memory, page_bytes, state_slots: 0 };
        Ok(Session { shared, main, others: Vec::new() })
    }

    /// Allocates `slots` state slots. Required for plans with states.
    ///
    /// # Errors
    /// [`SessionError::Backend`] if memory is exhausted or the backend does not support states.
    pub fn with_states(mut self, slots: usize) -> Result<Self, SessionError> {
        let states = self.shared.kv.states_mut().ok_or_else(|| no_states(&self.shared.backend))?;
        states.allocate(self.main.plan.state_elements(), slots)?;
        self.shared.state_slots = slots;
        Ok(self)
    }

    /// The main plan.
    pub fn plan(&self) -> &Plan {
        &self.main.plan
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.shared.backend
    }

    /// The KV memory.
    pub fn kv_memory(&self) -> KvMemory {
        self.shared.kv_memory
    }

    /// The bound weights.
    pub fn weights(&self) -> &Weights<B> {
        &self.shared.weights
    }

    /// Adds the plan of another program of the same graph ([`Graph::program`](crate::graph::Graph::program)),
    /// with its own arena. Programs are numbered from 1 in order of addition. All programs share the KV
    /// memory of the main plan.
    ///
    /// # Errors
    /// [`SessionError::Binding`] for a plan of another graph, or with another KV layout;
    /// [`SessionError::Backend`] if memory is exhausted.
    pub fn with_program(mut self, plan: Plan) -> Result<Self, SessionError> {
        let main = &self.main.plan;
        let declared = |plan: &Plan| {
            let states = plan.states().len();
            format!("{} matrices, {} vectors, {states} states", plan.matrices().len(), plan.vectors().len())
        };
        let same = (plan.matrices(), plan.vectors(), plan.states())
            == (main.matrices(), main.vectors(), main.states());
        if !same {
            let (expected, found) = (format!("the first one's: {}", declared(main)), declared(&plan));
            return Err(SessionError::Binding { what: "weights of another program".into(), expected, found });
        }
        if !plan.kv().is_empty() && plan.kv() != main.kv() {
            let (expected, found) = (format!("{:?}", main.kv()), format!("{:?}", plan.kv()));
            let what = "KV memory of another program".into();
            return Err(SessionError::Binding { what, expected, found });
        }
        self.others.push(Loaded::new(&self.shared.backend, plan)?);
        Ok(self)
    }

    /// A program by number. 0 is [`Session::main`].
    pub fn program(&mut self, number: usize) -> Option<Program<'_, B>> {
        let Session { shared, main, others } = self;
        let loaded = match number.checked_sub(1) {
            None => main,
            Some(other) => others.get_mut(other)?,
        };
        Some(Program { shared, loaded })
    }

    /// The program of the main plan, number 0.
    pub fn main(&mut self) -> Program<'_, B> {
        Program { shared: &mut self.shared, loaded: &mut self.main }
    }

    /// [`Program::read`] of the main plan, with shared access.
    ///
    /// # Errors
    /// Those of [`Program::read`].
    pub fn read(&self, output: &str, first_row: usize, out: &mut [f32]) -> Result<(), SessionError> {
        self.main.read(output, first_row, out)
    }

    /// [`Program::steps`] of the main plan, with shared access.
    pub fn steps(&self) -> u64 {
        self.main.steps
    }

    /// The memory of the sequences: KV pages and recurrent states.
    pub fn kv(&self) -> &B::KvPool {
        &self.shared.kv
    }

    /// Mutable access to [`Session::kv`].
    pub fn kv_mut(&mut self) -> &mut B::KvPool {
        &mut self.shared.kv
    }

    /// Bytes of a page in all layers: the length of an exported page ([`PageMemory::export_page`]).
    pub fn page_bytes(&self) -> usize {
        self.shared.page_bytes
    }

    /// Size of the state memory.
    pub fn states(&self) -> StateLayout {
        StateLayout { elements: self.main.plan.state_elements(), slots: self.shared.state_slots }
    }
}

fn no_states(backend: &impl Backend) -> BackendError {
    let reason = format!("{} keeps none", backend.describe());
    BackendError::Unavailable { what: "the state of recurrent layers".into(), reason }
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
    // Layers of other shapes follow the first shape's, so its number of layers must then match exactly.
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
