//! Token masks: their input, allowed and forced tokens, finished answers, and isolated failures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::engine::{mask_task::MaskTask, pool::MaskPool, pool::TIME_MAX};

/// Every rule at once, a function of the answer's length and last token.
#[derive(Clone)]
struct Rules {
    /// The forced run of the last call.
    forced: Vec<TokenId>,
    length: usize,
}

impl Rules {
    fn new(length: usize) -> Rules {
        Rules { forced: Vec::new(), length }
    }
}

impl TokenMask for Rules {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        assert!(allowed.is_empty() && allowed.vocab() == VOCAB);
        let last = answer.last().map_or(0, |token| token.0);
        allowed.extend((0..60).filter(|id| (id + last).is_multiple_of(3)).map(TokenId));
    }

    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        // A run of seven from each multiple of ten on, without the part that the answer has already.
        let within = answer.len() % 10;
        self.forced = if within < 7 && answer.len() >= 10 {
            (answer.len()..answer.len() + 7 - within).map(|at| TokenId(at as u32 % 60)).collect()
        } else {
            Vec::new()
        };
        &self.forced
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        answer.len() >= self.length
    }
}

fn masked(mask: impl TokenMask + 'static, request: TokenRequest) -> TokenRequest {
    TokenRequest { mask: Some(Box::new(mask)), ..request }
}

/// The answer by the definition, without an engine.
fn ruled(request: &TokenRequest, length: usize) -> Vec<TokenId> {
    let (mut rules, mut tokens) = (Rules::new(length), request.prompt.clone());
    let (prompt, mut sampler) = (tokens.len(), Sampler::default());
    while tokens.len() - prompt < request.max_tokens && !rules.is_finished(&tokens[prompt..]) {
        let mut token = rules.forced(&tokens[prompt..]).first().copied();
        if token.is_none() {
            let mut allowed = TokenSet::new(VOCAB);
            rules.allowed(&tokens[prompt..], &mut allowed);
            let history = History { tokens: &tokens, prompt };
            let mut logits = logits_after(&tokens);
            token = sampler.choose(&mut logits, &request.sampling, Some(&allowed), history).ok();
        }
        tokens.push(token.unwrap());
    }
    tokens.split_off(prompt)
}

#[test]
fn an_answer_keeps_the_rules_whatever_the_buffers_and_chunks() {
    for (event_buffer, chunk, most) in [(64, 256, 300), (1, 256, 300), (3, 2, 4), (64, 1, 1)] {
        let config = EngineConfig { event_buffer, prefill_chunk: Some(chunk), ..EngineConfig::default() };
        let handle = Handle::spawn(Fake::new(100).limits(most, 8), config).unwrap();
        let beside = handle.submit(request(9, 30, 40)).unwrap();
        for (length, max_tokens, finish) in [(38, 100, FinishReason::Mask), (99, 35, FinishReason::Length)] {
            let asked = || request(3, 25, max_tokens);
            let (tokens, end) = read(handle.submit(masked(Rules::new(length), asked())).unwrap());
            assert_eq!(tokens, ruled(&asked(), length), "buffer {event_buffer}, chunk {chunk}");
            let (found, usage) = end.unwrap();
            assert_eq!((found, usage.completion_tokens), (finish, tokens.len()));
        }
        assert_eq!(read(beside).0, expected(&request(9, 30, 40)));
        settled(&handle);
    }
}

#[test]
fn a_forced_run_takes_one_step_and_is_counted() {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    let (tokens, _) = read(handle.submit(masked(Rules::new(38), request(3, 25, 100))).unwrap());
    // Three runs of seven, each computed in one step with the token before it: 38 tokens, 21 of them forced.
    let forced = 21;
    assert_eq!((tokens.len(), probe.steps.load(Ordering::SeqCst)), (38, 38 - forced));
    assert_eq!(settled(&handle).decode_tokens, 38);
}

/// The tenth token forces seven more, but the sleeping reader has room for two.
#[test]
fn a_forced_run_keeps_to_the_readers_room() {
    let handle = spawn(60, EngineConfig { event_buffer: 12, ..EngineConfig::default() });
    let asked = || request(3, 25, 30);
    let sleeper = handle.submit(masked(Rules::new(99), asked())).unwrap();
    eventually(&handle, "the buffer is full", |stats| stats.decode_tokens >= 12);
    assert_eq!(sleeper.usage().completion_tokens, 12);
    assert_eq!(read(sleeper).0, ruled(&asked(), 99));
}

