//! The server over a tiny model, tested by a client on a bare socket.
//!
//! `gate` has keys, hosts, origins and sizes; `bodies` those that are not read; `requests` refused and ignored fields; `answers` streamed and
//! whole answers; `completions` prompts without a template; `responses` and `messages` the APIs for agents;
//! `tools` calls and reasoning; `adapts` demands of templates; `formats` constrained answers; `ends` gone
//! readers, timeouts and the server's end; `front` models in processes of their own.

mod adapts;
mod answers;
mod bodies;
mod client;
mod completions;
mod ends;
mod formats;
#[cfg(unix)]
mod front;
mod gate;
mod messages;
mod requests;
mod responses;
#[path = "../../../../tests/tiny/mod.rs"]
mod tiny;
mod tools;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use ottava::{Device, Engine, EngineConfig};
use ottava_server::{Config, Server};
use serde_json::{Value, json};

/// A template that writes every part of a conversation with tools, and shows the form of calls.
const TOOLS: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\": …}</tool_call>{% endif %}\
                     {% if enable_thinking %}think{% endif %}\
                     {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.reasoning_content }}\
                     {{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}\
                     {{ message.name }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Schema of an object with `x` equal to 1 or 2.
fn schema() -> Value {
    json!({
        "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": false,
    })
}

/// Whether a value matches [`schema`].
fn follows(value: &Value) -> bool {
    [json!({"x": 1}), json!({"x": 2})].contains(value)
}

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    engine: Engine,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// A tiny llama with a chat template and a changed default configuration.
    fn with(change: impl FnOnce(&mut Config)) -> Running {
        Running::of(EngineConfig::default(), change)
    }

    fn of(scheduling: EngineConfig, change: impl FnOnce(&mut Config)) -> Running {
        Running::of_model(tiny::llama_of(512).expect("a model"), scheduling, change)
    }

    /// A server with a template for tools and calls.
    fn with_tools() -> Running {
        Running::with_template(TOOLS, &[])
    }

    /// A server with a template and control tokens of the test.
    fn with_template(template: &str, control: &[&str]) -> Running {
        let model = tiny::llama_with(1536, |vocabulary| {
            vocabulary.say("tokenizer.chat_template", template.into());
            control.iter().for_each(|piece| vocabulary.control(piece));
        });
        Running::of_model(model.expect("a model"), EngineConfig::default(), |_| {})
    }

    fn of_model(model: Vec<u8>, scheduling: EngineConfig, change: impl FnOnce(&mut Config)) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, model).expect("written");
        let engine =
            Engine::builder(&path).device(Device::Cpu).scheduling(scheduling).build().expect("it loads");
        let mut config = Config::default();
        config.port = 0;
        change(&mut config);
        let server = Server::bind(engine.clone(), config).expect("it listens");
        let (address, (stop, stopped)) = (server.address(), mpsc::channel());
        let thread = std::thread::spawn(move || server.run(until(stopped)).expect("it runs"));
        Running { address, engine, stop: Some(stop), thread: Some(thread) }
    }

    /// Sends the stop signal.
    fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits for the server's end.
    fn join(mut self) {
        self.stop = None;
        self.thread.take().map(JoinHandle::join).transpose().expect("the server did not panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the server has already failed the test.
            let _ = thread.join();
        }
    }
}

/// Ready when the sender is gone.
async fn until(stopped: mpsc::Receiver<()>) {
    while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
