//! Added tokens, which are matched before pre-tokenisation. `tokenizer.json` lists them; entries of
//! `tokenizer_config.json` take precedence, as in transformers.

use std::collections::HashMap;

use super::super::known;
use super::super::parts::AddedTokenRule;
use super::vocabulary::Vocabulary;
use crate::checkpoint::{Object, WeightsError};

/// A token that is matched as a whole.
pub(super) struct Added<'j> {
    pub id: u64,
    pub content: &'j str,
    /// Whether it is a control token.
    pub is_special: bool,
    pub rule: AddedTokenRule,
}

/// Keys of `tokenizer_config.json` with a single special token.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys of `tokenizer_config.json` with a list of special tokens.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

impl<'j> Added<'j> {
    /// Reads the added tokens of both documents. `vocab` is the model's vocabulary.
    pub fn read(
        root: &Object<'j>,
        config: Option<&Object<'j>>,
        vocab: &Vocabulary<'j>,
    ) -> Result<Vec<Added<'j>>, WeightsError> {
        let mut all = All { vocab, by_content: HashMap::new(), list: Vec::new() };
        for token in root.objects("added_tokens")? {
            let (content, id) = (token.text("content")?, token.whole("id")?);
            let (Some(content), Some(id)) = (content, id) else {
                return Err(root.refuse("added_tokens", "an id and a content for each", "one without"));
            };
            all.put(Added::of(&token, id, content)?);
        }
        if let Some(config) = config {
            all.configure(config)?;
        }
        Ok(all.list)
    }

    fn of(token: &Object<'j>, id: u64, content: &'j str) -> Result<Added<'j>, WeightsError> {
        let flag = |key| Ok::<_, WeightsError>(token.flag(key)?.unwrap_or(false));
        let (lstrip, rstrip) = (flag("lstrip")?, flag("rstrip")?);
        let rule = AddedTokenRule { lstrip, rstrip, single_word: flag("single_word")? };
        Ok(Added { id, content, is_special: flag("special")?, rule })
    }
}

/// Added tokens with unique contents.
struct All<'o, 'j> {
    vocab: &'o Vocabulary<'j>,
    by_content: HashMap<&'j str, usize>,
    list: Vec<Added<'j>>,
}

impl<'j> All<'_, 'j> {
    /// Adds a token, or replaces the one with the same content. Pieces of the model keep their id.
    fn put(&mut self, mut token: Added<'j>) {
        let of_model = self.vocab.id(token.content);
        token.id = of_model.unwrap_or(token.id);
        match self.by_content.get(token.content).and_then(|&index| self.list.get_mut(index)) {
            Some(place) => *place = Added { id: place.id, ..token },
            None => {
                self.by_content.insert(token.content, self.list.len());
                self.list.push(token);
            }
        }
    }

    fn configure(&mut self, config: &Object<'j>) -> Result<(), WeightsError> {
        let names = special_names(config);
        if let Some(decoder) = config.object("added_tokens_decoder")? {
            for (key, _) in decoder.entries() {
                let id = key.parse().map_err(|_| decoder.refuse(key, "a token id", key))?;
                let Some(token) = decoder.object(key)? else { continue };
                let content = token.text("content")?;
                let content = content.ok_or_else(|| token.refuse("content", "a text", "no such key"))?;
                let mut added = Added::of(&token, id, content)?;
                added.is_special |= names.contains(&content);
                self.put(added);
            }
        }
        // Special tokens named in the configuration but described in neither document, if the model has them.
        for content in names {
            let id = self.vocab.id(content);
            if let Some(id) = id.filter(|_| !self.by_content.contains_key(content)) {
                self.put(Added { id, content, is_special: true, rule: AddedTokenRule::default() });
            }
        }
        Ok(())
    }
}

/// Contents of the special tokens in the configuration.
fn special_names<'j>(config: &Object<'j>) -> Vec<&'j str> {
    let lists = LISTS.iter().filter_map(|key| config.get(key)?.as_array()).flatten();
    let named = NAMES.iter().filter_map(|key| config.get(key)).chain(lists);
    // A string, or an object with one. Some models pad with `!`, which remains ordinary text.
    let content = |token: &'j serde_json::Value| token.get("content").unwrap_or(token).as_str();
    named.filter_map(content).filter(|content| known::is_bracketed(content)).collect()
}
