//! The Hugging Face hub: downloads one file over HTTP and resumes a partial one.
//!
//! Headers are checked only to fail early. The caller verifies the bytes.

use std::io::Read;
use std::time::{Duration, Instant};

use ureq::Body;
use ureq::http::{HeaderMap, Response};

use super::super::catalog::Entry;
use super::super::output;
use super::cache::Held;
use super::network::{Client, RequestError};
use super::{Limits, Sources};

/// Bytes per read: small enough that a slow server's throughput is measured in time.
const BLOCK: usize = 64 << 10;
/// Bytes after which a try resets the count of failures.
const PROGRESS: u64 = 1 << 20;

/// Failure of a request, by the next step.
enum Trouble {
    /// Give up: a retry would fail, too.
    Final(String),
    /// Retry after a pause that doubles each time.
    Again(String),
    /// Retry after the pause that the hub demands.
    After(Duration, String),
    /// Drop the partial file, which cannot be resumed, and retry.
    Restart(String),
}

/// Fills the partial file up to the model's size.
pub fn download(entry: &Entry, held: &mut Held, sources: &Sources, limits: &Limits) -> Result<(), String> {
    let (repository, file) = entry.hub.ok_or("not there")?;
    if held.len()? > entry.bytes {
        held.truncate(0)?;
    }
    if held.len()? == entry.bytes {
        return Ok(());
    }
    let endpoint = sources.endpoint.as_ref().ok_or("offline by request")?;
    let url = format!("{endpoint}/{repository}/resolve/main/{file}");
    let request = Request {
        url,
        client: Client::new(&sources.network, limits),
        token: sources.token.as_deref(),
        entry,
        limits,
    };
    let mut failures = 0;
    loop {
        let before = held.len()?;
        let (pause, reason) = match request.send(held) {
            Ok(()) => return Ok(()),
            Err(Trouble::Final(reason)) => return Err(reason),
            Err(Trouble::Again(reason)) => (limits.pause * 2_u32.pow(failures.min(8)), reason),
            Err(Trouble::After(pause, reason)) => (pause, reason),
            Err(Trouble::Restart(reason)) => {
                held.truncate(0)?;
                (Duration::ZERO, reason)
            }
        };
        failures = if held.len()? >= before.saturating_add(PROGRESS) { 0 } else { failures + 1 };
        if failures >= limits.tries {
            let have = held.len()?;
            return Err(format!("{reason}; {have} of {} bytes are kept for the next try", entry.bytes));
        }
        std::thread::sleep(pause);
    }
}

struct Request<'r> {
    url: String,
    client: Client,
    token: Option<&'r str>,
    entry: &'r Entry,
    limits: &'r Limits,
}

