//! Compiles the CUDA kernels for the feature `cuda`: all of kernels-cu/*.cu become one uncompressed
//! fat binary, whose path the crate gets as `OTTAVA_FATBIN`. Without the feature nothing happens, and
//! the build machine's own GPU, if it has one, is never asked.
//!
//! nvcc is the first of: `NVCC`, `$CUDA_HOME/bin`, `$CUDA_PATH/bin`, the wheels in the Python
//! environment `OTTAVA_CUDA_VENV`, `PATH`, /usr/local/cuda, the wheels in `.cuda-venv` here.
//! `OTTAVA_CUDA_ARCHS` lists the architectures to compile for, all of [`ARCHITECTURES`] without it: in
//! every profile, since a program that was tested should be the one that ships. `80` alone is enough
//! for tests under the emulator and takes a quarter of the time. docs.rs has no nvcc and gets an empty image.
//!
//! Source lines are in the image where cargo builds for tests, since the emulator's reports name them. They
//! are half of an image, so what ships has none; `OTTAVA_CUDA_LINEINFO=1` keeps them for a profiler, 0 leaves
//! them out everywhere.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// What gets machine code of its own, unless `OTTAVA_CUDA_ARCHS` says otherwise.
pub const ARCHITECTURES: &str = "80,86,89,90a,100,120";
/// Nothing of a kernel may live in memory because registers ran out.
const NO_SPILLS: &str = "-v,--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error";
/// How the compiler begins what it calls information: that one wgmma waits for the other, or that warps
/// keep registers that they were to give away.
const PERFORMANCE_LOSS: &str = "Potential Performance Loss";
/// The release of CUDA that the kernels are tested with. Older ones lack architectures; the PTX of newer ones needs
/// newer drivers.
const NVCC: (u32, u32) = (13, 0);
/// 13.0: the PTX of a later one needs a driver later than 580.
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

/// Makes the fat binary and gives its path.
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

/// Whether a compiler is one that the kernels are for, by what its `--version` says; a warning where it is newer.
///
/// # Errors
/// It is older, or does not say what it is.
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

/// What nvcc says of itself.
fn version_of(nvcc: &Path) -> Result<String, String> {
    let output = Command::new(nvcc).arg("--version").output();
    let output = output.map_err(|error| format!("{}: {error}", nvcc.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn cargo_path(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo has not set {name}"))
}

/// A variable that the result depends on.
fn read_env(name: &str) -> Option<OsString> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Processes at a time, as cargo was told.
fn jobs() -> usize {
    env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2).max(1)
}

/// Architectures of a list like `80,90a`, without repetitions.
///
/// # Errors
/// An entry is no number with at most one letter behind it, or there is none.
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

/// Whether source lines are kept: as `OTTAVA_CUDA_LINEINFO` says, else in cargo's profile `debug`, which
/// its profiles for tests count as.
///
/// # Errors
/// The variable is neither 0 nor 1.
pub fn line_info(wish: Option<&str>, profile: Option<&str>) -> Result<bool, String> {
    match wish {
        None => Ok(profile == Some("debug")),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("OTTAVA_CUDA_LINEINFO: expected 0 or 1, found `{other}`")),
    }
}

/// The architecture of the PTX that an architecture's machine code is made from. Its own would be no
/// better, but for 90a: these kernels ask only whether they may wait for one another (90). For 100 and
/// 120 the compiler makes more of its own PTX than the registers hold.
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
/// There is none, or a variable that names it leads nowhere.
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

/// The compiler among the wheels of a Python environment, whatever its Python's version is.
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
/// The folder cannot be read or has none.
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

/// One source that includes all: a module holds one image for each architecture, and linking several
/// would cost the PTX. So names must differ across the files of kernels-cu.
pub fn one_source(names: &[String]) -> String {
    names.iter().map(|name| format!("#include \"{name}\"\n")).collect()
}

/// Calls `work` for all `items`, `threads` at a time, until one fails.
///
/// # Errors
/// Those of `work`: the one of the earliest item.
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

/// nvcc, and the files of one build.
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

    /// Machine code from the very PTX that ships: what `cuda-emu` runs is what a card's code was made of.
    /// And the options for it stay out of the PTX, where they would bind the driver's compiler too.
    fn cubin(&self, arch: &str) -> Result<(), String> {
        let mut command = self.nvcc(&self.file(arch, "cubin"));
        command.args(["-cubin", "-Xptxas", NO_SPILLS]).arg(format!("-arch=sm_{arch}"));
        run(command.arg(self.file(ptx_arch(arch), "ptx")))
    }

    /// A call that writes `to`.
    fn nvcc(&self, to: &Path) -> Command {
        let mut command = Command::new(&self.nvcc);
        command.arg("-o").arg(to);
        if self.line_info {
            command.arg("-lineinfo");
        }
        command
    }

    /// The fat binary of all architectures. Cards that have no code of their own compile the PTX when a
    /// program starts.
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

/// Runs a program to its end; what it says goes to cargo's record of this script, and without the
/// compiler's figures into the error.
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
