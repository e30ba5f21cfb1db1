//! The daemon in the background and under a supervisor, its systemd units, and failed starts.

use crate::support::{self, outpost, read, sh};
use outpost_sys::epoll::{self, wait_readable};
use outpost_sys::process::effective_uid;
use outpost_sys::signal::Signal;
use outpost_sys::{file, message, pidfd};
use outpost_testkit::{Daemon, Half};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const UNPRIVILEGED_UID: u32 = 65534;
const TIMEOUT: Duration = Duration::from_secs(60);

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments);
    command.env("XDG_CONFIG_HOME", dir.join("config")).current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir, arguments).output().unwrap()
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Stops a background daemon at the end of the test, also after a failure.
struct Background<'a>(&'a Path);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let _not_running = command(self.0, &["stop"]).output();
    }
}

#[test]
fn serve_detach_returns_when_all_faces_serve_and_survives_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let _ended = Background(dir.path());
    let flags = ["serve", "--detach", "--sessions-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let started = run(dir.path(), &flags);
    let text = output_text(&started);
    assert!(started.status.success(), "{text}");
    for face in ["control", "exec", "broker", "sessions", "approve", "metrics"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(face)), "{face}: {text}");
    }
    let log = dir.path().join("state/outpost.log");
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let status: serde_json::Value =
        serde_json::from_slice(&run(dir.path(), &["status", "--json"]).stdout).unwrap();
    let keeper = status["keeperPid"].as_i64().unwrap();
    let session = outpost_sys::procfs::stat(i32::try_from(keeper).unwrap()).unwrap().session;
    assert_eq!(i64::from(session), keeper, "a session of its own");
    let second = run(dir.path(), &["serve"]);
    assert_eq!(second.status.code(), Some(3), "{second:?}");
    assert!(output_text(&second).contains(&format!("already running here (keeper {keeper})")), "{second:?}");
    let metrics =
        status["listening"].as_array().unwrap().iter().find(|row| row["face"] == "metrics").unwrap();
    let page = support::metrics(dir.path(), metrics["address"].as_str().unwrap());
    assert!(
        page.contains("outpost_processes_running 0") && page.contains("outpost_build_info{version="),
        "{page}"
    );
    let shown = output_text(&run(dir.path(), &["status"]));
    assert!(shown.contains(&format!("keeper     {keeper}, up ")) && shown.contains("0 waiting"), "{shown}");
    // A large log rotates, and one old log file is kept.
    std::fs::create_dir_all(dir.path().join("config/outpost")).unwrap();
    std::fs::write(dir.path().join("config/outpost/outpost.toml"), "[log]\nfile_bytes_max = 1\n").unwrap();
    for _ in 0..2 {
        let reloaded = run(dir.path(), &["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
    }
    let old = dir.path().join("state/outpost.log.1");
    assert!(std::fs::read_to_string(&old).unwrap().contains("the configuration was reloaded"));
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
    let stopped = run(dir.path(), &["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(!dir.path().join("run/control.sock").exists());
}

#[test]
fn the_supervisor_is_notified_and_children_cannot_notify_it() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let wait_for = |text: &str| {
        let mut buffer = [0; 256];
        loop {
            let len = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{text}: {error}"));
            let notification = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if notification.contains(text) {
                return notification;
            }
            assert!(notification == "WATCHDOG=1" || notification == "READY=1", "{notification}");
        }
    };
    let mut serve = Command::new(outpost());
    serve.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "2000000");
    let daemon = Daemon::start_by(serve, tempfile::tempdir().unwrap(), &[]);
    wait_for("READY=1");
    wait_for("WATCHDOG=1");
    let process = sh(&daemon, "p", "env").process;
    let environment = String::from_utf8_lossy(&read(&daemon, &process, usize::MAX).0).into_owned();
    assert!(environment.contains("PATH=") && !environment.contains("NOTIFY_SOCKET"), "{environment}");
    assert!(!environment.contains("WATCHDOG"), "{environment}");
    // The keeper replaces a worker that hangs.
    let (hung, before) = (daemon.worker(), daemon.status().worker_pid);
    outpost_sys::pidfd::signal(&hung, outpost_sys::signal::Signal::STOP).unwrap();
    assert!(outpost_sys::epoll::wait_readable(&hung, Duration::from_secs(60)).unwrap());
    wait_for("READY=1");
    assert_ne!(daemon.status().worker_pid, before);
    // A supervisor whose main process died starts another one, which reports the pid of the running keeper.
    daemon.kill(Half::Keeper);
    let mut again = command(daemon.dir(), &["serve"]);
    let again = again.env("NOTIFY_SOCKET", dir.path().join("notify")).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    let notified = wait_for("MAINPID=");
    assert!(notified.contains(&format!("MAINPID={}\n", daemon.status().keeper_pid)), "{notified}");
    drop(daemon);
    wait_for("STOPPING=1");
}

/// A supervisor with a file descriptor store: it keeps descriptors and passes them to the next daemon that it starts.
struct Supervisor {
    socket: UnixDatagram,
    path: PathBuf,
    kept: Vec<(String, OwnedFd)>,
}

impl Supervisor {
    fn new(dir: &Path) -> Supervisor {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Supervisor { socket, path, kept: Vec::new() }
    }

    fn receive_until(&mut self, enough: impl Fn(&[(String, OwnedFd)]) -> bool) {
        let mut bytes = [0; 4096];
        while !enough(&self.kept) {
            assert!(wait_readable(&self.socket, TIMEOUT).unwrap(), "only {:?}", self.kept);
            let mut fds = Vec::new();
            let len = message::receive(&self.socket, &mut bytes, &mut fds).unwrap().unwrap();
            let notification = String::from_utf8(bytes[..len].to_vec()).unwrap();
            let field =
                |key: &str| notification.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
            match (field("FDSTORE="), field("FDSTOREREMOVE="), field("FDNAME=")) {
                (Some(_), None, Some(name)) => self.kept.extend(fds.pop().map(|fd| (name, fd))),
                (None, Some(_), Some(name)) => self.kept.retain(|(kept, _)| *kept != name),
                _ => assert!(notification.contains("=1"), "{notification}"),
            }
        }
    }

    fn start(&self, dir: &Path) -> Daemon {
        // Move the descriptors to high numbers first, so that the final numbers are free.
        let (away, here): (Vec<String>, Vec<String>) = self
            .kept
            .iter()
            .enumerate()
            .map(|(at, (_, fd))| {
                file::set_inherited(fd, true).unwrap();
                let high = 100 + at;
                (format!("{high}<&{}", fd.as_raw_fd()), format!("{}<&{high} {high}<&-", 3 + at))
            })
            .unzip();
        let script =
            format!("exec {}; exec {}; LISTEN_PID=$$ exec \"$0\" \"$@\"", away.join(" "), here.join(" "));
        let names: Vec<&str> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        let mut serve = Command::new("bash");
        serve.args(["-c", &script]).arg(outpost());
        serve.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        serve.env("NOTIFY_SOCKET", &self.path).env("FDSTORE", "100");
        Daemon::start_by_in(serve, dir, &[])
    }
}

#[test]
fn with_a_descriptor_store_processes_survive_the_death_of_both_halves() {
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut supervisor = Supervisor::new(dir.path());
    let daemon = supervisor.start(home.path());
    let process = sh(&daemon, "p", "while read line; do echo $line; done; exit 7").process;
    let write = |daemon: &Daemon, data: &str| {
        let _applied: serde_json::Value =
            daemon.ask("stdin", &serde_json::json!({ "process": process, "data": data }));
    };
    write(&daemon, "b25lCg==");
    assert_eq!(read(&daemon, &process, 4).0, b"one\n");
    // Five descriptors: pidfd, stdin, the stdin record, and both outputs.
    supervisor.receive_until(|kept| kept.len() == 5);
    let halves = [daemon.keeper(), daemon.worker()];
    for signal in [Signal::STOP, Signal::KILL] {
        halves.iter().for_each(|half| outpost_sys::pidfd::signal(half, signal).unwrap());
    }
    assert!(halves.iter().all(|half| wait_readable(half, TIMEOUT).unwrap()));
    let daemon = supervisor.start(home.path());
    write(&daemon, "dHdvCg==");
    let () = daemon.ask("closeStdin", &serde_json::json!({ "process": process }));
    // A stored copy of stdin would keep the process from seeing EOF.
    supervisor.receive_until(|kept| kept.len() == 4);
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "one\ntwo\n", "{}", daemon.log());
    assert_eq!(exit.and_then(|exit| exit.code), Some(7), "{}", daemon.log());
    supervisor.receive_until(<[_]>::is_empty);
}

