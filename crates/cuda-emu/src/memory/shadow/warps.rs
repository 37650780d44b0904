//! What a warp's lanes do at once, and copies: many words for one history.

use super::{Access, Clocks, Conflict, History, Kind, Move, NO_NUMBER, SPLIT, Shadow, Stamp, UNWRITTEN};

/// Whether the `N` words of each of four lanes follow those of the one before.
#[inline(always)]
pub(crate) fn follow<const N: usize>(offsets: &[u32; 4]) -> bool {
    let [a, b, c, d] = *offsets;
    let bytes = 4 * N as u32;
    (b.wrapping_sub(a), c.wrapping_sub(a), d.wrapping_sub(a)) == (bytes, 2 * bytes, 3 * bytes)
}

/// Of words, those of four lanes that follow each other, `N` of each, from an offset on that is a multiple of that.
#[inline(always)]
pub(crate) fn rows_at<const N: usize, T>(words: &mut [T], offset: u32) -> Option<&mut [[T; N]; 4]> {
    words.as_chunks_mut::<N>().0.get_mut(offset as usize / (4 * N)..)?.first_chunk_mut()
}

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
        offsets: &[u32; 32],
        mask: u32,
    ) -> Result<(), (usize, Conflict)> {
        debug_assert!(
            access.of_copy || access.stamp.kind == Kind::Read,
            "lanes that write are noted one by one"
        );
        self.look(access, offsets[mask.trailing_zeros() as usize & 31]);
        let rows = mask.trailing_ones();
        if access.stamp.kind == Kind::Read && rows == mask.count_ones() && rows.is_multiple_of(8) {
            return self.read_rows::<N>(access, clocks, &offsets[..rows as usize]);
        }
        for (group, offsets) in offsets.as_chunks::<4>().0.iter().enumerate() {
            let mut lanes = mask >> (4 * group) & 15;
            if lanes == 15
                && follow::<N>(offsets)
                && let Some(rows) = rows_at::<N, _>(&mut self.words, offsets[0])
                && rows.as_flattened().iter().fold(0, |different, word| different | (word ^ access.from)) == 0
            {
                *rows = [[access.to; N]; 4];
                continue;
            }
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                self.access_row::<N>(access, clocks, offsets[lane], 4 * group + lane)?;
            }
        }
        Ok(())
    }

    /// An instruction's first look, at a word: mostly what it does to such a history is known.
    #[inline(always)]
    pub(super) fn look(&mut self, access: &mut Access, offset: u32) {
        if access.from == NO_NUMBER
            && let Some(&first) = self.words.get(offset as usize / 4)
            && first != SPLIT
            && let Some(Move { to, conflict: None, own_lanes: false }) = self.histories.recall(first, access)
        {
            (access.from, access.to) = (first, to);
        }
    }

    /// The same of the first lanes, which read, in eights.
    #[inline(always)]
    fn read_rows<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offsets: &[u32],
    ) -> Result<(), (usize, Conflict)> {
        for (group, offsets) in offsets.as_chunks::<8>().0.iter().enumerate() {
            // Mostly all have one history. Unlike copies, rows may be the same: to read one twice is to read it once.
            let rows = self.words.as_chunks_mut::<N>().0;
            let mut different = [0; N];
            for offset in offsets {
                let row = &rows[*offset as usize / (4 * N)];
                different = std::array::from_fn(|n| different[n] | (row[n] ^ access.from));
            }
            if different == [0; N] {
                for offset in offsets {
                    rows[*offset as usize / (4 * N)] = [access.to; N];
                }
                continue;
            }
            for (lane, offset) in (8 * group..).zip(offsets) {
                self.access_row::<N>(access, clocks, *offset, lane)?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn access_row<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        lane: usize,
    ) -> Result<(), (usize, Conflict)> {
        let words = &mut self.words.as_chunks_mut::<N>().0[offset as usize / (4 * N)];
        if words.iter().fold(0, |different, word| different | (word ^ access.from)) == 0 {
            *words = [access.to; N];
            return Ok(());
        }
        self.access_anew::<N>(access, clocks, offset, lane as u8).map_err(|conflict| (lane, conflict))
    }

    /// Notes the same access as before to the bytes that follow, `each` by the next lanes after
    /// lane 0, if they have the history that it met last; gives false, and notes nothing, if not.
    #[inline(always)]
    pub(crate) fn repeat(&mut self, access: &Access, offset: u32, bytes: u32, each: u32) -> bool {
        let range = offset as usize..(offset + bytes) as usize;
        // Elements of less than a word leave a part of one at the start.
        let aligned = range.start.next_multiple_of(4).min(range.end);
        let words = &self.words[aligned / 4..range.end.div_ceil(4)];
        let different = words.iter().fold(0, |different, word| different | (word ^ access.from));
        if different != 0 || (range.start..aligned).any(|at| self.number_at(at) != access.from) {
            return false;
        }
        self.set(range.start..aligned, access.to);
        self.set(aligned..range.end, access.to);
        if access.stamp.kind == Kind::Write {
            if each.is_multiple_of(4) {
                let words_each = (each / 4).trailing_zeros();
                for (n, writer) in self.writers[range.start / 4..range.end / 4].iter_mut().enumerate() {
                    *writer = 1 + (n >> words_each) as u8;
                }
            } else {
                let starts = range.step_by(each as usize);
                (1..).zip(starts).for_each(|(lane, at)| self.set_writer(at..at + each as usize, lane));
            }
        }
        true
    }

    /// Whether the same access by other lanes to the same bytes is as it was by the first.
    pub(crate) fn is_for_all_lanes(access: &Access) -> bool {
        access.stamp.kind == Kind::Read && !access.own_lanes
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
        self.set_writer(range.clone(), lane);
        self.set(range, number);
    }

    /// [`Self::finish_copy`] of `N` words by each lane of a mask.
    #[inline(always)]
    pub(crate) fn finish_copies<const N: usize>(&mut self, offsets: &[u32; 32], mask: u32, by: &Access) {
        let number = self.finished(by);
        let (words, writers) = (&mut self.words, &mut self.writers);
        for (group, offsets) in offsets.as_chunks::<4>().0.iter().enumerate() {
            let (mut lanes, first) = (mask >> (4 * group) & 15, 4 * group as u8);
            if lanes == 15
                && follow::<N>(offsets)
                && let Some(words) = rows_at::<N, _>(words, offsets[0])
                && let Some(writers) = rows_at::<N, _>(writers, offsets[0])
            {
                *words = [[number; N]; 4];
                for (lane, writer) in (first..).zip(writers) {
                    *writer = [lane; N];
                }
                continue;
            }
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                let row = offsets[lane] as usize / (4 * N);
                words.as_chunks_mut::<N>().0[row] = [number; N];
                writers.as_chunks_mut::<N>().0[row] = [first + lane as u8; N];
            }
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
