//! A client behind a real ssh: sshd runs the bridge, and the connection breaks.

use crate::lifecycle::{Follower, Gate, ends, feed, spawn_sh, until};
use outpost_sys::pidfd;
use outpost_testkit::{Relay, RelayClient};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SSHD: &str = "/usr/sbin/sshd";

/// An sshd with keys of its own, for this user on this host, ended with the test.
struct Sshd {
    daemon: Child,
    port: u16,
    user: String,
}

fn make_key(path: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
}

impl Sshd {
    fn start(dir: &Path) -> Sshd {
        for key in ["host_key", "key"] {
            make_key(&dir.join(key));
        }
        if outpost_sys::limits::effective_uid() == 0 {
            // Where sshd as root locks itself up; systemd would have made it.
            let _there_already = fs::DirBuilder::new().mode(0o755).create("/run/sshd");
        }
        let user = Command::new("id").arg("-un").output().unwrap();
        let user = String::from_utf8(user.stdout).unwrap().trim().to_owned();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {0}/host_key\nAuthorizedKeysFile {0}/key.pub\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nPermitUserEnvironment no\nMaxStartups 100\n",
            dir.display()
        );
        fs::write(dir.join("sshd_config"), config).unwrap();
        let log = fs::File::create(dir.join("sshd.log")).unwrap();
        let mut command = Command::new(SSHD);
        command.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config"));
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let sshd = Sshd { daemon, port, user };
        until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        sshd
    }

    /// Runs the bridge over ssh, and is the client at its other end.
    fn client(&self, relay: &Relay) -> (Ssh, RelayClient) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stdin, stdout): (OwnedFd, OwnedFd) = (theirs.try_clone().unwrap().into(), theirs.into());
        let dir = relay.dir().display();
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-p", &self.port.to_string(), "-l", &self.user, "-i"])
            .arg(relay.path("key"));
        for option in [
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "BatchMode=yes",
            "StrictHostKeyChecking=accept-new",
            "ControlPath=none",
            "LogLevel=ERROR",
        ] {
            ssh.args(["-o", option]);
        }
        ssh.arg("-o").arg(format!("UserKnownHostsFile={dir}/known_hosts")).arg("127.0.0.1");
        // With the mark of this test, so that not even a bridge that hangs stays behind.
        ssh.arg(format!(
            "env OUTPOST_TEST_DAEMON={dir} {} relay -bridge -socket {}",
            relay.binary().display(),
            relay.socket().display()
        ));
        let log = fs::File::options().append(true).create(true).open(relay.path("ssh.log")).unwrap();
        let ssh = ssh.stdin(stdin).stdout(stdout).stderr(log).spawn().unwrap();
        (Ssh(ssh), RelayClient::over(ours))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ended_already = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}

/// One ssh, killed with the test.
struct Ssh(Child);

impl Ssh {
    /// As if the network were gone, for the client.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The bridges that carry this relay's mark.
fn bridges(relay: &Relay) -> Vec<i32> {
    let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
    let is_bridge = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(2) == Some(b"-bridge")
    };
    let all = outpost_sys::procfs::all().into_iter().map(|stat| stat.pid);
    all.filter(|pid| is_bridge(*pid) && outpost_sys::procfs::has_environment(*pid, marker.as_bytes()))
        .collect()
}

/// Nothing else than a missing sshd is a reason not to run.
fn sshd_is_missing() -> bool {
    let missing = !Path::new(SSHD).exists();
    if missing {
        assert!(std::env::var_os("CI").is_none(), "{SSHD} is missing; scripts/setup-tests installs it");
        eprintln!("SKIPPED: {SSHD} is missing; scripts/setup-tests installs it");
    }
    missing
}