/// Complete before it has begun: the prompt is computed, nothing is generated.
#[test]
fn an_answer_may_be_complete_at_once_or_all_forced() {
    struct Forces(Vec<TokenId>);
    impl TokenMask for Forces {
        fn allowed(&mut self, _: &[TokenId], _: &mut TokenSet) {}
        fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
            &self.0[answer.len()..]
        }
        fn is_finished(&self, answer: &[TokenId]) -> bool {
            answer.len() == self.0.len()
        }
    }
    let handle = spawn(60, EngineConfig { event_buffer: 4, ..EngineConfig::default() });
    for len in [0, 1, 3, 4, 5, 40] {
        let whole: Vec<TokenId> = (0..len).map(TokenId).collect();
        let asked = masked(Forces(whole.clone()), request(1, 10, 50));
        let (tokens, end) = read(handle.submit(asked).unwrap());
        assert_eq!((tokens, end.unwrap().0), (whole, FinishReason::Mask));
    }
    // A token that ends the turn ends a forced run, too.
    let ids: Vec<TokenId> = (0..9).map(TokenId).collect();
    let asked = TokenRequest { stop_ids: vec![TokenId(4)], ..masked(Forces(ids), request(1, 10, 50)) };
    let (tokens, end) = read(handle.submit(asked).unwrap());
    assert_eq!((tokens.len(), end.unwrap().0), (4, FinishReason::Eos));
    settled(&handle);
}

#[test]
fn the_end_of_the_turn_is_a_token_that_a_mask_may_allow() {
    struct Ends;
    impl TokenMask for Ends {
        fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
            allowed.insert(if answer.len() < 3 { TokenId(8) } else { TokenId(9) });
        }
    }
    let handle = spawn(60, EngineConfig::default());
    let asked = TokenRequest { stop_ids: vec![TokenId(9)], top: Some(1), ..masked(Ends, request(1, 10, 50)) };
    let answer = handle.submit(asked).unwrap().text().unwrap();
    assert_eq!((answer.tokens, answer.finish), (vec![TokenId(8); 3], FinishReason::Eos));
}

/// The fault of a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Panics,
    AllowsNothing,
    AllowsOutside,
    ForcesOutside,
    ForcePanics,
    EndPanics,
    DropPanics,
}

/// Allows token 0 only, three times, and then fails.
struct Breaking(Wrong);

impl Breaking {
    fn now(&self, wrong: Wrong, answer: &[TokenId]) -> bool {
        self.0 == wrong && answer.len() == 3
    }
}

impl TokenMask for Breaking {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        assert!(!self.now(Wrong::Panics, answer), "a mask that panics");
        if self.now(Wrong::AllowsOutside, answer) {
            allowed.insert(TokenId(VOCAB as u32));
        }
        if !self.now(Wrong::AllowsNothing, answer) {
            allowed.insert(TokenId(0));
        }
    }

    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        assert!(!self.now(Wrong::ForcePanics, answer), "a mask that panics");
        if self.now(Wrong::ForcesOutside, answer) { &[TokenId(1), TokenId(u32::MAX)] } else { &[] }
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        assert!(!self.now(Wrong::EndPanics, answer), "a mask that panics");
        self.now(Wrong::DropPanics, answer)
    }
}

impl Drop for Breaking {
    fn drop(&mut self) {
        assert!(self.0 != Wrong::DropPanics, "a mask that panics");
    }
}

#[test]
fn a_mask_that_goes_wrong_fails_its_own_request_with_its_own_error() {
    let handle = spawn(60, EngineConfig::default());
    let outside = |token| Some(SampleError::MaskToken { token: TokenId(token), vocab: VOCAB });
    let wrongs = [
        // The third token is not sent if its forced successors fail.
        (Wrong::Panics, 3, Some(SampleError::MaskPanicked)),
        (Wrong::AllowsNothing, 3, Some(SampleError::NothingAllowed)),
        (Wrong::AllowsOutside, 3, outside(VOCAB as u32)),
        (Wrong::ForcesOutside, 2, outside(u32::MAX)),
        (Wrong::ForcePanics, 2, Some(SampleError::MaskPanicked)),
        (Wrong::EndPanics, 2, Some(SampleError::MaskPanicked)),
        (Wrong::DropPanics, 3, None),
    ];
    for (wrong, told, error) in wrongs {
        let sound = handle.submit(request(2, 10, 50)).unwrap();
        let (found, end) = read(handle.submit(masked(Breaking(wrong), request(1, 10, 10))).unwrap());
        assert_eq!(found, vec![TokenId(0); told], "{wrong:?}");
        match error {
            Some(error) => assert_eq!(end, Err(GenerationError::Sampling(error)), "{wrong:?}"),
            None => assert_eq!(end.unwrap().0, FinishReason::Mask),
        }
        assert_eq!(read(sound).0, expected(&request(2, 10, 50)), "beside {wrong:?}");
    }
    let stats = settled(&handle);
    assert_eq!((stats.failed, stats.finished), (6, 8));
}

