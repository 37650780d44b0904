//! The whole engine on tiny models with random weights, made here: no file is needed. Crowding,
//! preemption, prefix reuse and snapshots change no token.

#![cfg(feature = "text")]

mod tiny;

use std::path::{Path, PathBuf};

use ottava::chat::{ChatPart, Tool, ToolChoice, Tools};
use ottava::engine::{Answer, FinishReason, Generation, Stats, SubmitError};
use ottava::ir::{KvDtype, KvLayout};
use ottava::sample::{TokenMask, TokenSet};
use ottava::text::{Message, RenderOptions};
use ottava::{Device, Engine, EngineBuilder, EngineConfig, Error, KvBudget, Request, TokenId};
use tiny::Outcome;

/// Most tokens of a sequence.
const CONTEXT: usize = 160;
/// Pages of the crowded cache: two sequences of the longest context.
const PAGES: usize = 20;

/// A model's file in a folder of its own, which lives as long as this does.
struct Made {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn made(bytes: Vec<u8>) -> Outcome<Made> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, bytes)?;
    Ok(Made { folder, path })
}

fn builder(path: &Path) -> EngineBuilder {
    Engine::builder(path).context_max(CONTEXT).device(Device::Cpu)
}

/// An engine that runs one request at a time with all the room it wants.
fn solo(path: &Path) -> Outcome<Engine> {
    let config = EngineConfig { share_prefixes: false, sequences_max: 1, ..EngineConfig::default() };
    Ok(builder(path).scheduling(config).build()?)
}

fn page_bytes(engine: &Engine) -> usize {
    let config = engine.config().expect("a file has hyperparameters");
    let (layers, heads) = (config.block_count, config.heads);
    KvLayout { layers, kv_heads: heads.kv, head_dim: heads.dim, dtype: KvDtype::F16 }.page_bytes()
}

fn read(generation: Generation) -> Outcome<Answer> {
    Ok(generation.text()?)
}

/// Prompts of 8 to about 90 tokens, some with a common beginning, answers of 20 to 49 tokens.
fn request(index: usize) -> Request {
    let beginning = ["", "the thing and the other thing on a string in there ", "an inn "][index % 3];
    let rest = "the anthem rings and sings in the den of a hero ".chars().cycle().skip(7 * index);
    let text: String = beginning.chars().chain(rest.take(8 + index * 13 % 60)).collect();
    Request::text(format!("{text}{index}")).max_tokens(20 + index % 30).ignore_eos()
}

fn books_are_closed(engine: &Engine) -> Outcome<Stats> {
    engine.check_integrity()?;
    let stats = engine.stats();
    assert_eq!(stats.admitted, stats.finished + stats.failed + stats.cancelled, "{stats:?}");
    assert_eq!((stats.waiting, stats.running, stats.pages_used), (0, 0, 0), "{stats:?}");
    Ok(stats)
}

/// Sixty-four at once where two fit; the answers of a solo run, and of one more round from the
/// cache that the first left.
fn a_crowd_gets_the_tokens_of_a_solo_run(bytes: Vec<u8>) -> Outcome {
    let made = made(bytes)?;
    let alone = solo(&made.path)?;
    let budget = PAGES * page_bytes(&alone);
    let crowded = builder(&made.path).kv(KvBudget::Bytes(budget as u64)).build()?;
    let mut expected = Vec::new();
    for index in 0..64 {
        expected.push(read(alone.submit(request(index))?)?);
    }
    let mut distinct: Vec<_> = expected.iter().map(|told| &told.tokens).collect();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 50, "different prompts have different answers: {} of 64", distinct.len());
    for round in 0..2 {
        let generations: Vec<_> =
            (0..64).map(|index| crowded.submit(request(index))).collect::<Result<_, _>>()?;
        for (index, (generation, expected)) in generations.into_iter().zip(&expected).enumerate() {
            let told = read(generation)?;
            assert_eq!(told.tokens, expected.tokens, "round {round}, request {index}");
            assert_eq!(told.text, expected.text, "round {round}, request {index}");
            assert_eq!((told.finish, told.tokens.len()), (FinishReason::Length, 20 + index % 30));
        }
    }
    let stats = books_are_closed(&crowded)?;
    assert_eq!((stats.finished, stats.failed, stats.pages), (128, 0, PAGES as u64));
    assert!(stats.preemptions > 0 && stats.cached_tokens > 0, "{stats:?}");
    assert_eq!(books_are_closed(&alone)?.preemptions, 0);
    let memory = stats.memory;
    assert_eq!((memory.kv_pool.bytes, memory.kv_pages.bytes_max), (budget as u64, budget as u64));
    assert!(memory.weights.bytes >= crowded.info().memory.weight_bytes as u64 && memory.arena.bytes > 0);
    assert!(memory.sequences.bytes == 0 && memory.sequences.bytes_max > 0);
    Ok(())
}

