//! Any bytes as the metadata of a tokenizer: built or refused with a typed error; what it encodes
//! lies in its vocabulary and can be decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::{Checkpoint, ModelFile};
use ottava::text::{AddBos, ChatTemplate, Detokenizer, Special, Texts, Tokenizer, TokensMax};

const TEXTS: [&str; 4] =
    ["", "Hello, world! It's 2024.", "  two\n\nlines\t<|im_end|>", "żółć 東京 👩‍👩‍👧 \u{0}\u{feff}"];

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = ModelFile::from_bytes("fuzz.gguf", bytes.to_vec()) else { return };
    let Ok(tokenizer) = Tokenizer::from_metadata(file.metadata()) else { return };
    let vocab = tokenizer.vocab();
    for (text, special) in TEXTS.into_iter().flat_map(|text| [(text, Special::Parse), (text, Special::Text)])
    {
        let Ok(ids) = tokenizer.encode(text, special, AddBos::AsModel) else { continue };
        assert!(ids.iter().all(|id| id.index() < vocab.len()), "{ids:?}");
        tokenizer.decode(&ids);
        let mut detokenizer = Detokenizer::new(vocab);
        for &id in &ids {
            detokenizer.push(id);
        }
        detokenizer.finish();
        let pair = Texts::pair(text, TEXTS[1]);
        if let Ok(encoding) = tokenizer.encode_input(pair, special, TokensMax::Truncate(9)) {
            assert!(encoding.ids.len() <= 9 && encoding.ids.len() == encoding.types.len());
        }
    }
    let _ = ChatTemplate::from_metadata(file.metadata(), vocab);
});
