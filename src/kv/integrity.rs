//! Integrity check: recounts from scratch every invariant that `mod.rs` promises. For tests and health
//! checks.

use super::manager::KvCacheManager;
use super::sequence::{Reservation, Sequence};
use super::{IntegrityError, window};
use crate::ir::{PAGE_TOKENS, PageId};

impl KvCacheManager {
    /// Recounts references from the page tables. Checks that free, cached and used pages partition the pool,
    /// and that hash index and pages agree. Every page table must cover its sequence once and in order, and
    /// each slot of a sequence must be either taken or vacant.
    ///
    /// # Errors
    /// [`IntegrityError`] with the contradiction.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        self.check_all().map_err(IntegrityError)
    }

    fn check_all(&self) -> Result<(), String> {
        self.check_places()?;
        let mut references = vec![0u32; self.pool.len()];
        for (index, sequence) in self.sequences.iter() {
            let told = |text| format!("sequence {index}: {text}");
            check_table(sequence).map_err(told)?;
            self.check_chain(sequence).map_err(told)?;
            for entry in sequence.table.live() {
                let count = references.get_mut(entry.page.index());
                *count.ok_or(told(format!("page {} is outside the pool", entry.page.0)))? += 1;
            }
        }
        self.check_partition(&references)?;
        self.check_states()?;
        self.check_index()
    }

    fn check_places(&self) -> Result<(), String> {
        let (places, vacant) = self.sequences.slots();
        let mut taken = vec![false; places];
        let alive = self.sequences.iter().map(|(index, _)| index);
        for index in alive.chain(vacant.iter().copied()) {
            match taken.get_mut(index) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(format!("place {index} is listed twice or does not exist")),
            }
        }
        match taken.iter().position(|taken| !taken) {
            Some(index) => Err(format!("place {index} is neither taken nor vacant")),
            None => Ok(()),
        }
    }

    fn check_partition(&self, references: &[u32]) -> Result<(), String> {
        let mut idle = vec![0u32; references.len()];
        let cached: Vec<PageId> = self.pool.prefix.parked().collect();
        if cached.len() != self.pool.prefix.cached() {
            return Err(format!("{} cached pages, {} counted", cached.len(), self.pool.prefix.cached()));
        }
        for page in self.pool.unused().iter().chain(&cached) {
            *idle.get_mut(page.index()).ok_or(format!("page {} is outside the pool", page.0))? += 1;
        }
        for (index, (&counted, &idle)) in references.iter().zip(&idle).enumerate() {
            let booked = self.pool.references(PageId(index as u32));
            if booked != counted {
                return Err(format!("page {index}: {booked} references booked, {counted} found"));
            }
            if idle != u32::from(counted == 0) {
                return Err(format!("page {index}: {counted} references, free or cached {idle} times"));
            }
        }
        Ok(())
    }

    /// Checks that each slot of state has the references of sequences and snapshots, and is free if it has
    /// none.
    fn check_states(&self) -> Result<(), String> {
        let (booked, free, snapshots) = self.states.booked();
        let mut found = vec![0u32; booked.len()];
        let of_sequences =
            self.sequences.iter().flat_map(|(_, sequence)| [sequence.state, sequence.next_state]);
        for slot in of_sequences.flatten().chain(snapshots) {
            *found.get_mut(slot.index()).ok_or(format!("state slot {} does not exist", slot.0))? += 1;
        }
        for (slot, (&booked, &found)) in booked.iter().zip(&found).enumerate() {
            let listed = free.iter().filter(|free| free.index() == slot).count();
            if booked != found || listed != usize::from(found == 0) {
                return Err(format!(
                    "state slot {slot}: {booked} references booked, {found} found, free {listed} times"
                ));
            }
        }
        let without = |(_, sequence): &(usize, &Sequence)| sequence.state.is_some() != (sequence.len() > 0);
        match self.sequences.iter().find(without).filter(|_| self.states.is_used()) {
            Some((index, sequence)) => {
                Err(format!("sequence {index}: {} tokens, state {:?}", sequence.len(), sequence.state))
            }
            None => Ok(()),
        }
    }

    fn check_index(&self) -> Result<(), String> {
        let prefix = &self.pool.prefix;
        let mut registered = 0;
        for page in (0..self.pool.len() as u32).map(PageId) {
            let Some(hash) = prefix.hash_of(page) else { continue };
            registered += 1;
            if prefix.find(hash) != Some(page) {
                return Err(format!("page {}: its hash does not lead to it", page.0));
            }
        }
        if registered != prefix.registered() {
            return Err(format!("{} hashes lead to {registered} pages", prefix.registered()));
        }
        if let Some(page) = prefix.parked().find(|&page| !prefix.is_registered(page)) {
            return Err(format!("page {} is cached and cannot be found", page.0));
        }
        match self.pool.unused().iter().find(|&&page| prefix.is_registered(page)) {
            Some(page) => Err(format!("page {} is free and can be found", page.0)),
            None => Ok(()),
        }
    }

    /// Checks that the chain matches the tokens, and that a findable full page has its hash.
    fn check_chain(&self, sequence: &Sequence) -> Result<(), String> {
        let mut parent = None;
        for (index, (hash, tokens)) in
            sequence.chain.iter().zip(sequence.tokens.chunks_exact(PAGE_TOKENS)).enumerate()
        {
            if self.pool.prefix.hash(parent, sequence.spec.salt.as_ref(), tokens).as_ref() != Some(hash) {
                return Err(format!("hash {index} is not that of its tokens"));
            }
            parent = Some(hash);
        }
        let shareable = sequence.len().min(window::unclipped(sequence.spec.window)) / PAGE_TOKENS;
        let expected = if self.pool.prefix.shares() { shareable } else { 0 };
        if sequence.chain.len() != expected {
            return Err(format!("{} hashes, expected {expected}", sequence.chain.len()));
        }
        for entry in sequence.table.live() {
            let index = entry.start as usize / PAGE_TOKENS;
            let full = (index + 1) * PAGE_TOKENS <= sequence.len();
            let found = self.pool.prefix.hash_of(entry.page);
            if full && found.is_some() && found != sequence.chain.get(index) {
                return Err(format!("page {} is found under another past", entry.page.0));
            }
        }
        Ok(())
    }
}

