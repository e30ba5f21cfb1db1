//! `outpost connect` over a real sshd: set-up of the host, its use by name, and broken connections.

mod outage;

use crate::support::outpost;
use outpost_sys::procfs;
use outpost_sys::signal::Signal;
use outpost_sys::{epoll::wait_readable, pidfd};
use outpost_testkit::{Lack, Sshd, SshdOptions, require};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A remote host with an empty home, and the local files for it, all in one directory.
struct RemoteHost {
    // Declared before `dir`: its drop ends the processes that use the directory.
    sshd: Sshd,
    dir: TempDir,
    /// The command prefix of `outpost connect`.
    by: Vec<String>,
    /// Additional ssh options.
    options: Vec<&'static str>,
}

impl RemoteHost {
    fn start() -> Result<RemoteHost, Lack> {
        RemoteHost::start_at(None, &[], Vec::new())
    }

    fn start_at(address: Option<(&str, u16)>, sshd_by: &[&str], by: Vec<String>) -> Result<RemoteHost, Lack> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir_all(at("home/.config/outpost")).unwrap();
        fs::write(at("home/.config/outpost/outpost.toml"), "[sessions]\nlisten = \"127.0.0.1:0\"\n").unwrap();
        let environment = [
            ("HOME", at("home")),
            ("XDG_CONFIG_HOME", at("home/.config")),
            ("XDG_STATE_HOME", at("home/.local/state")),
            ("XDG_RUNTIME_DIR", at("there")),
        ];
        let options = SshdOptions { address, by: sshd_by, environment: &environment };
        let sshd = Sshd::start(dir.path(), &options)?;
        Ok(RemoteHost { sshd, dir, by, options: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn binary(&self) -> PathBuf {
        self.path("home/.local/bin/outpost")
    }

    /// Installs another program as the remote `outpost`.
    fn put(&self, contents: &[u8]) {
        fs::create_dir_all(self.binary().parent().unwrap()).unwrap();
        fs::write(self.binary(), contents).unwrap();
        fs::set_permissions(self.binary(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn outpost(&self, by: &[String], arguments: &[&str]) -> Command {
        let mut command = match by {
            [] => Command::new(outpost()),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(outpost());
                command
            }
        };
        command.arg("--state-dir").arg(self.path("state")).arg("--runtime-dir").arg(self.path("run"));
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// A command with `--host`.
    fn on(&self, arguments: &[&str]) -> Command {
        let mut command = self.outpost(&[], &["--host", "there"]);
        command.args(arguments);
        command
    }

    fn stdout_of(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.on(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(status.success(), "{arguments:?}: {status} {} {}", text(&stdout), text(&stderr));
        text(&stdout)
    }

    fn keeper(&self) -> String {
        let status = self.stdout_of(&["status"]);
        status.split("keeper ").nth(1).unwrap().split(',').next().unwrap().trim().to_owned()
    }

    fn connect_with(&self, flags: &[&str]) -> Command {
        let port = self.sshd.port().to_string();
        let mut connect = self.outpost(&self.by, &["connect", "--name", "there", "-p", &port]);
        let own = self.options.iter().map(|option| (*option).to_owned());
        for option in own.chain(self.sshd.client_options()) {
            connect.arg("-o").arg(option);
        }
        connect.args(flags).arg(self.sshd.destination());
        connect
    }

    fn connect(&self) -> Connected {
        self.connected_with(&[])
    }

    fn connected_with(&self, flags: &[&str]) -> Connected {
        let log = self.path("connect.log");
        let child =
            self.connect_with(flags).stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn();
        let mut connected = Connected { child: child.unwrap(), log, table: String::new() };
        let mut lines = BufReader::new(connected.child.stdout.take().unwrap());
        while !connected.table.contains("try: ") {
            let read = lines.read_line(&mut connected.table).unwrap();
            assert!(read > 0, "{}{}{}", connected.table, connected.log(), self.sshd.log());
        }
        connected
    }

    fn failure(&self, flags: &[&str]) -> String {
        let output = self.connect_with(flags).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// A running `outpost connect`, ended at the end of the test.
struct Connected {
    child: Child,
    log: PathBuf,
    /// The table that it prints when it is connected.
    table: String,
}

impl Connected {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait_for(&self, text: &str, times: usize) {
        let started = Instant::now();
        while self.log().matches(text).count() < times {
            assert!(started.elapsed() < TIMEOUT, "never logged {text:?}: {}", self.log());
            outpost_testkit::pause();
        }
    }

    /// Kills the ssh master process.
    fn kill_ssh(&self) {
        let own = self.child.id().cast_signed();
        let is_master = |pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"-M")
        };
        let mut children = procfs::all().into_iter().filter(|stat| stat.parent == own && is_master(stat.pid));
        let ssh = outpost_testkit::process(children.next().expect("an ssh").pid).unwrap();
        pidfd::signal(&ssh, Signal::KILL).unwrap();
    }

    fn end(mut self) {
        let process = outpost_testkit::process(self.child.id().cast_signed()).unwrap();
        pidfd::signal(&process, Signal::TERM).unwrap();
        assert!(wait_readable(&process, TIMEOUT).unwrap(), "{}", self.log());
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if let Ok(process) = outpost_testkit::process(self.child.id().cast_signed()) {
            let _gone = pidfd::signal(&process, Signal::TERM);
            if !wait_readable(&process, Duration::from_secs(10)).unwrap_or(false) {
                let _gone = self.child.kill();
            }
        }
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_host_is_set_up_once_and_used_by_its_name() {
    let remote = require!(RemoteHost::start());
    let none = remote.on(&["ps"]).output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("no `outpost connect` is up for there"));
    let connected = remote.connect();
    assert!(connected.log().contains("copying outpost"), "{}", connected.log());
    assert!(connected.log().contains("started the remote daemon"), "{}", connected.log());
    for face in ["control", "exec", "broker", "approvals", "sessions"] {
        assert!(connected.table.contains(face), "{}", connected.table);
    }
    assert!(fs::read(remote.binary()).unwrap() == fs::read(outpost()).unwrap());
    assert_eq!(fs::metadata(remote.binary()).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(remote.path("run/hosts/there")).unwrap().permissions().mode() & 0o777, 0o700);
    let names = fs::read_dir(remote.binary().parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1, "nothing else is left of the copying");

    // The command runs in the remote home, with the remote environment and `--env`, without the local one.
    let script = "pwd; echo $HOME $ADDED ${OURS-none}; cat; exit 3";
    let mut run = remote.on(&["run", "--env", "ADDED=1", "--", "sh", "-c", script]);
    let mut run = run.env("OURS", "secret").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    run.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = run.wait_with_output().unwrap();
    let home = remote.path("home").display().to_string();
    let expected = format!("{home}\n{home} 1 none\ninput\n");
    assert_eq!((String::from_utf8(output.stdout).unwrap(), output.status.code()), (expected, Some(3)));
    let _number =
        remote.stdout_of(&["run", "--detach", "--name", "p", "--", "sh", "-c", "echo hello; sleep 1000"]);
    assert!(remote.stdout_of(&["ps"]).contains("sleep 1000"));
    let started = Instant::now();
    while remote.stdout_of(&["logs", "p"]) != "hello\n" {
        assert!(started.elapsed() < TIMEOUT);
        outpost_testkit::pause();
    }
    assert!(remote.stdout_of(&["sessions", "list"]).starts_with("ID"));
    // A TCP port could be used by every user of this host.
    assert!(!connected.table.contains("127.0.0.1"), "{}", connected.table);
    assert!(!remote.path("run/hosts/there/sessions.port").exists());
    // On the remote host this user also makes the requests: it sees its questions and needs a key to decide.
    let approvals = remote.on(&["approvals", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&approvals.stdout).starts_with("ID"), "{approvals:?}");
    let approvals = remote.on(&["approvals", "approve", &"0".repeat(36)]).output().unwrap();
    assert!(String::from_utf8_lossy(&approvals.stderr).contains("no question 0000"), "{approvals:?}");
    let refused = remote.on(&["token", "list"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("this command does not support --host"),
        "{refused:?}"
    );
    assert!(remote.failure(&[]).contains("already runs for there"));
    let keeper = remote.keeper();
    connected.end();
    assert!(!remote.path("run/hosts/there/control.sock").exists());

    // A second connection copies nothing and finds the same daemon.
    let connected = remote.connect();
    assert!(connected.log().contains("not copied"), "{}", connected.log());
    assert!(!connected.log().contains("the remote daemon"), "{}", connected.log());
    assert_eq!(remote.keeper(), keeper);
    assert_eq!(remote.stdout_of(&["kill", "p"]).trim(), "p: terminated (SIGTERM)");
    let gone = remote.outpost(&[], &["disconnect", "there"]).status().unwrap();
    assert!(gone.success() && !remote.path("run/hosts/there/control.sock").exists());
    drop(connected);

    // The connection can run in the background.
    let output = remote.connect_with(&["--detach"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.contains("connected in the background"), "{errors}");
    let stopped = remote.on(&["stop"]).output();
    let gone = remote.outpost(&[], &["disconnect", "there"]).status();
    assert!(stopped.unwrap().status.success() && gone.unwrap().success());
    assert!(!remote.path("there/outpost/control.sock").exists());
}

#[test]
fn the_sessions_port_is_forwarded_on_request() {
    let remote = require!(RemoteHost::start());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connected = remote.connected_with(&["--sessions-port", &port.to_string()]);
    let url = format!("http://127.0.0.1:{port}/rpc");
    assert!(connected.table.contains(&url), "{}", connected.table);
    // A daemon of root demands a token.
    let client = outpost_testkit::SessionsClient::new(([127, 0, 0, 1], port).into())
        .with_token_of(&remote.path("there/outpost/sessions.token"));
    let health = client.result("health.check", serde_json::json!({}));
    assert_eq!(health["ok"], true, "{health}");
    connected.end();
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the forward outlives the connection"
    );
}

#[test]
fn commands_about_files_run_on_the_remote_host() {
    let remote = require!(RemoteHost::start());
    let _connected = remote.connect();
    let shown = remote.stdout_of(&["config", "show"]);
    assert!(shown.contains("listen = \"127.0.0.1:0\""), "{shown}");
    let sick = remote.on(&["doctor", "--json"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&sick.stdout).contains(remote.path("there").to_str().unwrap()),
        "{sick:?}"
    );
    let keeper = remote.keeper();
    fs::copy(remote.binary(), remote.path("home/newer")).unwrap();
    let newer = remote.path("home/newer").display().to_string();
    assert!(remote.stdout_of(&["upgrade", "--binary", &newer]).contains("upgraded: outpost "));
    assert_eq!(remote.keeper(), keeper, "it replaces itself in place");
    let wrong = remote.on(&["upgrade", "--binary", "/nowhere"]).output().unwrap();
    assert!(
        !wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("/nowhere"),
        "{wrong:?}"
    );
}

/// A fake agent that writes a thousand messages, the second half after the file `go` exists.
const CLAUDE: &str = r#"#!/bin/sh
[ "$1" = --version ] && echo '2.0.0 (Claude Code)' && exit
say() { for i in $(seq $1 $2); do echo '{"type":"assistant","message":{"content":[{"type":"text","text":"'$i'"}]}}'; done; }
echo '{"type":"system","subtype":"init","session_id":"5b0c7f0e-0000-4000-8000-000000000000","model":"m"}'
say 1 500
while [ ! -e "$HOME/go" ]; do sleep 0.05; done
say 501 1000
echo '{"type":"result","subtype":"success","is_error":false,"result":"","session_id":"5b0c7f0e-0000-4000-8000-000000000000"}'
"#;

#[test]
fn the_stream_of_a_remote_agent_is_complete_after_ssh_is_killed() {
    let remote = require!(RemoteHost::start());
    let connected = remote.connect();
    let claude = remote.path("home/.local/bin/claude");
    fs::write(&claude, CLAUDE).unwrap();
    fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).unwrap();
    let session = remote.stdout_of(&["sessions", "create", remote.path("home").to_str().unwrap()]);
    let mut send = Reader::new(remote.on(&["sessions", "send", session.trim(), "count"]));
    send.read_until("1\n2\n".len());
    connected.kill_ssh();
    connected.wait_for("reconnected to there", 1);
    fs::write(remote.path("home/go"), "").unwrap();
    let (text, code) = send.end();
    let expected: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    assert_eq!((text.as_str(), code), (expected.as_str(), Some(0)), "{}", connected.log());
}

#[test]
fn an_older_binary_is_replaced_and_a_newer_one_is_not() {
    let remote = require!(RemoteHost::start());
    remote.put(b"#!/bin/sh\necho outpost 999.0.0\n");
    let refused = remote.failure(&[]);
    assert!(
        refused.contains("999.0.0 is installed, which is newer")
            && refused.contains("unexpected output of the remote outpost"),
        "{refused}"
    );
    remote.put(b"#!/bin/sh\necho something else\n");
    assert!(remote.failure(&[]).contains("is not outpost"));
    remote.put(b"#!/bin/sh\necho outpost 0.0.1\n");
    let connected = remote.connect();
    assert!(connected.log().contains("replaces 0.0.1, which is older"), "{}", connected.log());
    assert!(remote.stdout_of(&["status"]).contains("is running"));
    connected.end();

    // The upgrade of a daemon of another build keeps its processes.
    let mut other = fs::read(outpost()).unwrap();
    other.extend_from_slice(b"another build");
    fs::remove_file(remote.binary()).unwrap();
    remote.put(&other);
    let arrived = remote.sshd.ssh().arg("~/.local/bin/outpost arrive").output().unwrap();
    assert!(String::from_utf8_lossy(&arrived.stdout).contains("\"did\":\"upgraded\""), "{arrived:?}");
    let start = remote.sshd.ssh().arg("~/.local/bin/outpost run --name p --detach -- sleep 1000").status();
    assert!(start.unwrap().success());
    let connected = remote.connect();
    assert!(connected.log().contains("replaces another build of"), "{}", connected.log());
    assert!(connected.log().contains("upgraded the remote daemon"), "{}", connected.log());
    assert!(fs::read(format!("/proc/{}/exe", remote.keeper())).unwrap() == fs::read(outpost()).unwrap());
    assert!(remote.stdout_of(&["ps"]).contains("sleep 1000"));
    assert_eq!(remote.stdout_of(&["kill", "p"]).trim(), "p: terminated (SIGTERM)");
}

/// Prints numbered lines, the second half after a line of input.
const PRODUCER: &str = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; read word; \
    echo got $word; while [ $i -lt 40000 ]; do echo line $i of many; i=$((i+1)); done; read word; exit 7";

fn produced() -> String {
    let line = |i: u32| format!("line {i} of many\n");
    let halves = [(0..20000).map(line).collect::<String>(), (20000..40000).map(line).collect()];
    halves.join("got go\n")
}

/// A running command whose output is read in steps.
struct Reader {
    child: Child,
    out: ChildStdout,
    bytes: Vec<u8>,
}

impl Reader {
    fn new(mut command: Command) -> Reader {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Reader { child, out, bytes: Vec::new() }
    }

    fn read_until(&mut self, enough: usize) {
        let mut piece = [0; 4096];
        while self.bytes.len() < enough {
            let read = self.out.read(&mut piece).unwrap();
            assert!(read > 0, "it ended after {} bytes", self.bytes.len());
            self.bytes.extend_from_slice(&piece[..read]);
        }
    }

    fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn end(mut self) -> (String, Option<i32>) {
        self.out.read_to_end(&mut self.bytes).unwrap();
        let code = self.child.wait().unwrap().code();
        (String::from_utf8(std::mem::take(&mut self.bytes)).unwrap(), code)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_killed_ssh_loses_and_duplicates_nothing() {
    let remote = require!(RemoteHost::start());
    let connected = remote.connect();
    let mut run = Reader::new(remote.on(&["run", "--name", "p", "--", "sh", "-c", PRODUCER]));
    run.read_until(50_000);
    let mut logs = Reader::new(remote.on(&["logs", "-f", "p"]));
    logs.read_until(100_000);
    connected.kill_ssh();
    // This input is accepted while the connection is down.
    run.write("go\n");
    connected.wait_for("reconnected to there", 1);
    run.read_until(500_000);
    connected.kill_ssh();
    logs.read_until(600_000);
    connected.wait_for("reconnected to there", 2);
    run.write("end\n");
    let (text, code) = run.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(7));
    let (text, code) = logs.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(0));
}
