//! The largest legal requests of each route.

/// Tokens of the model's context.
pub const CONTEXT: usize = 512;
/// Largest body.
const BODY: usize = 4 << 20;

/// A request.
pub struct Case {
    pub name: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    /// Expected status. Most prompts of this size are longer than the context.
    pub status: u16,
    /// The body, by its share of the largest one.
    pub body: Box<dyn Fn(f64) -> String>,
    /// Whether the body's values, and not its bytes, are the limit. It is then the largest that is not
    /// refused with 413.
    pub shrinks: bool,
}

fn post(name: &'static str, path: &'static str, status: u16, body: String) -> Case {
    Case { name, method: "POST", path, status, body: Box::new(move |_| body.clone()), shrinks: false }
}

/// A body full of equal elements.
fn filled(
    name: &'static str,
    path: &'static str,
    status: u16,
    (head, element, tail): (&'static str, &'static str, &'static str),
) -> Case {
    let body = move |share: f64| {
        let room = (BODY - head.len() - tail.len()) as f64 * share;
        let count = room as usize / (element.len() + 1);
        let elements = format!("{element},").repeat(count);
        format!("{head}{}{tail}", elements.trim_end_matches(','))
    };
    Case { name, method: "POST", path, status, body: Box::new(body), shrinks: true }
}

/// A body of one long text.
fn long(name: &'static str, path: &'static str, status: u16, head: &str, text: &str, tail: &str) -> Case {
    let count = (BODY - head.len() - tail.len()) / text.len();
    post(name, path, status, format!("{head}{}{tail}", text.repeat(count)))
}

/// A `GET` with a body that its route has no use for.
fn get(name: &'static str) -> Case {
    let body = "a".repeat(BODY);
    Case {
        name,
        method: "GET",
        path: name,
        status: 200,
        body: Box::new(move |_| body.clone()),
        shrinks: false,
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

pub fn all() -> Vec<Case> {
    let mut all = tokens();
    all.extend(chat());
    all.extend(completions());
    all.extend(agents());
    let routes =
        ["/", "/health", "/v1/health", "/ready", "/version", "/openapi.json", "/metrics", "/v1/models"];
    all.extend(routes.map(get));
    all.push(long("embeddings", "/v1/embeddings", 400, "{\"input\":\"", "a ", "\"}"));
    all.push(long("no route", "/v1/nowhere", 404, "{\"input\":\"", "a ", "\"}"));
    all
}

fn tokens() -> Vec<Case> {
    let turns = ("{\"messages\":[", "{\"role\":\"user\",\"content\":\"x\"}", "]}");
    let pieces = "{\"with_pieces\":true,\"return_token_strs\":true,\"content\":\"";
    vec![
        long("tokenize: a text", "/tokenize", 200, "{\"content\":\"", "a b c d e ", "\"}"),
        long("tokenize: white space", "/tokenize", 200, "{\"content\":\"", " ", "\"}"),
        post("tokenize: pieces", "/tokenize", 200, format!("{pieces}{}\"}}", "a b ".repeat(1 << 17))),
        long("tokenize: too many pieces", "/tokenize", 400, pieces, "a b ", "\"}"),
        filled("tokenize: messages", "/tokenize", 400, turns),
        filled("detokenize: ids", "/detokenize", 200, ("{\"tokens\":[", "1", "]}")),
        filled("render: messages", "/v1/chat/completions/render", 400, turns),
        filled("count: messages", "/v1/chat/completions/input_tokens", 400, turns),
    ]
}

/// The members `name0`, `name1` … of an object.
fn named(name: &str, count: usize, value: &str) -> String {
    let fields: Vec<String> = (0..count).map(|at| format!("\"{name}{at}\":{value}")).collect();
    fields.join(",")
}

/// The most tools of a request.
fn tools() -> String {
    let tool = |at: usize| {
        let parameters = format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", named("p", 40, "{}"));
        format!("{{\"type\":\"function\",\"function\":{{\"name\":\"f{at}\",\"parameters\":{parameters}}}}}")
    };
    (0..512).map(tool).collect::<Vec<_>>().join(",")
}

/// Names of allowed tools, as many as fit.
fn allowed(user: &'static str) -> Case {
    let tools = tools();
    let allowed = format!("{{{user},\"tools\":[{tools}],\"tool_choice\":");
    let allowed = move |share: f64| {
        let names = "{\"function\":{\"name\":\"f511\"}},".repeat((60_000.0 * share) as usize);
        let names = names.trim_end_matches(',');
        let choice = format!("\"allowed_tools\":{{\"mode\":\"none\",\"tools\":[{names}]}}");
        format!("{allowed}{{\"type\":\"allowed_tools\",{choice}}}}}")
    };
    Case {
        name: "chat: allowed tools",
        method: "POST",
        path: CHAT,
        status: 200,
        body: Box::new(allowed),
        shrinks: true,
    }
}

fn chat() -> Vec<Case> {
    let user = "\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
    let tools = tools();
    let logprobs = "\"logprobs\":true,\"top_logprobs\":20,\"n\":8,\"ignore_eos\":true";
    vec![
        long("chat: a text", CHAT, 400, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "a b ", "\"}]}"),
        filled("chat: turns", CHAT, 400, ("{\"messages\":[", "{\"role\":\"user\",\"content\":\"x\"}", "]}")),
        filled(
            "chat: parts",
            CHAT,
            400,
            ("{\"messages\":[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"a\"}", "]}]}"),
        ),
        filled(
            "chat: variables of the template",
            CHAT,
            200,
            (
                "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"a\":[",
                "{\"b\":1}",
                "]}}",
            ),
        ),
        post("chat: unknown fields", CHAT, 200, format!("{{{user},{}}}", named("f", 100_000, "0"))),
        post(
            "chat: biases",
            CHAT,
            400,
            format!("{{{user},\"n\":8,\"logit_bias\":{{{}}}}}", named("1", 100_000, "1")),
        ),
        post("chat: tools", CHAT, 200, format!("{{{user},\"tool_choice\":\"none\",\"tools\":[{tools}]}}")),
        allowed(user),
        post(
            "chat: log-probabilities",
            CHAT,
            200,
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}],{logprobs}}}"),
        ),
    ]
}

