//! How fast one child's output reaches one client: the daemon with its journal against the floor without one.

pub(crate) mod floor;

use crate::Result;
use crate::budget::{LOST_MB_MAX, THROUGHPUT_RATIO_MIN, Table, WORKER_AFTER_OUTPUT_MB_MAX};
use crate::daemon::{Daemon, TICKS, private_kb};
use crate::samples::Samples;
use outpost_engine::{Batch, Config, Engine, Key, Spawn, Stdio};
use outpost_sys::procfs;
use serde_json::json;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio as CommandStdio};
use std::time::{Duration, Instant};

pub(crate) const BYTES: u64 = 1 << 30;

const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 3;

/// Read from the socket at a time, on both sides of the comparison.
const DRAIN_BYTES: usize = 256 * 1024;

/// How long the whole output may take before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One way of moving the output, over all rounds.
#[derive(Default)]
struct Figures {
    gb_per_s: Samples,
    cpu_s: Samples,
    lost_mb: Samples,
}

/// One round of one way. A reader that falls behind by more than the journal keeps skips ahead and does less work:
/// only received bytes count.
pub(crate) struct Round {
    pub(crate) time: Duration,
    pub(crate) cpu_ticks: u64,
    received: u64,
}

impl Figures {
    fn push(&mut self, round: &Round) {
        self.gb_per_s.push(round.received as f64 / 1e9 / round.time.as_secs_f64());
        self.cpu_s.push(round.cpu_ticks as f64 / TICKS);
        self.lost_mb.push(BYTES.saturating_sub(round.received) as f64 / 1e6);
    }
}

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let mut daemon = Daemon::start(binary)?;
    let (mut floor, mut ours, mut raw) = (Figures::default(), Figures::default(), Figures::default());
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        floor.push(&through_floor()?);
        ours.push(&through_daemon(&mut daemon)?);
        raw.push(&through_engine()?);
    }
    let worker_mb = private_kb(daemon.worker()?)? / 1024.0;
    daemon.stop()?;
    table.info("floor, no journal", floor.gb_per_s.median(), "GB/s");
    table.info("daemon, journal on", ours.gb_per_s.median(), "GB/s");
    table.at_least(
        "daemon / floor",
        ours.gb_per_s.median() / floor.gb_per_s.median(),
        "x",
        THROUGHPUT_RATIO_MIN,
    );
    let name = "dropped before the client could read it, worst round";
    table.at_most(name, ours.lost_mb.max(), "MB", LOST_MB_MAX);
    table.info("embedded engine, journal on, no encoding, no socket", raw.gb_per_s.median(), "GB/s");
    table.info("CPU of the floor for 1 GiB", floor.cpu_s.median(), "s");
    table.info("CPU of the worker for 1 GiB", ours.cpu_s.median(), "s");
    table.at_most("private memory of the worker afterwards", worker_mb, "MB", WORKER_AFTER_OUTPUT_MB_MAX);
    Ok(())
}

pub(crate) fn through_floor() -> Result<Round> {
    let (ours, its) = UnixStream::pair()?;
    let begun = Instant::now();
    let floor = Command::new(std::env::current_exe()?)
        .arg("floor")
        .arg(BYTES.to_string())
        .stdin(OwnedFd::from(its))
        .stdout(CommandStdio::piped())
        .spawn()?;
    let received = payload(drain(ours)?);
    let time = begun.elapsed();
    let output = floor.wait_with_output()?;
    let cpu_ticks = String::from_utf8(output.stdout)?.trim().parse()?;
    Ok(Round { time, cpu_ticks, received })
}

fn through_daemon(daemon: &mut Daemon) -> Result<Round> {
    let own = std::env::current_exe()?.display().to_string();
    let worker = daemon.worker()?;
    let ticks_before = cpu_ticks(worker)?;
    let mut stream = outpost_testkit::connect(daemon.socket())?;
    let begun = Instant::now();
    let process = daemon.spawn(&[&own, "produce", &BYTES.to_string()])?.process;
    let mut attach =
        serde_json::to_vec(&json!({"id": 1, "method": "attach", "params": {"process": process}}))?;
    attach.push(b'\n');
    stream.write_all(&attach)?;
    skip_line(&mut stream)?;
    let received = payload(drain(stream)?);
    let time = begun.elapsed();
    let cpu_ticks = cpu_ticks(worker)?.saturating_sub(ticks_before);
    daemon.forget(&process)?;
    Ok(Round { time, cpu_ticks, received })
}

/// The engine in this process, read as a face would read it. Its CPU time is the whole process's.
fn through_engine() -> Result<Round> {
    let dir = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let own = std::env::current_exe()?;
    runtime.block_on(async {
        let engine = Engine::with_keeper_thread(Config::new(dir.path()))?;
        let ticks_before = cpu_ticks(own_pid()?)?;
        let command = [own.into_os_string(), "produce".into(), BYTES.to_string().into()];
        let begun = Instant::now();
        let stdio = Stdio::Pipes { stdin: false };
        let process = engine.spawn(Spawn { stdio, ..Spawn::new(Key::new("bench", "", ""), command) }).await?;
        let mut subscription = process.subscribe(0);
        let (mut batch, mut received) = (Batch::default(), 0);
        while batch.ended.is_none() {
            subscription.next(&mut batch).await?;
            received += batch.bytes() as u64;
        }
        let time = begun.elapsed();
        let cpu_ticks = cpu_ticks(own_pid()?)?.saturating_sub(ticks_before);
        engine.shut_down(TIMEOUT).await?;
        Ok(Round { time, cpu_ticks, received })
    })
}

fn own_pid() -> Result<i32> {
    Ok(i32::try_from(std::process::id())?)
}

fn cpu_ticks(pid: i32) -> Result<u64> {
    Ok(procfs::stat(pid).ok_or("the worker is gone")?.cpu_ticks)
}

/// Takes the answer to the request byte by byte, so that nothing of what follows is taken with it.
fn skip_line(stream: &mut UnixStream) -> Result<()> {
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
    }
    Ok(())
}

/// Reads until the peer closes or reports an exit, and counts. It inspects only the last bytes of each read, so that the
/// consumer is not the bottleneck.
fn drain(mut stream: UnixStream) -> Result<u64> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; DRAIN_BYTES];
    let (mut received, mut last) = (0, [0; 3]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(received);
        }
        received += read as u64;
        for byte in &buffer[read.saturating_sub(last.len())..read] {
            last = [last[1], last[2], *byte];
        }
        // A line of output ends with a string; only the exit is an object in an object.
        if last == *b"}}\n" {
            return Ok(received);
        }
    }
}

/// How much output is in so many bytes of frames: the lines around it are a thousandth, which is ignored.
fn payload(received: u64) -> u64 {
    (received / 4 * 3).min(BYTES)
}
