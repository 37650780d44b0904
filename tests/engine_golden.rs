//! The engine on a real model: whatever the scheduling, the greedy tokens are the same.
//!
//! `real_models` finds the models; without them the program's last lines say what was not run.

#![cfg(feature = "text")]

mod real_models;

use ottava::engine::{FinishReason, Generation};
use ottava::text::Message;
use ottava::{Device, Engine, EngineBuilder, EngineConfig, KvBudget, Request, TokenId};

const PROMPTS: [&str; 4] = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "In the beginning of the nineteenth century, the city was small, and its people lived from fishing.",
];
const TOKENS: usize = 24;

fn builder(name: &str) -> Option<EngineBuilder> {
    Some(Engine::builder(real_models::path(name)?).context_max(1024).device(Device::Cpu))
}

fn finish(generation: Generation) -> (Vec<TokenId>, String, FinishReason, usize) {
    let answer = generation.text().expect("the generation goes well");
    (answer.tokens, answer.text, answer.finish, answer.usage.cached_tokens)
}

fn greedy(engine: &Engine, prompt: &str) -> Vec<TokenId> {
    finish(engine.submit(Request::text(prompt).max_tokens(TOKENS).ignore_eos()).unwrap()).0
}

fn config(prefill_chunk: usize, share_prefixes: bool) -> EngineConfig {
    EngineConfig { prefill_chunk: Some(prefill_chunk), share_prefixes, ..EngineConfig::default() }
}

fn scheduling_changes_nothing(name: &str) {
    let Some(builder) = builder(name) else { return };
    let alone = builder.clone().scheduling(config(256, false)).build().unwrap();
    let expected: Vec<_> = PROMPTS.iter().map(|prompt| greedy(&alone, prompt)).collect();
    for chunk in [1, 7] {
        let engine = builder.clone().scheduling(config(chunk, false)).build().unwrap();
        for (prompt, expected) in PROMPTS.iter().zip(&expected) {
            assert_eq!(&greedy(&engine, prompt), expected, "prefill in chunks of {chunk}: {prompt}");
        }
    }
    let one_thread = builder.clone().threads(std::num::NonZeroUsize::MIN).build().unwrap();
    assert_eq!(greedy(&one_thread, PROMPTS[2]), expected[2], "one thread");

    // Sixteen at once over room for about three: batching with strangers, preemption, recompute.
    let pages = 3 * (64 + TOKENS).div_ceil(16);
    let config_kv = alone.info().memory.kv_bytes / (2 * 1024 / 16);
    let crowded =
        builder.clone().context_max(96).kv(KvBudget::Bytes((pages * config_kv) as u64)).build().unwrap();
    let generations: Vec<_> = (0..16)
        .map(|i| crowded.submit(Request::text(PROMPTS[i % 4]).max_tokens(TOKENS).ignore_eos()).unwrap())
        .collect();
    for (i, generation) in generations.into_iter().enumerate() {
        assert_eq!(finish(generation).0, expected[i % 4], "in a crowd: {}", PROMPTS[i % 4]);
    }

    // The second time a prompt comes its pages are shared; the answer is the same.
    let sharing = builder.build().unwrap();
    let first = finish(sharing.submit(Request::text(PROMPTS[2]).max_tokens(TOKENS).ignore_eos()).unwrap());
    let again = finish(sharing.submit(Request::text(PROMPTS[2]).max_tokens(TOKENS).ignore_eos()).unwrap());
    assert_eq!((&first.0, first.3), (&expected[2], 0));
    assert_eq!(&again.0, &expected[2]);
    assert!(again.3 >= 16, "at least one page of the prompt is reused, found {} tokens", again.3);

    save_and_restore(&sharing, &alone, &expected[3]);
}

/// What one engine saved another continues from, to the same tokens.
fn save_and_restore(from: &Engine, reference: &Engine, expected: &[TokenId]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.kv");
    let ids = from.prompt_ids(&Request::text(PROMPTS[3])).unwrap();
    from.save_prompt(&ids, &path).unwrap();
    let options = || EngineConfig { share_prefixes: true, ..EngineConfig::default() };
    let to = Engine::builder(&reference.info().path)
        .context_max(1024)
        .device(Device::Cpu)
        .scheduling(options())
        .build()
        .unwrap();
    assert!(to.restore_prompt(&path).unwrap() >= 16);
    let (tokens, _, _, cached) =
        finish(to.submit(Request::text(PROMPTS[3]).max_tokens(TOKENS).ignore_eos()).unwrap());
    assert_eq!(tokens, expected, "restored from a file");
    assert!(cached >= 16, "the restored pages are used, found {cached} tokens");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(to.restore_prompt(&path).is_err(), "a damaged file is refused");
}

#[test]
fn smollm2_scheduling_changes_nothing() {
    scheduling_changes_nothing("smollm2");
}

#[test]
fn gemma3_scheduling_changes_nothing() {
    scheduling_changes_nothing("gemma3");
}

#[test]
fn smollm2_answers_in_its_chat_template_and_stops() {
    let Some(builder) = builder("smollm2") else { return };
    let engine = builder.build().unwrap();
    let messages = vec![Message::new("user", "What is gravity?")];
    let (_, text, reason, _) = finish(engine.submit(Request::chat(messages).max_tokens(200)).unwrap());
    assert!(text.contains("force"), "{text}");
    assert_eq!(reason, FinishReason::Eos);
    assert!(!text.contains("<|im_end|>"), "{text}");
    let messages = vec![Message::new("user", "What is gravity?")];
    let request = Request::chat(messages).max_tokens(200).stop(["force"]);
    let (_, stopped, reason, _) = finish(engine.submit(request).unwrap());
    assert_eq!(reason, FinishReason::Stop);
    assert!(text.starts_with(&stopped) && !stopped.contains("force"), "{stopped}");
}

#[test]
fn equal_seeds_replay_and_others_differ() {
    let Some(builder) = builder("smollm2") else { return };
    let engine = builder.build().unwrap();
    let sample = |seed| {
        finish(
            engine.submit(Request::text("My favourite").max_tokens(40).temperature(1.0).seed(seed)).unwrap(),
        )
        .0
    };
    assert_eq!(sample(7), sample(7));
    assert_ne!(sample(7), sample(8));
}
