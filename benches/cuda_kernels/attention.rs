//! Attention over long pasts and of long prompts; the same with the step's own keys appended in the same
//! kernel, as decodes do; and appending by itself, as prompts do.

use std::ops::RangeInclusive;

use ottava::backend::Weights;
use ottava::backend::cuda::Cuda;
use ottava::ir::{Attention, Heads, KvAppend, KvDtype, KvLayout, Op, Place, Rope, RopePairing, StepInput};

use super::cost::Launches;
use super::report::Report;
use super::selection::Case;
use super::support::machine::{Layout, Machine, Room};
use super::support::product::Repeats;
use super::support::random::Random;
use super::support::shapes::{LLAMA_3_1_8B, LLAMA_3_2_1B, QWEN2_5_1_5B, Shape};
use super::support::{decodes, step};
use super::{profiles, repeats};

const MODELS: [Shape; 3] = [LLAMA_3_1_8B, LLAMA_3_2_1B, QWEN2_5_1_5B];
const DTYPES: [(&str, KvDtype); 2] = [("F16", KvDtype::F16), ("Int8", KvDtype::Int8)];
/// Rows and keys of a tile of `attention_prefill.cu`.
const TILE: usize = 64;

/// Pages of a block of `attention_decode.cu`, at least.
const SPLIT_PAGES: usize = 4;
/// What is read of memory at least, and of a step's tables at most.
const SECTOR_BYTES: usize = 32;
const TABLE_BYTES: usize = 1024;

/// What a launch does.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Attends,
    /// Both, in one kernel where all sequences have one token.
    AppendsAndAttends,
    Appends,
}

impl Does {
    fn of(op: &str) -> Does {
        match op {
            "append+attention" => Does::AppendsAndAttends,
            "kv_append" => Does::Appends,
            _ => Does::Attends,
        }
    }
}

/// Attention, appended to before or not.
pub fn cases(brief: bool) -> Vec<Case> {
    let (contexts, prompts, sequences): (&[usize], &[usize], &[usize]) =
        if brief { (&[112], &[48], &[3]) } else { (&[512, 4096], &[512, 2048, 8192], &[1, 4, 16, 64]) };
    let decodes = |keys: usize| sequences.iter().map(move |&count| decode(keys, count));
    let all = contexts.iter().flat_map(|&keys| decodes(keys)).chain(prompts.iter().map(|&keys| prompt(keys)));
    let appending = decodes(contexts[0]).collect::<Vec<_>>();
    [of_all("attention", &all.collect::<Vec<_>>(), brief), of_all("append+attention", &appending, brief)]
        .concat()
}

/// Appending by itself.
pub fn appends(brief: bool) -> Vec<Case> {
    let (sequences, prompts): (&[usize], &[usize]) =
        if brief { (&[3], &[33]) } else { (&[1, 16, 64], &[512, 2048]) };
    let decodes = sequences.iter().map(|&count| decode(512, count));
    of_all("kv_append", &decodes.chain(prompts.iter().map(|&keys| prompt(keys))).collect::<Vec<_>>(), brief)
}

/// Keys, sequences and tokens of a step of single tokens, and of a prompt's.
fn decode(keys: usize, sequences: usize) -> [usize; 3] {
    [keys, sequences, sequences]
}

fn prompt(keys: usize) -> [usize; 3] {
    [keys, 1, keys]
}

/// Each model and kind of pages, with steps of so many keys, sequences and tokens.
fn of_all(op: &'static str, steps: &[[usize; 3]], brief: bool) -> Vec<Case> {
    let models = &MODELS[..if brief { 1 } else { MODELS.len() }];
    let cases = |model: &Shape, (format, _)| {
        let case = |&[keys, sequences, tokens]: &[usize; 3]| Case {
            keys,
            sequences,
            ..Case::new(op, model.name, format, tokens)
        };
        steps.iter().map(case).collect::<Vec<_>>()
    };
    models.iter().flat_map(|model| DTYPES.map(|dtype| cases(model, dtype)).concat()).collect()
}

