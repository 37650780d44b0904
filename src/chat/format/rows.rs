//! Table of the known formats, taken from the models' public chat templates.

use super::{Arguments, Call, Ids, List, NamedCall, Reasoning, Tags, ToolCallFormat as Row};

/// Markers in a template's source, and the format they indicate. The first row with all markers present wins.
pub(super) const CALLS: &[(&[&str], &Row)] = &[
    (&["<|channel|>", "<|message|>", "functions."], &HARMONY),
    (&["<|tool_call>call:"], &GEMMA),
    (&["<start_function_call>"], &FUNCTION_GEMMA),
    (&["｜DSML｜", "tool_calls>"], &DEEPSEEK_MARKUP_4),
    (&["｜DSML｜"], &DEEPSEEK_MARKUP),
    (&["<｜tool▁sep｜>", "```json"], &DEEPSEEK_FENCED),
    (&["<｜tool▁sep｜>"], &DEEPSEEK),
    (&["<|tool_call_argument_begin|>"], &KIMI),
    (&["<minimax:tool_call>"], &MINIMAX),
    (&["[TOOL_CALLS]", "[ARGS]"], &MISTRAL),
    (&["[TOOL_CALLS]"], &MISTRAL_LIST),
    (&["<|tool_call_start|>"], &LFM),
    (&["<|tool_list_start|>"], &LFM),
    (&["<|tool_call|>"], &GRANITE),
    (&["<|START_ACTION|>"], &COMMAND),
    (&["<|tools_prefix|>"], &APERTUS),
    (&["<arg_key>"], &GLM),
    (&["<seed:tool_call>"], &SEED),
    (&["<TOOLCALL>"], &NEMOTRON),
    (&["<function=", "<parameter="], &QWEN_CODER),
    (&["<function="], &FUNCTION_TAG),
    (&["<tool_call>"], &HERMES),
    (&["<|python_start|>"], &PYTHONIC),
    (&["<|python_tag|>"], &LLAMA),
    (&["<|start_header_id|>", "\"parameters\":"], &LLAMA),
];

/// Markers of reasoning, with the same matching rule.
pub(super) const REASONING: &[(&[&str], &Reasoning)] = &[
    (&["<think>"], &THINK),
    (&["</think>"], &THINK),
    (&["[THINK]"], &Reasoning { open: "[THINK]", close: "[/THINK]", then: "" }),
    (&["<seed:think>"], &Reasoning { open: "<seed:think>", close: "</seed:think>", then: "" }),
    (&["<|START_THINKING|>"], &Reasoning { open: "<|START_THINKING|>", close: "<|END_THINKING|>", then: "" }),
    (&["<|inner_prefix|>"], &Reasoning { open: "<|inner_prefix|>", close: "<|inner_suffix|>", then: "" }),
];

pub(super) const THINK: Reasoning = Reasoning { open: "<think>\n", close: "\n</think>\n\n", then: "" };

/// All rows; rows with equal names are adjacent.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    CALLS.iter().map(|row| row.1).chain([&GENERIC])
}

/// Default values of a row.
const BASE: Row = Row {
    name: "json",
    open: &[],
    bare: false,
    list: List::No,
    several: false,
    is_last: false,
    call: Call::Object { name: &["name"], arguments: &["arguments", "parameters"] },
    close: "",
    text_prefix: "",
    ignored_markers: &[],
    ids: Ids::Long,
    reasoning: None,
};

pub(super) const GENERIC: Row = Row { open: &["<tool_call>"], bare: true, close: "</tool_call>", ..BASE };

/// Hermes, Qwen 2.5 and 3, Granite 4 and many more.
pub(super) const HERMES: Row =
    Row { name: "hermes", open: &["<tool_call>\n"], close: "\n</tool_call>", ..BASE };

/// Llama 3.
const LLAMA: Row = Row {
    name: "llama3",
    open: &["<|python_tag|>"],
    bare: true,
    call: Call::Object { name: &["name"], arguments: &["parameters", "arguments"] },
    ..BASE
};

/// Mistral 7B v0.3, Nemo.
const MISTRAL_LIST: Row =
    Row { name: "mistral-list", open: &["[TOOL_CALLS]"], list: List::Yes, ids: Ids::Short, ..BASE };

