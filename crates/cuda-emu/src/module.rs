//! What loading PTX gives: kernels, and variables in global memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arch::Arch;
use crate::decode::Program;
use crate::device::Device;
use crate::error::LoadError;
use crate::{decode, ptx};

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the PTX.
    pub name: String,
    /// Offset in the parameter block, bytes.
    pub offset: u32,
    /// Size, bytes: structures are one parameter.
    pub bytes: u32,
    /// Alignment, bytes.
    pub align: u32,
}

/// A module-level `.global` or `.const` variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name in the PTX.
    pub name: String,
    /// Where it lies in the device's memory.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// A kernel, ready to launch. Cheap to clone; keeps its module's variables alive.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) program: Arc<Program>,
    /// The number in its module's target.
    compiled_for: u32,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// The architecture that its PTX is for: 90 of `sm_90a`.
    pub fn compiled_for(&self) -> u32 {
        self.compiled_for
    }

    /// Its parameters, in order; a launch gives them as one block of [`Kernel::param_bytes`].
    pub fn params(&self) -> &[Param] {
        &self.program.params
    }

    /// Size of the parameter block.
    pub fn param_bytes(&self) -> u32 {
        self.program.param_bytes
    }

    /// Statically declared shared memory, bytes.
    pub fn static_shared_bytes(&self) -> u32 {
        self.program.shared_bytes
    }

    /// Local memory per thread, bytes.
    pub fn local_bytes(&self) -> u32 {
        self.program.local_bytes
    }

    /// Threads that a block may have: from `.maxntid` or `.reqntid`, else 1024.
    pub fn threads_max(&self) -> u32 {
        self.threads_named().unwrap_or(1024)
    }

    /// Threads of `.maxntid` or `.reqntid`.
    pub(crate) fn threads_named(&self) -> Option<u32> {
        self.program.block_required.or(self.program.block_max).map(|d| d.iter().product())
    }

    /// The block that a launch must have, where the kernel says so (`.reqntid`).
    pub fn block_required(&self) -> Option<[u32; 3]> {
        self.program.block_required
    }

    /// The cluster that a launch must have, where the kernel says so (`.reqnctapercluster`).
    pub fn cluster_required(&self) -> Option<[u32; 3]> {
        self.program.cluster_required
    }

    /// Registers per thread that a card would use, roughly: the most that live at one time.
    pub fn registers_estimate(&self) -> u32 {
        self.program.registers_estimate
    }
}

/// A loaded module. Cheap to clone, but for its names; clones share its variables.
#[derive(Clone, Debug)]
pub struct Module {
    target: String,
    kernels: BTreeMap<String, Result<Kernel, LoadError>>,
    globals: Arc<GlobalSet>,
}

/// The variables of a module; their memory is freed when the module and all its kernels are gone.
#[derive(Debug)]
pub(crate) struct GlobalSet {
    pub(crate) variables: Vec<Global>,
    memory: crate::memory::Memory,
}

impl Drop for GlobalSet {
    fn drop(&mut self) {
        for variable in &self.variables {
            // An address that this set allocated and nobody else may free.
            let _ = self.memory.free(variable.address);
        }
    }
}

impl Module {
    /// Parses and decodes PTX text and puts its variables into the device's memory.
    ///
    /// A kernel with an instruction that is not supported does not fail the module: it is listed
    /// by [`Module::problems`] and [`Module::kernel`] gives its error.
    ///
    /// # Errors
    /// Text that is no PTX, a target that the device does not run, no memory for variables.
    pub fn load(device: &Device, text: &str) -> Result<Module, LoadError> {
        let unit = ptx::parse(text)?;
        let at_head =
            |message: String| LoadError { kernel: String::new(), line: 1, text: String::new(), message };
        if !device.config().arch.runs_target(unit.target) {
            let found = format!("target {} does not run on {:?}", unit.target, device.config().arch);
            return Err(at_head(found));
        }
        let mut globals = GlobalSet { variables: Vec::new(), memory: device.memory().clone() };
        decode::place_variables(&unit, &mut globals, device.memory())?;
        let globals = Arc::new(globals);
        let compiled_for = unit
            .target
            .chars()
            .filter_map(|c| c.to_digit(10))
            .fold(0u32, |n, digit| n.saturating_mul(10).saturating_add(digit));
        let mut kernels = BTreeMap::new();
        for function in unit.functions.iter().filter(|f| f.entry && f.body.is_some()) {
            let program = decode::program(&unit, function, text, &globals);
            kernels.insert(
                function.name.to_string(),
                program.map(|p| Kernel { program: Arc::new(p), compiled_for }),
            );
        }
        Ok(Module { target: unit.target.to_string(), kernels, globals })
    }

    /// Whether it has variables in global memory, and so a state of its own.
    pub(crate) fn has_variables(&self) -> bool {
        !self.globals.variables.is_empty()
    }

    /// The PTX's `.target`, such as `sm_90a`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Whether a device of this architecture runs the module.
    pub fn runs_on(&self, arch: Arch) -> bool {
        arch.runs_target(&self.target)
    }

    /// Kernels that cannot run here, each with the first instruction that is not supported.
    pub fn problems(&self) -> impl Iterator<Item = &LoadError> {
        self.kernels.values().filter_map(|k| k.as_ref().err())
    }

    /// Names of all kernels, also of those that cannot run.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// There is none (then the error has line 0), or it has an instruction that is not supported.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LoadError> {
        self.kernels.get(name).cloned().unwrap_or_else(|| {
            let message = "the module has no such kernel".to_string();
            Err(LoadError { kernel: name.to_string(), line: 0, text: String::new(), message })
        })
    }

    /// The variable of that name.
    pub fn global(&self, name: &str) -> Option<&Global> {
        self.globals.variables.iter().find(|g| g.name == name)
    }
}
