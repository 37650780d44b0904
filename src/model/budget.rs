//! Size of the KV pool for a memory budget on a device.

use crate::graph::{KvShape, Plan};
use crate::ir::{KvLayout, PAGE_TOKENS};
use crate::session::KvMemory;

use super::{KvBudget, LoadOptions, ModelConfig, ModelError};

impl KvBudget {
    /// The budget in bytes, given the bytes of one maximum context and the free bytes of the device.
    fn bytes(self, context_bytes: usize, free: Option<u64>) -> Result<u64, ModelError> {
        match self {
            KvBudget::Bytes(bytes) => Ok(bytes),
            KvBudget::Contexts(contexts) => Ok((context_bytes as u64).saturating_mul(contexts as u64)),
            KvBudget::FreeShare(share) if share > 0.0 && share <= 1.0 => {
                Ok((free.ok_or(ModelError::NoFreeMemory)? as f64 * f64::from(share)) as u64)
            }
            KvBudget::FreeShare(found) => Err(ModelError::KvShare { found }),
        }
    }
}

/// Requested KV pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    budget: KvBudget,
    /// Layout of the first group of layers with equal heads.
    layout: KvLayout,
    /// Bytes of one page over all layers.
    page_bytes: usize,
    context_max: usize,
    sequences_max: usize,
}

impl Pool {
    /// Pool for a plan, in which layers may differ in their heads; `None` for plans without attention.
    ///
    /// # Errors
    /// [`ModelError::Context`] for a context of 0 tokens or beyond the range of positions.
    pub(super) fn of_plan(plan: &Plan, options: &LoadOptions) -> Result<Option<Pool>, ModelError> {
        check_context(options.context_max, u32::MAX as usize)?;
        let layout = |shape: &KvShape| KvLayout {
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            dtype: options.kv_dtype,
        };
        let bytes = |bytes: usize, shape| layout(shape).page_bytes().saturating_add(bytes);
        let page_bytes = plan.kv().iter().fold(0, bytes);
        let LoadOptions { kv: budget, context_max, .. } = *options;
        let sequences_max = options.limits.outputs_max;
        let of = |layout| Pool { budget, layout, page_bytes, context_max, sequences_max };
        Ok(plan.kv().first().map(layout).map(of))
    }

    /// # Errors
    /// [`ModelError::Context`] for a context of 0 tokens or beyond the trained one.
    pub(super) fn new(config: &ModelConfig, options: &LoadOptions) -> Result<Pool, ModelError> {
        let LoadOptions { context_max, kv: budget, kv_dtype, .. } = *options;
        check_context(context_max, config.context_length)?;
        let layout = config.kv_layout(kv_dtype);
        let (page_bytes, sequences_max) = (layout.page_bytes(), options.limits.outputs_max);
        Ok(Pool { budget, layout, page_bytes, context_max, sequences_max })
    }

    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }

    pub(super) fn budget(&self) -> KvBudget {
        self.budget
    }

    /// Minimum number of pages: one sequence with the maximum context.
    fn least(&self) -> usize {
        self.context_max.div_ceil(PAGE_TOKENS)
    }

    /// Bytes of the minimum number of pages.
    pub(super) fn least_bytes(&self) -> usize {
        self.page_bytes.saturating_mul(self.least())
    }

    /// Bytes of [`Pool::memory`].
    ///
    /// # Errors
    /// As [`Pool::memory`].
    pub(super) fn bytes(&self, free: Option<u64>) -> Result<usize, ModelError> {
        Ok(self.memory(free)?.pages.saturating_mul(self.page_bytes))
    }

    /// Pages for the budget, given the free bytes of the device. At least one maximum context.
    ///
    /// # Errors
    /// [`ModelError::KvBudget`] if the budget is too small, [`ModelError::KvMemory`] if the device has less
    /// memory, [`ModelError::KvShare`] and [`ModelError::NoFreeMemory`] for a share.
    pub(super) fn memory(&self, free: Option<u64>) -> Result<KvMemory, ModelError> {
        let Pool { budget, layout, page_bytes, context_max, sequences_max } = *self;
        let (least, bytes_needed) = (self.least(), self.least_bytes());
        let budget_bytes = budget.bytes(bytes_needed, free)?;
        let bytes = usize::try_from(budget_bytes).unwrap_or(usize::MAX);
        let most = match budget {
            KvBudget::FreeShare(_) => least.saturating_mul(sequences_max),
            _ => usize::MAX,
        };
        // Page ids have 32 bits.
        let pages = (bytes / page_bytes.max(1)).min(most).min(u32::MAX as usize);
        if pages < least {
            return Err(ModelError::KvBudget { bytes, bytes_needed, context_max });
        }
        let taken = pages.saturating_mul(page_bytes) as u64;
        match free.filter(|&bytes_free| taken > bytes_free) {
            Some(bytes_free) => Err(ModelError::KvMemory { bytes: taken, bytes_free }),
            None => Ok(KvMemory { layout, pages }),
        }
    }
}

fn check_context(asked: usize, trained: usize) -> Result<(), ModelError> {
    let fits = (1..=trained).contains(&asked);
    if fits { Ok(()) } else { Err(ModelError::Context { asked, trained }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::KvDtype;

    /// Pages of 1 KiB, contexts of four pages.
    fn pool(budget: KvBudget) -> Pool {
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 16, dtype: KvDtype::F16 };
        assert_eq!(layout.page_bytes(), 1024);
        Pool { budget, layout, page_bytes: 1024, context_max: 64, sequences_max: 5 }
    }

    fn pages(budget: KvBudget, free: Option<u64>) -> Result<usize, String> {
        pool(budget).memory(free).map(|kv| kv.pages).map_err(|error| error.to_string())
    }

    #[test]
    fn a_budget_is_granted_or_refused_with_what_is_possible() {
        assert_eq!(pages(KvBudget::Bytes(10_000), None), Ok(9));
        assert_eq!(pages(KvBudget::Contexts(3), Some(12 << 10)), Ok(12));
        assert_eq!(pages(KvBudget::FreeShare(0.5), Some(16 << 10)), Ok(8));
        assert_eq!(pages(KvBudget::FreeShare(1.0), Some(1 << 40)), Ok(20), "a context for each output");
        let refused = |budget, free, expected: &str| {
            let error = pages(budget, free).unwrap_err();
            assert!(error.contains(expected), "{budget:?} of {free:?}: {error}");
        };
        refused(KvBudget::Bytes(4095), None, "needs 4096 bytes");
        refused(KvBudget::Contexts(0), None, "needs 4096 bytes");
        refused(KvBudget::FreeShare(0.5), Some(8000), "needs 4096 bytes");
        refused(KvBudget::Contexts(3), Some(12_287), "12288 bytes: the device has 12287 bytes free");
        refused(KvBudget::Bytes(u64::MAX), Some(1 << 30), "the device has 1073741824 bytes free");
        refused(KvBudget::FreeShare(0.9), None, "does not say");
        for share in [0.0, -1.0, 1.01, f32::NAN] {
            refused(KvBudget::FreeShare(share), Some(1 << 30), "above 0 and at most 1");
        }
    }
}
