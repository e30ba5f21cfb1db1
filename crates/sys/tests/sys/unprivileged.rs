//! Reruns the tests as an unprivileged user, as most hosts run Outpost.

use crate::kit::{command, rerun};
use outpost_sys::pidfd::ExitCause;
use outpost_testkit::require;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_user_without_privilege_sees_the_same() {
    require!(outpost_testkit::root());
    // The build directory may be closed to other users.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("sys-test");
    let exe = std::env::current_exe().unwrap();
    // Copied by another process: a child that another test starts meanwhile would inherit our descriptor
    // (ETXTBSY).
    let mut cp = command("/bin/cp", &[exe.to_str().unwrap(), copy.to_str().unwrap()]).start_quiet().unwrap();
    assert_eq!(cp.end().cause, ExitCause::Code(0));
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let mut line =
        vec!["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy.to_str().unwrap()];
    line.extend(["spawn::", "descriptors::", "pidfd::", "message::", "pty::", "plain_clone::"]);
    // An ordinary user has no cgroup to create others in, and one more large process proves nothing.
    line.extend(["--skip", "the_child_joins_its_group", "--skip", "a_large_parent", "--test-threads=2"]);
    let text = rerun(&line, &[("TMPDIR", "/tmp")]);
    assert!(text.contains("spawn::arguments_arrive_exactly"), "{text}");
}
