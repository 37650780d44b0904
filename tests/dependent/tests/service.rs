//! The service over a tiny model.

#[path = "../../tiny/mod.rs"]
mod tiny;

use dependent::{is_ready, page, refusal, shut_down, status};
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
