//! Templates with the output of Jinja2 3.1.6 in the environment of `transformers`, rendered by `ci/jinja.py`.

use super::*;
use crate::text::{Content, ContentPart, ToolCall};
use serde_json::{Value as Json, json};

#[test]
fn templates_render_as_jinja2_rendered_them() {
    let cases: Vec<(String, Option<String>)> = serde_json::from_str(include_str!("jinja.json")).unwrap();
    assert!(cases.len() > 200, "{} templates", cases.len());
    let mut options = options();
    options.tools =
        Some(json!([{"name": "f", "x": {"b": 1, "a": [1, 2.5, null, true, "it's"]}, "items": [1, 2]}]));
    for (source, expected) in cases {
        let template = ChatTemplate::from_source(&source, &vocab());
        let found = template.and_then(|template| template.render(&messages(), &options));
        match (&found, &expected) {
            (Ok(text), Some(expected)) => assert_eq!(text, expected, "{source}"),
            (Err(TextError::TemplateSyntax(_) | TextError::TemplateRender(_)), None) => {}
            _ => panic!("{source}: expected {expected:?}, found {found:?}"),
        }
    }
}

#[track_caller]
fn renders_message(source: &str, message: Json, expected: &str) {
    let message: Message = serde_json::from_value(message).unwrap();
    let template = ChatTemplate::from_source(source, &vocab()).unwrap();
    assert_eq!(template.render(&[message], &options()).unwrap(), expected, "{source}");
}

#[test]
fn messages_carry_what_the_chat_api_has() {
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]});
    renders_message(
        "{% for p in messages[0].content %}{{ p.type }}{{ p.text }};{% endfor %}{{ messages[0].content is string }}",
        parts,
        "texta;image;False",
    );
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"x": [1, "y"]}}}
    ]});
    renders_message(
        "{% set m = messages[0] %}{% for c in m.tool_calls %}{{ c | tojson }}{{ c.function.name }}\
         {{ c.function.arguments | tojson }}{% endfor %}{{ m.content }}{{ m.name is defined }}",
        call,
        "{\"type\": \"function\", \"id\": \"c1\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, \"y\"]}}}\
         f{\"x\": [1, \"y\"]}NoneFalse",
    );
    let result = json!({"role": "tool", "content": "21", "tool_call_id": "c1", "name": "f", "extra": {"q": 1},
        "reasoning_content": "hm"});
    renders_message(
        "{% set m = messages[0] %}{{ m.tool_call_id }}{{ m.name }}{{ m.extra.q }}{{ m.reasoning_content }}",
        result,
        "c1f1hm",
    );
    renders_message("{{ messages[0].content is defined }}", json!({"role": "user"}), "False");
}

#[test]
fn lists_of_texts_become_one_where_a_template_would_print_a_list() {
    let parts = |texts: &[&str]| Content::Parts(texts.iter().map(|text| ContentPart::text(*text)).collect());
    let messages = [
        Message::new("user", parts(&["a", "b"])),
        Message::new("assistant", "c"),
        Message::new("user", parts(&[])),
    ];
    let printed = |source: &str| {
        let template = ChatTemplate::from_source(source, &vocab()).unwrap();
        template.render(&template.adapt(&messages), &options())
    };
    let each = |inner: &str| format!("{{% for m in messages %}}{inner};{{% endfor %}}");
    for inner in [
        "{{ m.content }}",
        "{{ m['content'] | trim }}",
        "{{ '' ~ m.content }}",
        "{{ m.content + '' }}",
        "{{ m.content if m.role != 'user' or m.content is string else 1 / 0 }}",
    ] {
        assert_eq!(printed(&each(inner)).unwrap(), "a\nb;c;;", "{inner}");
    }
    // Both templates accept lists, but detection fails for the second one, which rejects a single message.
    let walks = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}";
    assert_eq!(printed(&each(walks)).unwrap(), "<a><b>;c;;");
    let picky = format!(
        "{{% if messages | length == 1 %}}{{{{ raise_exception('no') }}}}{{% endif %}}{}",
        each(walks)
    );
    assert_eq!(printed(&picky).unwrap(), "a\nb;c;;");
    // Content other than text is not adapted.
    let image: Message =
        serde_json::from_value(json!({"role": "user", "content": [{"type": "image"}]})).unwrap();
    let template = ChatTemplate::from_source("{{ messages[0].content }}", &vocab()).unwrap();
    assert_eq!(template.adapt(std::slice::from_ref(&image)), std::slice::from_ref(&image));
}

#[test]
fn messages_are_made_in_code_as_they_are_read() {
    let made = [
        Message::new("user", vec![ContentPart::text("a"), ContentPart::text("b")]),
        Message::new("assistant", Content::Null)
            .with_tool_calls(vec![ToolCall::new("c1", "f", json!({"x": 1}))])
            .with_reasoning("hm"),
        Message::new("tool", "21").with_tool_call_id("c1").with_name("f"),
    ];
    let read = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "reasoning_content": "hm",
         "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "21", "tool_call_id": "c1", "name": "f"},
    ]);
    assert_eq!(serde_json::from_value::<Vec<Message>>(read.clone()).unwrap(), made);
    assert_eq!(serde_json::to_value(&made).unwrap(), read);
    assert_eq!(made.first().unwrap().content.to_text(), "ab");
}
