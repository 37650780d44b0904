//! NVFP4, weights of 4-bit floats: the logits of the values that they stand for, as llm-compressor and as Model
//! Optimizer write them, and one clear error for each thing that may be wrong with them; and the 8-bit floats of the
//! latter.

use ottava::checkpoint::{self, OpenOptions, TensorType};
use ottava::quant::{Codes, MatrixForm, QuantForm, WeightMatrix};
use serde_json::{Value, json};

use crate::folder::{Folder, Raw};
use crate::fp8::{add, assert_stands_for, change, refused, values};
use crate::tiny::Outcome;

const GROUP: usize = 16;

/// Who wrote the folder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Writer {
    Compressor,
    Modelopt,
}

impl Writer {
    const BOTH: [Writer; 2] = [Writer::Compressor, Writer::Modelopt];

    fn config(self) -> Value {
        match self {
            Writer::Compressor => json!({
                "config_groups": { "group_0": {
                    "format": "nvfp4-pack-quantized",
                    "input_activations": {
                        "actorder": null, "block_structure": null, "dynamic": "local", "group_size": 16, "num_bits": 4,
                        "observer": "minmax", "observer_kwargs": {}, "strategy": "tensor_group", "symmetric": true,
                        "type": "float",
                    },
                    "output_activations": null,
                    "targets": ["Linear"],
                    "weights": {
                        "actorder": null, "block_structure": null, "dynamic": false, "group_size": 16, "num_bits": 4,
                        "observer": "minmax", "observer_kwargs": {}, "strategy": "tensor_group", "symmetric": true,
                        "type": "float",
                    },
                } },
                "format": "nvfp4-pack-quantized",
                "global_compression_ratio": null,
                "ignore": ["lm_head"],
                "kv_cache_scheme": null,
                "quant_method": "compressed-tensors",
                "quantization_status": "compressed",
                "sparsity_config": {},
                "transform_config": {},
                "version": "0.12.2",
            }),
            Writer::Modelopt => modelopt(
                "NVFP4",
                json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 }),
            ),
        }
    }

    /// What the name of the codes has in the place of `weight`, and that of the tensor's own scale.
    fn ends(self) -> [&'static str; 2] {
        match self {
            Writer::Compressor => ["weight_packed", "weight_global_scale"],
            Writer::Modelopt => ["weight", "weight_scale_2"],
        }
    }

    /// The tensor's own scale as it is written.
    fn written(self, scale: f32) -> f32 {
        if self == Writer::Compressor { 1.0 / scale } else { scale }
    }

    /// What comes of that.
    fn read(self, written: f32) -> f32 {
        if self == Writer::Compressor { 1.0 / written } else { written }
    }
}

fn modelopt(algorithm: &str, weights: Value) -> Value {
    json!({
        "config_groups": { "group_0": { "input_activations": weights, "weights": weights, "targets": ["Linear"] } },
        "ignore": ["lm_head"],
        "quant_algo": algorithm,
        "kv_cache_scheme": { "dynamic": false, "num_bits": 8, "type": "float" },
        "producer": { "name": "modelopt", "version": "0.33.0" },
        "quant_method": "modelopt",
    })
}

/// The code whose value is nearest.
fn nearest(values: &[f32], wanted: f32) -> u8 {
    let off = |code: &u8| (values[usize::from(*code)] - wanted).abs();
    (0..=255u8)
        .take(values.len())
        .filter(|&code| !values[usize::from(code)].is_nan())
        .min_by(|a, b| off(a).total_cmp(&off(b)))
        .expect("a code")
}