impl Request<'_> {
    /// Requests the rest of the file.
    fn send(&self, held: &mut Held) -> Result<(), Trouble> {
        let have = held.len().map_err(Trouble::Final)?;
        let response = self.client.get(&self.url, have, self.token).map_err(of_request)?;
        let start = self.start(&response, have)?;
        held.truncate(start).map_err(Trouble::Final)?;
        self.read(response, start, held)
    }

    /// Checks the response's head; returns the offset of its body in the file.
    fn start(&self, response: &Response<Body>, have: u64) -> Result<u64, Trouble> {
        let (headers, expected) = (response.headers(), self.entry.bytes);
        let start = match response.status().as_u16() {
            200 => 0,
            206 => match content_range(headers) {
                Some((start, total)) if start == have && total.is_none_or(|total| total == expected) => start,
                _ => {
                    let found = header(headers, "content-range").unwrap_or("none");
                    return Err(Trouble::Restart(format!(
                        "expected the range from {have} of {expected} bytes, found {found}"
                    )));
                }
            },
            416 if have > 0 => return Err(Trouble::Restart(format!("status 416: no bytes from {have} on"))),
            status @ (408 | 425 | 429 | 500..=599) => return Err(self.busy(status, headers)),
            401 => return Err(Trouble::Final("status 401: HF_TOKEN is missing or wrong".into())),
            status => return Err(Trouble::Final(format!("status {status} for {}", self.url))),
        };
        if header(headers, "content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            return Err(Trouble::Final(format!("found a web page at {}: a proxy's, perhaps", self.url)));
        }
        let length = header(headers, "content-length").and_then(|length| length.trim().parse::<u64>().ok());
        match length.map(|length| start.saturating_add(length)) {
            // The hub's file is of another version than the partial one.
            Some(found) if found != expected && start > 0 => {
                Err(Trouble::Restart(format!("expected {expected} bytes, the hub has {found}")))
            }
            Some(found) if found != expected => {
                Err(Trouble::Final(format!("expected {expected} bytes, the hub has {found}")))
            }
            _ => Ok(start),
        }
    }

    /// Retry by the status of a busy hub and its `Retry-After`.
    fn busy(&self, status: u16, headers: &HeaderMap) -> Trouble {
        let seconds = header(headers, "retry-after").and_then(|value| value.trim().parse().ok());
        let reason = format!("status {status}");
        match seconds.map(Duration::from_secs) {
            Some(pause) if pause > self.limits.retry_after => Trouble::Final(format!(
                "{reason}: the hub wants a pause of {} s; try again then",
                pause.as_secs()
            )),
            Some(pause) => Trouble::After(pause, reason),
            None => Trouble::Again(reason),
        }
    }

    /// Appends the body. Too slow or too long a body is an error.
    fn read(&self, mut response: Response<Body>, start: u64, held: &mut Held) -> Result<(), Trouble> {
        let (expected, mut done) = (self.entry.bytes, start);
        let bar = output::byte_bar(expected, self.entry.name);
        let mut body = response.body_mut().as_reader().take(expected.saturating_sub(start).saturating_add(1));
        let (mut block, mut window) = (vec![0; BLOCK], (Instant::now(), start));
        loop {
            let n = match body.read(&mut block) {
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Trouble::Again(format!("after {done} of {expected} bytes: {error}")));
                }
            };
            if n == 0 && done < expected {
                return Err(Trouble::Again(format!("the hub ended after {done} of {expected} bytes")));
            }
            if n == 0 {
                bar.finish_and_clear();
                return Ok(());
            }
            done += n as u64;
            if done > expected {
                held.truncate(0).map_err(Trouble::Final)?;
                return Err(Trouble::Final(format!("expected {expected} bytes, the hub sent more")));
            }
            held.append(block.get(..n).unwrap_or_default()).map_err(Trouble::Final)?;
            bar.set_position(done);
            let (since, seconds) = (window.0.elapsed(), self.limits.window.as_secs());
            if since >= self.limits.window {
                let came = done - window.1;
                if came < self.limits.window_bytes {
                    return Err(Trouble::Again(format!("too slow: {came} bytes in {seconds} s")));
                }
                window = (Instant::now(), done);
            }
        }
    }
}

/// Whether a request that failed before its response is retried.
fn of_request(error: RequestError) -> Trouble {
    let (error, variable) = match error {
        RequestError::Redirect(reason) => return Trouble::Final(reason),
        RequestError::Call(error, variable) => (error, variable),
    };
    let through = variable.map(|name| format!(" (through the proxy of {name})")).unwrap_or_default();
    let reason = format!("{error}{through}");
    match error {
        ureq::Error::Timeout(_) => Trouble::Again(reason),
        ureq::Error::Io(io) if io.kind() != std::io::ErrorKind::ConnectionRefused => Trouble::Again(reason),
        _ => Trouble::Final(reason),
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Start and total of a header such as `bytes 5-9/10`; the total may be unknown.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (range, total) = header(headers, "content-range")?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    match total.trim() {
        "*" => Some((start, None)),
        total => Some((start, Some(total.parse().ok()?))),
    }
}
