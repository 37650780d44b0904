//! Compiled grammars that were used last: the same schema comes with many requests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::compile::Compiled;
use super::error::ConstraintError;

/// Most grammars that are kept.
const GRAMMARS_MAX: usize = 64;

/// What became of a grammar. Who comes while it is compiled waits for that.
type Slot = Arc<OnceLock<Result<Arc<Compiled>, ConstraintError>>>;

/// Grammars by their texts, the one used last in the end.
#[derive(Default)]
pub(super) struct Cache {
    slots: Mutex<Vec<(blake3::Hash, Slot)>>,
}

impl Cache {
    /// The grammar of a text, compiled once; refused ones are kept, too.
    ///
    /// # Errors
    /// The compiler's.
    pub(super) fn get(
        &self,
        key: blake3::Hash,
        compile: impl FnOnce() -> Result<Compiled, ConstraintError>,
    ) -> Result<Arc<Compiled>, ConstraintError> {
        let slot = self.slot(key);
        let compiled = slot.get_or_init(|| compile().map(Arc::new)).clone();
        if !matches!(compiled, Ok(_) | Err(ConstraintError::Invalid { .. })) {
            // Another time there may be a thread.
            self.with(|slots| slots.retain(|(_, other)| !Arc::ptr_eq(other, &slot)));
        }
        compiled
    }

    fn slot(&self, key: blake3::Hash) -> Slot {
        self.with(|slots| {
            let found = slots.iter().position(|(other, _)| *other == key);
            let (_, slot) = found.map(|at| slots.remove(at)).unwrap_or_else(|| (key, Slot::default()));
            if slots.len() == GRAMMARS_MAX {
                slots.remove(0);
            }
            slots.push((key, Arc::clone(&slot)));
            slot
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<(blake3::Hash, Slot)>) -> T) -> T {
        work(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_was_used_last_is_compiled_once_and_a_passing_trouble_is_forgotten() {
        let (cache, compiled) = (Cache::default(), Cell::new(0));
        let get = |number: usize, error: ConstraintError| {
            let key = blake3::hash(&number.to_le_bytes());
            let found = cache.get(key, || {
                compiled.set(compiled.get() + 1);
                Err(error)
            });
            assert!(found.is_err());
            compiled.get()
        };
        let refused = || ConstraintError::invalid("grammar", "no");
        assert_eq!((get(0, refused()), get(0, refused())), (1, 1), "a refusal is kept");
        (1..GRAMMARS_MAX).for_each(|number| assert_eq!(get(number, refused()), number + 1));
        // The first is used again, so the second goes for a new one.
        assert_eq!((get(0, refused()), get(GRAMMARS_MAX, refused())), (GRAMMARS_MAX, GRAMMARS_MAX + 1));
        assert_eq!((get(0, refused()), get(1, refused())), (GRAMMARS_MAX + 1, GRAMMARS_MAX + 2));
        let trouble = || ConstraintError::Thread("none".into());
        assert_eq!((get(999, trouble()), get(999, refused())), (GRAMMARS_MAX + 3, GRAMMARS_MAX + 4));
    }
}