/// The output of a daemon that fails to start, as a user other than root.
fn refused(dir: &Path, shell: &str) -> String {
    let script = format!("{shell}; exec \"$0\" serve --sessions-listen 127.0.0.1:0");
    let mut serve = match effective_uid() {
        0 => {
            let mut command = Command::new("setpriv");
            command.args([
                format!("--reuid={UNPRIVILEGED_UID}"),
                format!("--regid={UNPRIVILEGED_UID}"),
                "--clear-groups".into(),
            ]);
            command.arg("sh");
            command
        }
        _ => Command::new("sh"),
    };
    serve.args(["-c", &script]).arg(outpost()).env("HOME", dir).current_dir(dir).stdin(Stdio::null());
    serve.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME").env_remove("XDG_RUNTIME_DIR");
    serve.env("OUTPOST_STATE_DIR", dir.join("state")).env("OUTPOST_RUNTIME_DIR", dir.join("run"));
    let output = serve.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    output_text(&output)
}

#[test]
fn a_failed_start_prints_the_cause_and_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    if effective_uid() == 0 {
        std::os::unix::fs::chown(dir.path(), Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    }
    let home = dir.path();
    let few = refused(home, "ulimit -n 64");
    assert!(few.contains("limit of 64 open files") && few.contains("LimitNOFILE"), "{few}");
    let none = refused(home, "export OUTPOST_RUNTIME_DIR=/proc/none/outpost");
    assert!(none.contains("/proc/none/outpost") && none.contains("--runtime-dir"), "{none}");
    let read_only = refused(home, "mkdir state; chmod 500 state");
    assert!(read_only.contains("cannot write to") && read_only.contains("--state-dir"), "{read_only}");
    let link = refused(home, "rmdir state; ln -s /tmp state");
    assert!(link.contains("is not a directory of this user"), "{link}");
}

