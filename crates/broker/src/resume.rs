//! Continuation of an earlier worker's requests: their clients are still connected and receive their responses.

use crate::active_request::{self, ActiveRequest};
use crate::forward;
use crate::line;
use crate::pinned_request::{PinnedRequest, ResolveError};
use crate::records::{self, RequestRecord};
use crate::requester::Requester;
use crate::run::{self, Running};
use crate::server::{CONNECTION_ROLE, Server};
use crate::wire::Response;
use outpost_approvals::{Outcome, PendingQuestion, StoredQuestion};
use outpost_ledger::{BootInstant, unix_ms};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use tokio::net::UnixStream;

pub(crate) async fn resume(server: &Arc<Server>) {
    forward::resume(server).await;
    let mut connections: HashMap<u64, OwnedFd> =
        server.engine.take_kept(CONNECTION_ROLE).into_iter().collect();
    let queue = server.approvals.queue().clone();
    let loaded = server
        .approvals
        .ledger()
        .transact(move |tx| Ok((records::load_active(tx)?, queue.load(tx, "broker")?)));
    let (records, questions) = match loaded.await {
        Ok(loaded) => loaded,
        Err(error) => return tracing::error!(%error, "cannot load the active requests; they are lost"),
    };
    let mut questions: HashMap<String, StoredQuestion> =
        questions.into_iter().map(|remembered| (remembered.question.id.clone(), remembered)).collect();
    let active: HashSet<String> = records.iter().map(|record| record.key.clone()).collect();
    tokio::spawn(kill_orphans(server.clone(), active));
    for record in records {
        let stream = connections.remove(&record.connection).and_then(into_stream);
        let question = record.question.as_ref().and_then(|id| questions.remove(id));
        let decision = question
            .filter(|_| stream.is_some() && !record.started)
            .map(|question| requeue(server, question));
        // Count them again: a restart must not reset the limits.
        let in_flight = server.reacquire_in_flight(record.peer.uid);
        let pending = decision
            .as_ref()
            .map(|_| server.rate_limiter.reserve_pending(&record.peer, &record.request.session));
        let server = server.clone();
        tokio::spawn(async move {
            let number = record.connection;
            resume_one(&server, record, stream, decision).await;
            let _shutting_down = server.engine.drop_kept(number).await;
            drop((in_flight, pending));
        });
    }
    // Connections of requests that were not recorded.
    for number in connections.into_keys() {
        let _shutting_down = server.engine.drop_kept(number).await;
    }
}

/// The decision about a question.
enum Decision {
    Made(Outcome),
    Pending(PendingQuestion),
}

/// Queues a question again with its remaining time, unless its outcome is stored.
fn requeue(server: &Server, remembered: StoredQuestion) -> Decision {
    match remembered.outcome {
        Some(outcome) => Decision::Made(outcome),
        None => {
            let left = remembered.deadline.left(&BootInstant::now());
            Decision::Pending(server.approvals.queue().publish(remembered.question, left))
        }
    }
}

/// Kills and releases processes whose request is no longer active.
async fn kill_orphans(server: Arc<Server>, active: HashSet<String>) {
    // Skip processes of new requests, which are not in `active`.
    let began = unix_ms();
    for process in server.engine.list().await {
        let key = process.key();
        if key.face == run::FACE && !active.contains(&key.scope) && process.started_ms() < began {
            let _logged = run::kill(std::slice::from_ref(&process)).await;
            let _shutting_down = process.forget().await;
        }
    }
}

pub(crate) fn into_stream(connection: OwnedFd) -> Option<UnixStream> {
    let stream = StdStream::from(connection);
    stream.set_nonblocking(true).ok()?;
    UnixStream::from_std(stream).ok()
}

/// Finishes one request and answers its client.
async fn resume_one(
    server: &Arc<Server>,
    record: RequestRecord,
    stream: Option<UnixStream>,
    decision: Option<Decision>,
) {
    if record.started {
        let response = resume_running(server, &record, stream.as_ref()).await;
        if let Some(stream) = stream {
            line::write(&stream, &response).await;
        }
        return;
    }
    let (Some(stream), Some(decision)) = (stream, decision) else {
        return active_request::withdraw(server, &record).await;
    };
    if let Some(response) = resume_undecided(server, record, &stream, decision).await {
        line::write(&stream, &response).await;
    }
}

/// Waits for a started request. If the worker was killed before it had spawned every stage, the request fails: it must
/// not start twice.
async fn resume_running(
    server: &Arc<Server>,
    record: &RequestRecord,
    stream: Option<&UnixStream>,
) -> Response {
    let count = record.request.pipeline.len();
    match Running::reattach(&server.engine, &server.settings(), &record.key, count).await {
        Ok(running) => active_request::finish(server, stream, record, &[], running).await,
        Err(spawned) => {
            let _logged = run::kill(&spawned).await;
            for stage in spawned {
                let _shutting_down = stage.forget().await;
            }
            let message =
                "the daemon was restarted while this was being started; it was not run to its end, and is \
                           not run again"
                    .to_owned();
            let data = json!({ "status": "error", "message": message });
            active_request::end(server, record, data).await;
            Response::error(&record.request.id, message)
        }
    }
}

/// Waits for the decision. The digest must be unchanged.
async fn resume_undecided(
    server: &Arc<Server>,
    record: RequestRecord,
    stream: &UnixStream,
    decision: Decision,
) -> Option<Response> {
    let (id, request) = (record.request.id.clone(), record.request.clone());
    let ssh_agent = server.settings().ssh_agent.clone();
    let peer = record.peer.clone();
    let resolved = tokio::task::spawn_blocking(move || {
        let requester = Requester::of(&peer).map_err(ResolveError::Refused)?;
        PinnedRequest::resolve(request, ssh_agent, &requester)
    });
    let pinned = match resolved.await {
        Ok(Ok(pinned)) if pinned.digest == record.digest => pinned,
        _ => {
            let message =
                "what this request is about changed while the daemon was restarted; ask again".to_owned();
            if let Decision::Pending(asked) = &decision {
                server.approvals.queue().mark_unanswerable(asked.id(), &message).await;
            }
            let data = json!({ "status": "error", "message": message });
            active_request::end(server, &record, data).await;
            return Some(Response::error(&id, message));
        }
    };
    let mut active = ActiveRequest { record, pinned };
    match decision {
        Decision::Made(outcome) => active.apply_outcome(server, stream, outcome).await,
        Decision::Pending(asked) => active.wait(server, stream, asked).await,
    }
}