/// Checks that the table covers every position from 0 (or from the drop, after the sinks) to the length,
/// without a gap, and holds no page twice.
fn check_table(sequence: &Sequence) -> Result<(), String> {
    let (table, len) = (&sequence.table, sequence.len());
    let dropped = window::dropped_to(sequence.spec.window, len);
    let mut next = 0;
    let mut pages: Vec<PageId> = table.live().iter().map(|entry| entry.page).collect();
    let sinks = window::sink_pages(sequence.spec.window) * PAGE_TOKENS;
    for entry in table.live() {
        if next == sinks && table.dropped > 0 {
            next = table.dropped;
        }
        if entry.start as usize != next {
            return Err(format!("a page starts at {}, expected {next}", entry.start));
        }
        next += PAGE_TOKENS;
    }
    if table.end != next.max(table.dropped) || table.end < len {
        return Err(format!("pages end at {next}, {} booked, length {len}", table.end));
    }
    if table.dropped < dropped {
        return Err(format!("dropped up to {}, expected {dropped}", table.dropped));
    }
    pages.sort_unstable();
    if let Some(pair) = pages.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("page {} appears twice", pair[0].0));
    }
    match sequence.reservation {
        Reservation::Open(end) if end > table.end || end > sequence.spec.tokens_max => {
            Err(format!("reserved up to {end}, pages up to {}", table.end))
        }
        _ if len > sequence.spec.tokens_max => Err(format!("length {len} beyond tokens_max")),
        _ => Ok(()),
    }
}
