//! Writes a small corpus for each fuzz target, made by the library itself: what the fuzzer mutates
//! is then past the first checks from the start. The folder is the one argument.

#[path = "shared/engine.rs"]
mod engine;
#[path = "shared/files.rs"]
mod files;
#[path = "shared/grammars.rs"]
mod grammars;
#[path = "shared/templates.rs"]
mod templates;
#[path = "../tests/tiny/mod.rs"]
mod tiny;

use std::fs;
use std::path::Path;

use ottava::TokenId;
use ottava::checkpoint::{self, Checkpoint, GgufWriter, ModelFile, OpenOptions, TensorType};
use ottava::model::ModelConfig;
use ottava::text::Tokenizer;
use serde_json::json;
use templates::TEMPLATES;

type Outcome = Result<(), Box<dyn std::error::Error>>;

struct Folder<'p>(&'p Path);

impl Folder<'_> {
    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> Outcome {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(name), bytes)?)
    }
}

/// A matrix of every type, two rows of a block or more, and metadata of several kinds. No byte is large
/// enough to make a float that is not finite.
fn tensors(folder: &Folder<'_>) -> Outcome {
    for dtype in TensorType::all() {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", "llama").metadata("general.alignment", 64_u32);
        writer.metadata("a", vec![1.5_f32, -2.0]).metadata("b", vec![true, false]).metadata("c", -3_i64);
        let cols = dtype.block_len().max(32);
        let bytes = 2 * cols / dtype.block_len() * dtype.block_bytes();
        let mut data: Vec<u8> = (0..bytes).map(|at| (at * 37 % 59) as u8).collect();
        if dtype == TensorType::Mxfp4 {
            // Exponents that f16 holds.
            data.iter_mut().step_by(dtype.block_bytes()).for_each(|exponent| *exponent = 120);
        }
        writer.tensor("blk.0.attn_q.weight", dtype, &[cols as u64, 2], data)?;
        writer.vector("output_norm.weight", &[1.0; 8])?;
        let bytes = writer.to_bytes();
        ModelFile::from_bytes("seed.gguf", bytes.clone())?.matrix("blk.0.attn_q.weight")?;
        folder.put("gguf", &dtype.to_string(), &bytes)?;
    }
    Ok(())
}

fn strings<'s>(values: impl IntoIterator<Item = &'s str>) -> Vec<String> {
    values.into_iter().map(String::from).collect()
}

fn tokenizer(folder: &Folder<'_>, name: &str, writer: &GgufWriter) -> Outcome {
    let bytes = writer.to_bytes();
    Tokenizer::from_metadata(ModelFile::from_bytes("seed.gguf", bytes.clone())?.metadata())?;
    folder.put("tokenizer_metadata", name, &bytes)
}

fn byte_level(folder: &Folder<'_>, pre: &str) -> Outcome {
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.extend(strings(["Ġ", "Ċ", "ċ", "He", "ll", "llo", "Hello", "Ġw", "<|im_start|>", "<|im_end|>"]));
    let types = (0..tokens.len()).map(|id| if id + 2 < tokens.len() { 1 } else { 3 });
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "gpt2").metadata("tokenizer.ggml.pre", pre);
    writer.metadata("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
    writer.metadata("tokenizer.ggml.eos_token_id", tokens.len() as u32 - 1);
    writer.metadata("tokenizer.ggml.tokens", tokens);
    writer.metadata("tokenizer.ggml.merges", strings(["H e", "l l", "ll o", "He llo", "Ġ w"]));
    writer.metadata("tokenizer.chat_template", TEMPLATES[0]);
    tokenizer(folder, pre, &writer)
}

fn sentence_piece(folder: &Folder<'_>) -> Outcome {
    let mut tokens = strings(["<unk>", "<s>", "</s>"]);
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(strings(["▁", "H", "e", "l", "o", "ll", "He", "llo", "▁Hello", "▁▁", "<end_of_turn>"]));
    let types = (0..tokens.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ if id + 1 == tokens.len() => 3,
        _ => 1,
    });
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "llama").metadata("tokenizer.ggml.add_space_prefix", true);
    writer.metadata("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
    writer.metadata("tokenizer.ggml.scores", (0..tokens.len()).map(|id| -(id as f32)).collect::<Vec<f32>>());
    writer.metadata("tokenizer.ggml.tokens", tokens);
    writer.metadata("tokenizer.ggml.bos_token_id", 1_u32).metadata("tokenizer.ggml.eos_token_id", 2_u32);
    writer.metadata("tokenizer.ggml.unknown_token_id", 0_u32);
    tokenizer(folder, "llama", &writer)
}

/// The kernels that the emulator's own tests run, each with its module's head.
fn kernels(folder: &Folder<'_>) -> Outcome {
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cuda-emu/tests/ptx");
    for file in fs::read_dir(texts)? {
        let path = file?.path();
        let text = fs::read_to_string(&path)?;
        let mut parts = text.split(".visible .entry");
        let head = parts.next().ok_or("an empty text")?;
        let name = path.file_stem().ok_or("no name")?.to_string_lossy();
        for (at, kernel) in parts.enumerate() {
            folder.put(
                "ptx",
                &format!("{name}-{at}"),
                format!("{head}.visible .entry{kernel}").as_bytes(),
            )?;
        }
    }
    Ok(())
}