/// Mistral Small 3.2, Devstral, Ministral 3.
const MISTRAL: Row = Row {
    name: "mistral",
    open: &["[TOOL_CALLS]"],
    call: Call::Named(NamedCall { prefix: "", before: &["[ARGS]"], ..JSON }),
    ids: Ids::After("[CALL_ID]"),
    ..BASE
};

/// Granite 3.
const GRANITE: Row =
    Row { name: "granite", open: &["<|tool_call|>", "<tool_call>"], list: List::Yes, ..BASE };

/// Command R7B.
const COMMAND: Row = Row {
    name: "command",
    open: &["<|START_ACTION|>"],
    list: List::Yes,
    call: Call::Object { name: &["tool_name"], arguments: &["parameters"] },
    close: "<|END_ACTION|>",
    text_prefix: "<|START_RESPONSE|>",
    ignored_markers: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    ..BASE
};

/// A name followed by JSON arguments.
const JSON: NamedCall = NamedCall { prefix: "", before: &[], arguments: Arguments::Json, suffix: "" };

/// Apertus: each call is an object with the tool's name as its key.
const APERTUS: Row = Row {
    name: "apertus",
    open: &["<|tools_prefix|>"],
    list: List::Yes,
    call: Call::Named(NamedCall { prefix: "{\"", before: &["\": "], suffix: "}", ..JSON }),
    close: "<|tools_suffix|>",
    ..BASE
};

/// Functionary 3.1, and Llama 3.1 with its custom-tool prompt.
const FUNCTION_TAG: Row = Row {
    name: "function-tag",
    open: &["<function="],
    call: Call::Named(NamedCall { before: &[">"], suffix: "</function>", ..JSON }),
    ..BASE
};

const DEEPSEEK: Row = Row {
    name: "deepseek",
    open: &["<｜tool▁calls▁begin｜>"],
    several: true,
    call: Call::Named(NamedCall {
        prefix: "<｜tool▁call▁begin｜>",
        before: &["<｜tool▁sep｜>"],
        suffix: "<｜tool▁call▁end｜>",
        ..JSON
    }),
    close: "<｜tool▁calls▁end｜>",
    ..BASE
};

/// DeepSeek V3 and R1.
const DEEPSEEK_FENCED: Row = Row {
    name: "deepseek-fenced",
    call: Call::Named(NamedCall {
        prefix: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before: &["\n```json\n"],
        suffix: "\n```<｜tool▁call▁end｜>",
        ..JSON
    }),
    ..DEEPSEEK
};

/// DeepSeek V3.2.
const DEEPSEEK_MARKUP: Row = Row {
    name: "deepseek-markup",
    open: &["<｜DSML｜function_calls>\n"],
    several: true,
    call: Call::Named(NamedCall {
        prefix: "<｜DSML｜invoke name=\"",
        before: &["\">\n"],
        arguments: Arguments::Tags(Tags {
            key: "<｜DSML｜parameter name=\"",
            key_end: &["\" string=\"true\">", "\" string=\"false\">"],
            value: "",
            value_end: "</｜DSML｜parameter>\n",
            lines: false,
        }),
        suffix: "</｜DSML｜invoke>\n",
    }),
    close: "</｜DSML｜function_calls>",
    ..BASE
};

/// DeepSeek V4.
const DEEPSEEK_MARKUP_4: Row = Row {
    name: "deepseek-markup-4",
    open: &["<｜DSML｜tool_calls>\n"],
    close: "</｜DSML｜tool_calls>",
    ..DEEPSEEK_MARKUP
};

const KIMI: Row = Row {
    name: "kimi",
    open: &["<|tool_calls_section_begin|>"],
    several: true,
    call: Call::Named(NamedCall {
        prefix: "<|tool_call_begin|>functions.",
        before: &["<|tool_call_argument_begin|>"],
        suffix: "<|tool_call_end|>",
        ..JSON
    }),
    close: "<|tool_calls_section_end|>",
    ids: Ids::Numbered(":"),
    ..BASE
};

