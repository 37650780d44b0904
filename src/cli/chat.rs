//! `ottava chat`: a conversation at a prompt, with history.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use ottava::text::Message;
use ottava::{Engine, Request};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::options::{ModelOptions, SamplingOptions};
use super::run::{Flow, answer};
use super::{Failure, output};

const HELP: &str = "\
/help          this list
/clear         forget the conversation
/system TEXT   set the system message and start over
/save FILE     write the conversation as JSON
/exit          leave (as does Ctrl-D)
Ctrl-C stops an answer.";

/// Arguments of `chat`.
#[derive(Args)]
pub struct Chat {
    /// A system message
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

/// What a line typed at the prompt asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Empty,
    Help,
    Clear,
    System(&'a str),
    Save(&'a str),
    Exit,
    Unknown(&'a str),
    Say(&'a str),
}

impl Chat {
    /// Loads the model and talks until the end of input.
    pub fn run(self) -> Result<(), Failure> {
        let engine = self.model.engine()?;
        if !engine.has_chat_template() {
            return Err(ottava::Error::NoChatTemplate { model: engine.info().name.clone() }.into());
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&interrupted);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .map_err(|error| Failure::Failed(format!("cannot watch for Ctrl-C: {error}")))?;
        let mut editor = DefaultEditor::new().map_err(editor_failure)?;
        let history = history_file();
        if let Some(path) = &history {
            // A first conversation has no history yet.
            let _ = editor.load_history(path);
        }
        if output::is_interactive() {
            eprintln!("{} on {}; /help for help", engine.info().name, engine.info().device);
        }
        let mut talk = Talk { chat: &self, engine: &engine, interrupted, messages: Vec::new() };
        talk.start_over(self.system.clone());
        let result = talk.converse(&mut editor);
        if let Some(path) = &history
            && let Err(error) = editor.save_history(path)
        {
            eprintln!("warning: history not saved to {}: {error}", path.display());
        }
        result
    }
}

struct Talk<'a> {
    chat: &'a Chat,
    engine: &'a Engine,
    interrupted: Arc<AtomicBool>,
    messages: Vec<Message>,
}

impl Talk<'_> {
    fn converse(&mut self, editor: &mut DefaultEditor) -> Result<(), Failure> {
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(editor_failure(error)),
            };
            // History is a convenience: a line that it refuses is still answered.
            let _ = editor.add_history_entry(line.as_str());
            match Line::parse(&line) {
                Line::Empty => {}
                Line::Help => output::print_line(HELP)?,
                Line::Clear => self.start_over(self.system()),
                Line::System(text) => self.start_over(Some(text.to_owned())),
                Line::Save(path) => self.save(path)?,
                Line::Exit => return Ok(()),
                Line::Unknown(command) => {
                    output::print_line(format_args!("unknown command {command}; /help lists them"))?;
                }
                Line::Say(text) => self.say(text)?,
            }
        }
    }

    fn system(&self) -> Option<String> {
        self.messages.first().filter(|message| message.role == "system").map(|m| m.content.clone())
    }

    fn start_over(&mut self, system: Option<String>) {
        self.messages.clear();
        self.messages.extend(system.map(|text| Message::new("system", text)));
    }

    /// Answers; a failure is told and the conversation goes on without the line.
    fn say(&mut self, text: &str) -> Result<(), Failure> {
        self.messages.push(Message::new("user", text));
        let sampling = &self.chat.sampling;
        let request = sampling.apply(Request::chat(self.messages.clone()), sampling.seed_or_new());
        self.interrupted.store(false, Ordering::Relaxed);
        let result = answer(self.engine, request, |piece| {
            output::print(piece)?;
            Ok(if self.interrupted.load(Ordering::Relaxed) { Flow::Stop } else { Flow::Continue })
        });
        output::print_line("")?;
        match result {
            Ok(answer) => {
                if output::is_interactive() {
                    let memory = self.engine.stats().memory;
                    eprintln!("{}", output::stats_line(&answer.usage, &answer.timings, &memory));
                }
                self.messages.push(Message::new("assistant", answer.text));
                Ok(())
            }
            Err(Failure::Closed) => Err(Failure::Closed),
            Err(Failure::Failed(message) | Failure::Usage(message)) => {
                eprintln!("error: {}", output::one_line(&message));
                self.messages.pop();
                Ok(())
            }
        }
    }

    fn save(&self, path: &str) -> Result<(), Failure> {
        let messages: Vec<_> = self
            .messages
            .iter()
            .map(|m| serde_json::json!({ "role": m.role, "content": m.content }))
            .collect();
        match std::fs::write(path, format!("{:#}\n", serde_json::Value::from(messages))) {
            Ok(()) => output::print_line(format_args!("saved {} messages to {path}", self.messages.len())),
            Err(error) => {
                eprintln!("error: {path}: {error}");
                Ok(())
            }
        }
    }
}

impl Line<'_> {
    fn parse(line: &str) -> Line<'_> {
        let line = line.trim();
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (command, rest.trim()) {
            ("", _) => Line::Empty,
            ("/help", "") => Line::Help,
            ("/clear", "") => Line::Clear,
            ("/exit" | "/quit" | "/bye", "") => Line::Exit,
            ("/system", text) if !text.is_empty() => Line::System(text),
            ("/save", path) if !path.is_empty() => Line::Save(path),
            (command, _) if command.starts_with('/') => Line::Unknown(command),
            _ => Line::Say(line),
        }
    }
}

fn editor_failure(error: ReadlineError) -> Failure {
    Failure::Failed(format!("cannot read a line: {error}"))
}

fn history_file() -> Option<PathBuf> {
    let folder = ottava::env::cache_folder()?;
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_words() {
        assert_eq!(Line::parse("  "), Line::Empty);
        assert_eq!(Line::parse("/help"), Line::Help);
        assert_eq!(Line::parse("/system  be brief "), Line::System("be brief"));
        assert_eq!(Line::parse("/system"), Line::Unknown("/system"));
        assert_eq!(Line::parse("/save a b.json"), Line::Save("a b.json"));
        assert_eq!(Line::parse("/nonsense x"), Line::Unknown("/nonsense"));
        assert_eq!(Line::parse(" hello /help "), Line::Say("hello /help"));
    }
}
