//! Other processes: those of the host, the first one of the sandbox, what they share, and how many there can be.

use super::Control::{Harmful, Output, Root};
use super::Limits::{Networked, ReadOnly, Workspace};
use super::scene::Scene;
use super::{ANY, Attempt, Limits, attempt, check};
use crate::sandbox::for_each_user;
use crate::table::with;
use outpost_testkit::{require, root, x86_64};
use serde_json::json;

const OFF: &[Limits] = &[ReadOnly, Workspace];

const OUTSIDE: &[Attempt] = &[
    attempt("a process outside is killed", ANY, "ESRCH", Output("done"), r#"report(kill 9, $pid)"#),
    attempt("a process outside is asked after", ANY, "ESRCH", Output("done"), r#"report(kill 0, $pid)"#),
    attempt("a thread outside is killed", ANY, "ESRCH", Output("done"), r#"report(sys(234, $pid, $pid, 9))"#),
    attempt(
        "a process outside is sent a signal with words",
        ANY,
        "ESRCH",
        Output("done"),
        r#"
        my $info = pack("l3 x4 l2", 10, 0, -1, 0, 0) . "\0" x 128; report(sys(129, $pid, 10, $info))"#,
    ),
    attempt("a process outside is held", ANY, "ESRCH", Output("done"), r#"report(sys(434, $pid, 0))"#),
    attempt(
        "a process outside is traced",
        OFF,
        "EPERM",
        Root("done"),
        r#"report(sys(101, 0x4206, $pid, 0, 0))"#,
    ),
    attempt(
        "a process outside is traced, with a network",
        &[Networked],
        "ESRCH",
        Root("done"),
        r#"
        report(sys(101, 0x4206, $pid, 0, 0))"#,
    ),
    attempt(
        "memory outside is read",
        OFF,
        "EPERM",
        Root("EFAULT"),
        r#"
        my $iov = pack("Q2", 8, 8); report(sys(310, $pid, $iov, 1, $iov, 1, 0))"#,
    ),
    attempt(
        "memory outside is read, with a network",
        &[Networked],
        "ESRCH",
        Root("EFAULT"),
        r#"
        my $iov = pack("Q2", 8, 8); report(sys(310, $pid, $iov, 1, $iov, 1, 0))"#,
    ),
    attempt(
        "memory outside is written",
        OFF,
        "EPERM",
        Root("EFAULT"),
        r#"
        my $iov = pack("Q2", 8, 8); report(sys(311, $pid, $iov, 1, $iov, 1, 0))"#,
    ),
    attempt(
        "the environment of a process outside is read",
        ANY,
        "ENOENT",
        Output("done"),
        r#"
        report(opened("/proc/$pid/environ", 0))"#,
    ),
    attempt(
        "the root of a process outside is entered",
        ANY,
        "ENOENT",
        Output("done"),
        r#"report(chdir "/proc/$pid/root")"#,
    ),
    attempt(
        "memory outside is opened",
        ANY,
        "ENOENT",
        Output("done"),
        r#"report(opened("/proc/$pid/mem", 2))"#,
    ),
    attempt(
        "a process outside is slowed down",
        ANY,
        "ESRCH",
        Output("done"),
        r#"report(sys(141, 0, $pid, 5))"#,
    ),
    attempt(
        "a process outside is limited",
        ANY,
        "ESRCH",
        Output("done"),
        r#"
        my $limit = pack("QQ", 1, 1); report(sys(302, $pid, 0, $limit, 0))"#,
    ),
    attempt(
        "a process outside is kept off the processors",
        ANY,
        "ESRCH",
        Output("done"),
        r#"
        my $mask = pack("Q", 1); report(sys(203, $pid, 8, $mask))"#,
    ),
    attempt(
        "the group of a process outside is asked after",
        ANY,
        "ESRCH",
        Output("done"),
        r#"report(sys(121, $pid))"#,
    ),
    attempt(
        "all of the user's processes are slowed down",
        ANY,
        "done",
        Harmful("it would slow down everything of that user on the host"),
        r#"inside(); report(sys(141, 2, 0, 7))"#,
    ),
    attempt(
        "everything is killed",
        ANY,
        "killed its own",
        Harmful("it would end everything of that user on the host"),
        r#"
        inside(); my $child = fork // die; if (!$child) { sleep 1000 } kill 9, -1; waitpid $child, 0;
        print $? == 9 ? "killed its own" : "nothing""#,
    ),
];

#[test]
fn processes_outside_are_out_of_reach() {
    check(OUTSIDE);
}

/// The first process of the sandbox is of the same user and comes from the daemon.
const FIRST: &[Attempt] = &[
    attempt(
        "it is traced",
        &[Networked],
        "EPERM",
        Root("done"),
        r#"
        my $child = fork // die; if (!$child) { sleep 1000 } my $works = sys(101, 0x4206, $child, 0, 0); kill 9, $child;
        $works or die "tracing does not work: $!"; report(sys(101, 0x4206, first(), 0, 0))"#,
    ),
    attempt(
        "its memory is read",
        &[Networked],
        "EPERM",
        Root("EFAULT"),
        r#"
        my $iov = pack("Q2", 8, 8); report(sys(310, first(), $iov, 1, $iov, 1, 0))"#,
    ),
    attempt(
        "a descriptor is taken from it",
        ANY,
        "EPERM",
        Root("done"),
        r#"
        my $held = sys(434, first(), 0) or die "hold: $!"; report(sys(438, $held, 0, 0))"#,
    ),
    attempt("it is compared", ANY, "EPERM", Root("done"), r#"report(sys(312, $$, first(), 1, 0, 0))"#),
    attempt(
        "it is killed",
        ANY,
        "lives on",
        Harmful("it would be the host's"),
        r#"
        inside(); kill 9, 1; kill 15, 1; print -d "/proc/1" ? "lives on" : "dead""#,
    ),
];

#[test]
fn the_first_process_of_a_sandbox_cannot_be_driven() {
    check(FIRST);
}

/// IPC objects with names of their own: created without a sandbox, looked up in one.
#[test]
fn shared_memory_semaphores_and_queues_of_the_host_are_not_found() {
    outpost_testkit::require!(crate::table::skip_on_original());
    require!(x86_64());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let key = 0x0e5c_0000 + (scene.host.server.pid() & 0xffff);
        let make = format!(
            r#"sys(29, {key}, 4096, 01600) or die "memory: $!"; sys(64, {key}, 1, 01600) or die "semaphore: $!";
               sys(68, {key}, 01600) or die "queue: $!"; my $a = pack("q8", 0, 1, 16, (0) x 5);
               report(sys(240, "outpost-{key}", 0102, 0600, $a))"#
        );
        assert_eq!(scene.run(Limits::None, &make), "done");
        let rows = [
            ("shared memory", format!("report(sys(29, {key}, 0, 0))")),
            ("a semaphore", format!("report(sys(64, {key}, 0, 0))")),
            ("a queue", format!("report(sys(68, {key}, 0))")),
            ("a named queue", format!(r#"report(sys(240, "outpost-{key}", 0, 0, 0))"#)),
        ];
        for (name, script) in &rows {
            assert_eq!(scene.run(Limits::None, script), "done", "{name} without a sandbox");
            for limits in [ReadOnly, Workspace, Networked] {
                assert_eq!(scene.run(limits, script), "ENOENT", "{name} under {limits:?}, {:?}", options.uid);
            }
        }
        let unmake = format!(
            r#"sys(31, int sys(29, {key}, 0, 0), 0, 0) or die; sys(66, int sys(64, {key}, 0, 0), 0, 0, 0) or die;
               sys(71, int sys(68, {key}, 0), 0, 0) or die; report(sys(241, "outpost-{key}"))"#
        );
        assert_eq!(scene.run(Limits::None, &unmake), "done");
    });
}

/// The kernel reports it, and all of it ends with the command.
#[test]
fn a_fork_bomb_meets_its_limit() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let script = r#"
            inside(); my $n = 0; for (1 .. 6000) { my $child = fork; last if !defined $child; sleep 1000 if !$child; $n++ }
            print name(), $n > 3000 ? " after thousands" : " after $n"; kill 9, -1"#;
        assert_eq!(scene.run(ReadOnly, script), "EAGAIN after thousands", "{:?}", options.uid);
        assert_eq!(scene.harm(), Vec::<String>::new());
    });
}

/// A set-id file changes the user of its process, except in a sandbox.
#[test]
fn programs_that_lend_rights_lend_none() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if outpost_testkit::available!(crate::table::skip_on_original()).is_none() {
        return;
    }
    require!(root());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let (own, other) = (options.uid.unwrap_or(0), if options.uid.is_some() { 0 } else { 65534 });
        let program = scene.host.dir("lent").join("id");
        std::fs::copy("/usr/bin/id", &program).unwrap();
        chown(&program, Some(other), Some(other)).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o6755)).unwrap();
        let script = r#"print `"$ws/../lent/id" -u` + 0, " ", `"$ws/../lent/id" -g` + 0"#;
        assert_eq!(scene.run(Limits::None, script), format!("{other} {other}"), "without a sandbox");
        for limits in [ReadOnly, Workspace, Networked] {
            assert_eq!(scene.run(limits, script), format!("{own} {own}"), "{limits:?}");
        }
    });
}

/// Servers of one user number their commands alike (by the clock), and what is left of a command is looked for among all
/// processes. A number is the same only by chance, so there are many.
#[test]
fn the_end_of_a_command_ends_none_of_another_server() {
    const COMMANDS: usize = 40;
    for_each_user(|options| {
        let mut servers = [Scene::start(&options), Scene::start(&options)];
        let [lasting, passing] = &mut servers;
        let passes = with(passing.params("print 'ran'", &[]), ReadOnly.params(passing));
        let waits = with(lasting.params("<STDIN>; print 'over'", &[]), ReadOnly.params(lasting));
        let mut lasts = Vec::new();
        for number in 0..COMMANDS {
            let name = format!("p{number}");
            let streams = json!({"processId": name, "streamStdin": true, "disableTimeout": true});
            let params = with(waits.clone(), streams);
            let passes = passing.host.server.request("command/exec", &passes);
            lasts.push((lasting.host.server.request("command/exec", &params), name));
            assert_eq!(passing.report_of(passes), "ran");
        }
        for (id, name) in lasts {
            lasting.host.server.call("command/exec/write", &json!({"processId": name, "closeStdin": true}));
            assert_eq!(lasting.report_of(id), "over", "user {:?}", options.uid);
        }
    });
}
