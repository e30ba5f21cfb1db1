//! Orderly shutdown of the face: no new turns, then the end of running turns, then the end of streams and connections.

use crate::face::Face;
use std::time::Duration;
use tokio::sync::watch;

/// How long turns may take to write their terminal event after their processes have exited.
const TURNS_TIMEOUT: Duration = Duration::from_secs(2);

/// How long clients may take to read the end of their streams.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The phases of the shutdown, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No turn starts. Running turns continue.
    Stopping,
    /// Streams and connections end, also those of turns that still run.
    Closing,
}

/// The current phase, and the number of open connections.
pub(crate) struct Shutdown {
    phase: watch::Sender<Phase>,
    connections: watch::Sender<usize>,
}

/// Counts one connection as open until it is dropped.
pub(crate) struct Connection<'a>(&'a watch::Sender<usize>);

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown { phase: watch::Sender::new(Phase::Serving), connections: watch::Sender::new(0) }
    }
}

impl Shutdown {
    /// Phases never go back.
    fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let is_next = *now < phase;
            *now = phase.max(*now);
            is_next
        });
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.phase.borrow() >= Phase::Stopping
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn connected(&self) -> Connection<'_> {
        self.connections.send_modify(|open| *open += 1);
        Connection(&self.connections)
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// Returns when the phase is [`Phase::Closing`].
pub(crate) async fn closing(phase: &mut watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase == Phase::Closing).await.is_err() {
        std::future::pending().await
    }
}

impl Face {
    /// Stops starting turns. Queued messages stay for the next daemon.
    pub fn end(&self) {
        self.shutdown.enter(Phase::Stopping);
    }

    /// Waits until each running turn has written its terminal event. Call it after the processes have exited.
    pub async fn end_turns(&self) {
        let all_end = async {
            for session in self.running() {
                let mut changes = session.changes();
                let _ended = changes.wait_for(|_| !session.state().has_runner).await;
            }
        };
        if tokio::time::timeout(TURNS_TIMEOUT, all_end).await.is_err() {
            tracing::warn!("turns did not finish in time; the next daemon finishes them");
        }
    }

    /// Ends every stream with a terminal event and closes the connections.
    pub async fn close(&self) {
        self.shutdown.enter(Phase::Closing);
        let mut connections = self.shutdown.connections.subscribe();
        let all_closed = connections.wait_for(|open| *open == 0);
        if tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await.is_err() {
            tracing::debug!("a client did not read the end of its stream in time");
        }
    }
}
