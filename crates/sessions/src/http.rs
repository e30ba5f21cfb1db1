//! `POST /rpc` over HTTP: which requests are served, what they may look like, and the answer.

use crate::face::Face;
use crate::methods::{self, Reply};
use crate::rpc::Request;
use crate::shutdown;
use crate::stream::{EventStream, Flushed};
use crate::tokens::Tokens;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use outpost_wire::TokenNeeded;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// "body over 2 MiB -> 413".
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How long a peer may take for the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take for the rest.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// Which requests of a connection are served. None of a web page is.
#[derive(Clone)]
pub enum Door {
    /// Those of a client on a loopback port, by its name: all, or, for this reason, those with a token.
    Loopback(Option<TokenNeeded>, Arc<Tokens>),
    /// Those with a token.
    Tokens(Arc<Tokens>),
}

type AnswerBody = Either<Full<Bytes>, EventStream>;

/// Serves one connection.
pub async fn serve<S>(face: Arc<Face>, stream: S, door: Door)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let flushed = Flushed::default();
    let io = Watched { inner: TokioIo::new(stream), flushed: flushed.clone() };
    let (_open, mut phase) = (face.shutdown.connected(), face.shutdown.phase());
    let answering = face.clone();
    let answer = service_fn(move |request| {
        let (face, door, flushed) = (answering.clone(), door.clone(), flushed.clone());
        async move { Ok::<_, Infallible>(answer(&face, request, &door, &flushed).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(io, answer);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown::closes(&mut phase) => {
            // What is being answered is answered to its end.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the sessions face ended");
    }
}

async fn answer(
    face: &Arc<Face>,
    request: hyper::Request<Incoming>,
    door: &Door,
    flushed: &Flushed,
) -> Response<AnswerBody> {
    if let Some((status, text)) = door.refuses(request.headers()) {
        return plain(status, text);
    }
    match (request.uri().path(), request.method()) {
        ("/rpc", &Method::POST) => rpc(face, request, flushed).await,
        ("/rpc", _) => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            response
        }
        ("/openapi.json", &Method::GET) => json(crate::openapi::DOCUMENT.into()),
        ("/events.schema.json", &Method::GET) => json(crate::openapi::EVENTS.into()),
        _ => plain(StatusCode::NOT_FOUND, ""),
    }
}

async fn rpc(face: &Arc<Face>, request: hyper::Request<Incoming>, flushed: &Flushed) -> Response<AnswerBody> {
    if !is_json(request.headers()) {
        let text = "Expected request with `Content-Type: application/json`";
        return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let reading = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_PATIENCE, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return plain(
                StatusCode::PAYLOAD_TOO_LARGE,
                "Failed to buffer the request body: length limit exceeded",
            );
        }
        Ok(Err(_)) => return plain(StatusCode::BAD_REQUEST, "Failed to buffer the request body"),
        Err(_) => return plain(StatusCode::REQUEST_TIMEOUT, "The request body did not come in time"),
    };
    let request: Request<'_> = match serde_json::from_slice(&body) {
        // A list of the right members would do for one, and batches are lists.
        Ok(_) if !body.trim_ascii_start().starts_with(b"{") => {
            return not_a_request(&body, "expected an object");
        }
        Ok(request) => request,
        Err(error) => return not_a_request(&body, error),
    };
    let reply = if methods::only_looks(&request) {
        methods::call(face, &request, flushed).await
    } else {
        // A connection that is lost takes its own future with it, at any await; what was begun must not stop halfway.
        let (face, flushed, body) = (face.clone(), flushed.clone(), body.clone());
        let call = tokio::spawn(async move {
            let request: Request<'_> = serde_json::from_slice(&body).ok()?;
            Some(methods::call(&face, &request, &flushed).await)
        });
        match call.await {
            Ok(Some(reply)) => reply,
            _ => return plain(StatusCode::INTERNAL_SERVER_ERROR, "The request could not be served"),
        }
    };
    match reply {
        Reply::Text(text) => json(Bytes::from(text)),
        Reply::Stream(stream) => streamed(stream),
    }
}

/// Text that is no JSON, and JSON that is no request.
fn not_a_request(body: &[u8], error: impl std::fmt::Display) -> Response<AnswerBody> {
    match serde_json::from_slice::<serde::de::IgnoredAny>(body) {
        Ok(_) => plain(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("Failed to deserialize the JSON body into the target type: {error}"),
        ),
        Err(error) => {
            plain(StatusCode::BAD_REQUEST, format!("Failed to parse the request body as JSON: {error}"))
        }
    }
}

/// `application/json`, or something that is written in it.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

impl Door {
    /// Why a request is refused.
    fn refuses(&self, headers: &HeaderMap) -> Option<(StatusCode, String)> {
        // Browsers send it, and no page shall talk to an agent on its reader's host.
        if headers.contains_key(ORIGIN) {
            return Some((StatusCode::FORBIDDEN, "Forbidden: requests from web pages are refused".into()));
        }
        match self {
            // A name that was made to lead here.
            Door::Loopback(..) if !headers.get(HOST).is_none_or(is_loopback) => {
                Some((StatusCode::FORBIDDEN, "Forbidden: use localhost or a loopback address".into()))
            }
            Door::Loopback(None, _) => None,
            Door::Loopback(Some(reason), tokens) => refuses_token(tokens, headers)
                .map(|text| (StatusCode::UNAUTHORIZED, format!("{text} ({reason})"))),
            Door::Tokens(tokens) => {
                refuses_token(tokens, headers).map(|text| (StatusCode::UNAUTHORIZED, text.to_owned()))
            }
        }
    }
}

fn refuses_token(tokens: &Tokens, headers: &HeaderMap) -> Option<&'static str> {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    match given.strip_prefix(b"Bearer ") {
        None => Some("Unauthorized: missing Bearer token"),
        Some(token) if tokens.knows(token) => None,
        Some(_) => Some("Unauthorized: invalid token"),
    }
}

/// `localhost`, or an address of this host's own, with or without a port.
fn is_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn respond(status: StatusCode, kind: &'static str, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<AnswerBody> {
    respond(status, "text/plain; charset=utf-8", Either::Left(Full::new(text.into())))
}

fn json(text: Bytes) -> Response<AnswerBody> {
    respond(StatusCode::OK, "application/json", Either::Left(Full::new(text)))
}

fn streamed(stream: EventStream) -> Response<AnswerBody> {
    let mut response = respond(StatusCode::OK, "text/event-stream", Either::Right(stream));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("keep-alive"));
    response
}

/// A connection that tells when everything has been written to it.
struct Watched<S> {
    inner: TokioIo<S>,
    flushed: Flushed,
}

impl<S: AsyncRead + Unpin> Read for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> Write for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        // The layer above flushes when it has handed everything down.
        self.flushed.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }
}
