//! Tests of regular-file checks, atomic replacement, and removal of stale temporaries.

use std::io::Write;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A temporary of a killed writer.
fn left_over(folder: &Path, host: &str, number: u64) -> PathBuf {
    let path = folder.join(temporary_name(OsStr::new("model.packed"), host, number));
    fs::write(&path, "cut short").unwrap();
    path
}

fn make_old(path: &Path) {
    let long_ago = SystemTime::now() - 2 * STALE_AFTER;
    File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
}

#[test]
fn threads_that_write_one_target_do_not_remove_each_others_files() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..500_u32 {
                    let temporary = Temporary::beside(&target).unwrap();
                    temporary.file().write_all(&round.to_le_bytes()).unwrap();
                    temporary.rename_unsynced(&target).unwrap();
                }
            });
        }
    });
    drop(Temporary::beside(&target).unwrap());
    assert_eq!(names(folder.path()), ["target"]);
    assert_eq!(fs::read(&target).unwrap().len(), 4);
}

#[test]
fn what_a_killed_writer_left_is_removed_and_what_a_live_one_holds_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (path, host) = (folder.path(), host());
    let live = Temporary::beside(&path.join("other")).unwrap();
    let live_name = live.path.file_name().unwrap().to_str().unwrap().to_owned();
    let killed = [left_over(path, &host, 7), left_over(path, &host, 8)];
    remove_stale(path);
    if host.is_empty() {
        // Without a host id only the age decides.
        killed.iter().for_each(|file| make_old(file));
        remove_stale(path);
    }
    assert_eq!(names(path), [live_name.as_str()]);
    // A new writer removes stale temporaries, too.
    let old = left_over(path, &host, 9);
    make_old(&old);
    Temporary::beside(&path.join("new")).unwrap().rename_to(&path.join("new")).unwrap();
    assert_eq!(names(path), [live_name.as_str(), "new"]);
    live.rename_to(&path.join("other")).unwrap();
    assert_eq!(names(path), ["new", "other"]);
}

#[test]
fn another_hosts_temporary_is_removed_a_day_later_unless_it_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = left_over(folder.path(), "89abcdef", 0);
    remove_stale(folder.path());
    assert!(path.exists(), "its writer may be alive: its locks are not seen here");
    make_old(&path);
    let lock = File::options().write(true).open(&path).unwrap();
    lock.lock().unwrap();
    remove_stale(folder.path());
    assert!(path.exists(), "somebody holds it");
    drop(lock);
    remove_stale(folder.path());
    assert!(!path.exists());
}

#[test]
fn what_is_not_a_temporary_of_ours_stays() {
    let folder = tempfile::tempdir().unwrap();
    let host = host();
    let strangers = [
        "model.packed".to_owned(),
        ".model.packed.tmp".into(),
        ".model.packed.4711-0.tmp".into(),
        format!(".ottava-{host}-12-.tmp"),
        format!(".ottava-{host}-12-0-1.tmp"),
        format!(".ottava-{host}-12-0.tmp.bak"),
        format!(".ottava-{host}-x-0.tmp"),
        ".ottava-hostname-12-0.tmp".into(),
    ];
    for name in &strangers {
        let path = folder.path().join(name);
        fs::write(&path, "mine").unwrap();
        make_old(&path);
    }
    // A folder and a link with names of temporaries.
    fs::create_dir(folder.path().join(format!(".ottava-{host}-12-0.tmp"))).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("model.packed", folder.path().join(format!(".ottava-{host}-12-1.tmp")))
        .unwrap();
    let before = names(folder.path());
    remove_stale(folder.path());
    remove_stale(&folder.path().join("no-such-folder"));
    assert_eq!(names(folder.path()), before);
}

#[test]
fn a_name_without_a_folder_is_in_the_current_one() {
    for (path, folder) in [("a", "."), ("b/a", "b"), ("/a", "/"), ("./a", "."), ("../a", "..")] {
        assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
    }
}

#[test]
fn names_of_any_length_and_alphabet_have_temporaries_that_are_found_again() {
    let long = "m".repeat(250);
    for name in ["a", "modèle.gguf", "a-b-c.ottava-12.tmp", &long[..NAME_BYTES_MAX], &long] {
        let temporary = temporary_name(OsStr::new(name), "0123abcd", u64::MAX);
        assert!(temporary.len() <= 255, "{name}");
        assert_eq!(host_of(&temporary), Some("0123abcd"), "{name}");
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join(name);
        Temporary::beside(&target).unwrap().rename_unsynced(&target).unwrap();
        assert_eq!(names(folder.path()), [name]);
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let name = temporary_name(OsStr::from_bytes(b"mod\xe8le"), "0123abcd", 3);
        assert_eq!(host_of(&name), Some("0123abcd"));
    }
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "content").unwrap();
    std::os::unix::fs::symlink("file", path("link")).unwrap();
    assert_eq!(open_regular(&path("link")).unwrap().1.len(), 7);
    fs::create_dir(path("folder")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("pipe", path("link-to-pipe")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    let kinds = [
        (path("folder"), "a directory"),
        (path("pipe"), "a named pipe"),
        (path("link-to-pipe"), "a named pipe"),
        (path("socket"), "a socket"),
        ("/dev/zero".into(), "a character device"),
    ];
    for (path, found) in kinds {
        let error = open_regular(&path).unwrap_err();
        assert_eq!(error.to_string(), NotRegular { found }.to_string(), "{}", path.display());
        let error = Temporary::beside(&path).unwrap_err();
        assert_eq!(error.to_string(), NotRegular { found }.to_string(), "{}", path.display());
    }
    assert_eq!(open_regular(&path("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(names(folder.path()), ["file", "folder", "link", "link-to-pipe", "pipe", "socket"]);
}
