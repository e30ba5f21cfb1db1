//! Requests of an attached client that the daemon has not confirmed. They are sent again after a reconnect.

use outpost_control::client::AsyncClient;
use outpost_control::wire::{self, TerminalSize};
use outpost_sys::signal::Signal;
use std::collections::VecDeque;

/// Queued signals; further ones are dropped.
const SIGNALS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Unconfirmed {
    /// Input that the daemon has not accepted yet.
    pub(super) chunk: Option<Vec<u8>>,
    pub(super) close_stdin: bool,
    /// Each with whether it is for the process group.
    signals: VecDeque<(Signal, bool)>,
    /// Removed when sent: a reconnect queues the current size anyway.
    sizes: VecDeque<TerminalSize>,
    /// Requests without a reply on this connection, by id.
    in_flight: Vec<(u64, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Input,
    Close,
    Signal,
    Size,
}

/// A request that got its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completed {
    Input { bytes: u64 },
    Close,
    Other,
}

impl Unconfirmed {
    fn is_in_flight(&self, kind: Kind) -> bool {
        self.in_flight.iter().any(|(_, in_flight)| *in_flight == kind)
    }

    pub(super) fn signal(&mut self, signal: Signal, group: bool) {
        if self.signals.len() < SIGNALS_MAX {
            self.signals.push_back((signal, group));
        }
    }

    /// Replaces a size that was not sent yet.
    pub(super) fn resize(&mut self, size: TerminalSize) {
        self.sizes.clear();
        self.sizes.push_back(size);
    }

    /// Sends a size with one row less first, so that the size changes and the process gets SIGWINCH.
    pub(super) fn force_resize(&mut self) {
        if let Some(TerminalSize { rows, cols }) = self.sizes.front().copied() {
            self.sizes.push_front(TerminalSize { rows: rows.saturating_sub(1).max(1), cols });
        }
    }

    /// Drops input and sizes, because another terminal holds the input.
    pub(super) fn discard_input(&mut self) {
        self.chunk = None;
        self.close_stdin = false;
        self.sizes.clear();
    }

    /// Requests in flight get no reply any more.
    pub(super) fn connection_lost(&mut self) {
        self.in_flight.clear();
    }

    /// Sends the requests that are not in flight on this connection, at most one of each kind.
    pub(super) async fn send(
        &mut self,
        client: &mut AsyncClient,
        process: &str,
        offset: Option<u64>,
    ) -> std::io::Result<()> {
        let process = || process.to_owned();
        if !self.is_in_flight(Kind::Size)
            && let Some(size) = self.sizes.pop_front()
        {
            let params = wire::Resize { process: process(), size };
            self.in_flight.push((client.send("resize", &params).await?, Kind::Size));
        }
        if let (Some(chunk), false) = (&self.chunk, self.is_in_flight(Kind::Input)) {
            let params = wire::Stdin { process: process(), offset, data: wire::to_base64(chunk) };
            self.in_flight.push((client.send("stdin", &params).await?, Kind::Input));
        }
        if self.close_stdin && !self.is_in_flight(Kind::Close) {
            let params = wire::ProcessRef { process: process() };
            self.in_flight.push((client.send("closeStdin", &params).await?, Kind::Close));
        }
        if let (Some((signal, group)), false) = (self.signals.front(), self.is_in_flight(Kind::Signal)) {
            let signal = signal.number().to_string();
            let params = wire::Signal { process: process(), signal, group: *group };
            self.in_flight.push((client.send("signal", &params).await?, Kind::Signal));
        }
        Ok(())
    }

    /// Takes a reply. `None` for the reply to another request.
    pub(super) fn complete(&mut self, id: u64) -> Option<Completed> {
        let at = self.in_flight.iter().position(|(in_flight, _)| *in_flight == id)?;
        Some(match self.in_flight.swap_remove(at).1 {
            Kind::Input => Completed::Input { bytes: self.chunk.take().unwrap_or_default().len() as u64 },
            Kind::Close => {
                self.close_stdin = false;
                Completed::Close
            }
            Kind::Signal => {
                self.signals.pop_front();
                Completed::Other
            }
            Kind::Size => Completed::Other,
        })
    }
}
