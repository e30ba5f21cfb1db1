//! The HTTP server: `POST /rpc` and the documents, with their checks and responses.

mod access;
pub(crate) mod event_stream;
pub(crate) mod flush;
pub(crate) mod openapi;
pub(crate) mod rpc;
pub(crate) mod tls;
pub(crate) mod tokens;

use crate::face::Face;
use crate::methods::{self, Reply};
use crate::shutdown;
use event_stream::EventStream;
use flush::{FlushCounter, FlushNotifyingIo};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use outpost_wire::Access;
use rpc::Request;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// "body over 2 MiB -> 413".
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

type ResponseBody = Either<Full<Bytes>, EventStream>;

/// Serves one connection.
pub async fn serve<S>(face: Arc<Face>, stream: S, access: Access)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let flushes = FlushCounter::default();
    let io = FlushNotifyingIo { inner: TokioIo::new(stream), flushes: flushes.clone() };
    let (_open, mut phase) = (face.shutdown.connected(), face.shutdown.phase());
    let serving = face.clone();
    let service = service_fn(move |request| {
        let (face, access, flushes) = (serving.clone(), access.clone(), flushes.clone());
        async move { Ok::<_, Infallible>(respond(&face, request, &access, &flushes).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown::closing(&mut phase) => {
            // The response in progress is sent to its end.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended with an error");
    }
}

async fn respond(
    face: &Arc<Face>,
    request: hyper::Request<Incoming>,
    access: &Access,
    flushes: &FlushCounter,
) -> Response<ResponseBody> {
    if let Some((status, text)) = access::refusal(access, request.headers()) {
        return plain(status, text);
    }
    match (request.uri().path(), request.method()) {
        ("/rpc", &Method::POST) => rpc(face, request, flushes).await,
        ("/rpc", _) => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            response
        }
        ("/openapi.json", &Method::GET) => json(openapi::DOCUMENT.into()),
        ("/events.schema.json", &Method::GET) => json(openapi::EVENTS.into()),
        _ => plain(StatusCode::NOT_FOUND, ""),
    }
}

async fn rpc(
    face: &Arc<Face>,
    request: hyper::Request<Incoming>,
    flushes: &FlushCounter,
) -> Response<ResponseBody> {
    if !is_json(request.headers()) {
        let text = "Expected request with `Content-Type: application/json`";
        return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let reading = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, reading).await {
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
        // serde accepts an array for a struct, and a JSON-RPC batch is an array.
        Ok(_) if !body.trim_ascii_start().starts_with(b"{") => {
            return invalid_body(&body, "expected an object");
        }
        Ok(request) => request,
        Err(error) => return invalid_body(&body, error),
    };
    let reply = if methods::is_read_only(&request) {
        methods::call(face, &request, flushes).await
    } else {
        // A lost connection drops its future at any await. A method that changes state must run to its end, so it has
        // a task of its own.
        let (face, flushes, body) = (face.clone(), flushes.clone(), body.clone());
        let call = tokio::spawn(async move {
            let request: Request<'_> = serde_json::from_slice(&body).ok()?;
            Some(methods::call(&face, &request, &flushes).await)
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

/// Malformed JSON is 400; JSON that is not a request is 422.
fn invalid_body(body: &[u8], error: impl std::fmt::Display) -> Response<ResponseBody> {
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

/// `application/json`, or a type with the suffix `+json`.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn response(status: StatusCode, kind: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<ResponseBody> {
    response(status, "text/plain; charset=utf-8", Either::Left(Full::new(text.into())))
}

fn json(text: Bytes) -> Response<ResponseBody> {
    response(StatusCode::OK, "application/json", Either::Left(Full::new(text)))
}

fn streamed(stream: EventStream) -> Response<ResponseBody> {
    let mut response = response(StatusCode::OK, "text/event-stream", Either::Right(stream));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("keep-alive"));
    response
}
