//! [`Encoder`]: tokenizer of an encoder model, with the normalisation and the splits that `tokenizer.json`
//! gives it.

use super::encoder_parts::EncoderParts;
use super::error::TextError;
use super::limit::Ids;
use super::pipeline::Pipeline;
use super::unigram::Unigram;
use super::vocab::Vocab;
use super::wordpiece::WordPiece;

/// WordPiece or Unigram after a pipeline.
#[derive(Debug)]
pub(crate) struct Encoder {
    pipeline: Pipeline,
    model: Model,
}

#[derive(Debug)]
enum Model {
    WordPiece(WordPiece),
    Unigram(Unigram),
}

impl Encoder {
    /// Indexes the pieces. `scores` are those of the vocabulary.
    pub(crate) fn new(
        vocab: &Vocab,
        parts: EncoderParts,
        scores: Vec<f32>,
        pipeline: Pipeline,
    ) -> Result<Encoder, TextError> {
        let model = match parts {
            EncoderParts::WordPiece { chars_max, .. } => Model::WordPiece(WordPiece::new(vocab, chars_max)?),
            EncoderParts::Unigram { scores: own, byte_fallback } => {
                let scores = own.unwrap_or_else(|| scores.into_iter().map(f64::from).collect());
                Model::Unigram(Unigram::new(vocab, scores, byte_fallback)?)
            }
        };
        Ok(Encoder { pipeline, model })
    }

    /// Appends the tokens of plain text. `start` is its byte offset in the whole text.
    pub(crate) fn encode(&self, plain: &str, start: usize, out: &mut Ids) -> Result<(), TextError> {
        self.pipeline.words(plain, start, &mut |word| match &self.model {
            Model::WordPiece(model) => model.encode(word, out),
            Model::Unigram(model) => model.encode(word, out),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::checkpoint::{Array, Checkpoint, GgufWriter, ModelFile, Value};
    use crate::text::charsmap::tests::bytes;
    use crate::text::parts::key;
    use crate::text::{Special, TextError, Texts, Tokenizer, TokensMax};

    const PIECES: [(&str, i32, f32); 10] = [
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("<unk>", 2, 0.0),
        ("▁", 1, -4.0),
        ("▁a", 1, -2.0),
        ("a", 1, -3.0),
        ("b", 1, -3.0),
        ("fi", 1, -2.5),
        ("[PAD8]", 5, -10000.0),
        ("▁▁", 1, -4.5),
    ];

    /// An XLM-RoBERTa of GGUF with a map of characters and these flags.
    fn writer(charsmap: impl Into<Value>, flags: &[(&str, bool)]) -> GgufWriter {
        let mut writer = GgufWriter::new();
        writer.metadata(key::MODEL, "t5");
        writer.metadata(key::TOKENS, Value::Array(Array::String(PIECES.iter().map(|row| row.0).collect())));
        writer.metadata(key::TYPES, Value::Array(Array::I32(PIECES.map(|row| row.1).into())));
        writer.metadata(key::SCORES, Value::Array(Array::F32(PIECES.map(|row| row.2).into())));
        writer.metadata(key::CHARSMAP, charsmap);
        for (key, id) in [(key::BOS, 0_u32), (key::EOS, 1), (key::UNKNOWN, 2), (key::SEPARATOR, 1)] {
            writer.metadata(key, id);
        }
        for &(key, flag) in flags {
            writer.metadata(key, flag);
        }
        writer
    }

    fn map(entries: &[(&str, &str)]) -> Value {
        Value::Array(Array::U8(bytes(entries)))
    }

    fn tokenizer(writer: &GgufWriter) -> Result<Tokenizer, TextError> {
        let file = ModelFile::from_bytes("tiny.gguf", writer.to_bytes()).unwrap();
        Tokenizer::from_metadata(file.metadata())
    }

    fn ids(tokenizer: &Tokenizer, texts: Texts<'_>) -> Vec<u32> {
        let encoding = tokenizer.encode_input(texts, Special::Text, TokensMax::Refuse(99)).unwrap();
        assert!(encoding.types.iter().all(|&kind| kind == 0));
        encoding.ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn unigram_of_gguf_follows_its_keys() {
        let entries = [("ﬁ", "fi"), ("\u{a0}", " ")];
        let writer_of = |flags: &[(&str, bool)]| writer(map(&entries), flags);
        let found = tokenizer(&writer_of(&[(key::ADD_BOS, true), (key::JOIN_SPACES, true)])).unwrap();
        assert_eq!(found.vocab().warnings(), &[] as &[String]);
        assert_eq!(ids(&found, Texts::single(" a \u{a0} aﬁxy ")), [0, 4, 4, 7, 2, 1]);
        assert_eq!(ids(&found, Texts::single("")), [0, 1]);
        assert_eq!(ids(&found, Texts::pair("a", "b</s>")), [0, 4, 1, 1, 3, 6, 2, 1]);
        let decoded =
            found.encode_input(Texts::single("a  ab"), Special::Text, TokensMax::Refuse(99)).unwrap();
        assert_eq!(found.decode(&decoded.ids), "a ab");
        let off = [key::JOIN_SPACES, key::ADD_SPACE_PREFIX, key::ADD_BOS, key::ADD_SEPARATOR, key::ADD_EOS];
        let off = off.map(|key| (key, false));
        let found = tokenizer(&writer_of(&off[..4])).unwrap();
        assert_eq!(ids(&found, Texts::pair("  a", "b")), [3, 4, 1, 6, 1]);
        assert_eq!(ids(&tokenizer(&writer_of(&off)).unwrap(), Texts::single("b   b")), [6, 3, 9, 6]);
    }

    #[test]
    fn a_damaged_map_of_characters_is_refused_by_its_key() {
        let refusal = |charsmap: Value| tokenizer(&writer(charsmap, &[])).unwrap_err().to_string();
        let error = refusal(Value::Array(Array::U8(vec![255; 9])));
        assert!(error.contains("`tokenizer.ggml.precompiled_charsmap`: expected the bytes"), "{error}");
        assert!(refusal("text".into()).contains("found string"));
        let empty = tokenizer(&writer(Value::Array(Array::U8(Vec::new())), &[])).unwrap();
        assert_eq!(ids(&empty, Texts::single("ﬁ")), [3, 2, 1]);
    }
}
