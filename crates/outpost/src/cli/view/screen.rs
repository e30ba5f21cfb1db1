//! What a process has drawn before we came, as a human would see it now. Not by writing it all again: the questions in it
//! would be answered by our terminal a second time, and the answers taken for keys.

use super::modes::Modes;
use outpost_control::wire::TerminalSize;
use std::num::NonZeroU16;
use vt100::Parser;

pub(super) struct Replay {
    /// The last sequence number that belongs to it.
    pub(super) until: u64,
    screen: Parser,
    modes: Modes,
}

impl Replay {
    pub(super) fn new(until: u64, size: TerminalSize) -> Replay {
        let some = |number: u16| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
        Replay { until, screen: Parser::new(some(size.rows), some(size.cols), 0), modes: Modes::default() }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.screen.process(bytes);
        self.modes.follow(bytes);
    }

    /// What draws it.
    pub(super) fn draw(&self) -> Vec<u8> {
        let mut text = self.modes.enter();
        text.extend_from_slice(self.screen.screen().contents_formatted().as_bytes());
        text.extend_from_slice(self.modes.unfinished());
        text
    }
}
