//! Which arrays and objects are open at a place in a text.

/// What is open around the place where the checker stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    Array,
    Object,
}

/// All that is open, the innermost last: a bit each, so that hardly any text takes memory for it.
#[derive(Default)]
pub(super) struct Nesting {
    pub(super) depth: usize,
    /// The innermost up to 64.
    bits: u64,
    outer: Vec<u64>,
}

impl Nesting {
    pub(super) fn push(&mut self, what: Open) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(what == Open::Object);
        self.depth += 1;
    }

    pub(super) fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.bits >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.bits = self.outer.pop().unwrap_or_default();
        }
    }

    pub(super) fn last(&self) -> Option<Open> {
        let innermost = if self.bits & 1 == 1 { Open::Object } else { Open::Array };
        (self.depth > 0).then_some(innermost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_known_at_any_depth() {
        let mut state = 1u64;
        for _ in 0..200 {
            let (mut open, mut expected) = (Nesting::default(), Vec::new());
            for _ in 0..1000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match state >> 61 {
                    0..=2 => {
                        open.pop();
                        expected.pop();
                    }
                    number => {
                        let what = if number & 1 == 1 { Open::Object } else { Open::Array };
                        open.push(what);
                        expected.push(what);
                    }
                }
                assert!(open.last() == expected.last().copied() && open.depth == expected.len());
            }
        }
    }
}
