//! What `quantization_config`, or `hf_quant_config.json`, says of weights of 8-bit and 4-bit floats: which tensor has the
//! scales of another, and what they may cover. Which weights are such floats, the tensors' types say. How activations
//! were quantised is not needed: they are not.

use crate::checkpoint::WeightsError;
use crate::checkpoint::scales::{BLOCK, GROUP, Spread};

use super::documents::Documents;
use super::json::{Object, shown_value};
use super::known::check_keys;

/// The key itself.
pub(super) const KEY: &str = "quantization_config";

/// How weights of floats are stored.
#[derive(Default)]
pub(super) struct Quantization {
    /// Those of 8 bits, if there are any.
    pub eight: Option<Eight>,
    /// Those of 4 bits.
    pub four: Option<Four>,
}

/// Where the scales of 8-bit floats are.
pub(super) struct Eight {
    /// What the name of a tensor of scales has in the place of `weight`.
    pub scales: &'static str,
    /// What they may cover.
    pub spreads: Vec<Spread>,
}

/// Where 4-bit floats and their scales are: NVFP4, whose groups of 16 have scales of 8 bits, and each tensor one more.
/// The scales of groups are always `weight_scale`.
#[derive(Clone, Copy)]
pub(super) struct Four {
    /// What the name of a tensor of codes has in the place of `weight`.
    pub codes: &'static str,
    /// The same of the tensor's own scale.
    pub global: &'static str,
    /// Whether that one divides, and does not multiply.
    pub divides: bool,
}

/// As llm-compressor writes them.
const COMPRESSED: Four = Four { codes: "weight_packed", global: "weight_global_scale", divides: true };
/// As NVIDIA's Model Optimizer writes them.
const MODELOPT: Four = Four { codes: "weight", global: "weight_scale_2", divides: false };

impl Quantization {
    /// Of a configuration, if it has one.
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

    /// Of the document that older versions of Model Optimizer write beside the configuration, if there is one.
    pub fn beside(documents: &Documents) -> Result<Option<Quantization>, WeightsError> {
        let Some(document) = documents.json(Documents::QUANTIZATION)? else { return Ok(None) };
        let path = documents.path(Documents::QUANTIZATION);
        let root = Object::of(&path, &document)?;
        let quantization = root.object("quantization")?;
        let quantization = quantization
            .ok_or_else(|| root.refuse("quantization", "how weights are quantised", "no such key"))?;
        // Where keys and values alone are quantised, weights are as they are.
        let weights = quantization.get("quant_algo").is_some();
        weights.then(|| modelopt(&quantization)).transpose()
    }

    fn of_eight(scales: &'static str, spreads: Vec<Spread>) -> Quantization {
        Quantization { eight: Some(Eight { scales, spreads }), four: None }
    }
}

/// DeepSeek's and Qwen's.
fn fp8(object: &Object<'_>) -> Result<Quantization, WeightsError> {
    let known = ["quant_method", "fmt", "weight_block_size"];
    // What activations become, and which weights stay as they are.
    let notes = ["activation_scheme", "scale_fmt", "modules_to_not_convert", "ignored_layers", "dequantize"];
    check_keys(object, |key| known.contains(&key) || notes.contains(&key))?;
    if let Some(found) = object.text("fmt")?.filter(|&found| found != "e4m3") {
        return Err(object.refuse("fmt", "e4m3", found));
    }
    blocks_of_128(object, "weight_block_size")?;
    Ok(Quantization::of_eight("weight_scale_inv", vec![Spread::Block]))
}

/// NVIDIA's. How keys and values were quantised has no effect: the cache has a type of its own.
fn modelopt(object: &Object<'_>) -> Result<Quantization, WeightsError> {
    let known = ["quant_method", "quant_algo", "config_groups", "group_size"];
    let notes =
        ["ignore", "exclude_modules", "kv_cache_scheme", "kv_cache_quant_algo", "producer", "targets"];
    check_keys(object, |key| known.contains(&key) || notes.contains(&key))?;
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
    let notes = ["ignore", "quantization_status", "global_compression_ratio", "version", "run_compressed"];
    check_keys(object, |key| known.contains(&key) || notes.contains(&key))?;
    let format = object.text("format")?;
    if let Some(sparsity) =
        object.object("sparsity_config")?.filter(|object| object.entries().next().is_some())
    {
        expect(&sparsity, "format", "dense", sparsity.text("format")?)?;
    }
    let mut found = Quantization::default();
    // Where groups differ, each has its own.
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

/// The names of the formats.
const EIGHT: &str = "float-quantized";
const FOUR: &str = "nvfp4-pack-quantized";

/// Adds what a format stands for, if it is not there.
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

/// How the scales were found, and in what they are kept, which the tensors say themselves.
const NOTES_OF_WEIGHTS: [&str; 4] = ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];

/// What shares a scale in a group of 8-bit floats.
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
