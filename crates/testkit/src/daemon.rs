//! A real daemon in a directory of its own, ended with everything it runs when the test is over.

use crate::kernel;
use crate::sessions::SessionsClient;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{ProcessInfo, Status, StatusQuery, Stop, StopReport, UpgradeBinary};
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Pidfd;
use outpost_sys::signal::Signal;
use outpost_sys::{cgroup, pidfd, procfs};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test gives up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits a moment before a condition is looked at again. A loop without it takes a processor from the daemon it waits for.
pub fn pause() {
    std::thread::park_timeout(Duration::from_millis(2));
}

/// How long killed processes may take to leave their groups.
const CGROUPS_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Daemon {
    dir: PathBuf,
    control: PathBuf,
    serve: Child,
    /// In the environment of both halves.
    marker: String,
    _owned: Option<TempDir>,
}

/// The path of another program of the same build.
pub fn binary_beside(ours: &Path, name: &str) -> PathBuf {
    let path = ours.parent().expect("a program is in a directory").join(name);
    assert!(path.exists(), "{} is missing: build it with `cargo build --workspace` first", path.display());
    path
}

impl Daemon {
    /// Starts the daemon and waits until it reports that it runs.
    pub fn start(binary: &Path) -> Daemon {
        Daemon::start_on(None, binary)
    }

