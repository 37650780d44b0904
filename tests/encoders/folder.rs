//! Encoders as Hugging Face folders: twins of the GGUF files, with the same weights under other names, and
//! the files of sentence-transformers.

use std::fs;
use std::path::Path;

use ottava::api::Pooling;
use ottava::checkpoint::{Checkpoint, ModelFile};
use ottava::{EmbedOptions, Embedder};
use serde_json::{Map, Value, json};

use crate::{GOLDENS, Golden, Outcome, distance};

fn golden(name: &str) -> &'static Golden {
    GOLDENS.iter().find(|golden| golden.name == name).expect("a golden")
}

const BERT: &[(&str, &str)] = &[
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("attn_output", "attention.output.dense"),
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];
const MODERN_BERT: &[(&str, &str)] = &[
    ("token_embd_norm", "embeddings.norm"),
    ("token_embd", "embeddings.tok_embeddings"),
    ("output_norm", "final_norm"),
    ("attn_output", "attn.Wo"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_norm", "attn_norm"),
    ("ffn_norm", "mlp_norm"),
    ("ffn_up", "mlp.Wi"),
    ("ffn_down", "mlp.Wo"),
];
const GEMMA: &[(&str, &str)] = &[
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// A tensor of a folder: name, dimensions with rows first, values.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// The tensors of a GGUF file under the names of a folder.
fn tensors(
    file: &ModelFile,
    body: &str,
    layers: &str,
    names: &[(&str, &str)],
    offset: f32,
) -> Outcome<Vec<Tensor>> {
    let of = |info: &ottava::checkpoint::TensorInfo| -> Outcome<Tensor> {
        let (stem, end) = info.name.rsplit_once('.').ok_or("a name")?;
        let (prefix, stem) = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => (format!("{layers}{layer}."), part),
            None => (String::new(), stem),
        };
        let name = names.iter().find(|(gguf, _)| *gguf == stem).ok_or(stem)?.1;
        let matrix = file.matrix(&info.name)?;
        let mut values = vec![0.0; matrix.rows() * matrix.cols()];
        for (row, out) in values.chunks_mut(matrix.cols()).enumerate() {
            matrix.dequantize_row(row, out);
        }
        if stem.ends_with("_norm") {
            values.iter_mut().for_each(|value| *value -= offset);
        }
        let shape =
            if info.dims.len() == 1 { vec![matrix.cols()] } else { vec![matrix.rows(), matrix.cols()] };
        Ok((format!("{body}{prefix}{name}.{end}"), shape, values))
    };
    file.tensors().iter().map(of).collect()
}

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }),
        );
    }
    let header = Value::from(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn write(folder: &Path, config: &Value, tensors: &[Tensor]) -> Outcome {
    fs::write(folder.join("config.json"), config.to_string())?;
    Ok(fs::write(folder.join("model.safetensors"), safetensors(tensors))?)
}

fn bert_config() -> Value {
    json!({
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": 512, "is_decoder": false,
        "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "add_cross_attention": false,
        "position_embedding_type": "absolute", "classifier_dropout": null, "pad_token_id": 0
    })
}

/// The largest distance from the recorded embedding.
fn error_of(embedder: &Embedder, golden: &Golden) -> Outcome<f64> {
    let found = embedder.embed([&golden.tokens()?], &EmbedOptions::new())?;
    let found: Vec<f64> = found.vectors[0].iter().map(|&x| f64::from(x)).collect();
    Ok(distance(&found, &golden.embedding()?))
}

#[test]
fn a_bert_folder_is_its_gguf_twin() -> Outcome {
    let golden = golden("bert");
    // The body alone, and the body of a model with a training head. The head's tensors have no effect.
    for body in ["", "bert."] {
        let folder = tempfile::tempdir()?;
        let mut tensors = tensors(&golden.open()?, body, "encoder.layer.", BERT, 0.0)?;
        tensors.push((format!("{body}pooler.dense.weight"), vec![64, 64], vec![1.0; 64 * 64]));
        tensors.push((format!("{body}embeddings.position_ids"), vec![1, 64], vec![0.0; 64]));
        tensors.push(("cls.predictions.bias".to_owned(), vec![512], vec![0.0; 512]));
        write(folder.path(), &bert_config(), &tensors)?;
        let embedder = Embedder::builder(folder.path()).build()?;
        assert_eq!((embedder.info().pooling, embedder.info().context_trained), (Pooling::Mean, 64));
        let error = error_of(&embedder, golden)?;
        assert!(error < 1e-4, "{body}: {error:e}");
    }
    Ok(())
}

/// XLM-R begins at the third row of its positions.
#[test]
fn xlm_roberta_skips_two_positions() -> Outcome {
    let (golden, folder) = (golden("bert"), tempfile::tempdir()?);
    let mut tensors = tensors(&golden.open()?, "roberta.", "encoder.layer.", BERT, 0.0)?;
    for (name, shape, values) in &mut tensors {
        if name.contains("position_embeddings") {
            shape[0] += 2;
            values.splice(0..0, [9.0; 128]);
        }
    }
    let mut config = bert_config();
    config["model_type"] = "xlm-roberta".into();
    config["max_position_embeddings"] = 66.into();
    write(folder.path(), &config, &tensors)?;
    let embedder = Embedder::builder(folder.path()).build()?;
    assert_eq!(embedder.info().context_trained, 64);
    assert!(error_of(&embedder, golden)? < 1e-4);
    Ok(())
}

#[test]
fn a_modern_bert_folder_is_its_gguf_twin() -> Outcome {
    let golden = golden("modern-bert");
    let tensors = tensors(&golden.open()?, "model.", "layers.", MODERN_BERT, 0.0)?;
    let config = json!({
        "model_type": "modernbert", "architectures": ["ModernBertModel"], "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "max_position_embeddings": 256, "hidden_activation": "gelu", "norm_eps": 1e-5, "vocab_size": 512,
        "attention_bias": false, "mlp_bias": false, "norm_bias": false, "local_attention": 16,
        "classifier_pooling": "cls", "position_embedding_type": "absolute"
    });
    let mut old = config.clone();
    old["global_attn_every_n_layers"] = 3.into();
    old["global_rope_theta"] = 160_000.0.into();
    old["local_rope_theta"] = 10_000.0.into();
    let mut new = config;
    new["layer_types"] = ["full_attention", "sliding_attention", "sliding_attention"].repeat(2).into();
    new["rope_parameters"] = json!({
        "full_attention": { "rope_theta": 160_000.0, "rope_type": "default" },
        "sliding_attention": { "rope_theta": 10_000.0, "rope_type": "default" }
    });
    for config in [old, new] {
        let folder = tempfile::tempdir()?;
        write(folder.path(), &config, &tensors)?;
        let embedder = Embedder::builder(folder.path()).pooling(Pooling::Cls).build()?;
        let error = error_of(&embedder, golden)?;
        assert!(error < 1e-4, "{config}: {error:e}");
    }
    Ok(())
}

/// EmbeddingGemma's folder, with the modules of sentence-transformers: two projections and prompts.
#[test]
fn a_gemma_folder_has_its_projections_and_prompts() -> Outcome {
    let (golden, folder) = (golden("gemma-embedding"), tempfile::tempdir()?);
    let tensors = tensors(&golden.open()?, "", "layers.", GEMMA, 1.0)?;
    let config = json!({
        "model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 256, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "vocab_size": 512, "sliding_window": 16, "use_bidirectional_attention": true,
        "query_pre_attn_scalar": 32, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
        "_sliding_window_pattern": 6
    });
    write(folder.path(), &config, &tensors)?;
    let error = error_of(&Embedder::builder(folder.path()).build()?, golden)?;
    assert!(error < 1e-4, "{error:e}");

    let module = |idx: usize, path: &str, kind: &str| json!({ "idx": idx, "name": idx.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
    let modules = json!([
        module(0, "", "Transformer"),
        module(1, "1_Pooling", "Pooling"),
        module(2, "2_Dense", "Dense"),
        module(3, "3_Dense", "Dense"),
        module(4, "4_Normalize", "Normalize")
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string())?;
    for name in ["1_Pooling", "2_Dense", "3_Dense"] {
        fs::create_dir(folder.path().join(name))?;
    }
    let pooling = json!({ "word_embedding_dimension": 64, "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false });
    fs::write(folder.path().join("1_Pooling/config.json"), pooling.to_string())?;
    // The first projection doubles the elements into twice as many, the second returns the first half.
    let wide: Vec<f32> = (0..128 * 64).map(|at| if at / 64 % 64 == at % 64 { 2.0 } else { 0.0 }).collect();
    let narrow: Vec<f32> = (0..64 * 128).map(|at| if at / 128 == at % 128 { 1.0 } else { 0.0 }).collect();
    for (name, shape, values) in [("2_Dense", vec![128, 64], wide), ("3_Dense", vec![64, 128], narrow)] {
        let settings = json!({
            "in_features": shape[1], "out_features": shape[0], "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity"
        });
        fs::write(folder.path().join(name).join("config.json"), settings.to_string())?;
        let file = safetensors(&[("linear.weight".to_owned(), shape, values)]);
        fs::write(folder.path().join(name).join("model.safetensors"), file)?;
    }
    let prompts = json!({ "prompts": { "query": "task: search | query: ", "document": "text: " } });
    fs::write(folder.path().join("config_sentence_transformers.json"), prompts.to_string())?;
    let embedder = Embedder::builder(folder.path()).build()?;
    assert_eq!(embedder.info().prompts, ["document", "query"]);
    let error = error_of(&embedder, golden)?;
    assert!(error < 1e-4, "{error:e}");
    let plain = embedder.embed([&golden.tokens()?], &EmbedOptions::new().unnormalized())?;
    let without =
        Embedder::builder(folder.path()).build()?.embed([&golden.tokens()?], &EmbedOptions::new())?;
    assert!(plain.vectors != without.vectors);
    Ok(())
}

#[test]
fn settings_of_a_folder_that_change_the_result_are_refused_by_name() -> Outcome {
    let tensors = tensors(&golden("bert").open()?, "", "encoder.layer.", BERT, 0.0)?;
    let refused = |key: &str, value: Value| -> Outcome<String> {
        let (folder, mut config) = (tempfile::tempdir()?, bert_config());
        config[key] = value;
        write(folder.path(), &config, &tensors)?;
        let error =
            Embedder::builder(folder.path()).build().err().ok_or_else(|| format!("{key} is accepted"))?;
        Ok(error.to_string())
    };
    for (key, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("hidden_act", json!("gelu_new")),
        ("is_decoder", json!(true)),
        ("type_vocab_size", json!(3)),
        ("vocab_size", json!(513)),
        ("embedding_size", json!(32)),
    ] {
        let error = refused(key, value)?;
        assert!(error.contains(key), "{key}: {error}");
    }
    let pooling = |modes: Value, modules: Value| -> Outcome<String> {
        let folder = tempfile::tempdir()?;
        write(folder.path(), &bert_config(), &tensors)?;
        fs::create_dir(folder.path().join("1_Pooling"))?;
        fs::write(folder.path().join("1_Pooling/config.json"), modes.to_string())?;
        fs::write(folder.path().join("modules.json"), modules.to_string())?;
        match Embedder::builder(folder.path()).build() {
            Ok(embedder) => Ok(embedder.info().pooling.to_string()),
            Err(error) => Ok(error.to_string()),
        }
    };
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let modules = json!([{ "path": "", "type": kind("Transformer") }, { "path": "1_Pooling", "type": kind("Pooling") }]);
    let found = |modes: Value| pooling(modes, modules.clone());
    assert_eq!(found(json!({ "pooling_mode_cls_token": true }))?, "cls");
    assert_eq!(found(json!({ "pooling_mode_lasttoken": true }))?, "last");
    let refusals = [
        (json!({ "pooling_mode_max_tokens": true }), "pooling_mode_max_tokens"),
        (json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true }), "pooling_mode"),
        (json!({ "pooling_mode_mean_tokens": true, "include_prompt": false }), "include_prompt"),
        (json!({}), "pooling_mode_mean_tokens"),
    ];
    for (modes, key) in refusals {
        let error = found(modes)?;
        assert!(error.contains(key) && error.contains("expected"), "{key}: {error}");
    }
    let error = pooling(json!({}), json!([{ "path": "", "type": kind("CNN") }]))?;
    assert!(error.contains("CNN"), "{error}");
    Ok(())
}

#[test]
fn a_folder_of_a_classifier_ranks() -> Outcome {
    let (golden, folder) = (golden("bert"), tempfile::tempdir()?);
    let mut tensors = tensors(&golden.open()?, "bert.", "encoder.layer.", BERT, 0.0)?;
    let identity: Vec<f32> = (0..64 * 64).map(|at| if at / 64 == at % 64 { 1.0 } else { 0.0 }).collect();
    tensors.push(("bert.pooler.dense.weight".into(), vec![64, 64], identity));
    tensors.push(("bert.pooler.dense.bias".into(), vec![64], vec![0.0; 64]));
    tensors.push(("classifier.weight".into(), vec![1, 64], vec![1.0; 64]));
    tensors.push(("classifier.bias".into(), vec![1], vec![0.5]));
    let mut config = bert_config();
    config["architectures"] = json!(["BertForSequenceClassification"]);
    write(folder.path(), &config, &tensors)?;
    let embedder = Embedder::builder(folder.path()).build()?;
    assert_eq!(embedder.info().pooling, Pooling::Rank);
    let ids = golden.tokens()?;
    let scores = embedder.rerank(&ids[..20], [&ids[20..], &ids[30..]], &EmbedOptions::new())?;
    // The same rows without the head.
    let rows = Embedder::builder(folder.path()).pooling(Pooling::Cls).build()?;
    let rows = rows.embed([&ids[..]], &EmbedOptions::new().unnormalized())?;
    let whole: f32 = rows.vectors[0].iter().map(|x| x.tanh()).sum::<f32>() + 0.5;
    assert!(scores[0].is_finite() && scores[0] != scores[1]);
    assert!((scores[0] - whole).abs() > 1e-3, "the second segment has its own token type");
    Ok(())
}
