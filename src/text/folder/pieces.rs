//! Pieces of a `tokenizer.json`: a token and a kind for each id, and the merge rules.

use super::super::kind::byte_token;
use super::super::parts::{AddedTokenRule, UNUSED};
use super::super::warnings::{self, Warnings};
use super::added::Added;
use super::scheme::Scheme;
use super::vocabulary::Vocabulary;
use super::{IDS_MAX, needed};
use crate::TokenId;
use crate::checkpoint::{Object, Strings, WeightsError, shown_value};

/// Codes of token kinds, as in GGUF.
const NORMAL: u32 = 1;
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const BYTE: u32 = 6;

/// Pieces and merge rules.
pub(super) struct Pieces {
    pub tokens: Strings,
    pub kinds: Vec<u32>,
    pub merges: Strings,
    /// Log-probability of each token (Unigram), or empty.
    pub scores: Vec<f64>,
    /// Options of added tokens, where not default.
    pub added_tokens: Vec<(TokenId, AddedTokenRule)>,
}

/// Source documents.
pub(super) struct Sources<'j> {
    /// `tokenizer.json`.
    pub root: Object<'j>,
    /// `tokenizer_config.json`.
    pub config: Option<Object<'j>>,
}

/// A token under construction.
#[derive(Clone, Copy)]
struct Token<'j> {
    piece: &'j str,
    kind: u32,
    rule: AddedTokenRule,
}

/// Tokens by id. Grows to the greatest id, because a small file may declare any number of rows.
struct Tokens<'j> {
    places: Vec<Option<Token<'j>>>,
    ids_max: usize,
}

impl<'j> Tokens<'j> {
    /// Slot of a token; `None` if the model has no row for it.
    fn place(&mut self, id: u64) -> Option<&mut Option<Token<'j>>> {
        let index = usize::try_from(id).ok().filter(|&index| index < self.ids_max)?;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places.get_mut(index)
    }
}

impl Pieces {
    /// Reads pieces and rules. Token ids are below `rows`.
    pub fn read(
        sources: &Sources<'_>,
        scheme: &Scheme<'_>,
        rows: usize,
        warnings: &mut Warnings,
    ) -> Result<Pieces, WeightsError> {
        let Sources { root, config } = sources;
        let model = needed(root, "model")?;
        let vocab = Vocabulary::read(&model)?;
        let mut tokens = vocabulary(&model, &vocab, scheme, rows.min(IDS_MAX))?;
        add_tokens(Added::read(root, config.as_ref(), &vocab)?, &mut tokens, warnings);
        let tokens = tokens.places;
        let merges = if scheme.has_merges() { merges(&model)? } else { Strings::default() };
        let mut scores = vocab.scores();
        if !scores.is_empty() {
            scores.resize(tokens.len(), 0.0);
        }
        let kinds = tokens.iter().map(|token| token.map_or(UNUSED, |token| token.kind)).collect();
        // Placeholders for ids without a piece, as in GGUF. These tokens are never produced.
        let piece = |(id, token): (usize, &Option<Token<'_>>)| match token {
            Some(token) => token.piece.to_owned(),
            None => format!("[PAD{id}]"),
        };
        let added_tokens = added_tokens(&tokens);
        let tokens = tokens.iter().enumerate().map(piece).collect();
        Ok(Pieces { tokens, kinds, merges, scores, added_tokens })
    }

    /// The id of a piece.
    pub fn find(&self, piece: &str) -> Option<i64> {
        self.tokens.iter().position(|token| token == piece)?.try_into().ok()
    }
}

/// Pieces of the model by id.
fn vocabulary<'j>(
    model: &Object<'j>,
    vocab: &Vocabulary<'j>,
    scheme: &Scheme<'_>,
    ids_max: usize,
) -> Result<Tokens<'j>, WeightsError> {
    let mut tokens = Tokens { places: Vec::new(), ids_max };
    for (piece, id, shown) in vocab.entries() {
        let place = id.and_then(|id| tokens.place(id)).ok_or_else(|| {
            let rows = if ids_max < IDS_MAX { ", the rows of the embedding table" } else { "" };
            vocab.refuse(model, piece, format!("an id below {ids_max}{rows}"), shown)
        })?;
        if let Some(other) = place {
            let found = format!("that of {:?}", other.piece);
            return Err(vocab.refuse(model, piece, "an id of its own".to_owned(), found));
        }
        let kind = match piece {
            _ if scheme.unknown == Some(piece) => UNKNOWN,
            _ if scheme.has_bytes() && byte_token(piece).is_some() => BYTE,
            _ => NORMAL,
        };
        *place = Some(Token { piece, kind, rule: AddedTokenRule::default() });
    }
    Ok(tokens)
}

/// Inserts the added tokens: control tokens and user-defined ones.
fn add_tokens<'j>(added: Vec<Added<'j>>, tokens: &mut Tokens<'j>, warnings: &mut Warnings) {
    let mut without_row = warnings::Pieces::default();
    for Added { id, content, is_special, rule } in added {
        match tokens.place(id) {
            Some(place) => {
                // The unknown token keeps its kind.
                let is_unknown = place.is_some_and(|known| known.kind == UNKNOWN && known.piece == content);
                let kind = match is_special {
                    _ if is_unknown => UNKNOWN,
                    true => CONTROL,
                    false => USER_DEFINED,
                };
                *place = Some(Token { piece: content, kind, rule });
            }
            // Without a row in the model, a special token cannot occur. Gemma has such a token for images.
            None if is_special => {}
            None => without_row.add(content),
        }
    }
    if let Some(shown) = without_row.shown() {
        let fault = "left out, as the embedding table has no row for it";
        warnings.add(format_args!("`added_tokens`, {shown}: {fault}"));
    }
}

/// Options of added tokens, without the default ones.
fn added_tokens(tokens: &[Option<Token<'_>>]) -> Vec<(TokenId, AddedTokenRule)> {
    let rule = |(index, token): (usize, &Option<Token<'_>>)| {
        let rule = token.as_ref()?.rule;
        Some((TokenId(u32::try_from(index).ok()?), rule)).filter(|_| rule != AddedTokenRule::default())
    };
    tokens.iter().enumerate().filter_map(rule).collect()
}

/// Merge rules as lines with two pieces and a space. Documents contain such lines, or pairs.
fn merges(model: &Object<'_>) -> Result<Strings, WeightsError> {
    let list = model.list("merges")?;
    let list = list.ok_or_else(|| model.refuse("merges", "a list of rules", "no such key"))?;
    let mut merges = Strings::with_capacity(list.len());
    for rule in list {
        let pair = rule.as_array().and_then(|pair| match pair.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        });
        match (rule.as_str(), pair) {
            (Some(line), _) => merges.push(line),
            // Spaces within a piece are written in the byte alphabet.
            (None, Some((left, right))) => {
                merges.push(&format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")));
            }
            (None, None) => return Err(model.refuse("merges", "rules of two pieces", shown_value(rule))),
        }
    }
    Ok(merges)
}
