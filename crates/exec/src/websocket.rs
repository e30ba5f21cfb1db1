//! HTTP transport: health checks, and a websocket whose text messages are the lines.

use crate::connection::serve;
use crate::server::Server;
use futures_util::{SinkExt, StreamExt};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use outpost_wire::{Access, Line, Lines, Outbox};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

/// Largest message, which becomes one line.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Serves one HTTP connection: health checks and websocket upgrades.
pub async fn serve_http<S>(server: Arc<Server>, stream: S, access: Access)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answer = service_fn(move |request| {
        let response = answer(&server, request, &access);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.with_upgrades().await {
        tracing::debug!(%error, "an HTTP connection of the exec face ended");
    }
}

fn answer(server: &Arc<Server>, mut request: Request<Incoming>, access: &Access) -> Response<Full<Bytes>> {
    // Only browsers send Origin, and no web page may reach a shell on this host.
    if request.headers().contains_key(ORIGIN) {
        return plain(StatusCode::FORBIDDEN, "requests from web pages are refused\n");
    }
    if request.method() == Method::GET && matches!(request.uri().path(), "/readyz" | "/healthz") {
        return plain(StatusCode::OK, "");
    }
    if access.check(request.headers()).is_err() {
        return plain(StatusCode::UNAUTHORIZED, "a valid bearer token is needed\n");
    }
    let Some(accept) = websocket_accept(request.headers()) else {
        return plain(StatusCode::BAD_REQUEST, "a websocket is spoken here\n");
    };
    let server = server.clone();
    tokio::spawn(async move {
        match hyper::upgrade::on(&mut request).await {
            Ok(upgraded) => bridge(server, TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "a websocket was not opened"),
        }
    });
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Accept key of a websocket handshake, if the request is one.
fn websocket_accept(headers: &HeaderMap) -> Option<HeaderValue> {
    let has_token = |name: HeaderName, word: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let wanted = has_token(CONNECTION, "upgrade")
        && has_token(UPGRADE, "websocket")
        && has_token(SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| wanted)?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()
}

/// Copies messages to and from a line connection until either side closes.
async fn bridge<S: AsyncRead + AsyncWrite + Unpin>(server: Arc<Server>, stream: S) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let Ok((ours, theirs)) = UnixStream::pair() else { return };
    let (Ok(face), Ok((reader, writer))) = (outpost_wire::split(ours), outpost_wire::split(theirs)) else {
        return;
    };
    let face = tokio::spawn(serve(server, face));
    let (outbox, writing) = Outbox::new(writer);
    let writing = tokio::spawn(writing);
    let (mut sink, mut source) = socket.split();
    let to_face = async {
        while let Some(Ok(message)) = source.next().await {
            let line = match message {
                Message::Text(text) => text,
                Message::Close(_) => break,
                // "binary frames dropped; ping answered", by the library.
                _ => continue,
            };
            let sent = outbox.send(|out| append_line(out, line.as_str().as_bytes())).await;
            if sent.is_err() {
                break;
            }
        }
    };
    let from_face = async {
        let mut lines = Lines::new(reader, usize::MAX);
        while let Ok(Line::Whole(line)) = lines.next().await {
            let Ok(text) = std::str::from_utf8(line) else { break };
            if sink.send(Message::text(text)).await.is_err() {
                break;
            }
        }
        let _gone = sink.close().await;
    };
    tokio::select! {
        () = to_face => {}
        () = from_face => {}
    }
    outbox.close();
    let _ended = (writing.await, face.await);
}

/// Appends a message as one line. JSON has newlines only between tokens, where a blank is equivalent.
fn append_line(out: &mut Vec<u8>, message: &[u8]) {
    out.extend(message.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    out.push(b'\n');
}