pub fn measure(report: &mut Report, cases: &[Case]) {
    let model = MODELS.iter().find(|model| model.name == cases[0].shape).expect("a model of this name");
    let dtype = DTYPES.iter().find(|(format, _)| *format == cases[0].format).expect("a kind of pages").1;
    for case in cases {
        let step = if case.tokens > case.sequences {
            step(0..case.keys, 1)
        } else {
            decodes(case.sequences, case.keys - 1)
        };
        let bench = Bench::new((model.heads, dtype), Does::of(case.op), step);
        report.attempt(case, |report| bench.measure(report, case));
    }
}

/// What launches work on: copies are layers of the pages, all else is shared.
struct Bench {
    heads: Heads,
    /// Of a layer.
    kv: KvLayout,
    does: Does,
    step: StepInput,
    q: Place,
    k: Place,
    v: Place,
    angles: Place,
    dst: Place,
    /// Bytes of these.
    bytes: usize,
}

impl Bench {
    fn new((heads, dtype): (Heads, KvDtype), does: Does, step: StepInput) -> Bench {
        let kv = KvLayout { layers: 1, kv_heads: heads.kv, head_dim: heads.dim, dtype };
        let mut layout = Layout::new(step.tokens.len());
        let [q, k, v, angles, dst] = [heads.query, heads.kv, heads.kv, 1, heads.query]
            .map(|heads_of| layout.place(heads_of * heads.dim));
        Bench { heads, kv, does, step, q, k, v, angles, dst, bytes: layout.bytes }
    }

    fn append(&self, layer: usize) -> Op {
        let Bench { q, k, v, angles, heads, .. } = *self;
        let rope = Some(Rope { angles, pairing: RopePairing::Halves });
        Op::KvAppend(KvAppend { q, k, v, layer, heads, q_norm: None, k_norm: None, rope })
    }

    fn attend(&self, layer: usize, window: Option<u32>) -> Op {
        let Bench { q, dst, heads, .. } = *self;
        let scale = 1.0 / (heads.dim as f32).sqrt();
        Op::Attention(Attention { dst, q, layer, heads, scale, window, soft_cap: None })
    }

    fn launch(&self, layer: usize) -> Vec<Op> {
        match self.does {
            Does::Attends => vec![self.attend(layer, None)],
            Does::AppendsAndAttends => vec![self.append(layer), self.attend(layer, None)],
            Does::Appends => vec![self.append(layer)],
        }
    }

    fn repeats(&self) -> Repeats {
        let Repeats { copies, launches } = repeats(self.kv.page_bytes() * self.step.pages.len());
        let prompt = self.step.tokens.len() > self.step.sequences.len();
        Repeats { copies: copies.min(256), launches: launches.min(if prompt { 24 } else { 256 }) }
    }

    fn measure(&self, report: &mut Report, case: &Case) {
        let Repeats { copies, launches } = self.repeats();
        let each = self.launch(0).len();
        let ops: Vec<Op> = (0..launches).flat_map(|launch| self.launch(launch % copies)).collect();
        let (kv, pages) = (KvLayout { layers: copies, ..self.kv }, self.step.pages.len());
        let layout = Layout { bytes: self.bytes, ..Layout::new(self.step.tokens.len()) };
        // What is appended is seen by an attention.
        let all = [ops.clone(), vec![self.attend(0, None)]].concat();
        let room = Room { layout, kv, pages, ops: &all };
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let mut machine = Machine::new(report.cuda(), weights, self.step.clone(), room);
        let tokens = self.step.tokens.len();
        let [q, k, v] = [(3, self.q), (4, self.k), (6, self.v)].map(|(seed, place)| {
            let values = Random(seed).values(tokens * place.cols);
            machine.write(&place, &values);
            values
        });
        let mut random = Random(8);
        let turns: Vec<(f32, f32)> =
            (0..tokens * self.heads.dim / 2).map(|_| random.unit().sin_cos()).collect();
        let rows = turns.chunks(self.heads.dim / 2);
        let angles = |row: &[(f32, f32)]| -> Vec<f32> {
            row.iter().map(|turn| turn.1).chain(row.iter().map(|turn| turn.0)).collect()
        };
        machine.write(&self.angles, &rows.flat_map(angles).collect::<Vec<f32>>());
        match self.does {
            // One launch, over ordinary numbers.
            _ if profiles() => {}
            Does::Appends => self.assert_appended(&mut machine, [&q, &v], &turns),
            _ => self.assert_attended(&mut machine, &ops),
        }
        // Timed over ordinary numbers: a card takes less power for equal ones, and so less time.
        let halves = Random(5).values(kv.page_bytes() / 2).into_iter().map(half::f16::from_f32);
        machine.fill_pages(pages, &halves.flat_map(half::f16::to_le_bytes).collect::<Vec<u8>>());
        machine.write(&self.k, &k);
        machine.write(&self.v, &v);
        if profiles() {
            machine.execute(&ops[..each]);
            return report.profiled(case);
        }
        let measured = report.time(&mut machine, &Launches { ops: &ops, each, matrix: &|_| [0, 0] });
        measured.assert_counts(self.beside(), self.tensor_macs(measured.cost.macs));
        report.row(case, &measured);
    }

