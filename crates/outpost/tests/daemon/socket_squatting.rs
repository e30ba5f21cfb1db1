//! Socket squatting: commands send nothing to a runtime directory or a socket of another user, and report why.

use crate::support::outpost;
use outpost_testkit::{ANN, BOB, as_user, require, root};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The user that created the directory or the socket first.
const EVE: u32 = BOB;
const SOCKETS: [&str; 4] = ["control.sock", "approvals.sock", "broker.sock", "sessions.sock"];

/// Commands that would send an environment, a command or a decision.
const COMMANDS: [&[&str]; 10] = [
    &["ps"],
    &["status"],
    &["run", "--", "true"],
    &["stop"],
    &["approvals", "list"],
    &["approvals", "deny", "abc"],
    &["ask", "true"],
    &["sessions", "list"],
    &["--host", "box", "ps"],
    &["disconnect", "box"],
];

/// A sticky directory like `/tmp`, with a home for one user.
struct Site {
    dir: tempfile::TempDir,
    user: u32,
}

impl Site {
    fn new(user: u32) -> Site {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let site = Site { dir, user };
        fs::create_dir(site.path("home")).unwrap();
        chown(site.path("home"), Some(user), Some(user)).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn runtime(&self, owner: u32, mode: u32) -> PathBuf {
        let runtime = self.path("run");
        fs::create_dir(&runtime).unwrap();
        chown(&runtime, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&runtime, PermissionsExt::from_mode(mode)).unwrap();
        runtime
    }

    fn outpost(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(outpost());
        command.arg("--runtime-dir").arg(self.path("run")).arg("--guard-root").arg(self.dir.path());
        command.args(arguments).uid(self.user).gid(self.user).stdin(Stdio::null());
        let home = self.path("home");
        command.current_dir(&home).env("HOME", &home).env("SECRET", "sesame").env_remove("XDG_STATE_HOME");
        command.output().unwrap()
    }

    /// Asserts that every command fails, with a cause and a hint.
    fn refuses_everything(&self, commands: &[&[&str]]) {
        for arguments in commands {
            let output = self.outpost(arguments);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{arguments:?} succeeds");
            assert!(
                errors.contains("nothing was sent") && errors.contains("hint: "),
                "{arguments:?}: {errors}"
            );
        }
    }
}

fn listen(path: &Path, owner: u32) -> UnixListener {
    let elsewhere = tempfile::tempdir().unwrap();
    fs::set_permissions(elsewhere.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let made = elsewhere.path().join("s");
    let listener = as_user(EVE, || UnixListener::bind(&made).unwrap());
    fs::rename(&made, path).unwrap();
    lchown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// The number of connections so far, and all bytes that clients have sent.
fn received(listener: &UnixListener) -> (usize, Vec<u8>) {
    let (mut connections, mut bytes) = (0, Vec::new());
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                connections += 1;
                stream.set_nonblocking(false).unwrap();
                stream.read_to_end(&mut bytes).unwrap();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (connections, bytes),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_runtime_directory_that_another_user_made_first_is_sent_nothing() {
    require!(root());
    for user in [ANN, 0] {
        let site = Site::new(user);
        let runtime = site.runtime(EVE, 0o755);
        let listeners = SOCKETS.map(|name| listen(&runtime.join(name), user));
        fs::create_dir_all(runtime.join("hosts/box")).unwrap();
        // `outpost connect` holds this lock.
        let lock = fs::File::create(runtime.join("hosts/box/connect.lock")).unwrap();
        fs::write(runtime.join("hosts/box/connect.lock"), std::process::id().to_string()).unwrap();
        lock.lock().unwrap();
        site.refuses_everything(&COMMANDS);
        for listener in &listeners {
            assert_eq!(received(listener), (0, Vec::new()));
        }
    }
}

#[test]
fn a_listener_of_another_user_in_our_own_directory_is_sent_nothing() {
    require!(root());
    for user in [ANN, 0] {
        let site = Site::new(user);
        let runtime = site.runtime(user, 0o700);
        let listeners = SOCKETS.map(|name| listen(&runtime.join(name), user));
        site.refuses_everything(&COMMANDS[..8]);
        for listener in &listeners {
            let (connections, bytes) = received(listener);
            assert!(connections > 0, "the listener is found by the connection");
            assert_eq!(String::from_utf8_lossy(&bytes), "");
        }
    }
}

#[test]
fn a_directory_that_others_can_write_and_a_link_of_another_user_are_sent_nothing() {
    require!(root());
    for user in [ANN, 0] {
        let site = Site::new(user);
        let runtime = site.runtime(user, 0o777);
        let listeners = SOCKETS.map(|name| listen(&runtime.join(name), user));
        site.refuses_everything(&COMMANDS);
        fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
        fs::rename(&runtime, site.path("real")).unwrap();
        symlink(site.path("real"), &runtime).unwrap();
        lchown(&runtime, Some(EVE), Some(EVE)).unwrap();
        site.refuses_everything(&COMMANDS);
        for listener in &listeners {
            assert_eq!(received(listener), (0, Vec::new()));
        }
    }
}

#[test]
fn a_daemon_refuses_directories_of_other_users_and_symbolic_links() {
    require!(root());
    let refused = |site: &Site| {
        let output = site.outpost(&["serve", "--sessions-listen=127.0.0.1:0"]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains("hint: "), "{errors}");
        errors
    };
    for user in [ANN, 0] {
        let site = Site::new(user);
        site.runtime(EVE, 0o777);
        assert!(refused(&site).contains("is not a directory of this user"));
        let site = Site::new(user);
        fs::create_dir(site.path("real")).unwrap();
        chown(site.path("real"), Some(user), Some(user)).unwrap();
        symlink(site.path("real"), site.path("run")).unwrap();
        lchown(site.path("run"), Some(EVE), Some(EVE)).unwrap();
        assert!(refused(&site).contains("is not a directory of this user"));
        assert_eq!(fs::read_dir(site.path("real")).unwrap().count(), 0, "nothing was made behind the link");
        // A directory of the user in one that others can write: they can rename it.
        let site = Site::new(user);
        site.runtime(user, 0o700);
        fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(refused(&site).contains("other users can change"));
    }
}

/// As in a sandbox of another program: only this user is mapped, so root's directories appear as the overflow uid.
#[test]
fn a_user_namespace_without_root_reaches_its_own_daemon() {
    require!(root());
    let daemon = outpost_testkit::Daemon::start_as(outpost(), ANN);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-current-user"]).arg(outpost()).args([
        "--state-dir",
        "state",
        "--runtime-dir",
    ]);
    command.args(["run", "ps"]).uid(ANN).gid(ANN).current_dir(daemon.dir()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
