//! Reruns the tests as an ordinary user, as most hosts run Outpost.

use outpost_testkit::{require, root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn an_ordinary_user_is_sandboxed_as_tightly() {
    require!(root());
    // The build directory may be closed to other users.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("sandbox-test");
    // Copied by another process: a child that another test starts meanwhile would inherit our descriptor (ETXTBSY).
    let cp = Command::new("/bin/cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap();
    assert!(cp.success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let mut line = Command::new("setpriv");
    line.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    // Without this test itself.
    line.args(["--test-threads=2", "--skip", "user::"]);
    let output = line.env("TMPDIR", "/var/tmp").current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("walls::no_privilege_is_left ... ok"), "{text}");
}
