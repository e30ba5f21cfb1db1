//! Small requests: many at once, and one after the other against a bare echo.

use super::{Relay, timed};
use crate::Result;
use crate::budget::{RELAY_PING_RATIO_MAX, RELAY_PINGS_MIN, Table};
use crate::samples::Samples;
use outpost_sys::epoll::{Epoll, Interest};
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

/// Where both servers and where the client may run.
const PLACES: [(&str, &str, &str); 3] =
    [("0", "0", "one CPU"), ("1", "0", "two CPUs"), ("0,1", "0,1", "anywhere")];

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let relay = Relay::start(binary)?;
    let mut rate = Samples::default();
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        let ((), time) = timed(|| pipelined(&relay))?;
        rate.push(PIPELINED as f64 / time.as_secs_f64());
    }
    table.at_least("relay: pings, pipelined", rate.median(), "/s", RELAY_PINGS_MIN);
    // Where the scheduler puts the two ends decides more than what they do, so they are also put somewhere.
    for (servers, client, place) in PLACES {
        let (ours, echo) = serial(&relay, servers, client, if quick { SERIAL / 4 } else { SERIAL })?;
        table.info(&format!("relay: bare echo, {place}, median"), echo.median(), "us");
        table.info(&format!("relay: ping, {place}, median"), ours.median(), "us");
        let ratio = ours.median() / echo.median();
        table.at_most(&format!("relay: ping / bare echo, {place}"), ratio, "x", RELAY_PING_RATIO_MAX);
    }
    Ok(())
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

fn serial(relay: &Relay, servers: &str, client_at: &str, rounds: usize) -> Result<(Samples, Samples)> {
    let mut client = relay.connect()?;
    let request = client.request("server.ping", "{}");
    let (mut echo, echo_pid) = start_echo(relay)?;
    pin(std::process::id(), client_at)?;
    for pid in [echo_pid, relay.status()?.worker_pid] {
        pin(pid, servers)?;
    }
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut buffer = vec![0; 4096];
    for _ in 0..rounds / SERIAL_TURN {
        for (stream, samples) in [(&mut client.writer, &mut ours), (&mut echo, &mut theirs)] {
            for _ in 0..SERIAL_TURN {
                let (read, time) = timed(|| {
                    stream.write_all(request.as_bytes())?;
                    Ok(stream.read(&mut buffer)?)
                })?;
                if read == 0 {
                    return Err("no answer".into());
                }
                samples.push_us(time);
            }
        }
    }
    Ok((ours, theirs))
}

/// The floor: a process of its own that waits with epoll, reads, and writes as many bytes as a pong has.
fn start_echo(relay: &Relay) -> Result<(UnixStream, u32)> {
    let socket = relay.dir.path().join("echo.sock");
    let _none_before = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let echo = Command::new(std::env::current_exe()?)
        .arg("echo")
        .stdin(std::os::fd::OwnedFd::from(listener))
        .spawn()?;
    Ok((UnixStream::connect(&socket)?, echo.id()))
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
