//! The server over a tiny model, tested by a client on a bare socket.
//!
//! `gate` has keys, hosts, origins and sizes; `bodies` those that are not read; `requests` refused and
//! ignored fields; `answers` streamed and whole answers; `continues` prefilled answers; `lengths` least
//! lengths, stops and token ids; `truth` the first chunk, counters and fingerprints; `completions` prompts
//! without a template; `responses` and `messages` the APIs for agents; `tools` calls and reasoning;
//! `custom` calls of other forms; `agents` conversations of agents; `adapts` demands of templates;
//! `formats` constrained answers; `ends` gone readers, timeouts and the server's end; `front` models in
//! processes of their own.

mod adapts;
mod agents;
mod answers;
mod bodies;
mod client;
mod completions;
mod continues;
mod custom;
mod ends;
mod formats;
#[cfg(unix)]
mod front;
mod gate;
mod lengths;
mod messages;
mod requests;
mod responses;
#[path = "../../../../tests/tiny/mod.rs"]
mod tiny;
mod tools;
mod truth;

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
    #[cfg(unix)]
    front: Option<front::Fronted>,
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

    /// A plain server, and one that is the worker of a front.
    fn both(scheduling: EngineConfig, change: impl Fn(&mut Config)) -> Vec<Running> {
        vec![
            Running::of(scheduling, &change),
            #[cfg(unix)]
            Running::isolated(scheduling, &change),
        ]
    }

    /// A server as the worker of a front, at the front's address.
    #[cfg(unix)]
    fn isolated(scheduling: EngineConfig, change: impl Fn(&mut Config)) -> Running {
        let mut config = Config::default();
        config.port = 0;
        change(&mut config);
        let mut worker = Running::of(scheduling, |config| {
            change(config);
            // As `ottava serve --isolated` changes it.
            config.marks_answers = true;
            config.drain = std::time::Duration::ZERO;
            config.allowed_hosts.clear();
            config.allowed_origins.clear();
            config.connections_max *= 2;
        });
        let front = front::Fronted::over_server(config, worker.address);
        worker.address = front.address;
        worker.front = Some(front);
        worker
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
        Running {
            address,
            engine,
            #[cfg(unix)]
            front: None,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Sends the stop signal, to the front if there is one.
    fn stop(&mut self) {
        #[cfg(unix)]
        if let Some(front) = &mut self.front {
            front.stop();
            return;
        }
        self.stop = None;
    }

    /// Waits for the server's end.
    fn join(mut self) {
        #[cfg(unix)]
        drop(self.front.take());
        self.stop = None;
        self.thread.take().map(JoinHandle::join).transpose().expect("the server did not panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        #[cfg(unix)]
        drop(self.front.take());
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
