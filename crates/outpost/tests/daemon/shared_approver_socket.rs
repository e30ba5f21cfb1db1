//! `[approvals] socket`: its access for other users, their right to decide, and its removal.

use crate::approval_fixture::{ApprovalFixture, UNPRIVILEGED_UID, answer, text};
use crate::support::outpost;
use outpost_testkit::{Daemon, Half, Lack, require};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A user that neither makes requests nor approves.
const OTHER_USER: u32 = 65533;

/// A daemon with an additional approver socket outside of its runtime directory.
struct Shared {
    fixture: ApprovalFixture,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shared {
    fn new() -> Result<Shared, Lack> {
        Shared::trusting("trusted_users = [\"nobody\"]\n")
    }

    /// With these contents of root's `approvers.toml`.
    fn trusting(trusted: &str) -> Result<Shared, Lack> {
        outpost_testkit::root()?;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let socket = dir.path().join("approvals.sock");
        let config = config(dir.path(), &format!("approvers = [\"nobody\"]\nsocket = {socket:?}\n"));
        // The users whose decisions need no signature.
        std::fs::create_dir_all(dir.path().join("etc/outpost")).unwrap();
        std::fs::write(dir.path().join("etc/outpost/approvers.toml"), trusted).unwrap();
        for uid in [0, UNPRIVILEGED_UID, OTHER_USER] {
            let own = dir.path().join(uid.to_string());
            std::fs::create_dir(&own).unwrap();
            std::os::unix::fs::chown(&own, Some(uid), Some(uid)).unwrap();
        }
        let (config, root) = (config.to_str().unwrap(), dir.path().to_str().unwrap());
        let daemon = Daemon::start_with(outpost(), &["--config", config, "--guard-root", root]);
        Ok(Shared { fixture: ApprovalFixture::with_daemon(daemon), socket, _dir: dir })
    }

    /// Runs `outpost approvals` as a user with access to the socket only.
    fn approvals(&self, uid: u32, arguments: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]);
        let own = self.socket.with_file_name(uid.to_string());
        command.arg(outpost()).arg("--state-dir").arg(own).args(["--runtime-dir", "/nowhere", "approvals"]);
        command.arg("--socket").arg(&self.socket).args(arguments);
        command.current_dir("/").stdin(Stdio::null()).output().unwrap()
    }

    /// The id of the pending question, as this user sees it.
    fn asked(&self) -> String {
        loop {
            let listed = self.approvals(UNPRIVILEGED_UID, &["list", "--json"]);
            assert!(listed.status.success(), "{listed:?}");
            let questions: Value = serde_json::from_slice(&listed.stdout).unwrap();
            if let Some(id) = questions[0]["id"].as_str() {
                return id.to_owned();
            }
        }
    }
}

fn config(dir: &Path, approvals: &str) -> PathBuf {
    let file = dir.join("outpost.toml");
    std::fs::write(&file, format!("[approvals]\n{approvals}")).unwrap();
    file
}

#[test]
fn a_trusted_user_decides_without_a_signature() {
    let shared = require!(Shared::new());
    let mut client = shared.fixture.ask("one", &["id", "-u"]);
    let id = shared.asked();
    let allowed = shared.approvals(UNPRIVILEGED_UID, &["approve", &id]);
    assert!(allowed.status.success(), "{allowed:?}");
    let done = answer(&mut client);
    assert_eq!((&done["status"], &done["decision"]), (&"ok".into(), &"human".into()), "{done}");
    let by = done["approved_by"].as_str().unwrap();
    assert!(by.starts_with("uid 65534 without a signature, uid 65534 pid "), "{done}");
    // The next worker serves the same socket and accepts the same approver.
    let mut client = shared.fixture.ask("two", &["false"]);
    let id = shared.asked();
    shared.fixture.daemon.kill(Half::Worker);
    let denied = shared.approvals(UNPRIVILEGED_UID, &["deny", &id]);
    assert!(denied.status.success(), "{denied:?}");
    assert_eq!(answer(&mut client)["status"], "denied");
}

#[test]
fn untrusted_users_decide_nothing_on_the_shared_socket() {
    let shared = require!(Shared::new());
    let mut client = shared.fixture.ask("one", &["true"]);
    let id = shared.asked();
    for (uid, why) in [(0, "no approver key is set up"), (OTHER_USER, "")] {
        let refused = shared.approvals(uid, &["approve", &id]);
        assert!(!refused.status.success() && text(&refused.stderr).contains(why), "uid {uid}: {refused:?}");
    }
    let own = std::fs::metadata(shared.fixture.path("run/approvals.sock")).unwrap();
    assert_eq!(own.permissions().mode() & 0o777, 0o600, "the daemon's own socket stays private");
    assert!(shared.approvals(UNPRIVILEGED_UID, &["deny", &id]).status.success());
    assert_eq!(answer(&mut client)["status"], "denied");
}

/// The user's own configuration grants viewing only.
#[test]
fn a_user_that_roots_file_does_not_trust_sees_and_does_not_decide() {
    let shared = require!(Shared::trusting(""));
    let client = shared.fixture.ask("one", &["true"]);
    let id = shared.asked();
    let refused = shared.approvals(UNPRIVILEGED_UID, &["approve", &id]);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(text(&refused.stderr).contains("no approver key is set up"), "{refused:?}");
    assert!(!client.has_answer(std::time::Duration::ZERO));
}

#[test]
fn the_shared_socket_is_removed_at_shutdown_and_not_replaced_while_in_use() {
    let shared = require!(Shared::new());
    let config = shared.socket.with_file_name("outpost.toml");
    let second = failed_start(&config);
    assert!(second.contains("[approvals] socket") && second.contains("in use"), "{second}");
    assert!(
        shared.approvals(UNPRIVILEGED_UID, &["list"]).status.success(),
        "the first daemon still serves it"
    );
    let stopped = shared.fixture.run(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(!shared.socket.exists());
}

#[test]
fn invalid_approver_settings_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let approvers = "approvers = [\"nobody\"]\n";
    let rows = [
        (approvers.to_owned(), "set `socket` to a path"),
        (format!("{approvers}socket = \"approvals.sock\"\n"), "not an absolute path"),
        (format!("{approvers}socket = \"/{}\"\n", "x".repeat(107)), "at most 107 bytes"),
        (format!("{approvers}socket = {:?}\n", open.join("s")), "could replace this socket"),
        (format!("{approvers}socket = {:?}\n", dir.path().join("none/s")), "its directory"),
        ("approvers = [\"no-such-user\"]\nsocket = \"/tmp/s\"\n".to_owned(), "no user \"no-such-user\""),
    ];
    for (approvals, why) in rows {
        let message = failed_start(&config(dir.path(), &approvals));
        assert!(message.contains(why), "{approvals}: {message}");
    }
}

/// The error output of a daemon that fails to start.
fn failed_start(config: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = Command::new(outpost());
    serve.args(["--state-dir", "state", "--runtime-dir", "run", "serve", "--config"]).arg(config);
    let done = serve.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert!(!done.status.success(), "{done:?}");
    text(&done.stderr)
}
