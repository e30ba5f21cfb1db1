//! What is protected or denied inside of a writable directory: moved away, linked around, replaced, unmasked.

use super::Control::{Harmful, Output};
use super::Limits::{Denying, Networked, Workspace};
use super::{Attempt, attempt, check};

const WRITES: &[super::Limits] = &[Workspace, Networked, Denying];

const PROTECTED: &[Attempt] = &[
    attempt(
        "the repository is written",
        WRITES,
        "EROFS",
        Output("done"),
        r#"report(put("$ws/.git/config"))"#,
    ),
    attempt(
        "a hook is made",
        WRITES,
        "EROFS",
        Output("done"),
        r#"report(put("$ws/.git/hooks/post-checkout"))"#,
    ),
    attempt(
        "the repository is moved away",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"report(rename "$ws/.git", "$ws/old")"#,
    ),
    attempt("the repository is removed", WRITES, "EBUSY", Output("ENOTEMPTY"), r#"report(rmdir "$ws/.git")"#),
    attempt(
        "another repository takes its place",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"
        mkdir "$ws/evil" or die; report(sys(316, -100, "$ws/evil", -100, "$ws/.git", 2))"#,
    ),
    attempt(
        "a link takes its place",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"
        symlink($out, "$ws/evil") or die; report(sys(316, -100, "$ws/evil", -100, "$ws/.git", 2))"#,
    ),
    attempt(
        "its configuration gets another name",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(link "$ws/.git/config", "$ws/config")"#,
    ),
    attempt(
        "a hook is moved into it",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(rename "$ws/file", "$ws/.git/hooks/post-checkout")"#,
    ),
    attempt(
        "it is written by way of another name of its directory",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        symlink(".git", "$ws/link") or die; report(put("$ws/link/config"))"#,
    ),
    attempt(
        "the workspace is renamed",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        my $moved = rename($ws, "$ws-moved"); my $error = $! + 0; rename("$ws-moved", $ws); report($moved, $error)"#,
    ),
    attempt("a missing name is made", WRITES, "EEXIST", Output("done"), r#"report(mkdir "$ws/.codex")"#),
    attempt(
        "a link is made under a missing name",
        WRITES,
        "EEXIST",
        Output("done"),
        r#"
        report(symlink $out, "$ws/.codex")"#,
    ),
    attempt(
        "something is put under a missing name",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        mkdir "$ws/.codex"; report(put("$ws/.codex/config.toml"))"#,
    ),
    attempt(
        "what stands for a missing name is removed",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"
        mkdir "$ws/.codex"; report(rmdir "$ws/.codex")"#,
    ),
    attempt(
        "what stands for a missing name is moved",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"
        mkdir "$ws/.codex"; report(rename "$ws/.codex", "$ws/old")"#,
    ),
    attempt(
        "something takes the place of a missing name",
        WRITES,
        "EBUSY",
        Output("done"),
        r#"
        mkdir "$ws/.codex"; mkdir "$ws/evil" or die; report(rename "$ws/evil", "$ws/.codex")"#,
    ),
    attempt(
        "what stands for a missing name is opened up",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        mkdir "$ws/.codex"; report(chmod 0777, "$ws/.codex")"#,
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
        Output("done"),
        r#"report(opened("$ws/deny.txt", 0))"#,
    ),
    attempt(
        "a denied directory is listed",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        report(opendir my $dir, "$ws/deny")"#,
    ),
    attempt(
        "a file in a denied directory is read",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        report(opened("$ws/deny/secret", 0))"#,
    ),
    attempt(
        "a file that a pattern denies is read",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        report(opened("$ws/some.key", 0))"#,
    ),
    attempt(
        "a denied file is opened up",
        &[Denying],
        "EROFS",
        Output("done"),
        r#"report(chmod 0777, "$ws/deny.txt")"#,
    ),
    attempt(
        "a denied directory is opened up",
        &[Denying],
        "EROFS",
        Output("done"),
        r#"report(chmod 0777, "$ws/deny")"#,
    ),
    attempt(
        "a denied file is moved away",
        &[Denying],
        "EBUSY",
        Output("done"),
        r#"
        report(rename "$ws/deny.txt", "$ws/x")"#,
    ),
    attempt(
        "a denied directory is moved away",
        &[Denying],
        "EBUSY",
        Output("done"),
        r#"
        report(rename "$ws/deny", "$ws/x")"#,
    ),
    attempt(
        "a denied file gets another name",
        &[Denying],
        "EXDEV",
        Output("done"),
        r#"
        report(link "$ws/deny.txt", "$ws/x")"#,
    ),
    attempt(
        "a denied file is removed",
        &[Denying],
        "EBUSY",
        Output("done"),
        r#"report(unlink "$ws/deny.txt")"#,
    ),
    attempt(
        "a denied file is read by way of a link",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        symlink("deny.txt", "$ws/x") or die; report(opened("$ws/x", 0))"#,
    ),
    attempt(
        "a denied file is read by way of /proc",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        report(opened("/proc/self/root$ws/deny.txt", 0))"#,
    ),
    attempt(
        "a denied file is executed",
        &[Denying],
        "EACCES",
        Output("ENOEXEC"),
        r#"
        chmod 0755, "$ws/deny.txt"; report(sys(59, "$ws/deny.txt", 0, 0))"#,
    ),
    attempt(
        "a path of a denied file is opened again",
        &[Denying],
        "EACCES",
        Output("done"),
        r#"
        my $path = opened("$ws/deny.txt", 010000000) or report(0);
        report(opened("/proc/self/fd/" . fileno($path), 0))"#,
    ),
    attempt(
        "the mask of a denied file is unmounted",
        &[Denying],
        "EPERM",
        Harmful("there is no mask without a sandbox; umount2 has its control among the mounts"),
        r#"report(sys(166, "$ws/deny.txt", 2))"#,
    ),
    attempt(
        "the mask of a denied directory is moved",
        &[Denying],
        "EPERM",
        Harmful("there is no mask without a sandbox; moving has its control among the mounts"),
        r#"mkdir "$ws/x"; report(sys(165, "$ws/deny", "$ws/x", 0, 0x2000, 0))"#,
    ),
];

#[test]
fn what_is_denied_stays_denied() {
    check(DENIED);
}