/// Whole models, small enough for the fuzzer: the recorded ones, and one with scaled rotations.
fn models(folder: &Folder<'_>) -> Outcome {
    for (at, model) in tiny::recorded::TINY.iter().enumerate() {
        // One layer says as much as seven.
        let model = tiny::Tiny { layers: model.layers.min(2), dtype: TensorType::F16, ..*model };
        let plain = tiny::file(&model, &[])?;
        ModelConfig::from_file(&ModelFile::from_bytes("seed.gguf", plain.clone())?)?;
        folder.put("model_config", &format!("model-{at}"), &plain)?;
        let scaled = tiny::file_with(&model, &[], |writer| {
            let name = |key: &str| format!("{}.rope.scaling.{key}", model.family);
            writer.metadata(&name("type"), "yarn").metadata(&name("factor"), 4.0_f32);
            writer.metadata(&name("original_context_length"), 64_u32);
            Ok(())
        })?;
        folder.put("model_config", &format!("scaled-{at}"), &scaled)?;
    }
    Ok(())
}

/// Prompts that the tiny engine saved.
fn snapshots(folder: &Folder<'_>) -> Outcome {
    let (engine, path) = (engine::tiny(), files::path("seed"));
    for len in [1, 16, 17, 40] {
        engine.save_prompt(&(0..len).map(TokenId).collect::<Vec<_>>(), &path)?;
        folder.put("snapshot", &format!("prompt-{len}"), &fs::read(&path)?)?;
    }
    Ok(fs::remove_file(&path)?)
}

/// What templates are rendered with; and bytes for targets that make their input of them.
fn rendered(folder: &Folder<'_>) -> Outcome {
    let messages = r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi <there>"}]"#;
    for template in 0..TEMPLATES.len() {
        let json = format!(
            r#"{{"template":{template},"messages":{messages},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{}}}}}}],"variables":{{"enable_thinking":true,"options":{{"a":[1,2.5,null]}}}}}}"#
        );
        folder.put("render", &format!("template-{template}"), json.as_bytes())?;
    }
    for target in ["model_load", "sidecar", "request"] {
        for (at, step) in [0_u8, 1, 7, 37].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..=255_u8).map(|byte| byte.wrapping_mul(step)).collect();
            folder.put(target, &format!("bytes-{at}"), &bytes)?;
        }
    }
    Ok(())
}

/// What a matrix of a folder is made of: how the tensors' names end, their types and shapes.
type Parts = &'static [(&'static str, &'static str, &'static [usize])];

const DENSE: Parts = &[("weight", "F16", &[8, 8])];
/// 8-bit floats with a scale a block, and with one a row; 4-bit floats.
const BLOCKS: Parts = &[("weight", "F8_E4M3", &[8, 8]), ("weight_scale_inv", "BF16", &[1, 1])];
const ROWS: Parts = &[("weight", "F8_E4M3", &[8, 8]), ("weight_scale", "F32", &[8, 1])];
const FOUR: Parts =
    &[("weight", "U8", &[8, 4]), ("weight_scale", "F8_E4M3", &[8, 1]), ("weight_scale_2", "F32", &[])];

/// The weights of a model of one narrow layer, and those of a mixture.
fn weights(matrix: Parts) -> Vec<u8> {
    weights_of(matrix, &["gate_proj", "up_proj", "down_proj"].map(str::to_owned), &[])
}

fn mixture(matrix: Parts) -> Vec<u8> {
    let of =
        |expert: usize| ["gate_proj", "up_proj", "down_proj"].map(|part| format!("experts.{expert}.{part}"));
    let experts: Vec<String> = (0..8).flat_map(of).collect();
    let own = ["self_attn.q_norm", "self_attn.k_norm"].map(|norm| (norm, &[8][..]));
    weights_of(matrix, &experts, &[own[0], own[1], ("mlp.gate", &[8, 8])])
}

