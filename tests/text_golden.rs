//! Tokenizers and chat templates of real models against what llama.cpp made of them.
//!
//! `real_models` finds the models; without them the program's last lines say what was not run.

#![cfg(feature = "text")]

mod real_models;

use ottava::TokenId;
use ottava::checkpoint::{self, Checkpoint, Metadata, ModelFile, OpenOptions};
use ottava::text::{
    AddBos, ChatTemplate, Detokenizer, Encoding, Message, RenderOptions, Special, TextError, Texts,
    Tokenizer, TokensMax,
};
use real_models::golden;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::time::Instant;

fn model(name: &str) -> Option<ModelFile> {
    let path = real_models::path(name)?;
    Some(ModelFile::open(&path, &OpenOptions::default()).unwrap())
}

/// Every recorded text gives the recorded ids, and comes back from them.
fn tokens(name: &str) {
    let Some(file) = model(name) else { return };
    let cases = golden(&format!("{name}.tokens.json"));
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    eprintln!("{name}: {} tokens, loaded in {:?}", tokenizer.vocab().len(), start.elapsed());
    assert!(cases.len() >= 25);
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let ids = tokenizer.encode(text, Special::Parse, AddBos::AsModel).unwrap();
        assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), expected, "{name}: {text:?}");

        let ids = tokenizer.encode(text, Special::Text, AddBos::No).unwrap();
        assert_eq!(tokenizer.decode(&ids), text, "{name}");
        let mut detokenizer = Detokenizer::new(tokenizer.vocab());
        let mut streamed = String::new();
        ids.iter().for_each(|&id| streamed.push_str(detokenizer.push(id)));
        assert_eq!(streamed, text, "{name}: streamed");
    }
}

#[test]
fn smollm2_tokens() {
    tokens("smollm2");
}

#[test]
fn gemma3_tokens() {
    tokens("gemma3");
}

#[test]
fn smollm2_chat() {
    let Some(file) = model("smollm2") else { return };
    let cases = golden("smollm2.chat.json");
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let template = ChatTemplate::from_metadata(file.metadata(), tokenizer.vocab()).unwrap().unwrap();
    assert!(!cases.is_empty());
    for case in &cases {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap());
        let ids = tokenizer.encode(&prompt, Special::Parse, AddBos::AsModel).unwrap();
        assert_eq!(ids.first(), Some(&TokenId(1)), "<|im_start|> is one token");
    }
}

#[test]
fn stop_ids_of_real_models() {
    for (name, expected) in [("smollm2", [0, 2]), ("gemma3", [1, 106])] {
        let Some(file) = model(name) else { continue };
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        assert_eq!(tokenizer.vocab().stop_ids(), expected.map(TokenId), "{name}");
        let bos = tokenizer.vocab().bos().unwrap();
        assert!(tokenizer.vocab().is_control(bos), "{name}");
    }
}

