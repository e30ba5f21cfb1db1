//! A compact stack of the open arrays and objects, for the validator.

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Array,
    Object,
}

/// One bit per open container, the innermost lowest. Up to 64 levels need no allocation.
#[derive(Default)]
pub(super) struct Nesting {
    pub(super) depth: usize,
    /// The innermost containers, at most 64.
    bits: u64,
    outer: Vec<u64>,
}

impl Nesting {
    pub(super) fn push(&mut self, container: Container) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(container == Container::Object);
        self.depth += 1;
    }

    pub(super) fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.bits >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.bits = self.outer.pop().unwrap_or_default();
        }
    }

    pub(super) fn last(&self) -> Option<Container> {
        let innermost = if self.bits & 1 == 1 { Container::Object } else { Container::Array };
        (self.depth > 0).then_some(innermost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_container_is_known_at_any_depth() {
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
                        let container = if number & 1 == 1 { Container::Object } else { Container::Array };
                        open.push(container);
                        expected.push(container);
                    }
                }
                assert!(open.last() == expected.last().copied() && open.depth == expected.len());
            }
        }
    }
}
