//! Steps on a device that works while the host goes on.

use super::{Backend, BackendError, Frame};
use crate::ir::Op;
use crate::token::TokenId;

/// A device whose work ends later than the calls that start it. It runs ahead: it may take up a step before the
/// tokens of the one before were asked for, and be fed them ([`StepInput::fed`](crate::ir::StepInput::fed)).
pub trait StepQueue<B: Backend> {
    /// Takes up a step. Called once before its operations; the device copies the step's tables.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the step is beyond the arena's limits,
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn begin(&self, frame: &mut Frame<'_, B>) -> Result<(), BackendError>;

    /// Runs a plan over the step that [`StepQueue::begin`] took up. With one arena come always the same
    /// operations, weights and pool: a device may keep what it has recorded of them.
    ///
    /// # Errors
    /// As [`Frame::run`].
    fn run(&self, ops: &[Op], frame: &mut Frame<'_, B>) -> Result<(), (usize, BackendError)>;

    /// Waits for the work so far.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn wait(&self) -> Result<(), BackendError>;

    /// What [`Op::Sample`] gave the first `out.len()` rows, `steps_back` steps before the last one taken up: 0 or 1.
    /// Waits for that step alone.
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
