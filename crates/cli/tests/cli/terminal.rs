//! Terminals, which text from files, models and users must not control; full and closed streams. The
//! terminals are pseudo-terminals.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use ottava::checkpoint::GgufWriter;

use super::*;

/// Sequences of ESC and of C1 controls, a window title, an overwritten line, and right-to-left text.
const HOSTILE: &str = "a\u{1b}[2Jb\u{9b}31mc\u{1b}]0;title\u{7}d\re\u{8}f\u{202e}g\u{85}h\u{7f}\ni";

/// Output of the program on a terminal that is its stdout and stderr.
fn at_terminal(arguments: &[&str], input: Stdio) -> String {
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut terminal = command(arguments);
    let slave = |descriptor: &OwnedFd| Stdio::from(descriptor.try_clone().unwrap());
    terminal.env("TERM", "xterm").stdin(input).stdout(slave(&pty.slave)).stderr(slave(&pty.slave));
    let mut child = terminal.spawn().unwrap();
    drop((terminal, pty.slave));
    let mut shown = Vec::new();
    let mut master = File::from(pty.master);
    let mut block = [0; 4096];
    // A read at the end of a pseudo-terminal is an error.
    while let Ok(n @ 1..) = master.read(&mut block) {
        shown.extend(&block[..n]);
    }
    assert_ne!(child.wait().unwrap().code(), None, "{arguments:?}: killed");
    String::from_utf8(shown).expect("a terminal gets UTF-8")
}

/// Checks for control and bidirectional characters. Tabs and line breaks, `\r\n` on a terminal, are allowed.
#[track_caller]
fn is_harmless(shown: &str) {
    let text = shown.replace("\r\n", "\n");
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
    };
    let found = text.char_indices().find(|&(_, c)| steers(c));
    assert_eq!(found, None, "{shown:?}");
}

/// The output after the progress bar: the bar itself moves the cursor by escape sequences.
fn after_loading(shown: &str) -> &str {
    shown.rsplit("\u{1b}[2K").next().unwrap()
}

