//! The program as people call it: exit codes, one-line errors, what goes where.

#![cfg(feature = "cli")]

use std::process::{Command, Output};

fn ottava(arguments: &[&str]) -> Output {
    let folder = std::env::temp_dir();
    Command::new(env!("CARGO_BIN_EXE_ottava"))
        .args(arguments)
        .env("OTTAVA_CACHE", folder.join("ottava-test-empty-cache"))
        .env("OTTAVA_OFFLINE", "1")
        .env("PATH", "")
        .output()
        .expect("the program starts")
}

fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = ottava(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}: nothing belongs on stdout");
    for word in words {
        assert!(error.contains(word), "{arguments:?}: expected {word:?} in {error:?}");
    }
    if code == 1 {
        assert_eq!(error.lines().count(), 1, "{arguments:?}: one line, found {error:?}");
    }
}

#[test]
fn mistakes_on_the_command_line_exit_with_2() {
    fails(&[], 2, &["Usage"]);
    fails(&["fly"], 2, &["fly"]);
    fails(&["run", "--temp", "warm", "x"], 2, &["warm"]);
    fails(&["run", "--isa", "altivec", "x"], 2, &["altivec"]);
    fails(&["run", "--device", "abacus", "x"], 2, &["abacus"]);
    fails(&["run", "--threads", "0", "x"], 2, &["threads"]);
    fails(&["bench", "-r", "0"], 2, &["-r"]);
    fails(&["score"], 2, &["TEXT"]);
    fails(&["pull", "no-such-model"], 2, &["no-such-model"]);
}

#[test]
fn failures_are_one_line_and_exit_with_1() {
    fails(&["run", "--model", "no-such-file.gguf", "x"], 1, &["no-such-file.gguf"]);
    let empty = std::env::temp_dir().join("ottava-test-empty.gguf");
    std::fs::write(&empty, "").unwrap();
    for command in ["run", "tokenize", "score"] {
        fails(&[command, "--model", empty.to_str().unwrap(), "x"], 1, &["ottava-test-empty.gguf"]);
    }
    fails(&["inspect", "--model", empty.to_str().unwrap()], 1, &["ottava-test-empty.gguf"]);
    fails(&["inspect", "--model", "/"], 1, &["/"]);
}

#[test]
fn a_model_that_cannot_be_fetched_says_why_and_what_to_do() {
    fails(&["run", "hello"], 1, &["cannot fetch", "hub: offline", "python3", "yourself"]);
}

#[test]
fn help_version_and_list_go_to_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["list"], &["run", "--help"]] {
        let output = ottava(arguments);
        assert!(output.status.success(), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
    let list = ottava(&["list", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&list.stdout).expect("list --json prints JSON");
    assert_eq!(json["models"][0]["cached"], false);
}
