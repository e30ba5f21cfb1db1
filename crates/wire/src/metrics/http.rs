//! `GET /metrics` over HTTP, for this user and root, and for other clients with a token.

use crate::{Access, Peers, Refusal, TokenCheck};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpListener;

/// The maximum number of concurrent scrapers.
const CONNECTIONS_MAX: usize = 16;
/// The timeout for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the current result of `render`, until the daemon stops accepting.
pub async fn serve(
    listener: TcpListener,
    peers: Peers,
    tokens: TokenCheck,
    render: impl Fn() -> String + Clone + Send + 'static,
) {
    let serve = |stream| {
        let (render, peers, tokens) = (render.clone(), peers.clone(), tokens.clone());
        async move {
            let access = Access::of_loopback(&stream, &peers, &tokens).await;
            let service = service_fn(move |request: Request<Incoming>| {
                let response = match access.check(request.headers()) {
                    Ok(()) => answer(&request, &render),
                    Err(refusal) => refuse(&refusal),
                };
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let _slow_or_broken = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
        }
    };
    crate::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

fn answer(request: &Request<Incoming>, render: &impl Fn() -> String) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, text) = match (request.uri().path(), is_read) {
        ("/metrics", true) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render()),
        _ => (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
    };
    respond(status, kind, text)
}

fn refuse(refusal: &Refusal<'_>) -> Response<Full<Bytes>> {
    let reason = refusal.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let text = format!("a valid bearer token is needed{reason}\n");
    respond(StatusCode::UNAUTHORIZED, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
