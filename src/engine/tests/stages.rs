//! Each stage alone, without a thread and without a model: a table, a plan and results made by hand.

use super::text::{spelled, words};
use super::*;
use crate::engine::batch::Batch;
use crate::engine::choose::{Chooser, Outputs, RowResult};
use crate::engine::commit::{Committed, commit, take_out};
use crate::engine::failure::Failure;
use crate::engine::generation::Channel;
use crate::engine::mask_task::masks_due;
use crate::engine::plan::{Plan, Planner};
use crate::engine::request_queue::{Job, RequestQueue};
use crate::engine::runner::Runner;
use crate::engine::scheduler::{Room, Scheduled};
use crate::engine::sequence::{Goal, Sequence, StepOutput};
use crate::engine::stats::Counters;
use crate::engine::store::Exported;
use crate::engine::table::{SequenceTable, SlotId};
use crate::engine::worker::Worker;
use crate::ir::StepLimits;
use crate::kv::{KvCacheManager, KvConfig, PrefixSharing};

/// The stages' state, as in the worker.
struct Stages {
    table: SequenceTable,
    kv: KvCacheManager,
    planner: Planner,
    plan: Plan,
    batch: Batch,
    chooser: Chooser,
    results: Vec<RowResult>,
}

impl Stages {
    /// Room for steps of 64 rows and 8 outputs.
    fn new(pages: usize, prefill_chunk: usize, sequences_max: usize) -> Stages {
        let limits = StepLimits { tokens_max: 64, outputs_max: 8 };
        Stages {
            table: SequenceTable::default(),
            kv: KvCacheManager::new(KvConfig { pages, prefix: PrefixSharing::On { salt: [0; 32] } }).unwrap(),
            planner: Planner::new(Room { limits, prefill_chunk, sequences_max, job_first: true }),
            plan: Plan::default(),
            batch: Batch::default(),
            chooser: Chooser::new(VOCAB, Arc::new(RequestQueue::new(&EngineConfig::default()))),
            results: Vec::new(),
        }
    }

    fn admit(&mut self, request: TokenRequest) -> (SlotId, Generation) {
        let channel = Channel::new(4, Arc::default());
        let sequence = Sequence::generate(request, Arc::clone(&channel), 4096);
        (self.table.insert(sequence), Generation::new(channel, None))
    }

    /// Plans a step and returns its parts.
    fn plan(&mut self) -> Vec<(SlotId, usize)> {
        self.planner.plan(&mut self.table, &mut self.kv, &mut self.plan);
        self.plan.scheduled.iter().map(|part| (part.slot, part.tokens)).collect()
    }

    fn fill(&mut self, samples: bool) {
        self.batch.fill(&self.plan.scheduled, &self.table, &self.kv, |_| samples).unwrap();
    }

    /// The plan of the step after the batch.
    fn plan_ahead(&mut self) -> Vec<Scheduled> {
        self.planner.plan_ahead(&self.batch.parts, &self.table, &mut self.kv, &mut self.plan);
        self.plan.scheduled.clone()
    }

    fn finish(&mut self, outputs: &impl Outputs) -> Committed {
        self.chooser.choose_all(
            &self.batch.parts,
            masks_due(true),
            outputs,
            &mut self.table,
            &mut self.results,
        );
        commit(&mut self.results, self.batch.is_ahead(), &mut self.table, &mut self.kv)
    }

    /// A whole step in which every output favours token 7.
    fn step(&mut self) -> Vec<(SlotId, usize)> {
        let parts = self.plan();
        self.fill(false);
        assert!(self.finish(&Favours(7)).ends.is_empty());
        parts
    }

    fn end(&mut self, slot: SlotId) {
        take_out(slot, false, &mut self.table, &mut self.kv).unwrap();
    }

    fn get(&self, slot: SlotId) -> &Sequence {
        self.table.get(slot).unwrap()
    }
}

