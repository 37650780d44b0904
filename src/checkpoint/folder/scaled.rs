//! Companion tensors of FP8 and NVFP4 weights: [`Beside`] joins weight scales with their weights. The scales
//! of activations, keys and values are dropped, because these are not quantised with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scales::Spread;
use crate::checkpoint::stored::{Scales, StoredFile};
use crate::checkpoint::{Fault, TensorInfo, TensorType, WeightsError};
use crate::quant::QuantError;

use super::header::TensorEntry;
use super::quantization::{Eight, Four, Quantization};

/// Name suffix of a weight.
const WEIGHT: &str = ".weight";
/// Name of NVFP4 group scales.
const OF_GROUPS: &str = "weight_scale";
/// Name suffixes of the scales of activations, keys and values.
const OF_ACTIVATIONS: [&str; 5] =
    [".input_scale", ".input_scale_inv", ".input_global_scale", ".k_scale", ".v_scale"];
/// Largest E4M3 value.
const SCALE_MAX: f32 = 448.0;

/// Companion tensors of FP8 and NVFP4 weights.
pub(super) struct Beside<'c> {
    quantization: &'c Quantization,
    /// Canonical names of NVFP4 code tensors, by their names in the files.
    packed: BTreeMap<String, String>,
    /// Names of weight scales.
    scales: BTreeSet<String>,
    of_activations: BTreeSet<String>,
    found: BTreeMap<String, (Arc<StoredFile>, TensorInfo)>,
}

impl<'c> Beside<'c> {
    /// Collects the names of companions from all entries of a folder.
    pub fn of<'e>(
        quantization: &'c Quantization,
        entries: impl Iterator<Item = &'e TensorEntry>,
    ) -> Beside<'c> {
        let (mut packed, mut scales, mut of_activations) =
            (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for entry in entries {
            let stem = match quantization {
                Quantization { eight: Some(eight), .. } if entry.is_fp8() => {
                    let stem = entry.name.strip_suffix(WEIGHT);
                    scales.extend(stem.map(|stem| format!("{stem}.{}", eight.scales)));
                    stem
                }
                Quantization { four: Some(four), .. } if entry.is_bytes() => {
                    let stem = entry.name.strip_suffix(four.codes).and_then(|stem| stem.strip_suffix('.'));
                    if let Some(stem) = stem {
                        packed.insert(entry.name.clone(), format!("{stem}{WEIGHT}"));
                        scales.extend([OF_GROUPS, four.global].map(|end| format!("{stem}.{end}")));
                    }
                    stem
                }
                _ => None,
            };
            of_activations
                .extend(stem.iter().flat_map(|stem| OF_ACTIVATIONS.map(|end| format!("{stem}{end}"))));
        }
        Beside { quantization, packed, scales, of_activations, found: BTreeMap::new() }
    }

    /// The canonical name of a tensor.
    pub fn name<'n>(&'n self, of_file: &'n str) -> &'n str {
        self.packed.get(of_file).map_or(of_file, String::as_str)
    }

    /// Returns the table entry of a model tensor. Companion tensors are kept or dropped.
    pub fn take(
        &mut self,
        file: &Arc<StoredFile>,
        entry: TensorEntry,
    ) -> Result<Option<TensorInfo>, WeightsError> {
        let info = match self.packed.remove(&entry.name) {
            Some(name) => entry.pairs(file.path(), name)?,
            None => entry.info(file.path())?,
        };
        if self.scales.contains(&info.name) {
            self.found.insert(info.name.clone(), (Arc::clone(file), info));
            return Ok(None);
        }
        Ok((!self.of_activations.contains(&info.name)).then_some(info))
    }

    /// Joins the scales with their weights.
    pub fn join(mut self, files: &mut TensorFiles) -> Result<(), WeightsError> {
        let scaled = [TensorType::F8E4m3, TensorType::F4E2m1];
        let weights = files.tensors().iter().filter(|info| scaled.contains(&info.dtype));
        let weights = weights.filter_map(|info| files.find(&info.name));
        let joined = weights.map(|(file, weight)| Ok((weight.name.clone(), self.scales_of(file, weight)?)));
        for (name, scales) in joined.collect::<Result<Vec<_>, WeightsError>>()? {
            files.add_scales(name, scales);
        }
        Ok(())
    }

    fn scales_of(&mut self, file: &StoredFile, weight: &TensorInfo) -> Result<Scales, WeightsError> {
        let Quantization { eight, four } = self.quantization;
        let stem = weight.name.strip_suffix(WEIGHT).filter(|_| weight.dims.len() == 2);
        match (weight.dtype, stem, eight, four) {
            (TensorType::F8E4m3, Some(stem), Some(eight), _) => {
                let (file, info) = self.found(file, weight, format!("{stem}.{}", eight.scales))?;
                joined(eight, weight, file, info)
            }
            (TensorType::F4E2m1, Some(stem), _, Some(four)) => {
                let scales = self.found(file, weight, format!("{stem}.{OF_GROUPS}"))?;
                let global = self.found(file, weight, format!("{stem}.{}", four.global))?;
                joined_four(*four, weight, scales, global)
            }
            _ => {
                let (tensor, found) = (weight.name.clone(), weight.dtype.to_string());
                Err(WeightsError::malformed(file.path(), Fault::NoFloat { tensor, found }))
            }
        }
    }

    /// Takes the scale tensor `scales` of `weight`; `file` is named in the error.
    fn found(
        &mut self,
        file: &StoredFile,
        weight: &TensorInfo,
        scales: String,
    ) -> Result<(Arc<StoredFile>, TensorInfo), WeightsError> {
        self.found.remove(&scales).ok_or_else(|| {
            WeightsError::malformed(file.path(), Fault::NoScales { tensor: weight.name.clone(), scales })
        })
    }
}

