//! Saving and restoring keys and values.

use super::*;
use crate::kv::snapshot::SnapshotError;

#[test]
fn a_restored_prompt_is_used_and_gives_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.kv");
    let (first, _) = engine(Fake::new(64), EngineConfig::default());
    let wanted = request(8, 100, 20);
    first.save(&wanted.prompt, &path).unwrap();
    assert_settled(&first);
    let fresh = read(first.submit(request(8, 100, 20)).unwrap());
    assert_eq!(fresh.tokens, expected(&wanted));
    let (second, _) = engine(Fake::new(64), EngineConfig::default());
    assert_eq!(second.restore(&path).unwrap(), 96);
    let restored = read(second.submit(wanted).unwrap());
    assert_eq!((restored.usage.cached_tokens, restored.tokens), (96, fresh.tokens));
    assert_eq!(second.restore(&path).unwrap(), 96, "once more is no harm");
    assert_settled(&second);
}

#[test]
fn what_does_not_belong_here_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.kv");
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    handle.save(&prompt(8, 100), &path).unwrap();
    let (other, _) = engine(Fake::new(64).model(2), EngineConfig::default());
    assert!(matches!(other.restore(&path), Err(EngineError::Snapshot(SnapshotError::Fingerprint { .. }))));
    let (small, _) = engine(Fake::new(3), EngineConfig::default());
    assert!(matches!(small.restore(&path), Err(EngineError::Restore(RestoreError::Kv(_)))));
    let off = EngineConfig { prefix: PrefixReuse::Off, ..EngineConfig::default() };
    let (off, _) = engine(Fake::new(64), off);
    assert!(matches!(off.restore(&path), Err(EngineError::Restore(RestoreError::ReuseOff))));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[200] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let (damaged, _) = engine(Fake::new(64), EngineConfig::default());
    assert!(matches!(damaged.restore(&path), Err(EngineError::Snapshot(_))));
    for handle in [other, small, off, damaged] {
        assert_settled(&handle);
        assert_eq!(handle.stats().kv.cached, 0);
        assert_eq!(read(handle.submit(request(4, 20, 9)).unwrap()).tokens, expected(&request(4, 20, 9)));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let nowhere = std::path::Path::new("/nonexistent/prompt.kv");
    assert!(matches!(handle.save(&prompt(8, 40), nowhere), Err(EngineError::Snapshot(_))));
    assert!(matches!(handle.restore(nowhere), Err(EngineError::Snapshot(_))));
    assert_settled(&handle);
}
