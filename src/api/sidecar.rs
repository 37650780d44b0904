//! Location and name of the sidecar file with packed weights.

use std::path::{Path, PathBuf};

use crate::quant::QuantFormat;

/// Location of the sidecar.
#[derive(Clone, Debug)]
pub(super) enum SidecarLocation {
    None,
    NextToModel,
    Folder(PathBuf),
}

impl SidecarLocation {
    /// The sidecar's path: the model's file name, the quantisation if any, and `packed`.
    pub(super) fn path(&self, model: &Path, quantise: Option<QuantFormat>) -> Option<PathBuf> {
        let mut name = model.file_name()?.to_owned();
        if let Some(format) = quantise {
            name.push(format!(".{format}"));
        }
        name.push(".packed");
        match self {
            SidecarLocation::None => None,
            SidecarLocation::NextToModel => Some(model.with_file_name(name)),
            SidecarLocation::Folder(folder) => Some(folder.join(name)),
        }
    }
}