#[test]
fn a_crowd_on_a_tiny_llama_gets_the_tokens_of_a_solo_run() -> Outcome {
    a_crowd_gets_the_tokens_of_a_solo_run(tiny::llama()?)
}

#[test]
fn a_crowd_on_a_tiny_mixture_gets_the_tokens_of_a_solo_run() -> Outcome {
    a_crowd_gets_the_tokens_of_a_solo_run(tiny::mixture()?)
}

#[test]
fn a_crowd_on_a_tiny_gemma_gets_the_tokens_of_a_solo_run() -> Outcome {
    a_crowd_gets_the_tokens_of_a_solo_run(tiny::gemma3()?)
}

#[test]
fn a_prompt_is_found_again_and_survives_in_a_file() -> Outcome {
    for bytes in [tiny::llama()?, tiny::gemma3()?] {
        let made = made(bytes)?;
        let expected = read(solo(&made.path)?.submit(request(31))?)?;
        let first = builder(&made.path).build()?;
        let again = [read(first.submit(request(31))?)?, read(first.submit(request(31))?)?];
        assert_eq!(again[0].usage.cached_tokens, 0);
        let cached = again[1].usage.cached_tokens;
        assert!(cached >= 16 && cached.is_multiple_of(16), "{cached} tokens");

        let (file, ids) = (made.folder.path().join("prompt.kv"), first.prompt_ids(&request(31))?);
        first.save_prompt(&ids, &file)?;
        let second = builder(&made.path).build()?;
        assert_eq!(second.restore_prompt(&file)?, ids.len());
        let restored = read(second.submit(request(31))?)?;
        assert_eq!(restored.usage.cached_tokens, cached);
        for told in again.iter().chain([&restored]) {
            assert_eq!(told.tokens, expected.tokens);
        }
        let snapshots = books_are_closed(&second)?.memory.snapshots;
        assert!(snapshots.bytes == 0 && snapshots.bytes_max >= page_bytes(&second) as u64);

        let mut bytes = std::fs::read(&file)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes)?;
        assert!(matches!(second.restore_prompt(&file), Err(Error::Engine(_))), "a damaged file is refused");
        assert_eq!(read(second.submit(request(31))?)?.tokens, expected.tokens);
        books_are_closed(&second)?;
    }
    Ok(())
}

#[test]
fn a_snapshot_of_another_model_is_refused() -> Outcome {
    let (llama, gemma) = (made(tiny::llama()?)?, made(tiny::gemma3()?)?);
    let file = llama.folder.path().join("prompt.kv");
    let engine = builder(&llama.path).build()?;
    engine.save_prompt(&engine.prompt_ids(&request(3))?, &file)?;
    let error = builder(&gemma.path).build()?.restore_prompt(&file).err().ok_or("accepted")?;
    assert!(error.to_string().contains("another model"), "{error}");
    Ok(())
}

