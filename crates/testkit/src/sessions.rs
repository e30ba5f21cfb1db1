//! A client of the sessions face that does nothing by itself: requests, answers, and streams read event by event.

use crate::daemon::TIMEOUT;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Where the face is.
#[derive(Clone, Copy, Debug)]
pub struct SessionsClient {
    address: SocketAddr,
    token: Option<&'static str>,
}

/// An answer over HTTP that is no stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl SessionsClient {
    pub fn new(address: SocketAddr) -> SessionsClient {
        SessionsClient { address, token: None }
    }

    /// With the token in a file of the daemon's, which root's daemon demands.
    pub fn with_token_of(self, file: &std::path::Path) -> SessionsClient {
        let token = std::fs::read_to_string(file).ok().map(|token| &*token.leak());
        SessionsClient { token, ..self }
    }

    /// As a client that has none.
    pub fn without_token(self) -> SessionsClient {
        SessionsClient { token: None, ..self }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn authorization(&self) -> String {
        self.token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default()
    }

    /// Any request; the answer is read to its end, and the connection to its.
    pub fn http(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let mut stream = self.connect().unwrap();
        let host = format!("127.0.0.1:{}", self.address.port());
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += &format!("host: {host}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &self.authorization();
        if method == "POST" {
            head += &format!("content-length: {}\r\n", body.len());
        }
        // A server that refuses the body may close before all of it is sent.
        let _refused = stream.write_all(format!("{head}\r\n{body}").as_bytes());
        let mut response = Response::read(stream).unwrap();
        let body = response.rest().unwrap();
        HttpAnswer {
            status: response.status,
            headers: response.headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// A body for `/rpc`, as it is.
    pub fn post(&self, body: &str) -> HttpAnswer {
        self.http("POST", "/rpc", &[("content-type", "application/json")], body)
    }

    /// The whole answer to a method.
    pub fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.post(&json!({ "method": method, "params": params }).to_string());
        assert_eq!(answer.status, 200, "{method}: {answer:?}");
        answer.json()
    }

    /// The result of a method, which must have one.
    pub fn result(&self, method: &str, params: Value) -> Value {
        let mut answer = self.call(method, params);
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        answer["result"].take()
    }

    /// The error of a method, which must have one.
    pub fn error(&self, method: &str, params: Value) -> (i64, String) {
        let answer = self.call(method, params);
        assert!(answer.get("result").is_none(), "{method}: {answer}");
        (answer["error"]["code"].as_i64().unwrap(), answer["error"]["message"].as_str().unwrap().to_owned())
    }

    /// Sends a request and reads nothing.
    pub fn begin(&self, method: &str, params: &Value) -> io::Result<TcpStream> {
        let mut stream = self.connect()?;
        let body = json!({ "method": method, "params": params }).to_string();
        let head = format!(
            "POST /rpc HTTP/1.1\r\nhost: {}\r\n{}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            self.authorization(),
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes())?;
        Ok(stream)
    }

    /// The same for the methods that may answer with a stream. The connection may be lost instead.
    pub fn try_stream(&self, method: &str, params: &Value) -> io::Result<EventReader> {
        let response = Response::read(self.begin(method, params)?)?;
        assert_eq!(response.header("content-type"), "text/event-stream", "{:?}", response.headers);
        Ok(EventReader { response, pending: Vec::new(), taken: 0 })
    }

    pub fn stream(&self, method: &str, params: Value) -> EventReader {
        self.try_stream(method, &params).unwrap_or_else(|error| panic!("{method} {params}: {error}"))
    }

    pub fn send(&self, session: &str, message: &str) -> EventReader {
        self.stream("session.send", json!({ "sessionId": session, "message": message }))
    }

    /// Everything after the event with this number.
    pub fn attach(&self, session: &str, cursor: u64) -> EventReader {
        self.stream("session.reconnect", json!({ "sessionId": session, "cursor": cursor }))
    }

    /// Events that no client has received.
    pub fn buffered(&self, session: &str) -> Vec<Value> {
        let mut result = self.result("session.reconnect", json!({ "sessionId": session }));
        match result["bufferedEvents"].take() {
            Value::Array(events) => events,
            other => panic!("{other}"),
        }
    }
}

/// The head of an answer, and its body as it comes.
struct Response {
    status: u16,
    headers: HashMap<String, String>,
    reader: BufReader<TcpStream>,
    /// Bytes left of the chunk at hand.
    chunk: usize,
    is_over: bool,
}

fn lost(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what.to_owned())
}

impl Response {
    fn read(stream: TcpStream) -> io::Result<Response> {
        let mut reader = BufReader::with_capacity(64 * 1024, stream);
        let mut line = || -> io::Result<String> {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| lost("no head"))
        };
        let first = line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut headers = HashMap::new();
        loop {
            let line = line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Ok(Response { status, headers, reader, chunk: 0, is_over: false })
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Some bytes of a chunked body; none at its end.
    fn piece(&mut self) -> io::Result<Vec<u8>> {
        if self.is_over {
            return Ok(Vec::new());
        }
        if self.chunk == 0 {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            let size = line.strip_suffix("\r\n").ok_or_else(|| lost("no chunk"))?;
            self.chunk = usize::from_str_radix(size, 16).map_err(|_| lost("no size of a chunk"))?;
            if self.chunk == 0 {
                self.is_over = true;
                return Ok(Vec::new());
            }
        }
        let mut piece = vec![0; self.chunk.min(64 * 1024)];
        let read = self.reader.read(&mut piece)?;
        if read == 0 {
            return Err(lost("the middle of a chunk"));
        }
        piece.truncate(read);
        self.chunk -= read;
        if self.chunk == 0 {
            let mut end = [0; 2];
            self.reader.read_exact(&mut end)?;
        }
        Ok(piece)
    }

    fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding") == "chunked" {
            loop {
                match self.piece()? {
                    piece if piece.is_empty() => return Ok(body),
                    piece => body.extend(piece),
                }
            }
        }
        let length = self.header("content-length").parse().unwrap_or(0);
        body.resize(length, 0);
        self.reader.read_exact(&mut body)?;
        Ok(body)
    }
}

