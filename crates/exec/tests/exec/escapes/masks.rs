//! What is protected or denied inside of a writable directory: moved away, linked around, replaced, unmasked.

use super::Control::{Harmful, Says};
use super::Limits::{Denying, Networked, Workspace};
use super::{Attempt, attempt, check};

const WRITES: &[super::Limits] = &[Workspace, Networked, Denying];

const PROTECTED: &[Attempt] = &[
    attempt("the repository is written", WRITES, "EROFS", Says("done"), r#"told(put("$ws/.git/config"))"#),
    attempt("a hook is made", WRITES, "EROFS", Says("done"), r#"told(put("$ws/.git/hooks/post-checkout"))"#),
    attempt(
        "the repository is moved away",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"told(rename "$ws/.git", "$ws/old")"#,
    ),
    attempt("the repository is removed", WRITES, "EBUSY", Says("ENOTEMPTY"), r#"told(rmdir "$ws/.git")"#),
    attempt(
        "another repository takes its place",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"
        mkdir "$ws/evil" or die; told(sys(316, -100, "$ws/evil", -100, "$ws/.git", 2))"#,
    ),
    attempt(
        "a link takes its place",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"
        symlink($out, "$ws/evil") or die; told(sys(316, -100, "$ws/evil", -100, "$ws/.git", 2))"#,
    ),
    attempt(
        "its configuration gets another name",
        WRITES,
        "EXDEV",
        Says("done"),
        r#"
        told(link "$ws/.git/config", "$ws/config")"#,
    ),
    attempt(
        "a hook is moved into it",
        WRITES,
        "EXDEV",
        Says("done"),
        r#"
        told(rename "$ws/file", "$ws/.git/hooks/post-checkout")"#,
    ),
    attempt(
        "it is written by way of another name of its directory",
        WRITES,
        "EROFS",
        Says("done"),
        r#"
        symlink(".git", "$ws/link") or die; told(put("$ws/link/config"))"#,
    ),
    attempt(
        "the workspace is renamed",
        WRITES,
        "EROFS",
        Says("done"),
        r#"
        my $moved = rename($ws, "$ws-moved"); my $error = $! + 0; rename("$ws-moved", $ws); told($moved, $error)"#,
    ),
    attempt("a missing name is made", WRITES, "EEXIST", Says("done"), r#"told(mkdir "$ws/.codex")"#),
    attempt(
        "a link is made under a missing name",
        WRITES,
        "EEXIST",
        Says("done"),
        r#"
        told(symlink $out, "$ws/.codex")"#,
    ),
    attempt(
        "something is put under a missing name",
        WRITES,
        "EROFS",
        Says("done"),
        r#"
        mkdir "$ws/.codex"; told(put("$ws/.codex/config.toml"))"#,
    ),
    attempt(
        "what stands for a missing name is removed",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"
        mkdir "$ws/.codex"; told(rmdir "$ws/.codex")"#,
    ),
    attempt(
        "what stands for a missing name is moved",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"
        mkdir "$ws/.codex"; told(rename "$ws/.codex", "$ws/old")"#,
    ),
    attempt(
        "something takes the place of a missing name",
        WRITES,
        "EBUSY",
        Says("done"),
        r#"
        mkdir "$ws/.codex"; mkdir "$ws/evil" or die; told(rename "$ws/evil", "$ws/.codex")"#,
    ),
    attempt(
        "what stands for a missing name is opened up",
        WRITES,
        "EROFS",
        Says("done"),
        r#"
        mkdir "$ws/.codex"; told(chmod 0777, "$ws/.codex")"#,
    ),
];

#[test]
fn protected_names_stay_what_they_are() {
    check(PROTECTED);
}

const DENIED: &[Attempt] = &[
    attempt(
        "a denied file is read",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"told(opened("$ws/deny.txt", 0))"#,
    ),
    attempt(
        "a denied directory is listed",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        told(opendir my $dir, "$ws/deny")"#,
    ),
    attempt(
        "a file in a denied directory is read",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        told(opened("$ws/deny/secret", 0))"#,
    ),
    attempt(
        "a file that a pattern denies is read",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        told(opened("$ws/some.key", 0))"#,
    ),
    attempt(
        "a denied file is opened up",
        &[Denying],
        "EROFS",
        Says("done"),
        r#"told(chmod 0777, "$ws/deny.txt")"#,
    ),
    attempt(
        "a denied directory is opened up",
        &[Denying],
        "EROFS",
        Says("done"),
        r#"told(chmod 0777, "$ws/deny")"#,
    ),
    attempt(
        "a denied file is moved away",
        &[Denying],
        "EBUSY",
        Says("done"),
        r#"
        told(rename "$ws/deny.txt", "$ws/x")"#,
    ),
    attempt(
        "a denied directory is moved away",
        &[Denying],
        "EBUSY",
        Says("done"),
        r#"
        told(rename "$ws/deny", "$ws/x")"#,
    ),
    attempt(
        "a denied file gets another name",
        &[Denying],
        "EXDEV",
        Says("done"),
        r#"
        told(link "$ws/deny.txt", "$ws/x")"#,
    ),
    attempt("a denied file is removed", &[Denying], "EBUSY", Says("done"), r#"told(unlink "$ws/deny.txt")"#),
    attempt(
        "a denied file is read by way of a link",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        symlink("deny.txt", "$ws/x") or die; told(opened("$ws/x", 0))"#,
    ),
    attempt(
        "a denied file is read by way of /proc",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        told(opened("/proc/self/root$ws/deny.txt", 0))"#,
    ),
    attempt(
        "a denied file is executed",
        &[Denying],
        "EACCES",
        Says("ENOEXEC"),
        r#"
        chmod 0755, "$ws/deny.txt"; told(sys(59, "$ws/deny.txt", 0, 0))"#,
    ),
    attempt(
        "a path of a denied file is opened again",
        &[Denying],
        "EACCES",
        Says("done"),
        r#"
        my $path = opened("$ws/deny.txt", 010000000) or told(0);
        told(opened("/proc/self/fd/" . fileno($path), 0))"#,
    ),
    attempt(
        "the mask of a denied file is unmounted",
        &[Denying],
        "EPERM",
        Harmful("there is no mask without a sandbox; umount2 has its control among the mounts"),
        r#"told(sys(166, "$ws/deny.txt", 2))"#,
    ),
    attempt(
        "the mask of a denied directory is moved",
        &[Denying],
        "EPERM",
        Harmful("there is no mask without a sandbox; moving has its control among the mounts"),
        r#"mkdir "$ws/x"; told(sys(165, "$ws/deny", "$ws/x", 0, 0x2000, 0))"#,
    ),
];

#[test]
fn what_is_denied_stays_denied() {
    check(DENIED);
}
