//! Tokenizers of folders: the tokens of the twin's vocabulary, the ends of answers, chat templates, and what is refused.

use ottava::checkpoint::{self, Checkpoint, OpenOptions};
use ottava::text::{AddBos, ChatTemplate, Message, Special, TextError, Tokenizer};
use ottava::{Device, Engine, Request, TokenId};
use serde_json::{Value, json};

use crate::folder::{Folder, document, file, golden, twin};
use crate::tiny::Outcome;

const TEXTS: [&str; 8] = [
    "",
    "the den in the other place",
    "  two spaces,\n\nlines\tand tabs  ",
    "Ünïcödé — 語 🦀 e\u{301}",
    "it's what we'll DO'N'T do, 1234567 times",
    "</s> and <s> are tokens, <nothing> is not",
    "a</s>b<image>c",
    "\u{0}\u{7f}\u{a0}\u{2028}",
];

fn tokenizer(folder: &Folder) -> Result<Tokenizer, Box<dyn std::error::Error>> {
    let folder = folder.write()?;
    Ok(Tokenizer::from_checkpoint(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?)
}

/// The folder with a part of its `tokenizer.json` changed.
fn changed(change: impl FnOnce(&mut Value)) -> Outcome<Folder> {
    let mut json = document("hf/tokenizer.json")?;
    change(&mut json);
    Ok(Folder::of("llama")?.with("tokenizer.json", &json))
}

fn refusal(folder: &Folder) -> String {
    tokenizer(folder).err().map_or_else(|| "accepted".to_owned(), |error| error.to_string())
}

#[test]
fn texts_have_the_tokens_of_the_twins_vocabulary() -> Outcome {
    let twin = Tokenizer::from_metadata(twin("llama")?.metadata())?;
    let found = tokenizer(&Folder::of("llama")?)?;
    assert!(found.vocab().warnings().is_empty(), "{:?}", found.vocab().warnings());
    assert_eq!(found.vocab().len(), twin.vocab().len());
    for id in twin.vocab().ids() {
        let of = |tokenizer: &Tokenizer| {
            let vocab = tokenizer.vocab();
            (vocab.bytes(id).map(<[u8]>::to_vec), vocab.piece(id).map(str::to_owned), vocab.kind(id))
        };
        assert_eq!(of(&found), of(&twin), "{id:?}");
    }
    for text in TEXTS {
        for special in [Special::Parse, Special::Text] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, special, AddBos::AsModel);
            assert_eq!(ids(&found)?, ids(&twin)?, "{text:?}, {special:?}");
        }
    }
    let (found, twin) = (found.vocab(), twin.vocab());
    assert_eq!((found.bos(), found.eos(), found.add_bos()), (twin.bos(), twin.eos(), twin.add_bos()));
    assert_eq!(found.stop_ids(), twin.stop_ids());
    Ok(())
}

#[test]
fn merges_are_pairs_or_lines() -> Outcome {
    let lines = tokenizer(&Folder::of("llama")?)?;
    let pairs = changed(|json| {
        let merges = json["model"]["merges"].as_array_mut().expect("a list");
        for merge in merges {
            *merge = match merge.take() {
                Value::String(line) => line.split_once(' ').map(|(left, right)| json!([left, right])).into(),
                Value::Array(pair) => {
                    pair.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ").into()
                }
                other => other,
            };
        }
    })?;
    let pairs = tokenizer(&pairs)?;
    for text in TEXTS {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, Special::Parse, AddBos::AsModel);
        assert_eq!(ids(&pairs)?, ids(&lines)?, "{text:?}");
    }
    Ok(())
}

/// Llama 3's expression, as its `tokenizer.json` has it; Qwen's has `\p{N}` in place of `\p{N}{1,3}`.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// DeepSeek V3's pre-tokenizer, which has characters where the table of rules has escapes.
const DEEPSEEK3: &str = r##"{ "type": "Sequence", "pretokenizers": [
    { "type": "Split", "pattern": { "Regex": "\\p{N}{1,3}" }, "behavior": "Isolated", "invert": false },
    { "type": "Split", "pattern": { "Regex": "[一-龥\u3040-ゟ゠-ヿ]+" }, "behavior": "Isolated", "invert": false },
    { "type": "Split", "pattern": { "Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" }, "behavior": "Isolated", "invert": false },
    { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }
] }"##;

