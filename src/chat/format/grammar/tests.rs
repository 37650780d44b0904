//! Grammars compile, and the parser reads samples drawn from them as the requested calls.

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::json;
use toktrie::{ApproximateTokEnv, InferenceCapabilities};

use super::*;
use crate::chat::{AnswerParser, ChatPart};

/// Matcher over a vocabulary of the 256 bytes.
fn matcher(grammar: &str) -> Matcher {
    let words = ApproximateTokEnv::single_byte_env();
    let factory =
        ParserFactory::new(&words, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices());
    let parser = factory.expect("a factory").create_parser(TopLevelGrammar::from_lark(grammar.into()));
    Matcher::new(Ok(parser.unwrap_or_else(|error| panic!("{error:#}\n{grammar}"))))
}

fn tools() -> Tools {
    let weather = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": {"enum": ["Oslo", "Bern \"old\""]}, "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "metric": {"type": "boolean"}, "zip": {"type": ["boolean", "null"]},
        },
    });
    let ping = json!({"type": "object", "properties": {}, "additionalProperties": false});
    Tools::new(vec![Tool::new("get_weather", weather), Tool::new("ping", ping)])
}

/// Samples a text: pseudo-random allowed bytes until the grammar may end.
fn drawn(grammar: &str, mut seed: u64) -> String {
    let mut matcher = matcher(grammar);
    let mut bytes = Vec::new();
    while !matcher.is_stopped() && bytes.len() < 4000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 33) as usize;
        if matcher.is_accepting().expect("a state") && random.is_multiple_of(2) {
            break;
        }
        let mask = matcher.compute_mask_or_eos().expect("a mask");
        // White space is avoided, because it could repeat.
        let allowed = |byte: &u32| mask.is_allowed(*byte) && !(*byte as u8).is_ascii_whitespace();
        let mut bytes_allowed: Vec<u32> = (0..256).filter(allowed).collect();
        if bytes_allowed.is_empty() {
            bytes_allowed = (0..256).filter(|byte| mask.is_allowed(*byte)).collect();
        }
        let Some(&byte) = bytes_allowed.get(random % bytes_allowed.len().max(1)) else { break };
        matcher.consume_token(byte).expect("an allowed byte");
        bytes.push(byte as u8);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a grammar accepts the whole text.
fn takes(grammar: &str, text: &str) -> bool {
    let mut matcher = matcher(grammar);
    let all = text.bytes().all(|byte| matcher.consume_token(byte.into()).is_ok());
    all && matcher.is_accepting().expect("a state")
}

/// Names and arguments of an answer's calls, and the number of malformed blocks.
fn calls(format: ChatFormat, tools: &Tools, text: &str) -> (Vec<(String, String)>, usize) {
    let mut parser = AnswerParser::new(format, tools);
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in parts {
        match part {
            ChatPart::CallStart { name, .. } => calls.push((name, String::new())),
            ChatPart::CallArguments { text, index } => calls[index].1 += &text,
            _ => {}
        }
    }
    (calls, parser.malformed())
}

/// Grammar for tools and their choice, without control tokens.
fn grammar(format: ChatFormat, tools: &Tools) -> Option<String> {
    printed(
        format,
        &Wanted { tools, text_grammar: None, reasoning: ReasoningState::NotStarted, control: &[] },
    )
    .expect("few bytes")
}

/// Text of the grammar of an answer.
fn printed(format: ChatFormat, wanted: &Wanted<'_>) -> Result<Option<String>, ToolError> {
    Ok(format.grammar(wanted)?.map(|grammar| grammar.built_text()))
}

/// Format without reasoning.
fn format(name: &str) -> ChatFormat {
    ChatFormat { reasoning: None, ..ChatFormat::of_name(name).expect("a format") }
}