/// A greedy request: `step` relies on the chosen token.
fn greedy(seed: u32, len: u32, max_tokens: usize) -> TokenRequest {
    TokenRequest { sampling: Sampling::default(), ..request(seed, len, max_tokens) }
}

/// Outputs that favour one token; the first has NaN if that is token 60.
struct Favours(u32);

impl Outputs for Favours {
    fn sampled(&self, _: usize) -> Result<Option<TokenId>, Failure> {
        Ok(Some(TokenId(self.0)))
    }

    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), Failure> {
        out.fill(0.0);
        out[self.0 as usize] = if (self.0, output) == (60, 0) { f32::NAN } else { 1.0 };
        Ok(())
    }

    fn export(&self, _: &Sequence) -> Result<Exported, Failure> {
        Err(Failure::Internal("no pages here"))
    }
}

fn score(ids: Vec<TokenId>, first: usize) -> (Sequence, mpsc::Receiver<Result<Scores, EngineError>>) {
    let (reply, answer) = mpsc::sync_channel(1);
    let goal = Goal::Score { first, top: 0, scores: Scores::default(), cancelled: None, reply };
    (Sequence::job(ids, None, goal), answer)
}

#[test]
fn slots_keep_their_ids_and_old_ids_find_nobody() {
    let mut stages = Stages::new(9, 64, 8);
    let (ids, _readers): (Vec<_>, Vec<_>) = (0..3).map(|seed| stages.admit(greedy(seed, 5, 5))).unzip();
    stages.end(ids[1]);
    let (again, _reader) = stages.admit(greedy(3, 5, 5));
    assert_eq!((again.index(), again == ids[1]), (ids[1].index(), false), "the slot is taken again");
    assert!(stages.table.get(ids[1]).is_none() && stages.table.remove(ids[1]).is_none());
    let in_order = |stages: &Stages| stages.table.iter().map(|(slot, _)| slot).collect::<Vec<_>>();
    assert_eq!(in_order(&stages), [ids[0], ids[2], again]);
    assert!(!stages.table.has_job());
    let job = stages.table.insert(score(vec![TokenId(1)], 0).0);
    assert_eq!(in_order(&stages), [job, ids[0], ids[2], again], "a job counts as the oldest");
    assert!(stages.table.has_job());
}

#[test]
fn who_finds_no_seat_or_no_pages_waits_without_any() {
    let mut stages = Stages::new(9, 64, 2);
    let (ids, _readers): (Vec<_>, Vec<_>) = (0..3).map(|seed| stages.admit(greedy(seed, 5, 5))).unzip();
    assert_eq!(stages.plan(), [(ids[0], 5), (ids[1], 5)], "two slots");
    assert!(stages.get(ids[2]).pages.is_none());
    let mut stages = Stages::new(3, 64, 8);
    let (first, _reader) = stages.admit(greedy(0, 33, 5));
    let (second, _reader) = stages.admit(greedy(1, 5, 5));
    assert_eq!(stages.plan(), [(first, 33)], "three pages");
    assert!(stages.get(second).pages.is_none() && stages.plan.preempted.is_empty());
}

#[test]
fn a_chunked_prompt_has_its_output_at_its_last_row() {
    let mut stages = Stages::new(9, 16, 8);
    let (slot, _reader) = stages.admit(greedy(3, 40, 5));
    for (first, end) in [(0, 16), (16, 32), (32, 40)] {
        assert_eq!(stages.step(), [(slot, (end - first) as usize)]);
        let input = &stages.batch.input;
        assert_eq!(input.positions, (first..end).collect::<Vec<u32>>());
        assert_eq!(input.outputs, if end == 40 { vec![7] } else { vec![] });
        assert_eq!(stages.get(slot).computed, end as usize);
        stages.kv.check_integrity().unwrap();
    }
    assert_eq!(stages.get(slot).tokens[40..], [TokenId(7)]);
    assert_eq!(stages.step(), [(slot, 1)], "then it decodes");
    assert_eq!(stages.batch.input.positions, [40]);
}

