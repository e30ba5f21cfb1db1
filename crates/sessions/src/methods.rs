//! The methods of the contract. The file of a method has its name: `session.interrupt` is in `session/interrupt.rs`.

mod health;
mod monitor;
pub(crate) mod rss;
mod session;

use crate::face::Face;
use crate::http::event_stream::EventStream;
use crate::http::flush::FlushCounter;
use crate::http::rpc::{self, Failure, Params, Request};
use outpost_approvals::display;
use outpost_wire::jsonrpc::METHOD_NOT_FOUND;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use tracing::Instrument;

/// Maximum number of characters of an id or a method name in a log line.
const LOGGED_CHARS_MAX: usize = 100;

/// The response to a request.
pub(crate) enum Reply {
    /// A JSON text.
    Text(Vec<u8>),
    Stream(EventStream),
}

/// Whether the method changes nothing, so that it may be cancelled at any point.
pub(crate) fn is_read_only(request: &Request<'_>) -> bool {
    let read_only = ["health.check", "session.list", "monitor.sessions", "session.queue_stats"];
    request.method.as_deref().is_some_and(|method| read_only.contains(&method))
}

pub(crate) async fn call(face: &Arc<Face>, request: &Request<'_>, flushes: &FlushCounter) -> Reply {
    let id = request.id;
    if id.is_some_and(|id| !rpc::is_id(id)) {
        let failure = Failure::invalid_request("Invalid request: id is no string, number or null");
        return Reply::Text(rpc::answer(Err(failure), None, &[]));
    }
    let Some(method) = request.method.as_deref() else {
        let failure = Failure::invalid_request("Invalid request: missing method");
        return Reply::Text(rpc::answer(Err(failure), id, &[]));
    };
    let params = Params::of(request.params.as_ref());
    let shown = |text: &str| display::escape_untrusted(text, LOGGED_CHARS_MAX);
    let request = shown(id.map_or("none", RawValue::get));
    let span = tracing::info_span!("sessions", method = %shown(method), %request);
    let reply = dispatch(face, method, &params, id, flushes).instrument(span).await;
    reply.unwrap_or_else(|failure| Reply::Text(rpc::answer(Err(failure), id, &[])))
}

async fn dispatch(
    face: &Arc<Face>,
    method: &str,
    params: &Params<'_>,
    id: Option<&RawValue>,
    flushes: &FlushCounter,
) -> Result<Reply, Failure> {
    let result: Value = match method {
        "session.send" => return session::send::send(face, params, flushes).await.map(Reply::Stream),
        "session.reconnect" => return session::reconnect::reconnect(face, params, id, flushes).await,
        "session.list" => return session::list::list(face, id).await.map(Reply::Text),
        "monitor.sessions" => return monitor::sessions(face, id).await.map(Reply::Text),
        // codecast's Head Node reads `ok` beside the result.
        "health.check" => {
            return Ok(Reply::Text(rpc::answer(Ok(health::check(face)), id, &[("ok", true.into())])));
        }
        "session.create" => session::create::create(face, params).await?,
        "session.resume" => session::resume::resume(face, params).await?,
        "session.destroy" => session::destroy::destroy(face, params).await?,
        "session.set_mode" => session::set_mode::set_mode(face, params).await?,
        "session.set_model" => session::set_model::set_model(face, params).await?,
        "session.interrupt" => session::interrupt::interrupt(face, params).await?,
        "session.queue_stats" => session::queue_stats::queue_stats(face, params)?,
        other => return Err(Failure::new(METHOD_NOT_FOUND, format!("Method not found: {other}"))),
    };
    Ok(Reply::Text(rpc::answer(Ok(result), id, &[])))
}