/// A stream of events.
pub struct EventReader {
    response: Response,
    pending: Vec<u8>,
    /// Of that, what was returned before.
    taken: usize,
}

/// What stands on a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Sse {
    Event(Value),
    Done,
}

impl EventReader {
    pub fn header(&self, name: &str) -> &str {
        self.response.header(name)
    }

    /// The next thing on the stream, pings too; none at its end.
    pub fn try_next(&mut self) -> io::Result<Option<Sse>> {
        let mut looked = self.taken;
        loop {
            if let Some(end) = memchr::memmem::find(&self.pending[looked..], b"\n\n") {
                let event = std::str::from_utf8(&self.pending[self.taken..looked + end]).unwrap();
                let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event:.300}"));
                let next = match data {
                    "[DONE]" => Sse::Done,
                    text => Sse::Event(serde_json::from_str(text).unwrap()),
                };
                self.taken = looked + end + 2;
                return Ok(Some(next));
            }
            self.pending.drain(..self.taken);
            looked = self.pending.len().saturating_sub(1);
            self.taken = 0;
            let piece = self.response.piece()?;
            if piece.is_empty() {
                assert!(
                    self.pending.is_empty(),
                    "half an event: {:?}",
                    String::from_utf8_lossy(&self.pending)
                );
                return Ok(None);
            }
            self.pending.extend(piece);
        }
    }

    /// The next event that is no ping.
    pub fn event(&mut self) -> Value {
        loop {
            match self.try_next().unwrap() {
                Some(Sse::Event(event)) if event["type"] == "ping" => {}
                Some(Sse::Event(event)) => return event,
                other => panic!("{other:?} instead of an event"),
            }
        }
    }

    /// Events without pings up to one that is as wanted.
    pub fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.event());
            if wanted(events.last().unwrap()) {
                return events;
            }
        }
    }

    /// All that is left, without pings: `[DONE]` must come, and nothing after it.
    pub fn rest(&mut self) -> Vec<Value> {
        let (events, end) = self.rest_or_lost();
        end.unwrap_or_else(|error| panic!("{error} after {events:?}"));
        events
    }

    /// The same, and whether it broke off.
    pub fn rest_or_lost(&mut self) -> (Vec<Value>, io::Result<()>) {
        let mut events = Vec::new();
        loop {
            match self.try_next() {
                Ok(Some(Sse::Event(event))) if event["type"] == "ping" => {}
                Ok(Some(Sse::Event(event))) => events.push(event),
                Ok(Some(Sse::Done)) => {
                    assert_eq!(self.try_next().unwrap(), None, "[DONE] is last");
                    return (events, Ok(()));
                }
                Ok(None) => return (events, Err(lost("no [DONE]"))),
                Err(error) => return (events, Err(error)),
            }
        }
    }
}