#[test]
fn systemd_accepts_the_units() {
    let dir = tempfile::tempdir().unwrap();
    let install = |arguments: &[&str]| {
        let mut command = command(dir.path(), &["install-service", "--user"]);
        command.args(arguments).env("XDG_CONFIG_HOME", dir.path().join("config")).output().unwrap()
    };
    let printed = install(&["--print"]);
    assert!(printed.status.success(), "{printed:?}");
    let unit = String::from_utf8_lossy(&printed.stdout).into_owned();
    for line in [
        "Type=notify",
        "KillMode=process",
        "FileDescriptorStoreMax=8192",
        "Delegate=yes",
        "Restart=always",
        "WatchdogSec=30",
        "WantedBy=default.target",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
    let written = install(&[]);
    assert!(
        written.status.success() && output_text(&written).contains("loginctl enable-linger"),
        "{written:?}"
    );
    let path = dir.path().join("config/systemd/user/outpost.service");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), unit);
    std::fs::write(&path, unit.replace("RestartSec=1", "RestartSec=2")).unwrap();
    let refused = install(&[]);
    assert!(!refused.status.success() && output_text(&refused).contains("--force"), "{refused:?}");
    match Command::new("systemd-analyze").arg("verify").arg(&path).output() {
        Ok(verified) => assert!(verified.status.success(), "{verified:?}"),
        Err(_) => {
            let is_known = |line: &str| {
                line.is_empty()
                    || line.starts_with(['#', '['])
                    || line.split_once('=').is_some_and(|(key, value)| {
                        key.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !value.is_empty()
                    })
            };
            assert!(unit.lines().all(is_known), "{unit}");
        }
    }
}

/// The worker has the lock and the database open until it exits. A daemon that starts after the keeper's exit needs both.
#[test]
fn nemesis_a_stopped_daemon_can_be_started_again_when_its_keeper_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let daemon = Daemon::start_in(outpost(), dir.path());
        let (keeper, worker) = (daemon.keeper(), daemon.worker());
        pidfd::signal(&keeper, Signal::TERM).unwrap();
        assert!(wait_readable(&keeper, TIMEOUT).unwrap());
        assert!(epoll::is_readable(&worker), "round {round}: the worker lives on without its keeper");
    }
}
