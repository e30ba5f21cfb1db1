//! Signal handling of an attached client.

use outpost_sys::signal::{self, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal as listen};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalEvent {
    Signal(Signal),
    Resized,
}

pub(super) struct Signals {
    interrupt: Option<Stream>,
    quit: Option<Stream>,
    terminate: Option<Stream>,
    hangup: Option<Stream>,
    resized: Stream,
}

impl Signals {
    /// Signals that the parent process set to ignored stay ignored.
    pub(super) fn new() -> std::io::Result<Signals> {
        let wanted = |number, kind| match signal::is_ignored(number) {
            true => Ok(None),
            false => listen(kind).map(Some),
        };
        Ok(Signals {
            interrupt: wanted(Signal::INT, SignalKind::interrupt())?,
            quit: wanted(Signal::QUIT, SignalKind::quit())?,
            terminate: wanted(Signal::TERM, SignalKind::terminate())?,
            hangup: wanted(Signal::HUP, SignalKind::hangup())?,
            resized: listen(SignalKind::window_change())?,
        })
    }

    /// The next signal. Cancel-safe.
    pub(super) async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            () = next(&mut self.interrupt) => SignalEvent::Signal(Signal::INT),
            () = next(&mut self.quit) => SignalEvent::Signal(Signal::QUIT),
            () = next(&mut self.terminate) => SignalEvent::Signal(Signal::TERM),
            () = next(&mut self.hangup) => SignalEvent::Signal(Signal::HUP),
            _ = self.resized.recv() => SignalEvent::Resized,
        }
    }
}

async fn next(stream: &mut Option<Stream>) {
    match stream {
        Some(stream) => {
            stream.recv().await;
        }
        None => std::future::pending().await,
    }
}
