//! What an earlier worker has left under way: its clients are still connected, and are answered as if nothing had been.

use crate::asker::Asker;
use crate::forward;
use crate::line;
use crate::order::{NoOrder, Order};
use crate::records::{self, Entry};
use crate::run::{self, Running};
use crate::server::{CONNECTION_ROLE, Server};
use crate::under_way::{self, UnderWay};
use crate::wire::Response;
use outpost_approvals::{Asked, Moment, Outcome, Remembered, unix_ms};
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
    let left = server
        .approvals
        .ledger()
        .write(move |books| Ok((records::left(books)?, queue.remembered(books, "broker")?)));
    let (entries, questions) = match left.await {
        Ok(left) => left,
        Err(error) => return tracing::error!(%error, "what was under way before is lost"),
    };
    let mut questions: HashMap<String, Remembered> =
        questions.into_iter().map(|remembered| (remembered.question.id.clone(), remembered)).collect();
    let under_way: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    tokio::spawn(forget_others(server.clone(), under_way));
    for entry in entries {
        let stream = connections.remove(&entry.connection).and_then(usable);
        let question = entry.question.as_ref().and_then(|id| questions.remove(id));
        let answer = question
            .filter(|_| stream.is_some() && !entry.started)
            .map(|question| ask_again(server, question));
        // They count as they did: a restart is no way around a limit.
        let in_flight = server.still_in_flight(entry.peer.uid);
        let pending = answer.as_ref().map(|_| server.meter.place(&entry.peer, &entry.request.session));
        let server = server.clone();
        tokio::spawn(async move {
            let number = entry.connection;
            resume_one(&server, entry, stream, answer).await;
            let _stopping = server.engine.let_go(number).await;
            drop((in_flight, pending));
        });
    }
    // Of requests that were never written down.
    for number in connections.into_keys() {
        let _stopping = server.engine.let_go(number).await;
    }
}

/// What a human said about a question, or is to say.
enum Answer {
    Given(Outcome),
    Awaited(Asked),
}

/// The same question, with what is left of its time.
fn ask_again(server: &Server, remembered: Remembered) -> Answer {
    match remembered.outcome {
        Some(outcome) => Answer::Given(outcome),
        None => {
            let left = remembered.deadline.left(&Moment::now());
            Answer::Awaited(server.approvals.queue().ask(remembered.question, left))
        }
    }
}

/// Processes whose request was over before a worker could forget them.
async fn forget_others(server: Arc<Server>, under_way: HashSet<String>) {
    // Those of requests that come in meanwhile are not from before.
    let began = unix_ms();
    for process in server.engine.list().await {
        let key = process.key();
        if key.face == run::FACE && !under_way.contains(&key.scope) && process.started_ms() < began {
            let _told_in_the_log = run::kill(std::slice::from_ref(&process)).await;
            let _stopping = process.forget().await;
        }
    }
}

pub(crate) fn usable(connection: OwnedFd) -> Option<UnixStream> {
    let stream = StdStream::from(connection);
    stream.set_nonblocking(true).ok()?;
    UnixStream::from_std(stream).ok()
}

/// Answers a client that waits, and does what is left to do.
async fn resume_one(server: &Arc<Server>, entry: Entry, stream: Option<UnixStream>, answer: Option<Answer>) {
    if entry.started {
        let response = resume_running(server, &entry, stream.as_ref()).await;
        if let Some(stream) = stream {
            line::write(&stream, &response).await;
        }
        return;
    }
    let (Some(stream), Some(answer)) = (stream, answer) else {
        return under_way::withdraw(server, &entry).await;
    };
    if let Some(response) = resume_asking(server, entry, &stream, answer).await {
        line::write(&stream, &response).await;
    }
}

/// It was recorded as started: it runs, has ended, or was cut off before it began, and is not begun now.
async fn resume_running(server: &Arc<Server>, entry: &Entry, stream: Option<&UnixStream>) -> Response {
    let count = entry.request.pipeline.len();
    match Running::find(&server.engine, &server.settings(), &entry.key, count).await {
        Ok(running) => under_way::finish(server, stream, entry, &[], running).await,
        Err(some) => {
            let _told_in_the_log = run::kill(&some).await;
            for stage in some {
                let _stopping = stage.forget().await;
            }
            let message =
                "the daemon was restarted while this was being started; it was not run to its end, and is \
                           not run again"
                    .to_owned();
            let data = json!({ "status": "error", "message": message });
            under_way::end(server, entry, data).await;
            Response::error(&entry.request.id, message)
        }
    }
}

/// What the question is about must still be the same.
async fn resume_asking(
    server: &Arc<Server>,
    entry: Entry,
    stream: &UnixStream,
    answer: Answer,
) -> Option<Response> {
    let (id, request, agent) =
        (entry.request.id.clone(), entry.request.clone(), server.settings().agent.clone());
    let peer = entry.peer.clone();
    let made = tokio::task::spawn_blocking(move || {
        let asker = Asker::of(&peer).map_err(NoOrder::Refused)?;
        Order::make(request, agent, &asker)
    });
    let order = match made.await {
        Ok(Ok(order)) if order.digest == entry.digest => order,
        _ => {
            let message =
                "what this request is about changed while the daemon was restarted; ask again".to_owned();
            if let Answer::Awaited(asked) = &answer {
                server.approvals.queue().give_up(asked.id(), &message).await;
            }
            let data = json!({ "status": "error", "message": message });
            under_way::end(server, &entry, data).await;
            return Some(Response::error(&id, message));
        }
    };
    let mut under_way = UnderWay { entry, order };
    match answer {
        Answer::Given(outcome) => under_way.settled(server, stream, outcome).await,
        Answer::Awaited(asked) => under_way.wait(server, stream, asked).await,
    }
}
