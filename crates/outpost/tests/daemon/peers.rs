//! Clients of the loopback ports: the daemon admits them without a token by the uid and cgroup that the kernel reports.

mod persistence;
mod relay;

use crate::support::{cli, http_get, outpost, until};
use outpost_sys::signal::Signal;
use outpost_sys::{message, pidfd, procfs};
use outpost_testkit::{Daemon, Lack, Sshd, SshdOptions, install_fake_clis, require, root};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The daemon's user.
const DAEMON_UID: u32 = 65534;
/// The daemon's user in tests with ssh: sshd accepts it, and no other test has a sandboxed process of it.
const GAMES: u32 = 5;
const OTHER_USER: u32 = 54322;

/// A client that sends one request and prints the reply. Its second argument selects a trick with its socket.
const CLIENT: &str = r#"
import array, os, socket, sys, time
port, trick = int(sys.argv[1]), sys.argv[2]
token = open(sys.argv[3]).read() if len(sys.argv) > 3 else None
body = '{"method":"session.create","params":{"path":"/"}}'
head = 'POST /rpc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n'
if token: head += 'authorization: Bearer %s\r\n' % token
head += 'content-length: %d\r\n\r\n' % len(body)
if trick == 'pass on':
    print('ready', flush=True)
    while not os.path.exists('go'): time.sleep(0.01)
client = socket.create_connection(('127.0.0.1', port))
if trick == 'fork' and (child := os.fork()):
    client.close()
    sys.exit(os.waitpid(child, 0)[1])
client.sendall((head + body).encode())
if trick == 'in flight':
    here, there = socket.socketpair()
    here.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [client.fileno()]))])
    client.close()
    time.sleep(1)
    _, ancillary, _, _ = there.recvmsg(1, socket.CMSG_SPACE(4))
    client = socket.socket(fileno=array.array('i', ancillary[0][2])[0])
if trick == 'pass on':
    holder = socket.socket(socket.AF_UNIX)
    holder.connect(os.environ['HOLDER'])
    holder.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [client.fileno()]))])
    sys.exit()
answer = b''
while piece := client.recv(65536): answer += piece
print(answer.decode())
"#;

/// A daemon of another user than root, with a project and a home.
struct Host {
    daemon: Daemon,
    dir: TempDir,
    cgroup: Option<PathBuf>,
    uid: u32,
}

/// Whether the daemon has a cgroup for each process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cgroups {
    Delegated,
    Missing,
}

fn cgroup_root() -> Result<PathBuf, Lack> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let path = mount.and_then(|line| line.split(' ').nth(4)).map(PathBuf::from);
    path.ok_or_else(|| Lack::of_host("control groups (version 2) are not mounted here"))
}

impl Host {
    fn start(cgroups: Cgroups, flags: &[&str]) -> Result<Host, Lack> {
        Host::start_as(DAEMON_UID, cgroups, flags)
    }

