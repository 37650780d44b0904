//! Tests of the chat templates: features of benign templates, and attacks of hostile ones.

mod continuation;
mod control;
mod jinja;

use super::*;
use crate::text::parts::VocabParts;
use std::time::{Duration, Instant, UNIX_EPOCH};

fn vocab() -> Vocab {
    let parts = VocabParts {
        model: "llama".to_owned(),
        tokens: ["<s>", "</s>"].into_iter().collect(),
        types: Some(vec![3, 3]),
        scores: Some(vec![0.0; 2]),
        bos: Some(0),
        eos: Some(1),
        ..VocabParts::default()
    };
    Vocab::from_parts(&parts).unwrap()
}

fn options() -> RenderOptions {
    RenderOptions { now: Some(UNIX_EPOCH + Duration::from_secs(1_709_210_096)), ..RenderOptions::default() }
}

fn messages() -> [Message; 2] {
    [Message::new("system", "Be kind."), Message::new("user", " Hi <b> & \"you\" ")]
}

fn run(source: &str) -> Result<String, TextError> {
    ChatTemplate::from_source(source, &vocab())?.render(&messages(), &options())
}

/// Renders within bounded time (the limit is 5 s; the machine may be busy).
fn quickly(source: &str) -> Result<String, TextError> {
    let start = Instant::now();
    let result = run(source);
    assert!(start.elapsed() < Duration::from_secs(30), "{source}: took {:?}", start.elapsed());
    result
}

#[track_caller]
fn renders(source: &str, expected: &str) {
    match run(source) {
        Ok(text) => assert_eq!(text, expected, "{source}"),
        Err(error) => panic!("{source}: {error}"),
    }
}

/// Checks that the template exceeds a limit.
#[track_caller]
fn over_limit(source: &str) {
    match quickly(source) {
        Err(TextError::TemplateLimit(_)) => {}
        other => panic!("{source}: {:?}", other.map(|text| text.len())),
    }
}

#[test]
fn the_usual_variables_are_there() {
    renders(
        "{{ bos_token }}{{ messages[0]['content'] }}{{ messages[1].role }}{{ eos_token }}",
        "<s>Be kind.user</s>",
    );
    renders("{% if add_generation_prompt %}yes{% endif %}{{ tools is none }}", "yesTrue");
    renders("{% for m in messages %}{{ loop.index0 }}{{ m.role }};{% endfor %}", "0system;1user;");
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    renders("{% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb");
    renders("{%- for m in messages %}\n    {{- m.role }}\n{%- endfor %}", "systemuser");
}

#[test]
fn python_methods_work() {
    renders("{{ messages[1].content.strip() }}", "Hi <b> & \"you\"");
    renders("{{ 'a-b-c'.split('-')[-1] }}{{ 'ab'.upper() }}{{ 'abc'.startswith('ab') }}", "cABTrue");
    renders("{{ 'aXbXc'.replace('X', '') }}{{ 'aXbXc' | replace('X', '-') }}", "abca-b-c");
    renders("{{ 'aXbXc'.replace('X', '', 1) }}{{ ', '.join(['a', 'b']) }}{{ [1, 2] | join }}", "abXca, b12");
    renders("{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1");
    renders("{{ messages | map(attribute='role') | join(',') }}", "system,user");
    renders("{{ messages | join('|', attribute='role') }}", "system|user");
}

#[test]
fn operators_are_as_they_were() {
    renders(
        "{{ 1 + 2 }},{{ 1 + 0.5 }},{{ true + 1 }},{{ 2 * 3 }},{{ 1.5 * 2 }},{{ 2 + 3 * 4 }}",
        "3,1.5,2,6,3.0,14",
    );
    renders("{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none }}{{ 'é=' * 3 }}{{ 2 * 'x' }}", "aba1Noneé=é=é=xx");
    renders("{{ ([1] + [2, 3]) | length }}{{ [0, 1] * 2 }}", "3[0, 1, 0, 1]");
    renders("{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}", "12");
    assert!(matches!(run("{{ 'a' + 1 }}"), Err(TextError::TemplateRender(_))));
}

#[test]
fn namespaces_macros_and_loop_controls_work() {
    renders(
        "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\
         {% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.n }}{{ ns.l | join }}",
        "2systemuser",
    );
    renders("{% macro hi(x='u') %}[{{ x }}]{% endmacro %}{{ hi() }}{{ hi(x=1) ~ '!' }}", "[u][1]!");
    renders(
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}{% else %}x{% endfor %}",
        "013",
    );
    renders("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ messages[1:] | length }}{{ (1, 2)[0] }}", "a111");
    renders(
        "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}",
        "(1(2))3",
    );
}

