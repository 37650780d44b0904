//! Engines whose packed weights are kept in a file: the same bits with it and without, and whatever is
//! wrong with the file is told and put right.

#![cfg(feature = "text")]

mod tiny;

use std::path::{Path, PathBuf};

use ottava::model::SidecarUse;
use ottava::quant::QuantFormat;
use ottava::{Device, Engine, EngineBuilder, TokenId, engine::Scores};
use tiny::Outcome;

/// A tiny model in a folder of its own.
fn model() -> Outcome<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    Ok((folder, path))
}

fn builder(model: &Path) -> EngineBuilder {
    Engine::builder(model).device(Device::Cpu)
}

/// What an engine says of the file, and what it computes.
fn answer(builder: EngineBuilder) -> Outcome<(SidecarUse, Scores)> {
    let engine = builder.build()?;
    let ids: Vec<TokenId> = (0..40).map(|i| TokenId(i * 7 % engine.vocab().len() as u32)).collect();
    Ok((engine.info().sidecar.clone(), engine.score(&ids, 8)?))
}

const NEW: SidecarUse = SidecarUse::Written { replaced: None };

#[test]
fn logits_have_the_same_bits_with_the_file_and_without() -> Outcome {
    let (folder, path) = model()?;
    for format in [None, Some(QuantFormat::W8G32), Some(QuantFormat::W4G32)] {
        let builder = || match format {
            Some(format) => builder(&path).quantise(format),
            None => builder(&path),
        };
        let (off, expected) = answer(builder())?;
        assert_eq!(off, SidecarUse::Off);
        for wanted in [NEW, SidecarUse::Read] {
            assert_eq!(answer(builder().sidecar())?, (wanted, expected.clone()), "{format:?}");
        }
        let other = folder.path().join(format!("packed-{}", format.is_some()));
        std::fs::create_dir_all(&other)?;
        for wanted in [NEW, SidecarUse::Read] {
            let found = answer(builder().sidecar_in(&other).threads(std::num::NonZeroUsize::MIN))?;
            assert_eq!(found, (wanted, expected.clone()), "{format:?}, in a folder");
        }
    }
    let names = ["tiny.gguf.packed", "tiny.gguf.w8g32.packed", "tiny.gguf.w4g32.packed"];
    assert!(names.iter().all(|name| folder.path().join(name).is_file()));
    Ok(())
}

/// The file is of no use after `spoil`: that is told with `word`, and the file is as it was.
fn replaced(path: &Path, word: &str, spoil: impl FnOnce(&Path) -> Outcome) -> Outcome {
    let kept = path.with_file_name("tiny.gguf.packed");
    let (_, expected) = answer(builder(path).sidecar())?;
    spoil(&kept)?;
    let (used, found) = answer(builder(path).sidecar())?;
    match used {
        SidecarUse::Written { replaced: Some(why) } => {
            assert!(why.contains(word) && why.contains("tiny.gguf.packed"), "{word}: {why}");
        }
        other => panic!("{word}: {other:?}"),
    }
    assert!(found == expected, "{word}: other logits");
    assert_eq!(answer(builder(path).sidecar())?, (SidecarUse::Read, expected));
    Ok(())
}

/// Flips a bit of byte `at`, counted from the end if negative.
fn flip(path: &Path, at: isize) -> Outcome {
    let mut bytes = std::fs::read(path)?;
    let at = at.rem_euclid(bytes.len() as isize) as usize;
    bytes[at] ^= 0x10;
    Ok(std::fs::write(path, bytes)?)
}

#[test]
fn a_broken_file_is_told_and_replaced() -> Outcome {
    let (_folder, path) = model()?;
    replaced(&path, "damaged", |kept| flip(kept, -1))?;
    replaced(&path, "matrices", |kept| flip(kept, 64 + 8))?;
    replaced(&path, "version", |kept| flip(kept, 8))?;
    replaced(&path, "version", |kept| Ok(std::fs::write(kept, "not packed at all")?))?;
    replaced(&path, "as long as", |kept| {
        let bytes = std::fs::read(kept)?;
        Ok(std::fs::write(kept, &bytes[..bytes.len() - 64])?)
    })
}

#[test]
fn a_file_of_another_model_is_told_and_replaced() -> Outcome {
    let (folder, path) = model()?;
    replaced(&path, "model file", |_| {
        // Of the same length and shapes: the last tensor's last value is another.
        flip(&path, -2)?;
        answer(builder(&path))?;
        flip(&path, -2)
    })?;
    let other = tempfile::tempdir_in(folder.path())?;
    let other_path = other.path().join("tiny.gguf");
    std::fs::copy(&path, &other_path)?;
    flip(&other_path, -2)?;
    answer(builder(&other_path).sidecar())?;
    replaced(&path, "model file", |kept| {
        std::fs::copy(other_path.with_file_name("tiny.gguf.packed"), kept)?;
        Ok(())
    })
}

