//! Where an engine keeps its packed weights, and what that file is called.

use std::path::{Path, PathBuf};

use crate::quant::QuantFormat;

/// Where packed weights are kept.
#[derive(Clone, Debug)]
pub(super) enum Keep {
    Nowhere,
    BesideTheModel,
    In(PathBuf),
}

impl Keep {
    /// The file: the model's name, what its matrices become, and `packed`.
    pub(super) fn path(&self, model: &Path, quantise: Option<QuantFormat>) -> Option<PathBuf> {
        let mut name = model.file_name()?.to_owned();
        if let Some(format) = quantise {
            name.push(format!(".{format}"));
        }
        name.push(".packed");
        match self {
            Keep::Nowhere => None,
            Keep::BesideTheModel => Some(model.with_file_name(name)),
            Keep::In(folder) => Some(folder.join(name)),
        }
    }
}
