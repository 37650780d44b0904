//! How a `config.json` turns queries and keys: a base, and a scheme for contexts beyond the trained one. Older
//! documents have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`, by kind of layer where these differ.

use crate::checkpoint::WeightsError;

use super::json::Object;
use super::known::check_keys;
use super::model_type::{Entries, ModelType, Windows};

/// Keys of a scheme.
const KEYS: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "truncate",
];
/// The base of layers with a window, where they have one of their own.
const LOCAL_BASE: f64 = 10_000.0;

/// Adds the rotation of a text model.
pub(super) fn read(text: &Object<'_>, model: &ModelType, entries: &mut Entries) -> Result<(), WeightsError> {
    check_partial(text)?;
    let given = match text.object("rope_parameters")? {
        Some(given) => Some(given),
        None => text.object("rope_scaling")?,
    };
    let by_layer = given.as_ref().filter(|given| given.get("full_attention").is_some());
    let (global, local) = match by_layer {
        Some(given) => {
            check_keys(given, |key| matches!(key, "full_attention" | "sliding_attention"))?;
            (given.object("full_attention")?, given.object("sliding_attention")?)
        }
        None => (given, None),
    };
    let (base, name) = base(text, global.as_ref(), "rope_theta")?;
    entries.put("rope.freq_base", base.unwrap_or(model.rope_base), name);
    if model.windows == Windows::Pattern {
        read_local(text, local.as_ref(), entries)?;
    }
    match global {
        Some(global) => Scheme(&global).read(entries),
        None => Ok(()),
    }
}

/// Adds the rotation of layers with a window, which is not scaled.
fn read_local(
    text: &Object<'_>,
    local: Option<&Object<'_>>,
    entries: &mut Entries,
) -> Result<(), WeightsError> {
    if let Some(local) = local {
        check(local)?;
        if kind(local)? != "default" {
            return Err(local.refuse("rope_type", "default for layers with a window", kind(local)?));
        }
    }
    let key = if local.is_some() { "rope_theta" } else { "rope_local_base_freq" };
    let (base, name) = base(text, local, key)?;
    entries.put("rope.freq_base_swa", base.unwrap_or(LOCAL_BASE), name);
    Ok(())
}

/// A base, and its name: what the scheme says, else the text model.
fn base(
    text: &Object<'_>,
    scheme: Option<&Object<'_>>,
    key: &str,
) -> Result<(Option<f64>, String), WeightsError> {
    let holder = scheme.filter(|scheme| scheme.get(key).is_some()).unwrap_or(text);
    Ok((holder.number(key)?, holder.name(key)))
}

fn check(scheme: &Object<'_>) -> Result<(), WeightsError> {
    check_partial(scheme)?;
    check_keys(scheme, |key| KEYS.contains(&key))
}

/// All elements of a head must turn.
fn check_partial(object: &Object<'_>) -> Result<(), WeightsError> {
    let key = "partial_rotary_factor";
    match object.number(key)?.filter(|&share| share != 1.0) {
        Some(share) => Err(object.refuse(key, "1", share)),
        None => Ok(()),
    }
}

fn kind<'j>(scheme: &Object<'j>) -> Result<&'j str, WeightsError> {
    let old = scheme.text("type")?;
    Ok(scheme.text("rope_type")?.or(old).unwrap_or("default"))
}

/// A scheme of scaling.
struct Scheme<'s, 'j>(&'s Object<'j>);

impl Scheme<'_, '_> {
    fn read(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let scheme = self.0;
        check(scheme)?;
        let key = if scheme.get("rope_type").is_some() { "rope_type" } else { "type" };
        match kind(scheme)? {
            "default" => return Ok(()),
            "linear" => {}
            "llama3" => self.llama3(entries)?,
            "yarn" => self.yarn(entries)?,
            other => return Err(scheme.refuse(key, "default, linear, llama3 or yarn", other)),
        }
        entries.put("rope.scaling.type", kind(scheme)?, scheme.name(key));
        entries.put("rope.scaling.factor", self.factor()?, scheme.name("factor"));
        Ok(())
    }

    fn factor(&self) -> Result<f64, WeightsError> {
        self.needed("factor")
    }

    /// A positive number that must be there.
    fn needed(&self, key: &str) -> Result<f64, WeightsError> {
        let found = self.0.number(key)?;
        let value = found.ok_or_else(|| self.0.refuse(key, "a positive number", "no such key"))?;
        let fits = value > 0.0 && (value as f32).is_finite();
        fits.then_some(value).ok_or_else(|| self.0.refuse(key, "a positive number", value))
    }

    /// The context before scaling.
    fn original(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let name = "original_max_position_embeddings";
        // Without it the model's context counts, as in GGUF.
        if let Some(tokens) = self.0.whole(name)? {
            entries.put("rope.scaling.original_context_length", tokens, self.0.name(name));
        }
        Ok(())
    }

    fn llama3(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        for name in ["low_freq_factor", "high_freq_factor"] {
            entries.put(&format!("rope.scaling.{name}"), self.needed(name)?, self.0.name(name));
        }
        self.original(entries)
    }

    fn yarn(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let scheme = self.0;
        if scheme.flag("truncate")? == Some(false) {
            return Err(scheme.refuse("truncate", "true", false));
        }
        for (name, key) in
            [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")]
        {
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
        // The key multiplies what YaRN multiplies by itself.
        entries.put("rope.scaling.attn_factor", whole / magnitude(1.0), scheme.name(name));
        Ok(())
    }
}
