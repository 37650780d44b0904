//! Modules, and what is found in them by name.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};

use crate::driver::abi::{Handle, In, Out, Text, entry_points};
use crate::driver::function::Function;
use crate::driver::image::{self, ImageError, LoadedModule};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::thread;
use crate::module::Module;

/// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// Where the caller wants the reason of a failure, and to be told of kernels that cannot run.
#[derive(Default)]
struct Log {
    address: usize,
    bytes: usize,
}

impl Log {
    fn new(count: c_uint, options: In<c_uint>, values: In<usize>) -> Answer<Self> {
        let mut log = Log::default();
        for index in 0..count as usize {
            match options.at(index)? {
                ERROR_LOG => log.address = values.at(index)?,
                ERROR_LOG_BYTES => log.bytes = values.at(index)? & 0xffff_ffff,
                _ => {}
            }
        }
        Ok(log)
    }

    fn write(&self, text: &str) {
        let Some(room) = self.bytes.checked_sub(1).filter(|_| self.address != 0) else { return };
        let length = text.len().min(room);
        // SAFETY: the caller vouches for a buffer of `bytes` bytes, of which at most all are written.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.address as *mut u8, length);
            *((self.address + length) as *mut u8) = 0;
        }
    }
}

fn load(handle: &Out<Handle>, image: In<u8>, log: &Log) -> Answer {
    let arch = driver().healthy()?.own().card.arch;
    if image.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the caller vouches that the image is one of those that the manual lists.
    let text = unsafe { image::ptx_of(image.pointer(), arch) };
    let loaded = text.and_then(|text| load_ptx(&text));
    let module = loaded.map_err(|error| {
        eprintln!("[cuda-emu] {}: {}", error.status.symbol().to_string_lossy(), error.message);
        log.write(&error.message);
        error.status
    })?;
    let problems: Vec<String> = module.problems().map(ToString::to_string).collect();
    log.write(&problems.join("\n"));
    let context = thread::context()?;
    let mut state = driver().healthy()?;
    let state = &mut *state;
    let loaded = LoadedModule { context, module, functions: BTreeMap::new() };
    handle.set(state.modules.add(&mut state.handles, loaded))
}

/// Loads PTX text, without the state's lock: it may be long. Kernels that cannot run are named.
fn load_ptx(text: &str) -> Result<Module, ImageError> {
    let state = driver().lock();
    let device = state.own().device.clone();
    let arch = device.config().arch;
    if let Some((_, _, module)) = state.decoded.as_ref().filter(|(on, of, _)| *on == arch && of == text) {
        return Ok(module.clone());
    }
    drop(state);
    let target = image::target_of(text);
    let module = Module::load(&device, text).map_err(|error| {
        let runs = target.is_empty() || arch.runs_target(target);
        let status = if runs { Status::InvalidPtx } else { Status::NoBinaryForGpu };
        ImageError { status, message: error.to_string() }
    })?;
    for problem in module.problems() {
        eprintln!("[cuda-emu] not supported, so this kernel cannot be launched: {problem}");
    }
    if !module.has_variables() {
        driver().lock().decoded = Some((arch, text.to_string(), module.clone()));
    }
    Ok(module)
}

fn find_function(module: Handle, name: &str) -> Answer<Handle> {
    let mut state = driver().healthy()?;
    let state = &mut *state;
    let card = state.devices[state.ordinal_of_context(state.modules.get(module)?.context)].card;
    let loaded = state.modules.get_mut(module)?;
    if let Some(known) = loaded.functions.get(name) {
        return Ok(*known);
    }
    if !loaded.module.kernel_names().any(|known| known == name) {
        return Err(Status::NotFound);
    }
    let kernel = loaded.module.kernel(name).map_err(|error| {
        eprintln!("[cuda-emu] CUDA_ERROR_NOT_SUPPORTED: {error}");
        Status::NotSupported
    })?;
    let function = state.functions.add(&mut state.handles, Function::new(module, kernel, &card));
    loaded.functions.insert(name.to_string(), function);
    Ok(function)
}

entry_points! {
    fn cuModuleLoad(module: Out<Handle>, path: Text) {
        let mut image = std::fs::read(path.get()?).map_err(|_| Status::FileNotFound)?;
        image.push(0);
        load(&module, In::from_address(image.as_ptr() as usize), &Log::default())
    }

    fn cuModuleLoadData(module: Out<Handle>, image: In<u8>) {
        load(&module, image, &Log::default())
    }

    fn cuModuleLoadDataEx(module: Out<Handle>, image: In<u8>, count: c_uint, options: In<c_uint>, values: In<usize>) {
        load(&module, image, &Log::new(count, options, values)?)
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: In<c_void>) {
        load(&module, In::from_address(image.pointer() as usize), &Log::default())
    }

    /// Launches that wait keep their kernels.
    fn cuModuleUnload(module: Handle) {
        let mut state = driver().lock();
        state.modules.remove(module)?;
        state.functions.retain(|function| function.module != module);
        state.own().faults.check()
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.set(find_function(module, name.get()?)?)
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Handle) {
        count.set(driver().healthy()?.modules.get(module)?.module.kernel_names().count() as c_uint)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let state = driver().healthy()?;
        let global = state.modules.get(module)?.module.global(name.get()?).ok_or(Status::NotFound)?;
        address.set_if_wanted(global.address);
        bytes.set_if_wanted(global.bytes as usize);
        Ok(())
    }
}