/// Sleeps after its third token until it is released.
struct Sleeps(Arc<AtomicBool>);

impl TokenMask for Sleeps {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        while answer.len() == 3 && !self.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        allowed.insert(TokenId(7));
    }
}

#[test]
fn a_mask_that_does_not_come_back_fails_its_own_request_and_holds_up_no_other() {
    let handle = spawn(60, EngineConfig::default());
    let awake = Arc::new(AtomicBool::new(false));
    let asked = || request(3, 25, 100);
    let sleepers =
        [1, 2].map(|seed| handle.submit(masked(Sleeps(Arc::clone(&awake)), request(seed, 10, 10))).unwrap());
    let beside = handle.submit(request(9, 30, 40)).unwrap();
    let ruled_one = handle.submit(masked(Rules::new(38), asked())).unwrap();
    for sleeper in sleepers {
        let (tokens, end) = read(sleeper);
        let too_slow = GenerationError::Sampling(SampleError::MaskFailed("it took too long"));
        assert_eq!((tokens, end), (vec![TokenId(7); 3], Err(too_slow)));
    }
    assert_eq!(read(ruled_one).0, ruled(&asked(), 38));
    assert_eq!(read(beside).0, expected(&request(9, 30, 40)));
    // The threads of the sleepers are lost; others do the work.
    assert_eq!(read(handle.submit(masked(Rules::new(38), asked())).unwrap()).0, ruled(&asked(), 38));
    awake.store(true, Ordering::SeqCst);
    settled(&handle);
}

/// The rules, but late at the third token: the mask waits until it is released.
struct Waits {
    rules: Rules,
    go_on: Arc<AtomicBool>,
    /// Whether it waits in its forced tokens or in its allowed ones.
    followed: bool,
}

impl Waits {
    fn wait(&self, answer: &[TokenId], followed: bool) {
        while answer.len() == 3 && followed == self.followed && !self.go_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl TokenMask for Waits {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        self.wait(answer, false);
        self.rules.allowed(answer, allowed);
    }

    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        self.wait(answer, true);
        self.rules.forced(answer)
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        self.rules.is_finished(answer)
    }
}

#[test]
fn others_do_not_wait_for_a_mask_that_is_late() {
    for followed in [true, false] {
        let handle = spawn(60, EngineConfig::default());
        let go_on = Arc::new(AtomicBool::new(false));
        let late = Waits { rules: Rules::new(38), go_on: Arc::clone(&go_on), followed };
        let mut late = handle.submit(masked(late, request(3, 25, 100))).unwrap();
        // The mask has reached the point where it waits.
        let token = |event| match event {
            Some(Ok(Event::Token(token))) => token.id,
            other => panic!("{other:?}"),
        };
        let begun: Vec<TokenId> = (0..3).map(|_| token(late.recv())).collect();
        for seed in 0..4 {
            assert_eq!(
                read(handle.submit(request(seed, 30, 40)).unwrap()).0,
                expected(&request(seed, 30, 40))
            );
        }
        handle.check_integrity().unwrap();
        go_on.store(true, Ordering::SeqCst);
        let (rest, end) = read(late);
        assert_eq!([begun, rest].concat(), ruled(&request(3, 25, 100), 38), "{end:?}");
        settled(&handle);
    }
}

/// Hanging masks take every thread; after that no request waits for one.
#[test]
fn where_no_thread_comes_back_a_masked_request_fails_at_once() {
    let handle = spawn(200, EngineConfig::default());
    let awake = Arc::new(AtomicBool::new(false));
    let sleeps = || handle.submit(masked(Sleeps(Arc::clone(&awake)), request(1, 10, 10))).unwrap();
    // At most four threads, and two more in place of lost ones.
    let sleepers: Vec<_> = (0..6).map(|_| sleeps()).collect();
    for sleeper in sleepers {
        let end = read(sleeper).1;
        assert!(matches!(end, Err(GenerationError::Sampling(SampleError::MaskFailed(_)))), "{end:?}");
    }
    // The last of them count as lost after `TIME_MAX`.
    std::thread::sleep(TIME_MAX);
    let begun = Instant::now();
    let beside = handle.submit(request(9, 30, 40)).unwrap();
    for _ in 0..8 {
        let (tokens, end) = read(handle.submit(masked(Rules::new(38), request(3, 25, 100))).unwrap());
        let no_thread = GenerationError::Sampling(SampleError::MaskFailed("no thread can run it"));
        assert_eq!((tokens, end), (Vec::new(), Err(no_thread)));
    }
    assert_eq!(read(beside).0, expected(&request(9, 30, 40)));
    assert!(begun.elapsed() < 4 * TIME_MAX, "nothing waits for a thread: {:?}", begun.elapsed());
    // Threads that come back serve again.
    awake.store(true, Ordering::SeqCst);
    let ruled_one = || read(handle.submit(masked(Rules::new(38), request(3, 25, 100))).unwrap()).0;
    let expected = ruled(&request(3, 25, 100), 38);
    assert!((0..1000).any(|_| ruled_one() == expected));
    settled(&handle);
}