/// The pre-tokenizer of byte-level vocabularies that cut by an expression of their own.
fn split(expression: &str, behavior: &str) -> Value {
    json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": expression }, "behavior": behavior, "invert": behavior == "Removed" },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ] })
}

#[test]
fn rules_are_known_by_their_expressions() -> Outcome {
    let qwen = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}");
    let digits = json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Digits", "individual_digits": true },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
    ] });
    let rules = [
        (split(LLAMA3, "Isolated"), true, "llama-bpe"),
        (split(LLAMA3, "Removed"), true, "llama-bpe"),
        (split(LLAMA3, "Isolated"), false, "dbrx"),
        (split(&qwen, "Isolated"), false, "qwen2"),
        (digits, false, "smollm"),
        (serde_json::from_str(DEEPSEEK3)?, false, "deepseek-v3"),
    ];
    // Cuts that all rules make otherwise.
    let text = "12345;\n\n  x1 it'S\r\n 99 'twas";
    for (rule, whole, name) in rules {
        let folder = changed(|json| {
            json["pre_tokenizer"] = rule;
            json["model"]["ignore_merges"] = whole.into();
            json["normalizer"] = json!({ "type": "NFC" });
        })?;
        let found = tokenizer(&folder)?.encode(text, Special::Parse, AddBos::No)?;
        // The same vocabulary in GGUF, under the rule's name.
        let mut metadata: Vec<_> =
            twin("llama")?.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        for (key, value) in &mut metadata {
            if key == "tokenizer.ggml.pre" {
                *value = name.into();
            }
        }
        let same = Tokenizer::from_metadata(&metadata.into_iter().collect())?;
        assert_eq!(found, same.encode(text, Special::Parse, AddBos::No)?, "{name}");
    }
    Ok(())
}

#[test]
fn texts_are_composed_where_the_folder_asks_for_it() -> Outcome {
    let nfc = json!({ "type": "NFC" });
    let qwen = split(&LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"), "Isolated");
    let sequence = |steps: Value| json!({ "type": "Sequence", "normalizers": steps });
    let cases = [
        (nfc.clone(), true),
        (sequence(json!([nfc])), true),
        // The pre-tokenizer's name alone does not decide in folders.
        (sequence(json!([])), false),
        (Value::Null, false),
    ];
    for (normalizer, is_composed) in cases {
        let folder = changed(|json| {
            json["normalizer"] = normalizer.clone();
            json["pre_tokenizer"] = qwen.clone();
        })?;
        let tokenizer = tokenizer(&folder)?;
        let ids = |text: &str| tokenizer.encode(text, Special::Text, AddBos::No);
        let (composed, decomposed) =
            ("Vi\u{1ec7}t \u{e9}, \u{d55c}", "Vie\u{323}\u{302}t e\u{301}, \u{1112}\u{1161}\u{11ab}");
        assert_eq!(ids(decomposed)? == ids(composed)?, is_composed, "{normalizer}");
        let text = tokenizer.decode(&ids(decomposed)?);
        assert_eq!(text, if is_composed { composed } else { decomposed });
    }
    Ok(())
}

#[test]
fn tokenizers_of_other_kinds_are_refused_by_name() -> Outcome {
    let cases: [(&str, Value, &str); 10] = [
        (
            "/model/type",
            "WordLevel".into(),
            "tokenizer.json: model.type: expected BPE, WordPiece or Unigram, found WordLevel",
        ),
        ("/model/type", "Unigram".into(), "pre_tokenizer.type: expected BertPreTokenizer"),
        ("/post_processor/type", "Other".into(), "post_processor.type: expected ByteLevel"),
        ("/model/dropout", 0.1.into(), "model.dropout: expected 0, found 0.1"),
        ("/model/end_of_word_suffix", "</w>".into(), "model.end_of_word_suffix: expected an empty text"),
        ("/model/vocab/the", 9999.into(), "model.vocab.the: expected an id below 512"),
        ("/pre_tokenizer/add_prefix_space", true.into(), "pre_tokenizer.add_prefix_space: expected false"),
        (
            "/pre_tokenizer",
            split(r"\w+|\s+", "Isolated"),
            r"pre_tokenizer: expected a rule that is known, found \w+",
        ),
        ("/pre_tokenizer", json!({ "type": "Whitespace" }), "model.byte_fallback: expected true"),
        (
            "/normalizer",
            json!({ "type": "Lowercase" }),
            "normalizer.type: expected NFC before bytes, found Lowercase",
        ),
    ];
    for (pointer, value, words) in cases {
        let folder = changed(|json| match json.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => {
                let (parent, key) = pointer.rsplit_once('/').expect("a path");
                json.pointer_mut(parent).expect("the parent is there")[key] = value;
            }
        })?;
        let error = refusal(&folder);
        assert!(error.contains(words), "{pointer}: expected {words}, found {error}");
    }
    Ok(())
}

