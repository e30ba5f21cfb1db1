//! The kernel's files below `/proc` and `/sys`: its settings, its memory, and what it does for root without asking.

use super::Control::{Output, Root};
use super::Limits::{Everything, Networked, ReadOnly, Workspace};
use super::scene::Scene;
use super::{Attempt, Limits, attempt, check};
use crate::sandbox::{for_each_user, policy};
use crate::table::with;
use outpost_testkit::{Lack, require, root};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

const ALL: &[Limits] = &[ReadOnly, Workspace, Networked, Everything];

/// Opened only, never written: opening is where it is decided, and a control must not change the host.
const SETTINGS: &[Attempt] = &[
    attempt(
        "where cores go",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"report(opened("/proc/sys/kernel/core_pattern", 1))"#,
    ),
    attempt(
        "the host's name",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"report(opened("/proc/sys/kernel/hostname", 1))"#,
    ),
    attempt(
        "the loader of modules",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } map { "/proc/sys/kernel/$_" } "modprobe", "poweroff_cmd", "panic"; report(opened($file, 1))"#,
    ),
    attempt(
        "how many processes there may be",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        report(opened("/proc/sys/kernel/pid_max", 1))"#,
    ),
    attempt(
        "caches are dropped",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"report(opened("/proc/sys/vm/drop_caches", 1))"#,
    ),
    attempt(
        "formats of programs",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/file-max"; report(opened($file, 1))"#,
    ),
    attempt(
        "the magic key",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } "/proc/sysrq-trigger", "/proc/sys/kernel/panic"; report(opened($file, 1))"#,
    ),
    attempt(
        "the settings, by way of /proc/self/root",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        report(opened("/proc/self/root/proc/sys/kernel/core_pattern", 1))"#,
    ),
    attempt(
        "the handler of device events",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/kernel/profiling"; report(opened($file, 1))"#,
    ),
    attempt(
        "a device's own file",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = glob("/sys/devices/system/cpu/uevent"); report(opened($file, 1))"#,
    ),
    attempt(
        "a process leaves its group",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } "/sys/fs/cgroup/cgroup.procs", glob("/sys/fs/cgroup/*/cgroup.procs");
        $file ? report(opened($file, 1)) : report(opened("/sys/kernel/profiling", 1))"#,
    ),
    attempt(
        "a group is made",
        ALL,
        "EROFS",
        Root("done"),
        r#"
        my ($dir) = map { s,/cgroup.procs,,r } grep { -e } "/sys/fs/cgroup/cgroup.procs", glob("/sys/fs/cgroup/*/cgroup.procs");
        my $made = mkdir("$dir/outpost-escape-$$"); my $error = $! + 0; rmdir "$dir/outpost-escape-$$"; report($made, $error)"#,
    ),
    attempt(
        "what runs when a group is empty",
        ALL,
        "EROFS|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } glob("/sys/fs/cgroup/*/release_agent"), "/sys/fs/cgroup/cgroup.subtree_control";
        report(opened($file, 1))"#,
    ),
    attempt(
        "its own score of memory",
        ALL,
        "EROFS",
        Output("done"),
        r#"report(opened("/proc/self/oom_score_adj", 1))"#,
    ),
];

#[test]
fn settings_of_the_kernel_are_read_only_for_root_too() {
    check(SETTINGS);
}

const MEMORY: &[Attempt] = &[
    attempt(
        "figures of the host that are root's alone",
        ALL,
        "0 of them",
        Root("some of them"),
        r#"
        my $read = 0;
        for (grep { -e } map { "/proc/$_" } qw(timer_list slabinfo vmallocinfo kpagecount kpageflags kpagecgroup)) {
            my $file = opened($_, 0) or next; $read++ if sysread($file, my $bytes, 64)
        }
        print $read ? "some of them" : "0 of them""#,
    ),
    attempt(
        "the kernel's memory",
        ALL,
        "EPERM|EACCES",
        Root("done"),
        r#"
        my ($file) = grep { -e } "/proc/kcore", "/proc/kmsg"; report(opened($file, 0))"#,
    ),
    attempt(
        "the kernel's messages",
        ALL,
        "EPERM|EACCES",
        Root("done"),
        r#"report(opened("/proc/kmsg", 04000))"#,
    ),
    attempt(
        "memory of its first process",
        ALL,
        "EACCES",
        Root("done"),
        r#"report(opened("/proc/" . first() . "/mem", 0))"#,
    ),
    attempt(
        "memory of its parent, written",
        ALL,
        "EROFS|EACCES",
        Output("done"),
        r#"
        report(opened("/proc/" . getppid . "/mem", 2))"#,
    ),
    attempt(
        "the environment of its parent",
        ALL,
        "EACCES",
        Output("done"),
        r#"
        my $file = opened("/proc/" . getppid . "/environ", 0) or report(0); report(sysread($file, my $text, 16))"#,
    ),
    attempt(
        "what its first process sees",
        ALL,
        "EACCES",
        Output("done"),
        r#"
        report(opendir my $dir, "/proc/" . first() . "/root/")"#,
    ),
    attempt(
        "where its first process is",
        ALL,
        "EACCES",
        Output("done"),
        r#"report(readlink "/proc/" . first() . "/cwd")"#,
    ),
    attempt(
        "what its first process has opened",
        ALL,
        "EACCES",
        Output("done"),
        r#"
        my $at = "/proc/" . first() . "/fd"; opendir(my $dir, $at) or report(0);
        my ($one) = grep { /\d/ } readdir $dir or die "none"; report(readlink "$at/$one")"#,
    ),
    attempt(
        "the program of its first process",
        ALL,
        "EACCES",
        Output("done"),
        r#"report(opened("/proc/" . first() . "/exe", 0))"#,
    ),
    attempt(
        "the program of its first process, written",
        ALL,
        "EACCES",
        Root("ETXTBSY"),
        r#"report(opened("/proc/" . first() . "/exe", 1))"#,
    ),
    attempt(
        "the maps of its first process",
        ALL,
        "EACCES",
        Output("done"),
        r#"report(opened("/proc/" . first() . "/maps", 0))"#,
    ),
    attempt(
        "its own program is overwritten",
        ALL,
        "ETXTBSY",
        Output("ETXTBSY"),
        r#"
        my $copy = "/dev/shm/outpost-escape-$$"; system("/bin/cp", "/bin/cat", $copy) == 0 or die;
        my $child = open(my $in, "|-", $copy) or die; my $opened = opened("/proc/$child/exe", 1); my $error = $! + 0;
        close $in; unlink $copy; report($opened, $error)"#,
    ),
];

#[test]
fn neither_the_kernels_memory_nor_the_first_process_is_seen() {
    check(MEMORY);
}

/// A mount of the host, taken away whatever becomes of the test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, at: PathBuf) -> Result<Mounted, Lack> {
        let mounted = Command::new("mount").args(["-t", kind, "none"]).arg(&at).status();
        match mounted.is_ok_and(|status| status.success()) {
            true => Ok(Mounted(at)),
            false => Err(Lack::of_host(format!("root may not mount {kind}"))),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// As in a workspace with a tree for chroot(8) in it.
#[test]
fn settings_that_are_mounted_in_a_workspace_are_read_only_too() {
    outpost_testkit::require!(crate::table::skip_on_original());
    require!(root());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let rows = [("proc", "sys/kernel/core_pattern"), ("sysfs", "devices/system/cpu/uevent")];
        for (kind, file) in rows {
            let at = scene.host.dir(&format!("cwd/tree here/{kind}"));
            let _mounted = require!(Mounted::new(kind, at.clone()));
            let script = format!(r#"report(opened("$ws/tree here/{kind}/{file}", 1))"#);
            let refused = if scene.is_root() { "EROFS" } else { "EACCES" };
            for limits in [Workspace, Networked, Limits::Minimal, Everything] {
                assert_eq!(scene.run(limits, &script), refused, "{kind} under {limits:?}, {:?}", options.uid);
            }
            if scene.is_root() {
                assert_eq!(scene.run(Limits::None, &script), "done");
            }
            let limits = policy(json!({"type": "workspaceWrite", "writableRoots": [at]}));
            let outcome = scene.report(&with(scene.params("print 'ran'", &[]), limits));
            assert!(outcome.contains("never writes to proc"), "{outcome}");
        }
    });
}
