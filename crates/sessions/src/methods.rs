//! The methods of the contract, a file per group. `session.send` and a live `session.reconnect` answer with a stream.

mod health;
mod list;
mod session;
mod streams;

use crate::face::Face;
use crate::rpc::{self, Failure, Params, Request};
use crate::stream::{EventStream, Flushed};
use serde_json::Value;
use std::sync::Arc;

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
    let result: Result<Value, Failure> = match method {
        "session.send" => match streams::send(face, &params, flushed).await {
            Ok(stream) => return Reply::Stream(stream),
            Err(failure) => Err(failure),
        },
        "session.reconnect" => match streams::reconnect(face, &params, flushed).await {
            Ok(streams::Reconnected::Stream(stream)) => return Reply::Stream(stream),
            Ok(streams::Reconnected::Buffered(mut text)) => {
                rpc::append_id(&mut text, id);
                return Reply::Text(text);
            }
            Err(failure) => Err(failure),
        },
        "session.list" => match list::list(face, id).await {
            Ok(text) => return Reply::Text(text),
            Err(failure) => Err(failure),
        },
        "monitor.sessions" => match list::monitor(face, id).await {
            Ok(text) => return Reply::Text(text),
            Err(failure) => Err(failure),
        },
        "session.create" => session::create(face, &params).await,
        "session.resume" => session::resume(face, &params).await,
        "session.destroy" => session::destroy(face, &params).await,
        "session.set_mode" => session::set_mode(face, &params).await,
        "session.set_model" => session::set_model(face, &params).await,
        "session.interrupt" => session::interrupt(face, &params).await,
        "session.queue_stats" => session::queue_stats(face, &params),
        "health.check" => {
            // The original's own Head looks for `ok` beside the result.
            return Reply::Text(rpc::answer(Ok(health::check(face)), id, &[("ok", true.into())]));
        }
        other => Err(Failure::new(rpc::METHOD_NOT_FOUND, format!("Method not found: {other}"))),
    };
    Reply::Text(rpc::answer(result, id, &[]))
}