/// A tokenizer of text with marks for spaces, as Llama 2's and Gemma's are in folders.
fn sentence_piece(normalizer: Value, pre_tokenizer: Value) -> Value {
    let mut vocab = serde_json::Map::new();
    let mut push = |piece: &str| {
        let id = vocab.len();
        vocab.insert(piece.to_owned(), id.into());
    };
    ["<unk>", "<s>", "</s>"].into_iter().for_each(&mut push);
    (0..=255).for_each(|byte: u8| push(&format!("<0x{byte:02X}>")));
    ["▁", "t", "h", "e", "n", "th", "the", "▁the", "en", "▁then"].into_iter().for_each(&mut push);
    let added = |id: u64, content: &str| json!({ "id": id, "content": content, "special": true });
    json!({
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": { "type": "TemplateProcessing", "single": [
            { "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
        ] },
        "model": { "type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true, "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"], ["▁", "the"], ["e", "n"], ["▁the", "n"]] },
    })
}

#[test]
fn what_a_text_begins_with_is_honoured_and_what_it_ends_with_left_out() -> Outcome {
    let metaspace =
        json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
    let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let template = |parts: &[&Value]| json!({ "type": "TemplateProcessing", "single": parts });
    let read = |processor: Value| {
        let mut document = sentence_piece(Value::Null, metaspace.clone());
        document["post_processor"] = processor;
        tokenizer(&Folder::of("llama")?.with("tokenizer.json", &document).without("tokenizer_config.json"))
    };
    let (begin, end, bytes) = (special("<s>"), special("</s>"), json!({ "type": "ByteLevel" }));
    let accepted = [
        (Value::Null, &["▁the"][..], 0),
        (bytes.clone(), &["▁the"], 0),
        (template(&[&text]), &["▁the"], 0),
        (template(&[&begin, &text]), &["<s>", "▁the"], 0),
        // Another token than the configuration's.
        (
            json!({ "type": "Sequence", "processors": [bytes, template(&[&end, &text])] }),
            &["</s>", "▁the"],
            0,
        ),
        // As Whisper's: a token of the model, then one of the task.
        (template(&[&begin, &end, &text]), &["<s>", "</s>", "▁the"], 0),
        (template(&[&begin, &end, &text, &end]), &["<s>", "</s>", "▁the"], 1),
        (template(&[&text, &end]), &["▁the"], 1),
        (template(&[&begin, &text, &end]), &["<s>", "▁the"], 1),
    ];
    for (processor, expected, warnings) in accepted {
        let tokenizer = read(processor.clone())?;
        let ids = tokenizer.encode("the", Special::Parse, AddBos::AsModel)?;
        let pieces: Vec<_> = ids.iter().filter_map(|&id| tokenizer.vocab().piece(id)).collect();
        assert_eq!((&pieces[..], tokenizer.vocab().warnings().len()), (expected, warnings), "{processor}");
    }
    let many = "single: expected at most 8 special tokens before the text, found 9";
    let unknown = "expected special tokens of the vocabulary, found `<no>`";
    for (processor, expected) in [
        (template(&[[&begin; 9].as_slice(), &[&text]].concat()), many),
        (template(&[&begin, &special("<no>"), &text]), unknown),
        (
            json!({ "type": "Other" }),
            "type: expected ByteLevel, TemplateProcessing, BertProcessing or RobertaProcessing, found Other",
        ),
    ] {
        let error = read(processor).map(drop).expect_err("a refusal").to_string();
        assert!(error.contains("tokenizer.json: post_processor") && error.contains(expected), "{error}");
    }
    Ok(())
}