#[test]
fn chats_scores_and_seeds_work_without_a_real_model() -> Outcome {
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path).build()?;
    let chat = || Request::chat(vec![Message::new("user", "sing in the den")]).max_tokens(30).ignore_eos();
    let ids = engine.prompt_ids(&chat())?;
    let text: String = ids.iter().filter_map(|&id| engine.vocab().piece(id)).collect();
    assert!(text.starts_with("<|im_start|>user") && text.contains("<|im_start|>assistant"), "{text}");
    let drawn = |seed| read(engine.submit(chat().temperature(1.0).seed(seed))?);
    assert_eq!(drawn(7)?.tokens, drawn(7)?.tokens);
    assert_ne!(drawn(7)?.tokens, drawn(8)?.tokens);
    // Greedy decoding takes the best of the scores.
    let greedy = read(engine.submit(chat())?)?;
    let whole = [ids.clone(), greedy.tokens.clone()].concat();
    let scores = engine.score(&whole, 1)?;
    assert_eq!((scores.nll.len(), scores.top.len()), (whole.len() - 1, whole.len()));
    let best: Vec<TokenId> = scores.top[ids.len() - 1..whole.len() - 1].iter().map(|top| top[0].0).collect();
    assert_eq!(best, greedy.tokens);
    let gemma = builder(&self::made(tiny::gemma3()?)?.path).build()?;
    let refused = gemma.submit(chat()).err().ok_or("accepted")?;
    assert!(matches!(refused, Error::NoChatTemplate { .. }), "{refused}");
    books_are_closed(&engine)?;
    Ok(())
}

#[test]
fn a_template_of_one_s_own_stands_in_for_the_file_s() -> Outcome {
    let own = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}{{ messages[0].content }}";
    // The one has a template, the other has none.
    for made in [made(tiny::llama()?)?, made(tiny::gemma3()?)?] {
        let engine = builder(&made.path).chat_template(own).build()?;
        let ids = engine.prompt_ids(&Request::chat(vec![Message::new("user", "den")]))?;
        let text: String = ids.iter().filter_map(|&id| engine.vocab().piece(id)).collect();
        assert!(text.ends_with("den") && !text.contains("user"), "{text}");
        assert_eq!(engine.chat_format(), ottava::chat::ChatFormat::of_template(own));
        let broken = builder(&made.path).chat_template("{% for %}").build();
        assert!(matches!(broken, Err(Error::Text(_))), "{broken:?}");
    }
    Ok(())
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_by_its_length() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let blanks = || " ".repeat(5 << 20);
    // The longest piece has 13 bytes, so the text has so many tokens at least; no more is looked at.
    let least = (5_usize << 20).div_ceil("<|endoftext|>".len());
    let halves = vec![Message::new("system", " ".repeat(2 << 20)), Message::new("user", " ".repeat(3 << 20))];
    for request in
        [Request::text(blanks()), Request::chat(vec![Message::new("user", blanks())]), Request::chat(halves)]
    {
        for error in [engine.prompt_ids(&request).err(), engine.submit(request.clone()).err()] {
            let error = error.ok_or("accepted")?;
            let told = format!("the prompt has at least {least} tokens, the context {CONTEXT}");
            assert_eq!(error.to_string(), told);
            assert!(matches!(error, Error::Submit(SubmitError::TooLong { .. })));
        }
    }
    let ids = vec![TokenId(5); CONTEXT + 1];
    let error = engine.prompt_ids(&Request::tokens(ids)).err().ok_or("accepted")?;
    assert!(matches!(error, Error::Submit(SubmitError::TooLong { tokens, .. }) if tokens == CONTEXT + 1));
    // Exactly the context can be scored; a request needs room for an answer.
    let text = "q".repeat(CONTEXT);
    let ids = engine.prompt_ids(&Request::text(text.clone()))?;
    assert_eq!((ids.len(), engine.score(&ids, 0)?.nll.len()), (CONTEXT, CONTEXT - 1));
    assert!(engine.submit(Request::text(text)).is_err());
    let error = engine.prompt_ids(&Request::text("q".repeat(CONTEXT + 1))).err().ok_or("accepted")?;
    assert!(matches!(error, Error::Submit(SubmitError::TooLong { tokens, .. }) if tokens == CONTEXT + 1));
    Ok(())
}

