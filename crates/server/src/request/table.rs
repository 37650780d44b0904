//! The table of request fields: a row for each field that a route reads, in groups that routes share.
//!
//! Parsing takes fields by these rows; `/openapi.json` has their schemas; each group is a section of
//! `docs/server.md`. The tests of `api/openapi.rs` hold the three equal.

use crate::request::fields::{Field, Group, Row, field, shaped};
use crate::request::kinds::{
    AtLeast, Count, Flag, Integer, Limit, List, NoEffect, NoOp, Number, Object, Raw, Seed, Text, Texts,
};

/// Maximum number of alternatives reported with a token.
const LOGPROBS_MAX: u64 = 20;
/// Maximum number of answers to a prompt, as in OpenAI's API.
const CHOICES_MAX: u64 = 128;

/// Declares a group with its rows.
macro_rules! group {
    ($group:ident, $title:literal: $($row:ident: $kind:ty = $value:expr;)*) => {
        $(pub(crate) static $row: Field<$kind> = $value;)*
        pub(crate) static $group: Group =
            Group { title: $title, rows: &[$(&$row as &dyn Row),*] };
    };
}

group! { EVERY_REQUEST, "Every request":
    MODEL: Raw = shaped("model", Raw, "model");
}

group! { LENGTH, "Number and length of answers":
    N: Count = field("n", Count(1, CHOICES_MAX), "answers to each prompt");
    BEST_OF: Count = field("best_of", Count(1, CHOICES_MAX), "equal to n");
    MAX_TOKENS: Limit = field("max_tokens", Limit, "most tokens of the answer");
    MAX_COMPLETION_TOKENS: Limit = field("max_completion_tokens", Limit, "OpenAI's newer name of max_tokens");
    N_PREDICT: Limit = field("n_predict", Limit, "llama.cpp's name of max_tokens; -1 is no limit");
    MIN_TOKENS: AtLeast = field("min_tokens", AtLeast(0), "no end before that many tokens");
    STOP: Texts = shaped("stop", Texts, "stop");
    STOP_TOKEN_IDS: Raw = shaped("stop_token_ids", Raw, "stop_token_ids");
    INCLUDE_STOP: Flag = field("include_stop_str_in_output", Flag, "");
    IGNORE_EOS: Flag = field("ignore_eos", Flag, "");
}

group! { SAMPLING, "Sampling":
    TEMPERATURE: Number = field("temperature", Number(&[("minimum", 0), ("maximum", 100)]), "");
    TOP_P: Number = field("top_p", SHARE, "");
    TOP_K: Limit = field("top_k", Limit, "-1 and 0 keep all");
    MIN_P: Number = field("min_p", SHARE, "");
    FREQUENCY_PENALTY: Number = field("frequency_penalty", PENALTY, "");
    PRESENCE_PENALTY: Number = field("presence_penalty", PENALTY, "");
    REPETITION_PENALTY: Number = field("repetition_penalty", FACTOR, "");
    REPEAT_PENALTY: Number = field("repeat_penalty", FACTOR, "llama.cpp's name of repetition_penalty");
    REPEAT_LAST_N: Limit = field("repeat_last_n", Limit, "tokens that penalties count; -1 is all");
    LOGIT_BIAS: Raw = shaped("logit_bias", Raw, "logit_bias");
    SEED: Seed = field("seed", Seed, "none and -1 are random");
}

const SHARE: Number = Number(&[("minimum", 0), ("maximum", 1)]);
const PENALTY: Number = Number(&[("minimum", -2), ("maximum", 2)]);
const FACTOR: Number = Number(&[("exclusiveMinimum", 0)]);

group! { DELIVERY, "Streaming, cache and order":
    STREAM: Flag = field("stream", Flag, "");
    STREAM_OPTIONS: Object = shaped("stream_options", Object, "stream_options");
    CACHE_SALT: Text = shaped("cache_salt", Text, "cache_salt");
    PRIORITY: Integer = field("priority", Integer(-127, 127), "lower is served first");
}

