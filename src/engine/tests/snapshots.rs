//! Saving and restoring prompts, alone and while others decode.

use super::*;
use crate::kv::snapshot::{self, SnapshotError, SnapshotHeader};
use crate::model::Decoder;

#[test]
fn saving_and_restoring_while_others_decode_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let handle = spawn(30, EngineConfig::default());
    let decoding: Vec<_> = (0..8).map(|seed| handle.submit(request(seed, 30, 120)).unwrap()).collect();
    for seed in 20..30 {
        let path = folder.path().join(format!("prompt{seed}"));
        let asked = request(seed, 100, 10);
        handle.save(&asked.prompt, &path).unwrap();
        assert_eq!(handle.restore(&path).unwrap(), 100);
        let expected = expected(&asked);
        assert_eq!(tokens(&handle, asked), expected, "prompt {seed}");
    }
    for (seed, generation) in (0..8).zip(decoding) {
        assert_eq!(read(generation).0, expected(&request(seed, 30, 120)), "request {seed}");
    }
    let stats = settled(&handle);
    let (page, snapshots) = (8 * 16, stats.memory.snapshots);
    assert_eq!((snapshots.bytes, snapshots.bytes_max), (0, 7 * page), "a prompt of 7 pages at a time");
}

#[test]
fn restoring_twice_or_what_is_cached_is_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    let handle = spawn(64, EngineConfig::default());
    let asked = || request(8, 100, 20);
    handle.save(&asked().prompt, &path).unwrap();
    for _ in 0..2 {
        assert_eq!(handle.restore(&path).unwrap(), 100);
        assert_eq!(settled(&handle).pages_cached, 6);
    }
    let (found, end) = read(handle.submit(asked()).unwrap());
    assert_eq!((found, end.unwrap().1.cached_tokens), (expected(&asked()), 96));
    // The running sequence shares the pages that a restore finds there already.
    let running = handle.submit(asked()).unwrap();
    assert_eq!(handle.restore(&path).unwrap(), 100);
    assert_eq!(read(running).0, expected(&asked()));
    settled(&handle);
}

/// A page registered for a prefix is never written, not even with the same content.
#[test]
fn only_pages_that_are_not_cached_are_filled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    let fake = Fake::new(64);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    spawn(64, EngineConfig::default()).save(&request(8, 100, 1).prompt, &path).unwrap();
    for imported in [7, 7 + 1, 7 + 2] {
        assert_eq!(handle.restore(&path).unwrap(), 100);
        assert_eq!(probe.imported.load(std::sync::atomic::Ordering::SeqCst), imported);
    }
    settled(&handle);
}

#[test]
fn the_callers_thread_reads_the_file_while_the_engines_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    std::fs::write(&path, [7; 500]).unwrap();
    let fake = Fake::new(64);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    probe.close_gate();
    let running = handle.submit(request(1, 10, 5)).unwrap();
    probe.wait_for_a_step();
    assert!(matches!(handle.restore(&path), Err(EngineError::Snapshot(SnapshotError::NotASnapshot))));
    let missing = folder.path().join("missing");
    assert!(matches!(handle.restore(&missing), Err(EngineError::Snapshot(SnapshotError::Io { .. }))));
    probe.open_gate();
    assert!(read(running).1.is_ok());
}

#[test]
fn what_does_not_belong_here_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    spawn(64, EngineConfig::default()).save(&request(8, 100, 1).prompt, &path).unwrap();
    let off = EngineConfig { share_prefixes: false, ..EngineConfig::default() };
    let refusals = [
        (Handle::spawn(Fake::new(64).model(2), EngineConfig::default()), "another model"),
        (Handle::spawn(Fake::new(3), EngineConfig::default()), "7 pages, the KV cache 3"),
        (Handle::spawn(Fake::new(64), off), "prefix sharing is off"),
    ];
    for (handle, expected) in refusals {
        let handle = handle.unwrap();
        let error = handle.restore(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(settled(&handle).pages_cached, 0);
        assert_eq!(tokens(&handle, request(4, 20, 9)), super::expected(&request(4, 20, 9)));
    }
}

#[test]
fn a_prompt_may_take_every_page_of_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    let asked = || request(8, 100, 12);
    spawn(64, EngineConfig::default()).save(&asked().prompt, &path).unwrap();
    let handle = spawn(7, EngineConfig::default());
    assert_eq!(handle.restore(&path).unwrap(), 100);
    let (found, end) = read(handle.submit(asked()).unwrap());
    assert_eq!((found, end.unwrap().1.cached_tokens), (expected(&asked()), 96));
    settled(&handle);
}

/// A file with a correct checksum and wrong content.
#[test]
fn a_well_written_file_of_nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    let fake = Fake::new(64);
    let header = |tokens: Vec<TokenId>, starts: Vec<u32>, window| SnapshotHeader {
        fingerprint: fake.fingerprint(),
        layout: fake.kv_layout(),
        window,
        tokens,
        starts,
        state: Vec::new(),
    };
    let prompt = request(8, 40, 1).prompt;
    let window = Some(Window { window: 16, sinks: 4 });
    let strange = [prompt.clone(), vec![TokenId(VOCAB as u32)]].concat();
    let cases = [
        (header(prompt.clone(), vec![0, 32], None), "has 2 pages, its tokens take 3"),
        (header(prompt, vec![0, 16, 32], window), "sliding window"),
        (header(strange, vec![0, 16, 32], None), "token 64"),
    ];
    let handle = spawn(64, EngineConfig::default());
    for (header, expected) in cases {
        let page = vec![0; header.layout.page_bytes()];
        let export = |_: usize, out: &mut Vec<u8>| {
            out.extend_from_slice(&page);
            Ok(())
        };
        snapshot::save(&path, &header, export).unwrap();
        let error = handle.restore(&path).unwrap_err();
        assert!(matches!(error, EngineError::Restore(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(settled(&handle).pages_cached, 0);
}

/// The header declares more pages than the cache has: nothing after the header is read.
#[test]
fn a_snapshot_that_is_too_large_is_refused_by_its_head() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    spawn(64, EngineConfig::default()).save(&request(8, 100, 1).prompt, &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let content = bytes.len() - 40;
    bytes[content..].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let error = spawn(64, EngineConfig::default()).restore(&path).unwrap_err();
    assert!(matches!(error, EngineError::Snapshot(SnapshotError::Checksum { .. })), "{error}");
    let error = spawn(3, EngineConfig::default()).restore(&path).unwrap_err();
    assert!(matches!(error, EngineError::Restore(_)), "{error}");
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_restored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let handle = spawn(64, EngineConfig::default());
    let cases = [(pipe, "a named pipe"), (socket, "a socket"), (folder.path().to_owned(), "a directory")];
    for (path, found) in cases {
        for error in [handle.save(&request(8, 40, 1).prompt, &path), handle.restore(&path).map(|_| ())] {
            let error = error.unwrap_err();
            assert!(matches!(error, EngineError::Snapshot(SnapshotError::Io { .. })), "{error:?}");
            let (error, name) = (error.to_string(), path.display().to_string());
            assert!(error.contains(&name) && error.contains(found), "{error}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let handle = spawn(64, EngineConfig::default());
    let nowhere = std::path::Path::new("/nonexistent/prompt");
    assert!(matches!(handle.save(&request(8, 40, 1).prompt, nowhere), Err(EngineError::Snapshot(_))));
    assert_eq!(settled(&handle).memory.snapshots.bytes, 0);
}