/// The folder with 4-bit floats in the place of its matrices, and with the values that they stand for.
fn quantised(folder: &Folder, writer: Writer) -> [Folder; 2] {
    let (fours, eights) = (values("E2M1"), values("E4M3"));
    let mut four = folder.clone().set("quantization_config", writer.config());
    let mut wide = folder.clone();
    four.tensors.retain(|tensor| !tensor.name.ends_with("_proj.weight"));
    for tensor in wide.tensors.iter_mut().filter(|tensor| tensor.name.ends_with("_proj.weight")) {
        let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
        let largest = |values: &[f32]| values.iter().fold(0f32, |most, x| most.max(x.abs()));
        let written = writer.written(largest(&tensor.values) / (448.0 * 6.0));
        let global = writer.read(written);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for group in tensor.values.chunks_mut(GROUP) {
            let scale = nearest(&eights[..127], largest(group) / 6.0 / global);
            let factor = eights[usize::from(scale)] * global;
            let own: Vec<u8> =
                group.iter().map(|x| if factor == 0.0 { 0 } else { nearest(&fours, x / factor) }).collect();
            group.iter_mut().zip(&own).for_each(|(x, &code)| *x = fours[usize::from(code)] * factor);
            codes.extend(own.chunks(2).map(|pair| pair[0] | pair[1] << 4));
            scales.push(scale);
        }
        let name = |end: &str| tensor.name.replace("weight", end);
        let [packed, whole] = writer.ends();
        let one =
            |name, value: f32| Raw { name, dtype: "F32", shape: vec![], bytes: value.to_le_bytes().to_vec() };
        four.raw.extend([
            Raw { name: name(packed), dtype: "U8", shape: vec![rows, cols / 2], bytes: codes },
            Raw {
                name: name("weight_scale"),
                dtype: "F8_E4M3",
                shape: vec![rows, cols / GROUP],
                bytes: scales,
            },
            one(name(whole), written),
        ]);
        // What is of activations and of the cache has no effect.
        if writer == Writer::Compressor {
            four.raw.push(one(name("input_global_scale"), 7.0));
        } else {
            four.raw.push(one(name("input_scale"), 7.0));
            let end = if tensor.name.contains("k_proj") { "k_scale" } else { "v_scale" };
            if tensor.name.contains("k_proj") || tensor.name.contains("v_proj") {
                four.raw.push(one(name(end), 7.0));
            }
        }
    }
    [four, wide]
}

#[test]
fn weights_of_four_bit_floats_are_their_values() -> Outcome {
    for (family, writer) in [("qwen3", Writer::Compressor), ("llama", Writer::Modelopt)] {
        println!("{family}, {writer:?}");
        let plain = Folder::of(family)?;
        // Scales are rounded to f16.
        assert_stands_for(&plain, quantised(&plain, writer), [2e-3, 0.02])?;
    }
    Ok(())
}

const LARGE: [usize; 2] = [40, 144];

/// A folder with one more matrix: its codes and its scales go through all that there are.
fn large(writer: Writer, global: f32) -> Outcome<Folder> {
    let mut folder = Folder::of("qwen3")?.set("quantization_config", writer.config());
    let [rows, cols] = LARGE;
    let codes = (0..rows * cols / 2).map(|at| (at * 7) as u8).collect();
    let scales = (0..rows * cols / GROUP).map(|at| (at % 127) as u8 | ((at / 127 % 2) << 7) as u8).collect();
    let [packed, whole] = writer.ends();
    let raw = |end: &str, dtype, shape, bytes| Raw { name: format!("large.{end}"), dtype, shape, bytes };
    folder.raw = vec![
        raw(packed, "U8", vec![rows, cols / 2], codes),
        raw("weight_scale", "F8_E4M3", vec![rows, cols / GROUP], scales),
        raw(whole, "F32", vec![1], global.to_le_bytes().to_vec()),
    ];
    Ok(folder)
}