#[test]
fn what_a_choice_asks_for_is_what_the_parser_reads() {
    for name in ChatFormat::names() {
        let choices = [
            tools().choice(ToolChoice::Required),
            tools().choice(ToolChoice::Required).single(),
            tools().choice(ToolChoice::Named("get_weather".into())),
        ];
        for tools in choices {
            let grammar = grammar(format(name), &tools).expect("a grammar");
            for seed in 0..2 {
                let text = drawn(&grammar, seed);
                let (calls, malformed) = calls(format(name), &tools, &text);
                assert_eq!(malformed, 0, "{name}: {text}");
                let once = tools.single || tools.choice != ToolChoice::Required;
                assert!(!calls.is_empty() && (!once || calls.len() == 1), "{name}: {text}");
                for (tool, arguments) in calls {
                    let found: Json = serde_json::from_str(&arguments).expect("JSON");
                    let fields = found.as_object().expect("an object");
                    assert!(tool == "ping" && fields.is_empty() || is_weather(&found), "{name}: {text}");
                }
            }
        }
    }
}

fn is_weather(arguments: &Json) -> bool {
    let known = ["city", "days", "metric", "zip"];
    let fields = arguments.as_object().into_iter().flatten();
    fields.into_iter().all(|(key, _)| known.contains(&key.as_str()))
        && (arguments["city"] == "Oslo" || arguments["city"] == "Bern \"old\"")
        && arguments["days"].is_i64()
        && (arguments["metric"].is_null() || arguments["metric"].is_boolean())
}

/// Answers as models write them. Every grammar of a free choice has to accept them.
const ANSWERS: &[(&str, &str)] = &[
    (
        "hermes",
        "<think>\nWhich <tool_call> is it?\n</think>\n\nWell.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
    ),
    ("hermes", "No tools < here."),
    ("hermes", "<think>\nHm.\n</think>\n\nNo tools."),
    (
        "qwen-coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "mistral",
        "Well.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\", \"days\": 3}[TOOL_CALLS]ping[ARGS]{}",
    ),
    (
        "mistral-list",
        "[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"ping\", \"arguments\": {}}]",
    ),
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    (
        "lfm",
        "Well.<|tool_call_start|>[get_weather(city='Oslo', days=3, metric=True), ping()]<|tool_call_end|>",
    ),
    (
        "gemma",
        "<|channel>thought\nHm.\n<channel|>Well.<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|>",
    ),
    (
        "deepseek",
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    ("granite", "<|tool_call|>[{\"name\": \"ping\", \"arguments\": {}}]"),
];

#[test]
fn a_free_choice_leaves_text_free_and_holds_calls_to_their_tools() {
    for &(name, text) in ANSWERS {
        let format = ChatFormat::of_name(name).expect("a format");
        let grammar = grammar(format, &tools()).expect("a grammar");
        assert!(takes(&grammar, text), "{name}: {text}\n{grammar}");
        let calls = calls(format, &tools(), text).0.len();
        let once = self::grammar(format, &tools().single()).expect("a grammar");
        assert_eq!(takes(&once, text), calls < 2, "{name}: {text}");
        let other = text.replace("get_weather", "rm").replace("ping", "rm");
        assert!(other == text || !takes(&grammar, &other), "{name}: {other}");
        let other = text.replace("Oslo", "Rome");
        assert!(other == text || !takes(&grammar, &other), "{name}: {other}");
    }
    let format = ChatFormat::of_name("hermes").expect("a format");
    let thinking = printed(
        format,
        &Wanted { tools: &tools(), text_grammar: None, reasoning: ReasoningState::Open, control: &[] },
    );
    assert!(takes(
        &thinking.expect("few bytes").expect("a grammar"),
        "So <tool_call> it is.\n</think>\n\nYes."
    ));
}

#[test]
fn control_tokens_of_markers_are_named_by_their_ids() {
    let control = [("[TOOL_CALLS]".to_owned(), 5), ("[ARGS]".to_owned(), 32)];
    let grammar = printed(
        format("mistral"),
        &Wanted {
            tools: &tools(),
            text_grammar: None,
            reasoning: ReasoningState::NotStarted,
            control: &control,
        },
    )
    .expect("few bytes")
    .expect("a grammar");
    assert!(
        grammar.contains("<[5]> body") && grammar.contains("\"ping\"") && grammar.contains("<[32]> %json")
    );
    assert!(!grammar.contains("TOOL_CALLS"), "{grammar}");
    matcher(&grammar);
    let harmony = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"];
    let control: Vec<(String, u32)> =
        harmony.iter().zip(257..).map(|(piece, id)| ((*piece).to_owned(), id)).collect();
    let format = ChatFormat::of_name("harmony").expect("a format");
    for tools in [tools(), tools().choice(ToolChoice::Required)] {
        let grammar = printed(
            format,
            &Wanted {
                tools: &tools,
                text_grammar: None,
                reasoning: ReasoningState::NotStarted,
                control: &control,
            },
        )
        .expect("few bytes")
        .expect("a grammar");
        assert!(grammar.contains("<[257]> \"commentary to=functions.\" body"), "{grammar}");
        matcher(&grammar);
    }
}

/// With reasoning disabled, the template has already written the closing marker.
#[test]
fn reasoning_that_has_ended_does_not_begin_again() {
    let json = "{\"name\": \"ping\", \"arguments\": {}}";
    let block = format!("<tool_call>\n{json}\n</tool_call>");
    for (name, call) in [("hermes", block.as_str()), ("json", json), ("mistral", "[TOOL_CALLS]ping[ARGS]{}")]
    {
        let format = ChatFormat::of_name(name).expect("a format");
        let row = format.reasoning.expect("reasoning");
        let thinking = format!("{}Hm.{}{call}", row.open, row.close);
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            let mut tools = tools().choice(choice);
            tools.list[0].strict = true;
            let takes = |reasoning, text: &str| {
                let wanted = Wanted { tools: &tools, text_grammar: None, reasoning, control: &[] };
                takes(&printed(format, &wanted).expect("few bytes").expect("a grammar"), text)
            };
            assert!(
                takes(ReasoningState::NotStarted, &thinking) && takes(ReasoningState::Closed, call),
                "{name}"
            );
            assert!(!takes(ReasoningState::Closed, &thinking), "{name}");
        }
    }
    // Where a control token opens calls, reasoning may occur between texts.
    let control = [("[TOOL_CALLS]".to_owned(), 5)];
    let mentions = |reasoning| {
        let wanted = Wanted { tools: &tools(), text_grammar: None, reasoning, control: &control };
        printed(ChatFormat::of_name("mistral").expect("a format"), &wanted)
            .expect("few bytes")
            .expect("a grammar")
            .contains("/think")
    };
    assert_eq!([ReasoningState::NotStarted, ReasoningState::Closed].map(mentions), [true, false]);
}

