//! Tokenizers of a few hundred tokens: every byte, some common pieces, and the tokens of a chat.

use ottava::checkpoint::{Array, GgufWriter, Value};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Merges of two pieces each, in order; `_` stands for a space.
const MERGES: [(&str, &str); 12] = [
    ("t", "h"),
    ("i", "n"),
    ("a", "n"),
    ("e", "r"),
    ("o", "n"),
    ("th", "e"),
    ("_", "the"),
    ("_", "a"),
    ("an", "d"),
    ("_", "and"),
    ("in", "g"),
    ("_", "s"),
];

const CHAT: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What a file says about its tokens.
pub struct Vocabulary {
    pub tokens: Vec<String>,
    kinds: Vec<i32>,
    entries: Vec<(&'static str, Value)>,
}

impl Vocabulary {
    fn push(&mut self, piece: impl Into<String>, kind: i32) {
        self.tokens.push(piece.into());
        self.kinds.push(kind);
    }

    fn id(&self, piece: &str) -> u32 {
        self.tokens.iter().position(|token| token == piece).expect("a piece of the vocabulary") as u32
    }

    /// Says something else, or something more.
    pub fn say(&mut self, key: &'static str, value: Value) {
        self.entries.retain(|(other, _)| *other != key);
        self.entries.push((key, value));
    }

    /// Adds a control token.
    pub fn control(&mut self, piece: &str) {
        self.push(piece, CONTROL);
    }

    /// Makes a token one of another kind.
    pub fn mark(&mut self, piece: &str, kind: i32) {
        let id = self.id(piece) as usize;
        self.kinds[id] = kind;
    }

    /// Adds tokens that nothing is spelled with, until there are `count`: llama.cpp wants one for each row
    /// of the embedding.
    pub fn pad(&mut self, count: usize) {
        for id in self.tokens.len()..count {
            self.push(format!("<unused{id}>"), UNUSED);
        }
    }

    /// Writes the entries.
    pub fn describe(&self, writer: &mut GgufWriter) {
        writer.metadata("tokenizer.ggml.tokens", self.tokens.clone());
        writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(self.kinds.clone())));
        for (key, value) in &self.entries {
            writer.metadata(key, value.clone());
        }
    }
}

/// The printable character that stands for a byte in GPT-2's vocabularies (Radford et al. 2019).
fn printable(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count() as u32;
    char::from_u32(256 + before).expect("a Latin letter")
}

/// Byte-level BPE with a ChatML template, as SmolLM has them.
pub fn byte_level() -> Vocabulary {
    let mut vocabulary = Vocabulary { tokens: Vec::new(), kinds: Vec::new(), entries: Vec::new() };
    for byte in 0..=u8::MAX {
        vocabulary.push(printable(byte), NORMAL);
    }
    let spelled = |piece: &str| piece.replace('_', &printable(b' ').to_string());
    for (left, right) in MERGES {
        vocabulary.push(spelled(left) + &spelled(right), NORMAL);
    }
    for marker in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] {
        vocabulary.push(marker, CONTROL);
    }
    let merges = MERGES.map(|(left, right)| format!("{} {}", spelled(left), spelled(right))).to_vec();
    vocabulary.entries = vec![
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "smollm".into()),
        ("tokenizer.ggml.merges", merges.into()),
        ("tokenizer.ggml.bos_token_id", vocabulary.id("<|endoftext|>").into()),
        ("tokenizer.ggml.eos_token_id", vocabulary.id("<|im_end|>").into()),
        ("tokenizer.ggml.add_bos_token", false.into()),
        ("tokenizer.chat_template", CHAT.into()),
    ];
    vocabulary
}

/// SentencePiece with byte fallback, as Gemma has it; no chat template.
pub fn sentence_piece() -> Vocabulary {
    sentence_piece_with(&[])
}

/// The same with pieces that any text may have.
pub fn sentence_piece_with(pieces: &[&str]) -> Vocabulary {
    let mut vocabulary = Vocabulary { tokens: Vec::new(), kinds: Vec::new(), entries: Vec::new() };
    for (piece, kind) in [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", UNKNOWN)] {
        vocabulary.push(piece, kind);
    }
    for byte in 0..=u8::MAX {
        vocabulary.push(format!("<0x{byte:02X}>"), BYTE);
    }
    let spelled = |piece: &str| piece.replace('_', "\u{2581}");
    // Of merges the first has the highest score; single characters have the lowest.
    let first_merge = vocabulary.tokens.len();
    for (left, right) in MERGES {
        vocabulary.push(spelled(left) + &spelled(right), NORMAL);
    }
    vocabulary.push("\u{2581}", NORMAL);
    for letter in 'a'..='z' {
        vocabulary.push(letter, NORMAL);
    }
    for piece in pieces {
        vocabulary.push(*piece, USER_DEFINED);
    }
    let score = |index: usize| index.checked_sub(first_merge).map_or(0.0, |rank| -(rank as f32));
    let scores = (0..vocabulary.tokens.len()).map(score).collect();
    vocabulary.entries = vec![
        ("tokenizer.ggml.model", "llama".into()),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.bos_token_id", vocabulary.id("<bos>").into()),
        ("tokenizer.ggml.eos_token_id", vocabulary.id("<eos>").into()),
        ("tokenizer.ggml.unknown_token_id", vocabulary.id("<unk>").into()),
        ("tokenizer.ggml.add_bos_token", true.into()),
    ];
    vocabulary
}