/// Answers of three tokens. The drop reports its thread, and lasts until the flag is set.
struct DropsSlowly(Arc<AtomicBool>, mpsc::Sender<Option<String>>);

impl TokenMask for DropsSlowly {
    fn allowed(&mut self, _: &[TokenId], allowed: &mut TokenSet) {
        allowed.insert(TokenId(7));
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        answer.len() == 3
    }
}

impl Drop for DropsSlowly {
    fn drop(&mut self) {
        // A missing receiver means that the test has ended.
        let _ = self.1.send(std::thread::current().name().map(str::to_owned));
        while !self.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_mask_is_dropped_on_a_thread_of_its_pool_and_holds_up_no_answer() {
    let handle = spawn(200, EngineConfig { sequences_max: 1, event_buffer: 2, ..EngineConfig::default() });
    let (dropped, drops) = mpsc::channel();
    for finish in [FinishReason::Mask, FinishReason::Length, FinishReason::Cancelled] {
        let go_on = Arc::new(AtomicBool::new(false));
        let mask = DropsSlowly(Arc::clone(&go_on), dropped.clone());
        // The cancelled one is still queued: it has never begun.
        let before = handle.submit(request(9, 30, 40)).unwrap();
        let asked = masked(mask, request(1, 10, if finish == FinishReason::Length { 2 } else { 10 }));
        let generation = handle.submit(asked).unwrap();
        if finish == FinishReason::Cancelled {
            generation.cancel();
            eventually(&handle, "it is cancelled", |stats| stats.cancelled == 1);
        }
        assert_eq!(read(before).0, expected(&request(9, 30, 40)), "before {finish:?}");
        assert_eq!(read(generation).1.unwrap().0, finish);
        let thread = drops.recv_timeout(PATIENCE).unwrap();
        assert_eq!(thread.as_deref(), Some("ottava-mask"), "{finish:?}");
        assert_eq!(read(handle.submit(request(8, 30, 40)).unwrap()).0, expected(&request(8, 30, 40)));
        go_on.store(true, Ordering::SeqCst);
    }
    settled(&handle);
}

/// Without a thread for it, user code does not run on the engine's thread.
#[test]
fn a_mask_that_no_thread_can_run_fails_and_is_dropped_once() {
    let pool = MaskPool::with_threads(0, || {});
    let calls = Arc::new(());
    let held = Arc::clone(&calls);
    let mut mask = MaskTask::new(Box::new(move |_: &[TokenId], allowed: &mut TokenSet| {
        assert_eq!(Arc::strong_count(&held), 0, "it runs");
        allowed.insert_all();
    }));
    mask.adopt(&pool);
    mask.start(&pool, VOCAB);
    let no_thread = SampleError::MaskFailed("no thread can run it");
    let until = Instant::now() + TIME_MAX;
    assert_eq!(mask.advanced(&pool, until).unwrap_err(), no_thread);
    assert_eq!(mask.next(&pool, VOCAB, until).unwrap_err(), no_thread);
    drop(mask);
    assert_eq!(Arc::strong_count(&calls), 2, "the pool drops it");
    drop(pool);
    assert_eq!(Arc::strong_count(&calls), 1);
}

/// Calls the engine from user code: on the engine's own threads, and where a request is refused.
struct Asks(Handle, mpsc::Sender<Drained>);

impl TokenMask for Asks {
    fn allowed(&mut self, _: &[TokenId], allowed: &mut TokenSet) {
        allowed.extend([TokenId(5)]);
        // A missing receiver means that the test has ended.
        let _ = self.1.send(self.0.drain(std::time::Instant::now() + Duration::from_secs(3600)));
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.state();
    }
}

#[test]
fn a_mask_may_ask_the_engine_and_never_waits_for_it() {
    let handle = spawn(40, EngineConfig { queue_max: 1, ..EngineConfig::default() });
    let (told, drained) = mpsc::channel();
    let asks = || masked(Asks(handle.clone(), told.clone()), request(1, 10, 50));
    let first = handle.submit(asks()).unwrap();
    // Full or draining by now: the refused mask is dropped, and calls the engine.
    assert!(handle.submit(asks()).is_err());
    assert_eq!(drained.recv().unwrap(), Drained::default(), "on the engine's thread it returns at once");
    assert_eq!(read(first).1.unwrap().0, FinishReason::Cancelled, "it is cut off");
}