/// Fields of [`DELIVERY`] that vllm-router reads back.
pub(crate) static RENDER: Group = Group { title: DELIVERY.title, rows: &[&STREAM, &CACHE_SALT, &PRIORITY] };

group! { FORMAT, "Answer format":
    RESPONSE_FORMAT: Object = shaped("response_format", Object, "response_format");
    STRUCTURED_OUTPUTS: Object = shaped("structured_outputs", Object, "structured_outputs");
    JSON_SCHEMA: Raw = shaped("json_schema", Raw, "schema_of_llama");
    GRAMMAR: Text = shaped("grammar", Text, "grammar_form");
    REGEX: Text = field("regex", Text, "SGLang's: a regular expression");
    EBNF: Text = shaped("ebnf", Text, "grammar_form");
    NVEXT: Object = shaped("nvext", Object, "nvext");
}

group! { GUIDED, "Answer format by vLLM's older names":
    GUIDED_JSON: Raw = shaped("guided_json", Raw, "json_form");
    GUIDED_JSON_OBJECT: Flag = field("guided_json_object", Flag, "");
    GUIDED_REGEX: Text = field("guided_regex", Text, "");
    GUIDED_CHOICE: Texts = shaped("guided_choice", Texts, "choice_form");
    GUIDED_GRAMMAR: Text = shaped("guided_grammar", Text, "grammar_form");
    GUIDED_WHITESPACE_PATTERN: Text = shaped("guided_whitespace_pattern", Text, "whitespace_form");
}

group! { TEMPLATE, "Chat template":
    REASONING_EFFORT: Text = field("reasoning_effort", Text, "");
    CHAT_TEMPLATE_KWARGS: Object = field("chat_template_kwargs", Object, "variables of the template");
    DOCUMENTS: Raw = shaped("documents", Raw, "documents");
    ADD_GENERATION_PROMPT: Flag = field("add_generation_prompt", Flag, "");
    CONTINUE_FINAL_MESSAGE: Flag =
        field("continue_final_message", Flag, "the answer continues the last message, an assistant's");
}

group! { CHAT_INPUT, "Chat: conversation":
    CHAT_MESSAGES: List = shaped("messages", List, "messages");
    CHAT_TOOLS: List = shaped("tools", List, "tools_of_chat");
    CHAT_TOOL_CHOICE: Raw = shaped("tool_choice", Raw, "tool_choice_of_chat");
    PARALLEL_TOOL_CALLS: Flag = field("parallel_tool_calls", Flag, "");
}

group! { CHAT_LOGPROBS, "Chat: log-probabilities":
    LOGPROBS: Flag = field("logprobs", Flag, "");
    TOP_LOGPROBS: Count = field("top_logprobs", Count(0, LOGPROBS_MAX), "");
}

group! { TOKEN_IDS, "Chat and completions: token ids":
    RETURN_TOKEN_IDS: Flag = field("return_token_ids", Flag, "");
}

group! { COMPLETIONS, "Completions":
    PROMPT: Raw = shaped("prompt", Raw, "prompts");
    ECHO: Flag = field("echo", Flag, "");
    COMPLETION_LOGPROBS: Count = field("logprobs", Count(0, LOGPROBS_MAX), "");
    SUFFIX: NoOp = field("suffix", NoOp(&["\"\""]), "");
}

group! { RESPONSES_INPUT, "Responses: input":
    INPUT: Raw = shaped("input", Raw, "input");
    INSTRUCTIONS: Text = field("instructions", Text, "");
    RESPONSES_TOOLS: List = shaped("tools", List, "tools");
    RESPONSES_TOOL_CHOICE: Raw = shaped("tool_choice", Raw, "tool_choice");
    RESPONSES_PARALLEL: Flag = field("parallel_tool_calls", Flag, "");
    REASONING: Object = shaped("reasoning", Object, "reasoning");
    PREVIOUS_RESPONSE_ID: NoOp = field("previous_response_id", NoOp(&[]), "");
    CONVERSATION: NoOp = field("conversation", NoOp(&[]), "");
    STORED_PROMPT: NoOp = field("prompt", NoOp(&[]), "");
}

