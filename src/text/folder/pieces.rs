//! The pieces of a `tokenizer.json`: a token for each id, its kind, and the rules by which pieces merge.

use super::super::kind::byte_token;
use super::super::parts::{Edge, UNUSED};
use super::super::warnings::{self, Warnings};
use super::added::Added;
use super::scheme::Scheme;
use super::{IDS_MAX, needed};
use crate::TokenId;
use crate::checkpoint::{Object, Strings, WeightsError, shown_value};

/// Codes of kinds, as GGUF has them.
const NORMAL: u32 = 1;
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const BYTE: u32 = 6;

/// Pieces and rules.
pub(super) struct Pieces {
    pub tokens: Strings,
    pub kinds: Vec<u32>,
    pub merges: Strings,
    /// Of tokens that do something to the text beside them.
    pub edges: Vec<(TokenId, Edge)>,
}

/// The documents that have them.
pub(super) struct Sources<'j> {
    /// `tokenizer.json`.
    pub root: Object<'j>,
    /// `tokenizer_config.json`.
    pub config: Option<Object<'j>>,
}

/// A token in the making.
#[derive(Clone, Copy)]
struct Token<'j> {
    piece: &'j str,
    kind: u32,
    edge: Edge,
}

/// Tokens by id, as many as the greatest id wants: a file of few bytes may claim any number of rows.
struct Tokens<'j> {
    places: Vec<Option<Token<'j>>>,
    ids_max: usize,
}

impl<'j> Tokens<'j> {
    /// The place of a token; none where the model has no row for it.
    fn place(&mut self, id: u64) -> Option<&mut Option<Token<'j>>> {
        let index = usize::try_from(id).ok().filter(|&index| index < self.ids_max)?;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places.get_mut(index)
    }
}

impl Pieces {
    /// Reads them; token ids are below `rows`.
    pub fn read(
        sources: &Sources<'_>,
        scheme: &Scheme<'_>,
        rows: usize,
        warnings: &mut Warnings,
    ) -> Result<Pieces, WeightsError> {
        let Sources { root, config } = sources;
        let model = needed(root, "model")?;
        let vocab = needed(&model, "vocab")?;
        let mut tokens = vocabulary(&vocab, scheme, rows.min(IDS_MAX))?;
        add_tokens(Added::read(root, config.as_ref(), &vocab)?, &mut tokens, warnings);
        let tokens = tokens.places;
        let merges = merges(&model)?;
        let kinds = tokens.iter().map(|token| token.map_or(UNUSED, |token| token.kind)).collect();
        // Every id has a piece, as in GGUF; these are never produced.
        let piece = |(id, token): (usize, &Option<Token<'_>>)| match token {
            Some(token) => token.piece.to_owned(),
            None => format!("[PAD{id}]"),
        };
        let edges = edges(&tokens);
        Ok(Pieces { tokens: tokens.iter().enumerate().map(piece).collect(), kinds, merges, edges })
    }

    /// The id of a piece.
    pub fn find(&self, piece: &str) -> Option<i64> {
        self.tokens.iter().position(|token| token == piece)?.try_into().ok()
    }
}

/// The pieces of the model, by id.
fn vocabulary<'j>(
    vocab: &Object<'j>,
    scheme: &Scheme<'_>,
    ids_max: usize,
) -> Result<Tokens<'j>, WeightsError> {
    let mut tokens = Tokens { places: Vec::new(), ids_max };
    for (piece, id) in vocab.entries() {
        let place = id.as_u64().and_then(|id| tokens.place(id)).ok_or_else(|| {
            let rows = if ids_max < IDS_MAX { ", the rows of the embedding table" } else { "" };
            vocab.refuse(piece, format!("an id below {ids_max}{rows}"), shown_value(id))
        })?;
        if let Some(other) = place {
            return Err(vocab.refuse(piece, "an id of its own", format!("that of {:?}", other.piece)));
        }
        let kind = match piece {
            _ if scheme.unknown == Some(piece) => UNKNOWN,
            _ if !scheme.is_byte_level() && byte_token(piece).is_some() => BYTE,
            _ => NORMAL,
        };
        *place = Some(Token { piece, kind, edge: Edge::default() });
    }
    Ok(tokens)
}

/// Puts added tokens in their places: control tokens, and text that is always one token.
fn add_tokens<'j>(added: Vec<Added<'j>>, tokens: &mut Tokens<'j>, warnings: &mut Warnings) {
    let mut without_row = warnings::Pieces::default();
    for Added { id, content, is_special, edge } in added {
        match tokens.place(id) {
            Some(place) => {
                // The kind of the unknown token is its own.
                let is_unknown = place.is_some_and(|known| known.kind == UNKNOWN && known.piece == content);
                let kind = match is_special {
                    _ if is_unknown => UNKNOWN,
                    true => CONTROL,
                    false => USER_DEFINED,
                };
                *place = Some(Token { piece: content, kind, edge });
            }
            // The model has no row for it, so it can be no part of a text; Gemma's pictures have such a token.
            None if is_special => {}
            None => without_row.add(content),
        }
    }
    if let Some(shown) = without_row.shown() {
        let fault = "left out, as the embedding table has no row for it";
        warnings.add(format_args!("`added_tokens`, {shown}: {fault}"));
    }
}

/// The edges that do something.
fn edges(tokens: &[Option<Token<'_>>]) -> Vec<(TokenId, Edge)> {
    let edge = |(index, token): (usize, &Option<Token<'_>>)| {
        let edge = token.as_ref()?.edge;
        Some((TokenId(u32::try_from(index).ok()?), edge)).filter(|_| edge != Edge::default())
    };
    tokens.iter().enumerate().filter_map(edge).collect()
}

/// The rules as lines of two pieces and a space. Documents have such lines, or pairs.
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
            // A space in a piece is written as the alphabet of bytes writes it.
            (None, Some((left, right))) => {
                merges.push(&format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")));
            }
            (None, None) => return Err(model.refuse("merges", "rules of two pieces", shown_value(rule))),
        }
    }
    Ok(merges)
}
