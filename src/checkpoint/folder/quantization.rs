//! Quantisation settings: `quantization_config` or `hf_quant_config.json` for FP8 and NVFP4 weights, with the
//! names of scale tensors and their granularity. The dtype of a tensor determines whether it is quantised.
//! Settings of activation quantisation are ignored.

use crate::checkpoint::WeightsError;
use crate::checkpoint::scales::{BLOCK, GROUP, Spread};

use super::documents::Documents;
use super::json::{Object, shown_value};
use super::known::check_keys;

/// Key of the settings in `config.json`.
pub(super) const KEY: &str = "quantization_config";

/// Storage of FP8 and NVFP4 weights.
#[derive(Default)]
pub(super) struct Quantization {
    /// FP8 weights, if any.
    pub eight: Option<Eight>,
    /// NVFP4 weights, if any.
    pub four: Option<Four>,
}

/// Scales of FP8 weights.
pub(super) struct Eight {
    /// Last component of the name of a scale tensor, instead of `weight`.
    pub scales: &'static str,
    /// Permitted granularities.
    pub spreads: Vec<Spread>,
}

/// Codes and scales of NVFP4 weights: E4M3 scales per group of 16 (always `weight_scale`), and one F32 scale
/// per tensor.
#[derive(Clone, Copy)]
pub(super) struct Four {
    /// Last component of the name of a code tensor, instead of `weight`.
    pub codes: &'static str,
    /// Last component of the name of the tensor's scale.
    pub global: &'static str,
    /// Whether the tensor's scale is a divisor.
    pub divides: bool,
}

/// The convention of llm-compressor.
const COMPRESSED: Four = Four { codes: "weight_packed", global: "weight_global_scale", divides: true };
/// The convention of NVIDIA's Model Optimizer.
const MODELOPT: Four = Four { codes: "weight", global: "weight_scale_2", divides: false };

impl Quantization {
    /// Parses the settings of a configuration, if it has any.
    pub fn read(config: &Object<'_>) -> Result<Option<Quantization>, WeightsError> {
        let Some(quantization) = config.object(KEY)?.filter(|object| object.entries().next().is_some())
        else {
            return Ok(None);
        };
        match quantization.text("quant_method")? {
            Some("fp8") => fp8(&quantization).map(Some),
            Some("compressed-tensors") => compressed_tensors(&quantization).map(Some),
            Some("modelopt") => modelopt(&quantization).map(Some),
            found => Err(quantization.refuse(
                "quant_method",
                "fp8, compressed-tensors or modelopt; other methods are read from GGUF",
                found.unwrap_or("no such key"),
            )),
        }
    }

    /// Parses `hf_quant_config.json`, written by older versions of Model Optimizer, if it exists.
    pub fn beside(documents: &Documents) -> Result<Option<Quantization>, WeightsError> {
        let Some(document) = documents.json(Documents::QUANTIZATION)? else { return Ok(None) };
        let path = documents.path(Documents::QUANTIZATION);
        let root = Object::of(&path, &document)?;
        let quantization = root.object("quantization")?;
        let quantization = quantization
            .ok_or_else(|| root.refuse("quantization", "how weights are quantised", "no such key"))?;
        // Without `quant_algo` only the KV cache is quantised.
        let weights = quantization.get("quant_algo").is_some();
        weights.then(|| modelopt(&quantization)).transpose()
    }

    fn of_eight(scales: &'static str, spreads: Vec<Spread>) -> Quantization {
        Quantization { eight: Some(Eight { scales, spreads }), four: None }
    }
}

/// FP8 in blocks of 128 x 128, as in DeepSeek's and Qwen's checkpoints.
fn fp8(object: &Object<'_>) -> Result<Quantization, WeightsError> {
    let known = ["quant_method", "fmt", "weight_block_size"];
    // Ignored: activation settings and the list of modules that are not quantised.
    let ignored =
        ["activation_scheme", "scale_fmt", "modules_to_not_convert", "ignored_layers", "dequantize"];
    check_keys(object, |key| known.contains(&key) || ignored.contains(&key))?;
    if let Some(found) = object.text("fmt")?.filter(|&found| found != "e4m3") {
        return Err(object.refuse("fmt", "e4m3", found));
    }
    blocks_of_128(object, "weight_block_size")?;
    Ok(Quantization::of_eight("weight_scale_inv", vec![Spread::Block]))
}

/// NVIDIA Model Optimizer. KV cache quantisation is ignored: the cache type is a setting of the engine.
fn modelopt(object: &Object<'_>) -> Result<Quantization, WeightsError> {
    let known = ["quant_method", "quant_algo", "config_groups", "group_size"];
    let ignored =
        ["ignore", "exclude_modules", "kv_cache_scheme", "kv_cache_quant_algo", "producer", "targets"];
    check_keys(object, |key| known.contains(&key) || ignored.contains(&key))?;
    let (bits, quantization) = match object.text("quant_algo")? {
        Some("FP8") => (8, Quantization::of_eight("weight_scale", vec![Spread::Tensor])),
        Some("NVFP4") => (4, Quantization { eight: None, four: Some(MODELOPT) }),
        found => return Err(object.refuse("quant_algo", "FP8 or NVFP4", found.unwrap_or("no such key"))),
    };
    if let Some(groups) = object.object("config_groups")? {
        for (name, _) in groups.entries() {
            let Some(group) = groups.object(name)? else { continue };
            let Some(weights) = group.object("weights")? else { continue };
            check_keys(&weights, |key| ["num_bits", "type", "group_size"].contains(&key))?;
            expect(&weights, "type", "float", weights.text("type")?)?;
            expect_whole(&weights, "num_bits", bits)?;
            if bits == 4 {
                expect_whole(&weights, "group_size", GROUP as u64)?;
            }
        }
    }
    if object.get("group_size").is_some() && bits == 4 {
        expect_whole(object, "group_size", GROUP as u64)?;
    }
    Ok(quantization)
}