/// Three sequences of 15 tokens have a page each, and two steps later the oldest needs a second one.
#[test]
fn the_youngest_gives_up_its_pages_but_a_sleeper_does_so_before() {
    for asleep in [None, Some(1)] {
        let mut stages = Stages::new(3, 64, 8);
        let (ids, mut readers): (Vec<_>, Vec<_>) =
            (0..3).map(|seed| stages.admit(greedy(seed, 15, 9))).unzip();
        stages.step();
        stages.step();
        for (reader, generation) in readers.iter_mut().enumerate() {
            if asleep != Some(reader) {
                assert_eq!(generation.into_iter().take(2).filter(|event| event.is_ok()).count(), 2);
            } else {
                (0..2).for_each(|id| {
                    let token = Token { id: TokenId(id), text: String::new(), logprobs: None };
                    generation.channel().token(token);
                });
            }
        }
        let victim = ids[asleep.unwrap_or(2)];
        let parts = stages.plan();
        assert_eq!(stages.plan.preempted[0], victim, "asleep: {asleep:?}");
        assert!(parts.contains(&(ids[0], 1)) && !parts.iter().any(|part| part.0 == victim), "{parts:?}");
        assert_eq!((stages.get(victim).pages, stages.get(victim).computed), (None, 0));
        stages.kv.check_integrity().unwrap();
    }
}

/// Of three pages the answer has one and needs a second, and the job needs all three.
#[test]
fn a_job_takes_pages_from_the_oldest_and_shares_its_steps_until_then() {
    let mut stages = Stages::new(3, 16, 8);
    let (old, _reader) = stages.admit(greedy(0, 15, 9));
    assert_eq!(stages.step(), [(old, 15)]);
    let (sequence, answer) = score(request(9, 40, 1).prompt, 38);
    let job = stages.table.insert(sequence);
    assert_eq!(stages.step(), [(old, 1), (job, 16)], "their turns alternate, and this one is not the job's");
    assert_eq!(stages.step(), [(job, 16)], "this one is");
    assert_eq!(
        (stages.get(old).computed, stages.plan.preempted.len()),
        (16, 0),
        "the answer waits with its page"
    );
    assert_eq!(stages.plan(), [(job, 8)]);
    assert_eq!((stages.get(old).pages, &stages.plan.preempted[..]), (None, &[old][..]));
    stages.fill(false);
    let (ended, end) = stages.finish(&Favours(7)).ends.pop().unwrap();
    assert_eq!(ended, job);
    take_out(job, false, &mut stages.table, &mut stages.kv).unwrap().tell(end);
    assert_eq!(answer.recv_timeout(PATIENCE).unwrap().unwrap().nll.len(), 1);
    assert_eq!(stages.plan(), [(old, 16)], "then it starts again");
    stages.kv.check_integrity().unwrap();
}

#[test]
fn scores_are_of_the_rows_that_are_asked_for() {
    let mut stages = Stages::new(9, 64, 8);
    let ids: Vec<TokenId> = [1, 7, 2, 7, 7].map(TokenId).into();
    let (sequence, answer) = score(ids, 1);
    let slot = stages.table.insert(sequence);
    assert_eq!(stages.plan(), [(slot, 5)]);
    stages.fill(true);
    assert_eq!((&stages.batch.input.outputs[..], stages.batch.parts[0].sampled), (&[1, 2, 3, 4][..], false));
    let mut committed = stages.finish(&Favours(7));
    let (ended, end) = committed.ends.pop().unwrap();
    assert_eq!(
        (ended, committed.prefill_tokens, committed.decode_tokens),
        (slot, 0, 0),
        "a job is no request"
    );
    take_out(slot, false, &mut stages.table, &mut stages.kv).unwrap().tell(end);
    let normaliser = (63.0 + 1f64.exp()).ln();
    let expected = [normaliser, normaliser - 1.0, normaliser - 1.0];
    let nll = answer.recv_timeout(PATIENCE).unwrap().unwrap().nll;
    assert!(nll.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9), "{nll:?}");
    assert_eq!(nll.len(), 3);
}

