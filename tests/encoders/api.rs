//! `Embedder`: options, refusals, threads.

use std::io::Write as _;

use ottava::api::{Compute, EmbedError, Pooling};
use ottava::{EmbedOptions, Embedder, EmbedderBuilder, Error, ErrorKind, TokenId};

use crate::{GOLDENS, Golden, Outcome, distance};

/// A golden's file on disk.
fn on_disk(golden: &Golden) -> Outcome<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile()?;
    file.write_all(golden.file)?;
    Ok(file)
}

fn builder(file: &tempfile::NamedTempFile) -> EmbedderBuilder {
    Embedder::builder(file.path()).compute(Compute::F32)
}

fn unit(vector: &[f32]) -> Vec<f64> {
    vector.iter().map(|&x| f64::from(x)).collect()
}

#[test]
fn vectors_are_cut_and_scaled_on_request() -> Outcome {
    let (file, ids) = (on_disk(&GOLDENS[0])?, GOLDENS[0].tokens()?);
    let embedder = builder(&file).build()?;
    let info = embedder.info();
    assert_eq!((info.pooling, info.dimensions, info.context_max), (Pooling::Mean, 64, 64));
    let found = embedder.embed([&ids], &EmbedOptions::new())?;
    assert!(distance(&unit(&found.vectors[0]), &GOLDENS[0].embedding()?) < 1e-4);
    assert_eq!(found.tokens, [48]);
    let cut = embedder.embed([&ids], &EmbedOptions::new().dimensions(8))?;
    let length: f64 = unit(&cut.vectors[0]).iter().map(|x| x * x).sum();
    assert!(cut.vectors[0].len() == 8 && (length - 1.0).abs() < 1e-6);
    let ratio = cut.vectors[0][0] / found.vectors[0][0];
    assert!((cut.vectors[0][7] / found.vectors[0][7] / ratio - 1.0).abs() < 1e-4);
    let whole = embedder.embed([&ids], &EmbedOptions::new().unnormalized())?;
    let length: f64 = unit(&whole.vectors[0]).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() > 1e-3);
    Ok(())
}

#[test]
fn bad_input_is_a_typed_error() -> Outcome {
    let file = on_disk(&GOLDENS[0])?;
    let embedder = builder(&file).build()?;
    let options = EmbedOptions::new;
    let failed = |ids: Vec<TokenId>, options: &EmbedOptions| match embedder.embed([&ids], options) {
        Err(Error::Embed(error)) => Ok(error),
        other => Err(format!("{other:?}")),
    };
    let long = vec![TokenId(7); 65];
    assert!(matches!(failed(Vec::new(), &options())?, EmbedError::Empty { index: 0 }));
    let error = failed(long.clone(), &options())?;
    assert!(matches!(error, EmbedError::TooLong { index: 0, tokens: 65, context_max: 64 }));
    assert_eq!(error.kind(), ErrorKind::TooLong);
    assert!(matches!(failed(vec![TokenId(512)], &options())?, EmbedError::Token { token: 512, .. }));
    for count in [0, 65] {
        let error = failed(vec![TokenId(1)], &options().dimensions(count))?;
        assert!(
            matches!(error, EmbedError::Dimensions { width: 64, .. }) && error.field() == Some("dimensions")
        );
    }
    assert!(matches!(failed(vec![TokenId(1)], &options().prompt("query"))?, EmbedError::Prompt { .. }));
    let cut = embedder.embed([&long], &options().truncate())?;
    assert_eq!(cut.tokens, [64]);
    assert_eq!(cut.vectors, embedder.embed([&long[..64]], &options())?.vectors);
    let error = embedder.rerank(&long[..2], [&long[..2]], &options()).err().ok_or("no reranker")?;
    assert!(error.to_string().contains("expected a reranker"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = builder(&file).context_max(65).build().err().ok_or("beyond the positions")?;
    assert_eq!(error.field(), Some("context_max"));
    Ok(())
}

#[test]
fn a_language_model_embeds_only_if_a_pooling_is_chosen() -> Outcome {
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/families/llama.gguf");
    let error = Embedder::builder(llama).build().err().ok_or("no pooling")?;
    assert!(matches!(error, Error::Embed(EmbedError::NoPooling { .. })), "{error}");
    let embedder = Embedder::builder(llama).pooling(Pooling::Last).build()?;
    let ids = GOLDENS[0].tokens()?;
    assert_eq!(embedder.embed([&ids], &EmbedOptions::new())?.vectors[0].len(), embedder.info().dimensions);
    // Causal: the last row of a prefix does not see what follows.
    let first = Embedder::builder(llama).pooling(Pooling::Cls).build()?;
    let found = first.embed([&ids[..], &ids[..5]], &EmbedOptions::new())?;
    assert_eq!(found.vectors[0], found.vectors[1]);
    let windowed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/families/gemma3.gguf");
    let error = Embedder::builder(windowed).pooling(Pooling::Last).build().err().ok_or("windows")?;
    assert!(error.to_string().contains("attention.sliding_window"), "{error}");
    let file = on_disk(&GOLDENS[0])?;
    let error = ottava::Engine::builder(file.path()).build().err().ok_or("an encoder")?;
    assert!(error.to_string().contains("bert is a text encoder"), "{error}");
    Ok(())
}

#[test]
fn callers_share_an_embedder_and_vectors_do_not_change() -> Outcome {
    let (file, ids) = (on_disk(&GOLDENS[4])?, GOLDENS[4].tokens()?);
    let embedder = builder(&file).build()?;
    let texts: Vec<&[TokenId]> = (0..200).map(|n| &ids[n % 7..8 + n % 40]).collect();
    let want = embedder.embed(texts.iter().copied(), &EmbedOptions::new())?;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (embedder, texts, want) = (embedder.clone(), &texts, &want);
            scope.spawn(move || {
                let found = embedder.embed(texts.iter().copied(), &EmbedOptions::new()).expect("vectors");
                assert_eq!(&found, want);
            });
        }
    });
    for index in [0, 77, 199] {
        let alone = embedder.embed([texts[index]], &EmbedOptions::new())?;
        assert_eq!(alone.vectors[0], want.vectors[index]);
    }
    Ok(())
}

#[cfg(feature = "text")]
#[test]
fn texts_are_encoded_by_the_models_tokenizer() -> Outcome {
    let file = on_disk(&GOLDENS[0])?;
    let embedder = builder(&file).build()?;
    let found = embedder.embed(["the cat", "a: the cat"], &EmbedOptions::new())?;
    let prefixed = embedder.embed(["the cat"], &EmbedOptions::new().prefix("a: "))?;
    assert_eq!(found.vectors[1], prefixed.vectors[0]);
    assert!(found.tokens[0] < found.tokens[1] && found.vectors[0] != found.vectors[1]);
    Ok(())
}
