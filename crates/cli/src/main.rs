//! The `ottava` program, over the library's public interface and, for `inspect`, `bench` and others, what its feature
//! `unstable` adds: what the commands are and how the program ends. Each command is a file.
//!
//! Answers go to stdout; progress, statistics, notes and errors to stderr, the first two only on a
//! terminal. Exit codes: 0, 1 (failed), 2 (usage), 128 and a signal's number.

#![forbid(unsafe_code)]

mod bench;
mod catalog;
mod chat;
mod constrain;
mod devices;
mod env;
mod fetch;
mod health;
mod input;
mod inspect;
mod interrupt;
mod list;
mod memory;
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
    /// Talk with the model
    Chat(chat::Chat),
    /// Serve OpenAI's and Anthropic's APIs over HTTP
    Serve(serve::Serve),
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
    /// The work failed: exit code 1. Empty where all of it has been told.
    Failed(String),
    /// Stdout takes no more, which ends all work: exit code 1.
    Output(String),
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

/// Parses the arguments, runs the command, prints its error.
fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => cli.command.run(),
        Err(error) => parse_result(&error),
    };
    let (message, code) = match result {
        Ok(()) | Err(Failure::Closed) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message) | Failure::Output(message)) => (message, ExitCode::FAILURE),
        Err(Failure::Usage(message)) => (message, ExitCode::from(2)),
    };
    if !message.is_empty() {
        output::tell(format_args!("error: {message}"));
    }
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
        }
    }
}

/// Help and version are answers; what is wrong with the arguments becomes one line.
fn parse_result(error: &clap::Error) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.print().map_err(output::stdout_failure),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A stderr that takes nothing leaves the exit code.
            let _ = error.print();
            Err(Failure::Usage(String::new()))
        }
        _ => Err(Failure::Usage(first_lines(&error.render().to_string()))),
    }
}

/// What is wrong, and the tip where there is one; without the usage that follows.
fn first_lines(message: &str) -> String {
    let (first, rest) = message.split_once("\n\n").unwrap_or((message, ""));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = words(first.strip_prefix("error: ").unwrap_or(first));
    let tip = rest.lines().map(str::trim).find(|line| line.starts_with("tip: "));
    let tip = tip.map(|tip| format!("; {}", words(tip))).unwrap_or_default();
    format!("{first}{tip}; --help explains the options")
}
