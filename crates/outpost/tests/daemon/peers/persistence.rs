//! A process stays confined after the death of its worker and keeper, and clients in unknown cgroups are refused.

use super::{CLIENT, Cgroups, DAEMON_UID, Host, KillOnDrop, cgroup_root, refused, text};
use crate::support::outpost;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Half, require};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};

/// Runs in a sandbox. For each byte from the Unix socket it connects to the port and sends a request. `k` keeps the
/// connection and returns the reply. `p` passes the connection to the holder and closes it.
const AGENT: &str = r#"
import array, json, socket, sys
port = int(sys.argv[1])
body = '{"method":"session.create","params":{"path":"/"}}'
head = 'POST /rpc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n'
head += 'content-length: %d\r\n\r\n' % len(body)
holder = socket.socket(socket.AF_UNIX)
holder.connect(sys.argv[2])
while order := holder.recv(1):
    client = socket.create_connection(('127.0.0.1', port))
    client.sendall((head + body).encode())
    if order == b'p':
        holder.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [client.fileno()]))])
    else:
        answer = b''
        while piece := client.recv(65536): answer += piece
        holder.sendall(json.dumps(answer.decode()).encode() + b'\n')
    client.close()
"#;

/// An unconfined process of the same user. It reads commands by lines, makes the agent connect, and holds the sockets that
/// the agent passes.
const HOLDER: &str = r#"
import array, json, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print('up', flush=True)
agent, _ = listener.accept()
lines = agent.makefile('r')
for order in sys.stdin:
    if order == 'keep\n':
        agent.sendall(b'k')
        print(lines.readline(), end='', flush=True)
    elif order == 'pass\n':
        agent.sendall(b'p')
        _, ancillary, _, _ = agent.recvmsg(1, socket.CMSG_SPACE(4))
        client = socket.socket(fileno=array.array('i', ancillary[0][2])[0])
        print('passed', flush=True)
    elif order == 'read\n':
        answer = b''
        while piece := client.recv(65536): answer += piece
        print(json.dumps(answer.decode()), flush=True)
        client.close()
"#;

/// The sandboxed agent and the unconfined holder that controls it.
struct Agent<'a> {
    host: &'a Host,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
    _holder: KillOnDrop,
}

impl Agent<'_> {
    fn start(host: &Host) -> Agent<'_> {
        let socket = host.dir.path().join("holder.sock");
        let socket = socket.to_str().unwrap();
        let mut holder = host.as_user(host.uid, &["python3", "-c", HOLDER, socket]);
        let mut holder = KillOnDrop(holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (commands, replies) = (holder.0.stdin.take().unwrap(), holder.0.stdout.take().unwrap());
        let mut agent = Agent { host, commands, replies: BufReader::new(replies), _holder: holder };
        assert_eq!(agent.line(), "up\n");
        let port = host.port();
        let words = ["run", "--detach", "--sandbox", "read-only", "--network", "--"];
        let words = [&words[..], &["python3", "-c", AGENT, &port, socket]].concat();
        let started = host.outpost(&words).output().unwrap();
        assert!(started.status.success(), "{}", text(&started));
        agent
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        self.line()
    }

    /// The reply on a connection that the agent keeps.
    fn ask(&mut self) -> String {
        let line = self.command("keep");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }

    /// The reply on a connection that only the unconfined holder has open when the worker accepts it.
    fn ask_through_holder(&mut self) -> String {
        let worker = self.host.daemon.worker();
        pidfd::signal(&worker, Signal::STOP).unwrap();
        let passed = self.command("pass");
        pidfd::signal(&worker, Signal::CONT).unwrap();
        assert_eq!(passed, "passed\n");
        let line = self.command("read");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }
}

type DaemonEvent = (&'static str, fn(&Host));

/// Events of keeper and worker while a sandboxed process runs, in order.
const DAEMON_EVENTS: [DaemonEvent; 6] = [
    ("nothing yet", |_| {}),
    ("the worker is killed", |host| host.daemon.kill(Half::Worker)),
    ("the keeper is killed", |host| host.daemon.kill(Half::Keeper)),
    ("the next worker is killed", |host| host.daemon.kill(Half::Worker)),
    ("the daemon is upgraded", |host| host.daemon.upgrade(outpost())),
    ("the upgraded worker is killed", |host| host.daemon.kill(Half::Worker)),
];

#[test]
fn a_process_that_outlives_worker_and_keeper_stays_confined_where_it_has_a_cgroup() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    let mut agent = Agent::start(&host);
    for (event, trigger) in DAEMON_EVENTS {
        trigger(&host);
        for answer in [agent.ask(), agent.ask_through_holder()] {
            assert!(refused(&answer, "the client is sandboxed"), "{event}: {answer}");
        }
        let answer = host.client(DAEMON_UID, "", &[]);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{event}: an unconfined client: {answer}");
    }
}

