//! The service over a tiny model.

#[path = "../../tiny/mod.rs"]
mod tiny;

use std::time::{Duration, Instant};

use dependent::{
    block_on, finish_of, finish_of_stream, gives_up_after, is_ready, only, page, refusal, shut_down, status,
};
use ottava::engine::FinishReason;
use ottava::{Device, Engine, ErrorKind, KvBudget, Request};

#[test]
fn a_service_loads_refuses_and_ends_by_kinds() -> tiny::Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    let missing = Engine::builder(&path).device(Device::Cpu).build().err().ok_or("there is no file")?;
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    std::fs::write(&path, b"no model")?;
    let bad = Engine::builder(&path).device(Device::Cpu).build().err().ok_or("it is no model")?;
    assert_eq!((bad.kind(), status(&bad)), (ErrorKind::BadModel, 500), "{bad}");
    std::fs::write(&path, tiny::llama()?)?;
    let builder = || Engine::builder(&path).device(Device::Cpu);
    let long = builder().context_max(1 << 20).build().err().ok_or("the model has less")?;
    let said = String::from_utf8(page(&long)?.to_vec())?;
    assert!(said.starts_with("400 context_max: a context of 1048576 tokens"), "{said}");
    let large = builder().kv(KvBudget::Bytes(1 << 60)).build().err();
    assert!(large.is_none_or(|error| status(&error) == 503), "no machine has that much");

    let engine = builder().build()?;
    assert!(is_ready(&engine));
    assert_eq!(engine.info().device, Device::Cpu);
    let text = || Request::text("the hero").max_tokens(4).ignore_eos();
    assert_eq!(refusal(&engine, text().temperature(-1.0)), Some((400, Some("temperature"))));
    assert_eq!(refusal(&engine, text().max_tokens(0)), Some((400, Some("max_tokens"))));
    assert_eq!(refusal(&engine, Request::text("the hero ".repeat(2000))), Some((413, Some("prompt"))));
    let running = engine.submit(text())?;
    assert_eq!(shut_down(&engine), 0);
    drop(running);
    assert!(!is_ready(&engine));
    assert_eq!(refusal(&engine, text()), Some((503, None)));
    Ok(())
}

/// What a deadline may take on a machine that does much else; what it is to take is 100 ms.
const PATIENCE: Duration = Duration::from_secs(2);

#[test]
fn a_deadline_ends_a_long_prompt_for_threads_and_tasks() -> tiny::Outcome {
    const CONTEXT: usize = 1 << 16;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama_of(CONTEXT)?)?;
    let engine = Engine::builder(&path).device(Device::Cpu).context_max(CONTEXT).build()?;
    let long = || {
        let ids = (0..CONTEXT as u32 - 100).map(|id| ottava::TokenId(id * 7 % 100));
        Request::tokens(ids.collect()).max_tokens(4).ignore_eos()
    };
    let soon =
        |request: Request| (Instant::now(), request.deadline(Instant::now() + Duration::from_millis(50)));

    let (started, request) = soon(long());
    assert_eq!(finish_of(engine.submit(request)?)?, FinishReason::Deadline);
    let threads = started.elapsed();
    let (started, request) = soon(long());
    assert_eq!(block_on(finish_of_stream(engine.submit(request)?))?, FinishReason::Deadline);
    let tasks = started.elapsed();
    let started = Instant::now();
    assert!(gives_up_after(engine.submit(long())?, Duration::from_millis(50)), "a long prompt takes longer");
    let reader = started.elapsed();
    println!("50 ms of a long prompt: a thread {threads:?}, a task {tasks:?}, a reader {reader:?}");
    for taken in [threads, tasks, reader] {
        assert!(taken < PATIENCE, "a deadline of 50 ms took {taken:?}");
    }
    Ok(())
}

#[test]
fn an_answer_can_be_made_of_a_few_tokens() -> tiny::Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    let engine = Engine::builder(&path).device(Device::Cpu).build()?;
    let few = engine.prompt_ids(&Request::text("the den"))?;
    let request = Request::text("the hero").max_tokens(6).temperature(1.0).ignore_eos();
    let answer = engine.submit(only(request, few.clone()))?.text()?;
    assert_eq!(answer.tokens.len(), 6);
    assert!(answer.tokens.iter().all(|token| few.contains(token)), "{answer:?} of {few:?}");
    Ok(())
}
