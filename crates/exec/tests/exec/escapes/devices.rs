//! Devices: those of the host, those that are shared with it, terminals, and how much the command's own can hold.

use super::Control::{Harmful, Output, Root};
use super::Limits::{Everything, Minimal, Networked, ReadOnly, Workspace};
use super::scene::Scene;
use super::{ANY, Attempt, Limits, attempt, check};
use crate::sandbox::for_each_user;
use crate::table::with;
use outpost_testkit::{require, x86_64};
use serde_json::json;

const ALL: &[Limits] = &[ReadOnly, Workspace, Networked, Minimal, Everything];

const DEVICES: &[Attempt] = &[
    attempt("the kernel's log", ALL, "ENOENT", Root("done"), r#"report(opened("/dev/kmsg", 1))"#),
    attempt(
        "a disk",
        ALL,
        "ENOENT",
        Root("done"),
        r#"
        open my $parts, "<", "/proc/partitions"; my ($disk) = map { /(\S+)$/ ? "/dev/$1" : () } grep { /^\s+\d/ } <$parts>;
        report(opened($disk // "/dev/kmsg", 010000000))"#,
    ),
    attempt(
        "a terminal of the host",
        ALL,
        "ENOENT",
        Root("done"),
        r#"
        report(-e "/dev/console")"#,
    ),
    attempt(
        "a device is made among the devices",
        ALL,
        "EROFS",
        Root("done"),
        r#"
        my $made = sys(133, "/dev/outpost-escape-$$", 020666, 0x103); my $error = $! + 0;
        unlink "/dev/outpost-escape-$$"; report($made, $error)"#,
    ),
    attempt(
        "a device is made in shared memory",
        ALL,
        "EACCES or EPERM",
        Root("done"),
        r#"
        my $made = sys(133, "/dev/shm/outpost-escape-$$", 020666, 0x103); my $error = $! + 0;
        unlink "/dev/shm/outpost-escape-$$"; report($made, $error)"#,
    ),
    attempt(
        "a file is made among the devices",
        ALL,
        "EROFS",
        Root("done"),
        r#"
        my $made = put("/dev/outpost-escape-$$"); my $error = $! + 0; unlink "/dev/outpost-escape-$$"; report($made, $error)"#,
    ),
    // The change is visible to the whole host, so it sets the mode that the node has already.
    attempt(
        "a shared device gets another mode",
        ALL,
        "EROFS",
        Root("done"),
        r#"report(chmod 0666, "/dev/null")"#,
    ),
    attempt(
        "a shared device gets another owner",
        ALL,
        "EROFS",
        Root("done"),
        r#"report(chown 0, 0, "/dev/zero")"#,
    ),
    attempt(
        "a shared device gets another time",
        ALL,
        "EROFS",
        Root("done"),
        r#"report(utime 1, 1, "/dev/full")"#,
    ),
    attempt(
        "the shared device that is its input gets another mode",
        ALL,
        "EROFS",
        Root("done"),
        r#"
        report(chmod 0666, *STDIN)"#,
    ),
    attempt(
        "a shared device is removed",
        ALL,
        "EROFS",
        Harmful("the host would be without it"),
        r#"
        inside(); report(unlink "/dev/null")"#,
    ),
    attempt(
        "shared devices work",
        ALL,
        "done",
        Output("done"),
        r#"
        my $null = opened("/dev/null", 01102) or die "null: $!"; syswrite($null, "x") or die;
        my $zero = opened("/dev/zero", 0) or die; report(sysread($zero, my $bytes, 4) == 4)"#,
    ),
];

#[test]
fn devices_of_the_host_are_out_of_reach() {
    check(DEVICES);
}

/// Their own bounds are the proof: below them everything works.
const BOUNDS: &[Attempt] = &[
    attempt(
        "shared memory is filled",
        ANY,
        "ENOSPC after 200 MiB",
        Harmful("the host's memory would be filled"),
        r#"
        my $file = opened("/dev/shm/big", 0102) or die; sys(285, fileno($file), 0, 0, 200 << 20) or report(0);
        sys(285, fileno($file), 0, 200 << 20, 100 << 20) ? print "done" : print name() . " after 200 MiB""#,
    ),
    attempt(
        "shared memory is filled with names",
        ANY,
        "ENOSPC below 20000",
        Harmful("as above"),
        r#"
        my $n = 0; $n++ while $n < 20000 && mknod_file($n); print name() . " below $n" =~ s/\d+/20000/r if $n > 10000;
        sub mknod_file { sys(133, "/dev/shm/$_[0]", 0100600, 0) }"#,
    ),
    attempt(
        "terminals are used up",
        ANY,
        "ENOSPC",
        Harmful("the host's would be used up"),
        r#"
        my @all; while (@all < 300) { push @all, opened("/dev/ptmx", 02) || report(0) } report(1)"#,
    ),
    attempt(
        "a terminal is the first of its own",
        ANY,
        "0",
        Harmful("the host's first terminal is in use"),
        r#"
        my $file = opened("/dev/ptmx", 0402) or report(0); my $number = pack("L", 99);
        ioctl($file, 0x80045430, $number) or report(0); print unpack("L", $number)"#,
    ),
];

#[test]
fn what_a_command_has_of_its_own_is_bounded() {
    check(BOUNDS);
}

/// Injected terminal input would be read by the next foreground process. What the control may do depends on the host.
#[test]
fn nothing_is_typed_into_a_terminal() {
    outpost_testkit::require!(crate::table::skip_on_original());
    require!(x86_64());
    let rows = [
        ("input", 0x5412_u64, "EPERM", &["done", "EIO"][..]),
        ("input, with bits that the kernel does not read", 0x1_0000_5412, "EPERM", &["done", "EIO"]),
        ("the console's tricks", 0x541c, "EPERM", &["ENOTTY"]),
        ("the console's output", 0x541d, "EPERM", &["done", "EPERM"]),
        ("another discipline", 0x5423, "EPERM", &["done"]),
        ("its size, which is harmless", 0x5413, "done", &["done"]),
    ];
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        for (name, request, expected, controls) in rows {
            let script = format!("my $byte = \"\\0\" x 64; report(sys(16, 0, {request}, $byte))");
            for limits in [ReadOnly, Workspace, Networked, Limits::None] {
                let terminal = json!({"processId": "p", "tty": true});
                let params = with(with(scene.params(&script, &[]), limits.params(&scene)), terminal);
                let before = scene.host.server.text("p", "stdout").len();
                scene.report(&params);
                let outcome = scene.host.server.text("p", "stdout").split_off(before);
                let outcome = outcome.trim_start_matches(['\0', '^', '@']);
                match limits {
                    Limits::None => {
                        assert!(controls.contains(&outcome), "{name} without a sandbox: {outcome:?}")
                    }
                    _ => assert_eq!(outcome, expected, "{name} under {limits:?}, user {:?}", options.uid),
                }
            }
        }
    });
}
