//! Compiles the CUDA kernels for the feature `cuda`: all of kernels-cu/*.cu become one uncompressed
//! fat binary; the crate gets its path as `OTTAVA_FATBIN`. Without the feature, nothing is done. The build
//! machine's GPU is never queried.
//!
//! nvcc is the first of: `NVCC`, `$CUDA_HOME/bin`, `$CUDA_PATH/bin`, the wheels in the Python
//! environment `OTTAVA_CUDA_VENV`, `PATH`, /usr/local/cuda, the wheels in `.cuda-venv` here.
//! `OTTAVA_CUDA_ARCHS` lists the target architectures; default: all of [`ARCHITECTURES`]. The default is the
//! same in every profile, so that the tested program is the one that ships. `80` alone is enough for tests
//! under the emulator and takes a quarter of the time. docs.rs has no nvcc and gets an empty image.
//!
//! The image has source lines in cargo's profiles for tests, because the emulator reports them. They are half
//! of an image, so release builds have none. `OTTAVA_CUDA_LINEINFO=1` adds them for a profiler, 0 omits them
//! everywhere.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// Default architectures with machine code in the image; `OTTAVA_CUDA_ARCHS` sets others.
pub const ARCHITECTURES: &str = "80,86,89,90a,100,120";
/// Options of ptxas that make register spills and local memory errors.
const NO_SPILLS: &str = "-v,--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error";
/// Beginning of ptxas's information messages that are treated as errors: wgmmas serialised, or `setmaxnreg`
/// ignored.
const PERFORMANCE_LOSS: &str = "Potential Performance Loss";
/// The release of CUDA that the kernels are tested with. Older releases lack architectures; PTX of newer ones
/// needs newer drivers.
const NVCC: (u32, u32) = (13, 0);
/// Wheels of CUDA 13.0: PTX of a later release needs a driver later than 580.
const WHEELS: &str = "nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* \
                      nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    match fat_binary() {
        Ok(path) => println!("cargo::rustc-env=OTTAVA_FATBIN={}", path.display()),
        Err(message) => message.lines().for_each(|line| println!("cargo::error={line}")),
    }
}

/// Builds the fat binary and returns its path.
fn fat_binary() -> Result<PathBuf, String> {
    let (out, root) = (cargo_path("OUT_DIR")?, cargo_path("CARGO_MANIFEST_DIR")?);
    let image = out.join("kernels.fatbin");
    println!("cargo::rerun-if-changed=kernels-cu");
    if read_env("DOCS_RS").is_some() {
        fs::write(&image, []).map_err(|error| format!("{}: {error}", image.display()))?;
        return Ok(image);
    }
    let nvcc = find_nvcc(&read_env, &root)?;
    println!("cargo::rerun-if-changed={}", nvcc.display());
    check_version(&version_of(&nvcc)?)?.iter().for_each(|warning| println!("cargo::warning={warning}"));
    let list = read_env("OTTAVA_CUDA_ARCHS").map(|list| list.to_string_lossy().into_owned());
    let archs = architectures(list.as_deref().unwrap_or(ARCHITECTURES))?;
    let wish = read_env("OTTAVA_CUDA_LINEINFO").map(|wish| wish.to_string_lossy().into_owned());
    let line_info = line_info(wish.as_deref(), env::var("PROFILE").ok().as_deref())?;
    let kernels = root.join("kernels-cu");
    let compiler = Compiler { nvcc, source: out.join("kernels.cu"), kernels, out, line_info };
    let text = one_source(&sources(&compiler.kernels)?);
    fs::write(&compiler.source, text).map_err(|error| format!("{}: {error}", compiler.source.display()))?;
    let mut ptx_archs: Vec<&str> = archs.iter().map(|arch| ptx_arch(arch)).collect();
    ptx_archs.sort_unstable();
    ptx_archs.dedup();
    in_parallel(&ptx_archs, jobs(), |arch| compiler.ptx(arch))?;
    in_parallel(&archs, jobs(), |arch| compiler.cubin(arch))?;
    compiler.join(&archs, &ptx_archs, &image)?;
    Ok(image)
}

/// Checks the compiler's release in the output of `--version`; returns a warning for a newer one.
///
/// # Errors
/// An older release, or output without a release.
pub fn check_version(said: &str) -> Result<Option<String>, String> {
    let release = said.split_once("release ").map_or("", |(_, rest)| rest);
    let release = release.split([',', ' ', '\n']).next().unwrap_or_default();
    let found = release
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    let (major, minor) = NVCC;
    match found {
        None => {
            Err(format!("nvcc --version: expected a release like {major}.{minor}, found `{}`", said.trim()))
        }
        Some(found) if found < NVCC => Err(format!(
            "nvcc: expected CUDA {major}.{minor}, found {release}, which is too old for these kernels"
        )),
        Some(NVCC) => Ok(None),
        Some(_) => Ok(Some(format!(
            "nvcc of CUDA {release}: tested is {major}.{minor}; cards without code of their own in this program will \
             need a driver of CUDA {release} or later"
        ))),
    }
}