#[test]
fn a_broken_ssh_connection_loses_no_byte() {
    if sshd_is_missing() {
        return;
    }
    let relay = Relay::start();
    let mut gate = Gate::new(&relay.path("gate"));
    let sshd = Sshd::start(relay.dir());
    let logs = || {
        let read = |name: &str| fs::read_to_string(relay.path(name)).unwrap_or_default();
        format!("{}{}", read("ssh.log"), read("sshd.log"))
    };
    let (ssh, mut client) = sshd.client(&relay);
    client.request("server.ping", "");
    let pong = client.try_line();
    assert_eq!(pong.as_deref(), Some(r#"{"jsonrpc":"2.0","id":1,"result":{"pong":true}}"#), "{}", logs());
    let script = "read word; echo got $word; i=0; while [ $i -lt 40000 ]; do \
        echo line $i of a stream that is longer than everything that could hold it on its way; i=$((i+1)); \
        [ $i = 20000 ] && read x < gate; done; exit 3";
    let child = spawn_sh(&mut client, "p", script);
    assert_eq!(feed(&mut client, "p", b"hello\n")["applied"], 6);
    let expected: String = std::iter::once("got hello\n".to_owned())
        .chain((0..40000).map(|i| {
            format!("line {i} of a stream that is longer than everything that could hold it on its way\n")
        }))
        .collect();
    let mut follower = Follower::new(&relay.socket(), "p");
    while follower.bytes.len() < 500_000 {
        let line = client.try_line();
        assert!(follower.take(line), "{}", logs());
    }
    let bridge = bridges(&relay);
    assert_eq!(bridge.len(), 1);
    let bridge = pidfd::open(bridge[0]).unwrap();
    ssh.kill();
    drop(client);
    gate.open();
    ends(&bridge, "the bridge of a connection that is gone");
    assert!(!expected[..follower.bytes.len()].is_empty() && expected.as_bytes().starts_with(&follower.bytes));

    // Twice more: by a connection that breaks again, and by one that does not.
    for until_bytes in [2_000_000, usize::MAX] {
        let (_ssh, mut client) = sshd.client(&relay);
        let params = format!(r#"{{"id":"p","fromSeq":{},"wantPid":true}}"#, follower.last_seq);
        client.request("process.reattach", &params);
        while follower.exit.is_none() && follower.bytes.len() < until_bytes {
            let line = client.try_line();
            assert!(follower.take(line), "{}", logs());
        }
    }
    assert_eq!(follower.exit, Some(3));
    assert!(follower.text() == expected, "{} bytes of {}", follower.bytes.len(), expected.len());
    assert!(!crate::lifecycle::is_alive(child));
    until("no bridge is left", || bridges(&relay).is_empty());
}

#[test]
fn a_daemon_started_over_ssh_does_not_hold_the_session() {
    if sshd_is_missing() {
        return;
    }
    let relay = Relay::prepare();
    let sshd = Sshd::start(relay.dir());
    fs::write(relay.path("token"), outpost_testkit::TOKEN).unwrap();
    let dir = relay.dir().display();
    let remote = format!(
        "env OUTPOST_TEST_DAEMON={dir} OUTPOST_STATE_DIR={dir}/state HOME={dir} {} relay --serve --socket {} \
         --token-file {dir}/token",
        relay.binary().display(),
        relay.socket().display()
    );
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-T", "-p", &sshd.port.to_string(), "-l", &sshd.user, "-i"])
        .arg(relay.path("key"));
    ssh.args(["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "IdentitiesOnly=yes"]);
    ssh.arg("-o").arg(format!("UserKnownHostsFile={dir}/known_hosts")).args(["127.0.0.1", &remote]);
    let started = ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let session = pidfd::open(started.id().cast_signed()).unwrap();
    // ssh waits until nobody has its pipes any more.
    ends(&session, "the session that started the daemon");
    let output = started.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let banner = format!("Claustrum remote server listening on {}\n", relay.socket().display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), banner);
    let (_ssh, mut client) = sshd.client(&relay);
    assert_eq!(client.call("server.ping", ""), r#""result":{"pong":true}"#);
}