    fn start_as(uid: u32, cgroups: Cgroups, flags: &[&str]) -> Result<Host, Lack> {
        root()?;
        let dir = tempfile::tempdir().unwrap();
        for name in ["home/.config", "project"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
        ["", "home", "home/.config", "project"].iter().for_each(|name| own(&dir.path().join(name)));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut cgroup = None;
        if cgroups == Cgroups::Delegated {
            let group = cgroup_root()?
                .join(format!("outpost-peers-{}", dir.path().display().to_string().replace('/', "-")));
            fs::create_dir_all(group.join("daemon")).unwrap();
            for path in ["", "cgroup.procs", "daemon", "daemon/cgroup.procs"] {
                own(&group.join(path));
            }
            cgroup = Some(group);
        }
        let procs = cgroup.as_ref().map(|group| group.join("daemon/cgroup.procs"));
        let mut serve = Command::new("bash");
        let enter = r#"if [ "$0" != none ]; then echo $$ > "$0" || exit 1; fi; exec setpriv --reuid="$1" --regid="$1" --clear-groups "$2" "${@:3}""#;
        serve
            .args(["-c", enter])
            .arg(procs.unwrap_or_else(|| "none".into()))
            .arg(uid.to_string())
            .arg(outpost());
        install_fake_clis(&dir.path().join("bin"), &["claude"]);
        serve.env("PATH", format!("{}:/usr/bin:/bin", dir.path().join("bin").display()));
        serve.env("HOME", dir.path().join("home")).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME");
        let daemon = Daemon::start_by_in(serve, dir.path(), flags);
        Ok(Host { daemon, dir, cgroup, uid })
    }

    fn port(&self) -> String {
        self.daemon.sessions().address().port().to_string()
    }

    /// A command of this user.
    fn as_user(&self, uid: u32, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()])
            .args(words);
        command.current_dir(self.dir.path()).stdin(Stdio::null()).env("HOME", self.dir.path().join("home"));
        command.env("PATH", "/usr/bin:/bin");
        command
    }

    fn client(&self, uid: u32, trick: &str, more: &[&str]) -> String {
        let port = self.port();
        let words = [&["python3", "-c", CLIENT, &port, trick], more].concat();
        text(&self.as_user(uid, &words).output().unwrap())
    }

    /// `outpost` as the daemon's user.
    fn outpost(&self, words: &[&str]) -> Command {
        let own = [outpost().to_str().unwrap(), "--state-dir", "state", "--runtime-dir", "run"];
        self.as_user(self.uid, &[&own, words].concat())
    }

    /// A sandboxed command with network.
    fn sandboxed(&self, words: &[&str]) -> Command {
        self.outpost(&[&["exec", "--network", "--sandbox", "read-only", "--"], words].concat())
    }

    fn sandboxed_client(&self, trick: &str) -> Command {
        self.sandboxed(&["python3", "-c", CLIENT, &self.port(), trick])
    }

    /// A sandboxed command that runs until the returned value is dropped.
    fn sandboxed_sleep(&self) -> KillOnDrop {
        let mut sleep = self.sandboxed(&["sh", "-c", "echo up; sleep 100"]);
        let mut sleep = KillOnDrop(sleep.stdout(Stdio::piped()).spawn().unwrap());
        sleep.0.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        sleep
    }

    fn sessions(&self) -> usize {
        let listed = self.daemon.sessions().result("session.list", json!({}));
        listed["sessions"].as_array().unwrap().len()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(group) = self.cgroup.clone() else { return };
        let _stopped = self.outpost(&["stop", "--grace", "0"]).output();
        let gone = || fs::remove_dir(group.join("daemon")).and_then(|()| fs::remove_dir(&group)).is_ok();
        let started = std::time::Instant::now();
        while !gone() && started.elapsed() < std::time::Duration::from_secs(10) {
            outpost_testkit::pause();
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn refused(answer: &str, reason: &str) -> bool {
    answer.starts_with("HTTP/1.1 401 ")
        && answer.contains("Unauthorized: missing Bearer token (")
        && answer.contains(reason)
}

#[test]
fn processes_of_the_user_and_of_root_need_no_token() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    let answer = host.client(DAEMON_UID, "", &[]);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("sessionId"), "{answer}");
    // This test process is root.
    let client = host.daemon.sessions().without_token();
    assert_eq!(client.result("session.list", json!({}))["sessions"].as_array().unwrap().len(), 1);
    // The daemon checks a connection once, and also one that its client has half closed.
    let answer = host.as_user(DAEMON_UID, &["bash", "-c", &format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'GET /openapi.json HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n' >&3; cat <&3",
        host.port()
    )]);
    let answer = text(&{ answer }.output().unwrap());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn another_user_is_refused_on_every_port_but_with_the_token() {
    let host = require!(Host::start(Cgroups::Missing, &["--metrics-listen=127.0.0.1:0"]));
    let answer = host.client(OTHER_USER, "", &[]);
    assert!(refused(&answer, "another user, uid 54322"), "{answer}");
    assert_eq!(host.sessions(), 0);
    let status: Value =
        serde_json::from_slice(&host.outpost(&["status", "--json"]).output().unwrap().stdout).unwrap();
    let rows = status["listening"].as_array().unwrap();
    let url =
        rows.iter().find(|row| row["face"] == "metrics").unwrap()["address"].as_str().unwrap().to_owned();
    assert!(http_get(&url).starts_with("HTTP/1.1 200 "), "root reads the metrics of a user's daemon");
    let mut curl = host.as_user(OTHER_USER, &["curl", "-s", "-i", &url]);
    let answer = text(&curl.output().unwrap());
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("uid 54322"), "{answer}");
    let bearer = |file: &str| {
        format!("authorization: Bearer {}", fs::read_to_string(host.dir.path().join(file)).unwrap())
    };
    let mut curl =
        host.as_user(OTHER_USER, &["curl", "-s", "-i", "-H", &bearer("state/metrics.token"), &url]);
    let answer = text(&curl.output().unwrap());
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("outpost_build_info"), "{answer}");
    let copy = host.dir.path().join("copy");
    fs::copy(host.dir.path().join("run/sessions.token"), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).unwrap();
    let answer = host.client(OTHER_USER, "", &[copy.to_str().unwrap()]);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    fs::write(&copy, "0".repeat(64)).unwrap();
    let answer = host.client(OTHER_USER, "", &[copy.to_str().unwrap()]);
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("invalid token"), "{answer}");
}