/// A text that starts with its own special token has those that follow, too. `add_bos_token` is about one token.
#[test]
fn several_leading_tokens_come_once() -> Outcome {
    let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let mut document = sentence_piece(replace, Value::Null);
    document["post_processor"]["single"] =
        json!([special("<s>"), special("</s>"), { "Sequence": { "id": "A", "type_id": 0 } }]);
    for add_bos in [json!({ "bos_token": "</s>", "add_bos_token": false }), json!({})] {
        let folder = Folder::of("llama")?.with("tokenizer.json", &document);
        let tokenizer = tokenizer(&folder.with("tokenizer_config.json", &add_bos))?;
        let encoded = |text, bos| -> Outcome<Vec<u32>> {
            Ok(tokenizer.encode(text, Special::Parse, bos)?.iter().map(|id| id.0).collect())
        };
        assert_eq!(tokenizer.vocab().leading(), [TokenId(1), TokenId(2)]);
        assert_eq!(encoded("", AddBos::AsModel)?, [1, 2]);
        assert_eq!(encoded("</s>", AddBos::AsModel)?, [1, 2, 2]);
        assert_eq!(encoded("<s><unk>", AddBos::AsModel)?, [1, 0]);
        assert_eq!(encoded("<s>", AddBos::No)?, [1]);
        assert!(tokenizer.encode_within("</s>", Special::Parse, AddBos::AsModel, 2).is_err());
    }
    Ok(())
}

#[test]
fn marks_for_spaces_and_bytes_are_understood() -> Outcome {
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let llama2 = json!({ "type": "Sequence", "normalizers": [prepend, replace.clone()] });
    let metaspace = |scheme: &str| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false });
    let gemma = json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
    let kinds = [
        (llama2, Value::Null, true),
        (Value::Null, metaspace("first"), true),
        (Value::Null, metaspace("never"), false),
        (replace, gemma, false),
    ];
    for (normalizer, pre_tokenizer, prefix) in kinds {
        let folder = Folder::of("llama")?.with("tokenizer.json", &sentence_piece(normalizer, pre_tokenizer));
        let tokenizer = tokenizer(&folder)?;
        assert!(tokenizer.vocab().warnings().is_empty(), "{:?}", tokenizer.vocab().warnings());
        let ids = tokenizer.encode("the thené", Special::Parse, AddBos::AsModel)?;
        let pieces: Vec<_> = ids.iter().filter_map(|&id| tokenizer.vocab().piece(id)).collect();
        let first = if prefix { "▁the" } else { "the" };
        assert_eq!(pieces, ["<s>", first, "▁then", "<0xC3>", "<0xA9>"]);
        assert_eq!(tokenizer.decode(&ids), "the thené");
    }
    Ok(())
}

#[test]
fn answers_end_where_the_folder_says() -> Outcome {
    let generation = json!({ "bos_token_id": 1, "eos_token_id": [2, 9] });
    let config = json!({ "bos_token": { "content": "<s>" }, "eos_token": { "content": "</s>" }, "add_bos_token": true });
    let folder = Folder::of("llama")?.with("generation_config.json", &generation);
    let tokenizer = tokenizer(&folder.with("tokenizer_config.json", &config))?;
    assert_eq!(tokenizer.vocab().stop_ids(), [TokenId(2), TokenId(9)]);
    assert_eq!(tokenizer.encode("", Special::Parse, AddBos::AsModel)?, [TokenId(1)]);
    // Without a word on generation the model's configuration counts.
    let folder = Folder::of("llama")?.without("generation_config.json").without("tokenizer_config.json");
    let vocab = self::tokenizer(&folder.set("eos_token_id", json!([7, 8])))?;
    let vocab = vocab.vocab();
    assert_eq!((vocab.bos(), vocab.eos()), (Some(TokenId(1)), Some(TokenId(7))));
    assert!(vocab.stop_ids().contains(&TokenId(7)) && vocab.stop_ids().contains(&TokenId(8)));
    Ok(())
}

