//! How long it takes to start a program and to learn that it has ended.

use crate::Result;
use crate::budget::{KEEPER_MB_MAX, Table};
use crate::daemon::{Daemon, private_kb};
use crate::samples::Samples;
use outpost_engine::{Config, Engine, Key, Spawn, Stdio};
use outpost_sys::epoll::{Epoll, Interest};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd;
use outpost_sys::spawn::{self, Child, Executable, SessionKind};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio as CommandStdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 1000;
const ROUNDS_QUICK: usize = 300;

const PROGRAM: &str = "/bin/true";

/// How long the engine may take to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A start, in microseconds: until its caller continues, and until the child is reaped.
#[derive(Default)]
struct Start {
    begun: Samples,
    reaped: Samples,
}

impl Start {
    fn push(&mut self, begun: Duration, reaped: Duration) {
        self.begun.push_us(begun);
        self.reaped.push_us(reaped);
    }

    fn report(&self, table: &mut Table, name: &str) {
        table.info(&format!("{name}: reply, median"), self.begun.median(), "us");
        table.info(&format!("{name}: until reaped, median"), self.reaped.median(), "us");
        table.info(&format!("{name}: until reaped, p99"), self.reaped.p99(), "us");
    }
}

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let (ours, theirs) = from_small_process(rounds)?;
    theirs.report(table, "posix_spawn");
    ours.report(table, "keeper's spawn");
    // A part of a start only. The budgets of the relay and exec hold for the path that clients take.
    let ratio = ours.reaped.median() / theirs.reaped.median();
    table.info("keeper's spawn / posix_spawn, until reaped", ratio, "x");
    through_engine(rounds)?.report(table, "embedded engine");
    let mut daemon = Daemon::start(binary)?;
    let mut replies = Samples::default();
    for _ in 0..rounds {
        let begun = Instant::now();
        daemon.spawn(&[PROGRAM])?;
        replies.push_us(begun.elapsed());
    }
    let keeper_mb = private_kb(daemon.keeper()?)? / 1024.0;
    daemon.stop()?;
    table.info("daemon, over the control socket: reply, median", replies.median(), "us");
    table.info("daemon, over the control socket: reply, p99", replies.p99(), "us");
    table.at_most("private memory of the keeper after so many starts", keeper_mb, "MB", KEEPER_MB_MAX);
    Ok(())
}

/// Ours and the C library's, from a process that holds nothing, as the keeper does not.
fn from_small_process(rounds: usize) -> Result<(Start, Start)> {
    let own = std::env::current_exe()?;
    let output =
        Command::new(own).args(["starts", &rounds.to_string()]).stdin(CommandStdio::null()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let (mut ours, mut theirs) = (Start::default(), Start::default());
    for line in String::from_utf8(output.stdout)?.lines() {
        let times = line.split(' ').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
        let [begun, reaped, their_begun, their_reaped] = times[..] else {
            return Err("four times were expected".into());
        };
        ours.push(Duration::from_nanos(begun), Duration::from_nanos(reaped));
        theirs.push(Duration::from_nanos(their_begun), Duration::from_nanos(their_reaped));
    }
    Ok((ours, theirs))
}

/// The small process: prints a line of nanoseconds for each round.
pub(crate) fn starts(rounds: usize) -> Result<()> {
    let null = file::open("/dev/null", Open::ReadWrite)?;
    let program = CString::new(PROGRAM)?;
    let environment: Vec<CString> = std::env::vars_os()
        .filter_map(|(name, value)| {
            CString::new([name.into_vec(), b"=".to_vec(), value.into_vec()].concat()).ok()
        })
        .collect();
    let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
    let arguments = [program.as_c_str()];
    let descriptors = [0, 1, 2].map(|number| (null.as_fd(), number));
    let child =
        Child::new(Executable::Path(&program), &arguments, &environment, SessionKind::Group, &descriptors);
    let epoll = Epoll::new()?;
    let mut lines = String::new();
    for _ in 0..rounds {
        let (begun, reaped) = our_start(&child, &epoll)?;
        let (their_begun, their_reaped) = their_start()?;
        let times = [begun, reaped, their_begun, their_reaped].map(|time| time.as_nanos().to_string());
        lines += &times.join(" ");
        lines.push('\n');
    }
    print!("{lines}");
    Ok(())
}

/// As the keeper does it, which waits for all its children at once.
fn our_start(child: &Child<'_>, epoll: &Epoll) -> Result<(Duration, Duration)> {
    let begun = Instant::now();
    let started =
        spawn::spawn(child).map_err(|failure| format!("{PROGRAM} cannot be started: {failure:?}"))?;
    let replied = begun.elapsed();
    epoll.add(&started.pidfd, 0, Interest::Read)?;
    let mut ready = Vec::new();
    while pidfd::reap(&started.pidfd)?.is_none() {
        epoll.wait(&mut ready, None)?;
    }
    let reaped = begun.elapsed();
    epoll.remove(&started.pidfd)?;
    Ok((replied, reaped))
}

/// Without anything that must run between fork and exec, the standard library uses posix_spawn.
fn their_start() -> Result<(Duration, Duration)> {
    let begun = Instant::now();
    let mut child = Command::new(PROGRAM).spawn()?;
    let replied = begun.elapsed();
    child.wait()?;
    Ok((replied, begun.elapsed()))
}

fn through_engine(rounds: usize) -> Result<Start> {
    let dir = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let engine = Engine::with_keeper_thread(Config::new(dir.path()))?;
        let mut start = Start::default();
        for _ in 0..rounds {
            let stdio = Stdio::Pipes { stdin: false };
            let wanted = Spawn { stdio, ..Spawn::new(Key::new("bench", "", ""), [PROGRAM]) };
            let begun = Instant::now();
            let process = engine.spawn(wanted).await?;
            let replied = begun.elapsed();
            process.exited().await?;
            start.push(replied, begun.elapsed());
        }
        engine.shut_down(TIMEOUT).await?;
        Ok(start)
    })
}
