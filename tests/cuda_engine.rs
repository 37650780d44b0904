//! The engine on the CUDA backend, with tiny models made here: what the CPU scores, crowds,
//! cancelled readers, and a device that is lost under way. On the emulated driver or, with
//! `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(all(feature = "cuda", feature = "text"))]

mod real_models;
mod tiny;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_emu::{DeviceConfig, Emulator, Injection, InstallOptions};
use ottava::backend::cpu::Compute;
use ottava::engine::Event;
use ottava::model::OpKind;
use ottava::{Device, Engine, EngineBuilder, EngineConfig, Request, Sampling, TokenId};
use tiny::Outcome;

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
    Engine::builder().model(path).context_max(128).device(device).compute(Compute::F32)
}

fn tokens(engine: &Engine, request: Request) -> Outcome<Vec<TokenId>> {
    let mut ids = Vec::new();
    for event in engine.submit(request)? {
        if let Event::Token { id, .. } = event? {
            ids.push(id);
        }
    }
    Ok(ids)
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
        assert!(cuda.info().device.starts_with("cuda:0"), "{}", cuda.info().device);
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
            let mut found = Vec::new();
            for event in generation {
                if let Event::Token { id, .. } = event? {
                    found.push(id);
                }
            }
            assert_eq!(found, alone[index], "request {index}, seed {seed}");
        }
    }
    for index in 0..1000 {
        let mut generation = engine.submit(request(index % 6).max_tokens(100))?;
        if index % 3 == 0 {
            let _ = generation.next();
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
    let warm = || Sampling { temperature: 0.9, seed: 11, ..Sampling::default() };
    let kinds = [
        warm(),
        Sampling { temperature: 0.0, ..warm() },
        Sampling { top_k: 20, top_p: 0.9, min_p: 0.02, ..warm() },
        Sampling { logit_bias: vec![(TokenId(7), 4.0), (TokenId(9), f32::NEG_INFINITY)], ..warm() },
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.4, presence_penalty: 0.2, ..warm() },
    ];
    let waits = || emulator.calls().get("cuStreamSynchronize").copied().unwrap_or(0);
    for sampling in kinds {
        let request = || request(3).max_tokens(24).sampling(sampling.clone());
        let before = waits();
        let on_card = tokens(&engine, request())?;
        let between = waits();
        let on_host = tokens(&engine, request().top_logprobs(1))?;
        assert_eq!(on_card, on_host, "{sampling:?}");
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

#[test]
fn batch_invariant_scores_depend_neither_on_a_crowd_nor_on_chunks() -> Outcome {
    let _card = card();
    let ids: Vec<TokenId> = (0..90).map(|i| TokenId(i * 37 % 250)).collect();
    for bytes in [tiny::llama()?, tiny::gemma3()?] {
        let made = made(bytes)?;
        let mut scores = Vec::new();
        for prefill_chunk in [7, 40, 256] {
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

#[test]
fn a_device_lost_under_way_fails_every_request_and_hangs_none() -> Outcome {
    let (emulator, _turn) = card();
    if !emulator.is_emulated() {
        eprintln!("skipped: faults are injected into the emulator only");
        return Ok(());
    }
    let made = made(tiny::llama()?)?;
    let engine = builder(&made.path, Device::Cuda(0)).build()?;
    tokens(&engine, request(1))?;
    emulator.inject(Injection::Error { launch: 40, code: 700 })?;
    let crowd = (0..4).map(|index| engine.submit(request(index))).collect::<Result<Vec<_>, _>>()?;
    for generation in crowd {
        let last = generation.last().ok_or("an end")?;
        let error = last.err().ok_or("an error")?.to_string();
        assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && error.contains("lost"), "{error}");
    }
    let error = tokens(&engine, request(2)).err().ok_or("a lost device stays lost")?.to_string();
    assert!(error.contains("lost"), "{error}");
    Ok(())
}