/// A piece in brackets that only the configuration calls special is a control token.
#[test]
fn what_pads_a_text_is_no_text() -> Outcome {
    let plain = changed(|json| {
        let added = json["added_tokens"].as_array_mut().expect("a list");
        added.retain(|token| token["content"] != "<pad>");
    })?;
    let is_control = |folder: &Folder| -> Outcome<_> {
        let tokenizer = tokenizer(folder)?;
        let vocab = tokenizer.vocab();
        let id = vocab.ids().find(|&id| vocab.piece(id) == Some("<pad>")).ok_or("no such piece")?;
        Ok(vocab.is_control(id))
    };
    assert!(is_control(&plain)?);
    assert!(!is_control(
        &plain.with("tokenizer_config.json", &json!({ "bos_token": "<s>", "eos_token": "</s>" }))
    )?);
    Ok(())
}

/// As transformers: what the configuration says of an added token counts, and so do tokens that it adds or names.
#[test]
fn added_tokens_of_the_configuration_count() -> Outcome {
    let folder = changed(|json| {
        let vocab = json["model"]["vocab"].as_object_mut().expect("pieces");
        vocab.retain(|_, id| *id != 300 && *id != 301 && *id != 302 && *id != 303);
        vocab.insert("<named>".to_owned(), 302.into());
        vocab.insert("<listed>".to_owned(), 303.into());
        json["model"]["merges"] = json!([]);
        let added = json["added_tokens"].as_array_mut().expect("a list");
        added.push(json!({ "id": 300, "content": "<turn>", "special": false }));
    })?;
    let config = json!({
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<named>", "pad_token": "!",
        "additional_special_tokens": [{ "content": "<listed>" }, "<nowhere>"],
        "added_tokens_decoder": {
            "300": { "content": "<turn>", "special": true, "rstrip": true },
            "301": { "content": "<text>", "special": false, "lstrip": true },
            "2": { "content": "</s>", "special": false },
        },
    });
    let found = tokenizer(&folder.clone().with("tokenizer_config.json", &config))?;
    assert!(found.vocab().warnings().is_empty(), "{:?}", found.vocab().warnings());
    let of_added = |tokenizer: &Tokenizer, special| -> Outcome<Vec<u32>> {
        let ids = tokenizer.encode("</s> <text> <turn> <named><listed><nowhere>", special, AddBos::No)?;
        Ok(ids.iter().map(|id| id.0).filter(|id| *id == 2 || (300..304).contains(id)).collect())
    };
    assert_eq!(of_added(&found, Special::Parse)?, [2, 301, 300, 302, 303]);
    // The configuration names it special elsewhere: `</s>` is no text.
    assert_eq!(of_added(&found, Special::Text)?, [301]);
    assert_eq!(found.encode("a <text>!", Special::Text, AddBos::No)?.len(), 3);
    let without = tokenizer(&folder.clone().without("tokenizer_config.json"))?;
    assert_eq!(of_added(&without, Special::Text)?, [300]);
    for (decoder, expected) in [
        (json!({ "x": { "content": "y" } }), "added_tokens_decoder.x: expected a token id, found x"),
        (json!({ "9": {} }), "added_tokens_decoder.9.content: expected a text, found no such key"),
    ] {
        let folder =
            folder.clone().with("tokenizer_config.json", &json!({ "added_tokens_decoder": decoder }));
        assert!(refusal(&folder).contains(expected), "{}", refusal(&folder));
    }
    Ok(())
}

/// A few bytes of a sparse file may claim any number of rows: the tokens are as many as the documents name.
#[test]
fn rows_without_tokens_take_no_memory() -> Outcome {
    let rows = 1_usize << 26;
    let read = |id: usize| -> Outcome<_> {
        let mut folder = changed(|json| json["model"]["vocab"]["the"] = id.into())?;
        folder.config["vocab_size"] = rows.into();
        folder.tensors.retain(|tensor| tensor.name != "model.embed_tokens.weight");
        let folder = folder.write()?;
        let path = folder.path().join("model.safetensors");
        let whole = std::fs::read(&path)?;
        let (length, rest) = whole.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into()?) as usize);
        let mut header: Value = serde_json::from_slice(header)?;
        let table = json!({ "dtype": "BF16", "shape": [rows, 1], "data_offsets": [data.len(), data.len() + 2 * rows] });
        header["model.embed_tokens.weight"] = table;
        std::fs::write(&path, file(&header.to_string(), data))?;
        let file = std::fs::OpenOptions::new().write(true).open(&path)?;
        file.set_len(file.metadata()?.len() + 2 * rows as u64)?;
        Ok(Tokenizer::from_checkpoint(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?)
    };
    assert_eq!(read(600)?.vocab().len(), 601);
    let error = read(1 << 24).err().ok_or("accepted")?.to_string();
    assert!(error.contains("model.vocab.the: expected an id below 16777216, found 16777216"), "{error}");
    Ok(())
}

