//! RoPE scaling of a file: metadata keys and tensors of factors.

use crate::checkpoint::{Array, Value};

use super::keys::{Keys, shown_value};
use super::rope::{Interpolation, Llama3, RopeScaling, Yarn};
use super::{ModelError, key_error, missing};

/// Per-frequency divisors, in files of Llama 3.1 and later.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
/// Per-frequency divisors of LongRoPE (Ding et al. 2024): for contexts beyond the original one, and within
/// it.
pub(super) const FACTORS_LONG: &str = "rope_factors_long.weight";
pub(super) const FACTORS_SHORT: &str = "rope_factors_short.weight";
/// Keys with such factors, for files without the tensors.
const LISTED: [(&str, &str); 2] =
    [(FACTORS_LONG, "rope.scaling.long_factors"), (FACTORS_SHORT, "rope.scaling.short_factors")];
const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const EXTRAPOLATION: &str = "rope.scaling.yarn_ext_factor";
const ATTENTION: &str = "rope.scaling.attn_factor";

/// Scaling of a rotary embedding.
pub(super) struct Scaling {
    pub whole: RopeScaling,
    /// Scaling for contexts of at most the given tokens, if it differs.
    pub short: Option<(usize, RopeScaling)>,
}

/// Reads the scaling of a rotary embedding with `pairs` frequencies.
pub(super) fn rope_scaling(
    keys: Keys<'_>,
    pairs: usize,
    context_length: usize,
) -> Result<Scaling, ModelError> {
    let magnitude =
        keys.positive_or(ATTENTION, 1.0)? * keys.positive_or("rope.scaling.yarn_attn_factor", 1.0)?;
    // YaRN multiplies the magnitude by less than 10.
    if magnitude > f64::from(f32::MAX) / 10.0 {
        return Err(keys.refuse(ATTENTION, "a number that f32 can hold", magnitude));
    }
    let interpolation = interpolation(keys, context_length)?;
    let of = |factors| RopeScaling { factors, interpolation, magnitude };
    if let Some(all) = factors(keys, FREQUENCIES, pairs)? {
        return Ok(Scaling { whole: of(Some(all)), short: None });
    }
    match (factors(keys, FACTORS_LONG, pairs)?, factors(keys, FACTORS_SHORT, pairs)?) {
        (None, None) => Ok(Scaling { whole: of(None), short: None }),
        (long @ Some(_), short @ Some(_)) => {
            let tokens = keys.count_or("rope.scaling.original_context_length", context_length)?;
            Ok(Scaling { whole: of(long), short: Some((tokens, of(short))) })
        }
        (long, _) => {
            let name = if long.is_some() { FACTORS_SHORT } else { FACTORS_LONG };
            Err(missing(name, &format!("[{pairs}]")))
        }
    }
}

/// Reads the interpolation scheme. A factor without a type is linear; a factor of 0 means none.
fn interpolation(keys: Keys<'_>, context_length: usize) -> Result<Interpolation, ModelError> {
    // Older key, from before scaling types.
    let factor = keys.positive_or("rope.scale_linear", 1.0)?;
    let factor = if keys.raw(FACTOR).is_some() { keys.positive_or(FACTOR, 1.0)? } else { factor };
    let extrapolation = keys.float(EXTRAPOLATION)?.filter(|&value| value >= 0.0);
    let linear = match keys.text(TYPE)? {
        Some("yarn") if extrapolation == Some(0.0) => factor,
        Some("yarn") => return yarn(keys, factor, extrapolation.unwrap_or(1.0), context_length),
        Some("llama3") => return llama3(keys, factor, context_length),
        Some("none" | "") => 1.0,
        None | Some("linear") => factor,
        Some(other) => return Err(keys.refuse(TYPE, "none, linear, llama3 or yarn", other)),
    };
    if let Some(value) = extrapolation.filter(|&value| value != 0.0) {
        return Err(keys.refuse(EXTRAPOLATION, "0 or no such key without YaRN", value));
    }
    Ok(Interpolation::Linear { factor: linear })
}

fn llama3(keys: Keys<'_>, factor: f64, context_length: usize) -> Result<Interpolation, ModelError> {
    let original = keys.count_or("rope.scaling.original_context_length", context_length)?;
    let low_freq_factor = keys.positive_or("rope.scaling.low_freq_factor", 1.0)?;
    let high_freq_factor = keys.positive_or("rope.scaling.high_freq_factor", 4.0)?;
    if high_freq_factor <= low_freq_factor {
        let expected = format!("more than {} {low_freq_factor}", keys.name("rope.scaling.low_freq_factor"));
        return Err(keys.refuse("rope.scaling.high_freq_factor", &expected, high_freq_factor));
    }
    let original_context = original as f64;
    Ok(Interpolation::Llama3(Llama3 { factor, low_freq_factor, high_freq_factor, original_context }))
}

fn yarn(
    keys: Keys<'_>,
    factor: f64,
    extrapolation: f64,
    context_length: usize,
) -> Result<Interpolation, ModelError> {
    let original = keys.count_or("rope.scaling.original_context_length", context_length)?;
    let key = "rope.scaling.yarn_log_multiplier";
    let log_multiplier = keys.float(key)?.unwrap_or(0.0);
    if !(0.0..=1e6).contains(&log_multiplier) {
        return Err(keys.refuse(key, "a number from 0 to 1000000", log_multiplier));
    }
    if extrapolation > 1.0 {
        return Err(keys.refuse(EXTRAPOLATION, "a number from 0 to 1", extrapolation));
    }
    Ok(Interpolation::Yarn(Yarn {
        factor,
        original_context: original as f64,
        extrapolation,
        log_multiplier,
        beta_fast: keys.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: keys.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
    }))
}

/// Per-frequency divisors from a tensor, or from the key that replaces it.
fn factors(keys: Keys<'_>, name: &str, pairs: usize) -> Result<Option<Vec<f64>>, ModelError> {
    let Some(info) = keys.file.tensor(name) else { return listed(keys, name, pairs) };
    if (info.rows(), info.cols()) != (1, pairs) {
        let found = if info.rows() == 1 { format!("[{}]", info.cols()) } else { format!("{:?}", info.dims) };
        return Err(ModelError::TensorShape { tensor: name.into(), expected: format!("[{pairs}]"), found });
    }
    let factors = keys.file.vector(name)?;
    positive(name, factors).map(Some)
}

/// Per-frequency divisors from a key.
fn listed(keys: Keys<'_>, name: &str, pairs: usize) -> Result<Option<Vec<f64>>, ModelError> {
    let Some(&(_, key)) = LISTED.iter().find(|&&(tensor, _)| tensor == name) else { return Ok(None) };
    match keys.raw(key) {
        None => Ok(None),
        Some(Value::Array(Array::F32(factors))) if factors.len() == pairs => {
            positive(&keys.name(key), factors.clone()).map(Some)
        }
        Some(found) => Err(keys.refuse(key, &format!("{pairs} factors"), shown_value(found))),
    }
}

fn positive(name: &str, factors: Vec<f32>) -> Result<Vec<f64>, ModelError> {
    match factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
        Some(bad) => Err(key_error(name, "positive factors", &bad.to_string())),
        None => Ok(factors.into_iter().map(f64::from).collect()),
    }
}
