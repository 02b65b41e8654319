//! Random numbers: SplitMix64 (Steele, Lea, Flood 2014). Small, fast, and the same on every machine.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed; streams of one seed differ by `stream`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.bits() ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
        random.bits();
        random
    }

    /// The next 64 bits.
    #[inline(always)]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// A number below `n`, which is not 0; the bias of 2^-32 does no harm here.
    #[inline(always)]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// A number above 0, at most 1.
    #[inline(always)]
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Mixes 64 bits: the result looks unrelated to `bits`, and different `bits` give different
/// results.
#[inline(always)]
pub fn mixed(bits: u64) -> u64 {
    let z = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
