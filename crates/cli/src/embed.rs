//! `ottava embed`: vectors of texts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use ottava::api::{Compute, Pooling};
use ottava::{Device, EmbedOptions, Embedder, Embeddings};

use super::Failure;
use super::input::{Lines, NextLine};
use super::numbers::{THREADS_MAX, TOKENS_MAX, whole};
use super::options::{ComputeMode, of_file};
use super::output::{self, Page};

/// Arguments of `embed`.
#[derive(Args)]
pub struct Embed {
    /// Texts, one vector each; - reads a text per line from standard input
    #[arg(required = true, value_name = "TEXT")]
    texts: Vec<String>,
    /// GGUF file or Hugging Face folder of an embedding model
    #[arg(short, long)]
    model: PathBuf,
    /// Print one JSON object: embeddings, and the number of tokens of each text
    #[arg(long)]
    json: bool,
    /// Keep the first N dimensions of each vector, at unit length (Matryoshka)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1, TOKENS_MAX))]
    dimensions: Option<usize>,
    /// Prepend a prompt of the model by its name, such as query or document
    #[arg(long, value_name = "NAME", conflicts_with = "prefix")]
    prompt_name: Option<String>,
    /// Prepend TEXT to each text, such as "search_query: "
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prefix: Option<String>,
    /// Cut texts beyond the context instead of failing
    #[arg(long)]
    truncate: bool,
    /// Pooling of a text's tokens: mean, cls or last [default: the model's own]
    #[arg(long)]
    pooling: Option<Pooling>,
    /// Maximum tokens of a text, up to the trained context [default: the model's own, at most 8192]
    #[arg(short = 'c', long = "ctx", allow_hyphen_values = true, value_parser = whole(1, TOKENS_MAX))]
    context: Option<usize>,
    /// CPU threads, 1 to 1024 [default: one per physical core]
    #[arg(short, long, allow_hyphen_values = true, value_parser = whole(1, THREADS_MAX))]
    threads: Option<usize>,
    /// Data type of activations in products with quantised matrices: int8 is fast, f32 exact
    #[arg(long, value_enum, default_value_t = ComputeMode::Int8)]
    compute: ComputeMode,
    /// Device: auto (a GPU if there is one), cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

/// The number with the fewest digits that rounds to `x` in f32.
fn shortest(x: &f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(*x))
}

impl Embed {
    /// Prints a vector per line, or one JSON object.
    pub fn run(self) -> Result<(), Failure> {
        let texts = self.texts()?;
        let embedder = self.embedder()?;
        let found = embedder.embed(&texts, &self.options())?;
        if self.json {
            let Embeddings { vectors, tokens } = found;
            let vectors: Vec<Vec<f64>> =
                vectors.iter().map(|vector| vector.iter().map(shortest).collect()).collect();
            return output::print_json(&serde_json::json!({ "embeddings": vectors, "tokens": tokens }));
        }
        let mut page = Page::new();
        for vector in &found.vectors {
            let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
            page.line(numbers.join(" "))?;
        }
        page.finish()
    }

    /// The texts, with the lines of standard input in place of each `-`.
    fn texts(&self) -> Result<Vec<String>, Failure> {
        let mut texts = Vec::with_capacity(self.texts.len());
        for text in &self.texts {
            if text != "-" {
                texts.push(text.clone());
                continue;
            }
            let mut lines = Lines::of_stdin();
            loop {
                match lines.next_line()? {
                    NextLine::Line(line) => texts.push(line),
                    NextLine::Bad(reason) => return Err(Failure::Failed(reason)),
                    NextLine::End => break,
                }
            }
        }
        Ok(texts)
    }

    fn options(&self) -> EmbedOptions {
        let mut options = EmbedOptions::new();
        if let Some(count) = self.dimensions {
            options = options.dimensions(count);
        }
        if let Some(name) = &self.prompt_name {
            options = options.prompt(name);
        }
        if let Some(prefix) = &self.prefix {
            options = options.prefix(prefix);
        }
        if self.truncate { options.truncate() } else { options }
    }

    fn embedder(&self) -> Result<Embedder, Failure> {
        let compute = match self.compute {
            ComputeMode::Int8 => Compute::Int8,
            ComputeMode::F32 => Compute::F32,
        };
        let mut builder = Embedder::builder(&self.model).device(self.device).compute(compute);
        if let Some(threads) = self.threads.and_then(NonZeroUsize::new) {
            builder = builder.threads(threads);
        }
        if let Some(context) = self.context {
            builder = builder.context_max(context);
        }
        if let Some(pooling) = self.pooling {
            builder = builder.pooling(pooling);
        }
        let bar = output::LoadBar::new();
        let embedder = builder.build_with(&mut |progress| bar.update(progress));
        bar.finish();
        embedder.map_err(|error| of_file(&self.model, error))
    }
}
