//! `GET /metrics` over HTTP: numbers only, and no authentication.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpListener;

/// Scrapers served at once.
const CONNECTIONS_MAX: usize = 16;
/// How long a peer may take for the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long a whole connection may last.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(60);

/// Serves what `render` says at the time, for ever.
pub async fn serve(listener: TcpListener, render: impl Fn() -> String + Clone + Send + 'static) {
    let serve = |stream| {
        let render = render.clone();
        async move {
            let answer = service_fn(move |request| {
                let response = answer(&request, &render);
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
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
