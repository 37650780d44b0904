//! Mbarriers: 64 bits in shared memory that count arrivals and bytes in flight.
//!
//! The bits are our own, as they are a card's own: 0 to 20 bytes to come (plus 2^20), 21 to 40
//! arrivals to come, 41 to 60 arrivals of a phase, 63 the phase.

use super::Env;
use super::address::addresses;
use super::isa::Portable;
use super::lanes::{LANES, Lane, lanes_of};
use super::trap::{Step, invalid};
use super::warp::{Flow, Warp};
use crate::decode::{Inst, Op};
use crate::memory::clocks::Released;
use crate::memory::shadow::Kind;

const TX_ZERO: u64 = 1 << 20;
const TX_MASK: u64 = (1 << 21) - 1;
const COUNT_MASK: u64 = (1 << 20) - 1;
const PENDING_SHIFT: u32 = 21;
const EXPECTED_SHIFT: u32 = 41;
const PHASE_SHIFT: u32 = 63;

/// An mbarrier: its block and offset.
pub(super) type Place = (usize, u32);

fn pending(word: u64) -> u64 {
    word >> PENDING_SHIFT & COUNT_MASK
}

fn expected(word: u64) -> u64 {
    word >> EXPECTED_SHIFT & COUNT_MASK
}

/// The count of bytes to come, so many more.
fn tx_after(word: u64, more: i64) -> Step<u64> {
    let bytes = ((word & TX_MASK) as i64 + more) as u64;
    if bytes > TX_MASK { invalid("an mbarrier's count of bytes is out of range") } else { Ok(bytes) }
}

