//! Forwarding to the guard: relays request lines unchanged to the guard of this host, and its responses back.

use crate::disconnect;
use crate::line;
use crate::records::{self, Forward};
use crate::resume::into_stream;
use crate::server::Server;
use crate::wire::{Action, Request, Response};
use outpost_approvals::guard::{GuardPaths, GuardStatus};
use outpost_sys::connect::Trust;
use outpost_sys::message;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::net::UnixStream;

/// The keeper's role numbers for copies of the two connections.
const CLIENT_ROLE: u8 = 2;
const GUARD_ROLE: u8 = 3;

/// The hint for a human if the guard does not answer.
const HINT: &str = "hint: `systemctl status outpost-guard` shows why; nothing is approved without it";

/// The paths of the guard that must handle this request. An installed guard that is down still takes every request,
/// which then fails. An accepted `stop` is for this daemon itself.
pub(crate) fn guard_for(server: &Server, request: &Request) -> Option<GuardPaths> {
    let settings = server.settings();
    let is_own = request.action == Action::Stop && settings.client_may_stop;
    settings.guard.clone().filter(|guard| !is_own && guard.status() != GuardStatus::Absent)
}

/// Sends a request to the guard and its response to the client.
pub(crate) async fn forward(
    server: &Arc<Server>,
    client: UnixStream,
    id: &str,
    mut line: Vec<u8>,
    guard_paths: &GuardPaths,
) {
    let guard = match connect(guard_paths) {
        Ok(guard) => guard,
        Err(reason) => {
            let message = format!("the guard of this host is away, so nothing was run: {reason}\n{HINT}");
            return line::write(&client, &Response::error(id, message)).await;
        }
    };
    let forward = match hand_to_keeper(server, &client, &guard).await {
        Ok(forward) => forward,
        Err(reason) => return line::write(&client, &Response::error(id, reason)).await,
    };
    line.push(b'\n');
    // A refusing guard may close its receiving side early. Its response is still readable.
    let _refused_early = line::write_bytes(&guard, &line).await;
    if !relay_response(&client, &guard).await {
        let message = format!("the guard of this host ended before it answered\n{HINT}");
        line::write(&client, &Response::error(id, message)).await;
    }
    release(server, forward).await;
}

/// Continues the forwards of an earlier worker over the same connections.
pub(crate) async fn resume(server: &Arc<Server>) {
    let mut clients: HashMap<u64, OwnedFd> = server.engine.take_kept(CLIENT_ROLE).into_iter().collect();
    let mut guards: HashMap<u64, OwnedFd> = server.engine.take_kept(GUARD_ROLE).into_iter().collect();
    let forwards = server.approvals.ledger().transact(records::load_forwards).await;
    let forwards = forwards.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot load the requests forwarded to the guard; they are lost");
        Vec::new()
    });
    for forward in forwards {
        let client = clients.remove(&forward.client).and_then(into_stream);
        let guard = guards.remove(&forward.guard).and_then(into_stream);
        let server = server.clone();
        tokio::spawn(async move {
            if let (Some(client), Some(guard)) = (client, guard) {
                relay_response(&client, &guard).await;
            }
            release(&server, forward).await;
        });
    }
    for number in clients.into_keys().chain(guards.into_keys()) {
        let _shutting_down = server.engine.drop_kept(number).await;
    }
}

/// Connects to the guard. The listener must belong to root.
fn connect(guard_paths: &GuardPaths) -> Result<UnixStream, String> {
    match guard_paths.status() {
        GuardStatus::Running => {}
        GuardStatus::Unavailable(reason) => return Err(reason),
        GuardStatus::Absent => return Err("it was removed".into()),
    }
    let socket = guard_paths.broker_socket();
    let fail = |error: std::io::Error| format!("{}: {error}", socket.display());
    outpost_wire::connect(&socket, Trust::Root).map_err(fail)
}

/// Gives the keeper copies of both connections, so that the next worker can continue the forward.
async fn hand_to_keeper(server: &Server, client: &UnixStream, guard: &UnixStream) -> Result<Forward, String> {
    let copy = |stream: &UnixStream| outpost_sys::file::duplicate(stream).map_err(|errno| errno.to_string());
    let text = |error: outpost_engine::Error| error.to_string();
    let client = server.engine.keep(CLIENT_ROLE, copy(client)?).await.map_err(text)?;
    let guard = server.engine.keep(GUARD_ROLE, copy(guard)?).await.map_err(text)?;
    let forward = Forward { guard, client };
    let inserted = server.approvals.ledger().transact(move |tx| records::insert_forward(tx, forward)).await;
    inserted.map_err(|error| error.to_string())?;
    Ok(forward)
}

/// Deletes a forward's record and the keeper's copies of its connections.
async fn release(server: &Server, forward: Forward) {
    for number in [forward.client, forward.guard] {
        let _shutting_down = server.engine.drop_kept(number).await;
    }
    let deleted = server.approvals.ledger().transact(move |tx| records::delete_forward(tx, forward)).await;
    if let Err(error) = deleted {
        tracing::warn!(%error, "cannot delete the record of an ended forward");
    }
}

/// Copies the response until the guard closes. A client's disconnect withdraws the request. False without a response.
async fn relay_response(client: &UnixStream, guard: &UnixStream) -> bool {
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
        () = disconnect::wait(client) => {
            message::shut_down(guard);
            true
        }
    }
}
