//! Inputs: edge values of each kind and size, and random ones.

use super::number::Format;

/// A generator of numbers, the same in each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.bits() >> 8) % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The value of the low bits as a signed or unsigned number.
pub fn wide(value: u64, bits: u32, signed: bool) -> i128 {
    let value = value & mask(bits);
    if signed && value >> (bits - 1) & 1 == 1 { i128::from(value) - (1 << bits) } else { i128::from(value) }
}

/// Integers of a size: limits, small ones, patterns, random ones.
pub fn integers(bits: u32) -> Vec<u64> {
    let mut random = Random::new(u64::from(bits));
    let top = 1u64 << (bits - 1);
    let mut all = vec![0, 1, 2, 3, 7, 31, 32, 33, top, top - 1, top + 1, u64::MAX, u64::MAX - 1];
    all.extend([0x5555_5555_5555_5555, 0x8000_0000, 0x1_0000]);
    // Random lengths too, so that small and large numbers meet.
    all.extend((0..8).map(|_| random.bits()));
    all.extend((0..6).map(|_| random.bits() >> random.below(60)));
    all.iter().map(|v| v & mask(bits)).collect()
}

/// Floats of a format: zeros, infinities, NaN, subnormal and extreme numbers, some near 1, random.
pub fn floats(f: Format) -> Vec<u64> {
    let (unit, sign) = (1u64 << f.shift, 1u64 << (f.bits() - 1));
    let normal = 1u64 << (f.mantissa + f.shift);
    let mut all =
        vec![0, unit, normal - unit, normal, normal + unit, f.one(), f.one() + unit, f.one() - unit];
    all.extend([f.largest(), f.nan(), f.one() + normal, f.one() - normal, f.one() + (normal >> 1)]);
    if f.infinite {
        all.push(f.infinity());
    }
    let mut random = Random::new(u64::from(f.bits()));
    let near = |random: &mut Random| {
        let spread = 1u64 << f.exponent.min(4);
        f.one() - spread / 2 * normal + random.below(spread * (normal >> f.shift)) * unit
    };
    all.extend((0..8).map(|_| near(&mut random)));
    all.extend((0..4).map(|_| (random.bits() & (sign - 1)) / unit * unit));
    let negative: Vec<u64> = all.iter().map(|v| v | sign).collect();
    all.extend(negative);
    all
}

/// Every pair of values.
pub fn pairs(a: &[u64], b: &[u64]) -> Vec<Vec<u64>> {
    a.iter().flat_map(|a| b.iter().map(|b| vec![*a, *b])).collect()
}

/// Every value alone.
pub fn singles(a: &[u64]) -> Vec<Vec<u64>> {
    a.iter().map(|a| vec![*a]).collect()
}

/// Draws `count` tuples, an element of each list.
pub fn tuples(lists: &[&[u64]], count: usize) -> Vec<Vec<u64>> {
    let mut random = Random::new(count as u64);
    (0..count).map(|_| lists.iter().map(|list| random.pick(list)).collect()).collect()
}

/// Draws triples from one list.
pub fn triples(list: &[u64], count: usize) -> Vec<Vec<u64>> {
    tuples(&[list; 3], count)
}
