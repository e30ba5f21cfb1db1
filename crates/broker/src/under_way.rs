//! A request that is in the books: waits for its answer, runs, ends, and whoever asked is told.

use crate::order::Order;
use crate::peer_watch;
use crate::records::{self, Authority, Entry, Why};
use crate::run;
use crate::server::{Notice, Server};
use crate::wire::{Resolved, Response, Status};
use outpost_approvals::{Outcome, display};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;

/// A request that is in the books.
pub(crate) struct UnderWay {
    pub(crate) entry: Entry,
    pub(crate) order: Order,
}

impl UnderWay {
    /// Waits for a human, for the time to run out, or for the client to leave. None when it has.
    pub(crate) async fn wait(
        mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        mut asked: outpost_approvals::Asked,
    ) -> Option<Response> {
        let queue = server.approvals.queue();
        let outcome = tokio::select! {
            outcome = asked.outcome() => match outcome {
                Some(outcome) => outcome,
                None => queue.expire(asked.id()).await,
            },
            () = peer_watch::gone(stream) => queue.withdraw(asked.id()).await,
        };
        self.settled(server, stream, outcome).await
    }

    /// Draws the consequences of an answer.
    pub(crate) async fn settled(
        &mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        outcome: Outcome,
    ) -> Option<Response> {
        let id = self.order.request.id.clone();
        let (decision, by, proof) = match outcome {
            Outcome::Decided { decision, by, proof } => (decision, by, proof),
            Outcome::Expired => {
                end(server, &self.entry, json!({ "status": "timeout" })).await;
                return Some(Response::new(&id, Status::Timeout));
            }
            Outcome::Unanswerable { why } => {
                let message = format!("prompt error: {why}");
                end(server, &self.entry, json!({ "status": "error", "message": message })).await;
                return Some(Response::error(&id, message));
            }
            Outcome::Withdrawn => {
                withdraw(server, &self.entry).await;
                return None;
            }
        };
        let session = &self.order.request.session;
        server.meter.decided(&self.entry.peer, session, &self.order.digest, decision.allow, Instant::now());
        if !decision.allow {
            end(server, &self.entry, json!({ "status": "denied" })).await;
            let message = Some(decision.note).filter(|note| !note.is_empty());
            return Some(Response { message, ..Response::new(&id, Status::Denied) });
        }
        // It left while somebody decided: what nobody waits for is not begun.
        if outpost_sys::message::peer_is_gone(stream) {
            withdraw(server, &self.entry).await;
            return None;
        }
        // One without a proof does not get as far as this; it would not be started.
        let authority = proof.map_or(Authority::Recorded, Authority::Decision);
        self.entry.why = Some(Why { decision: "human".into(), by, authority });
        self.run(server, stream, true).await
    }

    /// Runs what was decided about, if it still is that. `waited` when a human was asked: then the start is yet to be
    /// recorded.
    pub(crate) async fn run(
        &mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        waited: bool,
    ) -> Option<Response> {
        let id = self.order.request.id.clone();
        let order = self.order.clone();
        let unchanged = tokio::task::spawn_blocking(move || order.is_unchanged(waited)).await;
        if let Err(message) = unchanged.unwrap_or_else(|_| Err("the daemon is ending".into())) {
            end(server, &self.entry, json!({ "status": "error", "message": message })).await;
            return Some(Response::error(&id, message));
        }
        if waited && let Err(error) = self.record_start(server).await {
            let message = error.to_string();
            end(server, &self.entry, json!({ "status": "error", "message": message })).await;
            return Some(Response::error(&id, message));
        }
        let settings = server.settings();
        match run::start(&server.engine, &settings, &self.order, &self.entry.key, &server.passwords).await {
            Ok(running) => Some(self.finish(server, stream, running).await),
            Err(response) => {
                let data = json!({ "status": "error", "message": response.message });
                end(server, &self.entry, data).await;
                Some(response)
            }
        }
    }

    async fn record_start(&self, server: &Server) -> outpost_approvals::Result<()> {
        let (entry, approvals) = (self.entry.clone(), server.approvals.clone());
        let write = move |books: &mut outpost_approvals::Books<'_>| match &entry.why {
            Some(why) => records::start(books, &approvals, &entry, why),
            None => Err(outpost_approvals::Error::Refused("this request was not allowed".into())),
        };
        server.approvals.ledger().write(write).await
    }

    /// Waits for the end and says how it was.
    pub(crate) async fn finish(
        &self,
        server: &Arc<Server>,
        stream: &UnixStream,
        running: run::Running,
    ) -> Response {
        let resolve = |file: &crate::files::Pinned| Resolved {
            path: file.path.display().to_string(),
            sha256: file.sha256.clone(),
        };
        let resolved: Vec<Resolved> = self.order.programs.iter().map(resolve).collect();
        finish(server, Some(stream), &self.entry, &resolved, running).await
    }
}

/// Waits for the end of what runs, records it, and makes the answer.
pub(crate) async fn finish(
    server: &Arc<Server>,
    stream: Option<&UnixStream>,
    entry: &Entry,
    resolved: &[Resolved],
    running: run::Running,
) -> Response {
    let stages = running.stages();
    let settings = server.settings();
    let finishing = running.finish(&entry.request.id, resolved, &settings);
    tokio::pin!(finishing);
    let mut finished = match stream.filter(|_| settings.ends_with_client) {
        None => finishing.await,
        Some(stream) => tokio::select! {
            finished = &mut finishing => finished,
            () = peer_watch::gone(stream) => {
                let _told_in_the_log = run::kill(&stages).await;
                finishing.await
            }
        },
    };
    let why = entry.why.clone();
    finished.response.decision = why.as_ref().map(|why| why.decision.clone());
    finished.response.approved_by = why.map(|why| why.by);
    finished.response.digest = Some(entry.digest.clone());
    let response = finished.response.clone();
    let notice = Notice::Answered {
        title: display::command(&entry.request.pipeline),
        response: Arc::new(response.clone()),
    };
    server.notify(notice);
    // Not waited for: should we be killed before it is written, the next worker finds the ended processes and does it.
    let (server, entry) = (server.clone(), entry.clone());
    tokio::spawn(async move {
        end(&server, &entry, finished.summary.clone()).await;
        finished.forget().await;
    });
    response
}

/// The request is over.
pub(crate) async fn end(server: &Server, entry: &Entry, data: serde_json::Value) {
    let entry = entry.clone();
    told(server.approvals.ledger().write(move |books| records::end(books, &entry, data)).await);
}

/// The request is over because whoever asked has left.
pub(crate) async fn withdraw(server: &Server, entry: &Entry) {
    let entry = entry.clone();
    told(server.approvals.ledger().write(move |books| records::withdraw(books, &entry)).await);
}

fn told(recorded: outpost_approvals::Result<()>) {
    if let Err(error) = recorded {
        tracing::error!(%error, "the end of a request is not recorded");
    }
}
