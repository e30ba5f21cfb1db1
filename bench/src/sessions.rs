//! The sessions face as a client sees it: health, streams of events, the first event after a message, and what unread
//! events cost. The agent is this program itself, called `claude`.

mod agent;
mod client;

pub(crate) use agent::{AGENT_NAME, run as run_agent};

use crate::Result;
use crate::budget::{SESSIONS_FIRST_EVENT_RATIO_MAX, SESSIONS_MANY_RATIO_MIN, SESSIONS_UNREAD_MB_MAX, Table};
use crate::daemon::TICKS;
use crate::samples::Samples;
use client::{Client, Server};
use outpost_sys::procfs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 64;
const SESSIONS: usize = 5000;
const EVENTS: usize = 100_000;
const STREAMS: usize = 8;
const STREAMS_MANY: usize = 1000;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let server = Server::start(binary)?;
    let span = Duration::from_millis(if quick { 500 } else { 2000 });
    let rounds = if quick { 3 } else { 9 };
    first_event(table, &server, if quick { 10 } else { 50 })?;
    events(table, &server, rounds)?;
    unread(table, &server)?;
    many_streams(table, &server)?;
    let alone = health(&server, span, rounds)?;
    table.info("sessions: health.check, 64 connections", alone.median() / 1e3, "k/s");
    crowd(&server)?;
    let crowded = health(&server, span, rounds)?;
    table.info("sessions: health.check with 5,000 sessions", crowded.median() / 1e3, "k/s");
    let ratio = crowded.median() / alone.median();
    table.at_least(
        "sessions: health.check with 5,000 sessions / without",
        ratio,
        "x",
        SESSIONS_MANY_RATIO_MIN,
    );
    let memory = procfs::private_dirty_memory(server.worker()?).unwrap_or_default() as f64 / 1e6;
    table.info("sessions: private memory of the worker with 6,000 sessions", memory, "MB");
    Ok(())
}

/// Requests per second, each connection one after the other.
fn health(server: &Server, span: Duration, rounds: usize) -> Result<Samples> {
    let mut rates = Samples::default();
    for _ in 0..rounds {
        let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let ask = || -> Result<()> {
                let mut client = Client::connect(server.port)?;
                while !is_over.load(Ordering::Relaxed) {
                    client.call("health.check", "{}")?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            };
            let asking: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(ask)).collect();
            std::thread::sleep(span);
            is_over.store(true, Ordering::Relaxed);
            asking.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client failed")?)
        })?;
        rates.push(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(rates)
}

fn crowd(server: &Server) -> Result<()> {
    let mut client = Client::connect(server.port)?;
    (0..SESSIONS).try_for_each(|_| client.create(&server.project).map(|_| ()))
}

/// Events of one stream and of several at once, per second, and what the daemon spends on them.
fn events(table: &mut Table, server: &Server, rounds: usize) -> Result<()> {
    let message = format!("events {EVENTS}");
    for streams in [1, STREAMS] {
        let (mut rates, mut costs) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let mut client = Client::connect(server.port)?;
            let sessions: Result<Vec<String>> =
                (0..streams).map(|_| client.create(&server.project)).collect();
            let sessions = sessions?;
            let (begun, cpu) = (Instant::now(), cpu_s(server)?);
            let read = std::thread::scope(|scope| -> Result<usize> {
                let follow = |session: &String| Client::connect(server.port)?.send(session, &message);
                let reading: Vec<_> =
                    sessions.iter().map(|session| scope.spawn(move || follow(session))).collect();
                let counts =
                    reading.into_iter().map(|thread| thread.join().map_err(|_| "a reader failed")?);
                counts.sum()
            })?;
            // Ping, init and result besides.
            if read != streams * (EVENTS + 3) {
                return Err(format!("{read} events instead of {}", streams * (EVENTS + 3)).into());
            }
            rates.push(read as f64 / begun.elapsed().as_secs_f64());
            costs.push(cpu_s(server)? - cpu);
            sessions.iter().try_for_each(|session| client.destroy(session))?;
        }
        let name = if streams == 1 { "one stream" } else { "eight streams" };
        table.info(&format!("sessions: events, {name}"), rates.median() / 1e3, "k/s");
        let each = costs.median() / (streams * EVENTS) as f64 * 1e6;
        table.info(&format!("sessions: daemon's CPU per event, {name}"), each, "us");
    }
    Ok(())
}

fn cpu_s(server: &Server) -> Result<f64> {
    let stat = procfs::stat(server.worker()?).ok_or("the worker is gone")?;
    Ok(stat.cpu_ticks as f64 / TICKS)
}

/// From the message to the CLI's first event, against the CLI alone to its first line.
fn first_event(table: &mut Table, server: &Server, rounds: usize) -> Result<()> {
    let (mut ours, mut bare) = (Samples::default(), Samples::default());
    let mut client = Client::connect(server.port)?;
    let session = client.create(&server.project)?;
    for _ in 0..rounds {
        ours.push_ms(Client::connect(server.port)?.first_event(&session, "events 1")?);
        let begun = Instant::now();
        let mut cli = Command::new(server.bin.join(AGENT_NAME))
            .args(["-p", "events 1"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(cli.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        bare.push_ms(begun.elapsed());
        cli.wait()?;
    }
    table.info("sessions: message to first event, median", ours.median(), "ms");
    table.info("sessions: the CLI alone to its first line, median", bare.median(), "ms");
    let ratio = ours.median() / bare.median();
    table.at_most("sessions: message to first event / CLI alone", ratio, "x", SESSIONS_FIRST_EVENT_RATIO_MAX);
    client.destroy(&session)
}

/// A client sends and hangs up: what its unread answer costs.
fn unread(table: &mut Table, server: &Server) -> Result<()> {
    let mut client = Client::connect(server.port)?;
    // What the first one costs is not the events'.
    let mut before = 0;
    for round in 0..3 {
        let session = client.create(&server.project)?;
        Client::connect(server.port)?.send_and_leave(&session, &format!("events {EVENTS}"))?;
        client.wait_idle(&session, EVENTS as u64)?;
        let now = procfs::private_dirty_memory(server.worker()?).unwrap_or_default();
        if round == 1 {
            before = now;
        }
        if round == 2 {
            let grown = (now as f64 - before as f64) / 1e6;
            table.at_most("sessions: memory of 100,000 unread events", grown, "MB", SESSIONS_UNREAD_MB_MAX);
        }
    }
    Ok(())
}

/// A thousand conversations at once, until the last of them has its end.
fn many_streams(table: &mut Table, server: &Server) -> Result<()> {
    let mut client = Client::connect(server.port)?;
    let sessions: Result<Vec<String>> = (0..STREAMS_MANY).map(|_| client.create(&server.project)).collect();
    let sessions = sessions?;
    let begun = Instant::now();
    let mut open = Vec::with_capacity(STREAMS_MANY);
    for session in &sessions {
        let mut stream = Client::connect(server.port)?;
        stream.begin(session, "events 10")?;
        open.push(stream);
    }
    for stream in &mut open {
        let read = stream.read_events()?;
        if read != 13 {
            return Err(format!("{read} events of a stream instead of 13").into());
        }
    }
    table.info(
        "sessions: 1,000 streams at once, until the last has ended",
        begun.elapsed().as_secs_f64(),
        "s",
    );
    Ok(())
}