group! { RESPONSES_OUTPUT, "Responses: output":
    MAX_OUTPUT_TOKENS: AtLeast = field("max_output_tokens", AtLeast(1), "");
    TEXT_FORMAT: Object = shaped("text", Object, "text_of_responses");
    TRUNCATION: Text = shaped("truncation", Text, "truncation");
    INCLUDE: List = field("include", List, "log-probabilities are in the chat API only");
    MAX_TOOL_CALLS: NoEffect = field("max_tool_calls", NoEffect, "accepted, without effect: clients call tools");
    RESPONSES_N: NoOp = field("n", NoOp(&["1"]), "");
    RESPONSES_TOP_LOGPROBS: NoOp = field("top_logprobs", NoOp(&["0"]), "");
    BACKGROUND: NoOp = field("background", NoOp(&["false"]), "");
}

group! { MESSAGES_INPUT, "Messages: conversation":
    MESSAGES: List = shaped("messages", List, "messages_of_messages");
    SYSTEM: Raw = shaped("system", Raw, "system");
    MESSAGES_TOOLS: List = shaped("tools", List, "tools_of_messages");
    MESSAGES_TOOL_CHOICE: Object = shaped("tool_choice", Object, "tool_choice_of_messages");
    THINKING: Object = shaped("thinking", Object, "thinking");
    OUTPUT_CONFIG: Object = shaped("output_config", Object, "output_config");
    OUTPUT_FORMAT: Object = shaped("output_format", Object, "output_format");
    CACHE_CONTROL: NoEffect = field("cache_control", NoEffect, "accepted, without effect: caching is automatic");
}

group! { MESSAGES_OUTPUT, "Messages: answer":
    MESSAGES_MAX_TOKENS: AtLeast = shaped("max_tokens", AtLeast(1), "max_tokens_of_messages");
    STOP_SEQUENCES: Texts = shaped("stop_sequences", Texts, "stop_sequences");
    MESSAGES_N: NoOp = field("n", NoOp(&["1"]), "");
    CONTAINER: NoOp = field("container", NoOp(&[]), "");
    MCP_SERVERS: NoOp = field("mcp_servers", NoOp(&["[]"]), "");
}

/// The field of [`FORMAT`] that a token count accepts: an answer's format is no part of the prompt.
pub(crate) static MESSAGES_COUNT: Group =
    Group { title: "Answer format", rows: &[&field("response_format", NoEffect, "")] };

group! { TOKENIZE, "Tokenize":
    TOKENIZE_CONTENT: Text = field("content", Text, "llama.cpp's name of the text");
    TOKENIZE_PROMPT: Text = field("prompt", Text, "vLLM's name of the text");
    TOKENIZE_TEXT: Text = field("text", Text, "another name of prompt");
    ADD_SPECIAL_TOKENS: Flag = field("add_special_tokens", Flag, "");
    ADD_SPECIAL: Flag = field("add_special", Flag, "llama.cpp's name of add_special_tokens");
    PARSE_SPECIAL: Flag = field("parse_special", Flag, "");
    RETURN_TOKEN_STRS: Flag = field("return_token_strs", Flag, "");
    WITH_PIECES: Flag = field("with_pieces", Flag, "tokens are objects with id and piece");
}

group! { DETOKENIZE, "Detokenize":
    TOKENS_OF_TEXT: Raw = shaped("tokens", Raw, "token_ids");
}

pub(crate) static USER: Field<NoEffect> = field("user", NoEffect, "");
pub(crate) static METADATA: Field<NoEffect> = field("metadata", NoEffect, "");

