//! Sidecar: an optional file with prepared matrices, stored next to the model.

use std::time::UNIX_EPOCH;

use crate::backend::{Backend, NoSidecar, Sidecar};
use crate::file;
use crate::graph::Plan;

use super::ModelError;
use super::source::Source;

/// Outcome for the sidecar with prepared weights ([`super::LoadOptions::sidecar`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum SidecarUse {
    /// No sidecar was requested.
    Off,
    /// Weights were read from the sidecar.
    Read,
    /// The sidecar was written for the next load.
    Written {
        /// Reason why the existing file was unusable; `None` if there was no file.
        replaced: Option<String>,
    },
    /// The sidecar could not be written. This load is not affected.
    NotWritten {
        /// Reason for the failure.
        reason: String,
    },
}

/// Reads the matrices of a plan from the sidecar; otherwise prepares them and writes the sidecar. Fails if
/// the model file has changed since it was opened; then nothing is written.
pub(super) fn matrices<B: Backend>(
    source: &Source<'_>,
    plan: &Plan,
    backend: &B,
    prepare: impl FnOnce() -> Result<Vec<B::Matrix>, ModelError>,
) -> Result<(Vec<B::Matrix>, SidecarUse), ModelError> {
    let prepare = || -> Result<_, ModelError> {
        let matrices = prepare()?;
        source.file.check_unchanged()?;
        Ok(matrices)
    };
    let Some(path) = source.sidecar else { return Ok((prepare()?, SidecarUse::Off)) };
    let shapes = plan.matrices().iter().map(|spec| source.shape(spec));
    let shapes: Vec<_> = shapes.collect::<Result<_, _>>()?;
    let sidecar = Sidecar { path, key: key(source, plan), shapes: &shapes, map: source.file.is_mapped() };
    file::remove_stale(file::folder_of(path));
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let Some(files) = backend.packed_files() else {
        return Ok((prepare()?, SidecarUse::NotWritten { reason: told(&NoSidecar::Unsupported) }));
    };
    let unusable = match files.load(&sidecar) {
        Ok(matrices) => {
            source.file.check_unchanged()?;
            return Ok((matrices, SidecarUse::Read));
        }
        Err(why) => why,
    };
    let matrices = prepare()?;
    let used = match files.store(&sidecar, &matrices) {
        Ok(()) => SidecarUse::Written { replaced: (!unusable.is_missing()).then(|| told(&unusable)) },
        Err(why) => SidecarUse::NotWritten { reason: told(&why) },
    };
    Ok((matrices, used))
}

/// Key of the prepared matrices: model file, tensors in order, target format, and version of our decoders.
/// The modification time is included because the file's fingerprint samples only a part of the tensors.
fn key(source: &Source<'_>, plan: &Plan) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&source.fingerprint);
    let changed = source.file.modified().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let parts: Vec<_> = plan.matrices().iter().map(|spec| (&spec.name, spec.first_row)).collect();
    let made = format!("{changed:?} {:?} {parts:?} {}", source.quantise, env!("CARGO_PKG_VERSION"));
    hash.update(made.as_bytes());
    *hash.finalize().as_bytes()
}
