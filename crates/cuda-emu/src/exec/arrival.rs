//! What blocks hand to each other through global memory, where a kernel has atomics on it: which accesses
//! are arrivals, and which are of what is handed on.

use std::sync::PoisonError;

use super::Env;
use super::address::Addresses;
use super::lanes::lanes_of;
use super::trap::{Step, place, trap_at};
use super::warp::Warp;
use crate::decode::Order;
use crate::error::FaultKind;
use crate::memory::arrivals::{Unordered, Visit};
use crate::memory::shadow::Kind;

/// Bytes of what is looked at as one.
const WORD: u64 = 4;

impl Env<'_> {
    /// The warp's cluster, by its number in the launch.
    fn cluster_of(&self, warp: &Warp) -> u64 {
        self.gang * self.clusters.len() as u64 + self.blocks[warp.block].cluster as u64
    }

    /// Notes plain accesses to global memory, and checks them against what other blocks did.
    #[inline(always)]
    pub(super) fn note_handed(
        &mut self,
        warp: &Warp,
        kind: Kind,
        addresses: &Addresses,
        region: Option<usize>,
        mask: u32,
        bytes: u32,
    ) -> Step<()> {
        if self.shared.arrivals.is_none() {
            return Ok(());
        }
        self.check_handed(warp, kind, addresses, region, mask, bytes)
    }

    #[inline(never)]
    fn check_handed(
        &mut self,
        warp: &Warp,
        kind: Kind,
        addresses: &Addresses,
        region: Option<usize>,
        mask: u32,
        bytes: u32,
    ) -> Step<()> {
        let Some(arrivals) =
            self.shared.arrivals.as_ref().filter(|_| matches!(kind, Kind::Read | Kind::Write))
        else {
            return Ok(());
        };
        let block = &self.blocks[warp.block];
        let clocks = &self.clusters[block.cluster].clocks;
        let who = (self.cluster_of(warp), block.index, warp.id);
        let by = Visit::new(clocks, who, warp.agent, self.trap_pc);
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes_of(mask) {
            let (first, last) = (addresses[lane] / WORD, (addresses[lane] + u64::from(bytes) - 1) / WORD);
            for word in first..=last {
                let noted = match kind {
                    Kind::Read => arrivals.read(region, word, &by),
                    _ => arrivals.write(region, word, &by),
                };
                if let Err(unordered) = noted {
                    return trap_at(self.handed_too_early(&unordered, kind), lane, addresses[lane]);
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn handed_too_early(&self, unordered: &Unordered, kind: Kind) -> FaultKind {
        let Unordered { earlier, written, fence } = *unordered;
        FaultKind::HandedTooEarly {
            access: if kind == Kind::Read { "read" } else { "write" },
            other_access: if written { "write" } else { "read" },
            other: format!("warp {} of block {:?}", earlier.warp, earlier.block),
            missing: if fence { "a fence" } else { "a barrier" },
            other_place: Box::new(place(self.program, earlier.pc)),
        }
    }

    /// Notes atomics and strong accesses to global memory: at a counter warps arrive, and see who has.
    pub(super) fn note_arrival(
        &mut self,
        warp: &Warp,
        kind: Kind,
        order: Order,
        addresses: &Addresses,
        mask: u32,
    ) {
        let Some(arrivals) = &self.shared.arrivals else { return };
        let cluster = self.cluster_of(warp);
        let clocks = &mut self.clusters[self.blocks[warp.block].cluster].clocks;
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        for lane in lanes_of(mask).filter(|lane| last.replace(addresses[*lane]) != Some(addresses[*lane])) {
            let counter = addresses[lane];
            if matches!(kind, Kind::Atomic | Kind::StrongRead) {
                arrivals.see(cluster, counter);
            }
            if matches!(kind, Kind::Atomic | Kind::StrongWrite) {
                arrivals.arrive(clocks, cluster, warp.agent, counter, order.releases());
            }
        }
    }
}
