//! Numeric options: out of range, huge, negative, or above the limits of model and machine.

use super::*;

/// A number out of its range fails before the model is loaded. The error has the option and its range.
#[test]
fn a_number_out_of_its_range_is_refused_with_the_range() {
    let huge = "99999999999999999999999999";
    let cases: [(&str, &str, &[&str], &[&str]); 20] = [
        ("run", "--max-tokens", &["-1", "0", "1.5", huge, "16777217"], &["1 to 16777216"]),
        ("run", "-n", &["-1", "-x", "--json"], &["--max-tokens", "1 to 16777216"]),
        ("run", "--seed", &["-1", "1e3", "18446744073709551616"], &["0 to 18446744073709551615"]),
        ("run", "--temp", &["-1", "-0.5", "-.5", "-inf", "nan", "101", "1e99"], &["0 to 100"]),
        ("run", "--top-k", &["-5", huge], &["0 to 16777216"]),
        ("run", "--top-p", &["-1", "0", "1.01"], &["above 0, at most 1"]),
        ("run", "--min-p", &["-1", "2"], &["0 to 1"]),
        ("chat", "--repeat-penalty", &["-1", "0"], &["0.01 to 100"]),
        ("chat", "--presence-penalty", &["-101", "1e9"], &["-100 to 100"]),
        ("run", "--frequency-penalty", &["-100.5", "inf"], &["-100 to 100"]),
        ("run", "-c", &["0", "-128", huge], &["--ctx", "1 to 16777216"]),
        ("tokenize", "--threads", &["0", "-1", "1025", "1000000", huge], &["1 to 1024"]),
        ("run", "--kv-budget", &["0", "-1", huge], &["1 to 16777216"]),
        ("bench", "--prefill-chunk", &["0", "-1", "65537"], &["1 to 65536"]),
        ("score", "--top", &["-1", "10001", huge], &["0 to 10000"]),
        ("score", "--ids", &["-1", "5,-3", "4294967296", "1,"], &["0 to 4294967295"]),
        ("perplexity", "--chunks", &["0", "-1", huge], &["1 to 16777216"]),
        ("bench", "-p", &["-1", "5,-1", "1048577", huge], &["--prompt", "0 to 1048576"]),
        ("bench", "-d", &["18446744073709551615", "-2"], &["--depth", "0 to 1048576"]),
        ("bench", "--parallel", &["0", "257", "1,-1", "100000"], &["1 to 256"]),
    ];
    for (command, option, values, words) in cases {
        for value in values {
            fails(&[command, option, value, "--model", "none.gguf"], 2, words);
        }
    }
    fails(&["bench", "-r", "1001"], 2, &["--repetitions", "1 to 1000"]);
}

#[test]
fn a_list_of_too_many_is_one_line() {
    let many = "1,".repeat(60_000) + "1";
    let found = "expected at most 1000 measurements, found";
    for option in ["-p", "-d", "--parallel"] {
        fails(&["bench", option, &many, "--model", "none.gguf"], 2, &[found]);
    }
    fails(&["bench", "-n", &"1,".repeat(500), "--parallel", "1,2,3"], 2, &["0 to 1048576"]);
    let (_folder, model) = tiny_model();
    let ids = "5,".repeat(50_000) + "5";
    fails(&["score", "--ids", &ids, "--model", &model], 1, &["50001", "256"]);
}

#[test]
fn a_bad_value_as_long_as_a_book_is_one_short_line() {
    let long = "x".repeat(100_000);
    fails(&["run", "--temp", &long], 2, &["--temp", "0 to 100", "…"]);
    fails(&["run", "--model", &format!("{long}.gguf"), "x"], 1, &["…"]);
    fails(&["pull", &long], 2, &["no known model", "…"]);
    fails(&["run", "--isa", "a\u{1b}[31m\nb\u{202e}", "x"], 2, &["\\u{1b}[31m", "\\u{202e}"]);
}