#[test]
fn free_answers_have_no_grammar() {
    assert_eq!(grammar(format("hermes"), &tools().choice(ToolChoice::None)), None);
    assert_eq!(grammar(format("hermes"), &Tools::default()), None);
    assert_eq!(grammar(format("llama3"), &tools()), None);
    let mut strict = tools();
    strict.list[0].strict = true;
    let grammar = grammar(format("llama3"), &strict).expect("a grammar");
    assert!(takes(&grammar, "Hello {there}."));
    assert!(takes(&grammar, "{\"name\": \"ping\", \"parameters\": {}}"));
    assert!(!takes(&grammar, "{\"name\": \"pong\", \"parameters\": {}}"));
}

#[test]
fn a_text_that_has_to_be_something_may_be_thought_about_or_be_a_call() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let text_grammar = Grammar::json_schema(schema).source().expect("a schema");
    let json = "{\"a\": 1}";
    let format = ChatFormat::of_name("hermes").expect("a format");
    let (with, without) = (tools(), Tools::default());
    let grammar = |tools, reasoning| {
        let wanted = Wanted { tools, text_grammar: Some(&text_grammar), reasoning, control: &[] };
        printed(format, &wanted).expect("few bytes").expect("a grammar")
    };
    let (not_started, open, closed) =
        (ReasoningState::NotStarted, ReasoningState::Open, ReasoningState::Closed);
    assert!(takes(&grammar(&without, not_started), json));
    assert!(takes(&grammar(&without, not_started), &format!("<think>\n{{?}}\n</think>\n\n{json}")));
    assert!(!takes(&grammar(&without, not_started), "Well."));
    assert!(takes(&grammar(&without, open), &format!("{{?}}\n</think>\n\n{json}")));
    assert!(!takes(&grammar(&without, open), json), "that is reasoning so far");
    let thought = format!("<think>\n{{?}}\n</think>\n\n{json}");
    assert!(takes(&grammar(&without, closed), json) && !takes(&grammar(&without, closed), &thought));
    let call = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
    assert!(takes(&grammar(&with, not_started), call) && takes(&grammar(&with, not_started), json));
    assert!(!takes(&grammar(&without, not_started), call));
    let choice = Grammar::choice(["yes", "no"]).source().expect("a choice");
    let harmony = ChatFormat::of_name("harmony").expect("a format");
    let wanted = Wanted {
        tools: &with,
        text_grammar: Some(&choice),
        reasoning: ReasoningState::NotStarted,
        control: &[],
    };
    let grammar = printed(harmony, &wanted).expect("few bytes").expect("a grammar");
    let final_part = "<|start|>assistant<|channel|>final<|message|>no";
    let reasoning = "<|channel|>analysis<|message|>Hm.<|end|>";
    assert!(takes(&grammar, &format!("{reasoning}{final_part}")));
    assert!(takes(&grammar, "<|channel|>final<|message|>yes"));
    assert!(!takes(&grammar, &format!("{reasoning}{final_part}thing")));
}

