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
            self.access_row::<N>(access, clocks, offsets[lane], lane)?;
        }
        Ok(())
    }

    /// The same of the first lanes, which read.
    #[inline(always)]
    pub(crate) fn read_rows<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offsets: &[u64],
    ) -> Result<(), (usize, Conflict)> {
        let Some((first, rest)) = offsets.split_first() else { return Ok(()) };
        self.access_row::<N>(access, clocks, *first, 0)?;
        // Mostly all have one history. Unlike copies, rows may be the same: to read one twice is to read it once.
        let rows = self.words.as_chunks_mut::<N>().0;
        let mut different = [0; N];
        for offset in rest {
            let row = &rows[*offset as usize / (4 * N)];
            different = std::array::from_fn(|n| different[n] | (row[n] ^ access.from));
        }
        if different == [0; N] {
            for offset in rest {
                rows[*offset as usize / (4 * N)] = [access.to; N];
            }
            return Ok(());
        }
        (1..).zip(rest).try_for_each(|(lane, offset)| self.access_row::<N>(access, clocks, *offset, lane))
    }

    #[inline(always)]
    fn access_row<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u64,
        lane: usize,
    ) -> Result<(), (usize, Conflict)> {
        let words = &mut self.words.as_chunks_mut::<N>().0[offset as usize / (4 * N)];
        if words.iter().fold(0, |different, word| different | (word ^ access.from)) == 0 {
            *words = [access.to; N];
            return Ok(());
        }
        self.access_anew::<N>(access, clocks, offset as u32, lane as u8).map_err(|conflict| (lane, conflict))
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
    pub(crate) fn finish_copies<const N: usize>(&mut self, offsets: &[u32; 32], mut mask: u32, by: &Access) {
        let number = self.finished(by);
        let words = self.words.as_chunks_mut::<N>().0;
        let lanes = self.lanes.as_chunks_mut::<4>().0.as_chunks_mut::<N>().0;
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let row = offsets[lane] as usize / (4 * N);
            words[row] = [number; N];
            lanes[row] = [[lane as u8; 4]; N];
        }
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
