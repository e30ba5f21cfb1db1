//! Signals that we get while a process is watched.

use outpost_sys::signal::{self, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal as listen};

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
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
    /// Those that whoever started us wants ignored are.
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

    /// The next one. Safe to cancel.
    pub(super) async fn next(&mut self) -> Came {
        tokio::select! {
            () = next(&mut self.interrupt) => Came::Signal(Signal::INT),
            () = next(&mut self.quit) => Came::Signal(Signal::QUIT),
            () = next(&mut self.terminate) => Came::Signal(Signal::TERM),
            () = next(&mut self.hangup) => Came::Signal(Signal::HUP),
            _ = self.resized.recv() => Came::Resized,
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
