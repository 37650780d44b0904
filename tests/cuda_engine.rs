//! The engine on the CUDA backend, with tiny models made here: what the CPU scores, crowds,
//! cancelled readers, memory that runs out, and a device that is lost or hangs in a step. On the emulated
//! driver or, with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(all(feature = "cuda", feature = "text"))]

mod real_models;
mod tiny;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_emu::{DeviceConfig, Emulator, Injection, InstallOptions};
use ottava::backend::BackendError;
use ottava::backend::cpu::Compute;
use ottava::checkpoint::TensorType;
use ottava::engine::{EngineFailure, EngineState};
use ottava::ir::OpKind;
use ottava::model::ModelError;
use ottava::session::SessionError;
use ottava::{Device, Engine, EngineBuilder, EngineConfig, Error, ErrorKind, Request, TokenId};
use tiny::{Outcome, Tiny};

/// The card, for one test at a time.
fn card() -> (Emulator, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    let device = DeviceConfig { memory_bytes: 1 << 30, ..options.device.clone() };
    let emulator = cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator");
    // A real card is as the tests before have left it.
    let _ = emulator.reset();
    (emulator, turn)
}

/// The same where faults can be injected, which they cannot be into a real card.
fn card_with_faults() -> Option<(Emulator, MutexGuard<'static, ()>)> {
    let card = card();
    if !card.0.is_emulated() {
        real_models::not_run("tests with faults, which are injected into the emulator only".into());
        return None;
    }
    Some(card)
}

/// A model's file in a folder that lives as long as this does.
struct Made {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn made(bytes: Vec<u8>) -> Outcome<Made> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, bytes)?;
    Ok(Made { _folder: folder, path })
}

fn builder(path: &Path, device: Device) -> EngineBuilder {
    Engine::builder(path).context_max(128).device(device).compute(Compute::F32)
}

fn tokens(engine: &Engine, request: Request) -> Outcome<Vec<TokenId>> {
    Ok(engine.submit(request)?.text()?.tokens)
}

fn request(index: usize) -> Request {
    let text: String = "the thing in the den of a hero ".chars().cycle().skip(5 * index).take(20).collect();
    Request::text(text).max_tokens(4 + index).ignore_eos()
}

