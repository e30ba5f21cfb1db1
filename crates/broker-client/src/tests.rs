//! Requests to fake brokers that answer, close without a response, or send malformed lines.

#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

/// Sends a ping to a broker that reads the request, sends `response` and closes.
async fn ping_fake_broker(response: &'static [u8]) -> Result<Response> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("broker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let broker = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        stream.write_all(response).unwrap();
    });
    let result = BrokerClient::new(socket, Trust::Own).ping().await;
    broker.join().unwrap();
    result
}

#[tokio::test]
async fn a_response_is_read_up_to_its_newline() {
    let response = ping_fake_broker(b"{\"id\":\"a\",\"status\":\"ok\"}\n").await.unwrap();
    assert_eq!((response.id.as_str(), response.status), ("a", Status::Ok));
}

#[tokio::test]
async fn a_close_without_a_response_may_have_run() {
    for partial in [&b""[..], b"{\"id\":\"a\""] {
        let error = ping_fake_broker(partial).await.unwrap_err();
        assert!(matches!(error, Error::NoResponse { .. }), "{error}");
        assert!(error.to_string().contains("The command may have run"), "{error}");
    }
}

#[tokio::test]
async fn a_malformed_response_is_an_error() {
    let error = ping_fake_broker(b"garbage\n").await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_not_sent() {
    let client = BrokerClient::new("/nowhere/broker.sock".into(), Trust::Own);
    let long = Request { reason: "x".repeat(REQUEST_BYTES_MAX), ..new_request(Action::Exec) };
    assert!(matches!(client.request(&long).await, Err(Error::TooLong { .. })));
    assert!(matches!(client.ping().await, Err(Error::NoBroker { .. })));
}
