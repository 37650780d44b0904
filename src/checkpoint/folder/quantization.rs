//! What `quantization_config` says of weights of 8-bit floats: which tensor has the scales of another, and what they
//! may cover. Which weights are such floats, the tensors' types say. How activations were quantised is not needed:
//! they are not.

use crate::checkpoint::WeightsError;
use crate::checkpoint::scales::{BLOCK, Spread};

use super::json::{Object, shown_value};
use super::known::check_keys;

/// The key itself.
pub(super) const KEY: &str = "quantization_config";

/// Where the scales of weights are.
pub(super) struct Fp8 {
    /// What the name of a tensor of scales has in the place of `weight`.
    pub scales: &'static str,
    /// What they may cover.
    pub spreads: Vec<Spread>,
}

impl Fp8 {
    /// Of a configuration, if it has one.
    pub fn read(config: &Object<'_>) -> Result<Option<Fp8>, WeightsError> {
        let Some(quantization) = config.object(KEY)?.filter(|object| object.entries().next().is_some())
        else {
            return Ok(None);
        };
        match quantization.text("quant_method")? {
            Some("fp8") => fp8(&quantization).map(Some),
            Some("compressed-tensors") => compressed_tensors(&quantization).map(Some),
            found => Err(quantization.refuse(
                "quant_method",
                "fp8 or compressed-tensors; other methods are read from GGUF",
                found.unwrap_or("no such key"),
            )),
        }
    }
}

/// DeepSeek's and Qwen's.
fn fp8(object: &Object<'_>) -> Result<Fp8, WeightsError> {
    let known = ["quant_method", "fmt", "weight_block_size"];
    // What activations become, and which weights stay as they are.
    let notes = ["activation_scheme", "scale_fmt", "modules_to_not_convert", "ignored_layers", "dequantize"];
    check_keys(object, |key| known.contains(&key) || notes.contains(&key))?;
    if let Some(found) = object.text("fmt")?.filter(|&found| found != "e4m3") {
        return Err(object.refuse("fmt", "e4m3", found));
    }
    blocks_of_128(object, "weight_block_size")?;
    Ok(Fp8 { scales: "weight_scale_inv", spreads: vec![Spread::Block] })
}

fn compressed_tensors(object: &Object<'_>) -> Result<Fp8, WeightsError> {
    let known = ["quant_method", "format", "config_groups", "sparsity_config"];
    let notes = ["ignore", "quantization_status", "global_compression_ratio", "version", "run_compressed"];
    check_keys(object, |key| known.contains(&key) || notes.contains(&key))?;
    float_quantized(object)?;
    if let Some(sparsity) =
        object.object("sparsity_config")?.filter(|object| object.entries().next().is_some())
    {
        expect(&sparsity, "format", "dense", sparsity.text("format")?)?;
    }
    let groups = object.object("config_groups")?;
    let groups = groups.ok_or_else(|| object.refuse("config_groups", "groups of weights", "no such key"))?;
    let mut spreads = Vec::new();
    for (name, _) in groups.entries() {
        let group = groups.object(name)?;
        let spread = group.as_ref().map(spread).transpose()?;
        spreads.extend(spread.filter(|spread| !spreads.contains(spread)));
    }
    Ok(Fp8 { scales: "weight_scale", spreads })
}

/// What shares a scale in a group of weights.
fn spread(group: &Object<'_>) -> Result<Spread, WeightsError> {
    let known = ["weights", "format", "targets", "input_activations", "output_activations"];
    check_keys(group, |key| known.contains(&key))?;
    if group.get("format").is_some() {
        float_quantized(group)?;
    }
    let weights = group.object("weights")?;
    let weights =
        weights.ok_or_else(|| group.refuse("weights", "how weights are quantised", "no such key"))?;
    let known = ["num_bits", "type", "symmetric", "strategy", "block_structure"];
    // How the scales were found, and in what they are kept, which the tensors say themselves.
    let notes = ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];
    check_keys(&weights, |key| known.contains(&key) || notes.contains(&key))?;
    expect(&weights, "type", "float", weights.text("type")?)?;
    match weights.whole("num_bits")? {
        Some(8) => {}
        found => {
            return Err(weights.refuse(
                "num_bits",
                "8",
                found.map_or("no such key".into(), |n| n.to_string()),
            ));
        }
    }
    if weights.flag("symmetric")? == Some(false) {
        return Err(weights.refuse("symmetric", "true", false));
    }
    match weights.text("strategy")? {
        Some("tensor") => Ok(Spread::Tensor),
        Some("channel") => Ok(Spread::Row),
        Some("block") => blocks_of_128(&weights, "block_structure").map(|()| Spread::Block),
        found => {
            let found = found.unwrap_or("no such key");
            Err(weights.refuse("strategy", "tensor, channel or block", found))
        }
    }
}

fn float_quantized(object: &Object<'_>) -> Result<(), WeightsError> {
    expect(object, "format", "float-quantized", object.text("format")?)
}

fn expect(object: &Object<'_>, key: &str, expected: &str, found: Option<&str>) -> Result<(), WeightsError> {
    match found {
        Some(found) if found == expected => Ok(()),
        found => Err(object.refuse(key, expected, found.unwrap_or("no such key"))),
    }
}

fn blocks_of_128(object: &Object<'_>, key: &str) -> Result<(), WeightsError> {
    let sides = object.list(key)?;
    if sides
        .is_some_and(|sides| sides.len() == 2 && sides.iter().all(|side| side.as_u64() == Some(BLOCK as u64)))
    {
        return Ok(());
    }
    let sides = sides.map(|sides| sides.iter().map(shown_value).collect::<Vec<_>>().join(", "));
    let found = sides.map_or("no such key".to_owned(), |sides| format!("[{sides}]"));
    Err(object.refuse(key, format!("[{BLOCK}, {BLOCK}]"), found))
}
