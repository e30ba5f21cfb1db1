//! Writing where only reading is allowed: by links, names, descriptors and other ways to the same file.

use super::Control::{Output, Root};
use super::Limits::{Everything, Minimal, Networked, ReadOnly, Workspace};
use super::{ANY, Attempt, attempt, check};

const WRITES: &[super::Limits] = &[Workspace, Networked];

const PATHS: &[Attempt] = &[
    attempt("a file outside is written", ANY, "EROFS", Output("done"), r#"report(put("$out/victim"))"#),
    attempt("a file is made outside", ANY, "EROFS", Output("done"), r#"report(put("$out/new"))"#),
    attempt("a directory is made outside", ANY, "EROFS", Output("done"), r#"report(mkdir "$out/inner/new")"#),
    attempt(
        "a file outside is written where nothing outside is seen",
        &[Minimal],
        "ENOENT",
        Output("done"),
        r#"report(opened("$out/victim", 1))"#,
    ),
    attempt(
        "a file outside is written through a symbolic link",
        WRITES,
        "EROFS",
        Output("done"),
        r#"symlink("$out/victim", "$ws/link") or die; report(put("$ws/link"))"#,
    ),
    attempt(
        "a file is made outside through a link to a directory",
        WRITES,
        "EROFS",
        Output("done"),
        r#"symlink($out, "$ws/link") or die; report(put("$ws/link/new"))"#,
    ),
    attempt(
        "a file outside, by way of /proc/self/root",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        report(put("/proc/self/root$out/victim"))"#,
    ),
    attempt(
        "a file outside, by way of /proc/self/cwd",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        chdir $out or die; report(put("/proc/self/cwd/victim"))"#,
    ),
    attempt(
        "a file outside, by dots",
        ANY,
        "EROFS",
        Output("done"),
        r#"report(put("$ws/../outside/victim"))"#,
    ),
    attempt("a file outside is removed", ANY, "EROFS", Output("done"), r#"report(unlink "$out/victim")"#),
    attempt("a file outside is cut", ANY, "EROFS", Output("done"), r#"report(truncate "$out/victim", 0)"#),
    attempt(
        "a file outside is opened up",
        ANY,
        "EROFS",
        Output("done"),
        r#"report(chmod 0666, "$out/victim")"#,
    ),
    attempt(
        "a file outside gets another time",
        ANY,
        "EROFS",
        Output("done"),
        r#"report(utime 1, 1, "$out/victim")"#,
    ),
    attempt(
        "a file outside gets another owner",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        report(chown -1, $) + 0, "$out/victim")"#,
    ),
    attempt(
        "a directory outside is renamed",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        report(rename "$out/inner", "$out/moved")"#,
    ),
    attempt(
        "the temporary directory is filled by a reader",
        &[ReadOnly],
        "EROFS",
        Output("done"),
        r#"
        my $file = "/tmp/outpost-escape-$$"; my $made = put($file); my $error = $! + 0;
        unlink $file; report($made, $error)"#,
    ),
    attempt(
        "the empty root is filled",
        &[Minimal],
        "EROFS",
        Root("done"),
        r#"
        my $made = put("/outpost-escape-$$"); my $error = $! + 0; unlink "/outpost-escape-$$"; report($made, $error)"#,
    ),
];

#[test]
fn no_path_leads_to_a_write_outside() {
    check(PATHS);
}

const LINKS: &[Attempt] = &[
    attempt(
        "a file outside gets a name inside",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(link "$out/victim", "$ws/hard")"#,
    ),
    attempt(
        "a file inside gets a name outside",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        report(link "$ws/file", "$out/inner/hard")"#,
    ),
    attempt(
        "a file outside is moved inside",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(rename "$out/victim", "$ws/moved")"#,
    ),
    attempt(
        "a file inside is moved over one outside",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(rename "$ws/file", "$out/victim")"#,
    ),
    attempt(
        "a file inside changes places with one outside",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        report(sys(316, -100, "$ws/file", -100, "$out/victim", 2))"#,
    ),
    attempt(
        "a nameless file is made outside",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        report(opened($out, 020200002))"#,
    ),
    attempt(
        "a nameless file is given a name outside",
        WRITES,
        "EROFS",
        Output("done"),
        r#"
        my $file = opened($ws, 020200002) or die "tmpfile: $!";
        report(sys(265, -100, "/proc/self/fd/" . fileno($file), -100, "$out/inner/new", 0x400))"#,
    ),
    attempt(
        "an opened file outside gets a name inside",
        WRITES,
        "EXDEV",
        Output("done"),
        r#"
        my $file = opened("$out/victim", 0) or die;
        report(sys(265, -100, "/proc/self/fd/" . fileno($file), -100, "$ws/hard", 0x400))"#,
    ),
    attempt(
        "a descriptor for reading is opened again for writing",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        my $file = opened("$out/victim", 0) or die; report(opened("/proc/self/fd/" . fileno($file), 02001))"#,
    ),
    attempt(
        "a descriptor of a path is opened for writing",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        my $file = opened("$out/victim", 010000000) or die; report(opened("/dev/fd/" . fileno($file), 02001))"#,
    ),
    attempt(
        "a descriptor for reading changes the mode",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        my $file = opened("$out/victim", 0) or die; report(chmod 0666, $file)"#,
    ),
    attempt(
        "a directory's descriptor leads up and out",
        ANY,
        "EROFS",
        Output("done"),
        r#"
        opendir(my $dir, $ws) or die; chdir $dir or die; report(sys(257, -100, "../outside/new", 0101, 0644))"#,
    ),
    attempt(
        "a descriptor is passed through a socket and written",
        ANY,
        "EBADF",
        Output("EBADF"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or die "pair: $!";
        my $file = opened("$out/victim", 0) or die; my $byte = "x"; my $room = "\0" x 24;
        my $rights = pack("Q l l i x4", 20, 1, 1, fileno($file)); my $iov = pack("P Q", $byte, 1);
        my $head = pack("Q L x4 P Q P Q l x4", 0, 0, $iov, 1, $rights, 24, 0);
        sys(46, fileno($a), $head, 0) or die "send: $!";
        $head = pack("Q L x4 P Q P Q l x4", 0, 0, $iov, 1, $room, 24, 0);
        sys(47, fileno($b), $head, 0) or die "receive: $!";
        my $got = unpack("x16 i", $room); $got > 2 or die "nothing came";
        my $text = "written"; report(sys(1, $got, $text, 7))"#,
    ),
    attempt(
        "a handle of a file is opened",
        ANY,
        "EPERM",
        Root("done"),
        r#"
        my $handle = pack("L l", 128, 0) . "\0" x 128; my $mount = "\0" x 8;
        sys(303, -100, "$out/victim", $handle, $mount, 0) or die "handle: $!";
        my $dir = opened($out, 0) or die; report(sys(304, fileno($dir), $handle, 1))"#,
    ),
    attempt(
        "openat2 is looked into by no filter",
        ANY,
        "ENOSYS",
        Output("done"),
        r#"
        my $how = pack("Q3", 0, 0, 0); report(sys(437, -100, "$out/victim", $how, 24))"#,
    ),
];

#[test]
fn neither_links_nor_descriptors_lead_out() {
    check(LINKS);
}

/// The same file executed outside would lend its owner's rights.
const SET_ID: &[Attempt] = &[
    attempt("chmod", WRITES, "EPERM", Output("done"), r#"report(chmod 04755, "$ws/file")"#),
    attempt(
        "fchmod",
        WRITES,
        "EPERM",
        Output("done"),
        r#"
        my $file = opened("$ws/file", 0) or die; report(chmod 02755, $file)"#,
    ),
    attempt("fchmodat2", WRITES, "EPERM", Output("done"), r#"report(sys(452, -100, "$ws/file", 04755, 0))"#),
    attempt(
        "fchmodat with bits that the kernel does not read",
        WRITES,
        "EPERM",
        Output("done"),
        r#"
        report(sys(268, -100, "$ws/file", 0x100000000 | 04755))"#,
    ),
    attempt("open", WRITES, "EPERM", Output("done"), r#"report(opened("$ws/new", 0101, 04755))"#),
    attempt("the old open", WRITES, "EPERM", Output("done"), r#"report(sys(2, "$ws/new", 0101, 04755))"#),
    attempt("creat", WRITES, "EPERM", Output("done"), r#"report(sys(85, "$ws/new", 04755))"#),
    attempt("a nameless file", WRITES, "EPERM", Output("done"), r#"report(opened($ws, 020200002, 04755))"#),
    attempt("mknod", WRITES, "EPERM", Output("done"), r#"report(sys(133, "$ws/new", 0100000 | 04755, 0))"#),
    attempt(
        "mknodat",
        WRITES,
        "EPERM",
        Output("done"),
        r#"
        report(sys(259, -100, "$ws/new", 0100000 | 04755, 0))"#,
    ),
    attempt(
        "a device",
        WRITES,
        "EACCES or EPERM",
        Root("done"),
        r#"
        report(sys(133, "$ws/disk", 060660, (254 << 8)))"#,
    ),
    attempt(
        "capabilities of a file",
        WRITES,
        "EPERM",
        Root("done"),
        r#"
        my $caps = pack("L L L L L", 0x02000001, 0x200000, 0, 0, 0);
        report(sys(188, "$ws/file", "security.capability", $caps, 20, 0))"#,
    ),
];

#[test]
fn no_file_is_left_that_lends_rights() {
    check(SET_ID);
}

/// Everything may be written, but not the kernel's settings, nor what the daemon keeps.
const EVERYTHING: &[Attempt] = &[
    attempt(
        "a setting of the kernel",
        &[Everything],
        "EROFS|EACCES",
        Root("done"),
        r#"
        report(opened("/proc/sys/kernel/core_pattern", 1))"#,
    ),
    attempt(
        "a group of processes",
        &[Everything],
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = (glob("/sys/fs/cgroup/cgroup.procs"), glob("/sys/fs/cgroup/*/cgroup.procs"));
        for ("/sys/fs/cgroup/cgroup.procs", glob("/sys/fs/cgroup/*/cgroup.procs")) { $file = $_ if -e }
        report(opened($file, 1))"#,
    ),
    attempt(
        "the state of the daemon",
        &[Everything],
        "EACCES",
        Output("done"),
        r#"
        report(opendir my $dir, $state)"#,
    ),
    attempt(
        "a device of the host",
        &[Everything],
        "ENOENT",
        Root("done"),
        r#"report(opened("/dev/kmsg", 1))"#,
    ),
];

#[test]
fn full_write_access_does_not_include_the_kernel() {
    check(EVERYTHING);
}