/// A model in which the file name, the metadata, a tensor and a token are hostile.
fn hostile_model() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil\u{1b}[31m\u{9b}1m\u{202e}\n.gguf");
    let vocabulary = tiny::vocabulary::sentence_piece_with(&[HOSTILE]);
    let tiny = tiny::Tiny::narrow(vocabulary.tokens.len());
    let bytes = tiny::file_with(&tiny, &[], |writer: &mut GgufWriter| {
        writer.metadata("general.name", HOSTILE);
        writer.metadata(&format!("key.{HOSTILE}"), HOSTILE);
        writer.vector(&format!("tensor.{HOSTILE}"), &[0.0; 4])?;
        vocabulary.describe(writer);
        Ok(())
    });
    std::fs::write(&path, bytes.unwrap()).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn names_from_files_do_not_reach_a_terminal_as_they_are() {
    let (_folder, model) = hostile_model();
    for arguments in [
        &["inspect", "--tensors"][..],
        &["inspect", "--json"],
        &["tokenize", HOSTILE],
        &["tokenize", HOSTILE, "--json"],
        &["pull", HOSTILE],
        &["run", "--isa", HOSTILE],
        &["run", "x", "--model", HOSTILE],
    ] {
        let named: &[&str] = if arguments.contains(&"--model") { &[] } else { &["--model", &model] };
        let named = if arguments[0] == "pull" { &[] } else { named };
        let shown = at_terminal(&[arguments, named].concat(), Stdio::null());
        is_harmless(&shown);
        assert!(shown.contains("1b") && shown.contains("9b"), "{arguments:?}: {shown}");
    }
    for arguments in [
        &["score", HOSTILE][..],
        &["run", "x", "--raw", "-n", "4", "--json"],
        &["bench", "-r", "1", "-p", "4", "-n", "4"],
    ] {
        let shown = at_terminal(&[arguments, &["--model", &model]].concat(), Stdio::null());
        is_harmless(after_loading(&shown));
    }
    // A pipe gets the bytes unchanged, except for line breaks in names.
    let piped = ottava(&["inspect", "--model", &model]);
    let piped = String::from_utf8(piped.stdout).unwrap();
    assert!(
        piped.contains("key.a\u{1b}[2Jb\u{9b}31mc") && piped.contains("\u{202e}g\u{85}h\u{7f}\\ni"),
        "{piped}"
    );
}

#[test]
fn generated_text_does_not_reach_a_terminal_as_it_is() {
    let (_folder, model) = tiny_model();
    // At this temperature all tokens are about equally likely, so the answer has control characters.
    let asked = ["run", "the den", "--raw", "-n", "200", "--temp", "100", "--top-k", "0", "--min-p", "0"];
    let asked = [&asked[..], &["--top-p", "1", "--seed", "7", "--device", "cpu", "--model", &model]].concat();
    let piped = String::from_utf8(ottava(&asked).stdout).unwrap();
    let controls = piped.trim_end().chars().filter(|&c| c.is_control() && c != '\n' && c != '\t').count();
    assert!(controls > 0, "a pipe gets what the model wrote: {piped:?}");
    let shown = at_terminal(&asked, Stdio::null());
    let shown = after_loading(&shown);
    is_harmless(shown);
    assert!(shown.contains("\\u{") || shown.contains("\\r"), "{shown}");
    let chat = [
        "chat", "-n", "60", "--temp", "100", "--top-k", "0", "--min-p", "0", "--top-p", "1", "--model",
        &model,
    ];
    let mut lines = tempfile::tempfile().unwrap();
    writeln!(lines, "the den\n/\u{1b}[31m\n/save /no-such-folder/\u{1b}[2J").unwrap();
    std::io::Seek::rewind(&mut lines).unwrap();
    let shown = at_terminal(&chat, lines.into());
    is_harmless(after_loading(&shown));
    assert!(shown.contains("\\u{1b}[31m") && shown.contains("\\u{1b}[2J"), "{shown}");
}

/// A conversation on a new pseudo-terminal, with its own cache.
struct Talk {
    child: std::process::Child,
    master: File,
}

impl Talk {
    /// Starts a conversation after `typed` was written to its terminal.
    fn begin(mut program: Command, cache: &Path, typed: &str) -> Talk {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut master = File::from(pty.master);
        master.write_all(typed.as_bytes()).unwrap();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        program.env("TERM", "xterm").env("OTTAVA_CACHE", cache);
        program.stdin(slave()).stdout(slave()).stderr(slave());
        Talk { child: program.spawn().unwrap(), master }
    }

    /// Waits for the end of the program and returns all its output.
    fn end(mut self) -> String {
        let mut shown = Vec::new();
        let mut block = [0; 4096];
        while let Ok(n @ 1..) = self.master.read(&mut block) {
            shown.extend(&block[..n]);
        }
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        String::from_utf8_lossy(&shown).into_owned()
    }
}

fn chat(model: &str) -> Command {
    command(&["chat", "--temp", "0", "-n", "2", "--device", "cpu", "--model", model])
}

#[test]
fn lines_that_are_typed_ahead_are_answered() {
    let (folder, model) = tiny_model();
    let path = folder.path().join("saved.json");
    let typed = format!("the den\nthe hero\n/save {}\n/exit\n", path.display());
    Talk::begin(chat(&model), folder.path(), &typed).end();
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[2]["content"]), (4, &"the hero".into()));
}

