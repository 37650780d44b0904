//! [`EmbedOptions`]: options of an embedding call.

/// Options of [`Embedder::embed`](super::Embedder::embed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedOptions {
    pub(super) dimensions: Option<usize>,
    pub(super) truncate: bool,
    pub(super) normalize: bool,
    pub(super) prompt: Option<String>,
    pub(super) prefix: Option<String>,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        EmbedOptions { dimensions: None, truncate: false, normalize: true, prompt: None, prefix: None }
    }
}

impl EmbedOptions {
    /// Unit vectors of all dimensions; a text beyond the context is an error.
    pub fn new() -> EmbedOptions {
        EmbedOptions::default()
    }

    /// Keeps the first dimensions of a vector, for models with Matryoshka representations. The length is made
    /// 1 afterwards. Default: all.
    pub fn dimensions(mut self, count: usize) -> EmbedOptions {
        self.dimensions = Some(count);
        self
    }

    /// Cuts texts beyond the context at its end. Default: they are an error.
    pub fn truncate(mut self) -> EmbedOptions {
        self.truncate = true;
        self
    }

    /// Leaves vectors at the length that the model gives them. Default: unit length (L2).
    pub fn unnormalized(mut self) -> EmbedOptions {
        self.normalize = false;
        self
    }

    /// Prepends one of the model's prompts to each text, by its name in `config_sentence_transformers.json`:
    /// often `query` or `document`. Default: none. Texts given as token ids stay as they are.
    pub fn prompt(mut self, name: impl Into<String>) -> EmbedOptions {
        self.prompt = Some(name.into());
        self
    }

    /// Prepends a text to each text, such as `search_query: `. It takes precedence over
    /// [`EmbedOptions::prompt`]. Texts given as token ids stay as they are.
    pub fn prefix(mut self, text: impl Into<String>) -> EmbedOptions {
        self.prefix = Some(text.into());
        self
    }
}
