//! Text of events: whole characters, stop strings, and the stream as an iterator and as a `Stream`.

use super::*;
use crate::checkpoint::{Array, Checkpoint, GgufWriter, ModelFile, Value};
use crate::text::Vocab;

/// A SentencePiece vocabulary; pieces like `<0xC3>` are bytes.
fn vocab_of(pieces: impl IntoIterator<Item = String>) -> Arc<Vocab> {
    let pieces: Vec<String> = pieces.into_iter().collect();
    let types = pieces.iter().map(|piece| if piece.starts_with("<0x") { 6 } else { 1 }).collect();
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "llama");
    writer.metadata("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; pieces.len()])));
    writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::U32(types)));
    writer.metadata("tokenizer.ggml.tokens", pieces);
    let file = ModelFile::from_bytes("vocabulary", writer.to_bytes()).unwrap();
    Arc::new(Vocab::from_metadata(file.metadata()).unwrap())
}

/// Each token spells a letter and its id, the letter an accented one of two bytes.
pub(super) fn spelled(tokens: &[TokenId]) -> String {
    tokens.iter().map(|id| format!("{}{}", ['é', 'ß', 'x', 'ø'][id.index() % 4], id.0)).collect()
}

pub(super) fn words() -> Arc<Vocab> {
    vocab_of((0..VOCAB as u32).map(|id| spelled(&[TokenId(id)])))
}

/// Even tokens are the first byte of an é, odd ones the second.
fn bytes() -> Arc<Vocab> {
    vocab_of((0..VOCAB).map(|id| ["<0xC3>", "<0xA9>"][id % 2].to_owned()))
}

pub(super) fn with_text(vocab: &Arc<Vocab>, stops: &[&str]) -> TokenRequest {
    let stop_strings = stops.iter().map(|&stop| stop.to_owned()).collect();
    TokenRequest { text: Some(Arc::clone(vocab)), stop_strings, ..request(6, 20, 30) }
}

/// A reader's view of a generation that ends well.
pub(super) fn told(
    events: impl IntoIterator<Item = Result<Event, GenerationError>>,
) -> (Vec<TokenId>, String, FinishReason) {
    let (mut ids, mut whole, mut end) = (Vec::new(), String::new(), None);
    for event in events {
        assert_eq!(end, None, "{event:?} after the end");
        let event = event.unwrap();
        whole.push_str(event.text());
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Done(Done { finish, usage, tokens, .. }) => {
                assert_eq!((usage.completion_tokens, &tokens), (ids.len(), &ids));
                end = Some(finish);
            }
        }
    }
    (ids, whole, end.expect("a generation ends with Done"))
}

#[test]
fn text_is_what_the_tokens_spell() {
    let handle = spawn(64, EngineConfig::default());
    let (ids, text, finish) = told(handle.submit(with_text(&words(), &[])).unwrap());
    assert_eq!((&text, finish), (&spelled(&ids), FinishReason::Length));
    assert_eq!(ids, expected(&with_text(&words(), &[])));
    let (bare_ids, bare, _) = told(handle.submit(request(6, 20, 30)).unwrap());
    assert_eq!((bare.as_str(), bare_ids), ("", ids), "without a vocabulary there is no text");
}

#[test]
fn bytes_become_whole_characters_or_replacements() {
    let handle = spawn(64, EngineConfig::default());
    let asked = TokenRequest { max_tokens: 200, ..with_text(&bytes(), &[]) };
    let (ids, text, _) = told(handle.submit(asked).unwrap());
    let raw: Vec<u8> = ids.iter().map(|id| [0xc3, 0xa9][id.index() % 2]).collect();
    assert_eq!(text, String::from_utf8_lossy(&raw));
    assert!(text.contains('é') && text.contains('\u{fffd}'), "{text}");
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let whole = spelled(&all);
    // From after the letter of the tenth token to after that of the twelfth.
    let letter_end = |tokens: usize| {
        let start = spelled(&all[..tokens]).len();
        start + whole[start..].chars().next().map_or(0, char::len_utf8)
    };
    let (start, end) = (letter_end(9), letter_end(11));
    let stop = &whole[start..end];
    assert_eq!(whole.find(stop), Some(start), "the test wants a stop that comes once");
    let (ids, text, finish) = told(handle.submit(with_text(&words(), &["never", stop])).unwrap());
    assert_eq!(text, whole[..start]);
    assert_eq!((finish, ids.len()), (FinishReason::Stop, 12));
}

