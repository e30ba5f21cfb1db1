//! `outpost stop`: stops the daemon with its processes, or only its faces.

use super::{Outcome, connect, explain, print};
use crate::config::STOP_GRACE;
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{self, KeepReport, Status, StopReport, StoppedProcess};
use outpost_sys::epoll;
use outpost_sys::pidfd::{self, Unverified};
use outpost_sys::signal::{Signal, SignalFd};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the daemon may take to exit after its processes.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A longer stop shows a status line.
const STATUS_DELAY: Duration = Duration::from_millis(500);

/// Processes listed by name in the report; the rest is only counted.
const LISTED_MAX: usize = 50;

/// Stop the daemon and all processes
#[derive(Args)]
pub(super) struct Stop {
    /// Seconds between SIGTERM and SIGKILL; 0 kills immediately [default: `stop_grace_s` of the configuration, 10]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Keep all processes running; the next `outpost serve` takes them over
    ///
    /// The faces stop listening. Keeper and worker stay until the last process ends. `ps`, `logs`, `attach` and `kill`
    /// keep working.
    #[arg(long, conflicts_with = "grace")]
    keep_children: bool,
}

/// Returns when the daemon has exited and another can start, or when its faces are stopped.
pub(super) fn stop(paths: &Paths, options: &Stop) -> Outcome {
    if options.keep_children {
        return keep_children(paths);
    }
    let mut client = connect_running(paths)?;
    let status: Status = client.call("status", &()).map_err(explain)?;
    // Open the pidfds before the stop, while the pids are still those of the daemon.
    let processes = DaemonProcesses::of(paths, &status);
    let request = StopRequest { grace: options.grace.map(Duration::from_secs), running: status.running };
    if let Some(report) = request.await_report(paths, client)? {
        print(&describe(&report, request.grace))?;
    }
    let timeout = EXIT_TIMEOUT + request.grace.unwrap_or(STOP_GRACE);
    let deadline = Instant::now() + timeout;
    while !processes.have_ended(paths)? {
        if Instant::now() > deadline {
            return Err(format!(
                "the daemon (keeper {}) has not exited {} s after the stop\nhint: the cause is in its log",
                status.keeper_pid,
                timeout.as_secs()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Like `connect`, with a message for a daemon that does not run.
fn connect_running(paths: &Paths) -> Result<Client, String> {
    connect(paths).map_err(|message| match paths.host.is_none() && !paths.control_socket().exists() {
        true => {
            format!(
                "Outpost is not running; nothing to stop (no socket at {})",
                paths.control_socket().display()
            )
        }
        false => message,
    })
}

/// A stop in progress.
struct StopRequest {
    /// `None` for the daemon's default.
    grace: Option<Duration>,
    running: usize,
}

impl StopRequest {
    /// Requests the stop and waits until all processes have ended. `None` if the daemon exits without a report. The first
    /// Ctrl-C ends the grace time, the second one ends the wait.
    fn await_report(&self, paths: &Paths, mut client: Client) -> Result<Option<StopReport>, String> {
        // Connect in advance: a stopping daemon accepts no new connection.
        let mut second_client = connect(paths)?;
        let signals = SignalFd::new(&[Signal::INT]).ok();
        let (sender, receiver) = mpsc::channel();
        let params = wire::Stop { grace_ms: self.grace.map(|grace| grace.as_millis() as u64) };
        std::thread::Builder::new()
            .name("outpost-stop".into())
            .spawn(move || sender.send(client.call::<StopReport>("stop", &params)))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let started = Instant::now();
        let mut line = StatusLine::default();
        let mut killing = false;
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(Ok(report)) => return Ok(Some(report)),
                Ok(Err(CallError::Refused(failure))) => return Err(explain(CallError::Refused(failure))),
                Ok(Err(CallError::Lost(_))) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if signals.as_ref().is_some_and(|signals| signals.next().is_some()) {
                if killing {
                    return Err("interrupted; the daemon continues to stop".into());
                }
                killing = true;
                let _gone = second_client.send("stop", &wire::Stop { grace_ms: Some(0) });
            }
            if started.elapsed() > STATUS_DELAY {
                line.show(self.running, self.seconds_left(started), killing);
            }
        }
    }

    /// Seconds left of the grace time; `None` without one.
    fn seconds_left(&self, started: Instant) -> Option<u64> {
        let grace = self.grace.unwrap_or(STOP_GRACE);
        (!grace.is_zero()).then(|| grace.saturating_sub(started.elapsed()).as_secs())
    }
}

/// One line on standard error: rewritten every second on a terminal, otherwise written once.
#[derive(Default)]
struct StatusLine {
    shown: Option<String>,
}

impl StatusLine {
    fn show(&mut self, running: usize, left: Option<u64>, killing: bool) {
        let text = match (left, killing) {
            (_, true) => "stopping: killing the remaining processes".to_owned(),
            (None, false) => format!("stopping: killing {running} processes"),
            (Some(left), false) => {
                format!("stopping: {running} processes have {left} s to exit; Ctrl-C kills them now")
            }
        };
        let mut stderr = std::io::stderr();
        if !stderr.is_terminal() {
            if self.shown.is_none() {
                let _closed = writeln!(stderr, "{text}");
                self.shown = Some(text);
            }
        } else if self.shown.as_ref() != Some(&text) {
            let _closed = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
            self.shown = Some(text);
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        let mut stderr = std::io::stderr();
        if self.shown.is_some() && stderr.is_terminal() {
            let _closed = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}

fn describe(report: &StopReport, grace: Option<Duration>) -> String {
    let mut text = String::new();
    for process in report.processes.iter().take(LISTED_MAX) {
        let _infallible = writeln!(text, "{}: {}", process.id.escape_debug(), exit_text(process, grace));
    }
    if let Some(more) = report.processes.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        let _infallible = writeln!(text, "and {more} more");
    }
    text
}

/// How a process ended.
fn exit_text(process: &StoppedProcess, grace: Option<Duration>) -> String {
    let how = match process.exit {
        None => return "could not be killed, or its exit was not recorded".into(),
        Some(exit) => match (exit.code, exit.signal.and_then(Signal::from_number)) {
            (Some(code), _) => format!("exited {code}"),
            (None, Some(signal)) => format!("terminated by SIG{}", signal.name().unwrap_or("RT")),
            (None, None) => "ended, exit status unknown".into(),
        },
    };
    match (process.killed, grace.unwrap_or(STOP_GRACE)) {
        (true, grace) if !grace.is_zero() => {
            format!("{how}: it or a descendant did not exit within {} s", grace.as_secs())
        }
        _ => how,
    }
}

/// Keeper and worker of a daemon that is being stopped.
enum DaemonProcesses {
    Local(Vec<Unverified>),
    /// Pids of another host. The daemon has exited if it does not reply while the ssh connection is up.
    Remote,
}

impl DaemonProcesses {
    fn of(paths: &Paths, status: &Status) -> DaemonProcesses {
        let pids = [status.keeper_pid, status.worker_pid];
        match paths.host {
            None => {
                DaemonProcesses::Local(pids.iter().flat_map(|pid| pidfd::open(pid.cast_signed())).collect())
            }
            Some(_) => DaemonProcesses::Remote,
        }
    }

    /// Waits up to `POLL_INTERVAL` for each process.
    fn have_ended(&self, paths: &Paths) -> Result<bool, String> {
        match self {
            DaemonProcesses::Local(processes) => {
                let ended = processes.iter().map(|process| epoll::wait_readable(process, POLL_INTERVAL));
                ended
                    .collect::<Result<Vec<_>, _>>()
                    .map(|all| all.into_iter().all(|ended| ended))
                    .map_err(|errno| errno.to_string())
            }
            DaemonProcesses::Remote => {
                let answers = connect(paths)
                    .and_then(|mut client| client.call::<Status>("status", &()).map_err(explain))
                    .is_ok();
                std::thread::sleep(POLL_INTERVAL);
                Ok(!answers && !paths.is_reconnecting())
            }
        }
    }
}

fn keep_children(paths: &Paths) -> Outcome {
    let mut client = connect_running(paths)?;
    let before: Status = client.call("status", &()).map_err(explain)?;
    let processes = DaemonProcesses::of(paths, &before);
    let has_none = match client.call::<KeepReport>("keepChildren", &()) {
        Ok(kept) => kept.processes == 0,
        Err(CallError::Lost(_)) => false,
        Err(error) => return Err(explain(error)),
    };
    // For a remote daemon a silent socket is ambiguous: it is also silent between two workers.
    let may_end = paths.host.is_none() || has_none;
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let now = connect(paths).and_then(|mut client| client.call::<Status>("status", &()).map_err(explain));
        match now {
            Ok(status) if status.keeping => {
                let running = status.running;
                return print(&format!(
                    "stopped; processes still running: {running}; `outpost serve` takes them over\n"
                ));
            }
            _ if may_end && processes.have_ended(paths)? => {
                return print("stopped; no process was running\n");
            }
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => return Err("the daemon has not stopped\nhint: the cause is in its log".into()),
        }
    }
}
