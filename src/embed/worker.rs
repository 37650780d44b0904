//! The encoder's thread: takes texts from the queue, runs steps, replies with rows.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use crate::model::{TextEncoder, TextTokens};

use super::{EmbedError, EmbedText};

/// A text and the reply to its caller.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) text: EmbedText,
    /// Place of the text in the caller's call.
    pub(super) index: usize,
    pub(super) reply: Sender<(usize, Result<Vec<f32>, EmbedError>)>,
}

/// Runs until all senders are gone.
pub(super) fn run(mut encoder: impl TextEncoder, jobs: &Receiver<Job>) {
    let limits = encoder.limits();
    let (mut next, mut batch) = (None, Vec::with_capacity(limits.outputs_max));
    while let Some(first) = next.take().or_else(|| jobs.recv().ok()) {
        let mut tokens = first.text.ids.len();
        batch.push(first);
        while batch.len() < limits.outputs_max {
            let Ok(job) = jobs.try_recv() else { break };
            tokens += job.text.ids.len();
            if tokens > limits.tokens_max {
                next = Some(job);
                break;
            }
            batch.push(job);
        }
        step(&mut encoder, &mut batch);
    }
}

/// Encodes a batch and replies to its callers. A caller that left is ignored.
fn step(encoder: &mut impl TextEncoder, batch: &mut Vec<Job>) {
    let width = encoder.width();
    let texts: Vec<TextTokens<'_>> = batch
        .iter()
        .map(|job| TextTokens { ids: &job.text.ids, first_segment: job.text.first_segment })
        .collect();
    let mut rows = vec![0.0; texts.len() * width];
    let encoded = encoder.encode(&texts, &mut rows).map_err(Arc::new);
    for (job, row) in batch.drain(..).zip(rows.chunks(width.max(1))) {
        let row =
            encoded.as_ref().map(|()| row.to_vec()).map_err(|error| EmbedError::Step(Arc::clone(error)));
        let _ = job.reply.send((job.index, row));
    }
}
