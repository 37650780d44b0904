//! Vocabulary of a model in `tokenizer.json`: pieces with ids (BPE, WordPiece) or a list with scores
//! (Unigram).

use std::collections::HashMap;

use serde_json::Value;

use super::needed;
use crate::checkpoint::{Object, WeightsError, shown_value};

/// Pieces of the model.
pub(super) enum Vocabulary<'j> {
    Ids(Object<'j>),
    Scores(Vec<(&'j str, f64)>, HashMap<&'j str, u64>),
}

impl<'j> Vocabulary<'j> {
    pub fn read(model: &Object<'j>) -> Result<Vocabulary<'j>, WeightsError> {
        if model.text("type")? != Some("Unigram") {
            return Ok(Vocabulary::Ids(needed(model, "vocab")?));
        }
        let list = model.list("vocab")?;
        let list = list.ok_or_else(|| model.refuse("vocab", "a list of pieces", "no such key"))?;
        let mut pieces = Vec::with_capacity(list.len());
        let mut ids = HashMap::with_capacity(list.len());
        for (id, entry) in (0..).zip(list) {
            let pair = entry.as_array().and_then(|pair| match pair.as_slice() {
                [piece, score] => Some((piece.as_str()?, score.as_f64()?)),
                _ => None,
            });
            let (piece, score) =
                pair.ok_or_else(|| model.refuse("vocab", "a piece and a score each", shown_value(entry)))?;
            ids.entry(piece).or_insert(id);
            pieces.push((piece, score));
        }
        Ok(Vocabulary::Scores(pieces, ids))
    }

    /// Id of a piece.
    pub fn id(&self, piece: &str) -> Option<u64> {
        match self {
            Vocabulary::Ids(ids) => ids.get(piece).and_then(Value::as_u64),
            Vocabulary::Scores(_, ids) => ids.get(piece).copied(),
        }
    }

    /// Log-probability of each piece; empty without scores.
    pub fn scores(&self) -> Vec<f64> {
        match self {
            Vocabulary::Ids(_) => Vec::new(),
            Vocabulary::Scores(pieces, _) => pieces.iter().map(|(_, score)| *score).collect(),
        }
    }

    /// Pieces and ids. A refused id is shown as in the document.
    pub fn entries(&self) -> Box<dyn Iterator<Item = (&'j str, Option<u64>, String)> + '_> {
        match self {
            Vocabulary::Ids(ids) => {
                Box::new(ids.entries().map(|(piece, id)| (piece, id.as_u64(), shown_value(id))))
            }
            Vocabulary::Scores(pieces, _) => {
                Box::new((0..).zip(pieces).map(|(id, (piece, _))| (*piece, Some(id), id.to_string())))
            }
        }
    }

    /// An error about a piece.
    pub fn refuse(&self, model: &Object<'_>, piece: &str, expected: String, found: String) -> WeightsError {
        match self {
            Vocabulary::Ids(ids) => ids.refuse(piece, expected, found),
            Vocabulary::Scores(..) => model.refuse(&format!("vocab.{piece}"), expected, found),
        }
    }
}
