//! Conversations: full contexts, failing lines, saved messages, tools.

use super::*;

/// Runs a conversation through a pipe. The exit code must be 1 exactly if a line failed.
fn chat(model: &str, arguments: &[&str], input: &[u8]) -> Output {
    let output = ottava_with(
        &[&["chat", "--model", model, "--temp", "0", "--device", "cpu"], arguments].concat(),
        input,
    );
    let told = told(&output);
    let is_failed = told.lines().any(|line| line.starts_with("error: "));
    assert_eq!(output.status.code(), Some(is_failed.into()), "{arguments:?}: {told}");
    output
}

/// Messages that `/save` wrote at the end of a conversation, as (role, content), and the text of stderr.
fn saved(model: &str, arguments: &[&str], input: &str) -> (Vec<(String, String)>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.json");
    let output = chat(model, arguments, format!("{input}\n/save {}\n", path.display()).as_bytes());
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
    let messages = json.as_array().unwrap().iter();
    (messages.map(|message| (text(message, "role"), text(message, "content"))).collect(), told(&output))
}

fn roles(messages: &[(String, String)]) -> Vec<&str> {
    messages.iter().map(|(role, _)| role.as_str()).collect()
}

#[test]
fn a_chat_that_is_full_goes_on_without_its_oldest_turns() {
    let (_folder, model) = tiny_model();
    let lines: Vec<String> = (1..=5).map(|i| format!("the den of hero {i}")).collect();
    let (messages, told) = saved(&model, &["-c", "128", "-n", "8", "--system", "be"], &lines.join("\n"));
    assert!(!told.contains("error"), "{told}");
    assert!(told.contains("note: the context of 128 tokens is full"), "{told}");
    assert_eq!(messages[0], ("system".to_owned(), "be".to_owned()));
    let users: Vec<&str> =
        messages.iter().filter(|(role, _)| role == "user").map(|(_, text)| text.as_str()).collect();
    assert!(!users.is_empty() && users.len() < 5, "{users:?}");
    assert_eq!(users, &lines[5 - users.len()..], "the newest turns are kept");
    assert_eq!(messages.len(), 1 + 2 * users.len());
}

#[test]
fn an_answer_of_any_length_is_cut_to_the_context() {
    let (_folder, model) = tiny_model();
    let (messages, told) = saved(&model, &["-c", "64", "-n", "16777216", "--seed", "3"], "the den");
    assert!(!told.contains("error"), "{told}");
    assert_eq!(roles(&messages), ["user", "assistant"]);
}

#[test]
fn a_line_that_is_too_long_says_so_and_the_conversation_goes_on() {
    let (_folder, model) = tiny_model();
    let input = format!("the den\n{}\nand the hero", "a hero in the den ".repeat(30));
    let (messages, told) = saved(&model, &["-c", "128", "-n", "4"], &input);
    let errors: Vec<&str> = told.lines().filter(|line| line.starts_with("error")).collect();
    assert!(matches!(errors[..], [error] if error.contains("too long") && error.contains("128")), "{told}");
    assert_eq!(roles(&messages), ["user", "assistant", "user", "assistant"]);
    assert_eq!((&*messages[0].1, &*messages[2].1), ("the den", "and the hero"));
}

#[test]
fn a_line_that_is_no_utf8_is_told_and_the_next_is_answered() {
    let (folder, model) = tiny_model();
    let path = folder.path().join("saved.json");
    let save = format!("/save {}\n", path.display());
    let input = [b"the den\nbad \xff line\nthe hero\r\n", save.as_bytes()].concat();
    let output = chat(&model, &["-n", "4"], &input);
    assert!(told(&output).contains("standard input, line 2: the byte at offset 12 is not UTF-8 (0xff)"));
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[2]["content"]), (4, &"the hero".into()));
}

#[test]
fn the_system_message_can_be_set_and_taken_back() {
    let (_folder, model) = tiny_model();
    let (messages, _) = saved(&model, &["-n", "2"], "/system be brief\nthe den\n/clear");
    assert_eq!(messages, [("system".into(), "be brief".into())]);
    let (messages, _) = saved(&model, &["-n", "2", "--system", "- be"], "/system\nthe den");
    assert_eq!(roles(&messages), ["user", "assistant"]);
}

#[test]
fn an_answer_that_is_cut_says_so() {
    let (_folder, model) = tiny_model();
    let output = chat(&model, &["-n", "1"], b"the den\n");
    assert!(told(&output).contains("note: the answer ends after 1 tokens (-n)"), "{}", told(&output));
}

#[test]
fn tools_are_a_list_in_a_file_and_need_a_form_of_calls() {
    let (folder, model) = tiny_model();
    // Calls without tools, in a form of the template's own.
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, "{{ messages[0].content }}[TOOL_CALLS]").unwrap();
    let path = folder.path().join("tools.json");
    let file = path.display().to_string();
    let with = |list: &str| {
        std::fs::write(&path, list).unwrap();
        let template = template.display().to_string();
        let options = ["--model", &model, "--device", "cpu", "--tools", &file, "--chat-template", &template];
        ottava_with(&[&["chat"], &options[..]].concat(), b"the den\n")
    };
    for (list, why) in [("{}", "a JSON list of tools"), ("[{\"type\": \"x\"}]", "tools[0].type")] {
        let output = with(list);
        assert!(!output.status.success() && told(&output).contains(why), "{}", told(&output));
    }
    let output = with("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("no place for tools"), "{}", told(&output));
}

#[test]
fn stdout_has_answers_alone() {
    let (folder, model) = tiny_model();
    let path = folder.path().join("saved.json").display().to_string();
    let output = chat(&model, &[], format!("/help\n/nonsense\n/save {path}\n").as_bytes());
    let told = told(&output);
    assert!(output.stdout.is_empty() && !output.status.success(), "{told}");
    for words in
        ["/system TEXT", "error: unknown command /nonsense", &format!("note: saved 0 messages to {path}")]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_line_that_begins_with_a_path_is_said() {
    let (_folder, model) = tiny_model();
    let (messages, told) = saved(&model, &["-n", "2"], "/etc/passwd what is it?");
    assert_eq!((&*messages[0].1, told.contains("unknown")), ("/etc/passwd what is it?", false));
}