impl Env<'_> {
    fn mbarrier_word(&self, (block, offset): Place) -> u64 {
        self.blocks[block].memory[offset as usize..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    }

    fn put_mbarrier(&mut self, (block, offset): Place, word: u64) {
        self.blocks[block].memory[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Where a lane's mbarrier is; it must have been initialised.
    pub(super) fn mbarrier_at(&mut self, warp: &Warp, address: u64, lane: usize) -> Step<Place> {
        let mut access = self.shared_access(warp, Kind::Atomic);
        let place = self.check_shared(warp.block, &mut access, address, 8, lane)?;
        if !self.blocks[place.0].mbarriers.contains_key(&place.1) {
            return invalid(format!("no mbarrier was initialised at shared address {:#x}", place.1));
        }
        Ok(place)
    }

    /// Changes arrivals and bytes to come; ends the phase when both are none.
    fn change(&mut self, place: Place, arrivals: u64, tx: i64) -> Step<()> {
        let word = self.mbarrier_word(place);
        if arrivals > pending(word) {
            return invalid(format!(
                "{arrivals} arrivals at an mbarrier that waits for {} more in this phase",
                pending(word)
            ));
        }
        let bytes = tx_after(word, tx)?;
        let left = pending(word) - arrivals;
        let next = word & !(TX_MASK | COUNT_MASK << PENDING_SHIFT) | bytes | left << PENDING_SHIFT;
        self.put_mbarrier(place, if left == 0 && bytes == TX_ZERO { next_phase(next) } else { next });
        self.events += 1;
        Ok(())
    }

    /// Bytes have come in, brought by a block's copy engine.
    pub(super) fn complete_tx(&mut self, place: Place, bytes: u32) -> Step<()> {
        self.release_into(place, self.blocks[place.0].engine());
        self.change(place, 0, -i64::from(bytes))
    }

    /// An arrival by a warp.
    pub(super) fn arrive(&mut self, warp: &Warp, place: Place, count: u64) -> Step<()> {
        self.release_into(place, warp.agent);
        self.change(place, count, 0)
    }

    fn release_into(&mut self, (block, offset): Place, agent: u16) {
        let block = &mut self.blocks[block];
        let released = block.mbarriers.entry(offset).or_default();
        self.clusters[block.cluster].clocks.release(agent, released);
    }
}

fn next_phase(word: u64) -> u64 {
    let expected = expected(word);
    (word >> PHASE_SHIFT ^ 1) << PHASE_SHIFT
        | expected << EXPECTED_SHIFT
        | expected << PENDING_SHIFT
        | TX_ZERO
}

/// Runs an mbarrier instruction.
pub(super) fn mbarrier(env: &mut Env, warp: &mut Warp, i: &Inst, mask: u32) -> Step<Flow> {
    if i.op == Op::MbarrierPending {
        let counts = u64::get(&warp.registers, i.a).map(|state| pending(state) as u32);
        u32::put(&mut warp.registers, i.d, counts, mask);
        return Ok(Flow::Next);
    }
    let at = addresses::<Portable>(&warp.registers, i.a, i.c != 0, i.imm);
    match i.op {
        Op::MbarrierInit => {
            let counts = u32::get(&warp.registers, i.b);
            for lane in lanes_of(mask) {
                let mut access = env.shared_access(warp, Kind::Write);
                let place = env.check_shared(warp.block, &mut access, at[lane], 8, lane)?;
                let count = u64::from(counts[lane]);
                if count == 0 || count > COUNT_MASK {
                    return invalid(format!("an mbarrier for {count} arrivals"));
                }
                env.put_mbarrier(place, count << EXPECTED_SHIFT | count << PENDING_SHIFT | TX_ZERO);
                env.blocks[place.0].mbarriers.insert(place.1, Released::default());
            }
        }
        Op::MbarrierInval => {
            for lane in lanes_of(mask) {
                let place = env.mbarrier_at(warp, at[lane], lane)?;
                env.blocks[place.0].mbarriers.remove(&place.1);
            }
        }
        Op::MbarrierWait { parity, .. } => return wait(env, warp, i, parity, at, mask),
        _ => {
            let operands = u32::get(&warp.registers, i.b);
            let mut states = [0; LANES];
            for lane in lanes_of(mask) {
                let place = env.mbarrier_at(warp, at[lane], lane)?;
                states[lane] = env.mbarrier_word(place);
                let operand = operands[lane];
                match i.op {
                    Op::MbarrierExpectTx => env.change(place, 0, i64::from(operand))?,
                    Op::MbarrierCompleteTx => env.change(place, 0, -i64::from(operand))?,
                    Op::MbarrierArrive { expect, drop, partial } => {
                        let count = if expect { 1 } else { u64::from(operand) };
                        if drop {
                            env.drop_expected(place, count)?;
                        }
                        if expect {
                            env.expect_tx(place, operand)?;
                        }
                        env.arrive(warp, place, count)?;
                        if partial && (env.mbarrier_word(place) ^ states[lane]) >> PHASE_SHIFT != 0 {
                            return invalid("an arrival of `.noComplete` that completes the phase");
                        }
                    }
                    _ => {}
                }
            }
            if let Op::MbarrierArrive { .. } = i.op {
                u64::put(&mut warp.registers, i.d, states, mask);
            }
        }
    }
    Ok(Flow::Next)
}

impl Env<'_> {
    /// So many arrivals less in the next phases.
    fn drop_expected(&mut self, place: Place, count: u64) -> Step<()> {
        let word = self.mbarrier_word(place);
        if count > expected(word) {
            return invalid(format!("{count} of an mbarrier's {} arrivals drop out", expected(word)));
        }
        self.put_mbarrier(place, word - (count << EXPECTED_SHIFT));
        Ok(())
    }

    /// Expects bytes, without a look at whether the phase ends: the arrival follows.
    fn expect_tx(&mut self, place: Place, bytes: u32) -> Step<()> {
        let word = self.mbarrier_word(place);
        self.put_mbarrier(place, word & !TX_MASK | tx_after(word, i64::from(bytes))?);
        Ok(())
    }
}

fn wait(env: &mut Env, warp: &mut Warp, i: &Inst, parity: bool, at: [u64; LANES], mask: u32) -> Step<Flow> {
    let phases = if parity {
        u32::get(&warp.registers, i.b).map(|p| u64::from(p & 1))
    } else {
        u64::get(&warp.registers, i.b).map(|state| state >> PHASE_SHIFT)
    };
    let mut complete = 0;
    let mut last = None;
    for lane in lanes_of(mask) {
        let place = env.mbarrier_at(warp, at[lane], lane)?;
        if env.mbarrier_word(place) >> PHASE_SHIFT != phases[lane] {
            complete |= 1 << lane;
            if last != Some(place) {
                let block = &env.blocks[place.0];
                if let Some(released) = block.mbarriers.get(&place.1) {
                    env.clusters[block.cluster].clocks.acquire(warp.agent, released);
                }
            }
            last = Some(place);
        }
    }
    warp.registers.put_pred(i.d, complete, mask);
    Ok(if complete == mask { Flow::Next } else { Flow::Yield })
}
