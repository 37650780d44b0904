//! `ottava score`: the negative log-likelihood of each token of a text.

use clap::Args;
use ottava::engine::Scores;
use ottava::{Engine, Request, TokenId};
use serde_json::json;

use super::input::TextInput;
use super::numbers::whole;
use super::options::ModelOptions;
use super::visible::in_line;
use super::{Failure, output};

/// Maximum of `--top`.
const TOP_MAX: usize = 10_000;

/// Arguments of `score`.
#[derive(Args)]
pub struct Score {
    #[command(flatten)]
    text: TextInput,
    /// Token ids to score instead of a text, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with_all = ["text", "stdin"],
          allow_hyphen_values = true, value_parser = whole(0, u32::MAX))]
    ids: Option<Vec<u32>>,
    /// Also print the K best logits after each token, 0 to 10000
    #[arg(long, default_value_t = 0, value_name = "K", allow_hyphen_values = true, value_parser = whole(0, TOP_MAX))]
    top: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

impl Score {
    /// Scores the tokens and prints one line per token.
    pub fn run(self) -> Result<(), Failure> {
        let text = match self.ids.is_none() {
            true => self.text.read(&[self.model.reader()])?,
            false => String::new(),
        };
        let engine = self.model.engine()?;
        let ids = match &self.ids {
            Some(ids) => ids.iter().map(|&id| TokenId(id)).collect(),
            None => engine.prompt_ids(&Request::text(text).parse_control_tokens())?,
        };
        let nothing = |what| Err(Failure::Failed(format!("nothing to score: {what}")));
        match *ids {
            [] => return nothing("the text has no tokens"),
            [_] if self.top == 0 => return nothing("the text is one token, and nothing follows it"),
            _ => {}
        }
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
        print(&engine, &ids, &scores)
    }
}

/// Prints one line per token after the first. After each token come the best logits of its successor.
fn print(engine: &Engine, ids: &[TokenId], scores: &Scores) -> Result<(), Failure> {
    let mut page = output::Page::new();
    let piece = |id| in_line(engine.vocab().piece(id).unwrap_or_default());
    for (i, &id) in ids.iter().enumerate() {
        if let Some(nll) = i.checked_sub(1).and_then(|before| scores.nll.get(before)) {
            page.line(format_args!("{nll:>9.4}  {:>7}  {}", id.0, piece(id)))?;
        }
        for &(best, logit) in scores.top.get(i).into_iter().flatten() {
            page.line(format_args!("{:>9}  {:>7}  {logit:>9.4}  {}", "next", best.0, piece(best)))?;
        }
    }
    let total: f64 = scores.nll.iter().sum();
    if !scores.nll.is_empty() {
        page.line(format_args!("{total:>9.4}  total, {:.4} a token", total / scores.nll.len() as f64))?;
    }
    page.finish()
}
