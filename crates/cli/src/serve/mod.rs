//! `ottava serve`: OpenAI's and Anthropic's APIs over HTTP.

mod files;
mod isolated;

use std::net::{AddrParseError, IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{ArgGroup, Args};
use ottava::EngineConfig;
use ottava::ir::PAGE_TOKENS;
use ottava_server::{Config, Front, ServeError, Server, asked_to_stop, input_ended};

use self::isolated::Added;
use super::numbers::whole;
use super::options::ModelOptions;
use super::{Failure, env, input, notes, output};

/// Upper limits of the options for sequences, requests and seconds.
const SEQUENCES_MAX: usize = 4096;
const QUEUE_MAX: usize = 1 << 16;
const SECONDS_MAX: u64 = 1 << 20;
/// Capacity of the queue of KV cache events that wait to be published.
#[cfg(feature = "kv-events")]
const KV_EVENTS: usize = 1 << 14;
/// Maximum bytes of an API key file.
const KEYS_MAX: usize = 1 << 20;

/// Parses an IP address, or `localhost`.
fn address(text: &str) -> Result<IpAddr, AddrParseError> {
    if text == "localhost" { Ok(Ipv4Addr::LOCALHOST.into()) } else { text.parse() }
}

/// Checks an endpoint for KV cache events. TCP is the only ZeroMQ transport that is built in.
#[cfg(feature = "kv-events")]
fn endpoint(text: &str) -> Result<String, String> {
    let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).unwrap_or_default();
    match !host.is_empty() && port.parse::<u16>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("expected tcp://ADDRESS:PORT".into()),
    }
}

/// Arguments of `serve`.
#[derive(Args)]
#[command(group(ArgGroup::new("processes").args(["isolated", "add"]).multiple(true)))]
pub struct Serve {
    /// Address to listen on; one that is not a loopback address requires an API key
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = address)]
    host: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 8080, allow_hyphen_values = true, value_parser = whole(0, u16::MAX))]
    port: u16,
    /// Model name for clients (can be repeated) [default: the model's own name; with --isolated or --add, the
    /// file name without its extension]
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// File with API keys, one per line, in addition to those of OTTAVA_API_KEY, in the same form; # begins a
    /// comment line [default: no key is required]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Host name that requests may use in addition to the address, with any port, or NAME:PORT (can be
    /// repeated)
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<String>,
    /// Allowed CORS origin, such as https://example.org, http://localhost:* or moz-extension://*; * allows
    /// all (can be repeated)
    #[arg(long, value_name = "ORIGIN")]
    allowed_origin: Vec<String>,
    /// Maximum answers running at once, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 64, allow_hyphen_values = true, value_parser = whole(1, SEQUENCES_MAX))]
    max_sequences: usize,
    /// Maximum answers running or waiting, 1 to 65536, counting each choice; further requests get status 429
    #[arg(long, value_name = "N", default_value_t = 256, allow_hyphen_values = true, value_parser = whole(1, QUEUE_MAX))]
    queue: usize,
    /// Time limit per answer in seconds, including its wait; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_hyphen_values = true, value_parser = whole(0, SECONDS_MAX))]
    request_timeout: u64,
    /// Time for running answers after SIGTERM or Ctrl-C, in seconds; a second signal ends them at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_hyphen_values = true, value_parser = whole(0, SECONDS_MAX))]
    drain: u64,
    /// Run the engine in its own process, which is restarted if it dies, hangs or loses its device
    #[arg(long)]
    isolated: bool,
    /// Additional model in its own process, started at the first request for it (can be repeated)
    #[arg(long, value_name = "NAME=MODEL")]
    add: Vec<Added>,
    /// Time without a request after which an added model is unloaded, in seconds; 0 never unloads
    #[arg(long, value_name = "SECONDS", requires = "add", default_value_t = 0, allow_hyphen_values = true, value_parser = whole(0, SECONDS_MAX))]
    idle_unload: u64,
    /// Number of times a model's process may end within ten minutes before it is given up; 0 is no limit. An
    /// added model is tried again when the oldest of these ends is ten minutes old
    #[arg(long, value_name = "N", requires = "processes", default_value_t = 3, allow_hyphen_values = true, value_parser = whole(0, QUEUE_MAX))]
    restarts: usize,
    /// Run as a worker of another process of this program
    #[arg(long, hide = true)]
    worker: bool,
    /// ZeroMQ endpoint for KV cache events, for routers, such as tcp://127.0.0.1:5557. Every subscriber gets
    /// the tokens of all prompts and answers, without a key
    #[cfg(feature = "kv-events")]
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    kv_events: Option<String>,
    #[command(flatten)]
    model: ModelOptions,
}

impl Serve {
    /// Serves until SIGTERM or Ctrl-C; as a worker, until standard input ends.
    pub fn run(self) -> Result<(), Failure> {
        notes::start();
        files::raise_limit();
        let keys = self.keys()?;
        if self.isolated || !self.add.is_empty() {
            return self.run_isolated(keys);
        }
        let scheduling = EngineConfig {
            sequences_max: self.max_sequences,
            queue_max: self.queue,
            #[cfg(feature = "kv-events")]
            cache_events: if self.kv_events.is_some() { KV_EVENTS } else { 0 },
            ..EngineConfig::default()
        };
        let worker = self.worker;
        let loads = Arc::new(AtomicBool::new(worker));
        if worker {
            end_with_front(Arc::clone(&loads));
        }
        let engine = self.model.engine_of_many(scheduling)?;
        loads.store(false, Ordering::Relaxed);
        let config = self.config(keys);
        let connections_max = config.connections_max;
        let server = Server::bind((*engine).clone(), config).map_err(failed)?;
        let info = engine.info();
        output::tell(format_args!(
            "{} on {}: at most {} answers at once; contexts of {} tokens, room for {} tokens in all",
            info.name,
            info.device_name,
            info.sequences_max,
            info.context_max,
            info.kv_pages * PAGE_TOKENS
        ));
        if !worker {
            tell_connections(server.connections_max(), connections_max);
        }
        output::print_line(format_args!("http://{}", server.address()))?;
        let stop = async move { if worker { input_ended().await } else { asked_to_stop().await } };
        server.run(stop).map_err(failed)
    }

