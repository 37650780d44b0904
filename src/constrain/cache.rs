//! Cache of compiled grammars, since many requests share a schema. Evicts by least recent use.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::error::ConstraintError;

/// Maximum number of cached grammars.
const GRAMMARS_MAX: usize = 64;
/// Maximum total compile time of the cached grammars. Compilation allocates up to 160 MB per second.
const TIME_MAX: Duration = Duration::from_secs(3);

/// Result of a compilation. Concurrent requests for the grammar wait for it.
type Slot<T> = Arc<OnceLock<Result<Arc<T>, ConstraintError>>>;

struct Entry<T> {
    key: blake3::Hash,
    slot: Slot<T>,
    /// Compile time; zero while compilation runs, and for rejected grammars.
    took: Duration,
}

/// Compiled grammars by hash of their source, most recently used last.
pub(super) struct Cache<T> {
    entries: Mutex<Vec<Entry<T>>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache { entries: Mutex::default() }
    }
}

impl<T> Cache<T> {
    /// Returns the grammar with this key, compiled at most once. Rejections are cached, too.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn get(
        &self,
        key: blake3::Hash,
        compile: impl FnOnce() -> Result<T, ConstraintError>,
    ) -> Result<Arc<T>, ConstraintError> {
        let (slot, mut took) = (self.slot(key), Duration::ZERO);
        let compiled = slot.get_or_init(|| {
            let begun = Instant::now();
            let compiled = compile().map(Arc::new);
            took = begun.elapsed();
            compiled
        });
        match compiled {
            Ok(_) if !took.is_zero() => self.with(|entries| make_room(entries, &slot, took)),
            Ok(_) | Err(ConstraintError::Invalid { .. }) => {}
            // Transient errors are not cached: a thread may be available later.
            Err(_) => self.with(|entries| entries.retain(|entry| !Arc::ptr_eq(&entry.slot, &slot))),
        }
        compiled.clone()
    }

    fn slot(&self, key: blake3::Hash) -> Slot<T> {
        self.with(|entries| {
            let found = entries.iter().position(|entry| entry.key == key);
            let entry = found.map(|at| entries.remove(at));
            let entry = entry.unwrap_or_else(|| Entry { key, slot: Slot::default(), took: Duration::ZERO });
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

/// Records a compile time, then evicts the least recently used grammars while the total exceeds [`TIME_MAX`].
/// The new grammar itself is kept.
fn make_room<T>(entries: &mut Vec<Entry<T>>, slot: &Slot<T>, took: Duration) {
    for entry in entries.iter_mut().filter(|entry| Arc::ptr_eq(&entry.slot, slot)) {
        entry.took = took;
    }
    let mut all: Duration = entries.iter().map(|entry| entry.took).sum();
    entries.retain(|entry| {
        let goes = all > TIME_MAX && !entry.took.is_zero() && !Arc::ptr_eq(&entry.slot, slot);
        all -= if goes { entry.took } else { Duration::ZERO };
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
        // A hit makes the first entry the most recent, so the second is evicted.
        assert_eq!((get(0, refused()), get(GRAMMARS_MAX, refused())), (GRAMMARS_MAX, GRAMMARS_MAX + 1));
        assert_eq!((get(0, refused()), get(1, refused())), (GRAMMARS_MAX + 1, GRAMMARS_MAX + 2));
        let trouble = || ConstraintError::Thread("none".into());
        assert_eq!((get(999, trouble()), get(999, refused())), (GRAMMARS_MAX + 3, GRAMMARS_MAX + 4));
    }

    #[test]
    fn what_took_long_pushes_out_what_was_not_used_for_longest() {
        let entry = |number: u64, seconds: u64| {
            let (key, took) = (blake3::hash(&number.to_le_bytes()), Duration::from_secs(seconds));
            Entry::<()> { key, slot: Slot::default(), took }
        };
        let left = |times: &[u64], newest: usize, seconds: u64| {
            let mut entries: Vec<_> =
                (0..).zip(times).map(|(number, &seconds)| entry(number, seconds)).collect();
            let slot = Arc::clone(&entries[newest].slot);
            make_room(&mut entries, &slot, Duration::from_secs(seconds));
            entries.iter().map(|entry| entry.took.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(left(&[1, 1, 0], 2, 1), [1, 1, 1]);
        assert_eq!(left(&[1, 1, 1, 0], 3, 1), [1, 1, 1]);
        assert_eq!(left(&[2, 0, 1, 0], 3, 2), [0, 1, 2], "what took nothing keeps nothing");
        assert_eq!(left(&[1, 0, 1], 1, 9), [9], "the new one stays, however long it took");
    }
}
