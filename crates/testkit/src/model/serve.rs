//! The HTTP side of the fake model: routes, refusals, and streams that keep their pace.

use super::anthropic::Anthropic;
use super::chat::Chat;
use super::gemini::Gemini;
use super::plan::{Break, Outcome, Plan, Reply, plan};
use super::responses::Responses;
use super::shape::{Frame, Shape, TOKENS_IN};
use super::{Received, Shared};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// Frames queued for a slow client.
const FRAMES_WAITING_MAX: usize = 16;

/// A body that comes piece by piece; an error among them breaks the connection.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<hyper::body::Frame<Bytes>>>> {
        let piece = self.get_mut().0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(hyper::body::Frame::data)))
    }
}

/// Until `stopped` is over; connections and answers under way end with it.
pub(super) fn run(listener: std::net::TcpListener, shared: &Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        tokio::select! {
            () = accept_all(listener, shared) => {}
            _ = stopped => {}
        }
    });
}

async fn accept_all(listener: tokio::net::TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(answer(request, &shared).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            let _client_left = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared) -> Response<Pieces> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let request = Received {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    let path = head.uri.path();
    if path == "/__requests" {
        return whole(200, &shared.received_as_json());
    }
    // Before anything else: a test may wait for a request that is never answered.
    shared.remember(request.clone());
    match (head.method.as_str(), shape(path)) {
        ("POST", Some(shape)) => speak(shape, path, &request, shared).await,
        ("POST", None) if path.ends_with("/messages/count_tokens") => {
            whole(200, &json!({"input_tokens": TOKENS_IN}))
        }
        ("POST", None) if path.ends_with(":countTokens") => whole(200, &json!({"totalTokens": TOKENS_IN})),
        _ => whole(404, &json!({"error": {"message": format!("no {path} here")}})),
    }
}

fn shape(path: &str) -> Option<&'static dyn Shape> {
    if path.ends_with("/messages") {
        Some(&Anthropic)
    } else if path.ends_with("/responses") {
        Some(&Responses)
    } else if path.ends_with("/chat/completions") {
        Some(&Chat)
    } else if path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent") {
        Some(&Gemini)
    } else {
        None
    }
}

async fn speak(
    shape: &'static dyn Shape,
    path: &str,
    request: &Received,
    shared: &Shared,
) -> Response<Pieces> {
    let keys = ["x-api-key", "authorization", "x-goog-api-key"];
    if keys.iter().any(|name| request.header(name).is_some_and(|key| key.contains("bad"))) {
        return whole(401, &shape.refusal(401, "invalid api key"));
    }
    let conversation = shape.conversation(path, &request.body);
    let Plan { after, outcome } = {
        let mut tries = shared.tries.lock().unwrap_or_else(PoisonError::into_inner);
        plan(&conversation, &mut tries, &shared.next_id())
    };
    tokio::time::sleep(after).await;
    match outcome {
        Outcome::Refuse { status, message } => whole(status, &shape.refusal(status, &message)),
        Outcome::Answer(reply) if conversation.streams => stream(shape, reply),
        Outcome::Answer(reply) => whole(200, &shape.whole(&reply)),
    }
}

fn response(status: u16, kind: &'static str, pieces: mpsc::Receiver<io::Result<Bytes>>) -> Response<Pieces> {
    let mut response = Response::new(Pieces(pieces));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn whole(status: u16, body: &Value) -> Response<Pieces> {
    let (sender, pieces) = mpsc::channel(1);
    let _has_room = sender.try_send(Ok(Bytes::from(body.to_string())));
    response(status, "application/json", pieces)
}

fn stream(shape: &'static dyn Shape, reply: Reply) -> Response<Pieces> {
    let (sender, pieces) = mpsc::channel(FRAMES_WAITING_MAX);
    tokio::spawn(async move {
        for frame in frames(shape, &reply) {
            let piece = match frame {
                Some(Frame { text, is_delta }) => {
                    if is_delta {
                        tokio::time::sleep(reply.apart).await;
                    }
                    Ok(Bytes::from(text))
                }
                None => Err(io::ErrorKind::ConnectionAborted.into()),
            };
            if sender.send(piece).await.is_err() {
                break;
            }
        }
    });
    response(200, "text/event-stream", pieces)
}

/// What is sent in the end; none is the end of the connection.
fn frames(shape: &dyn Shape, reply: &Reply) -> Vec<Option<Frame>> {
    let mut frames = shape.stream(reply);
    let Some(how) = reply.breaks else { return frames.into_iter().map(Some).collect() };
    let deltas: Vec<usize> =
        frames.iter().enumerate().filter(|(_, frame)| frame.is_delta).map(|(at, _)| at).collect();
    // One delta at least, so that the client has shown something.
    let middle = deltas.get(deltas.len() / 2).or(deltas.first()).copied().unwrap_or_default();
    frames.truncate(middle + 1);
    let end = match how {
        Break::Cut => None,
        Break::Error => Some(shape.stream_error(reply)),
    };
    frames.into_iter().map(Some).chain([end]).collect()
}
