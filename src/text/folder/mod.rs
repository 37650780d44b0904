//! Tokenizer of a Hugging Face model folder, converted to the parts of a vocabulary.
//!
//! `tokenizer.json` has pieces and merge rules (`vocabulary`, `pieces`, `scheme`), the steps of encoder
//! tokenizers (`encoder`, `pipeline`) and special tokens around a text (`post_processor`). Added tokens
//! come from it and from `tokenizer_config.json` (`added`). BOS, EOS and the chat template come from the
//! latter and from `generation_config.json` (`special`). Tokenizers that the kinds in `tokenizer.rs`
//! cannot represent are rejected with the key.

mod added;
#[cfg(feature = "text")]
mod base64;
mod encoder;
mod pieces;
#[cfg(feature = "text")]
mod pipeline;
mod post_processor;
mod scheme;
mod special;
mod step;
mod vocabulary;

use super::error::TextError;
use super::frames::Frames;
use super::parts::{VocabParts, key};
use super::warnings::Warnings;
use crate::checkpoint::{Documents, Object, Strings, WeightsError};
use pieces::{Pieces, Sources};
use scheme::Scheme;
use special::Special;

#[cfg(feature = "text")]
pub(crate) use special::chat_template;

/// Maximum number of token ids, regardless of the embedding table's rows. Vocabularies have up to a million.
const IDS_MAX: usize = 1 << 24;

/// Tokenizer data of a folder.
pub(crate) struct FolderText {
    pub(crate) parts: VocabParts,
    /// Merge rules as lines with two pieces and a space.
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) merges: Strings,
    /// Whether the folder has a tokenizer.
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) is_complete: bool,
}

impl FolderText {
    /// Reads `tokenizer.json` and related documents. Without it, tokens are ids without text.
    pub(crate) fn read(documents: &Documents) -> Result<FolderText, TextError> {
        let path = documents.path(Documents::TOKENIZER);
        let Some(document) = documents.json(Documents::TOKENIZER)? else {
            return FolderText::without(documents);
        };
        let config_path = documents.path(Documents::TOKENIZER_CONFIG);
        let config = documents.json(Documents::TOKENIZER_CONFIG)?;
        let config = config.as_ref().map(|config| Object::of(&config_path, config)).transpose()?;
        let sources = Sources { root: Object::of(&path, &document)?, config };
        let mut warnings = Warnings::of_document(&path, key::in_documents);
        let scheme = Scheme::read(&sources.root, &mut warnings)?;
        let pieces = Pieces::read(&sources, &scheme, documents.rows(), &mut warnings)?;
        let special = Special::read(documents, sources.config.as_ref())?;
        let id = |piece: &Option<String>| piece.as_deref().and_then(|piece| pieces.find(piece));
        let (first, after_bos) = match scheme.leading.as_slice() {
            // With `add_bos_token` set, `tokenizer_config.json` also names the BOS token.
            [_] if special.add_bos.is_some() => (None, Vec::new()),
            [first] => (pieces.find(first), Vec::new()),
            several => {
                let mut ids = found(&sources.root, &pieces, several)?.into_iter();
                (ids.next(), ids.collect())
            }
        };
        // The key is about one token, so it does not apply to several.
        let add_bos = special.add_bos.filter(|_| after_bos.is_empty());
        let ends = special.ends;
        let parts = VocabParts {
            model: scheme.model().to_owned(),
            pre: scheme.pre().to_owned(),
            bos: first.or(id(&special.bos)).or(special.bos_id),
            eos: id(&special.eos).or(ends.first().copied()),
            unknown: scheme.unknown.and_then(|piece| pieces.find(piece)),
            padding: id(&special.padding),
            separator: id(&special.separator),
            mask: id(&special.mask),
            ends,
            after_bos,
            add_bos: Some(add_bos.unwrap_or(!scheme.leading.is_empty())),
            frames: scheme
                .frames
                .as_ref()
                .map(|frames| framed(&sources.root, &pieces, frames))
                .transpose()?,
            spaces: scheme.spaces(),
            normalization: Some(scheme.normalization()),
            encoder: scheme.encoder(pieces.scores),
            #[cfg(feature = "text")]
            pipeline: scheme.pipeline(),
            added_tokens: pieces.added_tokens,
            tokens: pieces.tokens,
            by_rules: scheme.by_rules(),
            types: Some(pieces.kinds),
            warnings,
            ..VocabParts::default()
        };
        Ok(FolderText { parts, merges: pieces.merges, is_complete: true })
    }

    fn without(documents: &Documents) -> Result<FolderText, TextError> {
        let special = Special::read(documents, None)?;
        let parts = VocabParts {
            bos: special.bos_id,
            warnings: Warnings::of_document(documents.folder(), key::in_documents),
            ..VocabParts::of_numbers(documents.rows().min(IDS_MAX), special.ends)
        };
        Ok(FolderText { parts, merges: Strings::default(), is_complete: false })
    }
}

/// Frames with the ids of their tokens.
fn framed(root: &Object<'_>, pieces: &Pieces, frames: &Frames<&str>) -> Result<Frames<i64>, WeightsError> {
    let mut missing = None;
    let ids = frames.clone().map(&mut |name: &str| {
        let id = pieces.find(name);
        if id.is_none() {
            missing = Some(name.to_owned());
        }
        id
    });
    match missing {
        Some(name) => {
            Err(root.refuse("post_processor", "special tokens of the vocabulary", format!("`{name}`")))
        }
        None => Ok(ids),
    }
}

/// Ids of the special tokens at the start of a text.
fn found(root: &Object<'_>, pieces: &Pieces, names: &[&str]) -> Result<Vec<i64>, WeightsError> {
    let id = |name: &&str| {
        let refuse =
            || root.refuse("post_processor", "special tokens of the vocabulary", format!("`{name}`"));
        pieces.find(name).ok_or_else(refuse)
    };
    names.iter().map(id).collect()
}

/// A required object of a document.
fn needed<'j>(object: &Object<'j>, key: &str) -> Result<Object<'j>, WeightsError> {
    object.object(key)?.ok_or_else(|| object.refuse(key, "an object", "no such key"))
}