/// The output of `nvcc --version`.
fn version_of(nvcc: &Path) -> Result<String, String> {
    let output = Command::new(nvcc).arg("--version").output();
    let output = output.map_err(|error| format!("{}: {error}", nvcc.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn cargo_path(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo has not set {name}"))
}

/// An environment variable that the build depends on; `None` if unset or empty.
fn read_env(name: &str) -> Option<OsString> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Maximum concurrent processes: cargo's `--jobs`.
fn jobs() -> usize {
    env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2).max(1)
}

/// Architectures of a list like `80,90a`, without repetitions.
///
/// # Errors
/// An entry that is not a number of two or three digits with an optional `a` or `f`, or an empty list.
pub fn architectures(list: &str) -> Result<Vec<String>, String> {
    let mut archs: Vec<String> = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let digits = entry.strip_suffix(['a', 'f']).unwrap_or(entry);
        if !(2..=3).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("OTTAVA_CUDA_ARCHS: expected a list like {ARCHITECTURES}, found `{entry}`"));
        }
        if !archs.iter().any(|arch| arch == entry) {
            archs.push(entry.to_string());
        }
    }
    if archs.is_empty() {
        return Err(format!("OTTAVA_CUDA_ARCHS: expected a list like {ARCHITECTURES}, found nothing"));
    }
    Ok(archs)
}

/// Whether source lines are kept: the value of `OTTAVA_CUDA_LINEINFO`; by default in cargo's profile `debug`,
/// which includes its profiles for tests.
///
/// # Errors
/// A value other than 0 and 1.
pub fn line_info(wish: Option<&str>, profile: Option<&str>) -> Result<bool, String> {
    match wish {
        None => Ok(profile == Some("debug")),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("OTTAVA_CUDA_LINEINFO: expected 0 or 1, found `{other}`")),
    }
}

/// The PTX architecture that an architecture's machine code is compiled from. PTX of its own would be no
/// better, except for 90a: the kernels only test for dependent launches (90). From PTX of their own, the
/// kernels of 100 and 120 would need more registers than there are.
pub fn ptx_arch(arch: &str) -> &'static str {
    match arch {
        "90a" => "90a",
        _ if arch.len() == 2 && arch < "90" => "80",
        _ => "90",
    }
}

/// The compiler's path, by the rules at the head of this file; `root` is the package's folder.
///
/// # Errors
/// No compiler, or a variable with a path where there is none.
pub fn find_nvcc(env: &dyn Fn(&str) -> Option<OsString>, root: &Path) -> Result<PathBuf, String> {
    let program = format!("nvcc{}", env::consts::EXE_SUFFIX);
    if let Some(nvcc) = env("NVCC") {
        let path = PathBuf::from(nvcc);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("NVCC: expected the compiler's path, found no file at {}", path.display()))
        };
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env).map(PathBuf::from);
    if let Some(nvcc) = toolkits.map(|home| home.join("bin").join(&program)).find(|nvcc| nvcc.is_file()) {
        return Ok(nvcc);
    }
    if let Some(venv) = env("OTTAVA_CUDA_VENV").map(PathBuf::from) {
        return in_venv(&venv, &program).ok_or_else(|| {
            format!(
                "OTTAVA_CUDA_VENV: expected a Python environment with {WHEELS}, found no nvcc in {}",
                venv.display()
            )
        });
    }
    let path = env("PATH").unwrap_or_default();
    // A relative folder would lead into whatever folder the script runs in.
    let folders = env::split_paths(&path).filter(|folder| folder.is_absolute());
    let folders = folders.chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders
        .map(|folder| folder.join(&program))
        .find(|nvcc| nvcc.is_file())
        .or_else(|| in_venv(&root.join(".cuda-venv"), &program))
        .ok_or_else(remedy)
}

/// The compiler among the wheels of a Python environment of any Python version.
fn in_venv(venv: &Path, program: &str) -> Option<PathBuf> {
    let libraries = fs::read_dir(venv.join("lib")).into_iter().flatten().flatten();
    let pythons = libraries.map(|python| python.path().join("site-packages"));
    pythons
        .chain([venv.join("Lib").join("site-packages")])
        .map(|packages| packages.join("nvidia").join("cu13").join("bin").join(program))
        .find(|nvcc| nvcc.is_file())
}

fn remedy() -> String {
    let quoted: Vec<String> = WHEELS.split_whitespace().map(|wheel| format!("'{wheel}'")).collect();
    format!(
        "the feature `cuda` needs nvcc, and none was found: set NVCC or CUDA_HOME, or get one by: \
         python3 -m venv cuda-venv && cuda-venv/bin/pip install {} && export OTTAVA_CUDA_VENV=$PWD/cuda-venv",
        quoted.join(" ")
    )
}