#[test]
fn a_process_that_outlives_worker_and_keeper_stays_confined_where_there_are_no_cgroups() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    let mut agent = Agent::start(&host);
    for (event, trigger) in DAEMON_EVENTS {
        trigger(&host);
        let answer = agent.ask();
        assert!(refused(&answer, "the client is sandboxed"), "{event}: {answer}");
    }
}

/// The connection waits in the backlog while there is no worker. The next worker accepts it before it has taken over any
/// process.
#[test]
fn a_connection_to_a_worker_that_dies_is_refused_by_the_next_one() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    let mut agent = Agent::start(&host);
    let worker = host.daemon.worker();
    pidfd::signal(&worker, Signal::STOP).unwrap();
    assert_eq!(agent.command("pass"), "passed\n");
    pidfd::signal(&worker, Signal::KILL).unwrap();
    let answer: String = serde_json::from_str(&agent.command("read")).unwrap();
    assert!(refused(&answer, "the client is sandboxed"), "{answer}");
    assert_eq!(host.sessions(), 0);
}

/// The parent cgroup of the daemon's processes.
fn groups(host: &Host) -> PathBuf {
    let own = host.cgroup.as_ref().unwrap().join("daemon");
    let is_ours = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("outpost-");
    fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path()).find(is_ours).unwrap()
}

/// Runs a client of the daemon's user in this cgroup.
fn client_in(host: &Host, group: &std::path::Path) -> String {
    let mut enter = std::process::Command::new("bash");
    let user = format!("--reuid={DAEMON_UID} --regid={DAEMON_UID} --clear-groups");
    let script = format!(r#"echo $$ > "$0" || exit 1; exec setpriv {user} python3 -c "$1" "$2" """#);
    enter.args(["-c", &script]).arg(group.join("cgroup.procs")).args([CLIENT, &host.port()]);
    text(&enter.env("PATH", "/usr/bin:/bin").current_dir(host.dir.path()).output().unwrap())
}

#[test]
fn a_client_in_a_cgroup_of_the_daemon_without_a_known_process_is_refused() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    for name in ["4611686018427387904", "other"] {
        let group = groups(&host).join(name);
        fs::create_dir(&group).unwrap();
        let answer = client_in(&host, &group);
        fs::remove_dir(&group).unwrap();
        assert!(refused(&answer, "no process is known there"), "{answer}");
    }
    // A cgroup outside of the daemon's is admitted.
    let group = PathBuf::from(format!("{}-beside", host.cgroup.as_ref().unwrap().display()));
    fs::create_dir(&group).unwrap();
    let answer = client_in(&host, &group);
    fs::remove_dir(&group).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// A socket keeps the cgroup in which it was created. That cgroup may have been one of the daemon's, removed since.
#[test]
fn a_socket_of_a_cgroup_that_is_gone_is_refused() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    let top = require!(cgroup_root());
    let group = PathBuf::from(format!("{}-gone", host.cgroup.as_ref().unwrap().display()));
    fs::create_dir(&group).unwrap();
    let script = r#"
import os, socket, sys
top, group, port = sys.argv[1:]
def enter(at): open(at + '/cgroup.procs', 'w').write(str(os.getpid()))
enter(group)
client = socket.socket()
enter(top)
os.rmdir(group)
client.connect(('127.0.0.1', int(port)))
client.sendall(b'GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n')
answer = b''
while piece := client.recv(65536): answer += piece
print(answer.decode())
"#;
    // A process of root, which otherwise needs no token.
    let mut client = std::process::Command::new("python3");
    client.args(["-c", script]).args([&top, &group]).arg(host.port());
    let answer = text(&client.output().unwrap());
    assert!(refused(&answer, "its cgroup is not there any more"), "{answer}");
}

/// The daemon's user owns the daemon's cgroup, so only the sandbox keeps the command in its own cgroup.
#[test]
fn a_sandboxed_process_does_not_leave_its_cgroup() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    let procs = host.cgroup.as_ref().unwrap().join("daemon/cgroup.procs");
    let procs = procs.to_str().unwrap();
    let leave = format!("cat /proc/self/cgroup; echo $$ > {procs}; echo \"left: $?\"; cat /proc/self/cgroup");
    let unconfined = text(
        &host
            .outpost(&["exec", "--sandbox", "danger-full-access", "--", "sh", "-c", &leave])
            .output()
            .unwrap(),
    );
    assert!(unconfined.contains("left: 0"), "the test tests nothing: {unconfined}");
    let top = require!(cgroup_root());
    let refusal = "never writes to proc, sysfs and the like";
    for (writable, why) in
        [("/", "Read-only file system"), ("/sys", refusal), (top.to_str().unwrap(), refusal)]
    {
        let words = ["exec", "--network", "--sandbox", "workspace-write", "--writable", writable, "--"];
        let answer = text(&host.outpost(&[&words[..], &["sh", "-c", &leave]].concat()).output().unwrap());
        assert!(answer.contains(why) && !answer.contains("left: 0"), "{writable}: {answer}");
    }
}