/// Fields that clients and routers send and that change no answer.
pub(crate) static WITHOUT_EFFECT: Group = Group {
    title: "Accepted without effect",
    rows: &[
        &USER,
        &METADATA,
        &field("store", NoEffect, "accepted, without effect: nothing is stored"),
        &field("service_tier", NoEffect, ""),
        &field("prompt_cache_key", NoEffect, ""),
        &field("safety_identifier", NoEffect, ""),
        &field("request_id", NoEffect, ""),
        &field("session_id", NoEffect, ""),
        &field("parallel_tool_calls", NoEffect, ""),
        &field("cache_prompt", NoEffect, ""),
        &field("id_slot", NoEffect, ""),
        &field("timings_per_token", NoEffect, ""),
        &field("return_progress", NoEffect, ""),
        &field("n_keep", NoEffect, ""),
        &field("verbosity", NoEffect, ""),
        &field("guided_decoding_backend", NoEffect, ""),
    ],
};

/// Fields that would change the answer and have no implementation, with their no-op values.
pub(crate) static NOT_SUPPORTED: Group = Group {
    title: "Refused unless they have a no-op value",
    rows: &[
        &field("tools", NoOp(&["[]"]), ""),
        &field("functions", NoOp(&["[]"]), ""),
        &field("function_call", NoOp(&["\"none\"", "\"auto\""]), ""),
        &field("tool_choice", NoOp(&["\"none\"", "\"auto\""]), ""),
        &field("skip_special_tokens", NoOp(&["true"]), ""),
        &field("spaces_between_special_tokens", NoOp(&["true", "false"]), ""),
        &field("bad_words", NoOp(&["[]"]), ""),
        &field("allowed_token_ids", NoOp(&["[]"]), ""),
        &field("truncate_prompt_tokens", NoOp(&["-1"]), ""),
        &field("prompt_logprobs", NoOp(&["0", "false"]), ""),
        &field("return_token_ids", NoOp(&["false"]), ""),
        &field("return_tokens_as_token_ids", NoOp(&["false"]), ""),
        &field("return_hidden_states", NoOp(&["false"]), ""),
        &field("use_beam_search", NoOp(&["false"]), ""),
        &field("length_penalty", NoOp(&["1", "1.0"]), ""),
        &field("continue_final_message", NoOp(&["false"]), ""),
        &field("chat_template", NoOp(&[]), ""),
        &field("prediction", NoOp(&[]), ""),
        &field("audio", NoOp(&[]), ""),
        &field("modalities", NoOp(&["[\"text\"]"]), ""),
        &field("web_search_options", NoOp(&[]), ""),
        &field("n_probs", NoOp(&["0"]), ""),
        &field("mirostat", NoOp(&["0"]), ""),
        &field("typical_p", NoOp(&["1", "1.0"]), ""),
        &field("xtc_probability", NoOp(&["0", "0.0"]), ""),
        &field("dry_multiplier", NoOp(&["0", "0.0"]), ""),
        &field("dynatemp_range", NoOp(&["0", "0.0"]), ""),
        &field("samplers", NoOp(&[]), ""),
        &field("lora", NoOp(&["[]"]), ""),
        &field("tfs_z", NoOp(&["1", "1.0"]), ""),
        &field("top_a", NoOp(&["0", "0.0"]), ""),
        &field("top_n_sigma", NoOp(&["-1", "-1.0", "0", "0.0"]), ""),
        &field("logits_processors", NoOp(&["[]"]), ""),
        &field("structural_tag", NoOp(&[]), ""),
    ],
};

/// The groups that all routes with generated text share.
pub(crate) static GENERATION: &[&Group] =
    &[&LENGTH, &SAMPLING, &DELIVERY, &FORMAT, &GUIDED, &WITHOUT_EFFECT, &NOT_SUPPORTED];
