//! A session's run allocates nothing, whatever the backend does: counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ottava::TokenId;
use ottava::backend::{
    Activation, Backend, BackendError, Frame, KvLayout, Op, PageId, Place, Precision, Rows, StepInput,
    StepLimits, Weights,
};
use ottava::graph::{CompileOptions, Fusion, Graph, GraphError, Session};
use ottava::quant::WeightMatrix;

thread_local! {
    /// Allocations of this thread; other threads of the test harness do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came; the count is a thread-local
// integer that is initialised without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is being torn down has no count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc`, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does nothing, without allocating.
#[derive(Debug)]
struct Idle;

impl Backend for Idle {
    type Arena = ();
    type Vector = ();
    type Matrix = ();
    type KvPool = ();

    fn describe(&self) -> String {
        "idle".into()
    }

    fn element_bytes(&self, _: Precision) -> usize {
        4
    }

    fn upload_vector(&self, _: &[f32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn prepare(&self, _: WeightMatrix) -> Result<(), BackendError> {
        Ok(())
    }

    fn matrix_bytes(&self, (): &()) -> usize {
        0
    }

    fn arena(&self, _: usize, _: &[Op], _: StepLimits) -> Result<(), BackendError> {
        Ok(())
    }

    fn kv_pool(&self, _: KvLayout, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn copy_page(&self, (): &mut (), _: PageId, _: PageId) -> Result<(), BackendError> {
        Ok(())
    }

    fn export_page(&self, (): &(), _: PageId, _: &mut Vec<u8>) -> Result<(), BackendError> {
        Ok(())
    }

    fn import_page(&self, (): &mut (), _: PageId, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn write(&self, (): &mut (), _: &Place, _: &[f32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn read(&self, (): &(), _: &Place, _: usize, _: &mut [f32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn execute(&self, _: &Op, _: &mut Frame<'_, Self>) -> Result<(), BackendError> {
        Ok(())
    }
}

fn graph() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let m = g.matrix("m", 8, 8)?;
    let x = g.input("x", Rows::Tokens, 8)?;
    let y = g.matmul(x, m)?;
    let y = g.activation(y, Activation::Silu)?;
    let y = g.add(x, y)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_run_allocates_nothing() -> Result<(), GraphError> {
    let limits = StepLimits { tokens_max: 4, outputs_max: 1 };
    let options =
        CompileOptions { limits, element_bytes: &|_| 4, fuse: Fusion::On, activations: Precision::F32 };
    let plan = graph()?.compile(&options)?;
    let weights = Weights { matrices: vec![()], vectors: Vec::new() };
    let mut session = Session::new(Idle, plan, weights, None)?;
    let step = StepInput { tokens: vec![TokenId(0); 4], positions: vec![0, 1, 2, 3], ..StepInput::default() };
    let mut out = [0.0; 8];
    session.start_profile();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        session.set_input("x", &[0.5; 32])?;
        session.run(&step)?;
        session.read("y", 3, &mut out)?;
    }
    assert_eq!(ALLOCATIONS.get(), before);
    // The count counts.
    drop(std::hint::black_box(vec![1_u8]));
    assert_eq!(ALLOCATIONS.get(), before + 1);
    Ok(())
}
