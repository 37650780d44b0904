//! Graphs: instantiated, launched, updated. They are made by stream capture only.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use crate::driver::abi::{Handle, In, KernelNodeParams, Out, UpdateResult, entry_points};
use crate::driver::function::Shape;
use crate::driver::graph::{Graph, GraphExec, GraphRun};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::work::Work;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_…`
const AUTO_FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const USE_NODE_PRIORITY: u64 = 8;

/// `CU_GRAPH_NODE_TYPE_…`
fn node_type(work: &Work) -> c_uint {
    match work {
        Work::Launch(_) => 0,
        Work::Upload { .. } | Work::Download { .. } | Work::Copy { .. } => 1,
        Work::Fill { .. } => 2,
        Work::Call(_) => 3,
        Work::Graph(_) => 4,
        Work::Join | Work::Record(_) => 5,
        Work::Free(_) => 11,
    }
}

fn instantiate(handle: &Out<Handle>, graph: Handle, flags: u64) -> Answer {
    let mut state = driver().healthy()?;
    let known = AUTO_FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY;
    let graph = Arc::new(state.graphs.get(graph)?.clone());
    if flags & !known != 0
        || flags & (AUTO_FREE_ON_LAUNCH | DEVICE_LAUNCH) == AUTO_FREE_ON_LAUNCH | DEVICE_LAUNCH
    {
        return Err(Status::InvalidValue);
    }
    if flags & DEVICE_LAUNCH != 0 {
        eprintln!("[cuda-emu] CUDA_ERROR_NOT_SUPPORTED: graphs that kernels launch");
        return Err(Status::NotSupported);
    }
    let state = &mut *state;
    handle.set(state.graph_execs.add(&mut state.handles, GraphExec { graph, last: None }))
}

fn launch(exec: Handle, stream: Handle) -> Answer {
    let mut state = driver().healthy()?;
    let stream = state.stream(stream)?;
    let inner = state.graph_execs.get(exec)?;
    let (graph, last) = (inner.graph.clone(), inner.last);
    if let Some(capture) = state.capture_of(stream)? {
        return state.capture_graph(stream, capture, &graph);
    }
    state.capture_forbids_legacy(stream)?;
    let run = Work::Graph(GraphRun::new(graph));
    let mark = state.enqueue(stream, run, last.into_iter().collect())?;
    state.graph_execs.get_mut(exec)?.last = Some(mark);
    drop(state);
    driver().after_enqueuing(stream)
}

fn update(exec: Handle, graph: Handle) -> Answer<bool> {
    let mut state = driver().healthy()?;
    let new: Graph = state.graphs.get(graph)?.clone();
    let exec = state.graph_execs.get_mut(exec)?;
    let fits = exec.graph.same_shape(&new);
    if fits {
        // Nodes keep the handles that they were instantiated with.
        let handles: Vec<Handle> = exec.graph.nodes.iter().map(|node| node.handle).collect();
        let mut new = new;
        new.nodes.iter_mut().zip(handles).for_each(|(node, handle)| node.handle = handle);
        exec.graph = Arc::new(new);
    }
    Ok(fits)
}

entry_points! {
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: c_ulonglong) {
        instantiate(&exec, graph, flags)
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        launch(exec, stream)
    }

    /// There is nowhere to upload to.
    fn cuGraphUpload(exec: Handle, _stream: Handle) {
        driver().healthy()?.graph_execs.get(exec).map(|_| ())
    }

    fn cuGraphDestroy(graph: Handle) {
        let mut state = driver().lock();
        state.graphs.remove(graph)?;
        state.own().faults.check()
    }

    /// A launch that waits keeps the graph.
    fn cuGraphExecDestroy(exec: Handle) {
        let mut state = driver().lock();
        state.graph_execs.remove(exec)?;
        state.own().faults.check()
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let state = driver().healthy()?;
        let graph = state.graphs.get(graph)?;
        if nodes.pointer().is_null() {
            return count.set(graph.nodes.len());
        }
        let room = count.get()?;
        for index in 0..room {
            nodes.set_at(index, graph.nodes.get(index).map_or(0, |node| node.handle))?;
        }
        count.set(room.min(graph.nodes.len()))
    }

    fn cuGraphNodeGetType(node: Handle, kind: Out<c_uint>) {
        let state = driver().healthy()?;
        let nodes = state.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        let node = nodes.into_iter().find(|n| n.handle == node).ok_or(Status::InvalidHandle)?;
        kind.set(node_type(&node.work))
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: In<KernelNodeParams>) {
        let params = params.get()?;
        let mut state = driver().healthy()?;
        let shape = Shape {
            grid: params.grid,
            block: params.block,
            dynamic_shared_bytes: params.dynamic_shared_bytes,
            ..Shape::default()
        };
        if params.kernel != 0 {
            return Err(Status::NotSupported);
        }
        let launch = state.prepare_launch(params.function, &shape, params.params, params.extra)?;
        state.graph_execs.get_mut(exec)?.set_work(node, Work::Launch(Arc::new(launch)))
    }

    fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Out<UpdateResult>) {
        let fits = update(exec, graph)?;
        // `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`
        let result = if fits { 0 } else { 2 };
        info.set_if_wanted(UpdateResult { result, error_node: 0, error_from_node: 0 });
        if fits { Ok(()) } else { Err(Status::GraphExecUpdateFailure) }
    }
}
