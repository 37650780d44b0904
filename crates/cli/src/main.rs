//! The `ottava` program: the list of its commands, and its exit codes. Each command is a file.
//!
//! It uses the library's public interface; `inspect`, `bench` and others also use the feature `unstable`.
//! Answers go to stdout. Progress, statistics, notes and errors go to stderr, the first two only on a
//! terminal. Exit codes: 0, 1 (failed), 2 (usage), 128 plus a signal's number.

#![forbid(unsafe_code)]

mod bench;
mod catalog;
mod chat;
mod constrain;
mod devices;
mod embed;
mod env;
mod fetch;
mod health;
mod input;
mod inspect;
mod interrupt;
mod list;
mod memory;
mod notes;
mod numbers;
mod options;
mod output;
mod perplexity;
mod run;
mod score;
mod serve;
mod tokenize;
mod visible;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Runs language models with 8-bit and 4-bit weights near memory bandwidth.
#[derive(Parser)]
#[command(name = "ottava", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer a prompt and stream the answer to stdout
    Run(run::Run),
    /// Chat with a model at a prompt
    Chat(chat::Chat),
    /// Serve OpenAI's and Anthropic's APIs over HTTP
    Serve(serve::Serve),
    /// Fetch known models into the cache, or verify and repair cached ones
    Pull(fetch::Pull),
    /// List known models and their state in the cache
    List(list::List),
    /// List the devices available to --device
    Devices(devices::Devices),
    /// Show a model's metadata, tensors and memory requirements
    Inspect(inspect::Inspect),
    /// Measure prefill and decode speed
    Bench(bench::Bench),
    /// Measure the perplexity of a text
    Perplexity(perplexity::Perplexity),
    /// Show the tokens of a text
    Tokenize(tokenize::Tokenize),
    /// Show the negative log-likelihood of each token of a text
    Score(score::Score),
    /// Turn texts into vectors with an embedding model
    Embed(embed::Embed),
}

/// Early end of a command, with its one-line message.
#[derive(Debug)]
enum Failure {
    /// The work failed: exit code 1. Empty if all errors are already on stderr.
    Failed(String),
    /// A write to stdout failed, which ends all work: exit code 1.
    Output(String),
    /// Invalid command line: exit code 2.
    Usage(String),
    /// The reader of stdout closed its end: no error, exit code 0.
    Closed,
}

impl From<ottava::Error> for Failure {
    fn from(error: ottava::Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// Parses the arguments, runs the command, prints its error.
fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => cli.command.run(),
        Err(error) => parse_result(&error),
    };
    let (message, code) = match result {
        Ok(()) | Err(Failure::Closed) => (String::new(), ExitCode::SUCCESS),
        Err(Failure::Failed(message) | Failure::Output(message)) => (message, ExitCode::FAILURE),
        Err(Failure::Usage(message)) => (message, ExitCode::from(2)),
    };
    if !message.is_empty() {
        output::tell(format_args!("error: {message}"));
    }
    notes::finish();
    code
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Command::Run(command) => command.run(),
            Command::Chat(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Pull(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Devices(command) => command.run(),
            Command::Inspect(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Perplexity(command) => command.run(),
            Command::Tokenize(command) => command.run(),
            Command::Score(command) => command.run(),
            Command::Embed(command) => command.run(),
        }
    }
}

/// Prints help and version. Any other result of clap becomes a usage failure.
fn parse_result(error: &clap::Error) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.print().map_err(output::stdout_failure),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A failed write to stderr does not change the exit code.
            let _ = error.print();
            Err(Failure::Usage(String::new()))
        }
        _ => Err(Failure::Usage(first_lines(&error.render().to_string()))),
    }
}

/// Clap's message and its tip, if there is one, on one line and without the usage text.
fn first_lines(message: &str) -> String {
    let (first, rest) = message.split_once("\n\n").unwrap_or((message, ""));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = words(first.strip_prefix("error: ").unwrap_or(first));
    let tip = rest.lines().map(str::trim).find(|line| line.starts_with("tip: "));
    let tip = tip.map(|tip| format!("; {}", words(tip))).unwrap_or_default();
    format!("{first}{tip}; --help explains the options")
}
