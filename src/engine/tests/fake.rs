//! A decoder with logits that are a hash of the tokens read back from its pages: of every position that a row
//! sees. Any mistake with pages, chunks, copies, prefixes or preemption changes the tokens. By default it
//! samples and runs ahead as a device does. It may carry the hash of all tokens in states, too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::watchdog;
use crate::TokenId;
use crate::backend::BackendError;
use crate::ir::{
    KvDtype, KvLayout, PAGE_TOKENS, PageId, RowSampling, StateLayout, StateSlot, StepError, StepInput,
    StepLimits, Window,
};
use crate::ir::{OpKind, OpTime, OpTimes};
use crate::model::{Decoder, DecoderMemory, ModelError, PageMemory, StateMemory};
use crate::sample::Sampler;

pub(super) const VOCAB: usize = 64;
/// A history with this token has NaN for logits.
pub(super) const POISON: TokenId = TokenId(60);
/// A step with this token fails.
pub(super) const FAILING: TokenId = TokenId(61);
/// A step with this token panics.
pub(super) const PANICKING: TokenId = TokenId(62);

/// A gate that can hold steps.
#[derive(Debug, Default)]
struct Gate {
    closed: bool,
    waiting: bool,
}

/// A test's view of a running decoder, and its switches.
#[derive(Debug, Default)]
pub(super) struct Probe {
    gate: Mutex<Gate>,
    moved: Condvar,
    pub(super) steps: AtomicUsize,
    pub(super) tokens_most: AtomicUsize,
    /// Tokens of all steps.
    pub(super) tokens_all: AtomicUsize,
    /// Steps fed with the tokens of the previous one.
    pub(super) steps_ahead: AtomicUsize,
    /// Number of the step and first token, for each sequence that was computed from its start.
    pub(super) started: Mutex<Vec<(usize, TokenId)>>,
    pub(super) dropped: AtomicBool,
    /// Number of imported pages.
    pub(super) imported: AtomicUsize,
    /// Exporting a page panics, which ends the engine's thread.
    pub(super) breaks_down: AtomicBool,
    /// Every further step finds the device lost.
    pub(super) lost: AtomicBool,
}

impl Probe {
    /// Holds steps from now on.
    pub(super) fn close_gate(&self) {
        self.gate.lock().unwrap().closed = true;
    }

    pub(super) fn open_gate(&self) {
        self.gate.lock().unwrap().closed = false;
        self.moved.notify_all();
    }

    /// Waits until the engine's thread waits at the closed gate.
    pub(super) fn wait_for_a_step(&self) {
        drop(self.moved.wait_while(self.gate.lock().unwrap(), |gate| !gate.waiting).unwrap());
    }

    /// Waits until the engine's thread has dropped the decoder.
    pub(super) fn wait_until_dropped(&self) {
        while !self.dropped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pass_gate(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting = gate.closed;
        self.moved.notify_all();
        gate = self.moved.wait_while(gate, |gate| gate.closed).unwrap();
        gate.waiting = false;
    }
}

#[derive(Debug)]
pub(super) struct Fake {
    pub(super) limits: StepLimits,
    pub(super) context_max: usize,
    pub(super) probe: Arc<Probe>,
    /// Token and position, by page.
    slots: Vec<[(u32, u32); PAGE_TOKENS]>,
    /// The hash of the tokens of a sequence, by slot of state.
    states: Vec<u64>,
    outputs: Vec<u64>,
    model: u8,
    runs_ahead: bool,
    steps: u64,
    /// Tokens sampled by the last step and by the one before.
    sampled: [Vec<Option<TokenId>>; 2],
}

impl Fake {
    pub(super) fn new(pages: usize) -> Fake {
        watchdog::watch();
        Fake {
            limits: StepLimits { tokens_max: 300, outputs_max: 64 },
            context_max: 4096,
            probe: Arc::default(),
            slots: vec![[(u32::MAX, u32::MAX); PAGE_TOKENS]; pages],
            states: Vec::new(),
            outputs: Vec::new(),
            model: 1,
            runs_ahead: true,
            steps: 0,
            sampled: Default::default(),
        }
    }

    /// Leaves sampling to the engine, which then waits for each step.
    pub(super) fn in_step(mut self) -> Fake {
        self.runs_ahead = false;
        self
    }

    pub(super) fn limits(mut self, tokens_max: usize, outputs_max: usize) -> Fake {
        self.limits = StepLimits { tokens_max, outputs_max };
        self
    }

    /// Carries states in `slots` slots, which hold garbage until they are written.
    pub(super) fn stateful(mut self, slots: usize) -> Fake {
        self.states = vec![0xbad; slots];
        self
    }

