//! The command line: what the commands are and how the program ends. Each command is a sibling.
//!
//! Answers go to stdout; progress, statistics and errors to stderr, the first two only on a
//! terminal. Exit codes: 0, 1 (failed), 2 (usage).

mod bench;
mod catalog;
mod chat;
mod devices;
mod fetch;
mod health;
mod inspect;
mod list;
mod memory;
mod options;
mod output;
mod perplexity;
mod run;
mod score;
mod tokenize;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs language models with 8-bit and 4-bit weights at the speed of memory.
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
    /// Talk with the model
    Chat(chat::Chat),
    /// Fetch a model into the cache
    Pull(fetch::Pull),
    /// List the models that are known and those in the cache
    List(list::List),
    /// List the devices that --device may name
    Devices(devices::Devices),
    /// Show a file's metadata, tensors and memory need
    Inspect(inspect::Inspect),
    /// Measure prefill and decode speed
    Bench(bench::Bench),
    /// Measure the perplexity of a text
    Perplexity(perplexity::Perplexity),
    /// Show the tokens of a text
    Tokenize(tokenize::Tokenize),
    /// Show the negative log-likelihood of each token
    Score(score::Score),
}

/// Why a command ended without its result: one line, and a hint where there is one.
#[derive(Debug)]
enum Failure {
    /// The work failed: exit code 1.
    Failed(String),
    /// The command line asks for something that makes no sense: exit code 2.
    Usage(String),
    /// The reader of stdout went away: not an error.
    Closed,
}

impl From<ottava::Error> for Failure {
    fn from(error: ottava::Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Failed(error.to_string()),
        }
    }
}

/// Parses the arguments, runs the command, prints its error.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(command) => command.run(),
        Command::Chat(command) => command.run(),
        Command::Pull(command) => command.run(),
        Command::List(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Perplexity(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Score(command) => command.run(),
    };
    let (message, code) = match result {
        Ok(()) | Err(Failure::Closed) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => (message, ExitCode::FAILURE),
        Err(Failure::Usage(message)) => (message, ExitCode::from(2)),
    };
    eprintln!("error: {}", output::one_line(&message));
    code
}
