//! Signal handling of full-screen commands.

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Signals {
    resized: Signal,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, String> {
        let catch = |kind| signal(kind).map_err(|error| format!("cannot install signal handlers: {error}"));
        Ok(Signals {
            resized: catch(SignalKind::window_change())?,
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// The number of a terminating signal; `None` for a resize.
    pub(crate) async fn next(&mut self) -> Option<u8> {
        tokio::select! {
            _ = self.resized.recv() => None,
            _ = self.interrupt.recv() => Some(2),
            _ = self.terminate.recv() => Some(15),
            _ = self.hangup.recv() => Some(1),
        }
    }
}
