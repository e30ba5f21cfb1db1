//! `GET /metrics` over HTTP: numbers only, for this user and root; for others with a token.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use outpost_wire::{Peers, TokenNeeded};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;

/// Scrapers served at once.
const CONNECTIONS_MAX: usize = 16;
/// How long a peer may take for the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long a whole connection may last.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(60);

/// Which clients may read.
#[derive(Clone)]
pub struct Door {
    pub peers: Peers,
    /// What a client sends with `Authorization: Bearer` that would be refused otherwise.
    pub token: Arc<[u8]>,
    /// Other hosts need no token: the operator has chosen an address that they reach.
    pub is_open_to_hosts: bool,
}

/// Serves what `render` returns at the time, for ever.
pub async fn serve(listener: TcpListener, door: Door, render: impl Fn() -> String + Clone + Send + 'static) {
    let serve = |stream| {
        let (render, door) = (render.clone(), door.clone());
        async move {
            let refused = match door.peers.admit(&stream).await {
                Err(TokenNeeded::OtherHost) if door.is_open_to_hosts => None,
                admitted => admitted.err(),
            };
            let answer = service_fn(move |request: Request<Incoming>| {
                let response = match refused.as_ref().filter(|_| !door.opens(request.headers())) {
                    Some(reason) => refuse(reason),
                    None => answer(&request, &render),
                };
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), answer);
            let _slow_or_broken = tokio::time::timeout(CONNECTION_PATIENCE, connection).await;
        }
    };
    outpost_wire::accept_all(listener, CONNECTIONS_MAX, serve).await;
}

fn answer(request: &Request<Incoming>, render: &impl Fn() -> String) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, text) = match (request.uri().path(), is_read) {
        ("/metrics", true) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render()),
        _ => (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
    };
    respond(status, kind, text)
}

fn refuse(reason: &TokenNeeded) -> Response<Full<Bytes>> {
    let text = format!("a valid bearer token is needed: {reason}\n");
    respond(StatusCode::UNAUTHORIZED, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Door {
    /// An empty token opens nothing.
    fn opens(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let token = given.strip_prefix(b"Bearer ").unwrap_or_default();
        !token.is_empty() && bool::from(token.ct_eq(&self.token))
    }
}