#[test]
fn json_is_pythons_without_html_escapes() {
    renders(
        "{{ {'a': [1, 2.5, true, none], 'é': '<&\"\\n'} | tojson }}",
        r#"{"a": [1, 2.5, true, null], "é": "<&\"\n"}"#,
    );
    renders("{{ {'a': [1], 'b': {}} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}");
    renders("{{ ['é🙂'] | tojson(ensure_ascii=true) }}", r#"["\u00e9\ud83d\ude42"]"#);
    renders("{{ {'a': 1} | tojson(separators=(',', ':')) }}", r#"{"a":1}"#);
    renders("{{ 'a\nb\n' | indent(2) }}|{{ 'a\nb' | indent(width=1, first=true) }}", "a\n  b\n| a\n b");
}

#[test]
fn generation_tags_vanish() {
    renders(
        "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %} {%- generation -%} x {%- endgeneration -%} {% endfor %}",
        "systemxuserx",
    );
}

#[test]
fn dates_are_formatted() {
    renders("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024");
}

#[test]
fn a_template_can_refuse() {
    let error = run("a\n{{ raise_exception('roles must alternate') }}").unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRender(what) if what == "roles must alternate (line 2)"),
        "{error}"
    );
}

#[test]
fn syntax_errors_and_unknown_things_are_typed() {
    for source in ["{% if %}", "{{ 'a }}", "{% endfor %}", "{% frobnicate %}", "{{ '\\u12' }}"] {
        assert!(matches!(run(source), Err(TextError::TemplateSyntax(_))), "{source}");
    }
    for source in ["{{ 1 | frobnicate }}", "{{ f() }}", "{{ a.b.c }}", "{% include 'x' %}", "{{ 1 / 0 }}"] {
        assert!(matches!(run(source), Err(TextError::TemplateRender(_))), "{source}");
    }
}

#[test]
fn tools_and_other_variables_reach_the_template() {
    let template = ChatTemplate::from_source("{{ tools | tojson }}{{ enable_thinking }}", &vocab()).unwrap();
    let mut options = options();
    options.tools = Some(serde_json::json!([{"name": "f", "arguments": {"x": 1}}]));
    options.variables.insert("enable_thinking".to_owned(), false.into());
    options.variables.insert("messages".to_owned(), "not these".into());
    let text = template.render(&[], &options).unwrap();
    assert_eq!(text, r#"[{"name": "f", "arguments": {"x": 1}}]False"#);
}

#[test]
fn hostile_endless_loops() {
    over_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    over_limit("{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}");
}

#[test]
fn hostile_ranges() {
    assert!(quickly("{{ range(1000000000) | list | length }}").is_err());
    assert!(quickly("{% for i in range(0, 9223372036854775807, 1) %}{% endfor %}").is_err());
    over_limit("{{ ([0] * 1000000000) | length }}");
    over_limit("{% set l = [0] * 1000000 %}{% for i in range(99) %}{{ (l + l) | length }}{% endfor %}");
}

#[test]
fn hostile_recursion() {
    assert!(quickly("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").is_err());
    assert!(quickly("{% for i in [[]] recursive %}{{ loop([i]) }}{% endfor %}").is_err());
    assert!(quickly(&format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))).is_err());
    assert!(quickly(&"{% if true %}".repeat(10_000)).is_err());
    over_limit(&format!("{{{{ 1{} }}}}", " + 1".repeat(40_000)));
    over_limit(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(9_000)));
}

#[test]
fn long_expressions_within_the_limit_do_not_overflow_the_stack() {
    renders(&format!("{{{{ 1{} }}}}", " + 1".repeat(4_000)), "4001");
    renders(&format!("{{{{ ''{} }}}}", ".strip()".repeat(1_500)), "");
    renders(&format!("{{{{ ''{} }}}}", " | trim".repeat(3_000)), "");
    renders(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(2_000)), "");
}