/// Vocabularies with recorded texts and ids, as llama.cpp's folder `models` has them: `NAME.gguf`, `NAME.gguf.inp`
/// with the texts and `NAME.gguf.out` with a line of ids for each.
#[test]
fn recorded_vectors_of_vocabularies() {
    const FOLDER: &str = "OTTAVA_TEST_VOCABULARIES";
    let Some(folder) = std::env::var_os(FOLDER).filter(|value| !value.is_empty()) else {
        return real_models::not_run(format!("vectors of vocabularies: no folder of them ({FOLDER})"));
    };
    let folder = PathBuf::from(folder);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    files.sort();
    let mut compared = 0;
    for path in files {
        let beside = |extension: &str| path.with_extension(format!("gguf.{extension}"));
        let (Ok(texts), Ok(ids)) = (read_to_string(beside("inp")), read_to_string(beside("out"))) else {
            continue;
        };
        let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        match Tokenizer::from_metadata(file.metadata()) {
            Ok(tokenizer) => {
                eprintln!("{name}: {:?}", tokenizer.vocab().warnings());
                compare_vectors(&name, &tokenizer, &texts, &ids);
                for (key, tokenizer) in without_keys(&file) {
                    eprintln!("{name} without {key}: {:?}", tokenizer.vocab().warnings());
                    compare_vectors(&format!("{name} without {key}"), &tokenizer, &texts, &ids);
                }
                compared += 1;
            }
            Err(error @ (TextError::UnknownModel { .. } | TextError::UnknownPreTokenizer { .. })) => {
                real_models::not_run(format!("{name}: {error}"));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert!(compared > 0, "{}: no vocabulary with vectors", folder.display());
}

/// The tokenizer of the file without a key whose value its tokens tell.
fn without_keys(file: &ModelFile) -> Vec<(&'static str, Tokenizer)> {
    const PRE: &str = "tokenizer.ggml.pre";
    let metadata = file.metadata();
    let keys = match metadata.str("tokenizer.ggml.model").unwrap() {
        Some("llama") => &["tokenizer.ggml.scores", "tokenizer.ggml.token_type"][..],
        // This vocabulary is like Qwen 2's, and only the key says that the rule is another.
        _ if metadata.str(PRE).unwrap() == Some("qwen35") => &[],
        _ => &[PRE],
    };
    let without = |key: &&'static str| {
        let entries = metadata.iter().filter(|(other, _)| other != key);
        let rest: Metadata = entries.map(|(key, value)| (key, value.clone())).collect();
        (*key, Tokenizer::from_metadata(&rest).unwrap())
    };
    keys.iter().map(without).collect()
}

fn compare_vectors(name: &str, tokenizer: &Tokenizer, texts: &str, ids: &str) {
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let mut wrong = Vec::new();
    for (text, expected) in texts.iter().zip(ids.lines()) {
        let found = tokenizer.encode(text, Special::Text, AddBos::No).unwrap();
        let found: Vec<String> = found.iter().map(|id| id.0.to_string()).collect();
        if found != expected.split_whitespace().collect::<Vec<_>>() {
            wrong.push(format!("{text:?}: found {}, expected {expected}", found.join(" ")));
        }
    }
    assert!(texts.len() >= ids.lines().count() && !ids.is_empty(), "{name}: {} texts", texts.len());
    assert!(wrong.is_empty(), "{name}: {} of {} texts:\n{}", wrong.len(), texts.len(), wrong.join("\n"));
}

/// Encoder tokenizers with recorded inputs, ids and token types, as Hugging Face's `tokenizers` makes them:
/// `NAME.cases.json` next to the model `NAME` (a folder) or `NAME.gguf`.
#[test]
fn recorded_inputs_of_encoders() {
    const FOLDER: &str = "OTTAVA_TEST_ENCODERS";
    let Some(folder) = std::env::var_os(FOLDER).filter(|value| !value.is_empty()).map(PathBuf::from) else {
        return real_models::not_run(format!("inputs of encoders: no folder of them ({FOLDER})"));
    };
    let mut compared = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".cases.json") else { continue };
        let [gguf, model] = [folder.join(format!("{name}.gguf")), folder.join(name)];
        let path = if gguf.exists() { gguf } else { model };
        let start = Instant::now();
        let model = checkpoint::open(&path, &OpenOptions::default()).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&*model).unwrap();
        let loaded = start.elapsed();
        let cases = read_to_string(folder.join(format!("{name}.cases.json"))).unwrap();
        let cases: Vec<EncoderCase> = serde_json::from_str(&cases).unwrap();
        assert!(!cases.is_empty(), "{name}: no cases");
        let start = Instant::now();
        let wrong: Vec<String> = cases.iter().filter_map(|case| case.difference(&tokenizer)).collect();
        eprintln!("{name}: {} cases in {:?}, loaded in {loaded:?}", cases.len(), start.elapsed());
        let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        assert!(wrong.is_empty(), "{name}: {} of {}:\n{shown}", wrong.len(), cases.len());
        compared += 1;
    }
    assert!(compared > 0, "{}: no cases", folder.display());
}

/// Input, ids and token types of an encoder. With `max`, the input is truncated.
#[derive(serde::Deserialize)]
struct EncoderCase {
    text: String,
    second: Option<String>,
    max: Option<usize>,
    ids: Vec<u32>,
    types: Vec<u32>,
}

impl EncoderCase {
    fn difference(&self, tokenizer: &Tokenizer) -> Option<String> {
        let texts = Texts { first: &self.text, second: self.second.as_deref() };
        let max = self.max.map_or(TokensMax::Refuse(usize::MAX), TokensMax::Truncate);
        let Encoding { ids, types, .. } = tokenizer.encode_input(texts, Special::Text, max).unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        (ids != self.ids || types != self.types)
            .then(|| format!("{:?}, {:?}: found {ids:?}, expected {:?}", self.text, self.second, self.ids))
    }
}