    /// Serves models that run in worker processes.
    fn run_isolated(self, keys: Vec<String>) -> Result<(), Failure> {
        // Standard input of a worker process is the front's pipe: its end means that the front has ended.
        input::check_readers([self.model.reader(), Some("the processes of models")])?;
        let models = isolated::models(&self.model.model, &self.alias, &self.add);
        let models =
            models.map_err(|error| Failure::Failed(format!("this program cannot be found: {error}")))?;
        let (restarts, idle) = (self.restarts, Duration::from_secs(self.idle_unload));
        let config = self.config(keys);
        let connections_max = config.connections_max;
        let mut front = Front::bind(config, models).map_err(failed)?.restarts_max(restarts);
        tell_connections(front.connections_max(), connections_max);
        if !idle.is_zero() {
            front = front.unload_after(idle);
        }
        output::print_line(format_args!("http://{}", front.address()))?;
        front.run(asked_to_stop(), |line| output::tell(format_args!("{line}"))).map_err(failed)
    }

    fn config(self, keys: Vec<String>) -> Config {
        let mut config = Config::default();
        config.host = self.host;
        config.port = self.port;
        config.names = self.alias;
        config.keys = keys;
        config.allowed_hosts = self.allowed_host;
        config.allowed_origins = self.allowed_origin;
        config.request_timeout =
            (self.request_timeout > 0).then(|| Duration::from_secs(self.request_timeout));
        config.drain = Duration::from_secs(self.drain);
        config.marks_answers = self.worker;
        if self.worker {
            // The front opens as many connections for requests, plus idle ones and one for health checks.
            config.connections_max *= 2;
        }
        #[cfg(feature = "kv-events")]
        {
            config.kv_events = self.kv_events;
        }
        config
    }

    /// API keys of the file and of the environment.
    fn keys(&self) -> Result<Vec<String>, Failure> {
        let mut keys = self.api_key_file.as_deref().map(keys_of).transpose()?.unwrap_or_default();
        keys.extend(env::api_keys()?);
        Ok(keys)
    }
}

/// Ends this worker process if its front ends during the load. After the load, the end of standard input
/// shuts the server down in order.
fn end_with_front(loads: Arc<AtomicBool>) {
    let watch = move || {
        // The front sends nothing. A broken pipe counts as its end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        if loads.load(Ordering::Relaxed) {
            std::process::exit(1);
        }
    };
    // If the thread cannot start, the process ends once the model is loaded.
    let _ = std::thread::Builder::new().name("ottava-front".into()).spawn(watch);
}

/// Prints a note if the limit of open files allows fewer connections than `wanted`.
fn tell_connections(connections: usize, wanted: usize) {
    if connections < wanted {
        output::tell(format_args!(
            "note: {connections} connections at most: the limit of open files (ulimit -n) has no room for {wanted}"
        ));
    }
}

/// API keys of a file or a pipe.
fn keys_of(path: &Path) -> Result<Vec<String>, Failure> {
    input::keys(&input::read_path_within(path, KEYS_MAX)?, &path.display().to_string())
}

fn failed(error: ServeError) -> Failure {
    match error {
        ServeError::Open { .. } | ServeError::EmptyKey | ServeError::Setting(..) | ServeError::Name(_) => {
            Failure::Usage(error.to_string())
        }
        error => Failure::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        serve: Serve,
    }

    fn parsed(options: &str) -> Result<Serve, clap::Error> {
        let arguments = std::iter::once("serve").chain(options.split_whitespace());
        Program::try_parse_from(arguments).map(|program| program.serve)
    }

    #[test]
    fn an_option_that_would_do_nothing_is_refused() {
        for options in ["--restarts 1", "--idle-unload 1", "--isolated --idle-unload 1"] {
            let error = parsed(options).err().expect("refused");
            assert_eq!(error.kind(), clap::error::ErrorKind::MissingRequiredArgument, "{options}");
        }
        for options in
            ["", "--isolated --restarts 1", "--add a=b --restarts 1", "--isolated --add a=b --idle-unload 1"]
        {
            assert!(parsed(options).is_ok(), "{options}");
        }
    }

    #[cfg(feature = "kv-events")]
    #[test]
    fn changes_of_the_cache_are_published_over_tcp_alone() {
        for endpoint in
            ["ipc:///tmp/x", "inproc://x", "127.0.0.1:5557", "tcp://", "tcp://host", "tcp://h:65536"]
        {
            let error = parsed(&format!("--kv-events {endpoint}")).err().expect("refused");
            assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{endpoint}");
            assert!(error.to_string().contains("expected tcp://ADDRESS:PORT"), "{error}");
        }
        for endpoint in ["tcp://127.0.0.1:5557", "tcp://[::1]:0", "tcp://localhost:1"] {
            assert!(parsed(&format!("--kv-events {endpoint}")).is_ok(), "{endpoint}");
        }
    }

    #[test]
    fn a_process_takes_all_connections_of_its_front_and_one_more() {
        let connections = |options| parsed(options).expect("options").config(Vec::new()).connections_max;
        assert!(connections("--worker") > connections(""));
    }
}
