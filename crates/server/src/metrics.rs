//! Counters and histograms of `/metrics`, with vLLM's names for the sake of existing routers and dashboards.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use ottava::engine::{Stats, Timings, Usage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Histogram buckets: upper bounds in seconds.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Outcome of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Stop,
    Length,
    Failed,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Status {
    status: u16,
}

type Level = Gauge<f64, AtomicU64>;

/// Counters of the server, and values of the engine's statistics, set on each scrape.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    ended: Family<Reason, Counter>,
    answered: Family<Status, Counter>,
    ignored: Counter,
    calls: Counter,
    malformed: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    queued: Histogram,
    prompt: Counter,
    generated: Counter,
    cached: Counter,
    running: Level,
    waiting: Level,
    cache_used: Level,
    preempted: Level,
    step_age: Level,
}

impl Metrics {
    pub(crate) fn new(model: &str) -> Metrics {
        let times = || Histogram::new(SECONDS);
        let mut metrics = Metrics {
            registry: Registry::with_labels([("model_name".into(), model.to_owned().into())].into_iter()),
            ended: Family::default(),
            answered: Family::default(),
            ignored: Counter::default(),
            calls: Counter::default(),
            malformed: Counter::default(),
            first_token: times(),
            between_tokens: times(),
            whole: times(),
            queued: times(),
            prompt: Counter::default(),
            generated: Counter::default(),
            cached: Counter::default(),
            running: Level::default(),
            waiting: Level::default(),
            cache_used: Level::default(),
            preempted: Level::default(),
            step_age: Level::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let to = &mut self.registry;
        to.register("vllm:request_success", "Choices that ended, by reason", self.ended.clone());
        to.register("ottava:http_responses", "Responses by status", self.answered.clone());
        to.register(
            "ottava:ignored_fields",
            "Fields of requests without a meaning here",
            self.ignored.clone(),
        );
        to.register("ottava:tool_calls", "Calls of tools in answers", self.calls.clone());
        to.register(
            "ottava:tool_calls_malformed",
            "What began as a call and was none, or broke off",
            self.malformed.clone(),
        );
        to.register("vllm:prompt_tokens", "Prompt tokens, computed or cached", self.prompt.clone());
        to.register("vllm:generation_tokens", "Tokens of answers, after each step", self.generated.clone());
        to.register("vllm:prompt_tokens_cached", "Prompt tokens found in the cache", self.cached.clone());
        let times = [
            ("vllm:time_to_first_token", "From submission to the first token", &self.first_token),
            ("vllm:inter_token_latency", "Mean time between an answer's tokens", &self.between_tokens),
            ("vllm:e2e_request_latency", "From submission to the last token", &self.whole),
            ("vllm:request_queue_time", "From submission to the first step", &self.queued),
        ];
        for (name, help, histogram) in times {
            to.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let levels = [
            ("vllm:num_requests_running", "Sequences with pages", &self.running),
            ("vllm:num_requests_waiting", "Sequences without pages", &self.waiting),
            ("vllm:kv_cache_usage_perc", "Pages that sequences have, of all: 1 is full", &self.cache_used),
            ("vllm:num_preemptions", "Times that a sequence gave up its pages", &self.preempted),
            ("ottava:step_age_seconds", "For how long the step at work has been running", &self.step_age),
        ];
        for (name, help, level) in levels {
            to.register(name, help, level.clone());
        }
    }

    /// Counts an ended choice, with its times.
    pub(crate) fn ended(&self, how: Ended, work: Option<(&Usage, &Timings)>) {
        let finished_reason = match how {
            Ended::Stop => "stop",
            Ended::Length => "length",
            Ended::Failed => "error",
        };
        self.ended.get_or_create(&Reason { finished_reason }).inc();
        let Some((usage, times)) = work else { return };
        self.queued.observe(times.queued_s);
        self.first_token.observe(times.first_token_s);
        self.whole.observe(times.first_token_s + times.decode_s);
        if usage.completion_tokens > 1 {
            self.between_tokens.observe(times.decode_s / (usage.completion_tokens - 1) as f64);
        }
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        self.answered.get_or_create(&Status { status: status.as_u16() }).inc();
    }

    /// Counts an answer's tool calls and malformed calls.
    pub(crate) fn called(&self, calls: usize, malformed: usize) {
        self.calls.inc_by(calls as u64);
        self.malformed.inc_by(malformed as u64);
    }

    pub(crate) fn ignored(&self, fields: usize) {
        self.ignored.inc_by(fields as u64);
    }

    /// Sets gauges and token counters from the engine's. The engine counts tokens after each step, so those
    /// of running, cancelled and failed answers are included.
    pub(crate) fn read(&self, stats: &Stats) {
        let aborted = self.ended.get_or_create(&Reason { finished_reason: "abort" }).clone();
        let counters = [
            (&self.prompt, stats.prompt_tokens),
            (&self.generated, stats.answer_tokens),
            (&self.cached, stats.cached_tokens),
            (&aborted, stats.cancelled),
        ];
        for (counter, count) in counters {
            // The maximum: of two scrapes at once, the one with the older statistics may come last.
            counter.inner().fetch_max(count, Ordering::Relaxed);
        }
        self.running.set(stats.running as f64);
        self.waiting.set(stats.waiting as f64);
        self.cache_used.set(stats.pages_used as f64 / stats.pages.max(1) as f64);
        self.preempted.set(stats.preemptions as f64);
        self.step_age.set(stats.step_running_s);
    }

    /// All metrics in OpenMetrics text.
    ///
    /// # Errors
    /// None in practice: the writer is a `String`.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