#[test]
fn what_the_parser_takes_for_a_call_is_none_of_the_free_text() {
    let mut strict = tools();
    strict.list[0].strict = true;
    for name in ["json", "llama3", "pythonic"] {
        let format = ChatFormat::of_name(name).expect("a format");
        let grammar = grammar(format, &strict).expect("a grammar");
        let (call, other) = match name {
            "pythonic" => ("[ping()]", "[get_weather(town='Rome')]"),
            "llama3" => {
                ("{\"name\": \"ping\", \"parameters\": {}}", "{\"name\": \"get_weather\", \"parameters\": 1}")
            }
            _ => ("{\"name\": \"ping\", \"arguments\": {}}", "{\"name\": \"get_weather\", \"arguments\": 1}"),
        };
        let marker = format.calls.open.first().expect("a marker");
        for reasoning in ["", "<think>\nHm.\n</think>\n\n"] {
            assert!(takes(&grammar, &format!("{reasoning}{call}")), "{name}\n{grammar}");
            assert!(takes(&grammar, &format!("{reasoning}Well < {{there}}.")), "{name}\n{grammar}");
            assert!(!takes(&grammar, &format!("{reasoning}{other}")), "{name}\n{grammar}");
            assert!(!takes(&grammar, &format!("{reasoning}Well. {marker}{other}")), "{name}\n{grammar}");
        }
        assert!(!takes(&grammar, &format!("Well.<think>\nHm.\n</think>{other}")), "{name}\n{grammar}");
        let begun =
            Wanted { tools: &strict, text_grammar: None, reasoning: ReasoningState::Open, control: &[] };
        let grammar = printed(format, &begun).expect("few bytes").expect("a grammar");
        assert!(takes(&grammar, &format!("Hm. {marker}\n</think>\n\n{call}")), "{name}\n{grammar}");
        assert!(!takes(&grammar, &format!("Hm.\n</think>\n\n{other}")), "{name}\n{grammar}");
    }
}

