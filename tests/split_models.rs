//! Models in several files: opened from any part, mapped or read, they are the model that one file would be.

mod tiny;

use std::path::{Path, PathBuf};

use ottava::checkpoint::{Checkpoint, Fault, ModelFile, OpenOptions, Value, WeightsError};

use tiny::Outcome;
use tiny::edit::Parts;
use tiny::recorded::TINY;

/// The parts of a model: tensors in turn, metadata in the first, as converters write them.
fn split(count: usize) -> Outcome<Vec<Parts>> {
    let whole = Parts::of(&TINY[0])?;
    let per_part = whole.tensors.len().div_ceil(count);
    let all = whole.tensors.len() as i32;
    let part = |number: usize| {
        let entries = if number == 0 { whole.entries.clone() } else { Vec::new() };
        let tensors = whole.tensors.iter().skip(number * per_part).take(per_part).cloned().collect();
        Parts { entries, tensors }
            .set("split.no", Value::U16(number as u16))
            .set("split.count", Value::U16(count as u16))
            .set("split.tensors.count", all)
    };
    Ok((0..count).map(part).collect())
}

fn path(folder: &Path, number: usize, count: usize) -> PathBuf {
    folder.join(format!("tiny model-{:05}-of-{count:05}.gguf", number + 1))
}

/// Writes the parts and returns their paths.
fn write(folder: &Path, parts: &[Parts]) -> Outcome<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = (0..parts.len()).map(|number| path(folder, number, parts.len())).collect();
    for (path, part) in paths.iter().zip(parts) {
        std::fs::write(path, part.bytes()?)?;
    }
    Ok(paths)
}

fn fault(path: &Path) -> Outcome<(PathBuf, Fault, String)> {
    match ModelFile::open(path, &OpenOptions::default()) {
        Err(error) => {
            let text = error.to_string();
            match error {
                WeightsError::Malformed { file, fault, .. } => Ok((file, fault, text)),
                _ => Err(text.into()),
            }
        }
        Ok(_) => Err("opened".into()),
    }
}

#[test]
fn a_model_opens_from_any_of_its_parts() -> Outcome {
    let whole = Parts::of(&TINY[0])?.open()?;
    let folder = tempfile::tempdir()?;
    for count in [2, 3, 7] {
        let paths = write(folder.path(), &split(count)?)?;
        let bytes: u64 = paths.iter().map(|path| path.metadata().map_or(0, |data| data.len())).sum();
        let mut prints = Vec::new();
        for (path, mmap) in paths.iter().zip([true, false].into_iter().cycle()) {
            let file = ModelFile::open(path, &OpenOptions { mmap })?;
            let names =
                |file: &ModelFile| file.tensors().iter().map(|info| info.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&file), names(&whole));
            assert_eq!((file.path(), file.file_bytes()), (paths[0].as_path(), bytes));
            assert!(file.modified().is_some());
            for info in whole.tensors() {
                file.prefetch(&info.name);
                assert_eq!(file.matrix(&info.name)?, whole.matrix(&info.name)?, "{}", info.name);
                file.release(&info.name);
            }
            assert_eq!(file.metadata().u32("llama.block_count")?, Some(2));
            prints.push(file.fingerprint()?);
        }
        prints.dedup();
        assert_eq!(prints.len(), 1, "the fingerprint is that of the model");
    }
    Ok(())
}

/// As the first writers of such models left it.
#[test]
fn a_part_without_a_number_is_the_first() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut parts = split(3)?;
    let first = parts.remove(0).unset("split.no");
    parts.insert(0, first);
    let paths = write(folder.path(), &parts)?;
    for path in &paths {
        assert_eq!(ModelFile::open(path, &OpenOptions::default())?.path(), paths[0]);
    }
    Ok(())
}

#[test]
fn a_fingerprint_depends_on_every_part() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut parts = split(3)?;
    let open = |parts: &[Parts]| -> Outcome<[u8; 32]> {
        let paths = write(folder.path(), parts)?;
        Ok(ModelFile::open(&paths[0], &OpenOptions::default())?.fingerprint()?)
    };
    let before = open(&parts)?;
    parts[2].tensors[0].bytes[0] ^= 1;
    assert_ne!(open(&parts)?, before);
    Ok(())
}

