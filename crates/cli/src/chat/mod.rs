//! `ottava chat`: a conversation at a prompt. `conversation` fits the messages in the context, `tools` has
//! tool calls, `history` the lines of earlier conversations.

mod conversation;
mod history;
mod tools;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ottava::chat::{AnswerParser, Tools};
use ottava::engine::FinishReason;
use ottava::file::Temporary;
use ottava::text::Message;
use ottava::{Engine, Request};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

use self::conversation::Conversation;
use self::history::History;
use self::tools::{Pending, Said};
use super::input::{self, Lines, NextLine};
use super::interrupt::{self, Answering};
use super::options::{ModelOptions, SamplingOptions};
use super::run::{self, Answer};
use super::{Failure, output};

const HELP: &str = "\
/help          this list
/clear         forget the conversation
/system TEXT   set the system message and start over; without TEXT there is none
/save FILE     write the conversation as JSON
/exit          leave (as does Ctrl-D)
After tool calls, the next lines are the results, one per call; empty lines are results, too, commands are not.
Ctrl-C stops an answer; a second Ctrl-C during the stop ends the program.
When the context is full, the oldest turns are dropped, with a note.";

/// Arguments of `chat`.
#[derive(Args)]
#[command(after_help = "\
Input lines come from the terminal or standard input, UTF-8 of at most 16 MiB each. A line that fails prints an
error, and the conversation goes on; through a pipe the exit code is then 1. When the context (-c) is full, the
oldest turns are dropped, with a note. With --tools, the lines after a tool call are its results, one per call.")]
pub struct Chat {
    /// System message
    #[arg(long, allow_hyphen_values = true, value_parser = input::utf8())]
    system: Option<String>,
    /// Tools that the model may call: a file with a JSON list in the chat API's form
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

/// A parsed line: a command, or text for the model.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Empty,
    Help,
    Clear,
    System(Option<&'a str>),
    Save(&'a str),
    Exit,
    Unknown(&'a str),
    Say(&'a str),
}

impl Chat {
    /// Loads the model and answers lines until the end of input.
    pub fn run(self) -> Result<(), Failure> {
        let tools = self.tools.as_ref().and_then(|file| input::reader("--tools", file));
        input::check_readers([tools, self.model.reader(), Some("the conversation")])?;
        let tools = self.tools.as_deref().map(tools::read).transpose()?.unwrap_or_default();
        let engine = self.model.engine()?;
        if !engine.has_chat_template() {
            return Err(ottava::Error::NoChatTemplate { model: engine.info().name.clone() }.into());
        }
        interrupt::watch()?;
        self.sampling.tell_top_k(engine.vocab().len());
        if output::is_interactive() {
            output::tell(format_args!(
                "{} on {}; /help for help",
                engine.info().name,
                engine.info().device_name
            ));
        }
        let room = engine.info().context_max;
        let conversation = Conversation::new(self.system.clone());
        let pending = Pending::default();
        let mut talk =
            Talk { chat: &self, engine: &engine, room, conversation, tools, pending, has_failed: false };
        if std::io::stdin().is_terminal() { talk.at_terminal() } else { talk.through_pipe() }
    }
}

struct Talk<'a> {
    chat: &'a Chat,
    engine: &'a Engine,
    /// Maximum tokens of prompt and answer: the context.
    room: usize,
    conversation: Conversation,
    tools: Tools,
    pending: Pending,
    /// Whether a line failed: the exit code if input is a pipe.
    has_failed: bool,
}

/// Next action after a line.
#[derive(PartialEq)]
enum Next {
    Line,
    Leave,
}

impl Talk<'_> {
    fn at_terminal(&mut self) -> Result<(), Failure> {
        // If stdout is a file, the prompt and its escape sequences still go to the terminal.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().behavior(behavior).build();
        let mut editor = DefaultEditor::with_config(config).map_err(editor_failure)?;
        let mut history = History::load(&mut editor);
        loop {
            let prompt = format!("{}> ", self.pending.next().unwrap_or_default());
            let line = match editor.readline(&prompt) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(editor_failure(error)),
            };
            history.keep(&mut editor, &line);
            if self.take(&line)? == Next::Leave {
                return Ok(());
            }
        }
    }

    fn through_pipe(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::of_stdin();
        loop {
            match lines.next_line()? {
                NextLine::Line(line) if self.take(&line)? == Next::Leave => break,
                NextLine::Line(_) => {}
                NextLine::Bad(why) => self.fail(why),
                NextLine::End => break,
            }
        }
        if lines.count() == 0 {
            output::tell(format_args!("note: nothing was said: {} is empty", input::STDIN));
        }
        // The messages are already on stderr; a script gets the exit code.
        if self.has_failed { Err(Failure::Failed(String::new())) } else { Ok(()) }
    }

    /// Prints the error of a line. The conversation goes on without the line.
    fn fail(&mut self, why: impl std::fmt::Display) {
        self.has_failed = true;
        output::tell(format_args!("error: {why}"));
    }

    /// Runs a command, or answers the line.
    fn take(&mut self, line: &str) -> Result<Next, Failure> {
        let asked = if self.pending.next().is_some() { Line::of_result(line) } else { Line::parse(line) };
        match asked {
            Line::Empty => {}
            Line::Help => HELP.lines().for_each(output::tell),
            Line::Clear => {
                self.conversation.clear();
                self.pending = Pending::default();
            }
            Line::System(text) => {
                self.conversation = Conversation::new(text.map(str::to_owned));
                self.pending = Pending::default();
            }
            Line::Save(path) => self.save(Path::new(path)),
            Line::Exit => return Ok(Next::Leave),
            Line::Unknown(command) => {
                self.fail(format_args!("unknown command {command}; /help lists them"));
            }
            Line::Say(text) => self.say(text)?,
        }
        Ok(Next::Line)
    }

    /// Takes a line as a user message or as a call's result, and answers once all results are there. A failed
    /// line is reported, and the conversation goes on without it. A failed write to stdout ends the
    /// conversation: all further answers would be lost.
    fn say(&mut self, text: &str) -> Result<(), Failure> {
        let Some(new) = self.pending.take(text) else { return Ok(()) };
        match self.answer(new) {
            Err(Failure::Failed(message) | Failure::Usage(message)) => {
                self.pending.take_back();
                self.fail(message);
                Ok(())
            }
            result => result,
        }
    }

    fn answer(&mut self, new: Vec<Message>) -> Result<(), Failure> {
        let sampling = &self.chat.sampling;
        let wanted = sampling.max_tokens();
        let (engine, tools) = (self.engine, &self.tools);
        let encode = |messages: &[Message]| {
            let prompt = engine.prepare(Request::chat(messages.to_vec()).tools(tools.clone()))?;
            let tokens = prompt.prompt_ids().len();
            Ok((prompt, tokens))
        };
        let fitted = self.conversation.fit(new, self.room, wanted, encode)?;
        if fitted.dropped > 0 {
            let (dropped, room) = (fitted.dropped, self.room);
            output::tell(format_args!(
                "note: the context of {room} tokens is full: {dropped} of the oldest turns forgotten; -c sets another"
            ));
        }
        let prompt = fitted.prompt;
        let tokens_max = wanted.min(self.room - prompt.prompt_ids().len());
        // Without tools the answer is printed unparsed.
        let mut parser = (!tools.list.is_empty()).then(|| prompt.answer_parser());
        let request = sampling.apply(prompt.into(), sampling.seed_or_new());
        let mut said = Said::default();
        let answer = self.read(request.max_tokens(tokens_max), parser.as_mut(), &mut said)?;
        if answer.ids.is_empty() && answer.finish == FinishReason::Cancelled {
            // An answer cancelled before its first token is dropped together with its line.
            self.pending.take_back();
            return Ok(());
        }
        let (message, pending) = match parser {
            Some(_) => said.finish(),
            None => (Message::new("assistant", answer.text), Pending::default()),
        };
        self.pending = pending;
        self.conversation.commit(fitted.messages, message);
        Ok(())
    }

    /// Reads and prints an answer, which Ctrl-C stops. With a parser, its parts are also collected.
    fn read(
        &self,
        request: Request,
        mut parser: Option<&mut AnswerParser>,
        said: &mut Said,
    ) -> Result<Answer, Failure> {
        let generation = self.engine.submit(request)?;
        let canceller = generation.canceller();
        let answering = Answering::new(move || canceller.cancel());
        let result = run::read(generation, |piece| match &mut parser {
            Some(parser) => said.take(parser.push(piece)),
            None => output::print(piece),
        });
        drop(answering);
        if let Some(parser) = parser {
            said.take(parser.finish())?;
        }
        output::print_line("")?;
        let answer = result?;
        self.tell(&answer);
        Ok(answer)
    }

    /// Prints the note on a cut answer and, on a terminal, the statistics.
    fn tell(&self, answer: &Answer) {
        if answer.finish == FinishReason::Length {
            let cut = self.chat.sampling.cut(answer.usage.completion_tokens, self.room);
            output::tell(format_args!("note: {cut}"));
        }
        if output::is_interactive() {
            let memory = self.engine.stats().memory;
            output::tell(output::stats_line(&answer.usage, &answer.timings, &memory));
        }
    }

    fn save(&mut self, path: &Path) {
        let messages = self.conversation.messages();
        let (count, text) = (messages.len(), format!("{:#}\n", serde_json::json!(messages)));
        match write_whole(path, &text) {
            Ok(()) => output::tell(format_args!("note: saved {count} messages to {}", path.display())),
            Err(error) => self.fail(format_args!("{}: {error}", path.display())),
        }
    }
}

/// Replaces a file atomically: the old text stays until the new one is on disk. Symbolic links are followed.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let temporary = Temporary::beside(&target)?;
    if let Ok(data) = std::fs::metadata(&target) {
        // Permissions of the old file are kept.
        temporary.file().set_permissions(data.permissions())?;
    }
    temporary.file().write_all(text.as_bytes())?;
    temporary.rename_to(&target)
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
            ("/system", "") => Line::System(None),
            ("/system", text) => Line::System(Some(text)),
            ("/save", path) if !path.is_empty() => Line::Save(path),
            (command, _) if is_command(command) => Line::Unknown(command),
            _ => Line::Say(line),
        }
    }

    /// Parses a line while a call is pending: any line except an existing command is its result, unchanged.
    fn of_result(line: &str) -> Line<'_> {
        match Line::parse(line) {
            Line::Empty | Line::Unknown(_) | Line::Say(_) => Line::Say(line),
            command if line.starts_with('/') => command,
            _ => Line::Say(line),
        }
    }
}

