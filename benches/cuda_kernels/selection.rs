//! The cases by name, and which of them a run measures.

use ottava::backend::cuda::Switches;
use serde_json::{Map, Value, json};

use super::support::brief;

/// What names a case in every row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub op: &'static str,
    /// A model, or a matrix of one.
    pub shape: String,
    pub format: &'static str,
    /// Rows of the step.
    pub tokens: usize,
    /// Keys that the last row of a sequence sees; 0 where an operation sees none.
    pub keys: usize,
    pub sequences: usize,
}

impl Case {
    /// A case that sees no keys, a sequence for each token.
    pub fn new(op: &'static str, shape: &str, format: &'static str, tokens: usize) -> Case {
        Case { op, shape: shape.into(), format, tokens, keys: 0, sequences: tokens }
    }

    /// Whether cases differ in their number of tokens alone, and so have the same weights.
    pub fn has_weights_of(&self, other: &Case) -> bool {
        (self.op, &self.shape, self.format) == (other.op, &other.shape, other.format)
    }

    pub fn as_json(&self) -> Map<String, Value> {
        let Case { op, shape, format, tokens, keys, sequences } = self;
        let mut row = Map::new();
        for (name, value) in
            [("op", json!(op)), ("shape", json!(shape)), ("format", json!(format)), ("tokens", json!(tokens))]
        {
            row.insert(name.into(), value);
        }
        if *keys > 0 {
            row.insert("keys".into(), json!(keys));
            row.insert("sequences".into(), json!(sequences));
        }
        row
    }
}

/// Cases of an operation: all of these shapes in all of these formats, and so on.
struct Cases {
    op: &'static str,
    shapes: &'static [&'static str],
    formats: &'static [&'static str],
    tokens: &'static [usize],
    /// `&[0]` for an operation without keys.
    keys: &'static [usize],
}

/// Rows of a first look at a card, in order of their share of a model's time.
const KEY: &[Cases] = &[
    Cases {
        op: "layer",
        shapes: &["8b", "1b"],
        formats: &["w8g128", "w4g32"],
        tokens: &[1, 4, 16, 64],
        keys: &[512],
    },
    Cases { op: "gate", shapes: &["8b"], formats: &["w8g128", "w4g32"], tokens: &[1, 16, 64], keys: &[0] },
    Cases {
        op: "matmul",
        shapes: &["8b o", "8b down", "8b qkv"],
        formats: &["w8g128", "w4g32"],
        tokens: &[1, 4, 16, 64],
        keys: &[0],
    },
    Cases {
        op: "matmul",
        shapes: &["8b logits"],
        formats: &["w8g32", "w4g32"],
        tokens: &[1, 16, 64],
        keys: &[0],
    },
    Cases {
        op: "append+attention",
        shapes: &["8b", "1b"],
        formats: &["F16"],
        tokens: &[1, 16, 64],
        keys: &[512],
    },
    Cases {
        op: "attention",
        shapes: &["8b"],
        formats: &["F16", "Int8"],
        tokens: &[1, 16, 64],
        keys: &[512, 4096],
    },
    Cases {
        op: "activations",
        shapes: &["4096 columns", "14336 columns"],
        formats: &["f16"],
        tokens: &[64, 2048],
        keys: &[0],
    },
    Cases {
        op: "matmul",
        shapes: &["8b up"],
        formats: &["w8g128", "w4g32"],
        tokens: &[512, 2048],
        keys: &[0],
    },
    Cases { op: "attention", shapes: &["8b"], formats: &["F16"], tokens: &[2048], keys: &[2048] },
    Cases { op: "sample", shapes: &["8b"], formats: &["greedy", "drawn"], tokens: &[1, 16], keys: &[0] },
];

