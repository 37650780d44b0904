//! Pulls from Python wheels that the tests make, with a shell script in the place of Python.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::path::EntryPath;
use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::super::catalog::Wheel;
use super::*;

/// Script of a `pip` that downloads the files of `FOLDER/NAME/` for the requirement `NAME==1`.
const COPY: &str =
    "read requirement rest < \"$requirements\"; cp \"$folder/${requirement%%==*}/\"* \"$target\"";

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn sha256_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A wheel of these members, compressed every other time.
fn wheel_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut bytes);
    for (number, (name, content)) in members.iter().enumerate() {
        let is_stored = number % 2 == 1;
        let method = if is_stored { CompressionMethod::STORE } else { CompressionMethod::DEFLATE };
        let file = archive.new_file(EntryPath::verbatim(name.as_bytes()));
        let (mut entry, config) = file.compression_method(method).start().unwrap();
        let descriptor = if is_stored {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(content).unwrap();
            writer.finish().unwrap().1
        } else {
            let mut writer = config.wrap(DeflateEncoder::new(&mut entry, Compression::fast()));
            writer.write_all(content).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        };
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

/// A package index: for each requirement a folder with the files that `pip` would download.
struct Index {
    folder: tempfile::TempDir,
    wheels: Vec<Wheel>,
}

impl Index {
    fn new() -> Index {
        Index { folder: tempfile::tempdir().unwrap(), wheels: Vec::new() }
    }

    /// A package of one file, with the SHA-256 of it.
    fn add(&mut self, file: &str, bytes: &[u8], member: &'static str) {
        let name = format!("test{}", self.wheels.len());
        fs::create_dir(self.folder.path().join(&name)).unwrap();
        fs::write(self.folder.path().join(&name).join(file), bytes).unwrap();
        let (requirement, sha256) = (leak(format!("{name}==1")), leak(sha256_of(bytes)));
        self.wheels.push(Wheel { requirement, sha256, member });
    }

    /// Wheels with a member each: `a` and `b`.
    fn of(parts: [&[u8]; 2]) -> Index {
        let mut index = Index::new();
        for (name, part) in ["a", "b"].into_iter().zip(parts) {
            index.add("test.whl", &wheel_of(&[(name, part), ("c", b"another")]), name);
        }
        index
    }

    /// One wheel of these members, of which `a` is the model's file.
    fn of_members(members: &[(&str, &[u8])]) -> Index {
        let mut index = Index::new();
        index.add("test.whl", &wheel_of(members), "a");
        index
    }

    fn pull(self, cache: &Cache) -> Result<Pulled, String> {
        self.pull_by(COPY, cache)
    }

    /// Pulls the test's entry by a script in the place of Python.
    fn pull_by(self, script: &str, cache: &Cache) -> Result<Pulled, String> {
        let (sources, entry) = self.sources_and_entry(script);
        let pulled = fetch(&Place::new(entry, cache.0.path()), &sources, &limits(), Check::Bytes);
        let left: Vec<_> = cache.names().into_iter().filter(|name| name.ends_with(".wheels")).collect();
        assert_eq!(left, [] as [&str; 0]);
        pulled.map_err(|failure| match failure {
            Failure::Failed(message) => message,
            other => panic!("expected a failure of the work, found {other:?}"),
        })
    }

    fn sources_and_entry(&self, script: &str) -> (Sources, &'static Entry) {
        let folder = self.folder.path();
        let python = folder.join("python3");
        let head = format!(
            "#!/bin/sh\nfolder='{}'\narguments=$*\nwhile [ $# -gt 0 ]; do\ncase \"$1\" in\n-d) target=$2;;\n\
             -r) requirements=$2;;\nesac\nshift\ndone\n",
            folder.display()
        );
        fs::write(&python, format!("{head}{script}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let (endpoint, python) = (None, Some(python));
        let sources = Sources { offline: None, endpoint, token: None, network: Network::default(), python };
        let wheels = self.wheels.iter().map(|wheel| Wheel { ..*wheel }).collect::<Vec<_>>();
        (sources, Box::leak(Box::new(Entry { hub: None, wheels: wheels.leak(), ..*entry() })))
    }
}

/// The pull of such an index fails with these words and leaves nothing.
#[track_caller]
fn is_refused(index: Index, words: &str) {
    let cache = Cache::new();
    let error = index.pull(&cache).unwrap_err();
    assert!(error.contains(words), "expected {words:?} in {error:?}");
    assert_eq!(cache.names(), [] as [&str; 0]);
}

#[test]
fn members_join_in_order_and_only_the_right_bytes_pass() {
    let (a, b) = content().split_at(1000);
    is_refused(Index::of([b, a]), "expected SHA-256");
    is_refused(Index::of([content(), b"x"]), "b: expected 300000 bytes in all, found more");
    let cache = Cache::new();
    let fewer = Index::of([a, b"x"]).pull(&cache).unwrap_err();
    assert!(fewer.contains("expected 300000 bytes, found 1001"), "{fewer}");
    assert_eq!(Index::of([a, b]).pull(&cache), Ok(Pulled::Fetched));
    cache.is_done();
}

#[test]
fn pip_is_isolated_and_may_take_nothing_but_the_wheels_of_the_catalogue() {
    let (a, b) = content().split_at(BYTES / 2);
    let (cache, index) = (Cache::new(), Index::of([a, b]));
    let hashes =
        index.wheels.iter().map(|wheel| format!("{} --hash=sha256:{}\n", wheel.requirement, wheel.sha256));
    let expected: String = hashes.collect();
    let seen = tempfile::tempdir().unwrap();
    let record = format!(
        "cd '{}'; echo \"$arguments\" >> arguments; ls -A \"$OLDPWD\" >> files; cat \"$requirements\" >> requirements",
        seen.path().display()
    );
    assert_eq!(index.pull_by(&format!("{record}; {COPY}"), &cache), Ok(Pulled::Fetched));
    cache.is_done();
    let read = |name: &str| fs::read_to_string(seen.path().join(name)).unwrap();
    let arguments = read("arguments");
    assert_eq!(arguments.lines().count(), 2, "{arguments}");
    for call in arguments.lines() {
        assert!(call.starts_with("-I -m pip download "), "{call}");
        for option in ["--only-binary=:all:", "--require-hashes", "--no-deps"] {
            assert!(call.contains(&format!(" {option} ")), "{call}");
        }
    }
    assert_eq!(read("files"), "", "the current folder is empty");
    assert_eq!(read("requirements"), expected);
}

#[test]
fn a_wheel_of_another_hash_is_not_opened() {
    let mut index = Index::of_members(&[("a", content())]);
    index.wheels[0].sha256 = leak("0".repeat(64));
    is_refused(index, "test0==1: expected SHA-256 00000000");
    // The hash is checked first, also of a file that is no archive.
    let mut index = Index::new();
    index.add("test.whl", b"no archive", "a");
    index.wheels[0].sha256 = leak("0".repeat(64));
    is_refused(index, "test0==1: expected SHA-256 00000000");
}

#[test]
fn a_download_that_is_not_one_wheel_is_refused() {
    let mut sdist = Index::new();
    sdist.add("test-1.tar.gz", b"setup.py", "a");
    is_refused(sdist, "test0==1: expected one wheel, found test-1.tar.gz");
    let two = Index::of_members(&[("a", content())]);
    fs::write(two.folder.path().join("test0/other.whl"), "").unwrap();
    is_refused(two, "test0==1: expected one wheel, found other.whl, test.whl");
    let (cache, folder) = (Cache::new(), Index::of_members(&[("a", content())]));
    let error = folder.pull_by("mkdir \"$target/test.whl\"", &cache).unwrap_err();
    assert!(error.contains("expected a regular file, found a directory"), "{error}");
}

#[test]
fn odd_archives_are_refused() {
    for path in ["../a", "/a", "b/../../a", "b\\a", "C:a", "./a"] {
        let words = format!("a: expected paths within the wheel, found {path}");
        is_refused(Index::of_members(&[("a", content()), (path, content())]), &words);
    }
    is_refused(
        Index::of_members(&[("a", content()), ("a", content())]),
        "a: expected one member of this name",
    );
    is_refused(Index::of_members(&[("b", content())]), "a: not in the wheel");
    let mut text = Index::new();
    text.add("test.whl", b"no archive", "a");
    is_refused(text, "a: ");
    let larger = [content(), b"x"].concat();
    is_refused(Index::of_members(&[("a", &larger)]), "a: expected 300000 bytes in all, found more");
    let mut unknown = wheel_of(&[("a", content())]);
    let methods: Vec<_> =
        (0..unknown.len() - 4).filter(|&at| unknown[at..].starts_with(b"PK\x01\x02")).collect();
    unknown[methods[0] + 10] = 12;
    let mut index = Index::new();
    index.add("test.whl", &unknown, "a");
    is_refused(index, "a: expected a stored or deflated member");
}

/// The sizes in an archive's headers may be smaller than the contents.
#[test]
fn a_member_that_is_larger_than_it_claims_is_refused() {
    let larger = vec![0; 64 << 20];
    let mut bomb = wheel_of(&[("a", &larger)]);
    let size = (larger.len() as u32).to_le_bytes();
    let claims: Vec<_> = (0..bomb.len() - 4).filter(|&at| bomb[at..at + 4] == size).collect();
    assert!(!claims.is_empty());
    for at in claims {
        bomb[at..at + 4].copy_from_slice(&(BYTES as u32).to_le_bytes());
    }
    let mut index = Index::new();
    index.add("test.whl", &bomb, "a");
    is_refused(index, "a: ");
}

#[test]
fn offline_nobody_is_asked() {
    let (cache, index) = (Cache::new(), Index::of_members(&[("a", content())]));
    let asked = cache.0.path().join("asked");
    let (sources, entry) = index.sources_and_entry(&format!(": > {}", asked.display()));
    let sources = Sources { offline: Some("OTTAVA_OFFLINE"), ..sources };
    let failure = fetch(&Place::new(entry, cache.0.path()), &sources, &limits(), Check::Bytes).unwrap_err();
    let words = "Python package: offline by request: OTTAVA_OFFLINE is set";
    assert!(matches!(&failure, Failure::Failed(why) if why.contains(words)), "{failure:?}");
    assert!(!asked.exists());
}

#[test]
fn a_failing_tool_says_why() {
    let cache = Cache::new();
    let pull = |script: &str| Index::of_members(&[("a", content())]).pull_by(script, &cache).unwrap_err();
    let error = pull("echo first >&2; echo last >&2; exit 1");
    assert!(error.contains("python3: last"), "{error}");
    let error = pull("echo 'ERROR: other hashes' >&2; echo '  got abc' >&2; exit 1");
    assert!(error.contains("python3: ERROR: other hashes"), "{error}");
    let error = pull("exit 3");
    assert!(error.contains("exit status: 3"), "{error}");
    let error = pull("exit 0");
    assert!(error.contains("test0==1: expected one wheel, found nothing"), "{error}");
    assert_eq!(cache.names(), [] as [&str; 0]);
    let error = cache.pull(&Hub::new(|_, _, stream| send(stream, "404 No", b""))).unwrap_err();
    assert!(error.contains("Python package: not there"), "{error}");
    let (sources, entry) = Index::of_members(&[("a", content())]).sources_and_entry("");
    let sources = Sources { python: None, ..sources };
    let failure = fetch(&Place::new(entry, cache.0.path()), &sources, &limits(), Check::Bytes).unwrap_err();
    assert!(
        matches!(&failure, Failure::Failed(why) if why.contains("python3: not found in PATH")),
        "{failure:?}"
    );
}

#[test]
fn a_hanging_tool_is_ended_with_all_that_it_started() {
    let (cache, pids) = (Cache::new(), tempfile::tempdir().unwrap());
    let pid = pids.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait; sleep 600", pid.display());
    let began = Instant::now();
    let error = Index::of_members(&[("a", content())]).pull_by(&script, &cache).unwrap_err();
    assert!(error.contains("ended after") && began.elapsed() < Duration::from_secs(10), "{error}");
    let child: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let is_gone = || {
        let state = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z")
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while cfg!(target_os = "linux") && !is_gone() {
        assert!(Instant::now() < deadline, "process {child} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(cache.names(), [] as [&str; 0]);
}

#[test]
fn a_tool_that_outlives_its_pull_keeps_the_lock() {
    let cache = Cache::new();
    let mut held = Held::acquire(&cache.place(), &limits()).unwrap();
    held.append(&content()[..7]).unwrap();
    let mut orphan =
        std::process::Command::new("sleep").arg("600").stdin(held.lent().unwrap()).spawn().unwrap();
    drop(held);
    fs::create_dir(cache.place().wheels()).unwrap();
    let short = Limits { wait: Duration::from_millis(200), ..limits() };
    let waited = cache.pull_with(&Hub::good(), &short);
    orphan.kill().unwrap();
    orphan.wait().unwrap();
    assert!(waited.is_err_and(|error| error.contains("another process")));
    assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Fetched));
    cache.is_done();
}
