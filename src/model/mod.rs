//! Models: what a file says becomes a decoder that runs steps.
//!
//! `family` is the table of supported architectures, `hyper` parses and checks hyperparameters,
//! `rope` turns scaling schemes into frequencies, `decoder` builds the graph, and `load` brings
//! the weights to a backend. [`Decoder`] is all that the engine knows of a model; which sequences
//! there are, and what is sampled, is not known here.

#![forbid(unsafe_code)]

use crate::backend::{BackendError, KvLayout, PageId, StepInput, StepLimits};
use crate::graph::GraphError;

/// Why a model could not be made, or could not run a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The graph could not be built, compiled or run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An output was read that the last step did not compute.
    #[error("output {found} of a step with {outputs} outputs")]
    Output {
        /// The output asked for.
        found: usize,
        /// Outputs of the last step.
        outputs: usize,
    },
}

/// A loaded model, as the engine drives it: steps in, logits out.
pub trait Decoder: Send {
    /// What a step may hold.
    fn limits(&self) -> StepLimits;

    /// Logits of an output row; token ids are below it.
    fn vocab_size(&self) -> usize;

    /// Most tokens of a sequence.
    fn context_max(&self) -> usize;

    /// Pages of the KV pool.
    fn pages(&self) -> usize;

    /// The shape of the KV pool.
    fn kv_layout(&self) -> KvLayout;

    /// Runs one step over all layers: writes the keys and values of its rows to their pages and
    /// computes the logits of its outputs.
    ///
    /// # Errors
    /// A malformed step changes nothing; after a backend's failure the rows' pages are undefined.
    fn step(&mut self, step: &StepInput) -> Result<(), ModelError>;

    /// Copies out the logits, `[vocab_size]`, of output number `output` of the last step.
    ///
    /// # Errors
    /// [`ModelError::Output`] if the last step had no such output.
    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError>;

    /// Copies one page onto another, in all layers.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if a page is outside the pool.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), ModelError>;

    /// Appends a page's bytes to `out`, for [`Decoder::import_page`] of the same fingerprint.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if the page is outside the pool.
    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), ModelError>;

    /// Fills a page with what [`Decoder::export_page`] gave.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if the page is outside the pool or the length is wrong.
    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), ModelError>;

    /// Identifies the model together with everything that its stored keys and values depend on.
    fn fingerprint(&self) -> [u8; 32];
}
