//! Weights of 8-bit floats: the logits of the values that they stand for, whatever shares a scale, and one clear error
//! for each thing that may be wrong with them.

use half::bf16;
use ottava::checkpoint::{self, OpenOptions, TensorType};
use ottava::model::ModelConfig;
use ottava::quant::{Codes, MatrixForm, QuantForm, WeightMatrix};
use serde_json::{Value, json};

use crate::folder::{Folder, Raw};
use crate::logits::{apart, run};
use crate::tiny::Outcome;

const TOKENS: [u32; 12] = [1, 7, 300, 42, 511, 8, 9, 77, 123, 5, 64, 200];

/// What each code of a kind stands for, by another library.
pub fn values(kind: &str) -> Vec<f32> {
    let mut lines = include_str!("../../src/quant/codes.txt").lines();
    let line =
        lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')).expect("a line of that kind");
    line.split(' ').map(|word| word.parse().expect("a number")).collect()
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    Block,
    Row,
    Tensor,
}

impl Share {
    fn shape(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match self {
            Share::Block => [rows.div_ceil(128), cols.div_ceil(128)],
            Share::Row => [rows, 1],
            Share::Tensor => [1, 1],
        }
    }

    /// Where the scale of a value is.
    fn place(self, row: usize, col: usize, width: usize) -> usize {
        match self {
            Share::Block => row / 128 * width + col / 128,
            Share::Row => row,
            Share::Tensor => 0,
        }
    }

    fn config(self) -> Value {
        match self {
            Share::Block => json!({
                "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"],
            }),
            Share::Row => compressed("channel"),
            Share::Tensor => compressed("tensor"),
        }
    }

    fn end(self) -> &'static str {
        if self == Share::Block { "weight_scale_inv" } else { "weight_scale" }
    }
}

/// As llm-compressor writes it.
fn compressed(strategy: &str) -> Value {
    json!({
        "config_groups": { "group_0": {
            "input_activations": {
                "actorder": null, "block_structure": null, "dynamic": true, "group_size": null, "num_bits": 8,
                "observer": null, "observer_kwargs": {}, "strategy": "token", "symmetric": true, "type": "float",
            },
            "output_activations": null,
            "targets": ["Linear"],
            "weights": {
                "actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
                "observer": "minmax", "observer_kwargs": {}, "strategy": strategy, "symmetric": true, "type": "float",
            },
        } },
        "format": "float-quantized",
        "global_compression_ratio": 1.46,
        "ignore": ["lm_head"],
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.10.2",
    })
}