#[test]
fn a_badly_written_vocabulary_runs_and_is_told() -> Outcome {
    let rows = tiny::vocabulary::byte_level().tokens.len();
    let outside = tiny::llama_with(256, |vocabulary| {
        vocabulary.say("tokenizer.ggml.eos_token_id", (rows as u32).into());
        vocabulary.mark("<|im_end|>", 1);
    })?;
    let made = made(outside)?;
    let engine = builder(&made.path).build()?;
    let [kind, id] = engine.info().warnings.as_slice() else { return Err("two warnings".into()) };
    assert!(
        kind.contains("\"<|im_end|>\" is taken for a control token") && kind.contains("tiny.gguf"),
        "{kind}"
    );
    assert!(id.contains(&format!("expected a token id below {rows}, found {rows}")), "{id}");
    assert_eq!(engine.vocab().eos(), None);
    // Chats end at the marker though the file calls it text and names no end.
    let marker = engine.vocab().find("<|im_end|>").ok_or("no marker")?;
    assert!(engine.vocab().stop_ids().contains(&marker));
    let good = builder(&self::made(tiny::llama()?)?.path).build()?;
    let chat = || Request::chat(vec![Message::new("user", "sing")]).max_tokens(8);
    assert_eq!(engine.prompt_ids(&chat())?, good.prompt_ids(&chat())?);
    assert_eq!(good.info().warnings, Vec::<String>::new());
    read(engine.submit(chat())?)?;
    Ok(())
}

/// Whatever the door, what people type is text, unless the author of a whole prompt says otherwise.
#[test]
fn control_tokens_are_obeyed_only_where_the_author_says_so() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let marker = engine.vocab().find("<|im_end|>").ok_or("no marker")?;
    let has_marker = |request: &Request| Ok::<_, Error>(engine.prompt_ids(request)?.contains(&marker));
    let text = Request::text("sing<|im_end|>");
    assert!(!has_marker(&text)?);
    assert!(has_marker(&text.parse_control_tokens())?);
    let chat = |text: &str| {
        let answer = RenderOptions::default().without_generation_prompt();
        Request::chat([Message::new("user", text)]).template(answer)
    };
    let count = |request: &Request| {
        Ok::<_, Error>(engine.prompt_ids(request)?.iter().filter(|id| **id == marker).count())
    };
    assert_eq!((count(&chat("sing"))?, count(&chat("sing<|im_end|>"))?), (1, 1));
    Ok(())
}

#[test]
fn a_request_that_makes_no_sense_is_refused_by_its_field() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let user = || Message::new("user", "sing");
    let refusals = [
        (Request::chat([]), "messages", "messages: expected at least 1, found none"),
        (Request::chat([user(), Message::new("wizard", "sing")]), "messages", "message 1: expected a role"),
        (Request::chat([Message::new("x\ny".repeat(99), "sing")]), "messages", "message 0: expected a role"),
        (Request::text("sing").template(RenderOptions::default()), "template", "found none"),
        (Request::chat([user()]).parse_control_tokens(), "parse_control_tokens", "found another prompt"),
        (Request::text("sing").top_p(0.0), "top_p", "above 0, at most 1"),
    ];
    for (request, field, told) in refusals {
        let error = engine.submit(request).err().ok_or("accepted")?;
        let text = error.to_string();
        assert!(text.contains(told) && text.len() < 200 && !text.contains('\n'), "{text}");
        assert_eq!((error.kind(), error.field()), (ottava::ErrorKind::Invalid, Some(field)), "{text}");
    }
    for role in ["system", "user", "assistant", "tool"] {
        assert!(engine.prompt_ids(&Request::chat([Message::new(role, "sing")])).is_ok(), "{role}");
    }
    Ok(())
}

/// Only some tokens, and no more than a few.
#[derive(Clone)]
struct Few(Vec<TokenId>);

impl TokenMask for Few {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        // What one answer used up must not be missing in the next.
        self.0.retain(|id| !answer.contains(id));
        allowed.extend(self.0.iter().copied());
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        answer.len() == 3
    }
}

