//! Steps of a `tokenizer.json`: objects with a type, alone or in a sequence.

use crate::checkpoint::{Object, WeightsError};

/// Steps under a key: none, one, or those of a sequence.
pub(super) fn flat<'j>(root: &Object<'j>, key: &str, list: &str) -> Result<Vec<Object<'j>>, WeightsError> {
    let Some(step) = root.object(key)? else { return Ok(Vec::new()) };
    if kind(&step)? != "Sequence" {
        return Ok(vec![step]);
    }
    step.objects(list)
}

/// Type of a step.
pub(super) fn kind<'j>(step: &Object<'j>) -> Result<&'j str, WeightsError> {
    step.text("type")?.ok_or_else(|| step.refuse("type", "a type", "no such key"))
}
