//! What a warp's lanes do at once, and copies: many words for one history.

use super::{Access, Clocks, Conflict, History, Kind, Shadow, Stamp, UNWRITTEN};

impl Shadow {
    /// Notes a read by the lanes of a mask, or that they start a copy, which has written nothing yet: of `N` words
    /// each, at offsets that are multiples of that many and lie inside.
    ///
    /// # Errors
    /// The lane whose access is wrong, and what is wrong with it.
    #[inline(always)]
    pub(crate) fn access_lanes<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offsets: &[u64; 32],
        mask: u32,
    ) -> Result<(), (usize, Conflict)> {
        debug_assert!(
            access.of_copy || access.stamp.kind == Kind::Read,
            "lanes that write are noted one by one"
        );
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let words = &mut self.words.as_chunks_mut::<N>().0[offsets[lane] as usize / (4 * N)];
            if words.iter().fold(0, |different, word| different | (word ^ access.from)) == 0 {
                *words = [access.to; N];
            } else if let Err(conflict) =
                self.access_anew::<N>(access, clocks, offsets[lane] as u32, lane as u8)
            {
                return Err((lane, conflict));
            }
        }
        Ok(())
    }

    /// Notes which lanes wrote `N` words each.
    #[inline(always)]
    fn wrote<const N: usize>(&mut self, offset: impl Fn(usize) -> usize, mut mask: u32) {
        let lanes = self.lanes.as_chunks_mut::<4>().0;
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lanes.as_chunks_mut::<N>().0[offset(lane) / (4 * N)] = [[lane as u8; 4]; N];
        }
    }

    /// Bytes that an asynchronous copy, started at `pc`, will write: until then they are nobody's.
    #[inline(always)]
    pub(crate) fn start_copy(&mut self, offset: u32, bytes: u32, pc: u32) {
        if self.last_started.0 != pc || self.last_started.1 == UNWRITTEN {
            let number = self.intern(&History::pending(pc));
            self.last_started = (pc, number);
        }
        self.set(offset as usize..(offset + bytes) as usize, self.last_started.1);
    }

    /// A copy has written its bytes: they count as written by that access.
    #[inline(always)]
    pub(crate) fn finish_copy(&mut self, offset: u32, bytes: u32, by: &Access, lane: u8) {
        let number = self.finished(by);
        let range = offset as usize..(offset + bytes) as usize;
        self.lanes[range.clone()].fill(lane);
        self.set(range, number);
    }

    /// [`Self::finish_copy`] of `N` words by each lane of a mask.
    #[inline(always)]
    pub(crate) fn finish_copies<const N: usize>(&mut self, offsets: &[u32; 32], mask: u32, by: &Access) {
        let number = self.finished(by);
        let words = self.words.as_chunks_mut::<N>().0;
        let mut left = mask;
        while left != 0 {
            words[offsets[left.trailing_zeros() as usize] as usize / (4 * N)] = [number; N];
            left &= left - 1;
        }
        self.wrote::<N>(|lane| offsets[lane] as usize, mask);
    }

    /// Number of the history of bytes that a copy has just written.
    fn finished(&mut self, by: &Access) -> u32 {
        let writer = Stamp { kind: Kind::Write, ..by.stamp };
        let words = writer.pc ^ u32::from(writer.agent) << 16 ^ writer.time.rotate_left(24);
        let place = words.wrapping_mul(0x9e37_79b9) as usize >> 25;
        let (last, number) = self.last_finished[place];
        if last == Some(writer) {
            return number;
        }
        let number = self.intern(&History::written(writer));
        self.last_finished[place] = (Some(writer), number);
        number
    }
}