/// Whether the first word of a line is a command and not a path.
fn is_command(word: &str) -> bool {
    word.strip_prefix('/').is_some_and(|name| !name.is_empty() && !name.contains(['/', '.', '~']))
}

fn editor_failure(error: ReadlineError) -> Failure {
    match error {
        ReadlineError::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Failure::Closed,
        error => Failure::Failed(format!("cannot read a line from the terminal: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_words() {
        assert_eq!(Line::parse("  "), Line::Empty);
        assert_eq!(Line::parse("/help"), Line::Help);
        assert_eq!(Line::parse("/system  be brief "), Line::System(Some("be brief")));
        assert_eq!(Line::parse("/system"), Line::System(None));
        assert_eq!(Line::parse("/save a b.json"), Line::Save("a b.json"));
        assert_eq!(Line::parse("/nonsense x"), Line::Unknown("/nonsense"));
        assert_eq!(Line::parse(" hello /help "), Line::Say("hello /help"));
        for path in ["/etc/passwd what is it?", "/", "// a comment", "/.profile", "/~", "/home/user"] {
            assert_eq!(Line::parse(path), Line::Say(path));
        }
    }

    #[test]
    fn a_result_is_whatever_is_no_command() {
        assert_eq!(Line::of_result("/help"), Line::Help);
        assert_eq!(Line::of_result("/system be brief"), Line::System(Some("be brief")));
        for result in ["", " ", "/home/user", "/nonsense", "/save", "/help me", " /exit", " two\t"] {
            assert_eq!(Line::of_result(result), Line::Say(result));
        }
    }

    #[test]
    fn a_save_that_fails_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        write_whole(&path, "one").unwrap();
        write_whole(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            write_whole(&path, "two").unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(write_whole(folder.path(), "three").is_err());
        assert!(write_whole(&path.join("below"), "three").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