#[test]
fn the_histories_of_two_chats_are_both_kept() {
    let (folder, model) = tiny_model();
    let history = || std::fs::read_to_string(folder.path().join("history")).unwrap_or_default();
    let mut first = Talk::begin(chat(&model), folder.path(), "/clear\n");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !history().contains("/clear") {
        assert!(std::time::Instant::now() < deadline, "a line is kept before the conversation ends");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Talk::begin(chat(&model), folder.path(), "/system b\n/exit\n").end();
    first.master.write_all(b"/quit\n").unwrap();
    first.end();
    let history = history();
    let lines: Vec<&str> = history.lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(lines, ["/clear", "/system b", "/exit", "/quit"]);
    // A history that cannot be written gives one warning.
    let cache = folder.path().join("other");
    std::fs::create_dir_all(cache.join("history")).unwrap();
    let shown = Talk::begin(chat(&model), &cache, "/clear\n/system b\n/exit\n").end();
    assert_eq!(shown.matches("history is not kept").count(), 1, "{shown}");
}

/// A controlling terminal needs `setsid`, a program of util-linux.
#[cfg(target_os = "linux")]
#[test]
fn a_prompt_goes_to_the_terminal_where_answers_go_to_a_file() {
    let (folder, model) = tiny_model();
    let answers = folder.path().join("answers");
    let mut shell = Command::new("/bin/sh");
    let script = format!("exec setsid --ctty \"$@\" > {}", answers.display());
    let asked = chat(&model);
    shell.args(["-c", &script, "sh"]).arg(asked.get_program()).args(asked.get_args());
    let shown = Talk::begin(shell, folder.path(), "the den\n/exit\n").end();
    let answers = std::fs::read_to_string(answers).unwrap();
    assert!(shown.contains("> ") && !answers.is_empty(), "{shown:?}");
    assert!(!answers.contains('\u{1b}') && !answers.contains("> "), "{answers:?}");
}

/// Runs the program in a shell with redirected or closed streams.
fn redirected(streams: &str, arguments: &[&str]) -> Output {
    let program = [env!("CARGO_BIN_EXE_ottava")];
    let script = format!("exec \"$@\" {streams}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, "sh"]).args([&program[..], arguments].concat());
    shell
        .env("OTTAVA_OFFLINE", "1")
        .env("OTTAVA_CACHE", std::env::temp_dir().join("ottava-test-empty-cache"));
    shell.env("PATH", "").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_stderr_that_takes_nothing_changes_neither_answer_nor_exit_code() {
    let (folder, model) = tiny_model();
    let nowhere = format!("--sidecar={}/no-such-folder", folder.path().display());
    let cases: [(&[&str], i32); 9] = [
        (&["run", "the den", "--raw", "-n", "4", "--temp", "0", "--top-k", "99999", "--model", &model], 0),
        (&["run", "the den", "--raw", "-n", "4", "--temp", "0", &nowhere, "--model", &model], 0),
        (&["tokenize", "", "--model", &model], 0),
        (&["chat", "--model", &model], 0),
        (&["run", "x", "--model", "no-such-file.gguf"], 1),
        (&["pull"], 1),
        (&["run", "-n", "-1", "x"], 2),
        (&["fly"], 2),
        (&[], 2),
    ];
    for (arguments, code) in cases {
        let expected = ottava(arguments);
        for streams in ["2> /dev/full", "2>&-", "2> /dev/null"] {
            let output = redirected(streams, arguments);
            assert_eq!(output.status.code(), Some(code), "{arguments:?} {streams}");
            assert_eq!(output.stdout, expected.stdout, "{arguments:?} {streams}");
        }
    }
}

#[test]
fn a_stdout_that_is_full_is_an_error_and_one_that_is_closed_is_none() {
    let (folder, model) = tiny_model();
    let cases: [&[&str]; 8] = [
        &["run", "the den", "--raw", "-n", "4", "--model", &model],
        &["run", "the den", "--raw", "-n", "4", "--json", "--model", &model],
        &["tokenize", "the den", "--model", &model],
        &["score", "the den", "--model", &model],
        &["inspect", "--model", &model],
        &["list"],
        &["devices", "--json"],
        &["--help"],
    ];
    for arguments in cases {
        let full = redirected("> /dev/full", arguments);
        failed(&full, arguments, 1, &["standard output: No space left"]);
        let closed = redirected(">&-", arguments);
        assert_eq!((closed.status.code(), told(&closed)), (Some(0), String::new()), "{arguments:?}");
        // A pipe with a closed reader.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let gone =
            command(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((gone.status.code(), told(&gone)), (Some(0), String::new()), "{arguments:?}");
    }
    // A conversation ends at the first answer that cannot be written.
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "the den\nthe hero\n").unwrap();
    let chat = ["chat", "-n", "2", "--device", "cpu", "--model", &model];
    let full = redirected(&format!("< {} > /dev/full", lines.display()), &chat);
    failed(&full, &chat, 1, &["standard output: No space left"]);
    let nothing = redirected("<&- >&- 2>&-", &["run", "the den", "--raw", "-n", "4", "--model", &model]);
    assert_eq!(nothing.status.code(), Some(0));
}
