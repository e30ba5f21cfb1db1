//! Small requests: many at once, and one after the other against a bare echo.

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
/// Ours and the echo's take turns, so that both see the same machine.
const SERIAL_TURN: usize = 500;

/// How a client waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// For what it wants to know, as every event loop does: Node's, Go's, tokio's.
    InEpoll,
    /// Asleep in read(): a Unix socket wakes it there also when the server has taken the request.
    InRead,
}

/// Where both servers and the client may run, and how that waits.
struct Setting {
    servers: &'static str,
    client: &'static str,
    waits: Waits,
    name: &'static str,
    /// Only where it is the work that decides.
    has_budget: bool,
}

const ANYWHERE: &str = "0,1";

const SETTINGS: [Setting; 4] = [
    Setting { servers: "0", client: "0", waits: Waits::InEpoll, name: "one CPU", has_budget: true },
    Setting { servers: "1", client: "0", waits: Waits::InEpoll, name: "two CPUs", has_budget: true },
    // On the client's CPU a server answers ten times as fast as on another, and there is often room for one of the two.
    Setting {
        servers: ANYWHERE,
        client: ANYWHERE,
        waits: Waits::InEpoll,
        name: "anywhere",
        has_budget: false,
    },
    // The scheduler preempts a server that has used more CPU than its client at both wake-ups: four switches instead of
    // two. That affects any server that works for more than 0.5 us.
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
    // Where the scheduler puts the two ends decides more than what they do, so they are put somewhere.
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
    // What is measured after this is not tied.
    pin(std::process::id(), ANYWHERE)
}

/// Ties all threads of a process to CPUs.
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

/// Asks one server, and knows how long each answer took.
struct Asker {
    stream: UnixStream,
    epoll: Option<Epoll>,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    took: Samples,
}

impl Asker {
    fn new(stream: UnixStream, waits: Waits) -> Result<Asker> {
        // A read that gives up after a time costs more than one that does not.
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

/// The floor: a process of its own that waits with epoll, reads, and writes as many bytes as a pong has. It has a session
/// of its own as every daemon has, because the scheduler takes longer between those than within one.
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

/// The other end: ends with its client.
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
