//! `outpost stop`: ends the daemon and its processes, or its faces only.

use super::{Outcome, connect, explain, print};
use crate::paths::Paths;
use crate::stopping;
use clap::Args;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{self, Kept, Status, StopReport, StoppedProcess};
use outpost_sys::epoll;
use outpost_sys::pidfd::{self, Unverified};
use outpost_sys::signal::{Signal, SignalFd};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the daemon may take to end after its processes have.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// How long an end is waited for at a time.
const LOOK: Duration = Duration::from_millis(20);

/// A stop that takes longer than this is explained.
const EXPLAINED_AFTER: Duration = Duration::from_millis(500);

/// Processes that are named in the report. Of more, the rest is counted.
const NAMED_MAX: usize = 50;

/// End the daemon and every process
#[derive(Args)]
pub(super) struct Stop {
    /// Seconds that processes have to end after SIGTERM; then they are killed. 0 kills at once. Default: `stop_grace_s` of
    /// the configuration, which is 10
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Let processes run on, with their input and output; the next `outpost serve` has them
    ///
    /// What listens for clients ends. Keeper and worker stay, for the processes only, and end with the last of them;
    /// `ps`, `logs`, `attach` and `kill` still reach them.
    #[arg(long, conflicts_with = "grace")]
    keep_children: bool,
}

