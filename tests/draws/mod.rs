//! Pseudo-random numbers of a seed (Marsaglia 2003, xorshift).

pub struct Draws(pub u64);

impl Draws {
    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
