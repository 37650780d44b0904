//! Rotary embeddings in `config.json`: base and scaling scheme. Older documents have `rope_theta` and
//! `rope_scaling`, newer ones `rope_parameters`, which may be given per layer type.

use serde_json::Value;

use crate::checkpoint::WeightsError;

use super::json::Object;
use super::known::check_keys;
use super::model_type::{Entries, ModelType, ORIGINAL_CONTEXT};

/// Permitted keys of a scheme.
const KEYS: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    PART,
    "factor",
    ORIGINAL_CONTEXT,
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "truncate",
    LONG,
    SHORT,
    BY_POSITION,
];
/// Rotated fraction of a head.
const PART: &str = "partial_rotary_factor";
/// Frequency divisors for contexts beyond the original length, and within it.
const LONG: &str = "long_factor";
const SHORT: &str = "short_factor";
/// Position-dependent scale of queries (Llama 4).
const BY_POSITION: &str = "llama_4_scaling_beta";
/// Layer types in `rope_parameters`: sliding-window and full-attention layers.
const LOCAL: &str = "sliding_attention";
const GLOBAL: &str = "full_attention";

/// Adds the RoPE entries of a text model with `head` elements per head.
pub(super) fn read(
    text: &Object<'_>,
    model: &ModelType,
    head: u64,
    entries: &mut Entries,
) -> Result<(), WeightsError> {
    let said = |key| -> Result<_, WeightsError> {
        Ok(text.object(key)?.filter(|object| object.entries().next().is_some()))
    };
    // `rope_scaling` takes precedence.
    let (old, new) = (said("rope_scaling")?, said("rope_parameters")?);
    if model.local_rope_theta.is_some() && old.is_some() && new.is_some() {
        return Err(text.refuse("rope_scaling", "no such key beside rope_parameters", "one"));
    }
    let given = old.or(new);
    if given.is_none() && model.is_scaled {
        return Err(text.refuse(
            "rope_parameters",
            "how positions beyond the first context turn",
            "no such key",
        ));
    }
    let by_layer =
        given.as_ref().filter(|given| model.local_rope_theta.is_some() && given.get(GLOBAL).is_some());
    let (global, local) = match by_layer {
        Some(given) => {
            check_keys(given, |key| [GLOBAL, LOCAL].contains(&key))?;
            (given.object(GLOBAL)?, given.object(LOCAL)?)
        }
        None => (given, None),
    };
    let (found, name) = base(text, global.as_ref(), "rope_theta")?;
    entries.put("rope.freq_base", found.unwrap_or(model.rope_base), name);
    if let Some(usual) = model.local_rope_theta {
        read_local(text, local.as_ref(), usual, entries)?;
    }
    let holder = global.as_ref().filter(|scheme| scheme.get(PART).is_some()).unwrap_or(text);
    match model.partial_rotary_factor {
        Some(usual) => partial_rotation(holder, usual, head, entries)?,
        None => check_whole(holder)?,
    }
    match global {
        Some(scheme) => Scheme { text, scheme: &scheme, model }.read(entries),
        None => Ok(()),
    }
}

/// Adds the number of rotated elements per head.
fn partial_rotation(
    holder: &Object<'_>,
    usual: f64,
    head: u64,
    entries: &mut Entries,
) -> Result<(), WeightsError> {
    let share = holder.number(PART)?.unwrap_or(usual);
    if !(share > 0.0 && share <= 1.0) {
        return Err(holder.refuse(PART, "a number above 0, at most 1", share));
    }
    entries.put("rope.dimension_count", (head as f64 * share) as u64, holder.name(PART));
    Ok(())
}

/// Refuses partial rotation.
fn check_whole(holder: &Object<'_>) -> Result<(), WeightsError> {
    match holder.number(PART)?.filter(|&share| share != 1.0) {
        Some(share) => Err(holder.refuse(PART, "1", share)),
        None => Ok(()),
    }
}

/// Adds the RoPE base of sliding-window layers. Scaling is refused there.
fn read_local(
    text: &Object<'_>,
    local: Option<&Object<'_>>,
    usual: f64,
    entries: &mut Entries,
) -> Result<(), WeightsError> {
    if let Some(local) = local {
        check_keys(local, |key| KEYS.contains(&key))?;
        check_whole(local)?;
        if kind(local)? != "default" {
            return Err(local.refuse("rope_type", "default for layers with a window", kind(local)?));
        }
        check_unscaled(local)?;
    }
    let key = if local.is_some() { "rope_theta" } else { "rope_local_base_freq" };
    let (base, name) = base(text, local, key)?;
    entries.put("rope.freq_base_swa", base.unwrap_or(usual), name);
    Ok(())
}

/// The base and its key: from the scheme, else from the text model.
fn base(
    text: &Object<'_>,
    scheme: Option<&Object<'_>>,
    key: &str,
) -> Result<(Option<f64>, String), WeightsError> {
    let holder = scheme.filter(|scheme| scheme.get(key).is_some()).unwrap_or(text);
    Ok((holder.number(key)?, holder.name(key)))
}

fn kind<'j>(scheme: &Object<'j>) -> Result<&'j str, WeightsError> {
    let old = scheme.text("type")?;
    Ok(scheme.text("rope_type")?.or(old).unwrap_or("default"))
}

/// Refuses scaling factors in a scheme of type "default": without a type their meaning is ambiguous.
fn check_unscaled(scheme: &Object<'_>) -> Result<(), WeightsError> {
    for key in ["factor", "attention_factor"] {
        if let Some(factor) = scheme.number(key)?.filter(|&factor| factor != 1.0) {
            return Err(scheme.refuse(key, "1 beside no rope_type but default", factor));
        }
    }
    Ok(())
}

