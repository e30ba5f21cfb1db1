//! Requests on a host with a guard: passed on to it as they are, and its answer passed back. Nothing is decided here.

use crate::line;
use crate::peer_watch;
use crate::records::{self, Forward};
use crate::resume::usable;
use crate::server::Server;
use crate::wire::{Action, Request, Response};
use outpost_approvals::guard::{Found, Places};
use outpost_sys::connect::Trust;
use outpost_sys::message;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::net::UnixStream;

/// The roles of both connections among the descriptors that are kept for workers to come.
const CLIENT_ROLE: u8 = 2;
const GUARD_ROLE: u8 = 3;

/// The next step for a person, where the guard does not answer.
const HINT: &str = "hint: `systemctl status outpost-guard` shows why; nothing is approved without it";

/// Where the guard is, if this request is for it: a guard that is away still takes every request, and refuses it. The end of
/// this daemon is its own business.
pub(crate) fn wanted(server: &Server, request: &Request) -> Option<Places> {
    let settings = server.settings();
    let own = request.action == Action::Stop && settings.stoppable;
    settings.guard.clone().filter(|guard| !own && guard.find() != Found::Absent)
}

/// Passes a request on, and answers with what the guard answers.
pub(crate) async fn pass(
    server: &Arc<Server>,
    client: UnixStream,
    id: &str,
    mut line: Vec<u8>,
    places: &Places,
) {
    let guard = match connect(places) {
        Ok(guard) => guard,
        Err(reason) => {
            let message = format!("the guard of this host is away, so nothing was run: {reason}\n{HINT}");
            return line::write(&client, &Response::error(id, message)).await;
        }
    };
    let kept = match keep(server, &client, &guard).await {
        Ok(kept) => kept,
        Err(reason) => return line::write(&client, &Response::error(id, reason)).await,
    };
    line.push(b'\n');
    // A guard that refuses may close before it has read everything; its answer is there all the same.
    let _answered = line::write_bytes(&guard, &line).await;
    if !carry(&client, &guard).await {
        let message = format!("the guard of this host ended before it answered\n{HINT}");
        line::write(&client, &Response::error(id, message)).await;
    }
    let_go(server, kept).await;
}

/// Goes on with what an earlier worker was passing on: the answer still comes over the same connection.
pub(crate) async fn resume(server: &Arc<Server>) {
    let mut clients: HashMap<u64, OwnedFd> = server.engine.take_kept(CLIENT_ROLE).into_iter().collect();
    let mut guards: HashMap<u64, OwnedFd> = server.engine.take_kept(GUARD_ROLE).into_iter().collect();
    let left = server.approvals.ledger().write(records::forwards).await;
    let left = left.unwrap_or_else(|error| {
        tracing::error!(%error, "requests that were passed on to the guard are lost");
        Vec::new()
    });
    for forward in left {
        let client = clients.remove(&forward.client).and_then(usable);
        let guard = guards.remove(&forward.guard).and_then(usable);
        let server = server.clone();
        tokio::spawn(async move {
            if let (Some(client), Some(guard)) = (client, guard) {
                carry(&client, &guard).await;
            }
            let_go(&server, forward).await;
        });
    }
    for number in clients.into_keys().chain(guards.into_keys()) {
        let _stopping = server.engine.let_go(number).await;
    }
}

/// A connection to the guard, whose other end is root's.
fn connect(places: &Places) -> Result<UnixStream, String> {
    match places.find() {
        Found::Serving => {}
        Found::Away(reason) => return Err(reason),
        Found::Absent => return Err("it was removed".into()),
    }
    let socket = places.broker_socket();
    let fail = |error: std::io::Error| format!("{}: {error}", socket.display());
    outpost_wire::connect(&socket, Trust::Root).map_err(fail)
}

/// Has the keeper hold both connections for a worker to come.
async fn keep(server: &Server, client: &UnixStream, guard: &UnixStream) -> Result<Forward, String> {
    let copy = |stream: &UnixStream| outpost_sys::file::duplicate(stream).map_err(|errno| errno.to_string());
    let text = |error: outpost_engine::Error| error.to_string();
    let client = server.engine.keep(CLIENT_ROLE, copy(client)?).await.map_err(text)?;
    let guard = server.engine.keep(GUARD_ROLE, copy(guard)?).await.map_err(text)?;
    let forward = Forward { guard, client };
    let entered = server.approvals.ledger().write(move |books| records::enter_forward(books, forward)).await;
    entered.map_err(|error| error.to_string())?;
    Ok(forward)
}

async fn let_go(server: &Server, forward: Forward) {
    for number in [forward.client, forward.guard] {
        let _stopping = server.engine.let_go(number).await;
    }
    let ended = server.approvals.ledger().write(move |books| records::end_forward(books, forward)).await;
    if let Err(error) = ended {
        tracing::warn!(%error, "a forward that ended stays in the books");
    }
}

/// Copies the answer until the guard closes. A client that leaves takes its request back. False when there was no answer.
async fn carry(client: &UnixStream, guard: &UnixStream) -> bool {
    let copy = async {
        let (mut chunk, mut answered) = (Vec::new(), false);
        loop {
            chunk.clear();
            match line::read_some(guard, &mut chunk).await {
                Ok(0) | Err(_) => return answered,
                Ok(_) => answered = true,
            }
            if line::write_bytes(client, &chunk).await.is_none() {
                return true;
            }
        }
    };
    tokio::select! {
        answered = copy => answered,
        () = peer_watch::gone(client) => {
            message::shut_down(guard);
            true
        }
    }
}