    /// Advances the hashes of all sequences, and compares those of outputs with the pages.
    fn carry(&mut self, step: &StepInput, tokens: &[TokenId]) {
        let mut outputs = step.outputs.iter().zip(&self.outputs).peekable();
        for (sequence, slots) in step.sequences.iter().zip(&step.states) {
            let mut hash = slots.read.map_or(0, |slot| self.states[slot.index()]);
            for row in sequence.rows.clone() {
                let (token, position) = (tokens[row as usize], step.positions[row as usize]);
                hash = seen(hash, token, position);
                if let Some((_, &read)) = outputs.next_if(|(output, _)| **output == row) {
                    assert!(read == 0 || read == hash | 1, "row {row} has another state than its pages");
                }
            }
            self.states[slots.write.index()] = hash;
        }
    }

    /// Another model: another fingerprint.
    pub(super) fn model(mut self, model: u8) -> Fake {
        self.model = model;
        self
    }

    /// The hash of all tokens that position `query` sees, read from the pages.
    fn read_back(
        &self,
        step: &StepInput,
        pages: &[crate::ir::PageRef],
        query: u32,
        w: Option<Window>,
    ) -> u64 {
        let sees = |key: u32| w.is_none_or(|w| key < w.sinks || key + w.window > query);
        let mut hash = 0;
        for key in (0..=query).filter(|key| sees(*key)) {
            let start = key - key % PAGE_TOKENS as u32;
            let page = pages.iter().find(|entry| entry.start == start);
            let page = page.unwrap_or_else(|| panic!("no page for {key} of {query} in {step:?}"));
            let (token, position) = self.slots[page.page.index()][(key - start) as usize];
            assert_eq!(position, key, "page {page:?} holds another position");
            hash = seen(hash, TokenId(token), key);
            if token == POISON.0 {
                return 0;
            }
        }
        hash | 1
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The hash of a history with another token.
fn seen(hash: u64, token: TokenId, position: u32) -> u64 {
    mix(hash ^ (u64::from(token.0) << 32) ^ u64::from(position))
}

/// The logits of a history's hash; the special tokens are never drawn.
fn logits(hash: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB as u64).map(move |token| match token {
        60.. => f32::NEG_INFINITY,
        _ if hash == 0 => f32::NAN,
        _ => (mix(hash ^ (token << 1)) >> 40) as f32 / (1 << 21) as f32,
    })
}

/// The token that a device samples from the step's input.
fn pick(hash: u64, step: &StepInput, row: &RowSampling) -> Option<TokenId> {
    let mut logits: Vec<f32> = logits(hash).collect();
    for entry in &step.adjustments[row.adjustments.start as usize..row.adjustments.end as usize] {
        logits[entry.token.index()] = entry.apply(logits[entry.token.index()]);
    }
    if hash == 0 { None } else { Sampler::default().pick(&logits, row) }
}

/// The logits that a correct engine reads after `tokens`.
pub(super) fn logits_after(tokens: &[TokenId]) -> Vec<f32> {
    let hash = (0..).zip(tokens).fold(0, |hash, (at, &token)| seen(hash, token, at));
    logits(hash | 1).collect()
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.probe.dropped.store(true, Ordering::SeqCst);
    }
}

impl Decoder for Fake {
    fn limits(&self) -> StepLimits {
        self.limits
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_max(&self) -> usize {
        self.context_max
    }

    fn pages(&self) -> usize {
        self.slots.len()
    }

    fn states(&self) -> StateLayout {
        StateLayout { elements: if self.states.is_empty() { 0 } else { 4 }, slots: self.states.len() }
    }

    /// Eight bytes a token: `[1 layer][keys, values][1 head][16][2]` of f16.
    fn kv_layout(&self) -> KvLayout {
        KvLayout { layers: 1, kv_heads: 1, head_dim: 2, dtype: KvDtype::F16 }
    }

    fn memory(&self) -> DecoderMemory {
        let kv_bytes = self.slots.len() * self.kv_layout().page_bytes();
        DecoderMemory { weight_bytes: 1000, arena_bytes: 100, kv_bytes }
    }

    fn step(&mut self, step: &StepInput) -> Result<(), ModelError> {
        self.probe.pass_gate();
        if self.probe.lost.load(Ordering::SeqCst) {
            let (device, error) = ("a fake".into(), "IT_FELL_OFF".into());
            return Err(BackendError::Device { device, call: "step", error, lost: true }.into());
        }
        let number = self.probe.steps.fetch_add(1, Ordering::SeqCst);
        let firsts = step.positions.iter().zip(&step.tokens).filter(|(position, _)| **position == 0);
        self.probe.started.lock().unwrap().extend(firsts.map(|(_, &token)| (number, token)));
        self.probe.tokens_all.fetch_add(step.tokens.len(), Ordering::SeqCst);
        self.probe.tokens_most.fetch_max(step.tokens.len(), Ordering::SeqCst);
        step.check(self.limits, self.slots.len(), VOCAB).map_err(BackendError::from)?;
        if !self.states.is_empty() {
            step.check_states(self.states.len()).map_err(BackendError::from)?;
        }
        if step.tokens.contains(&PANICKING) || step.tokens.contains(&FAILING) {
            // A failing step has overwritten states.
            step.states.iter().for_each(|slots| self.states[slots.write.index()] = 0xbad);
        }
        assert!(!step.tokens.contains(&PANICKING), "the decoder panics as it was told to");
        if step.tokens.contains(&FAILING) {
            return Err(BackendError::from(StepError("fails as it was told to".into())).into());
        }
        self.steps += 1;
        self.outputs.clear();
        let mut tokens = step.tokens.clone();
        for fed in &step.fed {
            tokens[fed.row as usize] = self.sampled[0][fed.output as usize].unwrap_or(TokenId(0));
        }
        if !step.fed.is_empty() {
            self.probe.steps_ahead.fetch_add(1, Ordering::SeqCst);
        }
        for sequence in &step.sequences {
            let pages = &step.pages[sequence.pages.start as usize..sequence.pages.end as usize];
            for row in sequence.rows.clone() {
                let position = step.positions[row as usize];
                let page = pages.iter().find(|entry| entry.start == position / 16 * 16).unwrap();
                let slot = (position % 16) as usize;
                self.slots[page.page.index()][slot] = (tokens[row as usize].0, position);
            }
        }
        for &row in &step.outputs {
            let sequence = step.sequences.iter().find(|s| s.rows.contains(&row)).unwrap();
            let pages = &step.pages[sequence.pages.start as usize..sequence.pages.end as usize];
            let hash = self.read_back(step, pages, step.positions[row as usize], sequence.window);
            self.outputs.push(hash);
        }
        if !self.states.is_empty() {
            self.carry(step, &tokens);
        }
        self.sampled.swap(0, 1);
        self.sampled[0] =
            self.outputs.iter().zip(&step.sampling).map(|(&hash, row)| pick(hash, step, row)).collect();
        Ok(())
    }

    /// A microsecond for each row, as if it were a matrix product.
    fn step_timed(&mut self, step: &StepInput, times: &mut OpTimes) -> Result<(), ModelError> {
        let total = Duration::from_micros(step.tokens.len() as u64);
        times[OpKind::Matmul as usize] += OpTime { runs: 1, total, ..OpTime::default() };
        self.step(step)
    }

    fn samples(&self, _sampling: &RowSampling) -> bool {
        self.runs_ahead
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn sampled(&mut self, step: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError> {
        let tokens = &self.sampled[(self.steps - step) as usize];
        out.copy_from_slice(&tokens[..out.len()]);
        Ok(())
    }

    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let found = ModelError::Output { found: output, outputs: self.outputs.len() };
        let hash = *self.outputs.get(output).ok_or(found)?;
        out.iter_mut().zip(logits(hash)).for_each(|(out, logit)| *out = logit);
        Ok(())
    }

    fn kv(&self) -> &dyn PageMemory {
        self
    }

    fn kv_mut(&mut self) -> &mut dyn PageMemory {
        self
    }

    fn fingerprint(&self) -> [u8; 32] {
        [self.model; 32]
    }
}

impl PageMemory for Fake {
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        self.slots[to.index()] = self.slots[from.index()];
        Ok(())
    }

    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        assert!(!self.probe.breaks_down.load(Ordering::SeqCst), "breaks down as it was told to");
        for (token, position) in self.slots[page.index()] {
            out.extend(token.to_le_bytes());
            out.extend(position.to_le_bytes());
        }
        Ok(())
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(bytes.len(), 8 * PAGE_TOKENS);
        self.probe.imported.fetch_add(1, Ordering::SeqCst);
        for (slot, bytes) in self.slots[page.index()].iter_mut().zip(bytes.chunks_exact(8)) {
            *slot = (word(&bytes[..4]), word(&bytes[4..]));
        }
        Ok(())
    }

    fn states(&self) -> Option<&dyn StateMemory> {
        Some(self)
    }

    fn states_mut(&mut self) -> Option<&mut dyn StateMemory> {
        Some(self)
    }
}

/// A hash is stored as four numbers, so that each is exact in f32.
impl StateMemory for Fake {
    fn allocate(&mut self, _elements: usize, slots: usize) -> Result<(), BackendError> {
        self.states = vec![0xbad; slots];
        Ok(())
    }

    fn read(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError> {
        let hash = self.states[slot.index()];
        out.iter_mut()
            .zip((0..).step_by(16))
            .for_each(|(out, shift)| *out = f32::from((hash >> shift) as u16));
        Ok(())
    }

    fn write(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), BackendError> {
        self.states[slot.index()] = values.iter().rev().fold(0, |hash, &value| hash << 16 | value as u64);
        Ok(())
    }
}
