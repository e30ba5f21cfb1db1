//! Test fixture: a program to install, a raw HTTP server, and a run of the mode.

use super::decompress::Checksum;
use super::{LIMITS, Limits, Options, run_within};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// A program that passes the version probe.
pub(super) const CLI: &[u8] = b"#!/bin/sh\ntest \"$1\" = --version && echo 1.0\n";

/// Writes an executable script through another process. A descriptor of this process could be inherited by a child that
/// another test forks at this moment, and the exec of the script would fail with ETXTBSY.
pub(super) fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    let mut writer = Command::new("/bin/sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{body}\n").as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    path
}

pub(super) fn packed(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut checksum = Checksum::default();
    checksum.add(bytes);
    checksum.hex()
}

/// Incompressible, deterministic bytes.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A versions directory and the options to install `1.0` into it.
pub(super) struct Fixture {
    pub(super) root: tempfile::TempDir,
    pub(super) options: Options,
}

impl Fixture {
    /// Does not create the versions directory.
    pub(super) fn new() -> Fixture {
        let root = tempfile::tempdir().unwrap();
        let cli_dir = root.path().join("clis").to_str().unwrap().to_owned();
        let options = Options { cli_dir, cli_version: "1.0".to_owned(), ..Options::default() };
        Fixture { root, options }
    }

    /// With a blob for `-cli-zst` outside of the versions directory.
    pub(super) fn with_blob(blob: &[u8]) -> Fixture {
        let mut fixture = Fixture::new();
        let path = fixture.root.path().join("upload");
        std::fs::write(&path, blob).unwrap();
        fixture.options.cli_zst = path.to_str().unwrap().to_owned();
        fixture
    }

    pub(super) fn with_url(url: String, blob: &[u8]) -> Fixture {
        let mut fixture = Fixture::new();
        fixture.options.cli_url = url;
        fixture.options.cli_checksum = sha256(blob);
        fixture
    }

    pub(super) fn dir(&self) -> PathBuf {
        PathBuf::from(&self.options.cli_dir)
    }

    pub(super) fn cli(&self) -> PathBuf {
        self.dir().join(&self.options.cli_version)
    }

    /// The names in the versions directory, including hidden ones.
    pub(super) fn names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(super) fn run(&self) -> RunOutput {
        self.run_within(&LIMITS)
    }

    pub(super) fn run_within(&self, limits: &Limits) -> RunOutput {
        let mut out = Vec::new();
        run_within(limits, &self.options, "9.9", &mut out);
        RunOutput::new(out)
    }
}

/// The output lines of a run.
#[derive(Debug)]
pub(super) struct RunOutput {
    pub(super) progress: Vec<String>,
    pub(super) result: String,
}

impl RunOutput {
    pub(super) fn new(out: Vec<u8>) -> RunOutput {
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with('\n'), "{text}");
        let mut progress: Vec<String> = text.lines().map(str::to_owned).collect();
        let result = progress.pop().unwrap();
        assert!(result.starts_with("__INSTALL_RESULT__{") && result.ends_with('}'), "{result}");
        assert!(progress.iter().all(|line| line.starts_with("__INSTALL_PROGRESS__{")), "{progress:?}");
        RunOutput { progress, result }
    }

    /// The `cliError`; empty if there is none. Works only for texts without JSON escapes.
    pub(super) fn error(&self) -> &str {
        let (_, rest) = self.result.split_once("\"cliError\":\"").unwrap_or_default();
        rest.split('"').next().unwrap()
    }

    pub(super) fn was_present(&self) -> bool {
        self.result.contains("\"cliWasPresent\":true")
    }

    /// Whether this run installed the version without an error.
    pub(super) fn installed(&self) -> bool {
        self.error().is_empty() && !self.was_present()
    }

    /// A number of the `fetch` object.
    pub(super) fn fetch(&self, name: &str) -> Option<u64> {
        let (_, fetch) = self.result.split_once("\"fetch\":{")?;
        let (_, value) = fetch.split_once(&format!("\"{name}\":"))?;
        value.split([',', '}']).next()?.parse().ok()
    }
}

/// The lines of a request head.
pub(super) type Request = Vec<String>;

/// An HTTP server that runs a handler in one thread per connection.
pub(super) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        // The thread runs until the test process exits.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let request: Request =
                        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    let target = request
                        .first()
                        .and_then(|line| line.split(' ').nth(1))
                        .unwrap_or_default()
                        .to_owned();
                    seen.lock().unwrap().push(request);
                    answer(&target, &mut stream);
                });
            }
        });
        Server { port, requests }
    }

    /// Serves one file for every request.
    pub(super) fn of(blob: &[u8]) -> Server {
        let blob = blob.to_vec();
        Server::start(move |_, stream| ok(stream, &blob))
    }

    pub(super) fn url(&self, target: &str) -> String {
        format!("http://127.0.0.1:{}{target}", self.port)
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// Writes a complete response. Ignores a client that disconnects early.
pub(super) fn respond(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n");
    let _client_may_be_gone = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

pub(super) fn ok(stream: &mut TcpStream, body: &[u8]) {
    respond(stream, "200 OK", &format!("Content-Length: {}\r\n", body.len()), body);
}
