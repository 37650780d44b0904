//! Prompts that end within the last message.

use super::*;

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";
const TRIMS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>\n{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";
const LINES: &str = "{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}</s>{% endfor %}";
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}\
                     </s>{% endfor %}";

fn ends(source: &str, content: impl Into<Content>) -> Result<ChatPrompt, TextError> {
    let messages = [Message::new("user", "Why?"), Message::new("assistant", content)];
    ChatTemplate::from_source(source, &vocab())?.prompt(&messages, &options().continuing())
}

#[test]
fn the_prompt_ends_with_the_last_text() {
    for (source, content, expected) in [
        (PLAIN, "Because", "<user>Why?</s><assistant>Because"),
        (PLAIN, " it \n", "<user>Why?</s><assistant> it \n"),
        (PLAIN, "", "<user>Why?</s><assistant>"),
        (TRIMS, " Because \n", "<user>Why?</s>\n<assistant>Because"),
        (TRIMS, "", "<user>Why?</s>\n<assistant>"),
        (LINES, "", "<user>\nWhy?</s><assistant>\n"),
        (LINES, " \n ", "<user>\nWhy?</s><assistant>\n"),
        (LINES, "Because \n", "<user>\nWhy?</s><assistant>\nBecause"),
    ] {
        let prompt = ends(source, content).unwrap();
        assert_eq!(prompt.text(), expected, "{source}");
        let spans = prompt.user_spans().iter().map(|span| &prompt.text()[span.clone()]);
        let texts = ["Why?", content].map(|text| if source == PLAIN { text } else { text.trim() });
        let texts = texts.into_iter().filter(|text| !text.is_empty());
        assert!(spans.eq(texts), "{:?}", prompt.user_spans());
    }
    let parts = vec![ContentPart::text("a"), ContentPart::text("b")];
    let messages = [Message::new("user", vec![ContentPart::text("Why?")]), Message::new("assistant", parts)];
    let template = ChatTemplate::from_source(PARTS, &vocab()).unwrap();
    let prompt = template.render(&messages, &options().continuing()).unwrap();
    assert_eq!(prompt, "<user>Why?</s><assistant>ab");
}

#[test]
fn a_template_without_the_last_text_is_an_error() {
    for source in ["{{ messages[0].content }}", "{{ messages[1].content | lower }}"] {
        assert!(matches!(ends(source, "x"), Err(TextError::TemplateRender(_))), "{source}");
    }
}