    /// The same as on an older kernel: 6.8, 6.1 or 5.10.
    pub fn start_on(kernel: Option<&str>, binary: &Path) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_on_in(kernel, binary, dir.path());
        daemon._owned = Some(dir);
        daemon
    }

    /// In a directory where one was before.
    pub fn start_in(binary: &Path, dir: &Path) -> Daemon {
        Daemon::start_on_in(None, binary, dir)
    }

    /// The same as on an older kernel.
    pub fn start_on_in(kernel: Option<&str>, binary: &Path, dir: &Path) -> Daemon {
        Daemon::launch(kernel::command(kernel, binary), dir, &[])
    }

    /// With these flags of `outpost serve`.
    pub fn start_with(binary: &Path, flags: &[&str]) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::launch(kernel::command(None, binary), dir.path(), flags);
        daemon._owned = Some(dir);
        daemon
    }

    /// As another user; only root can.
    pub fn start_as(binary: &Path, uid: u32) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
        let mut serve = kernel::command(None, Path::new("setpriv"));
        serve.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]).arg(binary);
        // Whose home is ours has no right to look into it.
        serve.env("HOME", dir.path()).env_remove("XDG_CONFIG_HOME");
        let mut daemon = Daemon::launch(serve, dir.path(), &[]);
        daemon._owned = Some(dir);
        daemon
    }

    /// By a command that ends in the daemon's program: in another environment, or as another user.
    pub fn start_by(command: Command, dir: TempDir, flags: &[&str]) -> Daemon {
        let mut daemon = Daemon::launch(command, dir.path(), flags);
        daemon._owned = Some(dir);
        daemon
    }

    /// The same in an existing directory that the caller removes.
    pub fn start_by_in(command: Command, dir: &Path, flags: &[&str]) -> Daemon {
        Daemon::launch(command, dir, flags)
    }

    /// The guard, in a directory that stands for `/`.
    pub(crate) fn start_guard(command: Command, root: &Path) -> Daemon {
        let mut daemon = Daemon::launch(command, root, &[]);
        daemon.control = root.join("run/outpost-guard/control.sock");
        daemon
    }

    fn launch(mut serve: Command, dir: &Path, flags: &[&str]) -> Daemon {
        let log = File::create(dir.join("log")).unwrap();
        serve.args(["--state-dir", "state", "--runtime-dir", "run", "serve"]).args(flags).current_dir(dir);
        // Any port: daemons beside each other would look for a free one otherwise.
        if !flags.iter().any(|flag| flag.starts_with("--sessions-listen")) {
            serve.arg("--sessions-listen=127.0.0.1:0");
        }
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let marker = format!("OUTPOST_TEST_DAEMON={}", dir.display());
        let (owner_name, owner_value) = owner();
        serve.env("OUTPOST_TEST_DAEMON", dir).env(owner_name, owner_value);
        // Not the configuration of the user who runs the tests.
        serve.env("XDG_CONFIG_HOME", dir.join("config"));
        // Away from the terminal's signals: ending it is our business.
        let mut serve = serve.process_group(0).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(serve.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let control = dir.join("run/control.sock");
        let daemon = Daemon { dir: dir.to_owned(), control, serve, marker, _owned: None };
        assert!(line.contains("is running"), "the daemon printed {line:?}, log: {}", daemon.log());
        daemon
    }

    /// In the environment of both halves.
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn socket(&self) -> PathBuf {
        self.control.clone()
    }

    /// The sessions face, where it is now.
    pub fn sessions(&self) -> SessionsClient {
        let file = self.dir.join("run/sessions.port");
        let port =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        SessionsClient::new(SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())))
            .with_token_of(&self.dir.join("run/sessions.token"))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A connection, however long that takes within reason.
    pub fn connect(&self) -> Client {
        let client = crate::connect(self.socket())
            .and_then(Client::over)
            .unwrap_or_else(|error| panic!("connect: {error}; log: {}", self.log()));
        client.set_timeout(Some(TIMEOUT)).unwrap();
        client
    }

    /// Calls a method that may be repeated, again and again while the daemon is away.
    pub fn ask<T: serde::de::DeserializeOwned>(&self, method: &str, params: &impl serde::Serialize) -> T {
        let begun = Instant::now();
        loop {
            match self.connect().call(method, params) {
                Ok(answer) => return answer,
                Err(CallError::Refused(failure)) => panic!("{method} was refused: {failure:?}"),
                Err(CallError::Lost(error)) => {
                    assert!(begun.elapsed() < TIMEOUT, "{method}: {error}; log: {}", self.log());
                    pause();
                }
            }
        }
    }

    pub fn status(&self) -> Status {
        self.ask("status", &StatusQuery { await_faces: true })
    }

    pub fn list(&self) -> Vec<ProcessInfo> {
        self.ask("list", &())
    }

    /// A pidfd of the worker as it is now.
    pub fn worker(&self) -> Pidfd {
        self.part(|status| status.worker_pid)
    }

    pub fn keeper(&self) -> Pidfd {
        self.part(|status| status.keeper_pid)
    }

    fn part(&self, which: impl Fn(&Status) -> u32) -> Pidfd {
        let begun = Instant::now();
        loop {
            let pid = which(&self.status());
            // Compared again after the open: the pid was not recycled.
            if let Ok(pidfd) = crate::process(pid.cast_signed())
                && which(&self.status()) == pid
            {
                return pidfd;
            }
            assert!(begun.elapsed() < TIMEOUT, "{pid} cannot be opened; log: {}", self.log());
            pause();
        }
    }

    /// Has another binary take the place of both, and waits until it has.
    pub fn upgrade(&self, binary: &Path) {
        let before = self.status().worker_pid;
        let path = binary.display().to_string();
        match self.connect().call::<()>("upgrade", &UpgradeBinary { path }) {
            Err(CallError::Refused(failure)) => panic!("{failure:?}; log: {}", self.log()),
            // The worker that was asked is gone by the time it could answer.
            Ok(()) | Err(CallError::Lost(_)) => {}
        }
        let begun = Instant::now();
        while self.status().worker_pid == before {
            assert!(begun.elapsed() < TIMEOUT, "the worker was not replaced; log: {}", self.log());
            pause();
        }
    }

    /// Waits until the half that was killed is another process than in `before`.
    pub(crate) fn await_successor(&self, killed: Option<Half>, before: &Status) {
        let begun = Instant::now();
        loop {
            let now = self.status();
            match killed {
                Some(Half::Worker) if now.worker_pid == before.worker_pid => {}
                Some(Half::Keeper) if now.keeper_pid == before.keeper_pid => {}
                _ => return,
            }
            assert!(begun.elapsed() < TIMEOUT, "{killed:?} was not replaced; log: {}", self.log());
            pause();
        }
    }

    /// Kills one of the two and waits until another has taken its place.
    pub fn kill(&self, half: Half) {
        let pid = |status: &Status| if half == Half::Worker { status.worker_pid } else { status.keeper_pid };
        let before = pid(&self.status());
        let victim = if half == Half::Worker { self.worker() } else { self.keeper() };
        pidfd::signal(&victim, Signal::KILL).unwrap();
        assert!(wait_readable(&victim, TIMEOUT).unwrap());
        let begun = Instant::now();
        while pid(&self.status()) == before {
            assert!(begun.elapsed() < TIMEOUT, "{half:?} was not replaced; log: {}", self.log());
            pause();
        }
    }
}