#[test]
fn the_part_that_is_missing_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    for gone in 0..3 {
        let paths = write(folder.path(), &split(3)?)?;
        std::fs::remove_file(&paths[gone])?;
        let opened = (gone + 1) % 3;
        let (file, fault, text) = fault(&paths[opened])?;
        let name = format!("tiny model-{:05}-of-00003.gguf", gone + 1);
        let (part, missing) = (opened as u64 + 1, gone as u64 + 1);
        assert_eq!(file, paths[opened]);
        assert_eq!(fault, Fault::MissingPart { part, count: 3, missing, name: name.clone() });
        assert!(text.contains(&name) && text.contains(&format!("part {missing} is missing")), "{text}");
    }
    Ok(())
}

#[test]
fn a_part_that_is_not_named_as_one_tells_what_it_is() -> Outcome {
    let folder = tempfile::tempdir()?;
    let parts = split(2)?;
    for (number, other) in [(0, 2), (1, 1)] {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, parts[number].bytes()?)?;
        let (_, fault, text) = fault(&path)?;
        assert_eq!(fault, Fault::Split { part: number as u64 + 1, count: 2 });
        let own = format!("NAME-{:05}-of-00002.gguf", number + 1);
        assert!(text.contains(&own) && text.contains(&format!("NAME-{other:05}-of-00002.gguf")), "{text}");
        assert!(parts[number].open().is_err(), "no folder has the other parts of bytes in memory");
    }
    // One part is the whole.
    let one = Parts::of(&TINY[0])?.set("split.count", 1_u16).set("split.no", 0_u16);
    assert_eq!(one.open()?.tensors().len(), Parts::of(&TINY[0])?.tensors.len());
    Ok(())
}

#[test]
fn parts_that_do_not_fit_together_are_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    let refused = |parts: &[Parts]| -> Outcome<(PathBuf, Fault)> {
        let paths = write(folder.path(), parts)?;
        let (file, fault, _) = fault(&paths[0])?;
        Ok((file, fault))
    };
    let mut parts = split(3)?;
    parts.swap(1, 2);
    let second = path(folder.path(), 1, 3);
    let other = |found, found_count| Fault::OtherPart { part: 2, count: 3, found, found_count };
    assert_eq!(refused(&parts)?, (second.clone(), other(3, 3)));

    let mut parts = split(3)?;
    parts[1] = parts[1].clone().set("split.count", 4_u16);
    assert_eq!(refused(&parts)?, (second.clone(), other(2, 4)));
    parts[1] = parts[1].clone().unset("split.count");
    assert_eq!(refused(&parts)?, (second.clone(), other(1, 1)));

    let mut parts = split(3)?;
    let tensor = parts[0].tensors[0].clone();
    parts[1].tensors.push(tensor.clone());
    assert_eq!(refused(&parts)?, (second.clone(), Fault::DuplicateTensor { tensor: tensor.name }));

    let mut parts = split(3)?;
    let all = Parts::of(&TINY[0])?.tensors.len() as u64;
    parts[2].tensors.pop();
    assert_eq!(refused(&parts)?.1, Fault::PartTensors { expected: all, found: all - 1 });

    // A part that is no model names itself.
    let paths = write(folder.path(), &split(3)?)?;
    std::fs::write(&paths[2], b"PK\x03\x04")?;
    assert_eq!(fault(&paths[0])?.0, paths[2]);
    // A count that no folder can hold ends at the first part that is not there.
    let parts = [split(2)?[0].clone().set("split.count", u64::MAX)];
    let path = folder.path().join(format!("huge-00001-of-{}.gguf", u64::MAX));
    std::fs::write(&path, parts[0].bytes()?)?;
    assert!(matches!(fault(&path)?.1, Fault::MissingPart { missing: 2, count: u64::MAX, .. }));
    Ok(())
}
