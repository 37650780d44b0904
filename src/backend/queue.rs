//! Steps on a device that works asynchronously to the host.

use super::{Backend, BackendError, Frame};
use crate::ir::Op;
use crate::token::TokenId;

/// A device whose work completes after the calls that start it. It runs ahead: a step may begin before the
/// previous step's tokens are read, and take those tokens as input
/// ([`StepInput::fed`](crate::ir::StepInput::fed)).
pub trait StepQueue<B: Backend> {
    /// Begins a step. Called once before its operations; the device copies the step's tables.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the step exceeds the arena's limits, [`BackendError::OutOfMemory`],
    /// [`BackendError::Device`].
    fn begin(&self, frame: &mut Frame<'_, B>) -> Result<(), BackendError>;

    /// Runs a plan over the step that [`StepQueue::begin`] began. An arena is always used with the same
    /// operations, weights and pool, so a device may reuse recorded graphs of them.
    ///
    /// # Errors
    /// As [`Frame::run`].
    fn run(&self, ops: &[Op], frame: &mut Frame<'_, B>) -> Result<(), (usize, BackendError)>;

    /// Waits for all work queued so far.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn wait(&self) -> Result<(), BackendError>;

    /// Results of [`Op::Sample`] for the first `out.len()` rows, from `steps_back` (0 or 1) steps before the
    /// one begun last. Waits for that step alone.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there are no such rows or steps, [`BackendError::Device`].
    fn sampled(
        &self,
        arena: &mut B::Arena,
        steps_back: usize,
        out: &mut [Option<TokenId>],
    ) -> Result<(), BackendError>;
}