#[test]
fn a_row_of_nan_fails_its_own_request() {
    let mut stages = Stages::new(9, 64, 8);
    let (ill, reader) = stages.admit(greedy(0, 20, 5));
    let (sound, _reader) = stages.admit(greedy(1, 20, 5));
    stages.plan();
    stages.fill(false);
    let committed = stages.finish(&Favours(60));
    let [(slot, Err(failure))] = &committed.ends[..] else { panic!("{committed:?}") };
    assert_eq!(*slot, ill);
    assert!(
        matches!(failure, Failure::Sampling(SampleError::NonFinite { token: TokenId(60), .. })),
        "{failure:?}"
    );
    assert_eq!(stages.get(sound).tokens[20..], [TokenId(60)]);
    let end = committed.ends.into_iter().next().unwrap().1;
    take_out(ill, true, &mut stages.table, &mut stages.kv).unwrap().tell(end);
    assert_eq!(
        (stages.kv.used_pages(), stages.kv.stats().cached),
        (2, 0),
        "its full page is not found again"
    );
    assert!(matches!(read(reader).1, Err(GenerationError::Sampling(_))));
}

/// Outputs that a lost device does not return.
struct Lost;

impl Outputs for Lost {
    fn sampled(&self, _: usize) -> Result<Option<TokenId>, Failure> {
        Err(Failure::Internal("lost"))
    }

    fn logits(&self, _: usize, _: &mut [f32]) -> Result<(), Failure> {
        Err(Failure::Internal("lost"))
    }

    fn export(&self, _: &Sequence) -> Result<Exported, Failure> {
        Err(Failure::Internal("lost"))
    }
}

#[test]
fn outputs_that_cannot_be_read_fail_who_waits_for_them() {
    let mut stages = Stages::new(9, 20, 8);
    let (_waits, _reader) = stages.admit(greedy(0, 15, 5));
    let (halfway, _reader) = stages.admit(greedy(1, 30, 5));
    assert_eq!(stages.plan().len(), 2);
    stages.fill(true);
    let committed = stages.finish(&Lost);
    assert!(
        matches!(&committed.ends[..], [(slot, Err(Failure::Internal(_)))] if *slot != halfway),
        "{committed:?}"
    );
    assert_eq!(stages.get(halfway).computed, 5);
}

/// The logits belong to the step ahead once it runs; the sampled token of the earlier step is still there.
#[test]
fn logits_of_a_step_are_gone_when_the_one_ahead_of_it_runs() {
    let mut stages = Stages::new(9, 64, 8);
    let (_slot, _reader) = stages.admit(greedy(0, 5, 9));
    let (mut runner, mut out) = (Runner::new(Fake::new(9), Arc::default()), [0.0; VOCAB]);
    stages.plan();
    stages.fill(true);
    runner.run(&mut stages.batch).unwrap();
    runner.ran(&stages.batch, &stages.kv).logits(0, &mut out).unwrap();
    let mut ahead = Batch::default();
    ahead.fill(&stages.plan_ahead(), &stages.table, &stages.kv, |_| true).unwrap();
    runner.run(&mut ahead).unwrap();
    let ran = runner.ran(&stages.batch, &stages.kv);
    assert!(matches!(ran.logits(0, &mut out), Err(Failure::Sampling(SampleError::Unusable))));
    assert!(matches!(ran.sampled(0), Ok(Some(_))));
}