/// What is measured with each switch: whole layers, since all of them act between kernels.
const SWITCHED: &[Cases] = &[
    Cases { op: "layer", shapes: &["1b"], formats: &["w8g128"], tokens: &[1, 16], keys: &[512] },
    Cases { op: "layer", shapes: &["1b"], formats: &["w4g32"], tokens: &[1], keys: &[512] },
    Cases { op: "layer", shapes: &["8b"], formats: &["w8g128", "w4g32"], tokens: &[1], keys: &[512] },
];

/// What a profiler looks at.
const PROFILED: &[Cases] = &[
    Cases { op: "matmul", shapes: &["8b down"], formats: &["w8g128"], tokens: &[1, 64], keys: &[0] },
    Cases { op: "matmul", shapes: &["8b up"], formats: &["w4g32"], tokens: &[1, 2048], keys: &[0] },
    Cases { op: "matmul", shapes: &["8b qkv"], formats: &["w8g128"], tokens: &[16, 512], keys: &[0] },
    Cases { op: "attention", shapes: &["8b"], formats: &["F16", "Int8"], tokens: &[16], keys: &[4096] },
    Cases { op: "attention", shapes: &["8b"], formats: &["F16"], tokens: &[2048], keys: &[2048] },
    Cases { op: "sample", shapes: &["8b"], formats: &["drawn"], tokens: &[1], keys: &[0] },
];

impl Cases {
    fn has(&self, case: &Case) -> bool {
        let named = self.op == case.op
            && self.shapes.contains(&case.shape.as_str())
            && self.formats.contains(&case.format);
        named && self.tokens.contains(&case.tokens) && self.keys.contains(&case.keys)
    }

    fn count(&self) -> usize {
        self.shapes.len() * self.formats.len() * self.tokens.len() * self.keys.len()
    }
}

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// Every case, those of [`KEY`] first.
    All,
    Key,
    Switched,
    Profiled,
}

impl Selection {
    /// As the program's arguments have it.
    pub fn of_arguments() -> Selection {
        let has = |name: &str| std::env::args().any(|argument| argument == name);
        match ["--key", "--switches", "--profile"].map(has) {
            [true, ..] => Selection::Key,
            [_, true, _] => Selection::Switched,
            [.., true] => Selection::Profiled,
            _ => Selection::All,
        }
    }

    fn table(self) -> &'static [Cases] {
        match self {
            Selection::All | Selection::Key => KEY,
            Selection::Switched => SWITCHED,
            Selection::Profiled => PROFILED,
        }
    }

    /// The cases that are measured, in the table's order. A brief run has small shapes: it takes those of the
    /// same operations.
    pub fn of(self, mut cases: Vec<Case>) -> Vec<Case> {
        let table = self.table();
        let row = |case: &Case| {
            table.iter().position(|cases| if brief() { cases.op == case.op } else { cases.has(case) })
        };
        if self != Selection::All {
            cases.retain(|case| row(case).is_some());
        }
        cases.sort_by_key(|case| row(case).unwrap_or(table.len()));
        cases
    }

    /// Panics unless every row of the tables names cases that there are.
    pub fn check(cases: &[Case]) {
        for of_table in [Selection::Key, Selection::Switched, Selection::Profiled].map(Selection::table) {
            for row in of_table {
                let found = cases.iter().filter(|case| row.has(case)).count();
                assert_eq!(found, row.count(), "cases of {} {:?} {:?}", row.op, row.shapes, row.formats);
            }
        }
    }

    /// What the cases are measured with, one after the other.
    pub fn variants(self) -> &'static [Variant] {
        if self == Selection::Switched { VARIANTS } else { &VARIANTS[..1] }
    }
}

/// What the backend is set up with.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub switches: Switches,
}

const SHIPPED: Switches = Switches { carve_out: true, overlap: true };

/// What ships comes first.
const VARIANTS: &[Variant] = &[
    Variant { name: "shipped", switches: SHIPPED },
    Variant { name: "no carve-out", switches: Switches { carve_out: false, ..SHIPPED } },
    Variant { name: "no overlap", switches: Switches { overlap: false, ..SHIPPED } },
];
