//! Well-known token names, and pre-tokenizer detection from a vocabulary's tokens.

use super::kind::TokenKind;

/// End-of-turn tokens of the supported families' chat formats. Generation stops at those that are control
/// tokens in the vocabulary.
const END_OF_TURN: [&str; 17] = [
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "[|endofturn|]",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "<|return|>",
];

/// End-of-sequence names, valid only for control tokens: as text they may mean something else, as in HTML.
const END_IF_CONTROL: [&str; 4] = ["</s>", "<eos>", "[EOT]", "[EOS]"];

/// Further tokens that occur only in chat formats but do not have the usual form.
const MARKERS: [&str; 12] = [
    "<|im_start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<start_of_turn>",
    "<｜begin▁of▁sentence｜>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
];

/// Names of the end-of-sequence token, most reliable first.
pub(super) const EOS: [&str; 7] =
    ["</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "<|eos|>", "<EOS_TOKEN>"];
/// Names of the begin-of-sequence token, most reliable first.
pub(super) const BOS: [&str; 7] = [
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<｜begin▁of▁sentence｜>",
    "<|bos|>",
    "<BOS_TOKEN>",
];

/// Pre-tokenizers of models that start with BOS by default.
pub(super) const BEGINS_WITH_BOS: [&str; 11] = [
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
];

/// Number of normal tokens from which multi-digit tokens are expected, unless the pre-tokenizer splits
/// digits.
const LARGE: usize = 10_000;

/// Whether generation stops at a token with this name and kind.
pub(super) fn ends_a_turn(piece: &str, kind: TokenKind) -> bool {
    match kind {
        TokenKind::Control => END_OF_TURN.contains(&piece) || END_IF_CONTROL.contains(&piece),
        _ => false,
    }
}

/// Whether the piece occurs only in chat formats.
pub(super) fn is_marker(piece: &str) -> bool {
    piece.len() <= 32 && (END_OF_TURN.contains(&piece) || MARKERS.contains(&piece))
}

/// Brackets around the names of chat markers.
const MARKER_BRACKETS: [(&str, &str); 3] = [("<|", "|>"), ("<｜", "｜>"), ("[|", "|]")];

/// Whether a piece has the form of a chat marker: `<|name|>`, DeepSeek's `<｜name｜>`, EXAONE's `[|name|]`.
pub(super) fn looks_like_a_marker(piece: &str) -> bool {
    let name = MARKER_BRACKETS
        .iter()
        .find_map(|(open, close)| piece.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)));
    name.is_some_and(|name| {
        let of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '▁');
        !name.is_empty() && name.chars().all(of_a_name)
    })
}

/// Whether a piece has the form of a special token: a name in brackets.
pub(super) fn is_bracketed(piece: &str) -> bool {
    let inner = |open, close| piece.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
    inner('<', '>').or(inner('[', ']')).is_some_and(|name| !name.is_empty())
}

/// Features that distinguish vocabularies.
#[derive(Default)]
struct Signs {
    /// A piece like `;` with a line end: the rule keeps line ends with the preceding mark.
    mark_and_line_end: bool,
    /// A piece like `12`: the rule does not split digits.
    digits: bool,
    normal: usize,
    names: Vec<&'static str>,
}

/// Tokens that occur in one family only.
const NAMES: [(&str, &str); 15] = [
    ("<|begin_of_text|>", "llama 3 or 4"),
    ("<|start_header_id|>", "llama 3"),
    ("<|eot_id|>", "llama 3"),
    ("<|header_start|>", "llama 4"),
    ("<|channel|>", "harmony"),
    ("[AVAILABLE_TOOLS]", "tekken"),
    ("<BOS_TOKEN>", "command-r"),
    ("<gh_stars>", "starcoder"),
    ("<jupyter_start>", "starcoder"),
    ("<reponame>", "starcoder"),
    ("<|object_ref_start|>", "qwen"),
    ("<|vision_start|>", "qwen"),
    ("<｜begin▁of▁sentence｜>", "deepseek"),
    (">>TITLE<<", "falcon"),
    ("<sentinel:0>", "chameleon"),
];

/// Detects the pre-tokenizer of a byte-level vocabulary by tokens of one family, or by the kinds of words
/// among the tokens.
pub(super) fn pre_tokenizer<'p>(
    tokens: impl Iterator<Item = (&'p str, &'p TokenKind)>,
) -> Option<&'static str> {
    let mut signs = Signs::default();
    for (piece, kind) in tokens {
        signs.look_at(piece, *kind);
    }
    let has = |name: &str| signs.names.contains(&name);
    let keeps_line_ends = signs.mark_and_line_end;
    Some(if has("llama 4") {
        "llama4"
    } else if has("llama 3 or 4") && has("llama 3") {
        "llama-bpe"
    } else if has("harmony") {
        "gpt-4o"
    } else if has("tekken") {
        "tekken"
    } else if has("command-r") {
        "command-r"
    } else if has("starcoder") {
        "starcoder"
    } else if has("falcon") {
        "falcon"
    } else if has("chameleon") {
        "chameleon"
    } else if has("qwen") || (keeps_line_ends && !signs.digits) {
        "qwen2"
    } else if has("deepseek") {
        match signs.normal {
            0..50_000 => "deepseek-coder",
            50_000..110_000 => "deepseek-llm",
            _ => "deepseek-v3",
        }
    } else if keeps_line_ends {
        "dbrx"
    } else if signs.normal >= LARGE && !signs.digits {
        "smollm"
    } else {
        return None;
    })
}

impl Signs {
    fn look_at(&mut self, piece: &str, kind: TokenKind) {
        if piece.starts_with(['<', '[', '>'])
            && let Some((_, family)) = NAMES.iter().find(|(name, _)| *name == piece)
        {
            self.names.push(family);
        }
        if kind == TokenKind::Normal {
            self.normal += 1;
            let word = piece.strip_prefix('Ġ').unwrap_or(piece);
            self.digits |= word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_digit());
            let mark = piece.trim_end_matches('Ċ');
            self.mark_and_line_end |= mark.len() < piece.len()
                && !mark.is_empty()
                && mark.bytes().all(|byte| byte.is_ascii_punctuation());
        }
    }
}
