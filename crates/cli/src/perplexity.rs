//! `ottava perplexity`: perplexity by the protocol of llama-perplexity, so that figures are comparable.
//!
//! The text is split into chunks of `-c` tokens. In each chunk the tokens of the second half are scored,
//! given all earlier tokens of the chunk. If the model adds a BOS, it replaces the first token of each chunk.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use ottava::model::ModelConfig;
use ottava::text::{AddBos, Special};
use serde_json::json;

use super::numbers::{TOKENS_MAX, whole};
use super::options::{ModelOptions, of_file};
use super::{Failure, input, output};

/// Default of `-c`: tokens per chunk, as in llama-perplexity.
const CHUNK_TOKENS: usize = 512;
/// Minimum tokens per chunk: one token of its second half is scored.
const CHUNK_TOKENS_MIN: usize = 4;

/// Arguments of `perplexity`.
#[derive(Args)]
#[command(after_help = "A chunk has -c tokens. Default of -c: 512, at most the trained context.")]
pub struct Perplexity {
    /// Text file, UTF-8 of at most 16 MiB; - or none reads standard input
    file: Option<PathBuf>,
    /// Maximum chunks to score [default: all]
    #[arg(long, allow_hyphen_values = true, value_parser = whole(1, TOKENS_MAX))]
    chunks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Running sums of negative log-likelihoods, for their mean and its standard error.
#[derive(Default)]
struct Total {
    sum: f64,
    squares: f64,
    count: usize,
}

impl Perplexity {
    /// Scores the text and prints the perplexity with its standard error.
    pub fn run(mut self) -> Result<(), Failure> {
        let (text, source) = self.text()?;
        let asked = self.model.context.unwrap_or(CHUNK_TOKENS);
        if asked < CHUNK_TOKENS_MIN {
            return Err(Failure::Usage(format!(
                "-c: expected at least {CHUNK_TOKENS_MIN} tokens of a chunk, found {asked}"
            )));
        }
        if self.model.context.is_none() {
            self.model.context = Some(CHUNK_TOKENS.min(self.trained_context()?));
        }
        let engine = self.model.engine()?;
        let chunk_tokens = asked.min(engine.info().context_max);
        // Encoded without the engine's length check: a text longer than the context is scored in chunks.
        let ids =
            engine.tokenizer().encode(&text, Special::Parse, AddBos::AsModel).map_err(ottava::Error::from)?;
        let chunks = (ids.len() / chunk_tokens).min(self.chunks.unwrap_or(usize::MAX));
        if chunks == 0 {
            let found = ids.len();
            return Err(Failure::Failed(format!(
                "{source}: the text has {found} tokens, one chunk needs {chunk_tokens} (-c)"
            )));
        }
        let mut total = Total::default();
        for (index, chunk) in ids.chunks_exact(chunk_tokens).take(chunks).enumerate() {
            let mut chunk = chunk.to_vec();
            chunk.iter_mut().zip(engine.vocab().leading()).for_each(|(id, leading)| *id = *leading);
            // nll[i] is of token i + 1, so this is the second half without its first token.
            total.add(&engine.score_from(&chunk, chunk_tokens / 2)?);
            if output::is_interactive() {
                output::tell(format_args!("[{}/{chunks}] {:.4}", index + 1, total.perplexity()));
            }
        }
        self.print(&total, chunks, chunk_tokens)
    }

    fn trained_context(&self) -> Result<usize, Failure> {
        let file = self.model.checkpoint()?;
        let config = ModelConfig::from_file(&*file).map_err(|error| of_file(file.path(), error.into()))?;
        Ok(config.context_length)
    }

    /// The text, and the name of its source.
    fn text(&self) -> Result<(String, String), Failure> {
        let is_stdin = self.file.as_ref().is_none_or(|path| path.as_os_str() == "-");
        input::check_readers([is_stdin.then_some("FILE"), self.model.reader()])?;
        match &self.file {
            Some(path) if path.as_os_str() != "-" => {
                Ok((input::read_file(path)?, path.display().to_string()))
            }
            None if std::io::stdin().is_terminal() => {
                Err(Failure::Usage("no text: give FILE, or pipe a text to standard input".into()))
            }
            _ => Ok((input::read_stdin()?, input::STDIN.into())),
        }
    }

    fn print(&self, total: &Total, chunks: usize, chunk_tokens: usize) -> Result<(), Failure> {
        if self.json {
            return output::print_json(&json!({
                "perplexity": total.perplexity(),
                "standard_error": total.standard_error(),
                "nll_mean": total.mean(),
                "tokens_scored": total.count,
                "chunks": chunks,
                "chunk_tokens": chunk_tokens,
            }));
        }
        let (perplexity, error) = (total.perplexity(), total.standard_error());
        output::print_line(format_args!("perplexity {perplexity:.4} ± {error:.4}"))
    }
}

impl Total {
    fn add(&mut self, nll: &[f64]) {
        self.sum += nll.iter().sum::<f64>();
        self.squares += nll.iter().map(|x| x * x).sum::<f64>();
        self.count += nll.len();
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity, from that of the mean by the delta method.
    fn standard_error(&self) -> f64 {
        let n = self.count as f64;
        if self.count < 2 {
            return f64::NAN;
        }
        let variance = (self.squares / n - self.mean().powi(2)).max(0.0);
        (variance / (n - 1.0)).sqrt() * self.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_guesses_over_n_tokens_have_perplexity_n() {
        let mut total = Total::default();
        total.add(&[(7.0f64).ln(); 5]);
        total.add(&[(7.0f64).ln(); 4]);
        assert!((total.perplexity() - 7.0).abs() < 1e-12);
        assert!(total.standard_error() < 1e-6);
    }
}
