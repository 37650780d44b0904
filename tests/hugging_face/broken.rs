//! Folders that are broken: each is refused by one error that names the file and what is wrong in it.

use std::path::Path;

use ottava::checkpoint::{self, OpenOptions};
use ottava::model::ModelConfig;
use serde_json::{Value, json};

use crate::folder::{Folder, Tensor, file, shard};
use crate::tiny::Outcome;

/// What opening a folder and reading its configuration says.
fn refusal(path: &Path) -> String {
    let read = || -> Outcome {
        ModelConfig::from_file(&*checkpoint::open(path, &OpenOptions::default())?)?;
        Ok(())
    };
    read().err().map_or_else(|| "accepted".to_owned(), |error| error.to_string())
}

/// Checks that a folder is refused by a message with these words.
fn refused(folder: &Folder, words: &[&str]) -> Outcome {
    let folder = folder.write()?;
    check(folder.path(), words);
    Ok(())
}

fn check(path: &Path, words: &[&str]) {
    let error = refusal(path);
    assert!(words.iter().all(|word| error.contains(word)), "expected {words:?}, found: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn settings_that_contradict_the_tensors_are_named() -> Outcome {
    let cases: [(&str, Value, &[&str]); 12] = [
        (
            "num_hidden_layers",
            5.into(),
            &["config.json: num_hidden_layers: expected 4, the blocks among", "found 5"],
        ),
        ("num_hidden_layers", u64::MAX.into(), &["config.json: num_hidden_layers: expected at most"]),
        (
            "hidden_size",
            128.into(),
            &["tensor model.embed_tokens.weight: expected [512, 128], found [512, 64]"],
        ),
        ("intermediate_size", 95.into(), &["mlp.gate_proj.weight: expected [95, 64], found [96, 64]"]),
        ("num_attention_heads", 0.into(), &["config.json: num_attention_heads: expected at least 1"]),
        ("num_attention_heads", 8.into(), &["self_attn.q_proj.weight: expected [256, 64], found [128, 64]"]),
        ("num_key_value_heads", 3.into(), &["config.json: num_key_value_heads: expected a divisor of the 4"]),
        ("head_dim", 31.into(), &["self_attn.q_proj.weight"]),
        ("vocab_size", 511.into(), &["config.json: vocab_size: expected 512, the rows of the embedding"]),
        ("tie_word_embeddings", true.into(), &["accepted"]),
        (
            "attention_bias",
            true.into(),
            &["config.json: attention_bias: expected false, as there is no tensor"],
        ),
        ("max_position_embeddings", u64::MAX.into(), &["config.json: max_position_embeddings"]),
    ];
    for (key, value, words) in cases {
        refused(&Folder::of("llama")?.set(key, value), words)?;
    }
    let untied = Folder::of("qwen2")?.set("tie_word_embeddings", false.into());
    refused(
        &untied,
        &["config.json: tie_word_embeddings: expected true, as there is no tensor lm_head.weight"],
    )
}

#[test]
fn settings_without_a_known_effect_are_named() -> Outcome {
    let rope = |scheme: Value| ("rope_parameters", scheme);
    let cases: [((&str, Value), &[&str]); 19] = [
        (("hidden_act", "relu".into()), &["config.json: hidden_act: expected silu, found relu"]),
        (
            ("quantization_config", json!({ "quant_method": "gptq" })),
            &[
                "config.json: quantization_config.quant_method: expected fp8, compressed-tensors or modelopt",
                "gptq",
            ],
        ),
        (
            ("residual_multiplier", 0.5.into()),
            &["config.json: residual_multiplier: expected a key whose effect"],
        ),
        (
            ("partial_rotary_factor", 0.5.into()),
            &["config.json: partial_rotary_factor: expected 1, found 0.5"],
        ),
        (("final_logit_softcapping", 30.0.into()), &["config.json: final_logit_softcapping"]),
        (
            ("model_type", "mamba".into()),
            &["config.json: model_type: expected llama, mistral, ministral3, qwen2", "GGUF, found mamba"],
        ),
        (("model_type", Value::Null), &["config.json: model_type: expected a model type, found no such key"]),
        (("hidden_size", Value::Null), &["config.json: hidden_size: expected a count, found no such key"]),
        (("hidden_size", "64".into()), &["config.json: hidden_size: expected a whole number", "\"64\""]),
        (
            rope(json!({ "rope_type": "dynamic" })),
            &["rope_parameters.rope_type: expected default, linear", "dynamic"],
        ),
        (rope(json!({ "type": "dynamic" })), &["rope_parameters.type: expected default, linear"]),
        (
            rope(json!({ "rope_type": "linear" })),
            &["config.json: rope_parameters.factor: expected a positive number"],
        ),
        (rope(json!({ "rope_type": "yarn", "factor": 2, "truncate": false })), &["rope_parameters.truncate"]),
        (
            rope(json!({ "rope_type": "default", "mrope_section": [1, 2] })),
            &["rope_parameters.mrope_section"],
        ),
        (rope(json!({ "rope_type": "longrope" })), &["rope_parameters.long_factor: expected a list"]),
        (
            rope(json!({ "rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0] })),
            &["rope_parameters.long_factor: expected 16 factors"],
        ),
        (
            rope(json!({ "rope_type": "llama3", "factor": 2, "long_factor": [1.0] })),
            &["rope_parameters.rope_type: expected longrope beside factors, found llama3"],
        ),
        (rope(json!({ "full_attention": { "rope_type": "default" } })), &["rope_parameters.full_attention"]),
        (
            rope(json!({ "rope_type": "yarn", "factor": 2, "llama_4_scaling_beta": 0.1 })),
            &["rope_parameters.llama_4_scaling_beta"],
        ),
    ];
    for ((key, value), words) in cases {
        refused(&Folder::of("llama")?.set(key, value), words)?;
    }
    // What says nothing is nothing.
    refused(&Folder::of("llama")?.set("use_mrope", false.into()), &["accepted"])?;
    let types = json!(["full_attention", "linear_attention", "full_attention", "full_attention"]);
    refused(
        &Folder::of("qwen3")?.set("layer_types", types),
        &["config.json: layer_types", "linear_attention"],
    )?;
    refused(&Folder::of("qwen3")?.set("layer_types", json!(["full_attention"])), &["layer_types: expected 4"])
}

#[test]
fn a_factor_without_a_type_is_named() -> Outcome {
    let rope = |scheme: Value| ("rope_parameters", scheme);
    let cases: [((&str, Value), &[&str]); 4] = [
        (
            rope(json!({ "factor": 4.0 })),
            &["config.json: rope_parameters.factor: expected 1 beside no rope_type but default, found 4"],
        ),
        (
            ("rope_scaling", json!({ "factor": 0 })),
            &["config.json: rope_scaling.factor: expected 1 beside no"],
        ),
        (rope(json!({ "rope_type": "default", "factor": 2 })), &["rope_parameters.factor: expected 1"]),
        (
            rope(json!({ "rope_type": "default", "attention_factor": 1.2 })),
            &["rope_parameters.attention_factor: expected 1 beside no rope_type but default, found 1.2"],
        ),
    ];
    for ((key, value), words) in cases {
        refused(&Folder::of("llama")?.set(key, value), words)?;
    }
    let unscaled = rope(json!({ "type": null, "factor": 1.0, "attention_factor": 1 }));
    refused(&Folder::of("llama")?.set(unscaled.0, unscaled.1), &["accepted"])?;
    let with = |factor: f64| json!({ "full_attention": {}, "sliding_attention": { "factor": factor } });
    let gemma = Folder::of("gemma3")?.set("rope_scaling", Value::Null);
    let said = "config.json: rope_parameters.sliding_attention.factor: expected 1 beside";
    refused(&gemma.set("rope_parameters", with(2.0)), &[said])
}

#[test]
fn attention_to_later_tokens_is_named() -> Outcome {
    // Attention to later tokens is what false says, where the usual value is true.
    for off in [json!(false), json!(0), json!("none")] {
        let words = ["config.json: is_causal: expected true or null, found ", &off.to_string()];
        refused(&Folder::of("llama")?.set("is_causal", off.clone()), &words)?;
    }
    for on in [json!(true), Value::Null] {
        refused(&Folder::of("llama")?.set("is_causal", on), &["accepted"])?;
    }
    Ok(())
}

#[test]
fn tensors_that_do_not_belong_are_named() -> Outcome {
    let mut folder = Folder::of("llama")?;
    folder.tensors.push(Tensor { name: "model.extra.weight".into(), shape: vec![2], values: vec![0.0; 2] });
    refused(&folder, &["tensor model.extra.weight has no place in a llama model"])?;
    let mut folder = Folder::of("llama")?;
    folder.tensors.retain(|tensor| tensor.name != "model.layers.2.mlp.up_proj.weight");
    refused(&folder, &["tensor model.layers.2.mlp.up_proj.weight is missing: expected [96, 64]"])?;
    let mut folder = Folder::of("qwen2")?;
    folder.tensors.retain(|tensor| tensor.name != "model.layers.1.self_attn.k_proj.bias");
    refused(&folder, &["tensor model.layers.1.self_attn.k_proj.bias is missing"])
}

#[test]
fn files_that_are_not_there_are_named() -> Outcome {
    let folder = Folder::of("llama")?.write_sharded(2)?;
    std::fs::remove_file(folder.path().join(shard(1, 2)))?;
    check(folder.path(), &["model.safetensors.index.json: the file", &shard(1, 2), "is not in the folder"]);
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::remove_file(&index)?;
    check(folder.path(), &["expected model.safetensors or model.safetensors.index.json, found neither"]);
    std::fs::remove_file(folder.path().join("config.json"))?;
    check(folder.path(), &["config.json: cannot open"]);
    let empty = tempfile::tempdir()?;
    check(empty.path(), &["config.json: cannot open"]);
    Ok(())
}

#[test]
fn an_index_that_lies_is_named() -> Outcome {
    let write = |map: Value| -> Outcome<tempfile::TempDir> {
        let folder = Folder::of("llama")?.write_sharded(1)?;
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(path, map.to_string())?;
        Ok(folder)
    };
    let name = "model.norm.weight";
    for (file, words) in [
        (json!("../model.safetensors"), "the name of a file in the same folder"),
        (json!("/etc/passwd"), "the name of a file in the same folder"),
        (json!(7), "the name of a file in the same folder, found 7"),
        (json!("none.safetensors"), "the file none.safetensors, which it lists, is not in the folder"),
    ] {
        let folder = write(json!({ "weight_map": { name: file } }))?;
        check(folder.path(), &["model.safetensors.index.json", words]);
    }
    let folder = write(json!({ "weight_map": { "absent.weight": shard(0, 1) } }))?;
    check(folder.path(), &["index.json: tensor absent.weight is not in model-00001-of-00001.safetensors"]);
    let folder = write(json!({ "metadata": {} }))?;
    check(folder.path(), &["index.json: expected a key `weight_map`, found none"]);
    Ok(())
}

#[test]
fn one_tensor_in_two_shards_is_named() -> Outcome {
    let folder = Folder::of("llama")?.write_sharded(2)?;
    std::fs::copy(folder.path().join(shard(0, 2)), folder.path().join("again.safetensors"))?;
    let path = folder.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    index["weight_map"]["lm_head.weight"] = "again.safetensors".into();
    std::fs::write(&path, index.to_string())?;
    check(folder.path(), &["tensor `lm_head.weight` is there twice"]);
    Ok(())
}

#[test]
fn a_path_to_another_file_of_the_folder_is_refused() -> Outcome {
    let folder = Folder::of("llama")?.write()?;
    let other = folder.path().join("adapter.safetensors");
    std::fs::copy(folder.path().join("model.safetensors"), &other)?;
    check(&other, &["adapter.safetensors: this file is not among the weights of its folder"]);
    // Where no file has the usual name, the one that is named has the weights.
    std::fs::remove_file(folder.path().join("model.safetensors"))?;
    check(&other, &["accepted"]);
    Ok(())
}

/// A folder whose safetensors file is this.
fn with_weights(bytes: &[u8]) -> Outcome<tempfile::TempDir> {
    let folder = Folder::of("llama")?.write()?;
    std::fs::write(folder.path().join("model.safetensors"), bytes)?;
    Ok(folder)
}

#[test]
fn broken_headers_are_named() -> Outcome {
    let entry = |start: u64, end: u64| json!({ "dtype": "F32", "shape": [1], "data_offsets": [start, end] });
    let two = |first: Value, second: Value| json!({ "a": first, "b": second }).to_string();
    let dtype = json!({ "a": { "dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4] } }).to_string();
    let zero = json!({ "a": { "dtype": "F32", "shape": [0], "data_offsets": [0, 0] } }).to_string();
    let many =
        json!({ "a": { "dtype": "F32", "shape": [1, 1, 1, 1, 1], "data_offsets": [0, 4] } }).to_string();
    let huge = json!({ "a": { "dtype": "F32", "shape": [u64::MAX, 2], "data_offsets": [0, 4] } }).to_string();
    let unknown = json!({ "a": { "dtype": "Q4", "shape": [4], "data_offsets": [0, 4] } }).to_string();
    let cases: [(Vec<u8>, &str); 15] = [
        (Vec::new(), "header length: expected 8 bytes, found 0 before the end of the file"),
        (vec![1, 0, 0], "header length: expected 8 bytes, found 3 before the end of the file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".to_vec(),
            "at byte 0: expected the file itself, found a pointer of Git LFS: `git lfs pull` fetches it",
        ),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "header length: expected at most 0 bytes, found 18446744073709551615",
        ),
        ([&9_u64.to_le_bytes()[..], b"{}"].concat(), "header length: expected at most 2 bytes, found 9"),
        (file("not json", &[]), "header: expected ident"),
        (file("[]", &[]), "header: "),
        (
            file(&two(entry(0, 4), entry(4, 8)), &[0; 4]),
            "tensor data: expected 8 bytes behind the header, found 4",
        ),
        (
            file(&two(entry(0, 4), entry(4, 8)), &[0; 12]),
            "tensor data: expected 8 bytes behind the header, found 12",
        ),
        (file(&two(entry(0, 4), entry(2, 6)), &[0; 6]), "header: invalid offset for tensor `b`"),
        (file(&two(entry(0, 4), entry(8, 12)), &[0; 12]), "header: invalid offset for tensor `b`"),
        (file(&dtype, &[0; 4]), "tensor `a`: the type F8_E4M3 is not supported; expected F32, F16 or BF16"),
        (file(&zero, &[]), "tensor `a`: expected dimensions above zero"),
        (file(&many, &[0; 4]), "tensor `a`: expected 1 to 4 dimensions, found 5"),
        (file(&huge, &[0; 4]), "header: "),
    ];
    for (bytes, words) in cases {
        let folder = with_weights(&bytes)?;
        check(folder.path(), &["model.safetensors: at byte 0", words]);
    }
    check(with_weights(&file(&unknown, &[0; 4]))?.path(), &["model.safetensors", "unknown variant `Q4`"]);
    Ok(())
}

#[test]
fn documents_that_are_no_json_are_named() -> Outcome {
    let folder = Folder::of("llama")?.write()?;
    for (text, words) in
        [("", "EOF"), ("{", "EOF"), ("[]", "expected an object, found a list"), ("\u{0}", "expected")]
    {
        std::fs::write(folder.path().join("config.json"), text)?;
        check(folder.path(), &["config.json: ", words]);
    }
    std::fs::write(folder.path().join("config.json"), "[".repeat(100_000))?;
    check(folder.path(), &["config.json: recursion limit exceeded"]);
    Ok(())
}

#[test]
fn a_document_that_git_keeps_elsewhere_says_how_to_fetch_it() -> Outcome {
    let folder = Folder::of("llama")?.write()?;
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    let said = "expected the file itself, found a pointer of Git LFS: `git lfs pull` fetches it";
    let gguf = folder.path().join("model.gguf");
    std::fs::write(&gguf, pointer)?;
    check(&gguf, &[&format!("model.gguf: at byte 0: {said}")]);
    for name in ["tokenizer.json", "config.json"] {
        let path = folder.path().join(name);
        let whole = std::fs::read(&path)?;
        std::fs::write(&path, pointer)?;
        let error =
            read_all(folder.path()).map_or_else(|error| error.to_string(), |()| "accepted".to_owned());
        assert!(error.ends_with(&format!("{name}: {said}")), "{error}");
        std::fs::write(&path, whole)?;
    }
    Ok(())
}

#[test]
fn documents_of_more_bytes_or_values_than_any_needs_are_refused() -> Outcome {
    let folder = Folder::of("llama")?.write()?;
    let config = folder.path().join("config.json");
    let whole = std::fs::read_to_string(&config)?;
    let more = |value: &str| format!("{},\"more\":{value}}}", whole.trim_end().trim_end_matches('}'));
    std::fs::write(&config, more(&format!("null{}", " ".repeat(16 << 20))))?;
    check(folder.path(), &["config.json: expected at most 16777216 bytes, found"]);
    std::fs::write(&config, more(&format!("[{}0]", "[0],".repeat(1 << 20))))?;
    check(folder.path(), &["config.json: expected values that take at most 268435456 bytes, found"]);
    // A key of a megabyte is text, and few values.
    std::fs::write(&config, more(&format!("[\"{}\"]", "x".repeat(1 << 20))))?;
    check(folder.path(), &["config.json: more: expected a key whose effect is known"]);
    Ok(())
}

/// SplitMix64 (Steele et al. 2014): the same damage on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// What reading all of a folder says; the tokens of a text are its end.
fn read_all(path: &Path) -> Outcome {
    let checkpoint = checkpoint::open(path, &OpenOptions::default())?;
    ModelConfig::from_file(&*checkpoint)?;
    checkpoint.tensors().iter().try_for_each(|info| checkpoint.matrix(&info.name).map(drop))?;
    #[cfg(feature = "text")]
    {
        use ottava::text::{AddBos, ChatTemplate, Special, Tokenizer};
        let tokenizer = Tokenizer::from_checkpoint(&*checkpoint)?;
        ChatTemplate::from_checkpoint(&*checkpoint, tokenizer.vocab())?;
        tokenizer.encode("the den </s> 12", Special::Parse, AddBos::AsModel)?;
    }
    Ok(())
}

#[test]
fn damaged_folders_are_refused_or_read_and_never_more() -> Outcome {
    const SIGNS: &[u8] = b"0123456789{}[]\",:.-eEtfn \0\xff";
    let folder = Folder::of("qwen2")?.write()?;
    let (mut random, mut refused) = (Random(1), 0);
    let files = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ];
    for round in 0..400 {
        let path = folder.path().join(files[round % files.len()]);
        let whole = std::fs::read(&path)?;
        let mut damaged = whole.clone();
        for _ in 0..1 + random.below(3) {
            // Of weights the header is damaged: other values are other weights.
            let at = random.below(damaged.len().min(6000));
            match random.below(4) {
                0 => drop(damaged.remove(at)),
                1 => damaged.insert(at, SIGNS[random.below(SIGNS.len())]),
                _ => damaged[at] = SIGNS[random.below(SIGNS.len())],
            }
        }
        std::fs::write(&path, damaged)?;
        if let Err(error) = read_all(folder.path()) {
            refused += 1;
            let error = error.to_string();
            assert!(error.lines().count() == 1 && error.chars().count() < 400, "round {round}: {error}");
        }
        std::fs::write(&path, whole)?;
    }
    assert!((200..400).contains(&refused), "{refused} were refused");
    read_all(folder.path())
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_read() -> Outcome {
    let folder = Folder::of("llama")?.write()?;
    let weights = folder.path().join("model.safetensors");
    std::fs::remove_file(&weights)?;
    std::os::unix::fs::symlink("/dev/null", &weights)?;
    check(
        folder.path(),
        &["model.safetensors: cannot open: expected a regular file, found a character device"],
    );
    std::fs::remove_file(&weights)?;
    std::fs::create_dir(&weights)?;
    check(folder.path(), &["model.safetensors: cannot open: expected a regular file, found a directory"]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn links_to_files_that_are_not_there_are_no_absent_documents() -> Outcome {
    for document in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "hf_quant_config.json",
        "model.safetensors",
    ] {
        let folder = Folder::of("llama")?.write()?;
        let path = folder.path().join(document);
        std::fs::remove_file(&path).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        std::os::unix::fs::symlink("../blobs/none", &path)?;
        let said = format!("{document}: cannot open: expected a file, found a link to one that is not there");
        check(folder.path(), &[&said]);
    }
    let folder = Folder::of("llama")?.write_sharded(2)?;
    for name in [&shard(1, 2)[..], "model.safetensors.index.json"] {
        std::fs::remove_file(folder.path().join(name))?;
        std::os::unix::fs::symlink("../blobs/none", folder.path().join(name))?;
        check(folder.path(), &[&format!("{name}: cannot open: expected a file, found a link")]);
    }
    Ok(())
}
