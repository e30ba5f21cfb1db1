//! Bytes that look random and are the same for the same seed.

/// An endless sequence of bytes, and of random decisions.
#[derive(Clone, Debug)]
pub struct Noise {
    state: u64,
}

impl Noise {
    pub fn new(seed: u64) -> Noise {
        // Zero would stay zero, and near seeds shall differ at once.
        let mut noise = Noise { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 };
        for _ in 0..4 {
            noise.number();
        }
        noise
    }

    pub fn number(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// From 0 to `end`, without it.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// A letter: it passes a terminal unchanged.
    pub fn letter(&mut self) -> u8 {
        b'a' + (self.number() >> 33) as u8 % 26
    }

    pub fn letters(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.letter()).collect()
    }
}