/// The folder with 8-bit floats in the place of its matrices, and with the values that they stand for.
pub fn quantised(folder: &Folder, share: Share) -> [Folder; 2] {
    let (values, mut eight) = (values("E4M3"), folder.clone().set("quantization_config", share.config()));
    let mut wide = folder.clone();
    eight.tensors.retain(|tensor| !tensor.name.ends_with("_proj.weight"));
    for tensor in wide.tensors.iter_mut().filter(|tensor| tensor.name.ends_with("_proj.weight")) {
        let shape = [tensor.shape[0], tensor.shape[1]];
        let [lines, width] = share.shape(shape);
        let mut scales = vec![0f32; lines * width];
        for (at, value) in tensor.values.iter().enumerate() {
            let scale = &mut scales[share.place(at / shape[1], at % shape[1], width)];
            *scale = scale.max(bf16::from_f32(value.abs() / 448.0 * 1.01).to_f32());
        }
        let code = |wanted: f32| {
            let off = |code: &u8| (values[usize::from(*code)].abs() - wanted.abs()).abs();
            let nearest = (0..127).min_by(|a, b| off(a).total_cmp(&off(b))).expect("a code");
            nearest | if wanted < 0.0 { 0x80 } else { 0 }
        };
        let mut codes = Vec::with_capacity(tensor.values.len());
        for (at, value) in tensor.values.iter_mut().enumerate() {
            let scale = scales[share.place(at / shape[1], at % shape[1], width)];
            codes.push(code(*value / scale));
            *value = values[usize::from(codes[at])] * scale;
        }
        // Brains hold the scales; of rows they come as floats, of a tensor as one that has no dimension.
        let (dtype, bytes): (_, Vec<u8>) = match share {
            Share::Block => ("BF16", scales.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()),
            _ => ("F32", scales.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        let scale_shape = if share == Share::Tensor { vec![] } else { vec![lines, width] };
        let name = tensor.name.clone();
        let beside = |end: &str| name.replace("weight", end);
        eight.raw.push(Raw { name: beside("input_scale"), dtype: "F32", shape: vec![1], bytes: vec![0; 4] });
        eight.raw.push(Raw { name: beside(share.end()), dtype, shape: scale_shape, bytes });
        eight.raw.push(Raw { name, dtype: "F8_E4M3", shape: shape.to_vec(), bytes: codes });
    }
    [eight, wide]
}

pub fn logits(folder: &Folder, shards: usize) -> Outcome<Vec<Vec<f32>>> {
    let vocab = folder.config["vocab_size"].as_u64().ok_or("no vocabulary")? as u32;
    let folder = if shards == 1 { folder.write()? } else { folder.write_sharded(shards)? };
    run(
        &*checkpoint::open(folder.path(), &OpenOptions { mmap: shards > 1 })?,
        &TOKENS.map(|id| id % vocab),
        None,
    )
}

/// Checks that a folder of few bits has the logits of the values that these stand for, up to `most` of the largest, and
/// that the folder from which it was made has others, by `least`.
pub fn assert_stands_for(plain: &Folder, [few, wide]: [Folder; 2], [most, least]: [f64; 2]) -> Outcome {
    let (original, expected) = (logits(plain, 1)?, logits(&wide, 1)?);
    let largest = f64::from(original.iter().flatten().fold(0f32, |most, x| most.max(x.abs())));
    for shards in [1, 4] {
        let off = apart(&logits(&few, shards)?, &expected) / largest;
        println!("{shards} shards: {off:.1e}");
        assert!(off < most, "{off}");
    }
    let lost = apart(&original, &expected) / largest;
    assert!(lost > least, "the values are others, {lost}");
    Ok(())
}

#[test]
fn weights_of_eight_bit_floats_are_their_values() -> Outcome {
    for family in ["qwen3", "llama"] {
        let plain = Folder::of(family)?;
        for share in [Share::Block, Share::Row, Share::Tensor] {
            println!("{family}, {share:?}");
            // Scales of eight bits are exact in f16, so that only sums are rounded otherwise, and f16 pages with them.
            assert_stands_for(&plain, quantised(&plain, share), [1e-3, 3e-3])?;
        }
    }
    Ok(())
}

/// A matrix of several blocks, with a tail in rows and columns, which no layer of the tiny models has.
fn large(share: Share, scale: impl Fn(usize) -> f32) -> Outcome<Folder> {
    let mut folder = Folder::of("qwen3")?.set("quantization_config", share.config());
    let codes = (0..300 * 200).map(|at| (at % 127) as u8 | ((at / 127 % 2) << 7) as u8).collect();
    let [lines, width] = share.shape([300, 200]);
    let scales = (0..lines * width).flat_map(|at| scale(at).to_le_bytes()).collect();
    let raw = |name: &str, dtype, shape, bytes| Raw { name: name.into(), dtype, shape, bytes };
    folder.raw = vec![
        raw("large.weight", "F8_E4M3", vec![300, 200], codes),
        raw(&format!("large.{}", share.end()), "F32", vec![lines, width], scales),
    ];
    Ok(folder)
}

#[test]
fn each_block_has_its_own_scale() -> Outcome {
    let values = values("E4M3");
    // Exact in f16, some negative, one zero.
    let scale = |at: usize| (at as f32 - 2.0) / 64.0;
    for share in [Share::Block, Share::Row, Share::Tensor] {
        let folder = large(share, scale)?.write()?;
        let file = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let rows = file.rows("large.weight")?;
        let group = if share == Share::Block { 128 } else { 200 };
        let form = QuantForm { kind: Codes::E4m3, group, mins: false };
        assert_eq!((rows.form(), rows.row_bytes()), (MatrixForm::Quant(form), 200));
        assert_eq!(file.tensor("large.weight").map(|info| info.dtype), Some(TensorType::F8E4m3));
        assert!(
            file.tensor("large.weight_scale_inv").is_none() && file.tensor("large.weight_scale").is_none()
        );
        let mut block = WeightMatrix::default();
        for own in [0..300, 0..32, 96..128, 120..140, 127..128, 128..129, 250..300, 299..300] {
            rows.read(own.clone(), &mut block)?;
            for (at, row) in own.enumerate() {
                let mut found = [f32::NAN; 200];
                block.dequantize_row(at, &mut found);
                for (col, &found) in found.iter().enumerate() {
                    let at = row * 200 + col;
                    let value = values[at % 127] * if at / 127 % 2 == 1 { -1.0 } else { 1.0 };
                    let width = share.shape([300, 200])[1];
                    assert_eq!(found, value * scale(share.place(row, col, width)), "{share:?} {row} {col}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn scales_are_a_part_of_the_fingerprint() -> Outcome {
    let of = |scale: f32| -> Outcome<_> {
        let folder = large(Share::Row, |at| if at == 299 { scale } else { 1.0 })?.write()?;
        Ok(checkpoint::open(folder.path(), &OpenOptions::default())?.fingerprint()?)
    };
    assert_eq!(of(1.0)?, of(1.0)?);
    assert_ne!(of(1.0)?, of(2.0)?);
    Ok(())
}

/// What reading all of a folder says.
pub fn refusal(folder: &Folder) -> Outcome<String> {
    let folder = folder.write()?;
    let read = || -> Outcome {
        let file = checkpoint::open(folder.path(), &OpenOptions::default())?;
        file.tensors().iter().try_for_each(|info| file.matrix(&info.name).map(drop))?;
        ModelConfig::from_file(&*file)?;
        Ok(())
    };
    let error = read().err().map_or_else(|| "accepted".to_owned(), |error| error.to_string());
    assert_eq!(error.lines().count(), 1, "{error}");
    Ok(error)
}

pub fn refused(folder: &Folder, words: &[&str]) -> Outcome {
    let error = refusal(folder)?;
    assert!(words.iter().all(|word| error.contains(word)), "expected {words:?}, found: {error}");
    Ok(())
}

const UP: &str = "model.layers.1.mlp.up_proj.weight";

/// A sound folder.
fn sound(share: Share) -> Outcome<Folder> {
    let [folder, _] = quantised(&Folder::of("qwen3")?, share);
    Ok(folder)
}

/// The folder with the tensor that is called `UP` with another end changed.
fn with(sound: &Folder, end: &str, change: impl FnOnce(&mut Raw)) -> Outcome<Folder> {
    let mut folder = sound.clone();
    let name = UP.replace("weight", end);
    change(folder.raw.iter_mut().find(|raw| raw.name == name).ok_or("no such tensor")?);
    Ok(folder)
}

#[test]
fn scales_that_do_not_fit_their_weights_are_named() -> Outcome {
    for share in [Share::Block, Share::Row, Share::Tensor] {
        let (end, of) = (share.end(), UP.replace("weight", share.end()));
        let sound = sound(share)?;
        refused(&with(&sound, end, |_| {})?, &["accepted"])?;
        let gone = with(&sound, end, |raw| raw.name = "model.other".into())?;
        refused(
            &gone,
            &["model.safetensors", &format!("tensor `{UP}`: expected its scales in a tensor `{of}`")],
        )?;
        for shape in [vec![2, 2], vec![5], vec![96, 2], vec![1, 1, 1]] {
            let shaped = with(&sound, end, |raw| {
                (raw.dtype, raw.bytes) = ("F32", vec![0; 4 * shape.iter().product::<usize>()]);
                raw.shape = shape.clone();
            })?;
            let wanted = share.shape([96, 64]);
            let text =
                format!("tensor `{of}`: expected {wanted:?} as the scales of [96, 64], found {shape:?}");
            refused(&shaped, &["model.safetensors", &text])?;
        }
        let whole = with(&sound, end, |raw| {
            (raw.dtype, raw.bytes) = ("I64", vec![0; 8 * raw.shape.iter().product::<usize>()]);
        })?;
        refused(&whole, &["model.safetensors", &format!("tensor `{of}`: the type I64 is not supported")])?;
        let eight = with(&sound, end, |raw| {
            (raw.dtype, raw.bytes) = ("F8_E4M3", vec![0; raw.shape.iter().product()]);
        })?;
        refused(&eight, &["model.safetensors", &of, "the type F8_E4M3 is not supported"])?;
        for (scale, word) in [
            (f32::NAN, "the scale of row 0, group 0 is NaN"),
            (f32::INFINITY, "the scale of row 0, group 0 is inf"),
            (300.0, "the scale of row 0, group 0 is 3e2, which f16 does not hold here"),
            (1e-20, "the scale of row 0, group 0 is 1e-20, which f16 does not hold here"),
        ] {
            let odd = with(&sound, end, |raw| {
                (raw.dtype, raw.bytes) = ("F32", scale.to_le_bytes().repeat(raw.shape.iter().product()));
            })?;
            refused(&odd, &["model.safetensors", &format!("tensor `{UP}`"), word])?;
        }
        for scale in [0.0f32, -0.5] {
            let odd = with(&sound, end, |raw| {
                (raw.dtype, raw.bytes) = ("F32", scale.to_le_bytes().repeat(raw.shape.iter().product()));
            })?;
            refused(&odd, &["accepted"])?;
        }
    }
    Ok(())
}

#[test]
fn weights_that_are_no_numbers_or_of_other_types_are_named() -> Outcome {
    let eight = sound(Share::Row)?;
    for code in [0x7f, 0xff] {
        let odd = with(&eight, "weight", |raw| raw.bytes[5 * 64 + 3] = code)?;
        let word = "expected finite values, found NaN at row 5, column 3";
        refused(&odd, &["model.safetensors", &format!("tensor `{UP}`"), word])?;
    }
    let other = with(&eight, "weight", |raw| raw.dtype = "F8_E5M2")?;
    refused(&other, &["model.safetensors", UP, "the type F8_E5M2 is not supported"])?;
    // A vector has no scales.
    let mut vector = Folder::of("qwen3")?.set("quantization_config", Share::Row.config());
    let name = "model.norm.weight";
    vector.tensors.retain(|tensor| tensor.name != name);
    vector.raw.push(Raw { name: name.into(), dtype: "F8_E4M3", shape: vec![64], bytes: vec![0x38; 64] });
    refused(&vector, &["model.safetensors", name, "the type F8_E4M3 is not supported"])?;
    // Nothing says where scales are.
    let silent = eight.set("quantization_config", Value::Null);
    refused(&silent, &["model.safetensors", "_proj.weight", "the type F8_E4M3 is not supported"])?;
    // Scales beside a weight that has none are strangers.
    let mut stray = Folder::of("qwen3")?.set("quantization_config", Share::Row.config());
    let name = UP.replace("weight", "weight_scale");
    stray.raw.push(Raw { name: name.clone(), dtype: "F32", shape: vec![96, 1], bytes: vec![0; 4 * 96] });
    refused(&stray, &[&name, "has no place in a qwen3 model"])
}

/// The configuration with another value at a place.
pub fn change(config: &Value, at: &str, value: Value) -> Value {
    let mut config = config.clone();
    *config.pointer_mut(at).expect("a key that is there") = value;
    config
}

/// The configuration with a key of an object set.
pub fn add(config: &Value, at: &str, key: &str, value: Value) -> Value {
    let mut config = config.clone();
    config.pointer_mut(at).expect("an object")[key] = value;
    config
}

const WEIGHTS: &str = "/config_groups/group_0/weights";

#[test]
fn what_else_a_quantisation_may_be_is_named() -> Outcome {
    let (fp8, rows) = (Share::Block.config(), Share::Row.config());
    let of_weights = |key: &str, value: Value| add(&rows, WEIGHTS, key, value);
    let cases: [(Value, &[&str]); 21] = [
        (
            change(&fp8, "/quant_method", "awq".into()),
            &["quant_method: expected fp8, compressed-tensors or modelopt", "awq"],
        ),
        (change(&fp8, "/quant_method", Value::Null), &["quant_method: expected", "no such key"]),
        (change(&fp8, "/quant_method", 8.into()), &["quant_method: expected a string"]),
        (change(&fp8, "/fmt", "e5m2".into()), &["fmt: expected e4m3, found e5m2"]),
        (
            change(&fp8, "/weight_block_size", json!([64, 128])),
            &["weight_block_size: expected [128, 128], found [64, 128]"],
        ),
        (
            change(&fp8, "/weight_block_size", json!([128])),
            &["weight_block_size: expected [128, 128], found [128]"],
        ),
        (change(&fp8, "/weight_block_size", Value::Null), &["weight_block_size: expected", "no such key"]),
        (add(&fp8, "", "kv_cache_quant_algo", "fp8".into()), &["quantization_config.kv_cache_quant_algo"]),
        (
            change(&rows, "/format", "pack-quantized".into()),
            &["format: expected float-quantized or nvfp4-pack-quantized, found pack-"],
        ),
        (
            change(&rows, "/kv_cache_scheme", json!({ "num_bits": 8 })),
            &["quantization_config.kv_cache_scheme"],
        ),
        (change(&rows, "/transform_config", json!({ "config_groups": {"a": 1} })), &["transform_config"]),
        (
            change(&rows, "/sparsity_config", json!({ "format": "sparse-24-bitmask" })),
            &["sparsity_config.format: expected dense, found sparse-24-bitmask"],
        ),
        (change(&rows, "/config_groups", Value::Null), &["config_groups: expected groups", "no such key"]),
        (change(&rows, WEIGHTS, Value::Null), &["config_groups.group_0.weights: expected", "no such key"]),
        (of_weights("type", "int".into()), &["group_0.weights.type: expected float, found int"]),
        (of_weights("num_bits", 4.into()), &["group_0.weights.num_bits: expected 8, found 4"]),
        (of_weights("symmetric", false.into()), &["group_0.weights.symmetric: expected true, found false"]),
        (
            of_weights("strategy", "group".into()),
            &["weights.strategy: expected tensor, channel or block", "group"],
        ),
        (of_weights("actorder", "weight".into()), &["group_0.weights.actorder"]),
        (
            add(&of_weights("strategy", "block".into()), WEIGHTS, "block_structure", json!([128, 64])),
            &["weights.block_structure: expected [128, 128], found [128, 64]"],
        ),
        (add(&rows, "/config_groups/group_0", "format", "nvfp4".into()), &["group_0.format", "nvfp4"]),
    ];
    let folder = Folder::of("qwen3")?;
    for (config, words) in cases {
        let error = refusal(&folder.clone().set("quantization_config", config))?;
        assert!(error.contains("config.json: quantization_config."), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "expected {words:?}, found: {error}");
    }
    Ok(())
}

#[test]
fn quantisations_that_say_nothing_or_the_same_are_accepted() -> Outcome {
    let (folder, rows) = (Folder::of("qwen3")?, Share::Row.config());
    refused(&folder.clone().set("quantization_config", json!({})), &["accepted"])?;
    let dense = change(&rows, "/sparsity_config", json!({ "format": "dense", "global_sparsity": 0.1 }));
    refused(&folder.clone().set("quantization_config", dense), &["accepted"])?;
    let same = add(&rows, "/config_groups/group_0", "format", "float-quantized".into());
    refused(&folder.clone().set("quantization_config", same), &["accepted"])?;
    let blocks =
        add(&add(&rows, WEIGHTS, "strategy", "block".into()), WEIGHTS, "block_structure", json!([128, 128]));
    refused(&folder.set("quantization_config", blocks), &["accepted"])
}
