//! Text input: arguments, standard input and files; empty, silent, endless and not UTF-8.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;

/// Maximum bytes of a text.
const LIMIT: usize = 16 << 20;

/// Token ids of a command's text on the tiny model.
fn ids_of(model: &str, arguments: &[&str], input: &[u8]) -> Vec<u64> {
    let output = ottava_with(&[arguments, &["--json", "--model", model]].concat(), input);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    assert_eq!(told(&output), "", "{arguments:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    ids(if json["ids"].is_array() { &json["ids"] } else { &json["prompt_ids"] })
}

const TEXT_COMMANDS: [&[&str]; 3] = [&["tokenize"], &["score"], &["run", "-n", "1", "--raw"]];

#[test]
fn a_text_and_what_is_piped_in_are_both_used() {
    let (_folder, model) = tiny_model();
    for command in TEXT_COMMANDS {
        let text = |arguments: &[&str], input: &[u8]| ids_of(&model, &[command, arguments].concat(), input);
        let both = text(&["the den\n\nof a hero\n"], b"");
        assert_eq!(text(&["the den"], b"of a hero\n"), both, "{command:?}");
        assert_eq!(text(&["the den", "-"], b"of a hero\n"), both, "{command:?}");
        let alone = text(&["of a hero\n"], b"");
        assert_ne!(alone, both);
        assert_eq!(text(&[], b"of a hero\n"), alone, "{command:?}");
        assert_eq!(text(&["-"], b"of a hero\n"), alone, "{command:?}");
    }
    let chat = ids_of(&model, &["run", "-n", "1", "Summarise"], b"a note");
    assert_eq!(chat, ids_of(&model, &["run", "-n", "1", "Summarise\n\na note"], b""));
}

#[test]
fn standard_input_is_the_file_of_the_option_that_is_a_dash() {
    let (folder, model) = tiny_model();
    let grammar = &b"start: \"den\""[..];
    let schema = &br#"{"const": 1}"#[..];
    let template = &b"{{ messages[0].content }}!"[..];
    let run = ["run", "the den", "-n", "2", "--temp", "0"];
    for (option, bytes) in [("--grammar", grammar), ("--json-schema", schema), ("--chat-template", template)]
    {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let with = |file: &str, input: &[u8]| {
            let output =
                ottava_with(&[&run, &["--json", "--model", &model, option, file][..]].concat(), input);
            assert!(output.status.success(), "{option} {file}: {}", told(&output));
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            (json["text"].clone(), ids(&json["prompt_ids"]))
        };
        assert_eq!(with("-", bytes), with(path.to_str().unwrap(), b""), "{option}");
    }
}

#[test]
fn what_would_read_standard_input_twice_is_a_mistake() {
    let cases: [(&[&str], [&str; 2]); 11] = [
        (&["run", "--grammar", "-"], ["--grammar", "TEXT"]),
        (&["run", "-", "--grammar", "-"], ["--grammar", "TEXT"]),
        (&["run", "hi", "-", "--json-schema", "-"], ["--json-schema", "TEXT"]),
        (&["run", "hi", "--grammar", "-", "--chat-template", "-"], ["--grammar", "--chat-template"]),
        (&["score", "--chat-template", "-"], ["--chat-template", "TEXT"]),
        (&["tokenize", "-", "--chat-template", "-"], ["--chat-template", "TEXT"]),
        (&["perplexity", "--chat-template", "-"], ["FILE", "--chat-template"]),
        (&["perplexity", "-", "--chat-template=-"], ["FILE", "--chat-template"]),
        (&["chat", "--tools", "-"], ["--tools", "the conversation"]),
        (&["chat", "--chat-template", "-"], ["--chat-template", "the conversation"]),
        (&["serve", "--isolated", "--chat-template", "-"], ["--chat-template", "the processes"]),
    ];
    for (arguments, [first, second]) in cases {
        let arguments = [arguments, &["--model", "no-such-model.gguf"]].concat();
        let said = format!("standard input is read once: expected another source of {first} or of {second}");
        failed(&ottava_with(&arguments, b"[]"), &arguments, 2, &[&said]);
    }
}

#[test]
fn an_input_that_has_nothing_changes_nothing() {
    let (_folder, model) = tiny_model();
    let asked = ["tokenize", "the den", "--json", "--model", &model];
    let expected = ottava(&asked).stdout;
    assert_eq!(ottava_with(&asked, b"").stdout, expected);
    for command in TEXT_COMMANDS.map(|command| [command, &["--model", &model]].concat()) {
        failed(&ottava_with(&command, b""), &command, 2, &["no text", "TEXT", "standard input is empty"]);
    }
    failed(
        &ottava_with(&["perplexity", "--model", &model], b""),
        &["perplexity"],
        1,
        &["standard input", "0 tokens"],
    );
    let chat = ottava_with(&["chat", "--model", &model], b"");
    assert!(chat.status.success() && told(&chat).contains("standard input is empty"), "{}", told(&chat));
}

#[cfg(unix)]
#[test]
fn a_closed_input_is_an_empty_one() {
    let (_folder, model) = tiny_model();
    let shell = |input: &str, arguments: &[&str]| {
        let mut shell = Command::new("/bin/sh");
        let program = [env!("CARGO_BIN_EXE_ottava")];
        let script = format!("exec \"$@\" {input}");
        shell.args(["-c", &script, "sh"]).args([&program[..], arguments].concat()).output().unwrap()
    };
    let asked = ["tokenize", "the den", "--json", "--model", &model];
    let expected = ottava(&asked).stdout;
    for input in ["<&-", "< /dev/null", "0> /dev/null"] {
        let output = shell(input, &asked);
        assert_eq!((told(&output), output.stdout), (String::new(), expected.clone()), "{input}");
        let none = ["tokenize", "--model", &model];
        failed(&shell(input, &none), &none, 2, &["standard input is empty"]);
    }
    failed(&shell("< /", &asked), &asked, 1, &["standard input: Is a directory"]);
}

#[test]
fn a_pipe_that_keeps_silent_is_left_out_unless_a_dash_waits_for_it() {
    let (_folder, model) = tiny_model();
    let expected = ottava(&["tokenize", "the den", "--json", "--model", &model]).stdout;
    let began = Instant::now();
    let both = ids_of(&model, &["tokenize", "the den\n\nof"], b"");
    let start = |arguments: &[&str]| {
        let mut command = command(&[arguments, &["--json", "--model", &model]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let [mut slow, mut silent, mut waited] = [
        start(&["tokenize", "the den"]),
        start(&["tokenize", "the den"]),
        start(&["tokenize", "the den", "-"]),
    ];
    std::thread::sleep(Duration::from_millis(700));
    slow.stdin.take().unwrap().write_all(b"of").unwrap();
    let slow = slow.wait_with_output().unwrap();
    assert_eq!(ids(&serde_json::from_slice::<Value>(&slow.stdout).unwrap()["ids"]), both);
    let open = silent.stdin.take();
    let silent = silent.wait_with_output().unwrap();
    drop(open);
    assert!(silent.status.success() && silent.stdout == expected, "{}", told(&silent));
    assert!(told(&silent).starts_with("note: standard input gave nothing"), "{}", told(&silent));
    assert!(began.elapsed() < Duration::from_secs(30), "no hang");
    assert!(waited.try_wait().unwrap().is_none(), "a dash waits");
    waited.stdin.take().unwrap().write_all(b"of").unwrap();
    let waited = waited.wait_with_output().unwrap();
    assert_eq!(ids(&serde_json::from_slice::<Value>(&waited.stdout).unwrap()["ids"]), both);
}

#[test]
fn bytes_that_are_no_utf8_are_named_by_source_and_offset() {
    let (folder, model) = tiny_model();
    let at = |source: &'static str, offset: &'static str| [source, offset];
    for command in TEXT_COMMANDS.into_iter().chain([&["perplexity"][..], &["perplexity", "-"]]) {
        let arguments = [command, &["--model", &model]].concat();
        for (input, words) in [
            (&b"ok \xff"[..], at("standard input", "offset 3 is not UTF-8 (0xff)")),
            (b"\xc3", at("standard input", "offset 0 is not UTF-8 (0xc3)")),
            ("ü\u{1F600}".as_bytes().split_last().unwrap().1, at("standard input", "offset 2")),
            (b"\xff\xfea\0", at("standard input", "expected UTF-8, found UTF-16")),
        ] {
            failed(&ottava_with(&arguments, input), &arguments, 1, &words);
        }
    }
    let beside = ["run", "Summarise", "--model", &model];
    failed(&ottava_with(&beside, b"a\x80"), &beside, 1, &at("standard input", "offset 1"));
    let file = folder.path().join("latin1.txt");
    std::fs::write(&file, b"na\xefve").unwrap();
    let arguments = ["perplexity", file.to_str().unwrap(), "--model", &model];
    fails(&arguments, 1, &at("latin1.txt", "offset 2 is not UTF-8 (0xef)"));
}

#[cfg(unix)]
#[test]
fn arguments_that_are_no_utf8_are_named_by_offset_too() {
    use std::os::unix::ffi::OsStrExt;
    let bad = OsStr::from_bytes(b"ok \xff");
    for before in [&["run"][..], &["tokenize"], &["score"], &["run", "--system"], &["chat", "--system"]] {
        let arguments: Vec<&OsStr> = before.iter().map(OsStr::new).chain([bad]).collect();
        let output = command(&arguments).output().unwrap();
        failed(&output, before, 2, &["offset 3 is not UTF-8 (0xff)"]);
    }
    // A model's path may be any bytes.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"tiny-\xff.gguf"));
    std::fs::write(&path, tiny::llama().unwrap()).unwrap();
    for before in [&["inspect", "--json"][..], &["tokenize", "x"], &["run", "x", "-n", "1", "--json"]] {
        let arguments: Vec<&OsStr> =
            before.iter().map(OsStr::new).chain([OsStr::new("--model"), path.as_os_str()]).collect();
        let output = command(&arguments).output().unwrap();
        assert!(output.status.success(), "{before:?}: {}", told(&output));
    }
}

#[test]
fn more_than_a_text_may_have_is_refused_before_any_work() {
    let (folder, model) = tiny_model();
    let long = vec![b' '; LIMIT + 1];
    let began = Instant::now();
    for command in TEXT_COMMANDS.into_iter().chain([&["perplexity", "-"][..]]) {
        let arguments = [command, &["--model", &model]].concat();
        failed(&ottava_with(&arguments, &long), &arguments, 1, &["standard input", "16 MiB"]);
    }
    let file = folder.path().join("long.txt");
    std::fs::write(&file, &long).unwrap();
    fails(&["perplexity", file.to_str().unwrap(), "--model", &model], 1, &["long.txt", "16 MiB"]);
    #[cfg(unix)]
    fails(&["perplexity", "/dev/zero", "--model", &model], 1, &["/dev/zero", "16 MiB"]);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn a_text_of_perplexity_may_come_from_anywhere() {
    let (folder, model) = tiny_model();
    let text = "the anthem rings in the den of a hero ".repeat(4);
    let file = folder.path().join("text");
    std::fs::write(&file, &text).unwrap();
    let options = ["-c", "16", "--json", "--model", &model];
    let expected = ottava(&[&["perplexity", file.to_str().unwrap()], &options[..]].concat());
    assert!(expected.status.success(), "{}", told(&expected));
    for source in [&["perplexity"][..], &["perplexity", "-"]] {
        assert_eq!(ottava_with(&[source, &options].concat(), text.as_bytes()).stdout, expected.stdout);
    }
}

#[test]
fn a_command_that_can_say_nothing_says_why() {
    let (folder, model) = tiny_model();
    let model = model.as_str();
    fails(&["score", "a", "--model", model], 1, &["nothing to score", "one token"]);
    fails(&["score", "--ids", "7", "--json", "--model", model], 1, &["one token"]);
    fails(&["score", "", "--model", model], 1, &["no tokens"]);
    fails(&["run", "", "--model", model], 2, &["prompt is empty"]);
    fails(&["run", "", "--raw", "--model", model], 1, &["prompt", "at least 1 token"]);
    let top = ottava(&["score", "a", "--top", "2", "--model", model]);
    assert_eq!(String::from_utf8(top.stdout).unwrap().lines().count(), 2, "what may follow one token");
    let empty = ottava(&["tokenize", "", "--model", model]);
    assert!(empty.status.success() && empty.stdout.is_empty());
    assert!(told(&empty).contains("no token: the text has 0 bytes"), "{}", told(&empty));
    let text = folder.path().join("short.txt");
    std::fs::write(&text, "the den").unwrap();
    let arguments = ["perplexity", text.to_str().unwrap(), "-c", "64", "--model", model];
    fails(&arguments, 1, &["short.txt", "5 tokens", "64"]);
    fails(&["bench", "-p", "0", "-n", "0", "--model", model], 2, &["nothing to measure"]);
    let plain = folder.path().join("plain.gguf");
    std::fs::write(&plain, tiny::gemma3().unwrap()).unwrap();
    let plain = plain.to_str().unwrap();
    fails(&["run", "a", "--system", "b", "--model", plain], 1, &["no chat template"]);
    fails(&["chat", "--model", plain], 1, &["no chat template"]);
    let template = folder.path().join("own.jinja");
    std::fs::write(&template, "{{ messages").unwrap();
    let template = template.to_str().unwrap();
    fails(&["chat", "--model", plain, "--chat-template", template], 1, &["own.jinja: ", "template"]);
    fails(&["chat", "--model", plain, "--chat-template", "none.jinja"], 1, &["none.jinja: "]);
    std::fs::write(template, "the {{ messages[0].content }}").unwrap();
    let output = ottava(&["run", "den", "-n", "1", "--model", plain, "--chat-template", template]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