#[test]
fn whatever_becomes_of_the_file_what_was_read_of_it_stays() -> Outcome {
    let (_folder, path) = model()?;
    let (_, expected) = answer(builder(&path).sidecar())?;
    let kept = path.with_file_name("tiny.gguf.packed");
    for (name, harm) in [("zeros", 0), ("ones", 0xff)] {
        let engine = builder(&path).sidecar().build()?;
        assert_eq!(engine.info().sidecar, SidecarUse::Read, "{name}");
        let ids: Vec<TokenId> = (0..40).map(|i| TokenId(i * 7 % engine.vocab().len() as u32)).collect();
        // In place, of the same length; then cut, where a mapping would end the process.
        let bytes = std::fs::read(&kept)?;
        std::fs::write(&kept, vec![harm; bytes.len()])?;
        assert!(engine.score(&ids, 8)? == expected, "{name}");
        std::fs::write(&kept, "")?;
        assert!(engine.score(&ids, 8)? == expected, "{name}, cut");
        std::fs::write(&kept, bytes)?;
    }
    let (used, found) = answer(builder(&path).sidecar().mmap())?;
    assert_eq!((used, found == expected), (SidecarUse::Read, true), "mapped");
    Ok(())
}

#[test]
fn a_load_of_what_was_kept_reports_as_much_as_the_first() -> Outcome {
    let (_folder, path) = model()?;
    let load = || -> Outcome<_> {
        let mut reports = Vec::new();
        let engine = builder(&path).sidecar().build_with(&mut |progress| {
            reports.push((progress.tensor.to_owned(), progress.done, progress.bytes_done))
        })?;
        Ok((engine.info().sidecar.clone(), reports))
    };
    let ((first, mut of_first), (second, mut of_second)) = (load()?, load()?);
    assert_eq!((first, second), (NEW, SidecarUse::Read));
    assert_eq!(of_first.pop(), of_second.pop());
    assert_eq!(of_first, of_second);
    Ok(())
}

/// Written over in place, of the same length, and cut short at its end, while tensors come from it.
#[cfg(unix)]
#[test]
fn a_model_that_changes_while_it_is_loaded_is_refused_and_nothing_is_kept() -> Outcome {
    let (folder, path) = model()?;
    let bytes = std::fs::read(&path)?;
    for (mmap, cut, kept) in
        [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
    {
        let case = format!("mapped {mmap}, cut {cut}, kept {kept}");
        std::fs::write(&path, &bytes)?;
        let file = std::fs::File::options().write(true).open(&path)?;
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)?;
        let builder = || if mmap { builder(&path).sidecar().mmap() } else { builder(&path).sidecar() };
        if kept {
            assert_eq!(answer(builder())?.0, NEW);
        }
        let failed = builder().build_with(&mut |progress| {
            if progress.done == 1 && cut {
                file.set_len(bytes.len() as u64 - 1).unwrap();
            } else if progress.done == 1 {
                std::os::unix::fs::FileExt::write_at(
                    &file,
                    &bytes[bytes.len() - 64..],
                    bytes.len() as u64 - 64,
                )
                .unwrap();
            }
        });
        let error = failed.err().ok_or_else(|| case.clone())?.to_string();
        assert!(
            error.contains("tiny.gguf") && error.contains("changed while it was read"),
            "{case}: {error}"
        );
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 1 + usize::from(kept), "{case}");
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn what_stands_at_its_place_and_is_no_file_stays_there() -> Outcome {
    use std::os::unix::fs::FileTypeExt;
    let (folder, path) = model()?;
    let (_, expected) = answer(builder(&path))?;
    let kept = path.with_file_name("tiny.gguf.packed");
    let not_written = |word: &str| -> Outcome {
        let (used, found) = answer(builder(&path).sidecar())?;
        let SidecarUse::NotWritten { reason } = used else { panic!("{word}: {used:?}") };
        assert!(reason.contains(word) && reason.contains("tiny.gguf.packed"), "{reason}");
        assert!(found == expected, "{word}");
        Ok(())
    };
    assert!(std::process::Command::new("mkfifo").arg(&kept).status()?.success());
    not_written("a named pipe")?;
    assert!(kept.metadata()?.file_type().is_fifo());
    std::fs::remove_file(&kept)?;
    let socket = std::os::unix::net::UnixListener::bind(&kept)?;
    not_written("a socket")?;
    drop(socket);
    std::fs::remove_file(&kept)?;
    // A link to a device: what it points to is not written, and the link stays.
    std::os::unix::fs::symlink("/dev/null", &kept)?;
    not_written("a character device")?;
    assert!(kept.is_symlink());
    std::fs::remove_file(&kept)?;
    std::fs::create_dir(&kept)?;
    not_written("a directory")?;
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 2);
    Ok(())
}

#[test]
fn where_it_cannot_be_written_the_engine_runs_and_says_so() -> Outcome {
    let (folder, path) = model()?;
    let (_, expected) = answer(builder(&path))?;
    let (used, found) = answer(builder(&path).sidecar_in(folder.path().join("no-such-folder")))?;
    assert!(matches!(used, SidecarUse::NotWritten { reason } if reason.contains("no-such-folder")));
    assert!(found == expected);
    Ok(())
}

#[test]
fn several_that_load_at_once_do_not_disturb_each_other() -> Outcome {
    let (folder, path) = model()?;
    let (_, expected) = answer(builder(&path))?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let (used, found) = answer(builder(&path).sidecar()).unwrap();
                    assert!(
                        matches!(used, SidecarUse::Read | SidecarUse::Written { replaced: None }),
                        "{used:?}"
                    );
                    assert!(found == expected);
                }
            });
        }
    });
    let files = std::fs::read_dir(folder.path())?.count();
    assert_eq!(files, 2, "the model and the one file");
    Ok(())
}
