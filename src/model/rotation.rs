//! Rotary embedding of a model: base, rotated elements and scaling, for global and sliding-window layers.

use crate::checkpoint::RotaryRows;
use crate::ir::{Heads, RopePairing};

use super::ModelError;
use super::config::Rotations;
use super::keys::Keys;
use super::recipe::LocalRope;
use super::rope::{RopeBase, RopeScaling};
use super::scaling::{Scaling, rope_scaling};

/// Default base (theta).
const BASE_DEFAULT: f64 = 10_000.0;

/// Reads the rotations, and those for contexts of at most the given tokens where they differ (LongRoPE).
pub(super) fn rotations(
    keys: Keys<'_>,
    heads: Heads,
    context_length: usize,
) -> Result<(Rotations, Option<(usize, Rotations)>), ModelError> {
    let base = keys.positive_or("rope.global.freq_base", BASE_DEFAULT)?;
    let base = keys.positive_or("rope.freq_base", base)?;
    let global = rope_base(keys, heads, ("rope.dimension_count", heads.dim), base)?;
    let rope = keys.family.sliding_window_layers.map_or(LocalRope::AsGlobal, |local| local.rope);
    let default = match rope {
        LocalRope::Unscaled { base: Some(base) } => base,
        LocalRope::Unscaled { base: None } | LocalRope::AsGlobal => global.base,
    };
    let default = keys.positive_or("rope.local.freq_base", default)?;
    let base = keys.positive_or("rope.freq_base_swa", default)?;
    let local = rope_base(keys, heads, ("rope.dimension_count_swa", global.dims), base)?;
    let plain = RopeScaling::default();
    let of = |scaling: &RopeScaling| {
        let of_local = if rope == LocalRope::AsGlobal { scaling } else { &plain };
        Rotations { global: scaling.spec(global), local: of_local.spec(local) }
    };
    let Scaling { whole, short } = rope_scaling(keys, global.dims / 2, context_length)?;
    Ok((of(&whole), short.map(|(tokens, scaling)| (tokens, of(&scaling)))))
}

/// Unscaled rotation; the number of rotated elements is read from `key`.
fn rope_base(
    keys: Keys<'_>,
    heads: Heads,
    (key, default): (&str, usize),
    base: f64,
) -> Result<RopeBase, ModelError> {
    let dims = keys.count(key, Some(default))?;
    if !dims.is_multiple_of(2) || dims > heads.dim {
        let expected = format!("an even number up to the head's {}", heads.dim);
        return Err(keys.refuse(key, &expected, dims));
    }
    let pairing = match keys.file.dialect().rotary_rows() {
        RotaryRows::OfFamily => keys.family.pairing,
        RotaryRows::Halves => RopePairing::Halves,
    };
    Ok(RopeBase { dims, base, pairing })
}