/// A sandboxed process is refused whatever it does with its socket.
fn a_sandboxed_process_starts_no_session(cgroups: Cgroups) -> Result<(), Lack> {
    let host = Host::start(cgroups, &[])?;
    for trick in ["", "fork", "in flight"] {
        let answer = text(&host.sandboxed_client(trick).output().unwrap());
        assert!(refused(&answer, "sandboxed"), "{trick}: {answer}");
    }
    let inside = "cat run/sessions.token state/metrics.token; ls run state; echo done";
    let seen = text(&host.sandboxed(&["sh", "-c", inside]).output().unwrap());
    assert!(seen.contains("done") && !seen.contains(".sock"), "{seen}");
    let token = fs::read_to_string(host.dir.path().join("run/sessions.token")).unwrap();
    assert!(!seen.contains(&token), "{seen}");
    assert_eq!(host.sessions(), 0);
    // A running sandboxed process does not affect other clients.
    let _sandboxed = host.sandboxed_sleep();
    let answer = host.client(DAEMON_UID, "", &[]);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(())
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn a_sandboxed_process_starts_no_session_where_it_has_a_cgroup() {
    require!(a_sandboxed_process_starts_no_session(Cgroups::Delegated));
}

#[test]
fn a_sandboxed_process_starts_no_session_where_there_are_no_cgroups() {
    require!(a_sandboxed_process_starts_no_session(Cgroups::Missing));
}

#[test]
fn a_socket_that_a_sandboxed_process_passed_on_before_it_ended_is_still_its_own() {
    let host = require!(Host::start(Cgroups::Delegated, &[]));
    let holder = host.dir.path().join("holder.sock");
    // A harmless service of the host that receives the socket and keeps it.
    let listener = std::os::unix::net::UnixListener::bind(&holder).unwrap();
    fs::set_permissions(&holder, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = host.sandboxed_client("pass on");
    let mut client = KillOnDrop(command.env("HOLDER", &holder).stdout(Stdio::piped()).spawn().unwrap());
    client.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let worker = host.daemon.worker();
    pidfd::signal(&worker, Signal::STOP).unwrap();
    fs::write(host.dir.path().join("go"), "").unwrap();
    // The connection stays open in the receive queue of this socket.
    let (_kept, _) = listener.accept().unwrap();
    let pid = message::peer(&_kept).unwrap().pid;
    until("the command ends", || procfs::stat(pid).is_none_or(|stat| !stat.is_alive()));
    pidfd::signal(&worker, Signal::CONT).unwrap();
    client.0.wait().unwrap();
    assert_eq!(host.sessions(), 0);
}

#[test]
fn a_connection_that_is_closed_at_once_starts_no_session() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    let address = host.daemon.sessions().address();
    let worker = host.daemon.worker();
    pidfd::signal(&worker, Signal::STOP).unwrap();
    let body = r#"{"method":"session.create","params":{"path":"/"}}"#;
    let mut client = TcpStream::connect(address).unwrap();
    write!(client, "POST /rpc HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    drop(client);
    pidfd::signal(&worker, Signal::CONT).unwrap();
    // The daemon accepts both of these requests after the closed connection.
    assert_eq!((host.sessions(), host.sessions()), (0, 0));
}

#[test]
fn roots_daemon_demands_a_token_on_its_port_and_none_on_its_socket() {
    require!(root());
    let daemon = Daemon::start_with(outpost(), &["--metrics-listen=127.0.0.1:0"]);
    let client = daemon.sessions();
    let answer = client.without_token().post(r#"{"method":"session.list"}"#);
    let text = "Unauthorized: missing Bearer token (this daemon runs as root)";
    assert_eq!((answer.status, answer.body.as_str()), (401, text));
    assert!(client.result("session.list", json!({}))["sessions"].is_array());
    let mode = fs::metadata(daemon.dir().join("run/sessions.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listed = cli(&daemon, &["sessions", "list", "--json"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
}

/// Forwards a port through sshd. Returns the local port.
fn forwarded(host: &Host, sshd: &Sshd) -> (KillOnDrop, u16) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-N", "-p", &sshd.port().to_string(), "-o", "ExitOnForwardFailure=yes"]);
    for option in sshd.client_options() {
        ssh.arg("-o").arg(option);
    }
    ssh.arg("-L").arg(format!("127.0.0.1:{free}:127.0.0.1:{}", host.port())).arg("games@127.0.0.1");
    let ssh = KillOnDrop(ssh.stdin(Stdio::null()).spawn().unwrap());
    until("ssh forwards", || TcpStream::connect(("127.0.0.1", free)).is_ok());
    (ssh, free)
}

#[test]
fn a_client_behind_ssh_is_served_as_before() {
    for cgroups in [Cgroups::Missing, Cgroups::Delegated] {
        let host = require!(Host::start_as(GAMES, cgroups, &[]));
        let keys = tempfile::tempdir().unwrap();
        fs::set_permissions(keys.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let sshd = require!(Sshd::start(keys.path(), &SshdOptions::PLAIN));
        let (_ssh, port) = forwarded(&host, &sshd);
        // Without cgroups, sshd's socket cannot be distinguished from one of a sandboxed process, because its
        // descriptors are unreadable.
        let _sandboxed = (cgroups == Cgroups::Delegated).then(|| host.sandboxed_sleep());
        let client = outpost_testkit::SessionsClient::new(([127, 0, 0, 1], port).into());
        let made = client.result("session.create", json!({ "path": host.dir.path().join("project") }));
        assert!(made["sessionId"].is_string(), "{made}; {}", sshd.log());
    }
}

#[test]
fn a_port_that_is_set_to_none_does_not_exist() {
    let flags = ["--sessions-listen=none", "--exec-websocket=none", "--metrics-listen=none"];
    let daemon = Daemon::start_with(outpost(), &flags);
    let status: Value =
        serde_json::from_slice(&cli(&daemon, &["status", "--json"]).output().unwrap().stdout).unwrap();
    let rows = status["listening"].as_array().unwrap();
    assert!(rows.iter().all(|row| !row["address"].as_str().unwrap().contains("127.0.0.1")), "{rows:?}");
    assert!(!daemon.dir().join("run/sessions.port").exists());
    // The command line uses the Unix socket.
    let listed = cli(&daemon, &["sessions", "list"]).output().unwrap();
    assert!(listed.stdout.starts_with(b"ID"), "{listed:?}");
}

/// Another user of the host can do this.
#[test]
fn a_daemon_whose_ports_are_all_taken_starts_and_takes_one_that_comes_free() {
    // The first of 101 successive ports that this process can hold.
    let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
    let held = (20_000..60_000).step_by(101).find_map(|first| (first..=first + 100).map(bind).collect());
    let mut held: Vec<std::net::TcpListener> = held.unwrap();
    let address = held[0].local_addr().unwrap().to_string();
    let daemon = Daemon::start_with(outpost(), &["--sessions-listen", &address]);
    let [problem] = &daemon.status().faces.problems[..] else { panic!("{:?}", daemon.status().faces) };
    assert_eq!(problem.component, "sessions port");
    assert!(problem.message.contains(&format!("cannot listen on {address}")), "{problem:?}");
    let listed = cli(&daemon, &["sessions", "list"]).output().unwrap();
    assert!(listed.stdout.starts_with(b"ID"), "{listed:?}");
    let free = held.pop().unwrap().local_addr().unwrap();
    until("the face listens on the free port", || {
        let rows = daemon.status().faces.listening;
        rows.iter().any(|row| row.address == format!("http://{free}/rpc"))
    });
    assert!(daemon.status().faces.problems.is_empty());
}

#[test]
fn a_sandboxed_agent_starts_no_session() {
    let host = require!(Host::start(Cgroups::Missing, &[]));
    fs::write(host.dir.path().join("project/client.py"), CLIENT).unwrap();
    let client = host.daemon.sessions();
    let sandbox = json!({ "type": "readOnly" });
    let params = json!({ "path": host.dir.path().join("project"), "sandbox": sandbox });
    let session = client.result("session.create", params)["sessionId"].as_str().unwrap().to_owned();
    let script = format!(
        "do:init\nsh python3 {}/client.py {} x\nresult",
        host.dir.path().join("project").display(),
        host.port()
    );
    let events = client.send(&session, &script).rest();
    let events_text = events.iter().map(Value::to_string).collect::<String>();
    assert!(events_text.contains("HTTP/1.1 401 ") && events_text.contains("sandboxed"), "{events_text}");
    assert_eq!(host.sessions(), 1);
}

#[test]
fn a_service_of_root_is_not_set_up_with_a_binary_that_others_can_change() {
    require!(root());
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("outpost");
    fs::copy(outpost(), &binary).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let done = Command::new(&binary).args(["install-service", "--system"]).output().unwrap();
    let why = text(&done);
    assert!(!done.status.success() && why.contains("others than root can change"), "{why}");
    assert!(why.contains("install-service --system"), "{why}");
}
