//! The life of a model's process: started, watched, ended, and started again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use super::{STOPPING, Status, Worker};
use crate::ServeError;
use crate::front::probe::{get, unready};
use crate::front::process::Process;
use crate::front::pulse::{Pulse, Silence};
use crate::http::auth::Phase;
use crate::http::files;

/// Interval of health checks, and shortest time between two starts.
const LOOK: Duration = Duration::from_secs(1);
/// Timeout of a health check.
const ANSWER: Duration = Duration::from_secs(5);
/// Period in which ends are counted.
const PERIOD: Duration = Duration::from_secs(600);

/// Reason of a process's end.
enum End {
    /// The front's end.
    Stopped,
    /// No request for the idle time.
    Idle,
    /// The front could not start it for want of files, memory or processes.
    NotStarted(std::io::Error),
    Died(String),
}

impl Worker {
    /// Keeps the process alive until `stop` is [`Phase::Ending`]. In [`Phase::Draining`] an ended process is
    /// not restarted: the same signal may have ended it.
    ///
    /// # Errors
    /// [`ServeError::Restarts`] for a pinned model that is given up.
    pub(in crate::front) async fn run(
        self: Arc<Worker>,
        mut stop: watch::Receiver<Phase>,
        note: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<(), ServeError> {
        self.keep(&mut stop, &*note).await?;
        // No other process will start, so requests must not wait for one.
        self.status.send_replace(Status::GivenUp(STOPPING.into()));
        Ok(())
    }

    async fn keep(
        &self,
        stop: &mut watch::Receiver<Phase>,
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), ServeError> {
        let mut deaths = VecDeque::new();
        let mut is_short = false;
        for run in 0.. {
            tokio::select! {
                biased;
                () = reached(stop, Phase::Ending) => return Ok(()),
                () = self.wanted() => {}
            }
            let next = Instant::now() + LOOK;
            let end = self.live(run, stop).await;
            self.status.send_replace(Status::Down);
            let reason = match end {
                End::Stopped => return Ok(()),
                End::Idle => {
                    note(&format!("{} is unloaded: it had nothing to do", self.name()));
                    continue;
                }
                End::NotStarted(error) => {
                    if !std::mem::replace(&mut is_short, true) {
                        note(&format!("the engine of {} cannot be started yet: {error}", self.name()));
                    }
                    match serves_until(next, stop).await {
                        true => continue,
                        false => return Ok(()),
                    }
                }
                End::Died(reason) => reason,
            };
            is_short = false;
            let stopping = *stop.borrow() >= Phase::Draining;
            // An idle process that ends with its front is no event.
            if !stopping || self.is_at_work() {
                note(&format!("the engine of {} ended: {reason}", self.name()));
            }
            if stopping {
                return Ok(());
            }
            self.deaths.fetch_add(1, Ordering::Relaxed);
            deaths.push_back(Instant::now());
            deaths.retain(|death| death.elapsed() < PERIOD);
            if self.restarts_max > 0 && deaths.len() >= self.restarts_max {
                self.give_up(deaths.len(), reason)?;
                let again = deaths.front().map_or(next, |oldest| *oldest + PERIOD);
                if !serves_until(again, stop).await {
                    return Ok(());
                }
                self.status.send_replace(Status::Down);
            }
            if !serves_until(next, stop).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives the model up after `deaths` ends.
    ///
    /// # Errors
    /// [`ServeError::Restarts`] for a pinned model.
    fn give_up(&self, deaths: usize, reason: String) -> Result<(), ServeError> {
        let message = format!("its engine ended {deaths} times in ten minutes: {reason}");
        self.status.send_replace(Status::GivenUp(message));
        match self.pinned {
            true => Err(ServeError::Restarts(self.name().to_owned(), deaths, reason)),
            false => Ok(()),
        }
    }

    /// Ready when the process should run: always if pinned, otherwise while a request is at work.
    /// Notifications from before an unload do not count.
    async fn wanted(&self) {
        while !self.pinned && !self.is_at_work() {
            self.called.notified().await;
        }
    }

    /// One process, from its start to its end.
    async fn live(&self, run: u64, stop: &mut watch::Receiver<Phase>) -> End {
        let mut process = match Process::start(&self.command, &self.keys) {
            Ok(process) => process,
            Err(error) if files::is_shortage(&error) => return End::NotStarted(error),
            Err(error) => return End::Died(format!("it cannot be started: {error}")),
        };
        let address = tokio::select! {
            address = process.address() => address,
            () = reached(stop, Phase::Ending) => None,
        };
        let Some(address) = address else {
            // A loading process does not read its input, and a closed output does not mean that it has ended.
            let status = process.kill().await;
            return if *stop.borrow() == Phase::Ending { End::Stopped } else { End::Died(status) };
        };
        let mut is_known = self.learn(address).await;
        self.is_silent.store(false, Ordering::Relaxed);
        self.status.send_replace(Status::Up { address, run });
        let mut pulse = Pulse::default();
        loop {
            let answer = tokio::select! {
                status = process.ended() => return End::Died(status),
                () = reached(stop, Phase::Ending) => return self.end(process, &pulse, End::Stopped).await,
                answer = looked_at(address) => answer,
            };
            if self.is_idle() {
                self.status.send_replace(Status::Down);
                return self.end(process, &pulse, End::Idle).await;
            }
            let fatal = match answer {
                Some(Ok(None)) => {
                    pulse.answered(process.ticks());
                    is_known = is_known || self.learn(address).await;
                    None
                }
                // It reports a fatal state itself.
                Some(Ok(fatal)) => fatal,
                // The front's own trouble.
                Some(Err(error)) if files::is_shortage(&error) => None,
                _ => self.fatal_silence(pulse.missed(process.ticks()), run),
            };
            self.is_silent.store(pulse.is_silent(), Ordering::Relaxed);
            let Some(reason) = fatal else { continue };
            self.kill(&mut process).await;
            return End::Died(reason);
        }
    }

    /// The reason to end a silent process, if there is one.
    fn fatal_silence(&self, silence: Silence, run: u64) -> Option<String> {
        match silence {
            Silence::Waits => None,
            Silence::Hangs => Some("it does not answer".to_owned()),
            Silence::Spins => {
                self.spun.store(run + 1, Ordering::Release);
                Some("it computed for ten minutes without an answer".to_owned())
            }
        }
    }

    /// Kills the process. The status changes first, so that requests wait for the next process: with much
    /// memory, or a device, this one takes seconds to go.
    async fn kill(&self, process: &mut Process) {
        self.status.send_replace(Status::Down);
        process.kill().await;
    }

    /// Ends an idle process. One that is silent does not read its input.
    async fn end(&self, mut process: Process, pulse: &Pulse, end: End) -> End {
        match pulse.is_silent() {
            true => self.kill(&mut process).await,
            false => process.end().await,
        }
        end
    }

    /// Stores the process's entry in `/v1/models`, and returns whether it has answered.
    async fn learn(&self, address: SocketAddr) -> bool {
        let key = self.keys.lines().next().unwrap_or_default();
        // Without an answer the model list has fewer fields.
        let Ok(Ok((_, mut list))) = timeout(ANSWER, get(address, "/v1/models", key)).await else {
            return false;
        };
        if let Some(model @ Value::Object(_)) = list["data"].get_mut(0) {
            *self.about.lock().unwrap_or_else(PoisonError::into_inner) = model.take();
        }
        true
    }
}

/// Waits until a time, and returns whether the front still serves then.
async fn serves_until(time: Instant, stop: &mut watch::Receiver<Phase>) -> bool {
    tokio::select! {
        () = sleep_until(time.into()) => true,
        () = reached(stop, Phase::Draining) => false,
    }
}

/// Ready when the front has reached a phase.
async fn reached(stop: &mut watch::Receiver<Phase>, phase: Phase) {
    // Without a sender the front has gone.
    let _ = stop.wait_for(|now| *now >= phase).await;
}

/// The answer to the next health check, if it comes in time: the reason why the process is not ready.
async fn looked_at(address: SocketAddr) -> Option<std::io::Result<Option<String>>> {
    sleep(LOOK).await;
    timeout(ANSWER, unready(address)).await.ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Model;

    /// A process takes seconds to go if it has much memory, or a device.
    #[tokio::test]
    async fn requests_do_not_wait_for_a_process_that_is_killed() {
        let command = ["/bin/sh", "-c", "exec sleep 600"].map(Into::into).into();
        let model = Model { names: vec!["a".into()], command, pinned: true };
        let worker = Worker::new(model, String::new(), None, 0);
        let mut process = Process::start(&worker.command, "").expect("it starts");
        worker.status.send_replace(Status::Up { address: ([127, 0, 0, 1], 1).into(), run: 0 });
        tokio::select! {
            biased;
            () = worker.kill(&mut process) => {}
            // The kill has begun and not finished.
            () = std::future::ready(()) => {}
        }
        assert_eq!(worker.status(), Status::Down);
    }
}