#[test]
fn a_stop_string_ends_the_answer_and_gives_its_pages_back() {
    let mut stages = Stages::new(9, 64, 8);
    let stop = spelled(&[TokenId(7)]);
    let asked = TokenRequest { text: Some(words()), stop_strings: vec![stop], ..greedy(0, 20, 5) };
    let (slot, mut reader) = stages.admit(asked);
    stages.plan();
    let result = |token| RowResult { slot, tokens: 20, output: Ok(StepOutput::Token(TokenId(token), None)) };
    let Stages { table, kv, .. } = &mut stages;
    let mut committed = commit(&mut vec![result(7)], false, table, kv);
    assert_eq!((committed.prefill_tokens, committed.decode_tokens), (20, 1));
    assert_eq!((committed.prompt_tokens, committed.answer_tokens), (20, 1));
    let (ended, end) = committed.ends.pop().unwrap();
    assert_eq!((ended, end.as_ref().ok()), (slot, Some(&FinishReason::Stop)));
    take_out(slot, false, table, kv).unwrap().tell(end);
    assert_eq!((kv.used_pages(), kv.stats().cached), (0, 1));
    assert!(commit(&mut vec![result(8)], false, table, kv).ends.is_empty(), "nobody is left to commit to");
    assert!(
        matches!(reader.recv(), Some(Ok(Event::Token(Token { id: TokenId(7), text, .. }))) if text.is_empty())
    );
    assert!(matches!(reader.recv(), Some(Ok(Event::Done(Done { finish: FinishReason::Stop, .. })))));
}

/// Two decodes run ahead; one ends with the token that it was ahead of.
#[test]
fn an_end_drops_its_row_of_the_step_ahead() {
    let mut stages = Stages::new(9, 64, 8);
    let (ends, _reader) = stages.admit(TokenRequest { stop_ids: vec![TokenId(9)], ..greedy(0, 5, 9) });
    let (continues, _reader) = stages.admit(greedy(1, 5, 9));
    stages.step();
    stages.plan();
    stages.fill(true);
    let scheduled = stages.plan_ahead();
    let fed = |slot, output| Scheduled { slot, tokens: 1, fed: Some(output) };
    assert_eq!(scheduled, [fed(ends, 0), fed(continues, 1)]);
    let mut ahead = Batch::default();
    ahead.fill(&scheduled, &stages.table, &stages.kv, |_| true).unwrap();
    assert_eq!((&ahead.input.positions[..], ahead.is_ahead()), (&[6, 6][..], true));
    // The step in flight gives one its stop token, and the other a different one.
    let tokens = [(ends, 9), (continues, 8)];
    let result =
        |(slot, token)| RowResult { slot, tokens: 1, output: Ok(StepOutput::Token(TokenId(token), None)) };
    let Stages { table, kv, .. } = &mut stages;
    let committed = commit(&mut tokens.map(result).into(), false, table, kv);
    assert_eq!(committed.ends.len(), 1);
    stages.end(ends);
    ahead.keep_live(&stages.table);
    assert_eq!(ahead.parts.iter().map(|part| part.slot).collect::<Vec<_>>(), [continues]);
    assert_eq!(ahead.parts[0].outputs, 1..2, "outputs keep their numbers");
    stages.batch = ahead;
    assert!(stages.finish(&Favours(3)).ends.is_empty());
    assert_eq!(stages.get(continues).tokens[5..], [7, 8, 3].map(TokenId));
    stages.kv.check_integrity().unwrap();
}

#[test]
fn nothing_runs_ahead_of_what_the_host_must_see() {
    let penalty = Sampling { presence_penalty: 0.5, ..Sampling::default() };
    let cases = [
        (greedy(0, 5, 9), true, 1, "a decode"),
        (TokenRequest { sampling: penalty, ..greedy(0, 5, 9) }, true, 0, "a penalty"),
        (greedy(0, 5, 9), false, 0, "logits that the host must look at"),
        (greedy(0, 5, 2), true, 0, "the last token"),
    ];
    for (asked, samples, ahead, case) in cases {
        let mut stages = Stages::new(9, 64, 8);
        let (_slot, _reader) = stages.admit(asked);
        stages.step();
        stages.plan();
        stages.fill(samples);
        assert_eq!(stages.plan_ahead().len(), ahead, "{case}");
    }
}

