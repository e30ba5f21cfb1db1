//! An admitted request: waits for its decision, runs, records its end, and builds the response.

use crate::disconnect;
use crate::pinned_request::PinnedRequest;
use crate::records::{self, Authorization, Basis, RequestRecord};
use crate::run;
use crate::server::{Notice, Server};
use crate::wire::{Resolved, Response, Status};
use outpost_approvals::{Outcome, display};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;

/// A request that is stored in the ledger.
pub(crate) struct ActiveRequest {
    pub(crate) record: RequestRecord,
    pub(crate) pinned: PinnedRequest,
}

impl ActiveRequest {
    /// Waits for the decision, the timeout, or the client's disconnect. None if the client disconnected.
    pub(crate) async fn wait(
        mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        mut asked: outpost_approvals::PendingQuestion,
    ) -> Option<Response> {
        let queue = server.approvals.queue();
        let outcome = tokio::select! {
            outcome = asked.outcome() => match outcome {
                Some(outcome) => outcome,
                None => queue.expire(asked.id()).await,
            },
            () = disconnect::wait(stream) => queue.withdraw(asked.id()).await,
        };
        self.apply_outcome(server, stream, outcome).await
    }

    /// Runs an approved request, or ends it. None if the client disconnected.
    pub(crate) async fn apply_outcome(
        &mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        outcome: Outcome,
    ) -> Option<Response> {
        let id = self.pinned.request.id.clone();
        let (decision, by, proof) = match outcome {
            Outcome::Decided { decision, by, proof } => (decision, by, proof),
            Outcome::Expired => {
                end(server, &self.record, json!({ "status": "timeout" })).await;
                return Some(Response::new(&id, Status::Timeout));
            }
            Outcome::Unanswerable { why } => {
                let message = format!("prompt error: {why}");
                end(server, &self.record, json!({ "status": "error", "message": message })).await;
                return Some(Response::error(&id, message));
            }
            Outcome::Withdrawn => {
                withdraw(server, &self.record).await;
                return None;
            }
        };
        let session = &self.pinned.request.session;
        server.rate_limiter.record_decision(
            &self.record.peer,
            session,
            &self.pinned.digest,
            decision.allow,
            Instant::now(),
        );
        if !decision.allow {
            end(server, &self.record, json!({ "status": "denied" })).await;
            let message = Some(decision.note).filter(|note| !note.is_empty());
            return Some(Response { message, ..Response::new(&id, Status::Denied) });
        }
        // The client disconnected while the human decided. Its command must not start.
        if outpost_sys::message::peer_is_gone(stream) {
            withdraw(server, &self.record).await;
            return None;
        }
        // Every decision has a proof here. Without one, `mark_started` refuses the start.
        let basis = proof.map_or(Basis::Recorded, Basis::Decision);
        self.record.authorization = Some(Authorization { decision: "human".into(), by, basis });
        self.run(server, stream, true).await
    }

    /// Runs the pinned files if they are unchanged. `waited`: a human decided, so the start is not recorded yet.
    pub(crate) async fn run(
        &mut self,
        server: &Arc<Server>,
        stream: &UnixStream,
        waited: bool,
    ) -> Option<Response> {
        let id = self.pinned.request.id.clone();
        let pinned = self.pinned.clone();
        let unchanged = tokio::task::spawn_blocking(move || pinned.check_unchanged(waited)).await;
        if let Err(message) = unchanged.unwrap_or_else(|_| Err("the daemon is stopping".into())) {
            end(server, &self.record, json!({ "status": "error", "message": message })).await;
            return Some(Response::error(&id, message));
        }
        if waited && let Err(error) = self.record_start(server).await {
            let message = error.to_string();
            end(server, &self.record, json!({ "status": "error", "message": message })).await;
            return Some(Response::error(&id, message));
        }
        let settings = server.settings();
        match run::start(&server.engine, &settings, &self.pinned, &self.record.key, &server.passwords).await {
            Ok(running) => Some(self.finish(server, stream, running).await),
            Err(response) => {
                let data = json!({ "status": "error", "message": response.message });
                end(server, &self.record, data).await;
                Some(response)
            }
        }
    }

    async fn record_start(&self, server: &Server) -> outpost_ledger::Result<()> {
        let (record, approvals) = (self.record.clone(), server.approvals.clone());
        let write = move |tx: &mut outpost_ledger::LedgerTx<'_>| match &record.authorization {
            Some(authorization) => records::mark_started(tx, &approvals, &record, authorization),
            None => Err(outpost_ledger::Error::Refused("this request was not allowed".into())),
        };
        server.approvals.ledger().transact(write).await
    }

    /// Waits for the command and builds the response.
    pub(crate) async fn finish(
        &self,
        server: &Arc<Server>,
        stream: &UnixStream,
        running: run::Running,
    ) -> Response {
        let resolve = |file: &crate::files::PinnedFile| Resolved {
            path: file.real_path.display().to_string(),
            sha256: file.sha256.clone(),
        };
        let resolved: Vec<Resolved> = self.pinned.programs.iter().map(resolve).collect();
        finish(server, Some(stream), &self.record, &resolved, running).await
    }
}

/// Waits for the command, builds the response, and starts to record the end.
pub(crate) async fn finish(
    server: &Arc<Server>,
    stream: Option<&UnixStream>,
    record: &RequestRecord,
    resolved: &[Resolved],
    running: run::Running,
) -> Response {
    let stages = running.stages();
    let settings = server.settings();
    let finishing = running.finish(&record.request.id, resolved, &settings);
    tokio::pin!(finishing);
    let mut finished = match stream.filter(|_| settings.kill_on_disconnect) {
        None => finishing.await,
        Some(stream) => tokio::select! {
            finished = &mut finishing => finished,
            () = disconnect::wait(stream) => {
                let _logged = run::kill(&stages).await;
                finishing.await
            }
        },
    };
    let authorization = record.authorization.clone();
    finished.response.decision = authorization.as_ref().map(|authorization| authorization.decision.clone());
    finished.response.approved_by = authorization.map(|authorization| authorization.by);
    finished.response.digest = Some(record.digest.clone());
    let response = finished.response.clone();
    let notice = Notice::Answered {
        title: display::command(&record.request.pipeline),
        response: Arc::new(response.clone()),
    };
    server.notify(notice);
    // Not awaited. If the worker is killed before the write, the next worker finds the exited processes and records
    // the end.
    let (server, record) = (server.clone(), record.clone());
    tokio::spawn(async move {
        end(&server, &record, finished.summary.clone()).await;
        finished.release().await;
    });
    response
}

/// Records the end of a request.
pub(crate) async fn end(server: &Server, record: &RequestRecord, data: serde_json::Value) {
    let record = record.clone();
    log_failure(server.approvals.ledger().transact(move |tx| records::end(tx, &record, data)).await);
}

/// Records the end of a request whose client disconnected.
pub(crate) async fn withdraw(server: &Server, record: &RequestRecord) {
    let record = record.clone();
    log_failure(server.approvals.ledger().transact(move |tx| records::withdraw(tx, &record)).await);
}

fn log_failure(recorded: outpost_ledger::Result<()>) {
    if let Err(error) = recorded {
        tracing::error!(%error, "cannot record the end of a request");
    }
}
