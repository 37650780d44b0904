//! Recorded answers. Each format has at least one with text, one with two calls, and one with empty
//! arguments.

use super::{Case, NO_CALL};

#[rustfmt::skip]
pub(super) const CASES: &[Case] = &[
    Case {
        format: "hermes",
        written: "Plain **text** with < and {braces} and \"quotes\" 🙂\n\nEnd.",
        text: "Plain **text** with < and {braces} and \"quotes\" 🙂\n\nEnd.",
        ..NO_CALL
    },
    Case {
        format: "hermes",
        written: "<think>\nThe user wants <b>weather</b>.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"Höngg\\\"\", \"days\": 3, \"metric\": true}}\n</tool_call>",
        reasoning: "The user wants <b>weather</b>.",
        text: "Let me look.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#)],
    },
    Case {
        format: "hermes",
        written: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"where\": {\"lat\": 47.4, \"tags\": [\"a\", \"b{}\"], \"deep\": {\"x\": null}}, \"days\": -2}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\nDone.",
        text: "Done.",
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "hermes",
        written: r#"<tool_call>{"arguments": {"text": "late"}, "name": "note"}</tool_call><tool_call>{"name": "ping"}</tool_call>"#,
        calls: &[("note", r#"{"text":"late"}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "hermes",
        written: "<tool_call>{\"name\": \"note\", \"arguments\": \"{\\\"text\\\": \\\"inner\\\"}\"}\n{\"name\": \"ping\", \"arguments\": null}",
        calls: &[("note", r#"{"text":"inner"}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "json",
        written: r#"{"name": "get_weather", "arguments": {"city": "Zürich \"Höngg\"", "days": 3, "metric": true}}; {"name": "ping", "parameters": {}}"#,
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "json",
        written: "Just text.",
        text: "Just text.",
        ..NO_CALL
    },
    Case {
        format: "json",
        written: r#"{"city": "Oslo"}"#,
        text: r#"{"city": "Oslo"}"#,
        ..NO_CALL
    },
    Case {
        format: "json",
        written: r#"Look: <tool_call>{"name": "note", "arguments": {"text": "it's \\ ☕\nnew"}}</tool_call>"#,
        text: "Look:",
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "llama3",
        written: r#"{"name": "get_weather", "parameters": {"where": {"lat": 47.4, "tags": ["a", "b{}"], "deep": {"x": null}}, "days": -2}}"#,
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#)],
        ..NO_CALL
    },
    Case {
        format: "llama3",
        written: r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Zürich \"Höngg\"", "days": 3, "metric": true}}; {"type": "function", "name": "ping", "parameters": {}}"#,
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "llama3",
        written: "Well, {braces} are text.",
        text: "Well, {braces} are text.",
        ..NO_CALL
    },
    Case {
        format: "mistral-list",
        written: r#"I look. [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Zürich \"Höngg\"", "days": 3, "metric": true}, "id": "abcdef123"}, {"name": "ping", "arguments": {}}]"#,
        text: "I look.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "mistral-list",
        written: "No [TOOLS] here.",
        text: "No [TOOLS] here.",
        ..NO_CALL
    },
    Case {
        format: "mistral-list",
        written: "[TOOL_CALLS] [{\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\\ ☕\\nnew\"}}]\nAfter",
        text: "After",
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "mistral",
        written: "[THINK]Hm.[/THINK]",
        text: "[THINK]Hm.[/THINK]",
        ..NO_CALL
    },
    Case {
        format: "mistral",
        written: r#"Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Zürich \"Höngg\"", "days": 3, "metric": true}[TOOL_CALLS]ping[CALL_ID]abc123def[ARGS]{}"#,
        text: "Sure.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "mistral",
        written: r#"[TOOL_CALLS]get_weather[ARGS]{"where": {"lat": 47.4, "tags": ["a", "b{}"], "deep": {"x": null}}, "days": -2} Then."#,
        text: "Then.",
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#)],
        ..NO_CALL
    },
    Case {
        format: "granite",
        written: r#"<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Zürich \"Höngg\"", "days": 3, "metric": true}}, {"name": "ping", "arguments": {}}]"#,
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "granite",
        written: "<think>Some thought</think>Answer: [1, 2]",
        reasoning: "Some thought",
        text: "Answer: [1, 2]",
        ..NO_CALL
    },
    Case {
        format: "granite",
        written: r#"One <tool_call>[{"name": "note", "arguments": {"text": "it's \\ ☕\nnew"}}] two"#,
        text: "Onetwo",
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "command",
        written: "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"Höngg\\\"\", \"days\": 3, \"metric\": true}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|>",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "command",
        written: "<|START_RESPONSE|>Fine, thanks.<|END_RESPONSE|>",
        text: "Fine, thanks.",
        ..NO_CALL
    },
    Case {
        format: "apertus",
        written: r#"Let me.<|tools_prefix|>[{"get_weather": {"city": "Zürich \"Höngg\"", "days": 3, "metric": true}}, {"ping": {}}]<|tools_suffix|>"#,
        text: "Let me.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "apertus",
        written: r#"Text only: {"ping": {}}"#,
        text: r#"Text only: {"ping": {}}"#,
        ..NO_CALL
    },
    Case {
        format: "function-tag",
        written: r#"Ok <function=get_weather>{"where": {"lat": 47.4, "tags": ["a", "b{}"], "deep": {"x": null}}, "days": -2}</function><function=ping>{}</function>"#,
        text: "Ok",
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "function-tag",
        written: "a < b and <functional>",
        text: "a < b and <functional>",
        ..NO_CALL
    },
    Case {
        format: "deepseek",
        written: "<think>\nThe user wants <b>weather</b>.\n</think>\n\nHm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich \\\"Höngg\\\"\", \"days\": 3, \"metric\": true}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning: "The user wants <b>weather</b>.",
        text: "Hm.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
    },
    Case {
        format: "deepseek",
        written: "Nothing <to> do.",
        text: "Nothing <to> do.",
        ..NO_CALL
    },
    Case {
        format: "deepseek-fenced",
        written: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"where\": {\"lat\": 47.4, \"tags\": [\"a\", \"b{}\"], \"deep\": {\"x\": null}}, \"days\": -2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "deepseek-fenced",
        written: "```json\n{}\n```",
        text: "```json\n{}\n```",
        ..NO_CALL
    },
    Case {
        format: "deepseek-markup",
        written: "Right.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich \"Höngg\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"metric\" string=\"false\">true</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        text: "Right.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "deepseek-markup",
        written: "No call.",
        text: "No call.",
        ..NO_CALL
    },
    Case {
        format: "kimi",
        written: r#"Wait<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Zürich \"Höngg\"", "days": 3, "metric": true}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"#,
        text: "Wait",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "kimi",
        written: "functions.ping:1",
        text: "functions.ping:1",
        ..NO_CALL
    },
    Case {
        format: "qwen-coder",
        written: "I'll check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich \"Höngg\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        text: "I'll check.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "qwen-coder",
        written: "<tool_call>\n<function=note>\n<parameter=text>\nfn main() {\n    a < b </p>;\n}\n\n</parameter>\n</function>\n<function=get_weather>\n<parameter=where>\n{\"a\": [1, 2.5e3]}\n</parameter>\n<parameter=zip>null</parameter>\n<parameter=tags>\n['x', True]\n</parameter>\n</function>\n</tool_call>",
        calls: &[("note", r#"{"text":"fn main() {\n    a < b </p>;\n}\n"}"#), ("get_weather", r#"{"where":{"a":[1,2.5e3]},"zip":null,"tags":["x",true]}"#)],
        ..NO_CALL
    },
    Case {
        format: "qwen-coder",
        written: "<think>\nNo.\n</think>\n\nText <function> here",
        reasoning: "No.",
        text: "Text <function> here",
        ..NO_CALL
    },
    Case {
        format: "qwen-coder",
        written: "<tool_call>\n<function=get_weather>\n<parameter=zip>\n8049\n</parameter>\n<parameter=days>\nfew\n</parameter>\n<parameter=other>\n1.0\n</parameter>\n</function>\n</tool_call>",
        calls: &[("get_weather", r#"{"zip":"8049","days":"few","other":1.0}"#)],
        ..NO_CALL
    },
    Case {
        format: "minimax",
        written: "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich \"Höngg\"</parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"metric\">true</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "minimax",
        written: "Just <b>bold</b>.",
        text: "Just <b>bold</b>.",
        ..NO_CALL
    },
    Case {
        format: "glm",
        written: "<think>Think.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich \"Höngg\"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>metric</arg_key>\n<arg_value>true</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
        reasoning: "Think.",
        text: "I look.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
    },
    Case {
        format: "glm",
        written: "<tool_call>get_weather<arg_key>where</arg_key><arg_value>{\"a\": {\"b\": [null]}}</arg_value></tool_call><tool_call>note<arg_key>text</arg_key><arg_value>it's \\ ☕\nnew</arg_value></tool_call>",
        calls: &[("get_weather", r#"{"where":{"a":{"b":[null]}}}"#), ("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "glm",
        written: "Plain.",
        text: "Plain.",
        ..NO_CALL
    },
    Case {
        format: "pythonic",
        written: r#"[get_weather(city='Zürich "Höngg"', days=3, metric=True), ping()]"#,
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "pythonic",
        written: "<|python_start|>[get_weather(where={'lat': 47.4, 'tags': ['a', 'b{}'], 'deep': {'x': None}}, days=-2)]<|python_end|> ok",
        text: "ok",
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#)],
        ..NO_CALL
    },
    Case {
        format: "pythonic",
        written: "[1] is a list, ping() a call.",
        text: "[1] is a list, ping() a call.",
        ..NO_CALL
    },
    Case {
        format: "pythonic",
        written: r#"[note(text="it's \\ ☕\nnew")]"#,
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "lfm",
        written: r#"Let me see.<|tool_call_start|>[get_weather(city="Zürich \"Höngg\"", days=3, metric=True), ping()]<|tool_call_end|>Checking."#,
        text: "Let me see.Checking.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "lfm",
        written: "[ping()] is text without its mark.",
        text: "[ping()] is text without its mark.",
        ..NO_CALL
    },
    Case {
        format: "gemma",
        written: "<|channel>thought\nHm, \"weather\".\n<channel|>Look.<|tool_call>call:get_weather{city:<|\"|>Zürich \"Höngg\"<|\"|>,days:3,metric:true}<tool_call|><|tool_call>call:ping{}<tool_call|>",
        reasoning: r#"Hm, "weather"."#,
        text: "Look.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
    },
    Case {
        format: "gemma",
        written: r#"<|tool_call>call:get_weather{where:{lat:47.4,tags:[<|"|>a<|"|>,<|"|>b{}<|"|>],deep:{x:null}},days:-2}<tool_call|>"#,
        calls: &[("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#)],
        ..NO_CALL
    },
    Case {
        format: "gemma",
        written: "A <|pipe and call:ping{}.",
        text: "A <|pipe and call:ping{}.",
        ..NO_CALL
    },
    Case {
        format: "gemma",
        written: "<|tool_call>call:note{text:<|\"|>it's \\ ☕\nnew<|\"|>}<tool_call|>",
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#)],
        ..NO_CALL
    },
    Case {
        format: "function-gemma",
        written: r#"<start_function_call>call:get_weather{city:<escape>Zürich "Höngg"<escape>,days:3,metric:true}<end_function_call><start_function_call>call:ping{}<end_function_call>"#,
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "function-gemma",
        written: "Hello.",
        text: "Hello.",
        ..NO_CALL
    },
    Case {
        format: "harmony",
        written: r#"<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Zürich \"Höngg\"", "days": 3, "metric": true}<|call|>"#,
        reasoning: "Need weather.",
        calls: &[("get_weather", r#"{"city":"Zürich \"Höngg\"","days":3,"metric":true}"#)],
        ..NO_CALL
    },
    Case {
        format: "harmony",
        written: "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hello **you**.<|return|>",
        reasoning: "Easy.",
        text: "Hello **you**.",
        ..NO_CALL
    },
    Case {
        format: "harmony",
        written: " to=functions.ping<|channel|>commentary json<|message|>{}",
        calls: &[("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "harmony",
        written: r#"<|channel|>commentary<|message|>I will look twice.<|end|><|start|>assistant<|channel|>commentary to=functions.note<|message|>{"text": "it's \\ ☕\nnew"}<|call|><|start|>assistant<|channel|>commentary to=functions.get_weather json<|message|>{"where": {"lat": 47.4, "tags": ["a", "b{}"], "deep": {"x": null}}, "days": -2}<|call|>"#,
        text: "I will look twice.",
        calls: &[("note", r#"{"text":"it's \\ ☕\nnew"}"#), ("get_weather", r#"{"where":{"lat":47.4,"tags":["a","b{}"],"deep":{"x":null}},"days":-2}"#)],
        ..NO_CALL
    },
    Case {
        format: "seed",
        written: "<seed:tool_call>\n<function=note>\n<parameter=text>two\nlines</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
        calls: &[("note", r#"{"text":"two\nlines"}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "seed",
        written: "<tool_call> is of others.",
        text: "<tool_call> is of others.",
        ..NO_CALL
    },
    Case {
        format: "nemotron",
        written: "<TOOLCALL>[{\"name\": \"note\", \"arguments\": {\"text\": \"a, [b]\"}}, {\"name\": \"ping\", \"arguments\": {}}]</TOOLCALL>",
        calls: &[("note", r#"{"text":"a, [b]"}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "nemotron",
        written: "<think>\nHm.\n</think>\nNo tools.",
        reasoning: "Hm.",
        text: "No tools.",
        ..NO_CALL
    },
    Case {
        format: "deepseek-markup-4",
        written: "Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"where\" string=\"false\">{\"a\": [1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        text: "Hm.",
        calls: &[("get_weather", r#"{"where":{"a":[1]}}"#), ("ping", "{}")],
        ..NO_CALL
    },
    Case {
        format: "deepseek-markup-4",
        written: "<｜DSML｜ is a token.",
        text: "<｜DSML｜ is a token.",
        ..NO_CALL
    },
];
