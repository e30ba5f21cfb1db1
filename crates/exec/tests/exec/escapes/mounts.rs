//! Changing what is seen: mounts, roots and namespaces, by the old calls and the new ones.

use super::Control::{Output, Root, Scratch};
use super::{ANY, Attempt, attempt, check};

const MOUNTS: &[Attempt] = &[
    attempt(
        "the root is mounted for writing",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "/", 0, 0x1020, 0))"#,
    ),
    attempt(
        "the root is mounted for writing with all below it",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        my $none = pack("Q4", 0, 1, 0, 0); report(sys(442, -100, "/", 0x8000, $none, 32))"#,
    ),
    attempt(
        "something is mounted over the workspace",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, $out, $ws, 0, 0x1000, 0))"#,
    ),
    attempt(
        "a mount is moved",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        sys(165, "none", "$out/inner", "tmpfs", 0, 0); mkdir "$ws/m";
        report(sys(165, "$out/inner", "$ws/m", 0, 0x2000, 0))"#,
    ),
    attempt(
        "the command's /proc is taken away from over the host's",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(166, "/proc", 2))"#,
    ),
    attempt(
        "the command's /dev is taken away from over the host's",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        sys(165, "none", "/dev", "tmpfs", 0, 0); report(sys(166, "/dev", 2))"#,
    ),
    attempt(
        "a tmpfs is mounted",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "$out/inner", "tmpfs", 0, 0))"#,
    ),
    attempt(
        "proc is mounted",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "$out/inner", "proc", 0, 0))"#,
    ),
    attempt(
        "sysfs is mounted",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "$out/inner", "sysfs", 0, 0))"#,
    ),
    attempt(
        "devtmpfs is mounted",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "$out/inner", "devtmpfs", 0, 0))"#,
    ),
    attempt(
        "cgroups are mounted",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        report(sys(165, "none", "$out/inner", "cgroup2", 0, 0))"#,
    ),
    attempt(
        "a file system is opened by name",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"report(sys(430, "tmpfs", 0))"#,
    ),
    attempt(
        "a file system is configured",
        ANY,
        "EPERM",
        Scratch("EBADF or EINVAL"),
        r#"report(sys(431, -1, 6, 0, 0, 0))"#,
    ),
    attempt("a file system is made a mount", ANY, "EPERM", Scratch("EBADF"), r#"report(sys(432, -1, 0, 0))"#),
    attempt("a mount is picked", ANY, "EPERM", Scratch("done"), r#"report(sys(433, -100, "/", 0))"#),
    attempt(
        "a tree of mounts is copied",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"report(sys(428, -100, "/", 0x8001))"#,
    ),
    attempt(
        "a tree of mounts is copied with other attributes",
        ANY,
        "EPERM",
        Scratch("EINVAL"),
        r#"
        report(sys(467, -100, "/", 0x8001, "", 1))"#,
    ),
    attempt(
        "a tree of mounts is placed",
        ANY,
        "EPERM",
        Scratch("EBADF"),
        r#"
        report(sys(429, -1, "", -1, "", 0x44))"#,
    ),
    attempt("the root is changed", ANY, "EPERM", Scratch("done"), r#"report(sys(161, $out))"#),
    attempt(
        "the root is exchanged",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        sys(165, "none", "$out/inner", "tmpfs", 0, 0); mkdir "$out/inner/old"; chdir "$out/inner";
        report(sys(155, ".", "old"))"#,
    ),
];

#[test]
fn no_mount_is_made_changed_or_taken_away() {
    check(MOUNTS);
}

const NAMESPACES: &[Attempt] = &[
    attempt("a user namespace is made", ANY, "EPERM", Output("done"), r#"report(sys(272, 0x10000000))"#),
    attempt("a mount namespace is made", ANY, "EPERM", Root("done"), r#"report(sys(272, 0x20000))"#),
    attempt("a network namespace is made", ANY, "EPERM", Root("done"), r#"report(sys(272, 0x40000000))"#),
    attempt("a pid namespace is made", ANY, "EPERM", Root("done"), r#"report(sys(272, 0x20000000))"#),
    attempt("a cgroup namespace is made", ANY, "EPERM", Root("done"), r#"report(sys(272, 0x2000000))"#),
    attempt("a time namespace is made", ANY, "EPERM", Root("done"), r#"report(sys(272, 0x80))"#),
    attempt(
        "a process is cloned into a user namespace",
        ANY,
        "EPERM",
        Output("done"),
        r#"
        my $child = sys(56, 0x10000011, 0, 0, 0, 0); exit 0 if $child eq "0 but true"; report($child)"#,
    ),
    attempt(
        "a process is cloned with bits that the kernel does not read",
        ANY,
        "EPERM",
        Output("done"),
        r#"
        my $child = sys(56, 0x100000000 | 0x10000011, 0, 0, 0, 0); exit 0 if $child eq "0 but true"; report($child)"#,
    ),
    attempt(
        "a process is cloned by the call whose flags no filter sees",
        ANY,
        "ENOSYS",
        Output("done"),
        r#"
        my $how = pack("Q8", 0x10000000, 0, 0, 0, 17, 0, 0, 0);
        my $child = sys(435, $how, 64); exit 0 if $child eq "0 but true"; report($child)"#,
    ),
    attempt(
        "its own namespace is joined again",
        ANY,
        "EPERM",
        Root("done"),
        r#"
        my $file = opened("/proc/self/ns/net", 0) or die; report(sys(308, fileno($file), 0x40000000))"#,
    ),
    attempt(
        "the namespace of the first process is joined",
        ANY,
        "EACCES",
        Root("done"),
        r#"
        my $file = opened("/proc/" . first() . "/ns/mnt", 0) or report(0); report(sys(308, fileno($file), 0x20000))"#,
    ),
];

#[test]
fn no_namespace_is_made_or_joined() {
    check(NAMESPACES);
}