#[test]
fn a_mask_is_one_line_of_a_request_and_new_for_each_answer() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let few: Vec<TokenId> = engine.prompt_ids(&Request::text("qxz"))?;
    assert_eq!(few.len(), 3);
    let request = Request::text("the den").temperature(1.0).seed(3).mask(Few(few.clone()));
    for _ in 0..2 {
        let mut answer = read(engine.submit(request.clone())?)?;
        assert_eq!((answer.finish, answer.text.len()), (FinishReason::Mask, 3));
        answer.tokens.sort();
        let mut expected = few.clone();
        expected.sort();
        assert_eq!(answer.tokens, expected, "each once");
    }
    Ok(())
}

#[test]
fn labels_are_as_likely_as_their_tokens_behind_the_prompt() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let request = Request::chat([Message::new("user", &*"the den ".repeat(12))]);
    let prompt = engine.prompt_ids(&request)?;
    let labels = ["sing", "the hero", "q"];
    let found = engine.choose(&request, &labels)?;
    let before = engine.stats().prefill_tokens;
    assert_eq!(engine.choose(&request, &labels)?, found);
    let computed = engine.stats().prefill_tokens - before;
    assert!(computed < 3 * (16 + 8), "{computed} tokens of prompts of {}", prompt.len());
    for (label, found) in labels.iter().zip(found) {
        let tail = engine.tokenizer().encode(label, ottava::text::Special::Text, ottava::text::AddBos::No)?;
        let nll = engine.score(&[&prompt[..], &tail].concat(), 0)?.nll;
        let expected: f64 = nll[prompt.len() - 1..].iter().sum();
        assert!((found + expected).abs() < 1e-9, "{label}: {found} for {expected}");
    }
    let unsalted = engine.stats().cached_tokens;
    let salted = Request::text("the hero ".repeat(12)).cache_salt([7; 32]);
    engine.choose(&salted, &labels)?;
    let plain = engine.submit(Request::text("the hero ".repeat(12)).max_tokens(1))?.text()?;
    assert_eq!(plain.usage.cached_tokens, 0, "a salted prompt is nobody else's");
    assert_eq!(engine.stats().cached_tokens, unsalted);
    let empty = engine.choose(&Request::tokens(Vec::new()), &labels).err().ok_or("accepted")?;
    assert_eq!(empty.field(), Some("prompt"), "{empty}");
    for labels in [&[][..], &["sing", ""]] {
        let error = engine.choose(&request, labels).err().ok_or("accepted")?;
        assert_eq!((error.kind(), error.field()), (ottava::ErrorKind::Invalid, Some("labels")), "{error}");
    }
    Ok(())
}

#[test]
fn tools_are_checked_wherever_a_request_brings_them() -> Outcome {
    let model = tiny::llama_with(512, |vocabulary| {
        vocabulary.say("tokenizer.chat_template", "{% if tools %}<tool_call>{% endif %}<think>".into());
        ["<tool_call>", "<think>", "<other>"].into_iter().for_each(|piece| vocabulary.control(piece));
    });
    let engine = builder(&made(model?)?.path).build()?;
    let tools = |name: &str| Tools::new(vec![Tool::new(name, serde_json::json!({}))]);
    let refused = [
        (tools("a b"), "tools"),
        (tools("a").choice(ToolChoice::Named("b".into())), "tool_choice"),
        (Tools::default().choice(ToolChoice::Required), "tool_choice"),
    ];
    for (tools, field) in refused {
        let with = || Request::chat([Message::new("user", "sing")]).tools(tools.clone());
        let errors = [engine.submit(with()).err(), engine.answer(with()).err(), engine.prepare(with()).err()];
        for error in errors {
            let error = error.ok_or("accepted")?;
            assert_eq!((error.kind(), error.field()), (ottava::ErrorKind::Invalid, Some(field)), "{error}");
        }
    }
    // A prepared request is submitted as it is, and further options can be set.
    let asked = Request::chat([Message::new("user", "sing")]).tools(tools("a")).max_tokens(2);
    let prompt = engine.prompt_ids(&asked)?;
    let prepared = engine.prepare(asked)?;
    assert_eq!(prepared.prompt_ids(), prompt);
    assert_eq!(engine.submit(prepared.clone())?.usage().prompt_tokens, prompt.len());
    let again = engine.prepare(Request::from(prepared.clone()).max_tokens(1))?;
    assert_eq!(again.prompt_ids(), prompt);
    assert_eq!(engine.submit(again)?.text()?.tokens.len(), 1);
    // Tools belong to the messages that show them.
    let error = engine.submit(Request::from(prepared.clone()).tools(tools("b"))).err().ok_or("accepted")?;
    assert_eq!(error.field(), Some("tools"), "{error}");
    // The template opens the reasoning at the end of its prompt.
    let parts = prepared.answer_parser().push("Hm.</think>Yes.");
    let expected = [ChatPart::Reasoning("Hm.".into()), ChatPart::Text("Yes.".into())];
    assert_eq!(parts[..], expected);
    // Each time the same, with calls and without.
    for _ in 0..2 {
        for (tools, markers) in
            [(Tools::default(), &["<think>"][..]), (tools("a"), &["<tool_call>", "<think>"])]
        {
            let found = engine.marker_tokens(&tools);
            let pieces: Vec<_> = found.iter().filter_map(|&id| engine.vocab().piece(id)).collect();
            assert_eq!(pieces, markers);
        }
    }
    Ok(())
}

