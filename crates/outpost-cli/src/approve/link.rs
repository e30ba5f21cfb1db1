//! The connection of `outpost approve` to the daemon: a task that sends requests, forwards events and reconnects.

use super::app::{DaemonRequest, LinkEvent};
use crate::approver::{Approver, Connected, unexpected};
use outpost_approvals::Error;
use outpost_approvals::wire::{Request, ServerMessage};
use std::time::Duration;
use tokio::sync::mpsc;

/// Back-off between connection attempts.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Length of each queue.
const QUEUE_MAX: usize = 64;

pub(super) struct Link {
    pub(super) requests: mpsc::Sender<DaemonRequest>,
    pub(super) events: mpsc::Receiver<LinkEvent>,
}

impl Link {
    /// Starts the task with an existing connection.
    pub(super) fn start(approver: Approver, connected: Connected) -> Link {
        let (sender, requests) = mpsc::channel(QUEUE_MAX);
        let (events, receiver) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(Reconnector { approver, requests, events }.run(connected));
        Link { requests: sender, events: receiver }
    }
}

struct Reconnector {
    approver: Approver,
    requests: mpsc::Receiver<DaemonRequest>,
    events: mpsc::Sender<LinkEvent>,
}

/// The screen dropped its end of the link.
struct Detached;

impl Reconnector {
    /// Runs until the screen drops the link or the daemon refuses a reconnect.
    async fn run(mut self, connected: Connected) {
        let mut connected = connected;
        while let Ok(why) = self.serve_connection(connected).await {
            if self.events.send(LinkEvent::Lost { why }).await.is_err() {
                return;
            }
            connected = match self.reconnect().await {
                Ok(again) => again,
                Err(why) => {
                    let _detached = self.events.send(LinkEvent::Closed { why }).await;
                    return;
                }
            };
            // Drop queued requests: they refer to questions of the previous connection.
            while self.requests.try_recv().is_ok() {}
        }
    }

    /// Serves one connection; returns why it was lost.
    async fn serve_connection(&mut self, mut connected: Connected) -> Result<String, Detached> {
        let name = connected.hello.name.clone();
        let questions = match connected.client.ask(&Request::Watch).await {
            Ok(ServerMessage::Questions { questions, .. }) => questions,
            Ok(other) => return Ok(unexpected(&other)),
            Err(error) => return Ok(error.to_string()),
        };
        self.emit(LinkEvent::Connected { name, questions }).await?;
        loop {
            tokio::select! {
                request = self.requests.recv() => {
                    let done = match request.ok_or(Detached)? {
                        DaemonRequest::Ask(request) => connected.client.ask(&request).await.map(Some),
                        // The outcome arrives as an event.
                        DaemonRequest::Decide { question, decision } => {
                            self.approver.decide(&mut connected, &question, decision).await.map(|()| None)
                        }
                    };
                    match done {
                        Ok(Some(answer)) => self.emit(LinkEvent::Reply(answer)).await?,
                        Ok(None) => {}
                        Err(error @ (Error::Refused(_) | Error::Key(_) | Error::File { .. })) => {
                            self.emit(LinkEvent::Failed { why: error.to_string() }).await?;
                        }
                        Err(error) => return Ok(error.to_string()),
                    }
                }
                event = connected.client.event() => match event {
                    Ok(event) => self.emit(LinkEvent::Event(event)).await?,
                    Err(error) => return Ok(error.to_string()),
                },
            }
        }
    }

    async fn emit(&self, event: LinkEvent) -> Result<(), Detached> {
        self.events.send(event).await.map_err(|_| Detached)
    }

    /// Retries an unreachable daemon; a daemon that refuses us is an error.
    async fn reconnect(&self) -> Result<Connected, String> {
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            match self.approver.try_connect().await {
                Ok(connected) => return Ok(connected),
                Err(Error::Refused(why) | Error::Key(why)) => return Err(why),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }
}