fn compressed_tensors(object: &Object<'_>) -> Result<Quantization, WeightsError> {
    let known = ["quant_method", "format", "config_groups", "sparsity_config"];
    let ignored = ["ignore", "quantization_status", "global_compression_ratio", "version", "run_compressed"];
    check_keys(object, |key| known.contains(&key) || ignored.contains(&key))?;
    let format = object.text("format")?;
    if let Some(sparsity) =
        object.object("sparsity_config")?.filter(|object| object.entries().next().is_some())
    {
        expect(&sparsity, "format", "dense", sparsity.text("format")?)?;
    }
    let mut found = Quantization::default();
    // In mixed precision each group has its own format.
    if format != Some("mixed-precision") {
        add_format(&mut found, object, format)?;
    }
    let groups = object.object("config_groups")?;
    let groups = groups.ok_or_else(|| object.refuse("config_groups", "groups of weights", "no such key"))?;
    for (name, _) in groups.entries() {
        let Some(group) = groups.object(name)? else { continue };
        let known = ["weights", "format", "targets", "input_activations", "output_activations"];
        check_keys(&group, |key| known.contains(&key))?;
        let format = group.text("format")?.or(format);
        add_format(&mut found, &group, format)?;
        let weights = group.object("weights")?;
        let weights =
            weights.ok_or_else(|| group.refuse("weights", "how weights are quantised", "no such key"))?;
        match (format, &mut found.eight) {
            (Some(FOUR), _) => check_four(&weights)?,
            (_, Some(eight)) => {
                let spread = spread(&weights)?;
                eight.spreads.extend((!eight.spreads.contains(&spread)).then_some(spread));
            }
            (_, None) => {}
        }
    }
    Ok(found)
}

/// Names of the formats in compressed-tensors.
const EIGHT: &str = "float-quantized";
const FOUR: &str = "nvfp4-pack-quantized";

/// Adds the settings of a format, once.
fn add_format(to: &mut Quantization, object: &Object<'_>, format: Option<&str>) -> Result<(), WeightsError> {
    match format {
        Some(EIGHT) => {
            to.eight.get_or_insert(Eight { scales: "weight_scale", spreads: Vec::new() });
        }
        Some(FOUR) => to.four = Some(COMPRESSED),
        found => {
            let expected = format!("{EIGHT} or {FOUR}");
            return Err(object.refuse("format", expected, found.unwrap_or("no such key")));
        }
    }
    Ok(())
}

/// Ignored: the calibration method, and the scale dtypes, which the tensors carry.
const NOTES_OF_WEIGHTS: [&str; 4] = ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];

/// Granularity of the scales in a group of FP8 weights.
fn spread(weights: &Object<'_>) -> Result<Spread, WeightsError> {
    let known = ["num_bits", "type", "symmetric", "strategy", "block_structure"];
    check_floats(weights, &known, 8)?;
    match weights.text("strategy")? {
        Some("tensor") => Ok(Spread::Tensor),
        Some("channel") => Ok(Spread::Row),
        Some("block") => blocks_of_128(weights, "block_structure").map(|()| Spread::Block),
        found => {
            let found = found.unwrap_or("no such key");
            Err(weights.refuse("strategy", "tensor, channel or block", found))
        }
    }
}

fn check_four(weights: &Object<'_>) -> Result<(), WeightsError> {
    check_floats(weights, &["num_bits", "type", "symmetric", "strategy", "group_size"], 4)?;
    expect(weights, "strategy", "tensor_group", weights.text("strategy")?)?;
    expect_whole(weights, "group_size", GROUP as u64)
}

fn check_floats(weights: &Object<'_>, known: &[&str], bits: u64) -> Result<(), WeightsError> {
    check_keys(weights, |key| known.contains(&key) || NOTES_OF_WEIGHTS.contains(&key))?;
    expect(weights, "type", "float", weights.text("type")?)?;
    expect_whole(weights, "num_bits", bits)?;
    if weights.flag("symmetric")? == Some(false) {
        return Err(weights.refuse("symmetric", "true", false));
    }
    Ok(())
}

fn expect_whole(object: &Object<'_>, key: &str, expected: u64) -> Result<(), WeightsError> {
    match object.whole(key)? {
        Some(found) if found == expected => Ok(()),
        found => {
            let found = found.map_or("no such key".into(), |found| found.to_string());
            Err(object.refuse(key, expected.to_string(), found))
        }
    }
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
