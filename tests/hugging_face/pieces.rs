//! Pieces that are written as text: the tokens that Hugging Face's `tokenizers` (0.23.3) has for random texts, under each
//! way of such a tokenizer to treat spaces, special tokens and rules.

use ottava::checkpoint::{self, OpenOptions};
use ottava::text::{AddBos, Special, Tokenizer};
use serde_json::Value;

use crate::folder::{Folder, document};
use crate::tiny::Outcome;

/// The document of the case: values in place of those of the common one, by pointer.
fn changed(common: &Value, values: &Value) -> Value {
    let mut json = common.clone();
    for (pointer, value) in values.as_object().into_iter().flatten() {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        json.pointer_mut(parent).expect("the parent is there")[key] = value.clone();
    }
    json
}

#[test]
fn texts_have_the_tokens_of_hugging_face() -> Outcome {
    let golden = document("hf/pieces.json")?;
    let mut texts = 0;
    for case in golden["cases"].as_array().ok_or("no cases")? {
        let json = changed(&golden["tokenizer"], &case["set"]);
        let folder = Folder::of("llama")?.with("tokenizer.json", &json).write()?;
        let checkpoint = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let tokenizer = Tokenizer::from_checkpoint(&*checkpoint)?;
        assert!(
            tokenizer.vocab().warnings().is_empty(),
            "{}: {:?}",
            case["name"],
            tokenizer.vocab().warnings()
        );
        for (text, expected) in case["texts"].as_object().ok_or("no texts")? {
            let ids = tokenizer.encode(text, Special::Parse, AddBos::No)?;
            let found: Vec<u32> = ids.iter().map(|id| id.0).collect();
            assert_eq!(Value::from(found), *expected, "{}: {text:?}", case["name"]);
            texts += 1;
        }
    }
    assert!(texts > 200, "{texts} texts");
    Ok(())
}
