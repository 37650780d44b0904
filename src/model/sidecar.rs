//! Matrices from a file of prepared ones, where the caller wants one kept beside the model.

use std::time::UNIX_EPOCH;

use crate::backend::{Backend, NoSidecar, Sidecar};
use crate::file;
use crate::graph::Plan;

use super::ModelError;
use super::source::Source;

/// What became of the file of prepared weights ([`super::LoadOptions::sidecar`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum SidecarUse {
    /// None was asked for.
    Off,
    /// The weights came from it.
    Read,
    /// It was written, for the next load.
    Written {
        /// Why the one that was there could not be used; none if there was none.
        replaced: Option<String>,
    },
    /// There is none for the next load, and for this one it made no difference.
    NotWritten {
        /// Why.
        reason: String,
    },
}

/// The matrices of a plan: from the file of prepared ones, else from `prepare`, and then kept. The model's file is as
/// it was when it was opened, else this is an error and nothing is kept.
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
    let unusable = match files.restore(&sidecar) {
        Ok(matrices) => {
            source.file.check_unchanged()?;
            return Ok((matrices, SidecarUse::Read));
        }
        Err(why) => why,
    };
    let matrices = prepare()?;
    let used = match files.keep(&sidecar, &matrices) {
        Ok(()) => SidecarUse::Written { replaced: (!unusable.is_missing()).then(|| told(&unusable)) },
        Err(why) => SidecarUse::NotWritten { reason: told(&why) },
    };
    Ok((matrices, used))
}

/// What prepared matrices depend on: the model file, by its fingerprint and, since that looks at a part of
/// the tensors only, when it was changed; which tensors in which order, and what they become; this
/// version's decoders.
fn key(source: &Source<'_>, plan: &Plan) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&source.fingerprint);
    let changed = source.file.modified().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let parts: Vec<_> = plan.matrices().iter().map(|spec| (&spec.name, spec.first_row)).collect();
    let made = format!("{changed:?} {:?} {parts:?} {}", source.quantise, env!("CARGO_PKG_VERSION"));
    hash.update(made.as_bytes());
    *hash.finalize().as_bytes()
}