#[test]
fn each_group_has_its_own_scale_and_each_tensor_one() -> Outcome {
    let (fours, eights) = (values("E2M1"), values("E4M3"));
    for writer in Writer::BOTH {
        let folder = large(writer, 0.25)?.write()?;
        let global = writer.read(0.25);
        let file = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let rows = file.rows("large.weight")?;
        let form = QuantForm { kind: Codes::E2m1, group: GROUP, mins: false };
        assert_eq!((rows.form(), rows.row_bytes()), (MatrixForm::Quant(form), 72));
        let info = file.tensor("large.weight").expect("the tensor");
        assert_eq!((info.dtype, &info.dims[..]), (TensorType::F4E2m1, &[144, 40][..]));
        assert!(["weight_scale", "weight_packed", writer.ends()[1]].iter().all(|end| {
            let name = format!("large.{end}");
            file.tensor(&name).is_none()
        }));
        let mut block = WeightMatrix::default();
        for own in [0..40, 0..1, 13..14, 30..40] {
            rows.read(own.clone(), &mut block)?;
            for (at, row) in own.enumerate() {
                let mut found = [f32::NAN; LARGE[1]];
                block.dequantize_row(at, &mut found);
                for (col, &found) in found.iter().enumerate() {
                    let at = row * LARGE[1] + col;
                    let code = ((at / 2 * 7) as u8 >> (at % 2 * 4)) & 15;
                    let group = at / GROUP;
                    let sign = if group / 127 % 2 == 1 { -1.0 } else { 1.0 };
                    // Exact in f16, the smallest ones too.
                    let scale = sign * eights[group % 127] * global;
                    assert_eq!(found, fours[usize::from(code)] * scale, "{writer:?} {row} {col}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_scale_of_a_tensor_is_a_part_of_the_fingerprint() -> Outcome {
    let of = |writer, global| -> Outcome<_> {
        let folder = large(writer, global)?.write()?;
        Ok(checkpoint::open(folder.path(), &OpenOptions::default())?.fingerprint()?)
    };
    for writer in Writer::BOTH {
        assert_eq!(of(writer, 1.0)?, of(writer, 1.0)?);
        assert_ne!(of(writer, 1.0)?, of(writer, 2.0)?);
    }
    Ok(())
}

const UP: &str = "model.layers.1.mlp.up_proj";

/// A sound folder with a tensor beside `UP` changed.
fn with(writer: Writer, end: &str, change: impl FnOnce(&mut Raw)) -> Outcome<Folder> {
    let [mut folder, _] = quantised(&Folder::of("qwen3")?, writer);
    let name = format!("{UP}.{end}");
    change(folder.raw.iter_mut().find(|raw| raw.name == name).ok_or("no such tensor")?);
    Ok(folder)
}

#[test]
fn tensors_that_do_not_fit_each_other_are_named() -> Outcome {
    for writer in Writer::BOTH {
        let [packed, whole] = writer.ends();
        let rename = |raw: &mut Raw| raw.name = "model.other".into();
        let scales = format!("{UP}.weight_scale");
        let global = format!("{UP}.{whole}");
        refused(&with(writer, packed, |_| {})?, &["accepted"])?;
        for (end, name) in [("weight_scale", &scales), (whole, &global)] {
            let text = format!("tensor `{UP}.weight`: expected its scales in a tensor `{name}`, found none");
            refused(&with(writer, end, rename)?, &["model.safetensors", &text])?;
        }
        let shaped = |end: &str, dtype: &'static str, shape: &[usize], width: usize| {
            with(writer, end, |raw| {
                (raw.dtype, raw.shape) = (dtype, shape.to_vec());
                raw.bytes = vec![0x38; width * shape.iter().product::<usize>()];
            })
        };
        let fits = |name: &str, wanted: &str, shape: &[usize]| {
            format!("tensor `{name}`: expected {wanted}, found {shape:?}")
        };
        for shape in [&[96, 3][..], &[96], &[4, 96], &[96, 4, 1]] {
            let text = fits(&scales, "[96, 4] as the scales of [96, 64]", shape);
            refused(&shaped("weight_scale", "F8_E4M3", shape, 1)?, &["model.safetensors", &text])?;
        }
        let text = fits(&global, "[1, 1] as the scales of [1, 1]", &[2]);
        refused(&shaped(whole, "F32", &[2], 4)?, &["model.safetensors", &text])?;
        for (end, dtype, shape, width) in
            [("weight_scale", "F16", &[96, 4][..], 2), (whole, "BF16", &[1], 2), (packed, "I8", &[96, 32], 1)]
        {
            let odd = shaped(end, dtype, shape, width)?;
            refused(
                &odd,
                &["model.safetensors", &format!("{UP}.{end}"), &format!("the type {dtype} is not supported")],
            )?;
        }
        // Of three dimensions, and of another number of columns, the last group of which is not whole.
        let deep = shaped(packed, "U8", &[96, 2, 16], 1)?;
        refused(&deep, &["model.safetensors", UP, "the type F4_E2M1 is not supported"])?;
        let short = shaped(packed, "U8", &[96, 30], 1)?;
        refused(&short, &[&format!("{UP}.weight: expected [96, 64], found [96, 60]")])?;
    }
    Ok(())
}

#[test]
fn scales_that_are_no_usual_numbers_are_named() -> Outcome {
    for writer in Writer::BOTH {
        let [_, whole] = writer.ends();
        let of_groups = |code: u8| with(writer, "weight_scale", |raw| raw.bytes[5 * 4 + 2] = code);
        for code in [0x7f, 0xff] {
            let text = format!("tensor `{UP}.weight`");
            refused(&of_groups(code)?, &["model.safetensors", &text, "the scale of row 5, group 2 is NaN"])?;
        }
        // Zero and below are numbers.
        for code in [0, 0x80, 0xb8] {
            refused(&of_groups(code)?, &["accepted"])?;
        }
        let of_tensor =
            |scale: f32| with(writer, whole, |raw| raw.bytes = writer.written(scale).to_le_bytes().to_vec());
        for scale in [f32::NAN, f32::INFINITY, -1.0, 1e-12, f32::MIN_POSITIVE] {
            let name = format!("{UP}.{whole}");
            refused(&of_tensor(scale)?, &["model.safetensors", &name, "which f16 does not hold here"])?;
        }
        refused(&of_tensor(0.0)?, &["accepted"])?;
        let text = format!("tensor `{UP}.weight`");
        refused(&of_tensor(1e9)?, &["model.safetensors", &text, "which f16 does not hold here"])?;
    }
    Ok(())
}

const WEIGHTS: &str = "/config_groups/group_0/weights";

#[test]
fn what_else_a_quantisation_may_be_is_named() -> Outcome {
    let [compressed, modelopt] = Writer::BOTH.map(Writer::config);
    let of = |config: &Value, key: &str, value: Value| add(config, WEIGHTS, key, value);
    let cases: [(Value, &[&str]); 12] = [
        (of(&compressed, "num_bits", 8.into()), &["group_0.weights.num_bits: expected 4, found 8"]),
        (of(&compressed, "group_size", 32.into()), &["group_0.weights.group_size: expected 16, found 32"]),
        (
            of(&compressed, "strategy", "group".into()),
            &["weights.strategy: expected tensor_group, found group"],
        ),
        (of(&compressed, "symmetric", false.into()), &["weights.symmetric: expected true, found false"]),
        (of(&compressed, "type", "int".into()), &["group_0.weights.type: expected float, found int"]),
        (
            change(&compressed, "/config_groups/group_0/format", "mxfp4-pack-quantized".into()),
            &["group_0.format: expected float-quantized or nvfp4-pack-quantized, found mxfp4-pack-quantized"],
        ),
        (
            change(&modelopt, "/quant_algo", "W4A16_AWQ".into()),
            &["quant_algo: expected FP8 or NVFP4, found W4A16_AWQ"],
        ),
        (
            change(&modelopt, "/quant_algo", Value::Null),
            &["quant_algo: expected FP8 or NVFP4, found no such key"],
        ),
        (change(&modelopt, "/quant_algo", "FP8".into()), &["group_0.weights.num_bits: expected 8, found 4"]),
        (of(&modelopt, "group_size", 32.into()), &["group_0.weights.group_size: expected 16, found 32"]),
        (of(&modelopt, "block_sizes", 16.into()), &["group_0.weights.block_sizes"]),
        (add(&modelopt, "", "has_zero_point", true.into()), &["quantization_config.has_zero_point"]),
    ];
    let folder = Folder::of("qwen3")?;
    for (config, words) in cases {
        let at = [&["config.json: quantization_config."], words].concat();
        refused(&folder.clone().set("quantization_config", config), &at)?;
    }
    // Older files say less.
    let short = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"] });
    refused(&folder.set("quantization_config", short), &["accepted"])
}

#[test]
fn floats_of_both_sizes_stand_side_by_side() -> Outcome {
    // The layers' attention has 8 bits, their MLPs have 4.
    let plain = Folder::of("qwen3")?;
    let [four, four_wide] = quantised(&plain, Writer::Compressor);
    let mut config = change(&Writer::Compressor.config(), "/format", "mixed-precision".into());
    config["config_groups"]["group_1"] = json!({
        "format": "float-quantized", "targets": ["re:.*self_attn.*"],
        "weights": { "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false },
    });
    let mut mixed = four.clone().set("quantization_config", config);
    let mut wide = four_wide;
    let eights = values("E4M3");
    mixed.raw.retain(|raw| !raw.name.contains("self_attn"));
    for tensor in wide
        .tensors
        .iter_mut()
        .filter(|tensor| tensor.name.contains("self_attn") && tensor.name.ends_with("_proj.weight"))
    {
        let codes: Vec<u8> = tensor.values.iter().map(|x| nearest(&eights, x * 16.0)).collect();
        tensor.values.iter_mut().zip(&codes).for_each(|(x, &code)| *x = eights[usize::from(code)] / 16.0);
        let scale = Raw {
            name: format!("{}_scale", tensor.name),
            dtype: "F32",
            shape: vec![1],
            bytes: (1f32 / 16.0).to_le_bytes().to_vec(),
        };
        mixed.raw.extend([
            scale,
            Raw { name: tensor.name.clone(), dtype: "F8_E4M3", shape: tensor.shape.clone(), bytes: codes },
        ]);
    }
    assert_stands_for(&plain, [mixed, wide], [2e-3, 0.02])
}

#[test]
fn model_optimizer_s_eight_bit_floats_have_a_scale_a_tensor() -> Outcome {
    let plain = Folder::of("llama")?;
    let eights = values("E4M3");
    let format = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    let mut eight = plain.clone().set("quantization_config", modelopt("FP8", format));
    let mut wide = plain.clone();
    eight.tensors.retain(|tensor| !tensor.name.ends_with("_proj.weight"));
    for tensor in wide.tensors.iter_mut().filter(|tensor| tensor.name.ends_with("_proj.weight")) {
        let codes: Vec<u8> = tensor.values.iter().map(|x| nearest(&eights, x * 32.0)).collect();
        tensor.values.iter_mut().zip(&codes).for_each(|(x, &code)| *x = eights[usize::from(code)] / 32.0);
        let one = |end: &str, value: f32| Raw {
            name: tensor.name.replace("weight", end),
            dtype: "F32",
            shape: vec![],
            bytes: value.to_le_bytes().to_vec(),
        };
        eight.raw.extend([one("weight_scale", 1.0 / 32.0), one("input_scale", 3.0)]);
        eight.raw.push(Raw {
            name: tensor.name.clone(),
            dtype: "F8_E4M3",
            shape: tensor.shape.clone(),
            bytes: codes,
        });
    }
    // Older versions say it in a document of its own.
    let old = json!({
        "producer": { "name": "modelopt", "version": "0.15.1" },
        "quantization": { "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"] },
    });
    let beside = eight.clone().set("quantization_config", Value::Null).with(BESIDE, &old);
    assert_stands_for(&plain, [beside, wide.clone()], [1e-3, 3e-3])?;
    assert_stands_for(&plain, [eight, wide], [1e-3, 3e-3])
}

/// Where older versions of Model Optimizer say how weights are quantised.
const BESIDE: &str = "hf_quant_config.json";

#[test]
fn what_stands_beside_the_configuration_counts_where_that_says_nothing() -> Outcome {
    let [four, wide] = quantised(&Folder::of("qwen3")?, Writer::Modelopt);
    let old = json!({ "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": ["lm_head"],
    } });
    let nothing = four.clone().set("quantization_config", Value::Null);
    assert_stands_for(&Folder::of("qwen3")?, [nothing.clone().with(BESIDE, &old), wide], [2e-3, 0.02])?;
    let cases: [(Value, &str); 4] = [
        (
            change(&old, "/quantization/quant_algo", "W4A8_AWQ".into()),
            "quantization.quant_algo: expected FP8 or NVFP4",
        ),
        (
            change(&old, "/quantization/group_size", 32.into()),
            "quantization.group_size: expected 16, found 32",
        ),
        (add(&old, "/quantization", "quantized_layers", json!({ "a": 8 })), "quantization.quantized_layers"),
        (json!({}), "quantization: expected how weights are quantised"),
    ];
    for (document, words) in cases {
        refused(&nothing.clone().with(BESIDE, &document), &[BESIDE, words])?;
        // Both say the same as a rule, and the configuration is the newer.
        refused(&four.clone().with(BESIDE, &document), &["accepted"])?;
    }
    // Weights may be as they are where keys and values are not.
    let cache = json!({ "quantization": { "quant_algo": null, "kv_cache_quant_algo": "FP8" } });
    refused(&Folder::of("qwen3")?.with(BESIDE, &cache), &["accepted"])?;
    Ok(())
}