#[test]
fn a_stop_character_whose_bytes_are_two_tokens_ends_the_text_before_it() {
    let handle = spawn(64, EngineConfig::default());
    let (ids, text, finish) = told(handle.submit(with_text(&bytes(), &["é"])).unwrap());
    assert_eq!(finish, FinishReason::Stop);
    assert!(!text.contains('é'), "{text}");
    let last: Vec<usize> = ids.iter().rev().take(2).map(|id| id.index() % 2).collect();
    assert_eq!(last, [1, 0], "the two bytes came as two tokens");
}

#[test]
fn what_only_looked_like_a_stop_comes_out_at_the_end() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let ending = format!("{}#", spelled(&all[28..]));
    let (_, text, finish) = told(handle.submit(with_text(&words(), &[&ending])).unwrap());
    assert_eq!((text, finish), (spelled(&all), FinishReason::Length));
}

#[test]
fn an_end_id_lets_held_text_out_and_not_its_own_spelling() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let first = all.iter().position(|id| *id == all[7]).unwrap();
    let held = format!("{}#", spelled(&all[first - 1..first]));
    let asked = TokenRequest { stop_ids: vec![all[7]], ..with_text(&words(), &[&held]) };
    let (ids, text, finish) = told(handle.submit(asked).unwrap());
    assert_eq!((finish, text), (FinishReason::Eos, spelled(&all[..first])));
    assert_eq!(ids, all[..first]);
}

#[test]
fn the_token_that_ends_the_turn_comes_with_the_end() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    for (top, stop_ids) in [(Some(1), vec![all[7]]), (None, vec![all[7]]), (Some(1), Vec::new())] {
        let end = (!stop_ids.is_empty()).then_some(all[7]);
        let asked = TokenRequest { stop_ids, top, ..with_text(&words(), &[]) };
        let last = handle.submit(asked).unwrap().into_iter().last();
        let Some(Ok(Event::Done(Done { end: found, tokens, usage, .. }))) = last else { panic!("{last:?}") };
        assert_eq!(found.as_ref().map(|token| (token.id, token.text.as_str())), end.map(|id| (id, "")));
        assert_eq!(found.is_some_and(|token| token.logprobs.is_some()), end.is_some() && top.is_some());
        assert_eq!(usage.completion_tokens, tokens.len(), "it is not a part of the answer");
    }
}

#[cfg(feature = "async")]
mod stream {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_core::Stream;

    use super::*;

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn the_stream_gives_what_the_iterator_gives() {
        let handle = spawn(64, EngineConfig { event_buffer: 2, ..EngineConfig::default() });
        let mut stream = handle.submit(request(6, 20, 30)).unwrap();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut items = Vec::new();
        loop {
            match Pin::new(&mut stream).poll_next(&mut context) {
                Poll::Ready(Some(item)) => items.push(item),
                Poll::Ready(None) => break,
                Poll::Pending => std::thread::park_timeout(PATIENCE),
            }
        }
        let (ids, _, finish) = told(items);
        assert_eq!((ids, finish), (expected(&request(6, 20, 30)), FinishReason::Length));
    }

    /// A waker that calls `wake` when it is woken, and cancels a request when it is dropped.
    struct Busy<F> {
        wake: F,
        canceller: Canceller,
    }

    impl<F: Fn() + Send + Sync> Wake for Busy<F> {
        fn wake(self: Arc<Self>) {
            (self.wake)();
        }
    }

    impl<F> Drop for Busy<F> {
        fn drop(&mut self) {
            self.canceller.cancel();
        }
    }

    fn poll(stream: &mut Generation, waker: &Waker) -> bool {
        Pin::new(stream).poll_next(&mut Context::from_waker(waker)).is_ready()
    }