    /// Over pages of one value, which is the answer, too; as a graph.
    fn assert_attended(&self, machine: &mut Machine<Cuda>, ops: &[Op]) {
        // 1 as f16; or 60 as a code, with a scale of the same bytes.
        let (bytes_of_one, value) = match self.kv.dtype {
            KvDtype::F16 => ([0x00, 0x3c], 1.0),
            KvDtype::Int8 => ([0x3c, 0x3c], 60.0 * half::f16::from_bits(0x3c3c).to_f32()),
        };
        let page_bytes = machine.kv_layout.page_bytes();
        machine.fill_pages(self.step.pages.len(), &bytes_of_one.repeat(page_bytes / 2));
        let tokens = self.step.tokens.len();
        machine.write(&self.v, &vec![value; tokens * self.v.cols]);
        machine.write(&self.dst, &vec![f32::NAN; tokens * self.dst.cols]);
        let replayed = machine.with_frame(|cuda, frame| cuda.replay_seconds(ops, frame, 0));
        replayed.expect("operations that can be replayed");
        let found = machine.read(&self.dst);
        assert!(found.iter().all(|x| (x - value).abs() < 1e-3 * value), "{value}: {:?}", &found[..8]);
    }

    /// The queries are turned, and a token that sees itself alone attends to its own value.
    fn assert_appended(&self, machine: &mut Machine<Cuda>, [q, v]: [&[f32]; 2], turns: &[(f32, f32)]) {
        machine.execute(&[self.append(0), self.attend(0, Some(1))]);
        let Heads { query, kv, dim } = self.heads;
        let (turned, seen) = (machine.read(&self.q), machine.read(&self.dst));
        let rounding = if self.kv.dtype == KvDtype::F16 { 1e-3 } else { 6e-3 };
        for at in (0..seen.len()).step_by(7) {
            let (token, head, i) = (at / self.q.cols, at % self.q.cols / dim, at % dim);
            let first = at - i + i % (dim / 2);
            let (sine, cosine) = turns[token * (dim / 2) + i % (dim / 2)];
            let (x, y) = (q[first], q[first + dim / 2]);
            let expected = if i < dim / 2 { x * cosine - y * sine } else { y * cosine + x * sine };
            assert!((turned[at] - expected).abs() < 1e-5, "{} for {expected} at {at}", turned[at]);
            let value = v[token * self.v.cols + head / (query / kv) * dim + i];
            assert!((seen[at] - value).abs() < rounding, "{} for {value} at {at}", seen[at]);
        }
    }

    /// Bytes that a launch touches beside its operands, at most: a step's tables, the rest of the sectors of
    /// int8's scales, and the parts that splits hand over.
    fn beside(&self) -> usize {
        let Heads { query, kv, dim } = self.heads;
        let tokens = self.step.tokens.len();
        let splits = match (self.does, self.step.pages.len() / tokens) {
            (Does::Appends, _) | (_, 0) => 0,
            (_, pages) => pages.div_ceil(SPLIT_PAGES),
        };
        let part = size_of::<f32>() * query * (dim + 2) + size_of::<u32>() * query;
        TABLE_BYTES + tokens * (2 * kv * SECTOR_BYTES + splits * part)
    }

    /// Of a launch: prompts multiply whole tiles, decodes do without tensor cores.
    fn tensor_macs(&self, macs: usize) -> RangeInclusive<usize> {
        let tokens = self.step.tokens.len();
        if self.does == Does::Appends || tokens == self.step.sequences.len() {
            return 0..=0;
        }
        let tiles: usize = (1..=tokens.div_ceil(TILE)).sum();
        macs..=2 * self.heads.query * self.heads.dim * tiles * TILE * TILE
    }
}