#[test]
fn limits_that_cut_what_was_asked_for_are_told() {
    let (folder, model) = tiny_model();
    let note = |arguments: &[&str]| {
        let output = ottava(&[arguments, &["--temp", "0", "--raw", "--model", &model]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
        told(&output)
    };
    assert_eq!(note(&["run", "the den", "-n", "3"]), "", "as many as were asked for");
    let top = note(&["run", "the den", "-n", "3", "--top-k", "100000"]);
    assert!(top.starts_with("note: --top-k 100000 ") && top.lines().count() == 1, "{top}");
    for arguments in [&["run", "the den", "-n", "9999"][..], &["run", "the den"]] {
        let asked = [arguments, &["--stop", "zzzzzzzzzz", "-c", "48"]].concat();
        let output = ottava(&[&asked[..], &["--json", "--temp", "0", "--raw", "--model", &model]].concat());
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        if json["finish_reason"] == "length" {
            let note = note(&asked);
            assert!(note.contains("the context of 48 is full (-c)"), "{note}");
        } else {
            assert_eq!(note(&asked), "");
        }
    }
    let text = folder.path().join("text");
    std::fs::write(&text, "the den ".repeat(200)).unwrap();
    let perplexity = ottava(&["perplexity", text.to_str().unwrap(), "--model", &model, "--json"]);
    assert_eq!(told(&perplexity), "", "512 is a default, nobody asked for it");
    assert_eq!(serde_json::from_slice::<Value>(&perplexity.stdout).unwrap()["chunk_tokens"], 256);
}

#[test]
fn a_context_that_the_model_has_not_is_refused() {
    let (folder, model) = tiny_model();
    let text = folder.path().join("text");
    std::fs::write(&text, "the den ".repeat(200)).unwrap();
    let text = text.to_str().unwrap();
    for arguments in [&["run", "the den"][..], &["inspect"], &["perplexity", text]] {
        let all = [arguments, &["-c", "300", "--model", &model]].concat();
        fails(&all, 1, &["tiny.gguf", "a context of 300 tokens: expected 1 to 256"]);
    }
}

#[test]
fn a_bench_that_cannot_have_its_memory_or_context_is_one_line() {
    let (folder, model) = tiny_model();
    let model = model.as_str();
    fails(&["bench", "-d", "1048576", "-p", "1048576", "--model", model], 1, &["2097154 tokens", "256"]);
    fails(&["bench", "-p", "256", "--model", model], 1, &["258 tokens", "context has 256"]);
    let bench = ["bench", "-p", "16", "-n", "4", "-r", "1", "--device", "cpu"];
    let budget = [&bench[..], &["--kv-budget", "16777216", "--model", model]].concat();
    if cfg!(target_os = "linux") {
        fails(&budget, 1, &["keys and values of", "bytes free"]);
    }
    let wide = folder.path().join("wide.gguf");
    std::fs::write(&wide, tiny::llama_of(1 << 20).unwrap()).unwrap();
    let wide =
        ["bench", "-d", "1000000", "-n", "40000", "--parallel", "256", "--model", wide.to_str().unwrap()];
    if cfg!(target_os = "linux") {
        fails(&wide, 1, &["keys and values", "bytes free"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_memory_limit_ends_in_one_line() {
    let (_folder, model) = tiny_model();
    for arguments in [
        &["run", "x", "--kv-budget", "4096", "--device", "cpu", "-t", "1"][..],
        &["bench", "-p", "16", "-n", "4", "--kv-budget", "4096", "--device", "cpu", "-t", "1"],
    ] {
        let script = "ulimit -v 3000000; exec \"$@\"";
        let program = [env!("CARGO_BIN_EXE_ottava")];
        let arguments = [&program[..], arguments, &["--model", &model]].concat();
        let output = Command::new("/bin/sh").args(["-c", script, "sh"]).args(&arguments).output().unwrap();
        failed(&output, &arguments, 1, &[]);
    }
}
