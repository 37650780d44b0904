//! A table's rows and how they run: kernels that are right, and the bugs put into them.

use std::fmt;

use cuda_emu::{Arch, Device, DeviceConfig, Launch, LaunchError, Module, launch};

use crate::support::edit::{Edit, edited};
use crate::support::upload;

/// PTX with the source it was compiled from.
pub struct File {
    pub ptx: &'static str,
    pub source: &'static str,
    pub arch: Arch,
}

/// A kernel with its data and its answer: gives what was wrong.
pub type Case = fn(&str, Arch, u64) -> Result<(), Found>;

/// A bug: a kernel, what is changed about it, and what must be reported.
pub struct Bug {
    pub name: &'static str,
    pub file: &'static File,
    pub kernel: &'static str,
    /// The case that passes, with the PTX as it is.
    pub good: Case,
    /// The same, or one that launches it wrongly.
    pub bad: Case,
    pub edits: &'static [Edit],
    /// What may be reported, by the name of the [`cuda_emu::FaultKind`]; `Wrong` is a wrong answer.
    pub kinds: &'static [&'static str],
    /// Part of a source line that the report names, if it names one.
    pub line: &'static str,
}

/// What was wrong.
#[derive(Debug)]
pub struct Found {
    pub kind: String,
    pub kernel: String,
    /// File and line, innermost first.
    pub lines: Vec<(String, u32)>,
    #[allow(dead_code, reason = "the debug form shows it")]
    pub text: String,
}