    #[test]
    fn a_waker_may_cancel_its_request_when_another_takes_its_place() {
        let fake = Fake::new(64);
        let probe = Arc::clone(&fake.probe);
        let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
        probe.close_gate();
        let mut stream = handle.submit(request(6, 20, 30)).unwrap();
        let first = Waker::from(Arc::new(Busy { wake: || {}, canceller: stream.canceller() }));
        assert!(!poll(&mut stream, &first));
        drop(first);
        assert!(!poll(&mut stream, Waker::noop()));
        probe.open_gate();
        let (_, end) = read(stream);
        assert_eq!(end.unwrap().0, FinishReason::Cancelled);
    }

    #[test]
    fn a_waker_that_asks_the_engine_is_refused() {
        let fake = Fake::new(64);
        let probe = Arc::clone(&fake.probe);
        let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
        probe.close_gate();
        let mut stream = handle.submit(request(6, 20, 30)).unwrap();
        let (tell, told) = mpsc::channel();
        let asking = handle.clone();
        let wake = move || tell.send(asking.check_integrity()).unwrap_or_default();
        let waker = Waker::from(Arc::new(Busy {
            wake,
            canceller: handle.submit(request(7, 20, 1)).unwrap().canceller(),
        }));
        assert!(!poll(&mut stream, &waker));
        probe.open_gate();
        let refused = told.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(refused, Err(EngineError::Internal(_))), "{refused:?}");
        assert_eq!(read(stream).0, expected(&request(6, 20, 30)));
    }

    /// An executor that polls as soon as it is woken, on the thread that wakes it.
    #[derive(Default)]
    struct Eager {
        stream: Mutex<Option<Generation>>,
        ids: Mutex<Vec<TokenId>>,
        ended: Mutex<Option<mpsc::Sender<()>>>,
    }

    impl Eager {
        fn poll(self: &Arc<Self>) {
            let waker = Waker::from(Arc::clone(self));
            let mut context = Context::from_waker(&waker);
            let mut stream = self.stream.lock().unwrap();
            let Some(generation) = stream.as_mut() else { return };
            while let Poll::Ready(item) = Pin::new(&mut *generation).poll_next(&mut context) {
                match item {
                    Some(Ok(Event::Token(token))) => self.ids.lock().unwrap().push(token.id),
                    Some(_) => {}
                    None => return drop(self.ended.lock().unwrap().take()),
                }
            }
        }
    }

    impl Wake for Eager {
        fn wake(self: Arc<Self>) {
            self.poll();
        }
    }

    #[test]
    fn a_waker_that_polls_at_once_does_not_hold_up_the_engine() {
        let fake = Fake::new(64);
        let probe = Arc::clone(&fake.probe);
        let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
        let (ended, end) = mpsc::channel();
        probe.close_gate();
        let generation = handle.submit(request(6, 20, 30)).unwrap();
        let eager = Arc::new(Eager {
            stream: Mutex::new(Some(generation)),
            ended: Mutex::new(Some(ended)),
            ..Eager::default()
        });
        eager.poll();
        probe.open_gate();
        assert_eq!(end.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected), "it ends");
        assert_eq!(*eager.ids.lock().unwrap(), expected(&request(6, 20, 30)));
        *eager.stream.lock().unwrap() = None;
    }

    #[derive(Default)]
    struct Panics(AtomicUsize);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a waker that panics");
        }
    }

    #[test]
    fn a_waker_that_panics_hurts_nobody() {
        let fake = Fake::new(64);
        let probe = Arc::clone(&fake.probe);
        let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
        probe.close_gate();
        let mut stream = handle.submit(request(6, 20, 30)).unwrap();
        let panics = Arc::new(Panics::default());
        let waker = Waker::from(Arc::clone(&panics));
        assert!(Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker)).is_pending());
        let other = handle.submit(request(7, 20, 30)).unwrap();
        probe.open_gate();
        assert_eq!(read(other).0, expected(&request(7, 20, 30)));
        assert_eq!(read(stream).0, expected(&request(6, 20, 30)));
        assert_eq!(panics.0.load(Ordering::SeqCst), 1);
    }
}
