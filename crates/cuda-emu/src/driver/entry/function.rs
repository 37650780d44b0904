//! Functions: attributes and occupancy.

use std::ffi::{c_int, c_uint};

use crate::driver::abi::{Handle, In, LaunchConfig, Out, SharedBytesOfBlock, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};

fn blocks_per_multiprocessor(count: &Out<c_int>, function: Handle, threads: c_int, dynamic: usize) -> Answer {
    let state = driver().healthy()?;
    let threads = u32::try_from(threads).ok().filter(|t| *t > 0).ok_or(Status::InvalidValue)?;
    let function = state.functions.get(function)?;
    count.set(function.blocks_per_multiprocessor(threads, dynamic as u64, &state.own().card) as c_int)
}

/// The block size that puts most threads on a multiprocessor, and the grid that fills the card.
fn best_block(
    grid: &Out<c_int>,
    block: &Out<c_int>,
    function: Handle,
    shared: SharedBytesOfBlock,
    dynamic: usize,
    limit: c_int,
) -> Answer {
    let limit = u32::try_from(limit).map_err(|_| Status::InvalidValue)?;
    let (card, most) = {
        let state = driver().healthy()?;
        let most = state.functions.get(function)?.threads_max();
        (state.own().card, if limit == 0 { most } else { most.min(limit) })
    };
    let mut best = (0, 0, 0);
    for threads in (1..=most.div_ceil(32)).map(|warps| (warps * 32).min(most)) {
        // SAFETY: the program gave the function to be called with block sizes.
        let bytes = shared.map_or(dynamic, |shared| unsafe { shared(threads as c_int) });
        let state = driver().healthy()?;
        let blocks = state.functions.get(function)?.blocks_per_multiprocessor(threads, bytes as u64, &card);
        best = best.max((blocks * threads, threads, blocks));
    }
    grid.set((best.2 * card.multiprocessors) as c_int)?;
    block.set(best.1 as c_int)
}

entry_points! {
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) {
        let state = driver().healthy()?;
        value.set(state.functions.get(function)?.attribute(attribute, &state.own().card)?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) {
        let mut state = driver().healthy()?;
        let card = state.own().card;
        state.functions.get_mut(function)?.set_attribute(attribute, value, &card)
    }

    /// Without effect.
    fn cuFuncSetCacheConfig(function: Handle, config: c_uint) {
        if config > 3 {
            return Err(Status::InvalidValue);
        }
        driver().healthy()?.functions.get(function).map(|_| ())
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        module.set(driver().healthy()?.functions.get(function)?.module)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<c_int>, function: Handle, threads: c_int, dynamic: usize) {
        blocks_per_multiprocessor(&count, function, threads, dynamic)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<c_int>,
        function: Handle,
        threads: c_int,
        dynamic: usize,
        _flags: c_uint,
    ) {
        blocks_per_multiprocessor(&count, function, threads, dynamic)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: Handle,
        shared: SharedBytesOfBlock,
        dynamic: usize,
        limit: c_int,
    ) {
        best_block(&grid, &block, function, shared, dynamic, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: Handle,
        shared: SharedBytesOfBlock,
        dynamic: usize,
        limit: c_int,
        _flags: c_uint,
    ) {
        best_block(&grid, &block, function, shared, dynamic, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: c_int, threads: c_int) {
        let state = driver().healthy()?;
        let (Ok(blocks @ 1..), 1..) = (u32::try_from(blocks), threads) else { return Err(Status::InvalidValue) };
        bytes.set(state.functions.get(function)?.dynamic_shared_bytes_available(blocks, &state.own().card) as usize)
    }

    fn cuOccupancyMaxPotentialClusterSize(blocks: Out<c_int>, function: Handle, _config: In<LaunchConfig>) {
        let state = driver().healthy()?;
        let most = state.functions.get(function)?.cluster_blocks_max();
        blocks.set(if state.own().card.has_clusters() { most as c_int } else { 1 })
    }

    fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, function: Handle, config: In<LaunchConfig>) {
        let config = config.get()?;
        let shape = super::launch::shape_of(&config)?;
        let state = driver().healthy()?;
        let function = state.functions.get(function)?;
        let threads = shape.block.iter().product();
        let each = function.blocks_per_multiprocessor(threads, u64::from(shape.dynamic_shared_bytes), &state.own().card);
        let blocks: u32 = function.cluster_of(&shape).iter().product();
        clusters.set((each * state.own().card.multiprocessors / blocks.max(1)) as c_int)
    }
}