/// A format may have several opening markers, of which only some are control tokens.
#[test]
fn no_marker_of_a_call_is_part_of_the_free_text() {
    let cases = [
        ("granite", "<|tool_call|>", "<tool_call>[{\"name\": \"get_weather\", \"arguments\": 1}]"),
        ("harmony", "<|channel|>", "to=functions.get_weather<|message|>1"),
    ];
    for (name, piece, other) in cases {
        let format = ChatFormat::of_name(name).expect("a format");
        for control in [vec![], vec![(piece.to_owned(), 257)]] {
            let tools = tools();
            let wanted = Wanted {
                tools: &tools,
                text_grammar: None,
                reasoning: ReasoningState::NotStarted,
                control: &control,
            };
            let grammar = printed(format, &wanted).expect("few bytes").expect("a grammar");
            assert_eq!(calls(format, &tools, &format!("Well. {other}")).1, 1, "{name}");
            assert!(takes(&grammar, "Well < {there}, to=you."), "{name}\n{grammar}");
            assert!(!takes(&grammar, &format!("Well. {other}")), "{name}\n{grammar}");
        }
    }
}

/// Strings of a schema may contain the format's markers; they are plain text there.
#[test]
fn what_a_request_says_is_text_and_never_a_control_token() {
    for (name, piece) in [("gemma", "<|\"|>"), ("qwen-coder", "<parameter="), ("lfm", "<|tool_call_start|>")]
    {
        let values = [piece.repeat(100_000), "\u{7f}".into()];
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"enum": values}}});
        let tools = Tools::new(vec![Tool::new("ping", schema)]).choice(ToolChoice::Required);
        let control = [(piece.to_owned(), 257)];
        let wanted = Wanted {
            tools: &tools,
            text_grammar: None,
            reasoning: ReasoningState::NotStarted,
            control: &control,
        };
        // Small stack, as in a connection's thread.
        let grammar = std::thread::scope(|scope| {
            let write = || printed(format(name), &wanted);
            let thread = std::thread::Builder::new().stack_size(1 << 19).spawn_scoped(scope, write);
            thread.expect("a thread").join().expect("no panic")
        });
        let tools_short = json!({"type": "object", "properties": {"a": {"enum": [piece, "\u{7f}", ""]}}});
        assert_eq!(grammar.expect_err("too many bytes").field, "tools", "{name}");
        let tools = Tools::new(vec![Tool::new("ping", tools_short)]).choice(ToolChoice::Required);
        let wanted = Wanted { tools: &tools, ..wanted };
        let grammar = printed(format(name), &wanted).expect("few bytes").expect("a grammar");
        let text = super::quoted(piece);
        assert!(grammar.contains(text.trim_matches('"')) && grammar.contains("\\u007f"), "{grammar}");
        matcher(&grammar);
    }
}

#[test]
fn many_arguments_that_may_be_left_out_take_a_line_each() {
    let properties = |count: usize| -> Json {
        (0..count)
            .map(|number| (format!("key{number:04}"), json!({"type": "boolean"})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    for name in ["lfm", "gemma", "glm"] {
        let grammar = |count: usize| {
            let schema = json!({"type": "object", "properties": properties(count)});
            let tools = Tools::new(vec![Tool::new("ping", schema)]).choice(ToolChoice::Required);
            printed(
                format(name),
                &Wanted {
                    tools: &tools,
                    text_grammar: None,
                    reasoning: ReasoningState::NotStarted,
                    control: &[],
                },
            )
        };
        let bytes = |count: usize| grammar(count).expect("few bytes").expect("a grammar").len();
        assert!(bytes(400) < 3 * bytes(200), "{name}: {} and {}", bytes(200), bytes(400));
        assert_eq!(grammar(100_000).expect_err("too many bytes").field, "tools", "{name}");
    }
    let schema = json!({"type": "object", "properties": properties(100)});
    let tools = Tools::new(vec![Tool::new("ping", schema)]).choice(ToolChoice::Required);
    let grammar = grammar(format("lfm"), &tools).expect("a grammar");
    let call = |arguments: &str| format!("<|tool_call_start|>[ping({arguments})]<|tool_call_end|>");
    for arguments in ["", "key0000=True", "key0099=True", "key0003=True, key0050=False, key0099=True"] {
        assert!(takes(&grammar, &call(arguments)), "{arguments}");
    }
    for arguments in
        [", key0000=True", "key0050=True, key0003=True", "key0003=True, key0003=True", "key0003=True, "]
    {
        assert!(!takes(&grammar, &call(arguments)), "{arguments}");
    }
}
