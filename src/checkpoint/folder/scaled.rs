//! [`Beside`]: tensors that stand beside weights of 8-bit floats. Scales of weights are joined to them; those of
//! activations are left out, as activations are not quantised by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::checkpoint::scales::Spread;
use crate::checkpoint::stored::{Scales, StoredFile, TensorFiles};
use crate::checkpoint::{Fault, TensorInfo, TensorType, WeightsError};

use super::header::Entry;
use super::quantization::Fp8;

/// The end of a weight's name.
const WEIGHT: &str = ".weight";
/// What stands beside a weight for its activations.
const OF_ACTIVATIONS: [&str; 2] = [".input_scale", ".input_scale_inv"];

/// What stands beside weights of 8-bit floats.
pub(super) struct Beside<'c> {
    fp8: Option<&'c Fp8>,
    /// Names of scales of weights.
    scales: BTreeSet<String>,
    of_activations: BTreeSet<String>,
    found: BTreeMap<String, (Arc<StoredFile>, TensorInfo)>,
}

impl<'c> Beside<'c> {
    /// Of all entries of a folder.
    pub fn of<'e>(fp8: Option<&'c Fp8>, entries: impl Iterator<Item = &'e Entry>) -> Beside<'c> {
        let (mut scales, mut of_activations) = (BTreeSet::new(), BTreeSet::new());
        let stems =
            entries.filter(|entry| entry.is_fp8()).filter_map(|entry| entry.name.strip_suffix(WEIGHT));
        for (stem, fp8) in stems.filter_map(|stem| fp8.map(|fp8| (stem, fp8))) {
            scales.insert(format!("{stem}.{}", fp8.scales));
            of_activations.extend(OF_ACTIVATIONS.map(|end| format!("{stem}{end}")));
        }
        Beside { fp8, scales, of_activations, found: BTreeMap::new() }
    }

    /// Keeps what is not a tensor of the model; gives back what is.
    pub fn take(&mut self, file: &Arc<StoredFile>, info: TensorInfo) -> Option<TensorInfo> {
        if self.scales.contains(&info.name) {
            self.found.insert(info.name.clone(), (Arc::clone(file), info));
            return None;
        }
        (!self.of_activations.contains(&info.name)).then_some(info)
    }

    /// Joins the scales and their weights.
    pub fn join(mut self, files: &mut TensorFiles) -> Result<(), WeightsError> {
        let weights = files.tensors().iter().filter(|info| info.dtype == TensorType::F8E4m3);
        let weights = weights.filter_map(|info| files.find(&info.name));
        let joined = weights.map(|(file, weight)| Ok((weight.name.clone(), self.scales_of(file, weight)?)));
        for (name, scales) in joined.collect::<Result<Vec<_>, WeightsError>>()? {
            files.add_scales(name, scales);
        }
        Ok(())
    }

    fn scales_of(&mut self, file: &StoredFile, weight: &TensorInfo) -> Result<Scales, WeightsError> {
        let refuse = |fault| WeightsError::malformed(file.path(), fault);
        let tensor = weight.name.clone();
        let stem = weight.name.strip_suffix(WEIGHT).filter(|_| weight.dims.len() == 2);
        let (Some(fp8), Some(stem)) = (self.fp8, stem) else {
            return Err(refuse(Fault::NoFloat { tensor, found: weight.dtype.to_string() }));
        };
        let name = format!("{stem}.{}", fp8.scales);
        match self.found.remove(&name) {
            Some((file, info)) => joined(fp8, weight, file, info),
            None => Err(refuse(Fault::NoScales { tensor, scales: name })),
        }
    }
}

fn joined(
    fp8: &Fp8,
    weight: &TensorInfo,
    file: Arc<StoredFile>,
    info: TensorInfo,
) -> Result<Scales, WeightsError> {
    let refuse = |fault| Err(WeightsError::malformed(file.path(), fault));
    let tensor = info.name.clone();
    if !matches!(info.dtype, TensorType::F32 | TensorType::F16 | TensorType::Bf16) {
        return refuse(Fault::NoFloat { tensor, found: info.dtype.to_string() });
    }
    let of = [weight.rows(), weight.cols()];
    let found: Box<[usize]> = info.dims.iter().rev().map(|&dim| dim as usize).collect();
    match fp8.spreads.iter().find(|spread| fits(**spread, of, &found)) {
        Some(&spread) => Ok(Scales { file, info, spread }),
        None => {
            let shapes: Vec<_> = fp8.spreads.iter().map(|spread| format!("{:?}", spread.shape(of))).collect();
            let expected = format!("{} as the scales of {of:?}", shapes.join(" or ")).into();
            refuse(Fault::ScaleShape { tensor, expected, found })
        }
    }
}

/// Whether scales have the shape of a spread; of one column, or of one scale, they may have fewer dimensions.
fn fits(spread: Spread, of: [usize; 2], found: &[usize]) -> bool {
    let shape = spread.shape(of);
    *found == shape || shape[1] == 1 && *found == [shape[0]]
}
