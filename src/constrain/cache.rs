//! Compiled grammars that were used last: the same schema comes with many requests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::error::ConstraintError;

/// Most grammars that are kept.
const GRAMMARS_MAX: usize = 64;
/// What took so long to compile is large: some 160 MB a second.
const LONG: Duration = Duration::from_millis(300);
/// Most of those that are kept.
const LONG_MAX: usize = 2;

/// What became of a grammar. Who comes while it is compiled waits for that.
type Slot<T> = Arc<OnceLock<Result<Arc<T>, ConstraintError>>>;

struct Entry<T> {
    key: blake3::Hash,
    slot: Slot<T>,
    took_long: bool,
}

/// Grammars by their texts, the one used last in the end.
pub(super) struct Cache<T> {
    entries: Mutex<Vec<Entry<T>>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache { entries: Mutex::default() }
    }
}

impl<T> Cache<T> {
    /// The grammar of a text, compiled once; refused ones are kept, too.
    ///
    /// # Errors
    /// The compiler's.
    pub(super) fn get(
        &self,
        key: blake3::Hash,
        compile: impl FnOnce() -> Result<T, ConstraintError>,
    ) -> Result<Arc<T>, ConstraintError> {
        let (slot, mut took_long) = (self.slot(key), false);
        let compiled = slot.get_or_init(|| {
            let begun = Instant::now();
            let compiled = compile().map(Arc::new);
            took_long = begun.elapsed() >= LONG;
            compiled
        });
        match compiled {
            Ok(_) if took_long => self.with(|entries| keep_few(entries, &slot)),
            Ok(_) | Err(ConstraintError::Invalid { .. }) => {}
            // Another time there may be a thread.
            Err(_) => self.with(|entries| entries.retain(|entry| !Arc::ptr_eq(&entry.slot, &slot))),
        }
        compiled.clone()
    }

    fn slot(&self, key: blake3::Hash) -> Slot<T> {
        self.with(|entries| {
            let found = entries.iter().position(|entry| entry.key == key);
            let entry = found.map(|at| entries.remove(at));
            let entry = entry.unwrap_or_else(|| Entry { key, slot: Slot::default(), took_long: false });
            if entries.len() == GRAMMARS_MAX {
                entries.remove(0);
            }
            let slot = Arc::clone(&entry.slot);
            entries.push(entry);
            slot
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<Entry<T>>) -> R) -> R {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Notes that a grammar took long, and drops those that did and were not used for longest.
fn keep_few<T>(entries: &mut Vec<Entry<T>>, slot: &Slot<T>) {
    for entry in entries.iter_mut().filter(|entry| Arc::ptr_eq(&entry.slot, slot)) {
        entry.took_long = true;
    }
    let mut over = entries.iter().filter(|entry| entry.took_long).count().saturating_sub(LONG_MAX);
    entries.retain(|entry| {
        let goes = entry.took_long && over > 0;
        over -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_was_used_last_is_compiled_once_and_a_passing_trouble_is_forgotten() {
        let (cache, compiled) = (Cache::<()>::default(), Cell::new(0));
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

    #[test]
    fn few_of_those_that_took_long_are_kept() {
        let (cache, compiled) = (Cache::<()>::default(), Cell::new(0));
        let get = |number: usize, time: Duration| {
            let found = cache.get(blake3::hash(&number.to_le_bytes()), || {
                compiled.set(compiled.get() + 1);
                std::thread::sleep(time);
                Ok(())
            });
            assert!(found.is_ok());
            compiled.get()
        };
        let (short, long) = (Duration::ZERO, LONG + Duration::from_millis(5));
        assert_eq!((get(0, short), get(1, long), get(2, long), get(3, long)), (1, 2, 3, 4));
        assert_eq!((get(0, short), get(2, short), get(3, short)), (4, 4, 4), "these are kept");
        // The first of the long ones went; compiled again in no time, it pushes nobody out.
        assert_eq!((get(1, short), get(2, short), get(3, short)), (5, 5, 5));
    }
}
