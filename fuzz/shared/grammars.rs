//! Grammars as inputs: the first byte says of what kind, the rest is its text.

use ottava::constrain::Grammar;

/// Seeds: kind and text.
#[allow(dead_code, reason = "targets need none")]
pub const SEEDS: [(u8, &str); 12] = [
    (
        0,
        r#"{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":8},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"],"additionalProperties":false}"#,
    ),
    (
        0,
        r##"{"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]},"value":{"type":"number","multipleOf":0.5}},"required":["value"]}},"$ref":"#/$defs/node"}"##,
    ),
    (
        0,
        r#"{"type":"array","items":{"enum":["a","b",3,null,true]},"minItems":1,"maxItems":5,"prefixItems":[{"const":"x"}]}"#,
    ),
    (0, r#"{"oneOf":[{"type":"string","format":"date"},{"type":"string","pattern":"^[a-z]{2,5}$"}]}"#),
    (
        0,
        r#"{"allOf":[{"type":"object","properties":{"a":{"type":"string"}}},{"type":"object","patternProperties":{"^x":{"type":"boolean"}},"minProperties":1}],"if":{"properties":{"a":{"const":"b"}}},"then":{"required":["a"]}}"#,
    ),
    (1, r"(\d{3}-){2}\d{4}|[a-zé]+@[a-z]+\.(com|org)"),
    (1, r"^(?i:yes|no)\s*(\p{L}|\w)*?$"),
    (2, "yes\nno\nmaybe, or not"),
    (3, "start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/"),
    (
        3,
        "start: \"<\" item{1,3} \">\" | %json {\"type\":\"object\",\"format\":\"path\"}\nitem: WORD | item \",\" WORD\nWORD: /[a-z]+/ & /.{1,4}/",
    ),
    (3, "start: a <|im_end|>\na[stop=\"\\n\", capture]: /.*/\n%ignore /[ \\t]+/"),
    (4, "[ \\n]?\n{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{}}}}"),
];

/// The grammar of an input, and a number that depends on all of it.
#[allow(dead_code, reason = "the seeds are only written")]
pub fn read(bytes: &[u8]) -> Option<(Grammar, u64)> {
    let (&kind, text) = bytes.split_first()?;
    let text = std::str::from_utf8(text).ok()?;
    let schema = |text: &str| serde_json::from_str(text).ok().map(Grammar::json_schema);
    let grammar = match kind % 5 {
        0 => schema(text)?,
        1 => Grammar::regex(text),
        2 => Grammar::choice(text.split('\n')),
        3 => Grammar::lark(text),
        _ => {
            let (whitespace, text) = text.split_once('\n')?;
            schema(text)?.whitespace(whitespace)
        }
    };
    let number = bytes.iter().fold(1, |number: u64, &byte| number.wrapping_mul(31).wrapping_add(byte.into()));
    Some((grammar, number))
}
