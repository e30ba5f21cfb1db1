//! The end of the face in order: no new turns, then the end of running ones, then the end of streams and connections.

use crate::face::Face;
use std::time::Duration;
use tokio::sync::watch;

/// How long turns may take to record their end after their processes have ended.
const TURNS_PATIENCE: Duration = Duration::from_secs(2);

/// How long clients may take to read the end of their streams.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// What the face still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No turn begins any more; those that run go on to their end.
    Stopping,
    /// Streams end, whether their turns have ended or not, and connections with them.
    Closing,
}

/// The phase, and how many connections are open.
pub(crate) struct Shutdown {
    phase: watch::Sender<Phase>,
    connections: watch::Sender<usize>,
}

/// One open connection, for as long as it lives.
pub(crate) struct Connection<'a>(&'a watch::Sender<usize>);

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown { phase: watch::Sender::new(Phase::Serving), connections: watch::Sender::new(0) }
    }
}

impl Shutdown {
    /// A phase never goes back.
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

/// Returns when streams and connections are to end.
pub(crate) async fn closes(phase: &mut watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase == Phase::Closing).await.is_err() {
        std::future::pending().await
    }
}

impl Face {
    /// The daemon stops: no turn begins any more. Messages that wait stay for the next daemon.
    pub fn end(&self) {
        self.shutdown.enter(Phase::Stopping);
    }

    /// Waits until each running turn has recorded its terminal event. To be called after the processes have ended.
    pub async fn end_turns(&self) {
        let all_end = async {
            for session in self.running() {
                let mut changes = session.changes();
                let _ended = changes.wait_for(|_| !session.state().is_driven).await;
            }
        };
        if tokio::time::timeout(TURNS_PATIENCE, all_end).await.is_err() {
            tracing::warn!("turns have not ended in time; the next daemon ends them");
        }
    }

    /// Ends every stream with a terminal event and closes the connections.
    pub async fn close(&self) {
        self.shutdown.enter(Phase::Closing);
        let mut connections = self.shutdown.connections.subscribe();
        let all_closed = connections.wait_for(|open| *open == 0);
        if tokio::time::timeout(CLOSE_PATIENCE, all_closed).await.is_err() {
            tracing::debug!("a client has not read the end of its stream in time");
        }
    }
}
