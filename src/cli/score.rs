//! `ottava score`: how likely the model finds each token of a text.

use std::io::Write;

use clap::Args;
use ottava::{Request, TokenId};
use serde_json::json;

use super::options::ModelOptions;
use super::tokenize::read_text;
use super::{Failure, output};

/// Arguments of `score`.
#[derive(Args)]
pub struct Score {
    /// The text, or - for standard input
    #[arg(required_unless_present = "ids", conflicts_with = "ids")]
    text: Option<String>,
    /// Token ids instead of a text
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    ids: Option<Vec<u32>>,
    /// Also give the K best logits after each token
    #[arg(long, default_value_t = 0, value_name = "K")]
    top: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

impl Score {
    /// Prints a line a token.
    pub fn run(self) -> Result<(), Failure> {
        let engine = self.model.engine()?;
        let ids = match (&self.ids, &self.text) {
            (Some(ids), _) => ids.iter().map(|&id| TokenId(id)).collect(),
            (None, text) => {
                let text = read_text(text.as_deref().unwrap_or_default())?;
                engine.prompt_ids(&Request::text(text))?
            }
        };
        let scores = engine.score(&ids, self.top)?;
        if self.json {
            let top: Vec<Vec<_>> = scores
                .top
                .iter()
                .map(|best| best.iter().map(|(id, logit)| json!([id.0, logit])).collect())
                .collect();
            let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
            return output::print_json(&json!({ "ids": ids, "nll": scores.nll, "top": top }));
        }
        let mut out = std::io::stdout().lock();
        for (id, nll) in ids.iter().skip(1).zip(&scores.nll) {
            let piece = engine.vocab().piece(*id).unwrap_or_default();
            writeln!(out, "{nll:>9.4}  {:>7}  {}", id.0, output::one_line(piece))?;
        }
        let total: f64 = scores.nll.iter().sum();
        if !scores.nll.is_empty() {
            writeln!(out, "{total:>9.4}  total, {:.4} a token", total / scores.nll.len() as f64)?;
        }
        Ok(())
    }
}
