//! `ottava chat`: a conversation at a prompt, with history. What fits in the context is in `conversation`, what is
//! called in `tools`.

mod conversation;
mod tools;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use ottava::chat::{AnswerParser, Tools};
use ottava::engine::FinishReason;
use ottava::text::Message;
use ottava::{Engine, Request};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use self::conversation::Conversation;
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
Where tools are called, the next lines are their results. Ctrl-C stops an answer; a second one leaves. Where the context is full the oldest turns are forgotten, with a note.";

/// Arguments of `chat`.
#[derive(Args)]
#[command(after_help = "\
Lines come from the terminal or from standard input, each at most 16 MiB of UTF-8; one that cannot be used is
told and the next one answered. When the context (-c) is full the oldest turns are forgotten, with a note.
With --tools, an answer may call them; the next lines are the results, one for each call.")]
pub struct Chat {
    /// A system message
    #[arg(long, allow_hyphen_values = true, value_parser = input::utf8())]
    system: Option<String>,
    /// Tools that the model may call: a JSON list in the chat API's form
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
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
    System(Option<&'a str>),
    Save(&'a str),
    Exit,
    Unknown(&'a str),
    Say(&'a str),
}

impl Chat {
    /// Loads the model and talks until the end of input.
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
        let mut talk = Talk { chat: &self, engine: &engine, room, conversation, tools, pending };
        if std::io::stdin().is_terminal() { talk.at_terminal() } else { talk.through_pipe() }
    }
}

struct Talk<'a> {
    chat: &'a Chat,
    engine: &'a Engine,
    /// Most tokens of prompt and answer.
    room: usize,
    conversation: Conversation,
    tools: Tools,
    pending: Pending,
}

/// Whether the conversation goes on after a line.
#[derive(PartialEq)]
enum Next {
    Line,
    Leave,
}

impl Talk<'_> {
    fn at_terminal(&mut self) -> Result<(), Failure> {
        let mut editor = DefaultEditor::new().map_err(editor_failure)?;
        let history = history_file();
        if let Some(path) = &history {
            // A first conversation has no history yet.
            let _ = editor.load_history(path);
        }
        let result = self.converse(&mut editor);
        if let Some(path) = &history
            && let Err(error) = editor.save_history(path)
        {
            output::tell(format_args!("warning: history not saved to {}: {error}", path.display()));
        }
        result
    }

    fn converse(&mut self, editor: &mut DefaultEditor) -> Result<(), Failure> {
        loop {
            let prompt = format!("{}> ", self.pending.next().unwrap_or_default());
            let line = match editor.readline(&prompt) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(editor_failure(error)),
            };
            // History is a convenience: a line that it refuses is still answered.
            let _ = editor.add_history_entry(line.as_str());
            if self.take(&line)? == Next::Leave {
                return Ok(());
            }
        }
    }

    fn through_pipe(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::of_stdin();
        loop {
            match lines.next_line()? {
                NextLine::Line(line) if self.take(&line)? == Next::Leave => return Ok(()),
                NextLine::Line(_) => {}
                NextLine::Bad(why) => output::tell(format_args!("error: {why}")),
                NextLine::End => break,
            }
        }
        if lines.count() == 0 {
            output::tell(format_args!("note: nothing was said: {} is empty", input::STDIN));
        }
        Ok(())
    }

    /// Does what a line asks for.
    fn take(&mut self, line: &str) -> Result<Next, Failure> {
        match Line::parse(line) {
            Line::Empty => {}
            Line::Help => output::print_line(HELP)?,
            Line::Clear => {
                self.conversation.clear();
                self.pending = Pending::default();
            }
            Line::System(text) => {
                self.conversation = Conversation::new(text.map(str::to_owned));
                self.pending = Pending::default();
            }
            Line::Save(path) => self.save(path)?,
            Line::Exit => return Ok(Next::Leave),
            Line::Unknown(command) => {
                output::print_line(format_args!("unknown command {command}; /help lists them"))?;
            }
            Line::Say(text) => self.say(text)?,
        }
        Ok(Next::Line)
    }

    /// Takes a line as what the user says, or as a call's result; answers once there is something to answer. A failure
    /// is told, and the conversation goes on without the line.
    fn say(&mut self, text: &str) -> Result<(), Failure> {
        let Some(new) = self.pending.take(text) else { return Ok(()) };
        match self.answer(new) {
            Err(Failure::Failed(message) | Failure::Usage(message)) => {
                self.pending.take_back();
                output::tell(format_args!("error: {message}"));
                Ok(())
            }
            result => result,
        }
    }

    fn answer(&mut self, new: Vec<Message>) -> Result<(), Failure> {
        let sampling = &self.chat.sampling;
        let wanted = sampling.max_tokens();
        let (engine, tools) = (self.engine, &self.tools);
        let encode =
            |messages: &[Message]| engine.prompt_ids(&Request::chat(messages.to_vec()).tools(tools.clone()));
        let fitted = self.conversation.fit(new, self.room, wanted, encode)?;
        if fitted.dropped > 0 {
            let (dropped, room) = (fitted.dropped, self.room);
            output::tell(format_args!(
                "note: the context of {room} tokens is full: {dropped} of the oldest turns forgotten; -c sets another"
            ));
        }
        let tokens_max = wanted.min(self.room - fitted.ids.len());
        let mut request = sampling.apply(Request::tokens(fitted.ids.clone()), sampling.seed_or_new());
        // Without tools an answer is shown as it is.
        let mut parser = (!tools.list.is_empty()).then(|| engine.answer_parser(&fitted.ids, tools));
        if parser.is_some() {
            request = engine.with_tools(request, &fitted.ids, tools)?;
        }
        let mut said = Said::default();
        let answer = self.read(request.max_tokens(tokens_max), parser.as_mut(), &mut said)?;
        if answer.ids.is_empty() && answer.finish == FinishReason::Cancelled {
            // The line goes with its answer, or the next one would wait for it once more.
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

    /// Reads an answer, which Ctrl-C stops, and shows it; what a parser finds in it is kept.
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

    /// What stands under an answer.
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

    fn save(&self, path: &str) -> Result<(), Failure> {
        let messages = self.conversation.messages();
        match std::fs::write(path, format!("{:#}\n", serde_json::json!(messages))) {
            Ok(()) => output::print_line(format_args!("saved {} messages to {path}", messages.len())),
            Err(error) => {
                output::tell(format_args!("error: {path}: {error}"));
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
            ("/system", "") => Line::System(None),
            ("/system", text) => Line::System(Some(text)),
            ("/save", path) if !path.is_empty() => Line::Save(path),
            (command, _) if command.starts_with('/') => Line::Unknown(command),
            _ => Line::Say(line),
        }
    }
}

fn editor_failure(error: ReadlineError) -> Failure {
    match error {
        ReadlineError::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Failure::Closed,
        error => Failure::Failed(format!("cannot read a line from the terminal: {error}")),
    }
}

fn history_file() -> Option<PathBuf> {
    let folder = crate::env::cache_folder()?;
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
        assert_eq!(Line::parse("/system  be brief "), Line::System(Some("be brief")));
        assert_eq!(Line::parse("/system"), Line::System(None));
        assert_eq!(Line::parse("/save a b.json"), Line::Save("a b.json"));
        assert_eq!(Line::parse("/nonsense x"), Line::Unknown("/nonsense"));
        assert_eq!(Line::parse(" hello /help "), Line::Say("hello /help"));
    }
}