/// As Phi 4 has its tokens; one line tells what is so with all of them, by the names of the document.
#[test]
fn a_fault_of_many_tokens_is_one_warning() -> Outcome {
    let folder = changed(|json| {
        json["model"]["merges"] = json!(["t h e"]);
        let added = json["added_tokens"].as_array_mut().expect("a list");
        let many = (0..96).map(|n| json!({ "id": 9000 + n, "content": format!("<{n}>"), "special": false }));
        added.extend(many);
        added.push(json!({ "id": 300, "content": "<|user|>", "special": false }));
        json["model"]["vocab"].as_object_mut().expect("pieces").retain(|_, id| *id != 300);
    })?;
    let folder = folder.with("generation_config.json", &json!({ "eos_token_id": [2, 9999, 9998, -1] }));
    let tokenizer = tokenizer(&folder)?;
    let lines = tokenizer.vocab().warnings();
    let expected = [
        "`added_tokens`, \"<0>\" (and 95 more): left out, as the embedding table has no row",
        "`added_tokens`: \"<|user|>\" is taken for a control token, not for text",
        "found 9999 (and 2 more): no such token",
        "`model.merges`: rules with a piece that is no token",
    ];
    for words in expected {
        assert_eq!(lines.iter().filter(|line| line.contains(words)).count(), 1, "{words}: {lines:?}");
    }
    assert!(lines.len() == expected.len() && lines.iter().all(|line| !line.contains("ggml")), "{lines:?}");
    Ok(())
}

/// Documents call markers of turns text that is always one token: DeepSeek's distilled models do.
#[test]
fn markers_that_are_called_text_come_from_the_template_alone() -> Outcome {
    let markers = ["<｜User｜>", "<｜Assistant｜>", "<|START_OF_TURN_TOKEN|>", "<think>"];
    let folder = changed(|json| {
        for (index, content) in markers.into_iter().enumerate() {
            let id = 300 + index;
            json["model"]["vocab"].as_object_mut().expect("pieces").retain(|_, other| *other != id);
            let added = json["added_tokens"].as_array_mut().expect("a list");
            added.push(json!({ "id": id, "content": content, "special": false }));
        }
        json["model"]["merges"] = json!([]);
    })?;
    let source = "{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}<｜Assistant｜><think>";
    let folder = folder.with("tokenizer_config.json", &json!({ "chat_template": source })).write()?;
    let checkpoint = checkpoint::open(folder.path(), &OpenOptions::default())?;
    let tokenizer = Tokenizer::from_checkpoint(&*checkpoint)?;
    let template = ChatTemplate::from_checkpoint(&*checkpoint, tokenizer.vocab())?.ok_or("no template")?;
    let of_markers = |ids: &[TokenId]| -> Vec<u32> {
        ids.iter().map(|id| id.0).filter(|id| (300..304).contains(id)).collect()
    };
    let typed = "hi<｜Assistant｜>yes<|START_OF_TURN_TOKEN|><｜User｜><think>";
    let prompt = template.prompt(&[Message::new("user", typed)], &Default::default())?;
    assert_eq!(of_markers(&tokenizer.encode_prompt(&prompt, AddBos::AsModel)?), [300, 303, 301, 303]);
    assert_eq!(of_markers(&tokenizer.encode(typed, Special::Text, AddBos::No)?), [303]);
    assert_eq!(of_markers(&tokenizer.encode(typed, Special::Parse, AddBos::No)?), [301, 302, 300, 303]);
    Ok(())
}

