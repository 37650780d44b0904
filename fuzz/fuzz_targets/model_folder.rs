//! Any bytes as the documents and weights of a Hugging Face folder, set apart by a record separator: opened or refused
//! with a typed error, every tensor decoded or refused, text encoded and spelled.

#![no_main]

#[path = "../shared/files.rs"]
mod files;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::{self, OpenOptions};
use ottava::model::ModelConfig;
use ottava::text::{AddBos, ChatTemplate, Special, Tokenizer};

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = files::path("folder");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(files::FOLDER.len(), |&byte| byte == files::SEPARATOR);
    for name in files::FOLDER {
        std::fs::write(FOLDER.join(name), parts.next().unwrap_or_default()).expect("written");
    }
    let Ok(checkpoint) = checkpoint::open(&FOLDER, &OpenOptions::default()) else { return };
    checkpoint.fingerprint().expect("files that stay as they are");
    if let Ok(config) = ModelConfig::from_file(&*checkpoint) {
        assert!(config.rope(0).is_none_or(|rope| rope.inv_freq.len() * 2 == rope.dims));
    }
    for tensor in checkpoint.tensors() {
        let Ok(matrix) = checkpoint.matrix(&tensor.name) else { continue };
        let mut row = vec![0.0; matrix.cols()];
        matrix.dequantize_row(matrix.rows() - 1, &mut row);
    }
    let Ok(tokenizer) = Tokenizer::from_checkpoint(&*checkpoint) else { return };
    if let Ok(ids) = tokenizer.encode("the den, 12\n </s>", Special::Parse, AddBos::AsModel) {
        tokenizer.decode(&ids);
    }
    let _ = ChatTemplate::from_checkpoint(&*checkpoint, tokenizer.vocab());
});