fn joined(
    eight: &Eight,
    weight: &TensorInfo,
    file: Arc<StoredFile>,
    info: TensorInfo,
) -> Result<Scales, WeightsError> {
    check_type(&file, &info, &[TensorType::F32, TensorType::F16, TensorType::Bf16])?;
    let spread = fitting(&eight.spreads, weight, &file, &info)?;
    Ok(Scales { file, info, spread, factor: 1.0 })
}

fn joined_four(
    four: Four,
    weight: &TensorInfo,
    (file, info): (Arc<StoredFile>, TensorInfo),
    (global_file, global): (Arc<StoredFile>, TensorInfo),
) -> Result<Scales, WeightsError> {
    check_type(&file, &info, &[TensorType::F8E4m3])?;
    check_type(&global_file, &global, &[TensorType::F32])?;
    let spread = fitting(&[Spread::Group], weight, &file, &info)?;
    let one = TensorInfo { dims: vec![1, 1], ..weight.clone() };
    fitting(&[Spread::Tensor], &one, &global_file, &global)?;
    let start = global.offset as usize;
    let bytes = global_file.with(start..start + size_of::<f32>(), |bytes| bytes.first_chunk().copied())?;
    let value = bytes.map_or(f32::NAN, f32::from_le_bytes);
    let factor = if four.divides { value.recip() } else { value };
    // Canonical scales are halved: the largest must be a normal f16, unless all values are 0.
    let fits = factor * SCALE_MAX / 2.0 >= half::f16::MIN_POSITIVE.to_f32() || factor == 0.0;
    if !(factor.is_finite() && fits) {
        return Err(global_file.tensor_error(&global, QuantError::Scale { row: 0, group: 0, value: factor }));
    }
    Ok(Scales { file, info, spread, factor })
}

fn check_type(file: &StoredFile, info: &TensorInfo, types: &[TensorType]) -> Result<(), WeightsError> {
    if types.contains(&info.dtype) {
        return Ok(());
    }
    let (tensor, found) = (info.name.clone(), info.dtype.to_string());
    Err(WeightsError::malformed(file.path(), Fault::NoFloat { tensor, found }))
}

/// The granularity that matches the shape of the scales.
fn fitting(
    spreads: &[Spread],
    weight: &TensorInfo,
    file: &StoredFile,
    info: &TensorInfo,
) -> Result<Spread, WeightsError> {
    let of = [weight.rows(), weight.cols()];
    let found: Box<[usize]> = info.dims.iter().rev().map(|&dim| dim as usize).collect();
    spreads.iter().copied().find(|spread| fits(*spread, of, &found)).ok_or_else(|| {
        let shapes: Vec<_> = spreads.iter().map(|spread| format!("{:?}", spread.shape(of))).collect();
        let expected = format!("{} as the scales of {of:?}", shapes.join(" or ")).into();
        WeightsError::malformed(file.path(), Fault::ScaleShape { tensor: info.name.clone(), expected, found })
    })
}

/// Whether scales have the shape of a granularity. A shape with one column may omit the column dimension.
fn fits(spread: Spread, of: [usize; 2], found: &[usize]) -> bool {
    let shape = spread.shape(of);
    *found == shape || shape[1] == 1 && *found == [shape[0]]
}