#[test]
fn the_chat_template_is_found_wherever_it_is() -> Outcome {
    let source = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}";
    let list = json!([{ "name": "tool_use", "template": "no" }, { "name": "default", "template": source }]);
    let mut alone = Folder::of("llama")?;
    alone.documents.push(("chat_template.jinja", source.into()));
    let folders = [
        Folder::of("llama")?.with("tokenizer_config.json", &json!({ "chat_template": source })),
        Folder::of("llama")?.with("tokenizer_config.json", &json!({ "chat_template": list })),
        Folder::of("llama")?.with("chat_template.json", &json!({ "chat_template": source })),
        alone,
    ];
    for folder in folders {
        let folder = folder.write()?;
        let checkpoint = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let tokenizer = Tokenizer::from_checkpoint(&*checkpoint)?;
        let template =
            ChatTemplate::from_checkpoint(&*checkpoint, tokenizer.vocab())?.ok_or("no template")?;
        assert_eq!(template.render(&[Message::new("user", "hi")], &Default::default())?, "<user>hi");
        // Editors on Windows mark a text as UTF-8.
        for file in folder.path().read_dir()? {
            let path = file?.path();
            if path.extension().is_some_and(|kind| kind == "json" || kind == "jinja") {
                let text = std::fs::read_to_string(&path)?;
                std::fs::write(&path, format!("\u{feff}{text}"))?;
            }
        }
        let checkpoint = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let tokenizer = Tokenizer::from_checkpoint(&*checkpoint)?;
        let template =
            ChatTemplate::from_checkpoint(&*checkpoint, tokenizer.vocab())?.ok_or("no template")?;
        assert_eq!(template.render(&[Message::new("user", "hi")], &Default::default())?, "<user>hi");
    }
    let without = Folder::of("llama")?.write()?;
    let checkpoint = checkpoint::open(without.path(), &OpenOptions::default())?;
    assert!(
        ChatTemplate::from_checkpoint(&*checkpoint, Tokenizer::from_checkpoint(&*checkpoint)?.vocab())?
            .is_none()
    );
    Ok(())
}

/// The ids that an engine answers with.
fn answer(engine: &Engine, request: Request) -> Outcome<Vec<TokenId>> {
    Ok(engine.submit(request.max_tokens(8).ignore_eos())?.text()?.tokens)
}

#[test]
fn an_engine_answers_from_a_folder_as_from_a_file() -> Outcome {
    let build = |path: &std::path::Path| Engine::builder(path).device(Device::Cpu).build();
    let folder = Folder::of("qwen3")?.write()?;
    let (found, twin) = (build(folder.path())?, build(&golden("families/qwen3.gguf"))?);
    let of_folder = answer(&found, Request::text("the den"))?;
    assert_eq!(of_folder, answer(&twin, Request::text("the den"))?);
    assert_eq!(of_folder.len(), 8);
    assert_eq!(found.info().name, folder.path().file_name().unwrap_or_default().to_string_lossy());
    assert_eq!(found.info().parameters, twin.info().parameters);
    Ok(())
}

#[test]
fn packed_weights_are_kept_beside_a_folder() -> Outcome {
    use ottava::model::SidecarUse;
    let (folder, packed) = (Folder::of("qwen3")?.write()?, tempfile::tempdir()?);
    let build = || Engine::builder(folder.path()).device(Device::Cpu).sidecar_in(packed.path()).build();
    assert_eq!(build()?.info().sidecar, SidecarUse::Written { replaced: None });
    assert_eq!(build()?.info().sidecar, SidecarUse::Read);
    // Other settings are another model.
    let config = Folder::of("qwen3")?.set("rms_norm_eps", 1e-5.into()).config;
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    assert!(matches!(build()?.info().sidecar, SidecarUse::Written { replaced: Some(_) }));
    Ok(())
}

#[test]
fn a_folder_without_a_tokenizer_runs_on_token_ids() -> Outcome {
    let folder = Folder::of("qwen3")?.without("tokenizer.json").write()?;
    let engine = Engine::builder(folder.path()).device(Device::Cpu).build()?;
    assert!(engine.info().warnings.is_empty(), "{:?}", engine.info().warnings);
    let ids = answer(&engine, Request::tokens(vec![TokenId(20), TokenId(21)]))?;
    assert_eq!(ids.len(), 8);
    let error = engine.submit(Request::text("the den")).err().ok_or("accepted")?;
    assert!(matches!(error, ottava::Error::Text(TextError::NoTokenizer { .. })), "{error}");
    assert!(error.to_string().contains("text needs tokenizer.json, which is not there"), "{error}");
    Ok(())
}