/// Names of the kernels' files, sorted.
///
/// # Errors
/// A folder that cannot be read or has no kernels.
pub fn sources(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".cu")).collect();
    names.sort();
    if names.is_empty() {
        Err(format!("{}: expected .cu files, found none", folder.display()))
    } else {
        Ok(names)
    }
}

/// One source that includes all files: a module holds one image per architecture, and linking several sources
/// would lose the PTX. So names must differ across the files of kernels-cu.
pub fn one_source(names: &[String]) -> String {
    names.iter().map(|name| format!("#include \"{name}\"\n")).collect()
}

/// Calls `work` for all `items`, `threads` at a time, until one fails.
///
/// # Errors
/// The error of `work` for the earliest failed item.
pub fn in_parallel<T: Sync>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let waiting = Mutex::new(items.iter().enumerate());
    let failures = Mutex::new(Vec::new());
    let worker = || {
        loop {
            let next = waiting.lock().map(|mut waiting| waiting.next());
            let Ok(Some((index, item))) = next else { return };
            if let Err(message) = work(item) {
                let (Ok(mut failures), Ok(mut waiting)) = (failures.lock(), waiting.lock()) else { return };
                failures.push((index, message));
                waiting.by_ref().for_each(drop);
            }
        }
    };
    thread::scope(|scope| (0..threads.min(items.len())).for_each(|_| drop(scope.spawn(worker))));
    let failures = failures.into_inner().map_err(|_| "a thread of the build script has failed")?;
    failures.into_iter().min().map_or(Ok(()), |(_, message)| Err(message))
}

/// nvcc and the files of one build.
struct Compiler {
    nvcc: PathBuf,
    source: PathBuf,
    kernels: PathBuf,
    out: PathBuf,
    line_info: bool,
}

impl Compiler {
    fn ptx(&self, arch: &str) -> Result<(), String> {
        let mut command = self.nvcc(&self.file(arch, "ptx"));
        command.args(["-ptx", "-std=c++17", "-O3", "-Werror", "all-warnings"]);
        command.arg(format!("-arch=compute_{arch}")).arg("-I").arg(&self.kernels);
        run(command.arg(&self.source))
    }

    /// Compiles machine code from the PTX that ships, so that `cuda-emu` runs the source of a GPU's code. The
    /// options stay out of the PTX, where they would apply to the driver's compiler, too.
    fn cubin(&self, arch: &str) -> Result<(), String> {
        let mut command = self.nvcc(&self.file(arch, "cubin"));
        command.args(["-cubin", "-Xptxas", NO_SPILLS]).arg(format!("-arch=sm_{arch}"));
        run(command.arg(self.file(ptx_arch(arch), "ptx")))
    }

    /// An nvcc command that writes `to`.
    fn nvcc(&self, to: &Path) -> Command {
        let mut command = Command::new(&self.nvcc);
        command.arg("-o").arg(to);
        if self.line_info {
            command.arg("-lineinfo");
        }
        command
    }

    /// Writes the fat binary of all architectures. On other GPUs, the driver compiles the PTX when a program
    /// starts.
    fn join(&self, archs: &[String], ptx_archs: &[&str], image: &Path) -> Result<(), String> {
        let fatbinary = self.nvcc.with_file_name(format!("fatbinary{}", env::consts::EXE_SUFFIX));
        let mut command = Command::new(fatbinary);
        command.arg("-64").arg("--compress=false").arg(format!("--create={}", image.display()));
        let entry = |kind: &str, arch: &str, file: PathBuf| {
            format!("--image3=kind={kind},sm={arch},file={}", file.display())
        };
        command.args(archs.iter().map(|arch| entry("elf", arch, self.file(arch, "cubin"))));
        command.args(ptx_archs.iter().map(|arch| entry("ptx", arch, self.file(arch, "ptx"))));
        run(&mut command)
    }

    fn file(&self, arch: &str, extension: &str) -> PathBuf {
        self.out.join(format!("kernels.sm_{arch}.{extension}"))
    }
}

/// Runs a program to its end. Its output goes to cargo's log of this script, and, without the compiler's
/// resource figures, into the error.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    if output.status.success() && !said.contains(PERFORMANCE_LOSS) {
        return Ok(());
    }
    let figures = |line: &&str| {
        line.starts_with("ptxas info") && !line.contains(PERFORMANCE_LOSS)
            || line.contains(" bytes stack frame")
    };
    let reasons: Vec<&str> = said.lines().filter(|line| !figures(line)).collect();
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    Err(format!("{program} {}: {}\n{}", arguments.join(" "), output.status, reasons.join("\n")))
}