fn completions() -> Vec<Case> {
    let prompts = |count: usize, tokens: usize| {
        let ids = |at: usize| format!("[{}]", vec![(5 + at).to_string(); tokens].join(","));
        (0..count).map(ids).collect::<Vec<_>>().join(",")
    };
    let echo = "\"max_tokens\":0,\"echo\":true,\"logprobs\":20,\"n\":8";
    vec![
        filled("completions: ids", COMPLETIONS, 400, ("{\"prompt\":[", "1", "]}")),
        post(
            "completions: prompts",
            COMPLETIONS,
            400,
            format!("{{\"prompt\":[\"{}\"]}}", vec!["a b ".repeat(15_000); 64].join("\",\"")),
        ),
        post(
            "completions: an echo",
            COMPLETIONS,
            200,
            format!("{{\"prompt\":[{}],{echo}}}", prompts(6, 500)),
        ),
        post(
            "completions: a streamed echo",
            COMPLETIONS,
            200,
            format!("{{\"prompt\":[{}],{echo},\"stream\":true}}", prompts(6, 500)),
        ),
        post(
            "completions: a large echo",
            COMPLETIONS,
            400,
            format!("{{\"prompt\":[{}],{echo}}}", prompts(7, 500)),
        ),
    ]
}

fn agents() -> Vec<Case> {
    let systems = "{\"role\":\"system\",\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}";
    let user = "{\"role\":\"user\",\"content\":\"x\"}";
    let block = "{\"type\":\"text\",\"text\":\"a\"}";
    let metadata = ("{\"max_output_tokens\":1,\"input\":\"a\",\"metadata\":{\"a\":[", "{\"b\":1}", "]}}");
    let streamed = (
        "{\"stream\":true,\"max_output_tokens\":1,\"input\":\"a\",\"metadata\":{\"a\":[",
        "{\"b\":1}",
        "]}}",
    );
    let tools = "{\"max_output_tokens\":1,\"input\":\"a\",\"tool_choice\":\"none\",\
                 \"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"x\":[";
    vec![
        filled("responses: system texts", RESPONSES, 400, ("{\"input\":[", systems, "]}")),
        filled("responses: turns", RESPONSES, 400, ("{\"input\":[", user, "]}")),
        filled("responses: metadata", RESPONSES, 200, metadata),
        filled("responses: streamed metadata", RESPONSES, 200, streamed),
        filled("responses: tools", RESPONSES, 200, (tools, "{\"b\":1}", "]}}]}")),
        long(
            "responses: instructions",
            RESPONSES,
            400,
            "{\"input\":\"a\",\"instructions\":\"",
            "a b ",
            "\"}",
        ),
        filled("responses: a count", "/v1/responses/input_tokens", 400, ("{\"input\":[", systems, "]}")),
        filled("messages: turns", MESSAGES, 400, ("{\"max_tokens\":1,\"messages\":[", user, "]}")),
        filled(
            "messages: blocks",
            MESSAGES,
            400,
            ("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[", block, "]}]}"),
        ),
        filled(
            "messages: system texts",
            MESSAGES,
            400,
            (
                "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"system\":[",
                block,
                "]}",
            ),
        ),
        filled("messages: a count", "/v1/messages/count_tokens", 400, ("{\"messages\":[", user, "]}")),
    ]
}
