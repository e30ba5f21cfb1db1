//! What a view wants of the daemon and has not got yet. It is asked for again on the next connection.

use outpost_control::client::Link;
use outpost_control::wire::{self, TerminalSize};
use outpost_sys::signal::Signal;
use std::collections::VecDeque;

/// Signals that may wait for the daemon; nobody presses more.
const SIGNALS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Wishes {
    /// Input.
    pub(super) piece: Option<Vec<u8>>,
    /// The end of the input.
    pub(super) close: bool,
    /// With whether they are for the group.
    signals: VecDeque<(Signal, bool)>,
    /// Ours by the next connection, so they are not asked for again.
    sizes: VecDeque<TerminalSize>,
    /// Under which number it was asked for on this connection.
    asked: Vec<(u64, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Piece,
    Close,
    Signal,
    Size,
}

/// A wish that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Piece { bytes: u64 },
    Close,
    Other,
}

impl Wishes {
    fn is_asked(&self, kind: Kind) -> bool {
        self.asked.iter().any(|(_, asked)| *asked == kind)
    }

    pub(super) fn signal(&mut self, signal: Signal, group: bool) {
        if self.signals.len() < SIGNALS_MAX {
            self.signals.push_back((signal, group));
        }
    }

    /// Only the last counts.
    pub(super) fn size(&mut self, size: TerminalSize) {
        self.sizes.clear();
        self.sizes.push_back(size);
    }

    /// One row less first, so that the size changes whatever it was.
    pub(super) fn another_size_before(&mut self) {
        if let Some(TerminalSize { rows, cols }) = self.sizes.front().copied() {
            self.sizes.push_front(TerminalSize { rows: rows.saturating_sub(1).max(1), cols });
        }
    }

    /// The input is another's.
    pub(super) fn no_input(&mut self) {
        self.piece = None;
        self.close = false;
        self.sizes.clear();
    }

    /// Nobody will answer what was asked for.
    pub(super) fn lost(&mut self) {
        self.asked.clear();
    }

    /// Asks for what has not been asked for on this connection, one of each kind at a time.
    pub(super) async fn ask(
        &mut self,
        link: &mut Link,
        process: &str,
        offset: Option<u64>,
    ) -> std::io::Result<()> {
        let process = || process.to_owned();
        if !self.is_asked(Kind::Size)
            && let Some(size) = self.sizes.pop_front()
        {
            let params = wire::Resize { process: process(), size };
            self.asked.push((link.send("resize", &params).await?, Kind::Size));
        }
        if let (Some(piece), false) = (&self.piece, self.is_asked(Kind::Piece)) {
            let params = wire::Stdin { process: process(), offset, data: wire::encoded(piece) };
            self.asked.push((link.send("stdin", &params).await?, Kind::Piece));
        }
        if self.close && !self.is_asked(Kind::Close) {
            let params = wire::Which { process: process() };
            self.asked.push((link.send("closeStdin", &params).await?, Kind::Close));
        }
        if let (Some((signal, group)), false) = (self.signals.front(), self.is_asked(Kind::Signal)) {
            let signal = signal.number().to_string();
            let params = wire::Signal { process: process(), signal, group: *group };
            self.asked.push((link.send("signal", &params).await?, Kind::Signal));
        }
        Ok(())
    }

    /// None for an answer to something else.
    pub(super) fn answered(&mut self, id: u64) -> Option<Wish> {
        let at = self.asked.iter().position(|(asked, _)| *asked == id)?;
        Some(match self.asked.swap_remove(at).1 {
            Kind::Piece => Wish::Piece { bytes: self.piece.take().unwrap_or_default().len() as u64 },
            Kind::Close => {
                self.close = false;
                Wish::Close
            }
            Kind::Signal => {
                self.signals.pop_front();
                Wish::Other
            }
            Kind::Size => Wish::Other,
        })
    }
}
