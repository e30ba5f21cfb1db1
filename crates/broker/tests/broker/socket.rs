//! The socket: its path, its permissions, and its lifetime across daemon exits and second starts.

use crate::kit::{broker, ok, ping, plain, pong, same};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::signal::Signal;
use outpost_testkit::{Broker, BrokerClient, BrokerOptions, require, root};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

/// Any uid except root's.
const OTHER_UID: u32 = 65_534;

#[test]
fn only_its_owner_may_use_the_socket() {
    let broker = broker();
    let mode = std::fs::metadata(broker.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[test]
fn the_default_socket_is_in_the_runtime_directory() {
    let mut broker = Broker::start(&BrokerOptions::default().default_socket());
    same(&broker.run(&plain("a", json!([["true"]]))), &ok("a", &[(0, "")], ""));
}

#[test]
fn the_socket_flag_accepts_an_equals_sign() {
    let first = broker();
    let path = first.dir().join("run/other.sock");
    let second = first.second_with(&[format!("--socket={}", path.display())]);
    let mut client = BrokerClient::wait_connect(&path, || second.runs());
    client.send(format!("{}\n", ping("a")));
    same(&client.answer(), &pong("a"));
    same(&first.request(&ping("a")), &pong("a"));
}

#[test]
fn a_second_daemon_exits_and_keeps_the_first_ones_socket() {
    let broker = broker();
    let mut second = broker.second();
    assert_eq!(second.wait().cause, ExitCause::Code(1));
    let message = format!("sudo-proxy is already running on {}", broker.socket().display());
    let found = second.find(&message, 0, std::time::Duration::from_secs(60));
    assert!(found.is_some(), "{}", second.screen());
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() {
    let mut broker = broker();
    // SIGKILL leaves the file. The next start replaces it.
    broker.restart();
    same(&broker.request(&ping("a")), &pong("a"));
    let mode = std::fs::metadata(broker.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[test]
fn a_signal_terminates_the_daemon_and_is_its_exit_status() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut broker = broker();
        broker.terminal().signal(signal);
        assert_eq!(broker.wait().cause, ExitCause::Signal(signal.number()), "{signal:?}");
        assert!(!broker.socket().exists(), "{signal:?}");
    }
}

#[test]
fn a_peer_of_another_user_gets_no_response() {
    require!(root());
    // The test is root and may connect. The daemon runs as another user.
    let mut broker = Broker::start(&BrokerOptions::default().uid(OTHER_UID));
    assert_eq!(broker.send(&ping("a")).rest(), b"");
    assert_eq!(broker.send(&plain("b", json!([["true"]]))).rest(), b"");
    assert!(!broker.has_prompt());
    assert!(broker.terminal().runs());
}

/// The daemon's memory may contain passwords.
#[test]
fn other_processes_of_its_user_cannot_read_its_memory() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(root());
    let mut broker = Broker::start(&BrokerOptions::default().uid(OTHER_UID));
    let script = r#"
        my $own = fork || do { sleep 1000; exit };
        for ($own, $ARGV[0]) { print open(my $file, "<", "/proc/$_/mem") ? "read " : "$! " }
        kill "KILL", $own"#;
    let ids = [format!("--reuid={OTHER_UID}"), format!("--regid={OTHER_UID}")];
    let mut reader = std::process::Command::new("setpriv");
    reader.args(ids).args(["--clear-groups", "perl", "-e", script]).arg(broker.pid().to_string());
    let output = reader.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read Permission denied ", "{output:?}");
    // The reason is the undumpable state: the files in its /proc directory belong to root.
    assert_eq!(std::fs::metadata(format!("/proc/{}/mem", broker.pid())).unwrap().uid(), 0);
    assert!(broker.terminal().runs());
}

#[test]
fn a_peer_of_another_user_with_file_permission_gets_no_response() {
    require!(root());
    let broker = broker();
    for (path, mode) in
        [(broker.dir().to_owned(), 0o755), (broker.dir().join("run"), 0o755), (broker.socket(), 0o666)]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let script = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die \"no way in: $!\"; \
                  $SIG{PIPE} = 'IGNORE'; print $s $ARGV[1], \"\\n\"; $s->flush; print 'got:', <$s>;";
    let output = std::process::Command::new("setpriv")
        .args([
            &format!("--reuid={OTHER_UID}"),
            &format!("--regid={OTHER_UID}"),
            "--clear-groups",
            "perl",
            "-e",
            script,
        ])
        .arg(broker.socket())
        .arg(ping("a").to_string())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got:", "{output:?}");
    // Its id stays unused.
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn a_socket_with_another_listener_is_not_replaced() {
    let first = broker();
    let path = first.dir().join("run/taken.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut second = first.second_with(&["--socket".to_owned(), path.display().to_string()]);
    assert_eq!(second.wait().cause, ExitCause::Code(1));
    assert!(path.exists());
}