impl Found {
    fn wrong(text: String) -> Self {
        Self { kind: "Wrong".to_string(), kernel: String::new(), lines: Vec::new(), text }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

impl From<LaunchError> for Found {
    fn from(error: LaunchError) -> Self {
        let LaunchError::Fault(fault) = error else { return Self::wrong(error.to_string()) };
        let variant = format!("{:?}", fault.kind);
        let end = variant.find(|c: char| !c.is_alphanumeric()).unwrap_or(variant.len());
        Self {
            kind: variant[..end].to_string(),
            kernel: fault.place.kernel.clone(),
            lines: fault.place.source.iter().map(|line| (line.file.clone(), line.line)).collect(),
            text: fault.to_string(),
        }
    }
}

impl Bug {
    /// What is not as the row says, if anything.
    pub fn check(&self, seed: u64) -> Result<(), String> {
        let ptx = edited(self.file.ptx, self.edits);
        let Err(found) = (self.bad)(&ptx, self.file.arch, seed) else {
            return Err(format!("{}: seed {seed}: not found", self.name));
        };
        let right = |what: &str, is: bool| {
            if is { Ok(()) } else { Err(format!("{}: seed {seed}: {what}: {found}", self.name)) }
        };
        right("another kind", self.kinds.contains(&found.kind.as_str()))?;
        right("another kernel", found.kind == "Wrong" || found.kernel == self.kernel)?;
        let lines =
            |(_, line): &(String, u32)| self.file.source.lines().nth(*line as usize - 1).unwrap_or("");
        let named = found.lines.iter().filter(|(file, _)| file.ends_with(".cu")).map(lines);
        right("another line", self.line.is_empty() || named.clone().any(|text| text.contains(self.line)))
    }

    /// Fails if the kernel as it is does not pass.
    pub fn check_good(&self, seed: u64) -> Result<(), String> {
        (self.good)(self.file.ptx, self.file.arch, seed)
            .map_err(|found| format!("{}: seed {seed}: false alarm: {found}", self.name))
    }
}

/// A device with a module.
pub struct Scene {
    pub device: Device,
    module: Module,
    cooperative: bool,
}

/// Blocks, threads, bytes of dynamic shared memory.
pub type Shape = (u32, u32, u32);

impl Scene {
    pub fn new(ptx: &str, arch: Arch, seed: u64) -> Self {
        // A spinning kernel shall not keep the test waiting.
        let config = DeviceConfig { arch, seed, warp_instructions_max: 3_000_000, ..DeviceConfig::default() };
        let device = Device::new(config);
        let module = Module::load(&device, ptx).unwrap();
        Self { device, module, cooperative: false }
    }

    /// All blocks of its launches run at the same time.
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// Launches a kernel with its parameters, each as its bytes.
    pub fn launch(&self, name: &str, (grid, block, shared): Shape, params: &[&[u8]]) -> Result<(), Found> {
        self.launch_grid(name, [grid, 1, 1], (block, shared), params)
    }

    /// The same for a grid of more than one dimension.
    pub fn launch_grid(
        &self,
        name: &str,
        grid: [u32; 3],
        (block, shared): (u32, u32),
        params: &[&[u8]],
    ) -> Result<(), Found> {
        let kernel = self.module.kernel(name).unwrap();
        let mut bytes = vec![0; kernel.param_bytes() as usize];
        assert_eq!(kernel.params().len(), params.len(), "{name}");
        for (param, value) in kernel.params().iter().zip(params) {
            bytes[param.offset as usize..][..param.bytes as usize].copy_from_slice(value);
        }
        let plain = Launch::new(&kernel, grid, [block, 1, 1], &bytes);
        let whole = Launch { dynamic_shared_bytes: shared, cooperative: self.cooperative, ..plain };
        launch(&self.device, &whole)?;
        Ok(())
    }

    /// Device memory with nothing in it.
    pub fn room(&self, bytes: usize) -> u64 {
        self.device.memory().alloc(bytes as u64).unwrap()
    }

    pub fn floats(&self, values: &[f32]) -> u64 {
        upload(&self.device, values, |v| v.to_le_bytes())
    }

    pub fn ints(&self, values: &[i32]) -> u64 {
        upload(&self.device, values, |v| v.to_le_bytes())
    }

    pub fn halves(&self, values: &[u16]) -> u64 {
        upload(&self.device, values, |v| v.to_le_bytes())
    }

    pub fn bytes(&self, values: &[u8]) -> u64 {
        upload(&self.device, values, |v| [*v])
    }

    fn words<T>(&self, address: u64, count: usize, from: impl Fn([u8; 4]) -> T) -> Vec<T> {
        let mut bytes = vec![0; count * 4];
        self.device.memory().copy_out(address, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|word| from(word.try_into().unwrap())).collect()
    }

    /// Wrong unless the floats at an address are near these.
    pub fn expect(&self, address: u64, wanted: &[f64], tolerance: f64) -> Result<(), Found> {
        near(&self.words(address, wanted.len(), f32::from_le_bytes), wanted, tolerance)
    }

    /// Wrong unless the words at an address are these.
    pub fn expect_ints(&self, address: u64, wanted: &[i32]) -> Result<(), Found> {
        let found = self.words(address, wanted.len(), i32::from_le_bytes);
        if found == wanted { Ok(()) } else { Err(Found::wrong(format!("{found:?} instead of {wanted:?}"))) }
    }
}

/// Wrong unless all values are near these; NaN is near nothing.
pub fn near(found: &[f32], wanted: &[f64], tolerance: f64) -> Result<(), Found> {
    let far = |(found, wanted): (&f32, &f64)| {
        let difference = (f64::from(*found) - wanted).abs();
        difference.is_nan() || difference > tolerance * (1.0 + wanted.abs())
    };
    match found.iter().zip(wanted).position(far) {
        None => Ok(()),
        Some(n) => Err(Found::wrong(format!("element {n}: {} instead of {}", found[n], wanted[n]))),
    }
}

/// A row: name, file and kernel, the case that passes (and the one that does not, where it is another),
/// edits, kinds, line.
macro_rules! bug {
    ($name:literal, $file:ident.$kernel:literal, $good:expr, $bad:expr, $edits:expr, $kinds:expr, $line:literal) => {
        $crate::scene::Bug {
            name: $name,
            file: &$file,
            kernel: $kernel,
            good: $good,
            bad: $bad,
            edits: &$edits,
            kinds: &$kinds,
            line: $line,
        }
    };
    ($name:literal, $file:ident.$kernel:literal, $case:expr, $edits:expr, $kinds:expr, $line:literal) => {
        $crate::scene::bug!($name, $file.$kernel, $case, $case, $edits, $kinds, $line)
    };
}
pub(crate) use bug;