/// A RoPE scaling scheme.
struct Scheme<'s, 'j> {
    text: &'s Object<'j>,
    scheme: &'s Object<'j>,
    model: &'s ModelType,
}

impl Scheme<'_, '_> {
    fn read(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let scheme = self.scheme;
        check_keys(scheme, |key| KEYS.contains(&key) || self.model.ignored_keys.contains(&key))?;
        let key = if scheme.get("rope_type").is_some() { "rope_type" } else { "type" };
        let has_factors = scheme.get(LONG).is_some() || scheme.get(SHORT).is_some();
        let kind = match kind(scheme)? {
            // Former names of longrope.
            "su" | "yarn" if has_factors => "longrope",
            kind => kind,
        };
        if kind != "yarn" && scheme.number(BY_POSITION)?.is_some_and(|scale| scale != 0.0) {
            return Err(scheme.refuse(BY_POSITION, "0 without yarn", "another number"));
        }
        match kind {
            "longrope" => return self.longrope(entries),
            _ if has_factors => return Err(scheme.refuse(key, "longrope beside factors", kind)),
            "default" => return check_unscaled(scheme),
            "linear" => {}
            "llama3" => self.llama3(entries)?,
            "yarn" => self.yarn(entries)?,
            other => return Err(scheme.refuse(key, "default, linear, llama3, longrope or yarn", other)),
        }
        entries.put("rope.scaling.type", kind, scheme.name(key));
        entries.put("rope.scaling.factor", self.factor()?, scheme.name("factor"));
        Ok(())
    }

    fn factor(&self) -> Result<f64, WeightsError> {
        self.needed("factor")
    }

    /// A required positive number.
    fn needed(&self, key: &str) -> Result<f64, WeightsError> {
        let found = self.scheme.number(key)?;
        let value = found.ok_or_else(|| self.scheme.refuse(key, "a positive number", "no such key"))?;
        let fits = value > 0.0 && (value as f32).is_finite();
        fits.then_some(value).ok_or_else(|| self.scheme.refuse(key, "a positive number", value))
    }

    /// Original context length: from the document, the model type, or the scheme, in this order. `None` means
    /// the model's context length, as in GGUF.
    fn original(&self, entries: &mut Entries) -> Result<Option<u64>, WeightsError> {
        let usual = || match self.model.original_context {
            Some(usual) => Ok((Some(usual), self.text)),
            None => Ok((self.scheme.whole(ORIGINAL_CONTEXT)?, self.scheme)),
        };
        let (tokens, holder) = match self.text.whole(ORIGINAL_CONTEXT)? {
            Some(tokens) => (Some(tokens), self.text),
            None => usual()?,
        };
        if let Some(tokens) = tokens {
            entries.put("rope.scaling.original_context_length", tokens, holder.name(ORIGINAL_CONTEXT));
        }
        Ok(tokens)
    }

    fn llama3(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        for name in ["low_freq_factor", "high_freq_factor"] {
            entries.put(&format!("rope.scaling.{name}"), self.needed(name)?, self.scheme.name(name));
        }
        self.original(entries).map(drop)
    }

    fn yarn(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let scheme = self.scheme;
        if scheme.flag("truncate")? == Some(false) {
            return Err(scheme.refuse("truncate", "true", false));
        }
        for (name, key) in [
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
            (BY_POSITION, "attention.temperature_scale"),
        ] {
            if let Some(value) = scheme.number(name)? {
                entries.put(key, value, scheme.name(name));
            }
        }
        self.original(entries)?;
        let factor = self.factor()?;
        let magnitude = |multiplier: f64| 0.1 * multiplier * factor.max(1.0).ln() + 1.0;
        let own = scheme.number("attention_factor")?;
        let scales = scheme.number("mscale")?.zip(scheme.number("mscale_all_dim")?);
        let scales = scales.filter(|&(scale, all)| scale != 0.0 && all != 0.0);
        let (name, whole) = match (own, scales) {
            (Some(own), _) => ("attention_factor", own),
            (None, Some((scale, all))) => ("mscale", magnitude(scale) / magnitude(all)),
            (None, None) => return Ok(()),
        };
        // GGUF's `attn_factor` is a multiplier on top of YaRN's own magnitude.
        entries.put("rope.scaling.attn_factor", whole / magnitude(1.0), scheme.name(name));
        Ok(())
    }

    /// longrope: separate frequency factors within and beyond the original context.
    fn longrope(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let scheme = self.scheme;
        for (name, key) in [(LONG, "rope.scaling.long_factors"), (SHORT, "rope.scaling.short_factors")] {
            let factors = scheme.list(name)?;
            let factors = factors.ok_or_else(|| scheme.refuse(name, "a list of factors", "no such key"))?;
            let number = |value: &Value| value.as_f64().map(|factor| factor as f32);
            let factors: Option<Vec<f32>> = factors.iter().map(number).collect();
            let factors = factors.ok_or_else(|| scheme.refuse(name, "numbers", "other values"))?;
            entries.put(key, factors, scheme.name(name));
        }
        let context = self.text.whole("max_position_embeddings")?.unwrap_or(self.model.context);
        let original = self.original(entries)?.unwrap_or(context);
        let ratio = || Ok(scheme.number("factor")?.unwrap_or(context as f64 / original.max(1) as f64));
        let (name, whole) = match scheme.number("attention_factor")? {
            Some(own) => ("attention_factor", own),
            None => match ratio()? {
                ratio if ratio > 1.0 && original > 1 => {
                    ("factor", (ratio.ln() / (original as f64).ln() + 1.0).sqrt())
                }
                _ => return Ok(()),
            },
        };
        entries.put("rope.scaling.attn_factor", whole, scheme.name(name));
        Ok(())
    }
}