impl Daemon {
    fn kill_all(&self) {
        kill_marked(&self.marker);
    }
}

/// Each half would start the other again, so both are stopped before either is killed.
pub fn kill_marked(marker: &str) {
    let marked = || {
        let alive = procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        alive.filter(|stat| procfs::has_environment(stat.pid, marker.as_bytes()))
    };
    let (mut cgroups, mut processes) = (BTreeSet::new(), Vec::new());
    for signal in [Signal::STOP, Signal::KILL] {
        for stat in marked() {
            cgroups.extend(cgroups_of(stat.pid));
            if let Ok(process) = crate::process(stat.pid) {
                let _gone = pidfd::signal(&process, signal);
                processes.push(process);
            }
        }
    }
    // A killed worker has the daemon's lock until it has exited.
    for process in processes {
        let _slow = wait_readable(&process, CGROUPS_TIMEOUT);
    }
    let begun = Instant::now();
    // They are in use until the last of the killed is gone.
    while begun.elapsed() < CGROUPS_TIMEOUT && cgroups.iter().any(|path| path.exists()) {
        for directory in cgroups.iter().filter_map(|path| file::open(path, Open::Directory).ok()) {
            cgroup::remove_all(directory);
        }
        pause();
    }
}

/// The cgroup directory of a daemon. With both halves dead no process removes it. The keeper has it open.
fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let of_daemon = |group: PathBuf| {
        let is_ours = |path: &&Path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"outpost-"))
        };
        let of_all = group.ancestors().take(2).find(is_ours)?;
        of_all.starts_with("/sys/fs/cgroup").then(|| of_all.to_owned())
    };
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter_map(of_daemon).collect()
}

/// In the environment of every daemon this process has started.
pub(crate) fn owner() -> (&'static str, String) {
    ("OUTPOST_TEST_OWNER", std::process::id().to_string())
}

/// Ends all daemons this process has started, for a program that ends without unwinding.
pub fn kill_all_daemons() {
    let (name, value) = owner();
    kill_marked(&format!("{name}={value}"));
}

/// A half of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Worker,
    Keeper,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // In order if that works; in any case nothing stays.
        let stopped = crate::connect(self.socket()).and_then(Client::over).ok().and_then(|mut client| {
            client.set_timeout(Some(Duration::from_secs(15))).ok()?;
            let status: Status = client.call("status", &()).ok()?;
            let parts =
                [status.keeper_pid, status.worker_pid].map(|pid| crate::process(pid.cast_signed()).ok());
            let _lost = client.call::<StopReport>("stop", &Stop { grace_ms: Some(0) });
            Some(parts)
        });
        for part in stopped.into_iter().flatten().flatten() {
            if !wait_readable(&part, Duration::from_secs(15)).unwrap_or(false) {
                let _gone = pidfd::signal(&part, Signal::KILL);
            }
        }
        self.kill_all();
        let _reaped = self.serve.wait();
    }
}
