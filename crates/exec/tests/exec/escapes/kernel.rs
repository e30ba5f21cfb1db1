//! Calls that are the kernel's own business: keys, modules, clocks, rings, other instruction sets.

use super::Control::{Output, Root, Scratch};
use super::Limits::{Networked, ReadOnly};
use super::{ANY, Attempt, attempt, check};

/// Most controls pass arguments that the kernel refuses only after it has asked for the right.
const CALLS: &[Attempt] = &[
    attempt(
        "io_uring goes around filters",
        ANY,
        "EPERM",
        Output("done"),
        r#"
        my $params = "\0" x 120; report(sys(425, 1, $params))"#,
    ),
    attempt("io_uring, entered", ANY, "EPERM", Output("EBADF"), r#"report(sys(426, -1, 0, 0, 0, 0, 0))"#),
    attempt(
        "io_uring, registered",
        ANY,
        "EPERM",
        Output("EBADF or EINVAL"),
        r#"report(sys(427, -1, 0, 0, 0))"#,
    ),
    attempt("a page fault is handled", ANY, "EPERM", Output("done"), r#"report(sys(323, 1))"#),
    attempt(
        "the session's keys are looked for",
        ANY,
        "EPERM",
        Output("done"),
        r#"report(sys(250, 0, -3, 1))"#,
    ),
    attempt("the user's keys are looked for", ANY, "EPERM", Output("done"), r#"report(sys(250, 0, -4, 1))"#),
    attempt("the session of the keys is changed", ANY, "EPERM", Output("done"), r#"report(sys(250, 1, 0))"#),
    attempt(
        "a key is added",
        ANY,
        "EPERM",
        Output("done"),
        r#"
        report(sys(248, "user", "outpost-escape", "x", 1, -2))"#,
    ),
    attempt(
        "a key is asked for",
        ANY,
        "EPERM",
        Output("ENOKEY"),
        r#"report(sys(249, "user", "outpost-none", 0, -2))"#,
    ),
    attempt(
        "a program for the kernel is loaded",
        ANY,
        "EPERM",
        Root("EINVAL"),
        r#"
        my $attributes = "\0" x 128; report(sys(321, 999, $attributes, 128))"#,
    ),
    attempt(
        "events of the processor are counted",
        ANY,
        "EPERM",
        Root("EFAULT"),
        r#"report(sys(298, 1, 0, -1, -1, 0))"#,
    ),
    attempt("events of files are listened to", ANY, "EPERM", Root("done"), r#"report(sys(300, 0, 0))"#),
    attempt("a module is loaded", ANY, "EPERM", Root("EFAULT or ENOSYS"), r#"report(sys(175, 1, 4096, ""))"#),
    attempt(
        "a module is loaded from a file",
        ANY,
        "EPERM",
        Root("EBADF or ENOSYS"),
        r#"report(sys(313, -1, "", 0))"#,
    ),
    attempt(
        "a module is removed",
        ANY,
        "EPERM",
        Root("ENOENT or ENOSYS"),
        r#"report(sys(176, "outpost_none", 0x800))"#,
    ),
    attempt(
        "another kernel is loaded",
        ANY,
        "EPERM",
        Root("EINVAL or ENOSYS"),
        r#"report(sys(246, 0, 0, 0, 0xff))"#,
    ),
    attempt("the machine is restarted", ANY, "EPERM", Root("EINVAL"), r#"report(sys(169, 0, 0, 0, 0))"#),
    attempt("memory is swapped out", ANY, "EPERM", Root("ENOENT"), r#"report(sys(167, "/outpost/none", 0))"#),
    attempt("memory is swapped in", ANY, "EPERM", Root("ENOENT"), r#"report(sys(168, "/outpost/none"))"#),
    attempt("the kernel's log is read", ANY, "EPERM", Root("done"), r#"report(sys(103, 10, 0, 0))"#),
    attempt(
        "processes are accounted for",
        ANY,
        "EPERM",
        Root("ENOENT"),
        r#"report(sys(163, "/outpost/none"))"#,
    ),
    attempt(
        "quotas are changed",
        ANY,
        "EPERM",
        Root("ENOENT"),
        r#"
        report(sys(179, 0x800002 << 8, "/outpost/none", 0, 0))"#,
    ),
    attempt("the clock is set", ANY, "EPERM", Root("EFAULT"), r#"report(sys(164, 1, 0))"#),
    attempt("one of the clocks is set", ANY, "EPERM", Root("EFAULT"), r#"report(sys(227, 0, 1))"#),
    attempt(
        "the clock is adjusted",
        ANY,
        "EPERM",
        Root("EINVAL"),
        r#"
        my $how = pack("L x4", 0x4000) . "\0" x 200; substr($how, 88, 8) = pack("q", 1); report(sys(159, $how))"#,
    ),
    attempt("the host is renamed", ANY, "EPERM", Scratch("done"), r#"report(sys(170, "escaped", 7))"#),
    attempt(
        "the host's domain is renamed",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"report(sys(171, "escaped", 7))"#,
    ),
    attempt(
        "ports of the machine are opened",
        ANY,
        "EPERM",
        Root("done or ENOSYS"),
        r#"report(sys(172, 3))"#,
    ),
    attempt(
        "one port of the machine is opened",
        ANY,
        "EPERM",
        Root("done or ENOSYS"),
        r#"report(sys(173, 0x80, 1, 1))"#,
    ),
    attempt(
        "segments of memory are changed",
        ANY,
        "EPERM",
        Output("done"),
        r#"
        my $table = "\0" x 64; report(sys(154, 0, $table, 64))"#,
    ),
    attempt("the terminal is hung up", ANY, "EPERM", Scratch("done"), r#"report(sys(153))"#),
    // Root on this host may be without CAP_SYS_RESOURCE; then this and the raised limit show nothing.
    attempt(
        "memory of the process is described anew",
        ANY,
        "EPERM",
        Root("EINVAL or EPERM"),
        r#"
        report(sys(157, 35, 1, 1, 0, 0))"#,
    ),
];

#[test]
fn calls_that_are_the_kernels_business_are_refused() {
    check(CALLS);
}

const RIGHTS: &[Attempt] = &[
    attempt("another user is become", ANY, "EPERM|EINVAL", Root("done"), r#"report(sys(105, 12345))"#),
    attempt("another group is become", ANY, "EPERM|EINVAL", Root("done"), r#"report(sys(106, 12345))"#),
    attempt(
        "a group is joined",
        ANY,
        "EPERM",
        Root("done"),
        r#"my $group = pack("L", 4); report(sys(116, 1, $group))"#,
    ),
    attempt(
        "a limit is raised",
        ANY,
        "EPERM",
        Root("done or EPERM"),
        r#"
        my $limit = pack("QQ", 1 << 20, (1 << 20) + 1); my $old = "\0" x 16; sys(302, 0, 7, 0, $old) or die;
        my (undef, $hard) = unpack("QQ", $old); $limit = pack("QQ", 16, $hard + 1); report(sys(302, 0, 7, $limit, 0))"#,
    ),
    attempt(
        "capabilities are taken back",
        ANY,
        "EPERM",
        Root("done"),
        r#"
        my $head = pack("L l", 0x20080522, 0); my $sets = pack("L6", 1 << 21, 1 << 21, 0, 0, 0, 0);
        report(sys(126, $head, $sets))"#,
    ),
    attempt(
        "a capability is made ambient",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        my $head = pack("L l", 0x20080522, 0); my $all = pack("L6", 1 << 21, 1 << 21, 1 << 21, 0, 0, 0);
        sys(126, $head, $all); report(sys(157, 47, 2, 21, 0, 0))"#,
    ),
    attempt(
        "new privileges are allowed again",
        ANY,
        "EINVAL",
        Output("EINVAL"),
        r#"report(sys(157, 38, 0, 0, 0, 0))"#,
    ),
    attempt(
        "a filter that allows everything is put on top",
        ANY,
        "EPERM",
        Scratch("done"),
        r#"
        sys(157, 38, 1, 0, 0, 0) or die; my $code = pack("S C C L", 6, 0, 0, 0x7fff0000);
        my $filter = pack("S x6 P", 1, $code); sys(317, 1, 0, $filter) or die "filter: $!";
        report(sys(165, "none", "$out/inner", "tmpfs", 0, 0))"#,
    ),
    attempt(
        "rules that allow everything are put on top",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        my $rules = pack("Q", 0xfff); my $set = sys(444, $rules, 8, 0) or die "rules: $!";
        my $root = opened("/", 010000000) or die; my $rule = pack("Q l", 0xfff, fileno($root));
        sys(445, $set, 1, $rule, 0) or die "rule: $!"; sys(157, 38, 1, 0, 0, 0) or die;
        sys(446, $set, 0) or die "restrict: $!"; report(opened("$out/victim", 02001))"#,
    ),
];

#[test]
fn no_right_comes_back() {
    check(RIGHTS);
}

/// A program of 64 bits whose only act is the call behind `int 0x80`: it exits with the error, or with 0.
const OTHER_SETS: &[Attempt] = &[
    attempt(
        "a call by its number of 32 bits",
        &[ReadOnly, Networked],
        "ENOSYS",
        Output("done"),
        r#"
        # mov eax, 20; int 0x80; xor edi, edi; test eax, eax; jns +4; neg eax; mov edi, eax; mov eax, 60; syscall
        my $code = pack("H*", "b814000000cd8031ff85c07904f7d889c7b83c0000000f05");
        my $elf = pack("a4 C5 x7 S S L Q Q Q L S6", "\x7fELF", 2, 1, 1, 0, 0, 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0);
        $elf .= pack("L L Q6", 1, 5, 0, 0x400000, 0x400000, 0x78 + length $code, 0x78 + length $code, 0x1000);
        my $memory = sys(319, "program", 0) or die "memory: $!"; my $bytes = $elf . $code;
        sys(1, $memory, $bytes, length $bytes) or die "write: $!";
        my $child = fork // die; if (!$child) { exec "/proc/self/fd/$memory"; exit 99 }
        waitpid $child, 0; report($? == 0, $? >> 8)"#,
    ),
    attempt(
        "a call by its number of x32",
        ANY,
        "ENOSYS",
        Output("ENOSYS"),
        r#"report(sys(0x40000000 | 165, 0, 0, 0, 0, 0))"#,
    ),
    attempt(
        "a call that no kernel has yet",
        ANY,
        "ENOSYS",
        Output("ENOSYS"),
        r#"report(sys(600, 0, 0, 0, 0, 0))"#,
    ),
];

#[test]
fn other_instruction_sets_are_not_there() {
    check(OTHER_SETS);
}
