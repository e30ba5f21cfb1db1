//! The face inside the daemon: on its socket as lines and as a websocket, on a port for clients with the token.

use outpost_testkit::{Daemon, Half, binary_beside};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

const TIMEOUT: Duration = Duration::from_secs(30);

const HELLO: &str = r#"{"id":0,"method":"initialize","params":{"clientInfo":{"name":"t","version":"1"}}}"#;

/// A connection that carries messages, independent of their framing.
trait Connection {
    fn send_message(&mut self, message: &str);
    fn receive_message(&mut self) -> Value;

    fn initialize(&mut self) {
        self.send_message(HELLO);
        assert!(self.receive_message()["result"]["userAgent"].is_string());
    }

    fn exec(&mut self, id: u64, params: &Value) {
        self.send_message(&json!({"id": id, "method": "command/exec", "params": params}).to_string());
    }
}

struct Lines {
    socket: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Lines {
    fn connect(daemon: &Daemon) -> Lines {
        let socket = outpost_testkit::connect(daemon.dir().join("run/exec.sock")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let reader = BufReader::new(socket.try_clone().unwrap());
        Lines { socket, reader }
    }
}

impl Connection for Lines {
    fn send_message(&mut self, message: &str) {
        writeln!(self.socket, "{message}").unwrap();
    }

    fn receive_message(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }
}

impl<S: Read + Write> Connection for WebSocket<S> {
    fn send_message(&mut self, message: &str) {
        self.send(Message::text(message)).unwrap();
    }

    fn receive_message(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.read().unwrap() {
                return serde_json::from_str(text.as_str()).unwrap();
            }
        }
    }
}

fn start(flags: &[&str]) -> Daemon {
    Daemon::start_with(&binary(), flags)
}

pub(crate) fn binary() -> PathBuf {
    let ours = std::env::current_exe().unwrap();
    binary_beside(ours.parent().unwrap(), "outpost")
}

fn open(port: u16, headers: &[(&'static str, String)]) -> Result<WebSocket<TcpStream>, StatusCode> {
    let mut request = format!("ws://127.0.0.1:{port}/").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response.status())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs commands that print and checks their replies.
fn exchange(connection: &mut impl Connection) {
    connection.initialize();
    connection.exec(1, &json!({"command": ["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]}));
    let answer = connection.receive_message();
    let result = &answer["result"];
    assert_eq!((&answer["id"], &result["exitCode"]), (&json!(1), &json!(3)), "{answer}");
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("out\n"), &json!("err\n")));
    connection.exec(2, &json!({"command": ["/bin/echo", "x"], "processId": "p", "streamStdoutStderr": true}));
    assert_eq!(connection.receive_message()["params"]["deltaBase64"], "eAo=");
    assert_eq!(connection.receive_message()["id"], 2);
}

fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}");
        outpost_testkit::pause();
    }
}

/// A command that prints its pid and keeps running, in a session of its own.
fn stay(connection: &mut impl Connection) -> i32 {
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & wait";
    let params = json!({"command": ["/bin/sh", "-c", script], "processId": "p", "streamStdoutStderr": true,
        "disableTimeout": true, "sandboxPolicy": {"type": "dangerFullAccess"}});
    connection.exec(7, &params);
    let delta = connection.receive_message();
    let text = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        delta["params"]["deltaBase64"].as_str().unwrap(),
    );
    String::from_utf8(text.unwrap()).unwrap().trim().parse().unwrap()
}

#[test]
fn the_socket_speaks_lines_and_websocket() {
    let daemon = start(&[]);
    exchange(&mut Lines::connect(&daemon));
    let stream = outpost_testkit::connect(daemon.dir().join("run/exec.sock")).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut socket, _) = tungstenite::client("ws://localhost/", stream).unwrap();
    exchange(&mut socket);
    // A message may be spread over several lines, which to JSON are blanks.
    socket.send_message("{\n\"id\": 9,\n\"method\": \"command/exec\", \"params\": {\"command\": [\"/bin/echo\", \"a\\nb\"]}\n}");
    assert_eq!(socket.receive_message()["result"]["stdout"], "a\nb\n");
}

#[test]
fn a_port_opens_to_the_token_and_never_to_a_web_page() {
    // A free port: bound for a moment and released.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let daemon = start(&["--exec-websocket", &format!("127.0.0.1:{port}")]);
    let token = std::fs::read_to_string(daemon.dir().join("run/exec.token")).unwrap();
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    assert_eq!(open(port, &[]).unwrap_err(), StatusCode::UNAUTHORIZED);
    assert_eq!(open(port, &[bearer("wrong")]).unwrap_err(), StatusCode::UNAUTHORIZED);
    assert_eq!(open(port, &[bearer("")]).unwrap_err(), StatusCode::UNAUTHORIZED);
    let page = ("origin", "http://localhost".to_owned());
    assert_eq!(open(port, &[bearer(&token), page]).unwrap_err(), StatusCode::FORBIDDEN);
    exchange(&mut open(port, &[bearer(&token)]).unwrap());
    for (path, status) in [("/readyz", "200 OK"), ("/healthz", "200 OK"), ("/", "401 Unauthorized")] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}

#[test]
fn a_port_that_others_could_reach_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let serve = Command::new(binary())
        .args(["--state-dir", "s", "--runtime-dir", "r", "serve", "--exec-websocket", "0.0.0.0:0"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&serve.stderr);
    assert!(!serve.status.success() && stderr.contains("not a loopback address"), "{stderr}");
}

#[test]
fn a_disconnect_ends_the_commands_of_its_connection_only() {
    let daemon = start(&[]);
    let (mut one, mut other) = (Lines::connect(&daemon), Lines::connect(&daemon));
    one.initialize();
    other.initialize();
    let (ones, others) = (stay(&mut one), stay(&mut other));
    other.send_message(r#"{"id":8,"method":"command/exec/terminate","params":{"processId":"q"}}"#);
    assert_eq!(other.receive_message()["error"]["message"], "no active command/exec for process id \"q\"");
    drop(one);
    until("it has ended", || !is_alive(ones));
    assert!(is_alive(others));
    other.send_message(r#"{"id":9,"method":"command/exec/terminate","params":{"processId":"p"}}"#);
    until("it has ended, too", || !is_alive(others));
}

#[test]
fn a_killed_worker_leaves_no_command_behind_and_the_next_one_serves() {
    let daemon = start(&[]);
    let mut client = Lines::connect(&daemon);
    client.initialize();
    let pid = stay(&mut client);
    daemon.kill(Half::Worker);
    until("it has ended", || !is_alive(pid));
    exchange(&mut Lines::connect(&daemon));
    until("nothing is left of it", || daemon.list().is_empty());
}
