//! Text of events, and how generations end.

use super::*;
use crate::text::Vocab;
use crate::weights::{Array, GgufWriter, ModelFile, Value};

/// A SentencePiece vocabulary; pieces like `<0xC3>` are bytes.
fn vocab_of(pieces: Vec<String>) -> Arc<Vocab> {
    let types = pieces.iter().map(|piece| if piece.starts_with("<0x") { 6 } else { 1 }).collect();
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", Value::String("llama".into()));
    writer.metadata("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; pieces.len()])));
    writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::U32(types)));
    writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::String(pieces)));
    let file = ModelFile::from_bytes("vocabulary", writer.to_bytes()).unwrap();
    Arc::new(Vocab::from_metadata(file.metadata()).unwrap())
}

/// Each token spells a letter and its id.
fn vocab() -> Arc<Vocab> {
    vocab_of((0..VOCAB as u32).map(|token| spelled(&[TokenId(token)])).collect())
}

fn spelled(tokens: &[TokenId]) -> String {
    tokens.iter().map(|token| format!("{}{}", char::from(b'a' + token.0 as u8 % 26), token.0)).collect()
}

fn with_text(stop_strings: Vec<String>) -> TokenRequest {
    TokenRequest { text: Some(vocab()), stop_strings, ..request(6, 20, 30) }
}

#[test]
fn text_is_what_the_tokens_spell() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let read = read(handle.submit(with_text(Vec::new())).unwrap());
    assert_eq!(read.text, spelled(&read.tokens));
    assert_eq!(read.finish, Some(FinishReason::Length));
    let without = super::read(handle.submit(request(6, 20, 30)).unwrap());
    assert_eq!((without.text.as_str(), without.tokens), ("", read.tokens));
}

#[test]
fn bytes_become_whole_characters_or_replacements() {
    let piece = |token: usize| if token.is_multiple_of(2) { "<0xC3>" } else { "<0xA9>" };
    let vocab = vocab_of((0..VOCAB).map(|token| piece(token).to_owned()).collect());
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let text = Some(vocab);
    let read = read(handle.submit(TokenRequest { text, ..request(6, 20, 200) }).unwrap());
    let bytes: Vec<u8> = read.tokens.iter().map(|token| [0xc3, 0xa9][token.index() % 2]).collect();
    assert_eq!(read.text, String::from_utf8_lossy(&bytes));
    assert!(read.text.contains('é') && read.text.contains('\u{fffd}'));
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let all = expected(&with_text(Vec::new()));
    let whole = spelled(&all);
    // From the middle of the tenth token to the middle of the twelfth.
    let (start, end) = (spelled(&all[..9]).len() + 1, spelled(&all[..11]).len() + 1);
    let stop = whole[start..end].to_owned();
    assert_eq!(whole.find(&stop), Some(start), "the test wants a stop that comes once");
    let read = read(handle.submit(with_text(vec![stop])).unwrap());
    assert_eq!(read.text, whole[..start]);
    assert_eq!((read.finish, read.tokens.len()), (Some(FinishReason::Stop), 12));
}

#[test]
fn what_only_looked_like_a_stop_comes_out_at_the_end() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let all = expected(&with_text(Vec::new()));
    let ending = format!("{}#", spelled(&all[28..]));
    let read = read(handle.submit(with_text(vec![ending])).unwrap());
    assert_eq!(read.text, spelled(&all));
    assert_eq!(read.finish, Some(FinishReason::Length));
}

#[test]
fn end_and_stop_ids_end_without_their_spelling() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let all = expected(&with_text(Vec::new()));
    let end = all[7];
    let first = all.iter().position(|token| *token == end).unwrap();
    for (eos, finish) in [(true, FinishReason::Eos), (false, FinishReason::Stop)] {
        let mut request = with_text(vec![format!("{}#", spelled(&all[first - 1..first]))]);
        if eos {
            request.eos_ids.push(end)
        } else {
            request.stop_ids.push(end)
        }
        let read = read(handle.submit(request).unwrap());
        assert_eq!((read.finish, read.tokens.as_slice()), (Some(finish), &all[..=first]));
        assert_eq!(read.text, spelled(&all[..first]), "held text comes out, the id's own does not");
    }
}

#[cfg(feature = "async")]
#[test]
fn the_stream_gives_what_the_iterator_gives() {
    use futures_core::Stream;
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let (handle, _) = engine(Fake::new(64), EngineConfig { event_buffer: 2, ..EngineConfig::default() });
    let mut stream = handle.submit(request(6, 20, 30)).unwrap();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut items = Vec::new();
    loop {
        match Pin::new(&mut stream).poll_next(&mut context) {
            Poll::Ready(Some(item)) => items.push(item),
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    }
    assert_eq!(read(items.into_iter()).tokens, expected(&request(6, 20, 30)));
}