const QWEN_CODER: Row = Row {
    name: "qwen-coder",
    open: &["<tool_call>\n"],
    call: Call::Named(NamedCall {
        prefix: "<function=",
        before: &[">\n"],
        arguments: Arguments::Tags(Tags {
            key: "<parameter=",
            key_end: &[">"],
            value: "",
            value_end: "</parameter>\n",
            lines: true,
        }),
        suffix: "</function>",
    }),
    close: "\n</tool_call>",
    ..BASE
};

/// Seed-OSS: Qwen Coder's layout with other outer tags.
const SEED: Row =
    Row { name: "seed", open: &["<seed:tool_call>\n"], close: "\n</seed:tool_call>", ..QWEN_CODER };

/// Nemotron Nano 2.
const NEMOTRON: Row =
    Row { name: "nemotron", open: &["<TOOLCALL>"], list: List::Yes, close: "</TOOLCALL>", ..BASE };

const MINIMAX: Row = Row {
    name: "minimax",
    open: &["<minimax:tool_call>\n"],
    several: true,
    call: Call::Named(NamedCall {
        prefix: "<invoke name=\"",
        before: &["\">\n"],
        arguments: Arguments::Tags(Tags {
            key: "<parameter name=\"",
            key_end: &["\">"],
            value: "",
            value_end: "</parameter>\n",
            lines: false,
        }),
        suffix: "</invoke>\n",
    }),
    close: "</minimax:tool_call>",
    ..BASE
};

/// GLM 4.5 to 4.7.
const GLM: Row = Row {
    name: "glm",
    open: &["<tool_call>"],
    call: Call::Named(NamedCall {
        prefix: "",
        before: &["\n"],
        arguments: Arguments::Tags(Tags {
            key: "<arg_key>",
            key_end: &["</arg_key>\n"],
            value: "<arg_value>",
            value_end: "</arg_value>\n",
            lines: false,
        }),
        suffix: "",
    }),
    close: "</tool_call>",
    ..BASE
};

/// Llama 4.
const PYTHONIC: Row = Row {
    name: "pythonic",
    open: &["<|python_start|>"],
    bare: true,
    list: List::Yes,
    call: Call::Named(NamedCall { prefix: "", before: &["("], arguments: Arguments::Python, suffix: "" }),
    close: "<|python_end|>",
    ..BASE
};

/// LFM2.
const LFM: Row =
    Row { name: "lfm", open: &["<|tool_call_start|>"], bare: false, close: "<|tool_call_end|>", ..PYTHONIC };

/// Gemma 4.
const GEMMA: Row = Row {
    name: "gemma",
    open: &["<|tool_call>"],
    call: Call::Named(NamedCall {
        prefix: "call:",
        before: &[""],
        arguments: Arguments::Quoted("<|\"|>"),
        suffix: "",
    }),
    close: "<tool_call|>",
    reasoning: Some(&Reasoning { open: "<|channel>thought\n", close: "\n<channel|>", then: "" }),
    ..BASE
};

const FUNCTION_GEMMA: Row = Row {
    name: "function-gemma",
    open: &["<start_function_call>"],
    call: Call::Named(NamedCall {
        prefix: "call:",
        before: &[""],
        arguments: Arguments::Quoted("<escape>"),
        suffix: "",
    }),
    close: "<end_function_call>",
    ..BASE
};

/// gpt-oss: every part is a message on its own channel.
const HARMONY: Row = Row {
    name: "harmony",
    open: &["<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.", "to=functions."],
    call: Call::Named(NamedCall {
        before: &[
            " <|constrain|>json<|message|>",
            "<|constrain|>json<|message|>",
            "json<|message|>",
            "code<|message|>",
            "<|message|>",
            "<|channel|>commentary json<|message|>",
            "<|channel|>commentary <|constrain|>json<|message|>",
            "<|channel|>commentary<|message|>",
            "<|channel|>analysis json<|message|>",
            "<|channel|>analysis <|constrain|>json<|message|>",
        ],
        ..JSON
    }),
    is_last: true,
    text_prefix: "<|channel|>final<|message|>",
    ignored_markers: &[
        "<|call|>",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
    ],
    reasoning: Some(&Reasoning {
        open: "<|channel|>analysis<|message|>",
        close: "<|end|>",
        then: "<|start|>assistant",
    }),
    ..BASE
};