/// Returns when the daemon is gone and another can begin, or when it serves no client any more.
pub(super) fn stop(paths: &Paths, options: &Stop) -> Outcome {
    if options.keep_children {
        return keep_children(paths);
    }
    let mut client = connect(paths)?;
    let status: Status = client.call("status", &()).map_err(explain)?;
    // Opened before the stop: then the numbers are still those of the daemon.
    let halves = Halves::of(paths, &status);
    let waiting = Waiting { grace: options.grace.map(Duration::from_secs), running: status.running };
    if let Some(report) = waiting.for_report(paths, client)? {
        print(&describe(&report, waiting.grace))?;
    }
    let patience = STOP_PATIENCE + waiting.grace.unwrap_or(stopping::GRACE);
    let deadline = Instant::now() + patience;
    while !halves.have_ended(paths)? {
        if Instant::now() > deadline {
            return Err(format!(
                "the daemon (keeper {}) has not ended {} s after it was stopped; see its log",
                status.keeper_pid,
                patience.as_secs()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A stop under way.
struct Waiting {
    /// As asked for; the daemon has a default.
    grace: Option<Duration>,
    running: usize,
}

impl Waiting {
    /// Asks for the stop and waits until every process has ended. `None` when the daemon went without a report. The first
    /// Ctrl-C cuts the grace time short, the second one ends the wait.
    fn for_report(&self, paths: &Paths, mut client: Client) -> Result<Option<StopReport>, String> {
        // A stopping daemon accepts no connection.
        let mut second = connect(paths)?;
        let signals = SignalFd::new(&[Signal::INT]).ok();
        let (sender, receiver) = mpsc::channel();
        let params = wire::Stop { grace_ms: self.grace.map(|grace| grace.as_millis() as u64) };
        std::thread::Builder::new()
            .name("outpost-stop".into())
            .spawn(move || sender.send(client.call::<StopReport>("stop", &params)))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let begun = Instant::now();
        let mut line = StatusLine::default();
        let mut hurried = false;
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(Ok(report)) => return Ok(Some(report)),
                Ok(Err(CallError::Refused(failure))) => return Err(explain(CallError::Refused(failure))),
                Ok(Err(CallError::Lost(_))) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if signals.as_ref().is_some_and(|signals| signals.next().is_some()) {
                if hurried {
                    return Err("interrupted; the daemon goes on stopping".into());
                }
                hurried = true;
                let _gone = second.send("stop", &wire::Stop { grace_ms: Some(0) });
            }
            if begun.elapsed() > EXPLAINED_AFTER {
                line.show(self.running, self.left(begun), hurried);
            }
        }
    }

    /// What is left of a grace time that is known here.
    fn left(&self, begun: Instant) -> Option<u64> {
        let grace = self.grace.unwrap_or(stopping::GRACE);
        (!grace.is_zero()).then(|| grace.saturating_sub(begun.elapsed()).as_secs())
    }
}

/// One line on standard error: rewritten each second on a terminal, written once elsewhere.
#[derive(Default)]
struct StatusLine {
    shown: Option<String>,
}

impl StatusLine {
    fn show(&mut self, running: usize, left: Option<u64>, hurried: bool) {
        let text = match (left, hurried) {
            (_, true) => "stopping: killing what is left".to_owned(),
            (None, false) => format!("stopping: {running} processes are being killed"),
            (Some(left), false) => {
                format!("stopping: {running} processes have {left} s to end; Ctrl-C kills them now")
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
    for process in report.processes.iter().take(NAMED_MAX) {
        let _infallible = writeln!(text, "{}: {}", process.id.escape_debug(), ending(process, grace));
    }
    if let Some(more) = report.processes.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        let _infallible = writeln!(text, "and {more} more");
    }
    text
}

/// How a process ended, in words.
fn ending(process: &StoppedProcess, grace: Option<Duration>) -> String {
    let how = match process.exit {
        None => return "could not be ended".into(),
        Some(exit) => match (exit.code, exit.signal.and_then(Signal::from_number)) {
            (Some(code), _) => format!("exited {code}"),
            (None, Some(signal)) => format!("ended by SIG{}", signal.name().unwrap_or("RT")),
            (None, None) => "ended, status unknown".into(),
        },
    };
    match (process.killed, grace.unwrap_or(stopping::GRACE)) {
        (true, grace) if !grace.is_zero() => {
            format!("{how}: it or a descendant did not end within {} s", grace.as_secs())
        }
        _ => how,
    }
}

/// The two processes of a daemon that is being stopped.
enum Halves {
    Here(Vec<Unverified>),
    /// Their numbers mean nothing here: the daemon has ended when it does not answer, while there is a way to it.
    Elsewhere,
}

impl Halves {
    fn of(paths: &Paths, status: &Status) -> Halves {
        let pids = [status.keeper_pid, status.worker_pid];
        match paths.host {
            None => Halves::Here(pids.iter().flat_map(|pid| pidfd::open(pid.cast_signed())).collect()),
            Some(_) => Halves::Elsewhere,
        }
    }

    /// Looks for a moment.
    fn have_ended(&self, paths: &Paths) -> Result<bool, String> {
        match self {
            Halves::Here(processes) => {
                let ended = processes.iter().map(|process| epoll::wait_readable(process, LOOK));
                ended
                    .collect::<Result<Vec<_>, _>>()
                    .map(|all| all.into_iter().all(|ended| ended))
                    .map_err(|errno| errno.to_string())
            }
            Halves::Elsewhere => {
                let answers = connect(paths)
                    .and_then(|mut client| client.call::<Status>("status", &()).map_err(explain))
                    .is_ok();
                std::thread::sleep(LOOK);
                Ok(!answers && !paths.is_away())
            }
        }
    }
}

fn keep_children(paths: &Paths) -> Outcome {
    let mut client = connect(paths)?;
    let before: Status = client.call("status", &()).map_err(explain)?;
    let halves = Halves::of(paths, &before);
    let has_none = match client.call::<Kept>("keepChildren", &()) {
        Ok(kept) => kept.processes == 0,
        Err(CallError::Lost(_)) => false,
        Err(error) => return Err(explain(error)),
    };
    // Between two workers the socket does not answer either, and another host sees no more than that.
    let may_end = paths.host.is_none() || has_none;
    let deadline = Instant::now() + STOP_PATIENCE;
    loop {
        let now = connect(paths).and_then(|mut client| client.call::<Status>("status", &()).map_err(explain));
        match now {
            Ok(status) if status.keeping => {
                let running = status.running;
                return print(&format!(
                    "stopped; still running: {running}; `outpost serve` goes on with them\n"
                ));
            }
            // No process was left to keep.
            _ if may_end && halves.have_ended(paths)? => {
                return print("stopped; no process was running\n");
            }
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => return Err("the daemon has not stopped; its log has the reason".into()),
        }
    }
}
