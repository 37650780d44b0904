//! Detection of the format from a template's source.

use super::*;

/// Excerpts of public templates with the expected format and whether it has reasoning.
const SOURCES: &[(&str, &str, bool)] = &[
    // Qwen 2.5, Qwen 3, Qwen 3 Coder.
    (
        "XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>",
        "hermes",
        false,
    ),
    (
        "{{- '<tool_call>\\n{\"name\": \"' }}{% if enable_thinking is false %}<think>\\n\\n</think>{% endif %}",
        "hermes",
        true,
    ),
    ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen-coder", false),
    ("<seed:think></seed:think><seed:tool_call>\n<function={{ name }}>\n<parameter=", "seed", true),
    ("{{- '<TOOLCALL>[' -}}", "nemotron", false),
    // Llama 3.1 with its built-in tools, 3.2 without, 4.
    ("{{- \"<|python_tag|>\" + tool_call.name + \".call(\" }}", "llama3", false),
    ("<|start_header_id|>{{ '{\"name\": \"' + tool_call.name + '\", \"parameters\": ' }}", "llama3", false),
    ("{{- '<|python_start|>[' }}", "pythonic", false),
    // Mistral Nemo, Small 3.2, Ministral 3.
    ("{{- \"[TOOL_CALLS][\" }}", "mistral-list", false),
    ("{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' }}", "mistral", false),
    ("[THINK][/THINK]{{- '[TOOL_CALLS]' }}{{- name + '[ARGS]' + arguments }}", "mistral", true),
    ("<|tool_list_start|>[", "lfm", false),
    ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma", true),
    ("<start_function_call>call:", "function-gemma", false),
    ("<|start|>assistant to=functions.<|channel|>commentary json<|message|>", "harmony", true),
    ("<think></think><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", "deepseek", true),
    ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json\n", "deepseek-fenced", false),
    ("{%- set dsml_token = '｜DSML｜' -%}", "deepseek-markup", false),
    (
        "{%- set dsml_token = '｜DSML｜' -%}{{ '<' + dsml_token + 'tool_calls>\\n' }}",
        "deepseek-markup-4",
        false,
    ),
    ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi", false),
    ("<tool_call>{{ tc.name }}\n<arg_key>{{ k }}</arg_key>", "glm", false),
    ("<minimax:tool_call>", "minimax", false),
    ("respond only with <|tool_call|> followed by a JSON list of tools used", "granite", false),
    ("<|START_ACTION|><|START_THINKING|>", "command", true),
    ("{%- set tools_prefix = '<|tools_prefix|>' -%}", "apertus", false),
    ("<function={{ name }}>{{ arguments }}</function>", "function-tag", false),
    ("{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}", "json", false),
    // Without tools, the engine describes them.
    ("{% for message in messages %}{{ message.content }}{% endfor %}", "hermes", false),
];

#[test]
fn markers_of_a_template_choose_the_format() {
    for &(source, name, has_reasoning) in SOURCES {
        let format = ChatFormat::of_template(source);
        assert_eq!((format.name(), format.has_reasoning()), (name, has_reasoning), "{source}");
    }
    for name in ChatFormat::names() {
        assert!(SOURCES.iter().any(|source| source.1 == name), "no source chooses {name}");
        assert_eq!(ChatFormat::of_name(name).map(|format| format.name()), Some(name));
    }
    assert_eq!(ChatFormat::of_name("other"), None);
}

#[test]
fn control_tokens_of_markers_are_shown_and_no_others() {
    let format = ChatFormat::of_name("harmony").expect("a format");
    for piece in ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"] {
        assert!(format.has_marker_with(piece, true), "{piece}");
    }
    assert!(!format.has_marker_with("<|endoftext|>", true));
    assert!(!format.has_marker_with("", true));
    let format = ChatFormat::of_name("hermes").expect("a format");
    assert!(format.has_marker_with("<think>", false) && format.has_marker_with("<tool_call>", true));
    assert!(!format.has_marker_with("<tool_call>", false));
}

#[test]
fn the_end_of_a_prompt_says_whether_the_model_may_think() {
    let (not_started, open, closed) =
        (ReasoningState::NotStarted, ReasoningState::Open, ReasoningState::Closed);
    let cases = [
        ("hermes", "<|im_start|>assistant\n", not_started),
        ("hermes", "<|im_start|>assistant\n<think>\n", open),
        ("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", closed),
        ("deepseek", "<｜Assistant｜></think>", closed),
        ("harmony", "<|start|>user<|message|>Hi<|end|><|start|>assistant", not_started),
        // `<|end|>` ends every message.
        ("harmony", "<|start|>user<|message|>Hi<|end|>", not_started),
    ];
    for (name, prompt, reasoning) in cases {
        let format = ChatFormat::of_name(name).expect("a format");
        assert_eq!(format.reasoning_after(prompt), reasoning, "{prompt}");
        assert_eq!(format.begins_reasoning(prompt), reasoning == open, "{prompt}");
    }
}
