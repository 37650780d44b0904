//! Kernel launches.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::driver::abi::{Handle, In, LaunchConfig, entry_points};
use crate::driver::function::Shape;
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::work::Work;

/// `CU_LAUNCH_ATTRIBUTE_…`
const COOPERATIVE: c_uint = 2;
const CLUSTER_DIMENSION: c_uint = 4;
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
const PROGRAMMATIC_EVENT: c_uint = 7;
const LAUNCH_COMPLETION_EVENT: c_uint = 12;

/// What a launch configuration asks for.
pub(crate) fn shape_of(config: &LaunchConfig) -> Answer<Shape> {
    let mut shape = Shape {
        grid: config.grid,
        block: config.block,
        dynamic_shared_bytes: config.dynamic_shared_bytes,
        ..Shape::default()
    };
    for attribute in config.attributes.list(config.attributes_count as usize)? {
        let words = attribute.words;
        match attribute.id {
            COOPERATIVE => shape.cooperative = words[0] != 0,
            CLUSTER_DIMENSION => shape.cluster = Some([words[0], words[1], words[2]]),
            PROGRAMMATIC_STREAM_SERIALIZATION => shape.programmatic = words[0] != 0,
            PROGRAMMATIC_EVENT | LAUNCH_COMPLETION_EVENT => {
                eprintln!("[cuda-emu] CUDA_ERROR_NOT_SUPPORTED: launch attribute {}", attribute.id);
                return Err(Status::NotSupported);
            }
            // Hints: caches, priorities, scheduling.
            _ => {}
        }
    }
    Ok(shape)
}

fn launch(function: Handle, shape: &Shape, stream: Handle, params: In<In<u8>>, extra: In<usize>) -> Answer {
    let mut state = driver().healthy()?;
    let inner = state.stream(stream)?;
    state.check_function(function, inner)?;
    let launch = state.prepare_launch(function, shape, params, extra)?;
    drop(state);
    driver().submit(stream, Work::Launch(Arc::new(launch)))
}

entry_points! {
    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        dynamic_shared_bytes: c_uint,
        stream: Handle,
        params: In<In<u8>>,
        extra: In<usize>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared_bytes, ..Shape::default() };
        launch(function, &shape, stream, params, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        dynamic_shared_bytes: c_uint,
        stream: Handle,
        params: In<In<u8>>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared_bytes, cooperative: true, ..Shape::default() };
        launch(function, &shape, stream, params, In::default())
    }

    fn cuLaunchKernelEx(config: In<LaunchConfig>, function: Handle, params: In<In<u8>>, extra: In<usize>) {
        let config = config.get()?;
        launch(function, &shape_of(&config)?, config.stream, params, extra)
    }
}
