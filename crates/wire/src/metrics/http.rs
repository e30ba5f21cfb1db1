//! `GET /metrics` over HTTP, for this user and root, and for other clients with a token.

use crate::{Peers, TokenNeeded};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;

/// The maximum number of concurrent scrapers.
const CONNECTIONS_MAX: usize = 16;
/// The timeout for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Which clients may read the metrics.
#[derive(Clone)]
pub struct Access {
    pub peers: Peers,
    /// The bearer token for clients that would be refused otherwise.
    pub token: Arc<[u8]>,
    /// Other hosts need no token: the operator has chosen a non-loopback address.
    pub is_open_to_hosts: bool,
}

/// Serves the current result of `render`, until the daemon stops accepting.
pub async fn serve(
    listener: TcpListener,
    access: Access,
    render: impl Fn() -> String + Clone + Send + 'static,
) {
    let serve = |stream| {
        let (render, access) = (render.clone(), access.clone());
        async move {
            let refused = match access.peers.admit(&stream).await {
                Err(TokenNeeded::OtherHost) if access.is_open_to_hosts => None,
                admitted => admitted.err(),
            };
            let service = service_fn(move |request: Request<Incoming>| {
                let response = match refused.as_ref().filter(|_| !access.has_token(request.headers())) {
                    Some(reason) => refuse(reason),
                    None => answer(&request, &render),
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

impl Access {
    /// Whether the token is valid. An empty token never is.
    fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let token = given.strip_prefix(b"Bearer ").unwrap_or_default();
        !token.is_empty() && bool::from(token.ct_eq(&self.token))
    }
}