#[test]
fn an_engine_prints_in_one_line() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let told = format!("{engine:?}");
    assert!(told.starts_with("InferenceEngine { model: \"tiny llama\""), "{told}");
    assert!(told.len() < 300 && !told.contains('\n'), "{told}");
    Ok(())
}

/// Names of fields are what services print; a change of one is a break.
#[cfg(feature = "serde")]
#[test]
fn what_services_print_is_serialised() -> Outcome {
    let engine = builder(&made(tiny::llama()?)?.path).build()?;
    let answer = read(engine.submit(Request::text("sing").max_tokens(2).ignore_eos())?)?;
    let usage = serde_json::json!({ "prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 2 });
    assert_eq!(serde_json::to_value(answer.usage)?, usage);
    assert_eq!(serde_json::to_value(answer.finish)?, "length");
    assert_eq!(serde_json::to_value(engine.stats())?["finished"], 1);
    assert_eq!(serde_json::to_value(engine.info())?["name"], "tiny llama");
    assert!(serde_json::to_value(answer.timings)?["first_token_s"].as_f64().is_some_and(|s| s > 0.0));
    assert_eq!(serde_json::to_value(engine.info())?["device"], "cpu");
    Ok(())
}

#[test]
fn two_hundred_run_at_once_where_asked_for_and_what_was_granted_is_told() -> Outcome {
    let made = made(tiny::llama()?)?;
    let config = EngineConfig { sequences_max: 200, ..EngineConfig::default() };
    let described = builder(&made.path).kv(KvBudget::Contexts(100)).scheduling(config);
    let estimate = described.estimate()?;
    let engine = described.build()?;
    let info = engine.info();
    assert_eq!((info.device, info.sequences_max, info.context_max), (Device::Cpu, 200, CONTEXT));
    assert_eq!(info.memory.kv_bytes, info.kv_pages * page_bytes(&engine));
    assert_eq!(info.kv_pages, 100 * CONTEXT / 16);
    let (found, about) = (info.memory, estimate);
    assert_eq!((about.kv_bytes, about.arena_bytes), (found.kv_bytes, found.arena_bytes));
    let near = (about.weight_bytes as f64 / found.weight_bytes as f64 - 1.0).abs();
    assert!(near < 0.25, "weights of {} bytes, reckoned as {}", found.weight_bytes, about.weight_bytes);
    engine.start_profile()?;
    let request =
        |index: u32| Request::tokens(vec![TokenId(5 + index), TokenId(9)]).max_tokens(20).ignore_eos();
    let crowd = (0..200).map(|index| engine.submit(request(index))).collect::<Result<Vec<_>, _>>()?;
    for generation in crowd {
        assert_eq!(read(generation)?.tokens.len(), 20);
    }
    let decode = engine.take_profile()?.decode;
    assert!(decode.tokens > 100 * decode.steps, "{} tokens in {} steps", decode.tokens, decode.steps);
    Ok(())
}
