//! Pings: pipelined, and one at a time in comparison with a bare echo server.

use super::{Relay, timed};
use crate::Result;
use crate::budget::{RELAY_PING_RATIO_MAX, RELAY_PINGS_MIN, Table};
use crate::samples::Samples;
use outpost_sys::epoll::{Epoll, Interest, Ready};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

const PIPELINED: usize = 200_000;
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;
const SERIAL: usize = 20_000;
/// Pings to the relay and to the echo server alternate after this many, so that both run under the same conditions.
const SERIAL_TURN: usize = 500;

/// How a client waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Waits in epoll for readability, as the event loops of Node, Go and tokio do.
    InEpoll,
    /// Blocks in read(). A Unix socket also wakes this reader when the server has read the request.
    InRead,
}

/// The CPUs of both servers and of the client, and how the client waits.
struct Setting {
    servers: &'static str,
    client: &'static str,
    waits: Waits,
    name: &'static str,
    /// Set only where the work of the server determines the result.
    has_budget: bool,
}

const ANYWHERE: &str = "0,1";

const SETTINGS: [Setting; 4] = [
    Setting { servers: "0", client: "0", waits: Waits::InEpoll, name: "one CPU", has_budget: true },
    Setting { servers: "1", client: "0", waits: Waits::InEpoll, name: "two CPUs", has_budget: true },
    // A server on the client's CPU answers ten times as fast as one on another CPU, and the scheduler often places only
    // one of the two servers there.
    Setting {
        servers: ANYWHERE,
        client: ANYWHERE,
        waits: Waits::InEpoll,
        name: "anywhere",
        has_budget: false,
    },
    // The scheduler preempts a server at both wake-ups if the server has used more CPU time than its client: four context
    // switches instead of two. This affects every server that works for more than 0.5 us.
    Setting {
        servers: "0",
        client: "0",
        waits: Waits::InRead,
        name: "one CPU, asleep in read",
        has_budget: false,
    },
];

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let relay = Relay::start(binary)?;
    let mut rate = Samples::default();
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        let ((), time) = timed(|| pipelined(&relay))?;
        rate.push(PIPELINED as f64 / time.as_secs_f64());
    }
    table.at_least("relay: pings, pipelined", rate.median(), "/s", RELAY_PINGS_MIN);
    // The placement of client and server affects the result more than their work, so both are pinned.
    for setting in &SETTINGS {
        let (ours, echo) = serial(&relay, setting, if quick { SERIAL / 4 } else { SERIAL })?;
        let name = setting.name;
        table.info(&format!("relay: bare echo, {name}, median"), echo.median(), "us");
        table.info(&format!("relay: ping, {name}, median"), ours.median(), "us");
        let row = format!("relay: ping / bare echo, {name}");
        let ratio = ours.median() / echo.median();
        match setting.has_budget {
            true => table.at_most(&row, ratio, "x", RELAY_PING_RATIO_MAX),
            false => table.info(&row, ratio, "x"),
        }
    }
    // Later measurements are not pinned.
    pin(std::process::id(), ANYWHERE)
}

/// Pins all threads of a process to CPUs.
fn pin(pid: u32, cpus: &str) -> Result<()> {
    let pinned = Command::new("taskset")
        .args(["-a", "-c", "-p", cpus, &pid.to_string()])
        .stdout(Stdio::null())
        .status()?;
    if pinned.success() { Ok(()) } else { Err("taskset failed".into()) }
}

fn pipelined(relay: &Relay) -> Result<()> {
    let mut client = relay.connect()?;
    let requests: String = (0..PIPELINED).map(|_| client.request("server.ping", "{}")).collect();
    let mut writer = client.writer.try_clone()?;
    let writing = std::thread::spawn(move || writer.write_all(requests.as_bytes()));
    let mut stream = client.reader.into_inner();
    let mut buffer = vec![0; 256 * 1024];
    let mut answers = 0;
    while answers < PIPELINED {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err("the relay closed the connection".into());
        }
        answers += buffer.get(..read).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
    }
    writing.join().map_err(|_| "the writer failed")??;
    Ok(())
}

fn serial(relay: &Relay, setting: &Setting, rounds: usize) -> Result<(Samples, Samples)> {
    let mut client = relay.connect()?;
    let request = client.request("server.ping", "{}");
    let (echo, echo_pid) = start_echo(relay)?;
    pin(std::process::id(), setting.client)?;
    for pid in [echo_pid, relay.status()?.worker_pid] {
        pin(pid, setting.servers)?;
    }
    let mut ours = Asker::new(client.writer, setting.waits)?;
    let mut theirs = Asker::new(echo, setting.waits)?;
    for _ in 0..rounds / SERIAL_TURN {
        for asker in [&mut ours, &mut theirs] {
            for _ in 0..SERIAL_TURN {
                asker.ask(request.as_bytes())?;
            }
        }
    }
    Ok((ours.took, theirs.took))
}

/// Sends requests to one server and records the time of each response.
struct Asker {
    stream: UnixStream,
    epoll: Option<Epoll>,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    took: Samples,
}

impl Asker {
    fn new(stream: UnixStream, waits: Waits) -> Result<Asker> {
        // A read with a timeout costs more than one without.
        stream.set_read_timeout(None)?;
        let epoll = match waits {
            Waits::InRead => None,
            Waits::InEpoll => {
                let epoll = Epoll::new()?;
                epoll.add(&stream, 0, Interest::Read)?;
                Some(epoll)
            }
        };
        Ok(Asker { stream, epoll, ready: Vec::new(), buffer: vec![0; 4096], took: Samples::default() })
    }

    fn ask(&mut self, request: &[u8]) -> Result<()> {
        let Asker { stream, epoll, ready, buffer, took } = self;
        let (read, time) = timed(|| {
            stream.write_all(request)?;
            if let Some(epoll) = epoll {
                epoll.wait(ready, None)?;
            }
            Ok(stream.read(buffer)?)
        })?;
        took.push_us(time);
        if read == 0 { Err("no answer".into()) } else { Ok(()) }
    }
}

/// Starts the floor: a separate process that waits with epoll, reads, and writes as many bytes as a pong has. It has its
/// own session, as every daemon has: the scheduler switches more slowly between sessions than within one.
fn start_echo(relay: &Relay) -> Result<(UnixStream, u32)> {
    let socket = relay.dir.path().join("echo.sock");
    let _none_before = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let echo = Command::new("setsid")
        .arg(std::env::current_exe()?)
        .arg("echo")
        .stdin(std::os::fd::OwnedFd::from(listener))
        .spawn()?;
    Ok((outpost_testkit::connect(&socket)?, echo.id()))
}

/// The echo server. Returns when its client disconnects.
pub(crate) fn echo() -> Result<()> {
    use std::os::fd::AsFd;
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (mut stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let epoll = Epoll::new()?;
    epoll.add(&stream, 0, Interest::Read)?;
    let pong = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"pong\":true}}\n";
    let mut buffer = vec![0; 4096];
    let mut ready = Vec::new();
    loop {
        epoll.wait(&mut ready, None)?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => stream.write_all(pong)?,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}