fn weights_of(matrix: Parts, mlp: &[String], more: &[(&str, &'static [usize])]) -> Vec<u8> {
    let layer = |part: &str| format!("model.layers.0.{part}");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), "F16", &[16, 8][..]),
        ("model.norm.weight".to_owned(), "F16", &[8]),
        (layer("input_layernorm.weight"), "F16", &[8]),
        (layer("post_attention_layernorm.weight"), "F16", &[8]),
    ];
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| layer(&format!("self_attn.{part}")));
    let mlp = mlp.iter().map(|part| layer(&format!("mlp.{part}")));
    tensors.extend(more.iter().map(|&(name, shape)| (layer(&format!("{name}.weight")), "F16", shape)));
    for name in attention.into_iter().chain(mlp) {
        tensors.extend(matrix.iter().map(|&(end, dtype, shape)| (format!("{name}.{end}"), dtype, shape)));
    }
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for (name, dtype, shape) in tensors {
        let start = data.len();
        // Ones.
        let element: &[u8] = match dtype {
            "U8" => &[0x22],
            "F8_E4M3" => &[0x38],
            "F16" => &[0, 0x3c],
            "BF16" => &[0x80, 0x3f],
            _ => &[0, 0, 0x80, 0x3f],
        };
        data.extend(element.repeat(shape.iter().product()));
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Folders of one narrow layer: with the two kinds of tokenizer, and with floats of few bits.
fn folders(folder: &Folder) -> Outcome {
    let config = json!({
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": [2, 3],
        "rope_scaling": { "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32 },
    });
    let vocab = json!({ "<unk>": 0, "<s>": 1, "</s>": 2, "t": 4, "h": 5, "e": 6, "th": 7, "the": 8, "\u{120}": 9, "\u{2581}": 10 });
    let tokenizer = |normalizer: serde_json::Value, cutter: serde_json::Value, fallback: bool| {
        json!({
            "added_tokens": [{ "id": 2, "content": "</s>", "special": true }, { "id": 3, "content": "den" }],
            "normalizer": normalizer, "pre_tokenizer": cutter,
            "model": { "type": "BPE", "vocab": vocab, "merges": [["t", "h"], "th e"], "byte_fallback": fallback },
        })
    };
    let byte_level = tokenizer(json!(null), json!({ "type": "ByteLevel" }), false);
    let marks = tokenizer(
        json!({ "type": "Prepend", "prepend": "\u{2581}" }),
        json!({ "type": "Metaspace", "replacement": "\u{2581}" }),
        true,
    );
    let settings =
        json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" }, "chat_template": "{{ messages }}" });
    let format =
        json!({ "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false });
    let said = [
        json!({ "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128] }),
        json!({
            "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": { "group_0": { "targets": ["Linear"], "weights": format } },
        }),
        json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"] }),
    ];
    let [blocks, rows, four] = said.map(|said| {
        let mut config = config.clone();
        config["quantization_config"] = said;
        config
    });
    let mut experts = blocks.clone();
    for (key, value) in [
        ("model_type", json!("qwen3_moe")),
        ("num_key_value_heads", json!(1)),
        ("num_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(8)),
        ("norm_topk_prob", json!(true)),
    ] {
        experts[key] = value;
    }
    let mut long = config.clone();
    long["model_type"] = json!("phi3");
    long["rope_scaling"] =
        json!({ "type": "longrope", "long_factor": [2, 2, 3, 4], "short_factor": [1, 1, 1, 1.5] });
    for (name, config, tokenizer, weights) in [
        ("experts", &experts, &byte_level, mixture(BLOCKS)),
        ("long", &long, &byte_level, weights(DENSE)),
        ("byte_level", &config, &byte_level, weights(DENSE)),
        ("marks", &config, &marks, weights(DENSE)),
        ("fp8_blocks", &blocks, &byte_level, weights(BLOCKS)),
        ("fp8_rows", &rows, &marks, weights(ROWS)),
        ("nvfp4", &four, &marks, weights(FOUR)),
    ] {
        let documents = [config.to_string(), tokenizer.to_string(), settings.to_string(), "{}".to_owned()];
        let parts: Vec<&[u8]> = documents.iter().map(String::as_bytes).chain([weights.as_slice()]).collect();
        // What the target opens, so that it does open.
        let opened = files::path("folder");
        fs::create_dir_all(&opened)?;
        for (name, part) in files::FOLDER.into_iter().zip(&parts) {
            fs::write(opened.join(name), part)?;
        }
        let checkpoint = checkpoint::open(&opened, &OpenOptions::default())?;
        ModelConfig::from_file(&*checkpoint)?;
        let up = checkpoint.tensors().iter().find(|info| info.name.ends_with(".up_proj.weight"));
        checkpoint.matrix(&up.ok_or("no such matrix")?.name)?;
        fs::remove_dir_all(&opened)?;
        folder.put("model_folder", name, &parts.join(&files::SEPARATOR))?;
    }
    Ok(())
}

fn main() -> Outcome {
    let path = std::env::args().nth(1).ok_or("expected a folder to write to")?;
    let folder = Folder(Path::new(&path));
    tensors(&folder)?;
    for pre in ["default", "smollm", "llama-bpe", "qwen2"] {
        byte_level(&folder, pre)?;
    }
    sentence_piece(&folder)?;
    kernels(&folder)?;
    models(&folder)?;
    folders(&folder)?;
    snapshots(&folder)?;
    rendered(&folder)?;
    for (at, template) in TEMPLATES.iter().enumerate() {
        folder.put("chat_template", &format!("template-{at}"), template.as_bytes())?;
    }
    for (at, (kind, text)) in grammars::SEEDS.iter().enumerate() {
        folder.put("grammar", &at.to_string(), &[&[*kind], text.as_bytes()].concat())?;
    }
    Ok(())
}
