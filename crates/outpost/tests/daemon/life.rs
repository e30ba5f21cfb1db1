//! The daemon's life: in the background, under a supervisor, and where it cannot begin.

use crate::support::{self, outpost, read, sh};
use outpost_sys::epoll::{self, wait_readable};
use outpost_sys::limits::effective_uid;
use outpost_sys::signal::Signal;
use outpost_sys::{file, message, pidfd};
use outpost_testkit::{Daemon, Which};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const NOBODY: u32 = 65534;
const PATIENCE: Duration = Duration::from_secs(60);

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments);
    command.env("XDG_CONFIG_HOME", dir.join("config")).current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Ends a daemon that nobody has a handle of, also when a test fails.
struct Background<'a>(&'a Path);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let _not_running = command(self.0, &["stop"]).output();
    }
}

#[test]
fn in_the_background_it_returns_when_all_answer_and_outlives_who_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let _ended = Background(dir.path());
    let flags = ["serve", "--detach", "--sessions-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let started = run(dir.path(), &flags);
    let text = said(&started);
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
    assert!(said(&second).contains(&format!("already running here (keeper {keeper})")), "{second:?}");
    let metrics =
        status["listening"].as_array().unwrap().iter().find(|row| row["face"] == "metrics").unwrap();
    let page = support::metrics(dir.path(), metrics["address"].as_str().unwrap());
    assert!(
        page.contains("outpost_processes_running 0") && page.contains("outpost_build_info{version="),
        "{page}"
    );
    let shown = said(&run(dir.path(), &["status"]));
    assert!(
        shown.contains(&format!("keeper     {keeper}, since ")) && shown.contains("0 waiting"),
        "{shown}"
    );
    // Its log is begun anew when it is large, and what was there before stays for one round.
    std::fs::create_dir_all(dir.path().join("config/outpost")).unwrap();
    std::fs::write(dir.path().join("config/outpost/outpost.toml"), "[log]\nfile_bytes_max = 1\n").unwrap();
    for _ in 0..2 {
        let reloaded = run(dir.path(), &["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
    }
    let old = dir.path().join("state/outpost.log.1");
    assert!(std::fs::read_to_string(&old).unwrap().contains("the configuration was read again"));
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
    let stopped = run(dir.path(), &["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(!dir.path().join("run/control.sock").exists());
}

#[test]
fn whoever_supervises_it_hears_of_it_and_no_child_can_speak_in_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hear = |words: &str| {
        let mut buffer = [0; 256];
        loop {
            let len = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{words}: {error}"));
            let heard = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if heard.contains(words) {
                return heard;
            }
            assert!(heard == "WATCHDOG=1" || heard == "READY=1", "{heard}");
        }
    };
    let mut serve = Command::new(outpost());
    serve.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "2000000");
    let daemon = Daemon::start_by(serve, tempfile::tempdir().unwrap(), &[]);
    hear("READY=1");
    hear("WATCHDOG=1");
    let process = sh(&daemon, "p", "env").process;
    let environment = String::from_utf8_lossy(&read(&daemon, &process, usize::MAX).0).into_owned();
    assert!(environment.contains("PATH=") && !environment.contains("NOTIFY_SOCKET"), "{environment}");
    assert!(!environment.contains("WATCHDOG"), "{environment}");
    // One that hangs is replaced, as one that dies is.
    let (hung, before) = (daemon.worker(), daemon.status().worker_pid);
    outpost_sys::pidfd::signal(&hung, outpost_sys::signal::Signal::STOP).unwrap();
    assert!(outpost_sys::epoll::wait_readable(&hung, Duration::from_secs(60)).unwrap());
    hear("READY=1");
    assert_ne!(daemon.status().worker_pid, before);
    // A supervisor that lost sight of its main process starts it anew, and is pointed to the one that is there.
    daemon.kill(Which::Keeper);
    let mut again = command(daemon.dir(), &["serve"]);
    let again = again.env("NOTIFY_SOCKET", dir.path().join("notify")).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    let pointed = hear("MAINPID=");
    assert!(pointed.contains(&format!("MAINPID={}\n", daemon.status().keeper_pid)), "{pointed}");
    drop(daemon);
    hear("STOPPING=1");
}

/// What systemd does with descriptors: it keeps them, and gives them to the next that it starts.
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

    fn hear_until(&mut self, enough: impl Fn(&[(String, OwnedFd)]) -> bool) {
        let mut bytes = [0; 4096];
        while !enough(&self.kept) {
            assert!(wait_readable(&self.socket, PATIENCE).unwrap(), "only {:?}", self.kept);
            let mut fds = Vec::new();
            let len = message::receive(&self.socket, &mut bytes, &mut fds).unwrap().unwrap();
            let heard = String::from_utf8(bytes[..len].to_vec()).unwrap();
            let said = |key: &str| heard.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
            match (said("FDSTORE="), said("FDSTOREREMOVE="), said("FDNAME=")) {
                (Some(_), None, Some(name)) => self.kept.extend(fds.pop().map(|fd| (name, fd))),
                (None, Some(_), Some(name)) => self.kept.retain(|(kept, _)| *kept != name),
                _ => assert!(heard.contains("=1"), "{heard}"),
            }
        }
    }

    fn start(&self, dir: &Path) -> Daemon {
        // First out of the way of the numbers that they are to have.
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
fn with_a_supervisor_that_keeps_descriptors_both_halves_may_die_at_once() {
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
    // Itself, its input with the record of that, and both outputs.
    supervisor.hear_until(|kept| kept.len() == 5);
    let halves = [daemon.keeper(), daemon.worker()];
    for signal in [Signal::STOP, Signal::KILL] {
        halves.iter().for_each(|half| outpost_sys::pidfd::signal(half, signal).unwrap());
    }
    assert!(halves.iter().all(|half| wait_readable(half, PATIENCE).unwrap()));
    let daemon = supervisor.start(home.path());
    write(&daemon, "dHdvCg==");
    let () = daemon.ask("closeStdin", &serde_json::json!({ "process": process }));
    // Or the process would never see the end of its input.
    supervisor.hear_until(|kept| kept.len() == 4);
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "one\ntwo\n", "{}", daemon.log());
    assert_eq!(exit.and_then(|exit| exit.code), Some(7), "{}", daemon.log());
    supervisor.hear_until(<[_]>::is_empty);
}

/// What a daemon says that cannot begin, as a user who is not root.
fn refused(dir: &Path, shell: &str) -> String {
    let script = format!("{shell}; exec \"$0\" serve --sessions-listen 127.0.0.1:0");
    let mut serve = match effective_uid() {
        0 => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
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
    said(&output)
}

#[test]
fn where_it_cannot_begin_it_says_why_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    if effective_uid() == 0 {
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let home = dir.path();
    let few = refused(home, "ulimit -n 64");
    assert!(few.contains("only 64 files may be open") && few.contains("LimitNOFILE"), "{few}");
    let none = refused(home, "export OUTPOST_RUNTIME_DIR=/proc/none/outpost");
    assert!(none.contains("/proc/none/outpost") && none.contains("--runtime-dir"), "{none}");
    let read_only = refused(home, "mkdir state; chmod 500 state");
    assert!(
        read_only.contains("state cannot be written") && read_only.contains("--state-dir"),
        "{read_only}"
    );
    let link = refused(home, "rmdir state; ln -s /tmp state");
    assert!(link.contains("is not a directory of this user"), "{link}");
}

#[test]
fn units_for_systemd_are_what_it_understands() {
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
    assert!(written.status.success() && said(&written).contains("loginctl enable-linger"), "{written:?}");
    let path = dir.path().join("config/systemd/user/outpost.service");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), unit);
    std::fs::write(&path, unit.replace("RestartSec=1", "RestartSec=2")).unwrap();
    let refused = install(&[]);
    assert!(!refused.status.success() && said(&refused).contains("--force"), "{refused:?}");
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

/// The worker has the lock and the books open until it exits: a daemon that is started when the keeper has ended needs both.
#[test]
fn nemesis_a_stopped_daemon_can_be_started_again_when_its_keeper_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let daemon = Daemon::start_in(outpost(), dir.path());
        let (keeper, worker) = (daemon.keeper(), daemon.worker());
        pidfd::signal(&keeper, Signal::TERM).unwrap();
        assert!(wait_readable(&keeper, PATIENCE).unwrap());
        assert!(epoll::is_readable(&worker), "round {round}: the worker lives on without its keeper");
    }
}