#[test]
fn nothing_runs_ahead_of_who_waits_for_a_seat_that_is_free() {
    for (sequences_max, ahead) in [(8, 0), (1, 1)] {
        let mut stages = Stages::new(9, 5, sequences_max);
        let (_slot, _reader) = stages.admit(greedy(0, 5, 9));
        stages.step();
        stages.plan();
        stages.fill(true);
        let (_waiting, _reader) = stages.admit(greedy(1, 5, 9));
        assert_eq!(stages.plan_ahead().len(), ahead, "{sequences_max} slots");
        let job = stages.table.insert(score(vec![TokenId(1)], 0).0);
        assert_eq!(stages.plan_ahead(), [], "of {job:?}");
    }
}

/// A worker that a test drives turn by turn, without a thread.
struct ByHand {
    worker: Worker<Fake>,
    queue: Arc<RequestQueue>,
    counters: Arc<Counters>,
}

impl ByHand {
    fn new(fake: Fake, config: EngineConfig) -> ByHand {
        let (queue, counters) = (Arc::new(RequestQueue::new(&config)), Arc::new(Counters::default()));
        let worker = Worker::new(fake, config, Arc::clone(&queue), Arc::clone(&counters)).unwrap();
        ByHand { worker, queue, counters }
    }

    fn submit(&mut self, request: TokenRequest) -> Generation {
        let channel = Channel::new(request.max_tokens, Arc::clone(self.queue.wake()));
        let sequence = Sequence::generate(request, Arc::clone(&channel), 4096);
        self.queue.put_request(sequence, &self.counters).unwrap();
        self.worker.admit(self.queue.take());
        Generation::new(channel, None)
    }
}

/// A step that fails is run again for each sequence alone.
#[test]
fn a_failed_step_fails_the_rows_that_are_at_fault() {
    let mut engine = ByHand::new(Fake::new(40), EngineConfig::default());
    let (ill, sound) = (engine.submit(with_token(FAILING)), engine.submit(request(3, 20, 4)));
    assert!(engine.worker.turn());
    assert!(matches!(read(ill).1, Err(GenerationError::Step(_))));
    let stats = engine.counters.read();
    assert_eq!((stats.failed, stats.running, stats.decode_tokens), (1, 1, 1));
    while engine.worker.turn() {}
    assert_eq!(read(sound).0, expected(&request(3, 20, 4)));
    assert_eq!(engine.counters.read().pages_used, 0);
}

/// Answers that fill every output of a step continue next to a score, which gets a row in every other step.
#[test]
fn a_score_and_full_seats_take_turns() {
    let config = EngineConfig { sequences_max: 2, ..EngineConfig::default() };
    let mut engine = ByHand::new(Fake::new(100).limits(8, 2), config);
    let answers = [1, 2].map(|seed| engine.submit(request(seed, 10, 200)));
    (0..4).for_each(|_| assert!(engine.worker.turn()));
    let before = engine.counters.read();
    let (sequence, answer) = score(request(7, 40, 1).prompt, 0);
    engine.queue.put_job(Job::Compute(sequence)).unwrap();
    let scores = loop {
        assert!(engine.worker.turn());
        if let Ok(scores) = answer.try_recv() {
            break scores.unwrap();
        }
    };
    let after = engine.counters.read();
    let (steps, tokens) = (after.steps - before.steps, after.decode_tokens - before.decode_tokens);
    assert!((79..=82).contains(&steps), "40 rows in {steps} steps");
    assert!((3 * steps / 2 - 3..=3 * steps / 2 + 3).contains(&tokens), "{tokens} tokens beside them");
    assert_eq!(scores, spawn(40, config).score(&request(7, 40, 1).prompt, 0).unwrap());
    while engine.worker.turn() {}
    for (seed, answer) in [1, 2].into_iter().zip(answers) {
        assert_eq!(read(answer).0, expected(&request(seed, 10, 200)));
    }
}
