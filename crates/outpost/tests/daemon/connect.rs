//! `outpost connect` over a real ssh: a host that is furnished, used by its name, and whose connection breaks.

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

const PATIENCE: Duration = Duration::from_secs(60);

/// A host with an empty home, and what is of this one: all in one directory.
struct There {
    // Before its directory: it ends what has it open.
    sshd: Sshd,
    dir: TempDir,
    /// What `outpost connect` is started by, and what it tells ssh besides.
    by: Vec<String>,
    options: Vec<&'static str>,
}

impl There {
    fn begin() -> Result<There, Lack> {
        There::begin_at(None, &[], Vec::new())
    }

    fn begin_at(address: Option<(&str, u16)>, sshd_by: &[&str], by: Vec<String>) -> Result<There, Lack> {
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
        Ok(There { sshd, dir, by, options: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn binary(&self) -> PathBuf {
        self.path("home/.local/bin/outpost")
    }

    /// A program in the place of ours.
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

    /// A command on that host.
    fn on(&self, arguments: &[&str]) -> Command {
        let mut command = self.outpost(&[], &["--host", "there"]);
        command.args(arguments);
        command
    }

    fn said(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.on(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(status.success(), "{arguments:?}: {status} {} {}", text(&stdout), text(&stderr));
        text(&stdout)
    }

    fn keeper(&self) -> String {
        let said = self.said(&["status"]);
        said.split("keeper ").nth(1).unwrap().split(',').next().unwrap().trim().to_owned()
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
        let log = self.path("connect.log");
        let child = self.connect_with(&[]).stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn();
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

/// An `outpost connect` that is up, ended with the test.
struct Connected {
    child: Child,
    log: PathBuf,
    /// What it said at first.
    table: String,
}

impl Connected {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait_for(&self, text: &str, times: usize) {
        let begun = Instant::now();
        while self.log().matches(text).count() < times {
            assert!(begun.elapsed() < PATIENCE, "never said {text:?}: {}", self.log());
            outpost_testkit::pause();
        }
    }

    /// Kills the ssh that everything goes over.
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
        assert!(wait_readable(&process, PATIENCE).unwrap(), "{}", self.log());
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
fn a_host_is_furnished_once_and_used_by_its_name() {
    let there = require!(There::begin());
    let none = there.on(&["ps"]).output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("no `outpost connect` is up for there"));
    let connected = there.connect();
    assert!(connected.log().contains("copying outpost"), "{}", connected.log());
    assert!(connected.log().contains("started the daemon there"), "{}", connected.log());
    for face in ["control", "exec", "broker", "approvals", "sessions"] {
        assert!(connected.table.contains(face), "{}", connected.table);
    }
    assert!(fs::read(there.binary()).unwrap() == fs::read(outpost()).unwrap());
    assert_eq!(fs::metadata(there.binary()).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(there.path("run/hosts/there")).unwrap().permissions().mode() & 0o777, 0o700);
    let names = fs::read_dir(there.binary().parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1, "nothing else is left of the copying");

    // In its home, with its environment and what was added, and with none of ours.
    let script = "pwd; echo $HOME $ADDED ${OURS-none}; cat; exit 3";
    let mut run = there.on(&["run", "--env", "ADDED=1", "--", "sh", "-c", script]);
    let mut run = run.env("OURS", "secret").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    run.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = run.wait_with_output().unwrap();
    let home = there.path("home").display().to_string();
    let expected = format!("{home}\n{home} 1 none\ninput\n");
    assert_eq!((String::from_utf8(output.stdout).unwrap(), output.status.code()), (expected, Some(3)));
    let _number = there.said(&["run", "--detach", "--name", "p", "--", "sh", "-c", "echo hello; sleep 1000"]);
    assert!(there.said(&["ps"]).contains("sleep 1000"));
    let begun = Instant::now();
    while there.said(&["logs", "p"]) != "hello\n" {
        assert!(begun.elapsed() < PATIENCE);
        outpost_testkit::pause();
    }
    assert!(there.said(&["sessions", "list"]).starts_with("ID"));
    // Over there this is the user that also asks, as it would be there: it sees its questions, and decides with a key.
    let approvals = there.on(&["approvals", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&approvals.stdout).starts_with("ID"), "{approvals:?}");
    let approvals = there.on(&["approvals", "allow", &"0".repeat(36)]).output().unwrap();
    assert!(String::from_utf8_lossy(&approvals.stderr).contains("no question 0000"), "{approvals:?}");
    let refused = there.on(&["token", "list"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--host is not for this command"),
        "{refused:?}"
    );
    assert!(there.failure(&[]).contains("is up for there already"));
    let keeper = there.keeper();
    connected.end();
    assert!(!there.path("run/hosts/there/control.sock").exists());

    // Again: nothing is copied, and everything is as it was.
    let connected = there.connect();
    assert!(connected.log().contains("copying nothing"), "{}", connected.log());
    assert!(!connected.log().contains("the daemon there"), "{}", connected.log());
    assert_eq!(there.keeper(), keeper);
    assert_eq!(there.said(&["kill", "p"]).trim(), "ended");
    let gone = there.outpost(&[], &["disconnect", "there"]).status().unwrap();
    assert!(gone.success() && !there.path("run/hosts/there/control.sock").exists());
    drop(connected);

    // In the background.
    let output = there.connect_with(&["--detach"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("stays in the background"), "{said}");
    let stopped = there.on(&["stop"]).output();
    let gone = there.outpost(&[], &["disconnect", "there"]).status();
    assert!(stopped.unwrap().status.success() && gone.unwrap().success());
    assert!(!there.path("there/outpost/control.sock").exists());
}

#[test]
fn what_is_about_files_of_a_host_is_carried_out_there() {
    let there = require!(There::begin());
    let _connected = there.connect();
    let shown = there.said(&["config", "show"]);
    assert!(shown.contains("listen = \"127.0.0.1:0\""), "{shown}");
    let sick = there.on(&["doctor", "--json"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&sick.stdout).contains(there.path("there").to_str().unwrap()),
        "{sick:?}"
    );
    let keeper = there.keeper();
    fs::copy(there.binary(), there.path("home/newer")).unwrap();
    let newer = there.path("home/newer").display().to_string();
    assert!(there.said(&["upgrade", "--binary", &newer]).contains("upgraded: outpost "));
    assert_eq!(there.keeper(), keeper, "it replaces itself in place");
    let wrong = there.on(&["upgrade", "--binary", "/nowhere"]).output().unwrap();
    assert!(
        !wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("/nowhere"),
        "{wrong:?}"
    );
}

/// Says a thousand things, the second half when it is let to.
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
fn an_answer_of_an_agent_elsewhere_is_whole_when_ssh_is_killed_in_its_middle() {
    let there = require!(There::begin());
    let connected = there.connect();
    let claude = there.path("home/.local/bin/claude");
    fs::write(&claude, CLAUDE).unwrap();
    fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).unwrap();
    let session = there.said(&["sessions", "create", there.path("home").to_str().unwrap()]);
    let mut send = Reader::new(there.on(&["sessions", "send", session.trim(), "count"]));
    send.read_until("1\n2\n".len());
    connected.kill_ssh();
    connected.wait_for("connected to there again", 1);
    fs::write(there.path("home/go"), "").unwrap();
    let (text, code) = send.end();
    let expected: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    assert_eq!((text.as_str(), code), (expected.as_str(), Some(0)), "{}", connected.log());
}

#[test]
fn an_older_binary_is_replaced_and_a_newer_one_is_not() {
    let there = require!(There::begin());
    there.put(b"#!/bin/sh\necho outpost 999.0.0\n");
    let refused = there.failure(&[]);
    assert!(
        refused.contains("999.0.0 is there, which is newer") && refused.contains("says something else"),
        "{refused}"
    );
    there.put(b"#!/bin/sh\necho something else\n");
    assert!(there.failure(&[]).contains("is another program"));
    there.put(b"#!/bin/sh\necho outpost 0.0.1\n");
    let connected = there.connect();
    assert!(connected.log().contains("it replaces 0.0.1, which is older"), "{}", connected.log());
    assert!(there.said(&["status"]).contains("is running"));
    connected.end();

    // A daemon of another build runs; its processes do not notice that it is replaced.
    let mut other = fs::read(outpost()).unwrap();
    other.extend_from_slice(b"another build");
    fs::remove_file(there.binary()).unwrap();
    there.put(&other);
    let arrived = there.sshd.ssh().arg("~/.local/bin/outpost arrive").output().unwrap();
    assert!(String::from_utf8_lossy(&arrived.stdout).contains("\"did\":\"upgraded\""), "{arrived:?}");
    let start = there.sshd.ssh().arg("~/.local/bin/outpost run --name p --detach -- sleep 1000").status();
    assert!(start.unwrap().success());
    let connected = there.connect();
    assert!(connected.log().contains("it replaces another build of"), "{}", connected.log());
    assert!(connected.log().contains("upgraded the daemon there"), "{}", connected.log());
    assert!(fs::read(format!("/proc/{}/exe", there.keeper())).unwrap() == fs::read(outpost()).unwrap());
    assert!(there.said(&["ps"]).contains("sleep 1000"));
    assert_eq!(there.said(&["kill", "p"]).trim(), "ended");
}

/// Numbers its lines, the second half of them when it is told to.
const PRODUCER: &str = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; read word; \
    echo got $word; while [ $i -lt 40000 ]; do echo line $i of many; i=$((i+1)); done; read word; exit 7";

fn produced() -> String {
    let line = |i: u32| format!("line {i} of many\n");
    let halves = [(0..20000).map(line).collect::<String>(), (20000..40000).map(line).collect()];
    halves.join("got go\n")
}

/// One that looks on, read bit by bit.
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
fn an_ssh_that_is_killed_in_mid_stream_loses_and_doubles_nothing() {
    let there = require!(There::begin());
    let connected = there.connect();
    let mut run = Reader::new(there.on(&["run", "--name", "p", "--", "sh", "-c", PRODUCER]));
    run.read_until(50_000);
    let mut logs = Reader::new(there.on(&["logs", "-f", "p"]));
    logs.read_until(100_000);
    connected.kill_ssh();
    // Taken while there is no way to the process.
    run.write("go\n");
    connected.wait_for("connected to there again", 1);
    run.read_until(500_000);
    connected.kill_ssh();
    logs.read_until(600_000);
    connected.wait_for("connected to there again", 2);
    run.write("end\n");
    let (text, code) = run.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(7));
    let (text, code) = logs.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(0));
}

/// Two network namespaces with a link between them, gone with the test.
struct Link {
    names: [String; 2],
}

impl Link {
    const ADDRESSES: [&'static str; 2] = ["10.213.77.1", "10.213.77.2"];

    fn make() -> Result<Link, Lack> {
        outpost_testkit::root()?;
        let pid = std::process::id();
        let link = Link { names: [format!("opa{pid}"), format!("opb{pid}")] };
        let [a, b] = &link.names;
        if !ip(&["netns", "add", a]) {
            return Err(Lack::of_setup("`ip netns add` fails; iproute2 and root have network namespaces"));
        }
        assert!(ip(&["netns", "add", b]));
        assert!(ip(&["link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b]));
        for (name, address) in link.names.iter().zip(Link::ADDRESSES) {
            assert!(ip(&["-n", name, "address", "add", &format!("{address}/30"), "dev", name]));
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
            link.set(name, "up");
        }
        Ok(link)
    }

    fn set(&self, name: &str, state: &str) {
        assert!(ip(&["-n", name, "link", "set", name, state]));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn a_network_that_goes_away_and_comes_back_loses_and_doubles_nothing() {
    let link = require!(Link::make());
    let [a, b] = &link.names;
    let by = ["ip", "netns", "exec", a].map(str::to_owned).to_vec();
    let address = Some((Link::ADDRESSES[1], 2222));
    let mut there = require!(There::begin_at(address, &["ip", "netns", "exec", b], by));
    there.options = vec!["ServerAliveInterval=1", "ServerAliveCountMax=2", "ConnectTimeout=2"];
    let connected = there.connect();
    let mut run = Reader::new(there.on(&["run", "--name", "p", "--", "sh", "-c", PRODUCER]));
    run.read_until(50_000);
    link.set(b, "down");
    run.write("go\n");
    connected.wait_for("is lost", 1);
    connected.wait_for("trying again", 1);
    link.set(b, "up");
    connected.wait_for("connected to there again", 1);
    run.write("end\n");
    let (text, code) = run.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(7));
}