#[test]
fn hostile_nesting_of_values() {
    over_limit(
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
    );
    over_limit(
        "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
    );
    over_limit(
        "{% set ns = namespace(l=1) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    );
    over_limit("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns == ns }}");
    over_limit(
        "{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% set ns.l = dict(a=ns.l) %}{% endfor %}",
    );
}

#[test]
fn hostile_repetition() {
    over_limit("{{ 'x' * 1000000000 }}");
    over_limit("{{ 'x' * 100000000 }}");
    over_limit("{% set ns = namespace(n=100000000) %}{{ ('x' * ns.n) | length }}");
    over_limit(&format!("{{{{ [{}] | length }}}}", "'x' * 33000000, ".repeat(900)));
    over_limit(&format!("{{{{ [{}] | length }}}}", "'x' * 30000000, ".repeat(900)));
    over_limit("{{ 1000000000 * 'x' }}{{ 'x' * 10 ** 9 }}");
}

#[test]
fn hostile_doubling() {
    for step in [
        "ns.s ~ ns.s",
        "ns.s + ns.s",
        "ns.s.replace('x', 'xx')",
        "ns.s | replace('x', 'xx')",
        "[ns.s, ns.s] | join",
        "''.join([ns.s, ns.s])",
        "[ns.s, ns.s] | string",
        "[ns.s] | tojson | tojson",
        "ns.s | indent(99999999, true)",
    ] {
        over_limit(&format!(
            "{{% set ns = namespace(s='x') %}}{{% for i in range(99) %}}{{% set ns.s = {step} %}}{{% endfor %}}"
        ));
    }
    over_limit(
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
    );
}

#[test]
fn hostile_widths() {
    for wide in [
        "'%1000000000d' % 1",
        "'%*d' % (1000000000, 1)",
        "'%.1000000000f' % 1.5",
        "'%1000000000s' | format('x')",
        "'{:1000000000}'.format(1)",
        "'{:>{w}}'.format('x', w=1000000000)",
        "'{:.999999999f}'.format(0.1)",
        "'{:999999999999999999999999}'.format(1)",
        "'x'.center(1000000000)",
        "'x'.ljust(1000000000)",
        "'x'.rjust(1000000000, 'é')",
        "'x'.zfill(1000000000)",
        "'x' | center(1000000000)",
        "'a\\tb'.expandtabs(1000000000)",
        "('x\\n' * 9) | indent('y' * 9999999)",
        "[1] | batch(1000000000, 'x') | list",
        "[1] | slice(1000000000) | list",
        "'x' * 99999999999999999999",
        "[0] * 99999999999999999999",
    ] {
        over_limit(&format!("{{{{ {wide} }}}}"));
    }
    let many = "{% set ns = namespace(n=0) %}{% for i in range(99999) %}{% set ns.n = ";
    over_limit(&format!("{many}('%9999d' % 1) | length %}}{{% endfor %}}"));
    over_limit(&format!("{many}'{{:9999}}{{:9999}}'.format(1, 2) | length %}}{{% endfor %}}"));
    over_limit(&format!("{many}('x' * 99999) | upper | list | length %}}{{% endfor %}}"));
    over_limit(
        &format!("{many}('x' * 99999).split('') | length %}}{{% endfor %}}")
            .replace("split('')", "split('y')"),
    );
    over_limit(&format!("{many}('a ' * 99999).split() | length %}}{{% endfor %}}"));
    over_limit(&format!("{many}('x' * 99999)[::-1] | length %}}{{% endfor %}}"));
    assert!(quickly("{{ 10 ** 1000 }}").is_err() && quickly("{{ 9 ** 9 ** 9 }}").is_err());
}

#[test]
fn hostile_output() {
    let text = "y".repeat(100_000);
    over_limit(&format!("{{% for a in range(99999) %}}{text}{{% endfor %}}"));
    over_limit("{% set s = 'x' * 9999999 %}{% for a in range(99999) %}{{ s }}{% endfor %}");
    over_limit("{% set s = 'x' * 9999999 %}{% set l = [s] * 99999 %}{{ l }}");
    over_limit("{% set s = 'x' * 9999999 %}{% set l = [s] * 99999 %}{{ l | tojson }}");
}

#[test]
fn hostile_searching_meets_the_clock() {
    over_limit(
        "{% set s = 'x' * 15000000 %}{% for a in range(99999) %}{% if 'xy' in s %}{% endif %}{% endfor %}",
    );
}

#[test]
fn hostile_length_of_source() {
    over_limit(&"x".repeat(300_000));
}

/// Fragments for random templates that often parse.
const FRAGMENTS: [&str; 44] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    " for ",
    " in ",
    " if ",
    " else ",
    " endif ",
    " endfor ",
    " set ",
    " = ",
    "ns",
    "namespace(a=1)",
    "messages",
    "x",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ":",
    ",",
    ".",
    "|",
    "~",
    "+",
    "*",
    "'a'",
    "999999999",
    "-1",
    "0.5",
    " none ",
    " loop ",
    " is ",
    " not ",
    "tojson",
    "range(3)",
    "[0]",
    "[::-1]",
    "{{ x }}",
];

proptest::proptest! {
    #[test]
    fn nonsense_neither_panics_nor_hangs(picks in proptest::collection::vec(0..FRAGMENTS.len(), 0..24)) {
        let inner: String = picks.iter().filter_map(|&pick| FRAGMENTS.get(pick).copied()).collect();
        for source in [inner.clone(), format!("{{{{ {inner} }}}}"), format!("{{% set x = {inner} %}}{{{{ x }}}}")] {
            if let Err(error) = quickly(&source) {
                proptest::prop_assert!(!error.to_string().contains("panicked"), "{source}");
            }
        }
    }
}
