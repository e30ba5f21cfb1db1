//! Helpers for all tests: a daemon of this build, its command line, and readers of process output.

use outpost_control::wire::{Attach, Attached, ExitStatus, Spawn, Spawned};
use outpost_testkit::{Daemon, Terminal};
use outpost_wire::base64;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn outpost() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_outpost"))
}

/// `outpost` with these arguments, for this daemon.
pub(crate) fn cli(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments).current_dir(daemon.dir());
    command.stdin(Stdio::null());
    command
}

/// Runs `outpost` and returns its standard output and its exit code.
pub(crate) fn stdout_and_code(daemon: &Daemon, arguments: &[&str]) -> (String, Option<i32>) {
    let output = cli(daemon, arguments).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// Starts `outpost` on a new terminal.
pub(crate) fn on_terminal(daemon: &Daemon, arguments: &[&str], rows: u16, cols: u16) -> Terminal {
    let own = [outpost().to_str().unwrap(), "--state-dir", "state", "--runtime-dir", "run"];
    let arguments: Vec<String> = own.iter().chain(arguments).map(|text| (*text).to_owned()).collect();
    let environment = [("PATH", "/usr/bin:/bin"), ("TERM", "xterm"), ("PS1", "in> ")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Terminal::start_sized(&arguments, &environment, daemon.dir().to_str().unwrap(), rows, cols)
}

pub(crate) fn daemon() -> Daemon {
    Daemon::start(outpost())
}

/// Starts a shell script.
pub(crate) fn sh(daemon: &Daemon, id: &str, script: &str) -> Spawned {
    let command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
    let spawn = Spawn { id: id.to_owned(), command, stdin: true, ..Spawn::default() };
    daemon.connect().call("spawn", &spawn).unwrap()
}

/// Reads output from the start until there are `enough` bytes or the process has exited.
pub(crate) fn read(daemon: &Daemon, process: &str, enough: usize) -> (Vec<u8>, Option<ExitStatus>) {
    let mut client = daemon.connect();
    let attach = Attach { process: process.to_owned(), ..Attach::default() };
    let _attached: Attached = client.call("attach", &attach).unwrap();
    let mut output = Vec::new();
    while output.len() < enough {
        let message = client.receive().unwrap();
        if let Some(data) = message.data {
            output.extend(base64::decode(data.as_bytes()).unwrap());
        }
        if message.exit.is_some() {
            return (output, message.exit);
        }
    }
    (output, None)
}

pub(crate) fn exit_code(exit: Option<ExitStatus>) -> Option<i32> {
    exit.expect("an exit").code
}

/// Polls until `condition` holds, for state that no event reports.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Reads the metrics of a daemon with its token, which root's daemon requires.
pub(crate) fn metrics(dir: &Path, url: &str) -> String {
    let token = std::fs::read_to_string(dir.join("state/metrics.token")).unwrap();
    http_get_with(url, &format!("authorization: Bearer {token}\r\n"))
}

/// Fetches a page over HTTP, with its headers.
pub(crate) fn http_get(url: &str) -> String {
    http_get_with(url, "")
}

fn http_get_with(url: &str, headers: &str) -> String {
    use std::io::{Read, Write};
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
