//! The methods of the contract, a file per group. `session.send` and a live `session.reconnect` answer with a stream.

mod health;
mod list;
mod session;
mod streams;

use crate::face::Face;
use crate::rpc::{self, Failure, Params, Request};
use crate::stream::{EventStream, Flushed};
use outpost_approvals::display;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use tracing::Instrument;

/// Of an id or a method, in the log.
const LOGGED_CHARS_MAX: usize = 100;

/// What a request is answered with.
pub(crate) enum Reply {
    /// A JSON text.
    Text(Vec<u8>),
    Stream(EventStream),
}

/// Whether a request changes nothing, so that it does not matter where it ends.
pub(crate) fn only_looks(request: &Request<'_>) -> bool {
    let looking = ["health.check", "session.list", "monitor.sessions", "session.queue_stats"];
    request.method.as_deref().is_some_and(|method| looking.contains(&method))
}

pub(crate) async fn call(face: &Arc<Face>, request: &Request<'_>, flushed: &Flushed) -> Reply {
    let id = request.id;
    if id.is_some_and(|id| !rpc::is_id(id)) {
        let failure = Failure::new(rpc::INVALID_REQUEST, "Invalid request: id is no string, number or null");
        return Reply::Text(rpc::answer(Err(failure), None, &[]));
    }
    let Some(method) = request.method.as_deref() else {
        let failure = Failure::new(rpc::INVALID_REQUEST, "Invalid request: missing method");
        return Reply::Text(rpc::answer(Err(failure), id, &[]));
    };
    let params = Params::of(request.params.as_ref());
    let shown = |text: &str| display::claim(text, LOGGED_CHARS_MAX);
    let request = shown(id.map_or("none", RawValue::get));
    let span = tracing::info_span!("sessions", method = %shown(method), %request);
    let reply = dispatch(face, method, &params, id, flushed).instrument(span).await;
    reply.unwrap_or_else(|failure| Reply::Text(rpc::answer(Err(failure), id, &[])))
}

async fn dispatch(
    face: &Arc<Face>,
    method: &str,
    params: &Params<'_>,
    id: Option<&RawValue>,
    flushed: &Flushed,
) -> Result<Reply, Failure> {
    let result: Value = match method {
        "session.send" => return streams::send(face, params, flushed).await.map(Reply::Stream),
        "session.reconnect" => return streams::reconnect(face, params, id, flushed).await,
        "session.list" => return list::list(face, id).await.map(Reply::Text),
        "monitor.sessions" => return list::monitor(face, id).await.map(Reply::Text),
        // The original's own Head looks for `ok` beside the result.
        "health.check" => {
            return Ok(Reply::Text(rpc::answer(Ok(health::check(face)), id, &[("ok", true.into())])));
        }
        "session.create" => session::create(face, params).await?,
        "session.resume" => session::resume(face, params).await?,
        "session.destroy" => session::destroy(face, params).await?,
        "session.set_mode" => session::set_mode(face, params).await?,
        "session.set_model" => session::set_model(face, params).await?,
        "session.interrupt" => session::interrupt(face, params).await?,
        "session.queue_stats" => session::queue_stats(face, params)?,
        other => return Err(Failure::new(rpc::METHOD_NOT_FOUND, format!("Method not found: {other}"))),
    };
    Ok(Reply::Text(rpc::answer(Ok(result), id, &[])))
}