#[test]
fn scores_are_those_of_the_cpu() -> Outcome {
    let (emulator, _turn) = card();
    for bytes in [tiny::llama()?, tiny::gemma3()?] {
        let made = made(bytes)?;
        let (cpu, cuda) =
            (builder(&made.path, Device::Cpu).build()?, builder(&made.path, Device::Cuda(0)).build()?);
        assert!(cuda.info().device == Device::Cuda(0), "{:?}", cuda.info());
        // A prompt of many tokens in one step, and of few.
        for count in [70, 9] {
            let ids: Vec<TokenId> = (0..count).map(|i| TokenId(i * 37 % 250)).collect();
            let want = cpu.score(&ids, 0)?.nll;
            for seed in 0..3 {
                // The order of the card's work; a real one has its own.
                let _ = emulator.set_seed(seed);
                let found = cuda.score(&ids, 0)?.nll;
                for (i, (want, found)) in want.iter().zip(&found).enumerate() {
                    let near = (want - found).abs() < 0.01 * want.abs();
                    assert!(near, "token {i} of {count}: {found} for {want}, seed {seed}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn smollm2_goes_on_as_on_the_cpu() -> Outcome {
    let Some(path) = real_models::path("smollm2") else { return Ok(()) };
    let _card = card();
    let [cpu, cuda] = [Device::Cpu, Device::Cuda(0)].map(|device| builder(&path, device).build());
    let (cpu, cuda) = (cpu?, cuda?);
    // All of them agree; two are enough for an emulated card.
    for case in &real_models::golden("smollm2.json")[..2] {
        let ids = case["tokens"].as_array().ok_or("tokens")?.iter().filter_map(serde_json::Value::as_u64);
        let ids: Vec<TokenId> = ids.map(|id| TokenId(id as u32)).collect();
        let request = || Request::tokens(ids.clone()).max_tokens(16).ignore_eos();
        assert_eq!(tokens(&cuda, request())?, tokens(&cpu, request())?, "{}", case["name"]);
    }
    Ok(())
}

#[test]
fn a_crowd_gets_the_tokens_of_a_solo_run_and_the_cancelled_leave_nothing() -> Outcome {
    let (emulator, _turn) = card();
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    let alone: Vec<_> = (0..6).map(|index| tokens(&engine, request(index))).collect::<Outcome<_>>()?;
    for seed in 0..3 {
        let _ = emulator.set_seed(seed);
        let crowd = (0..6).map(|index| engine.submit(request(index))).collect::<Result<Vec<_>, _>>()?;
        for (index, generation) in crowd.into_iter().enumerate() {
            assert_eq!(generation.text()?.tokens, alone[index], "request {index}, seed {seed}");
        }
    }
    for index in 0..1000 {
        let mut generation = engine.submit(request(index % 6).max_tokens(100))?;
        if index % 3 == 0 {
            let _ = generation.recv();
        }
        drop(generation);
    }
    // Jobs are answered in order, so all cancellations have been seen.
    engine.check_integrity()?;
    assert_eq!(tokens(&engine, request(5))?, alone[5], "behind the cancelled");
    assert_eq!(engine.stats().pages_used, 0, "{:?}", engine.stats());
    Ok(())
}

/// A card samples and feeds itself; where the host wants to see log-probabilities it samples the same
/// logits. Penalties look back at tokens, so they keep the host in step.
#[test]
fn the_card_samples_what_the_host_would() -> Outcome {
    let (emulator, _turn) = card();
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    let warm = || request(3).max_tokens(24).temperature(0.9).seed(11);
    let kinds = [
        warm(),
        warm().temperature(0.0),
        warm().top_k(20).top_p(0.9).min_p(0.02),
        warm().logit_bias([(TokenId(7), 4.0), (TokenId(9), f32::NEG_INFINITY)]),
        warm().repetition_penalty(1.3).frequency_penalty(0.4).presence_penalty(0.2),
    ];
    let waits = || emulator.calls().get("cuStreamSynchronize").copied().unwrap_or(0);
    for (index, kind) in kinds.into_iter().enumerate() {
        let request = || kind.clone();
        let before = waits();
        let on_card = tokens(&engine, request())?;
        let between = waits();
        let on_host = tokens(&engine, request().top_logprobs(1))?;
        assert_eq!(on_card, on_host, "kind {index}");
        if emulator.is_emulated() {
            let (card, host) = (between - before, waits() - between);
            assert!(card <= 4 && host >= 24, "waits for the whole stream: {card} and {host}");
        }
    }
    Ok(())
}

/// Operations then run one by one, steps that are fed the tokens of the one before among them.
#[test]
fn a_profile_changes_no_token_and_counts_the_work() -> Outcome {
    let _card = card();
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    let unseen = tokens(&engine, request(3))?;
    engine.start_profile()?;
    assert_eq!(tokens(&engine, request(3))?, unseen);
    let decode = engine.take_profile()?.decode;
    assert_eq!((decode.steps, decode.tokens), (6, 6), "the first of seven tokens is the prompt's");
    let matmul = decode.ops[OpKind::Matmul as usize];
    assert_eq!(matmul.work.bytes, 6 * engine.info().step_weight_bytes as u64);
    assert!(decode.host() > Duration::ZERO && matmul.total > Duration::ZERO, "{decode:?}");
    Ok(())
}

/// Up to 600 rows at once, as the larger tiles want them. A chunk is as long as the backend likes it, or as it
/// was asked for; no room is taken for more than the cache holds.
#[test]
fn prompts_are_cut_into_the_chunks_of_the_backend() -> Outcome {
    let _card = card();
    let made = made(tiny::llama_of(2048)?)?;
    let ids: Vec<TokenId> = (0..600).map(|i| TokenId(i * 37 % 250)).collect();
    let run = |device, prefill_chunk| -> Outcome<_> {
        let config = EngineConfig { prefill_chunk, ..EngineConfig::default() };
        let engine = builder(&made.path, device).context_max(2048).scheduling(config).build()?;
        engine.start_profile()?;
        let found = tokens(&engine, Request::tokens(ids.clone()).max_tokens(3).ignore_eos())?;
        Ok((engine.take_profile()?.prefill.steps, found))
    };
    let (steps, want) = run(Device::Cpu, None)?;
    assert_eq!(steps, 3, "256 tokens a step");
    for (prefill_chunk, steps) in [(None, 1), (Some(512), 2), (Some(100), 6), (Some(1 << 20), 1)] {
        assert_eq!(run(Device::Cuda(0), prefill_chunk)?, (steps, want.clone()), "{prefill_chunk:?}");
    }
    Ok(())
}

#[test]
fn batch_invariant_scores_depend_neither_on_a_crowd_nor_on_chunks() -> Outcome {
    let _card = card();
    let ids: Vec<TokenId> = (0..90).map(|i| TokenId(i * 37 % 250)).collect();
    for bytes in [tiny::llama()?, tiny::gemma3()?] {
        let made = made(bytes)?;
        let mut scores = Vec::new();
        for prefill_chunk in [7, 40, 256].map(Some) {
            let config = EngineConfig { prefill_chunk, ..EngineConfig::default() };
            let builder = builder(&made.path, Device::Cuda(0)).batch_invariant().scheduling(config);
            let engine = builder.build()?;
            scores.push(engine.score(&ids, 0)?.nll);
            let crowd = (0..3).map(|index| engine.submit(request(index).max_tokens(60)));
            let crowd = crowd.collect::<Result<Vec<_>, _>>()?;
            scores.push(engine.score(&ids, 0)?.nll);
            drop(crowd);
        }
        assert!(scores.iter().all(|score| *score == scores[0]), "{scores:?}");
    }
    Ok(())
}

/// A model of one layer, with so many tokens that a bias for each is more than a step's tables hold at first.
fn one_layer() -> Outcome<Made> {
    const VOCAB: usize = 600;
    let mut vocabulary = tiny::vocabulary::byte_level();
    vocabulary.pad(VOCAB);
    let tiny = Tiny {
        vocab: VOCAB,
        family: "llama",
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rope_dims: 8,
        tied: true,
        window: 0,
        dtype: TensorType::F16,
    };
    made(tiny::file_with(&tiny, &[], |writer| {
        vocabulary.describe(writer);
        Ok(())
    })?)
}

/// How often a function of the driver was called.
fn calls(emulator: Emulator, name: &str) -> i64 {
    emulator.calls().get(name).map_or(0, |&count| count as i64)
}

/// Calls that take something from the driver, less those that give it back.
fn held(emulator: Emulator) -> i64 {
    let pairs = [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
    ];
    pairs.map(|(taken, given)| calls(emulator, taken) - calls(emulator, given)).iter().sum()
}

#[test]
fn a_load_that_finds_no_memory_says_so_and_keeps_nothing() -> Outcome {
    let Some((emulator, _turn)) = card_with_faults() else { return Ok(()) };
    let made = one_layer()?;
    let mut faults = 0;
    let before = held(emulator);
    let engine = loop {
        emulator.inject(Injection::OutOfMemory { allocation: faults + 1 })?;
        match builder(&made.path, Device::Cuda(0)).build() {
            Ok(engine) => break engine,
            Err(Error::Model(
                ModelError::Backend(error) | ModelError::Session(SessionError::Backend(error)),
            )) => {
                assert!(matches!(error, BackendError::OutOfMemory { .. }), "allocation {faults}: {error}");
            }
            Err(error) => return Err(error.into()),
        }
        faults += 1;
        // The calls that failed were counted and have nothing to give back.
        assert_eq!(held(emulator) - before, faults as i64, "after allocation {faults} failed");
    };
    assert!(faults >= 20, "matrices, vectors, an arena and a cache are more than {faults} allocations");
    assert_eq!(tokens(&engine, request(0))?.len(), 4);
    engine.drain(Instant::now());
    assert_eq!(held(emulator) - before, faults as i64, "after an engine that lived");
    Ok(())
}

#[test]
fn a_step_that_finds_no_memory_fails_its_request_and_no_other() -> Outcome {
    let Some((emulator, _turn)) = card_with_faults() else { return Ok(()) };
    let made = one_layer()?;
    let build = || builder(&made.path, Device::Cuda(0)).build();
    // Longer tables, page-locked twice and on the device, and a past that is split.
    let grows = |repetition_penalty| {
        let ids = (0..70).map(|i| TokenId(i * 37 % 250)).collect::<Vec<_>>();
        let biases = (0..600).map(|id| (TokenId(id), (id % 7) as f32));
        let request = Request::tokens(ids).max_tokens(4).ignore_eos();
        request.repetition_penalty(repetition_penalty).logit_bias(biases)
    };
    let engine = build()?;
    let want = [tokens(&engine, grows(1.3))?, tokens(&engine, grows(1.0))?, tokens(&engine, request(0))?];
    let mut faults = 0;
    loop {
        let engine = build()?;
        emulator.inject(Injection::OutOfMemory { allocation: faults + 1 })?;
        // A penalty keeps the host in step.
        match tokens(&engine, grows(1.3)) {
            Ok(found) => {
                assert_eq!(found, want[0]);
                break;
            }
            Err(error) => assert!(error.to_string().contains("no memory for"), "{error}"),
        }
        faults += 1;
        assert_eq!(tokens(&engine, request(0))?, want[2], "another after allocation {faults} failed");
        assert_eq!(tokens(&engine, grows(1.3))?, want[0], "the same again after allocation {faults} failed");
        assert_eq!(engine.stats().pages_used, 0);
    }
    assert_eq!(faults, 4);

    // Without one the last of them is of the step ahead: that is run again when its turn has come.
    emulator.reset()?;
    let (engine, before) = (build()?, calls(emulator, "cuMemAlloc_v2"));
    emulator.inject(Injection::OutOfMemory { allocation: 4 })?;
    assert_eq!(tokens(&engine, grows(1.0))?, want[1]);
    assert_eq!(calls(emulator, "cuMemAlloc_v2") - before, 3, "tables, parts of splits, and these again");
    Ok(())
}

/// A card without a watchdog runs such a kernel for ever: who reads its tokens waits, and nobody else.
#[test]
fn a_device_that_hangs_holds_its_readers_only() -> Outcome {
    let Some((emulator, _turn)) = card_with_faults() else { return Ok(()) };
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    emulator.inject(Injection::NeverEnds { launch: 1, stopped_after: Duration::from_secs(3600) })?;
    let hangs = engine.submit(request(0))?;
    let started = Instant::now();
    while engine.stats().running == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "it never ran");
        std::thread::sleep(Duration::from_millis(1));
    }
    // These come back, whatever they say.
    let late = engine.submit(request(1))?;
    late.cancel();
    let _ = engine.health();
    assert_eq!((engine.stats().running, emulator.last_fault()), (1, None));
    drop((hangs, late));
    // A way out that a card does not have. What the step has left undone is read before the engine ends.
    emulator.reset()?;
    engine.drain(Instant::now());
    drop(engine);
    emulator.reset()?;
    Ok(())
}

#[test]
fn a_kernel_that_the_driver_stops_fails_every_request() -> Outcome {
    fails_all(Injection::NeverEnds { launch: 40, stopped_after: Duration::from_millis(50) }, "LAUNCH_TIMEOUT")
}

#[test]
fn a_device_lost_under_way_fails_every_request_and_hangs_none() -> Outcome {
    fails_all(Injection::Error { launch: 40, code: 700 }, "ILLEGAL_ADDRESS")
}

/// What is injected ends all requests with an error of that name, those that come later too.
fn fails_all(injection: Injection, name: &str) -> Outcome {
    let Some((emulator, _turn)) = card_with_faults() else { return Ok(()) };
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    tokens(&engine, request(1))?;
    emulator.inject(injection)?;
    let crowd = (0..4).map(|index| engine.submit(request(index))).collect::<Result<Vec<_>, _>>()?;
    for generation in crowd {
        let error = generation.text().err().ok_or("an error")?.to_string();
        assert!(error.contains(&format!("CUDA_ERROR_{name}")) && error.contains("lost"), "{error}");
    }
    assert!(
        matches!(engine.state(), EngineState::Dead(EngineFailure::DeviceLost(_))),
        "{:?}",
        engine.state()
    );
    let refused = engine.submit(request(2)).err().ok_or("a lost device stays lost")?;
    assert_eq!(refused.kind(), ErrorKind::DeviceLost, "{refused}");
    Ok(())
}
