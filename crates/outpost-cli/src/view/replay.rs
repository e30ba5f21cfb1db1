//! Screen replay: renders earlier terminal output in memory and draws the resulting screen.
//!
//! The output itself is not repeated, because our terminal would answer the queries in it and the process would read the
//! answers as keys.

use super::modes::Modes;
use outpost_control::wire::TerminalSize;
use std::num::NonZeroU16;
use vt100::Parser;

pub(super) struct Replay {
    /// Sequence number of the last frame to replay.
    pub(super) until: u64,
    screen: Parser,
    modes: Modes,
}

impl Replay {
    pub(super) fn new(until: u64, size: TerminalSize) -> Replay {
        let non_zero = |number: u16| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
        let screen = Parser::new(non_zero(size.rows), non_zero(size.cols), 0);
        Replay { until, screen, modes: Modes::default() }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.screen.process(bytes);
        self.modes.track(bytes);
    }

    /// The control sequences that draw the screen.
    pub(super) fn draw(&self) -> Vec<u8> {
        let mut text = self.modes.enter();
        text.extend_from_slice(self.screen.screen().contents_formatted().as_bytes());
        text.extend_from_slice(self.modes.unfinished());
        text
    }
}
