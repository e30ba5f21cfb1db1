//! Children: started, failed, ended, taken over.

use crate::kit::{self, Heard, command, greeted, null, read_to_end, shell};
use outpost_keeper::{LINK_VERSION, Request, Roles, Spec, Standing, Targets};
use outpost_sys::pidfd::How;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Failure, Program, Step};
use outpost_sys::{Errno, file, pidfd};
use std::os::fd::AsFd;

#[test]
fn a_child_runs_writes_and_ends_with_its_code() {
    let (mut client, _keeper) = greeted();
    let (input, output) = client.spawn_piped(20, &shell("echo hello; read line; echo $line; exit 42"));
    let started = client.told(20);
    assert_eq!((started.standing, started.roles()), (Standing::Running, vec![]));
    let pidfd = started.pidfd.expect("a pidfd");
    assert!(pidfd::is_child(&pidfd));
    assert_eq!(kit::read(&output), "hello\n");
    kit::write(&input, "again\n");
    assert_eq!(read_to_end(&output), "again\n");
    let ended = client.told(20);
    let Standing::Ended(exit) = ended.standing else { panic!("{ended:?}") };
    assert_eq!((exit.how, ended.pid, ended.pidfd.is_none()), (How::Code(42), started.pid, true));
    assert!(exit.rss_max_kb > 0);
    assert_eq!(pidfd::reap(&pidfd), Err(Errno::CHILD), "reaped");
}

#[test]
fn a_child_is_known_before_it_can_do_anything() {
    let (mut client, _keeper) = greeted();
    let (input, output, null) = (pipe().unwrap(), pipe().unwrap(), null());
    let given = [(input.read.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn_with(20, &shell("echo passed; read line; exit 6"), &[], &given, None);
    let Heard::Entry(starting) = client.hear() else { panic!("not an entry") };
    assert_eq!((starting.slot, starting.standing), (20, Standing::Starting));
    assert!(pidfd::is_child(starting.pidfd.expect("a pidfd")));
    assert_eq!(kit::read(&output.read), "passed\n");
    // It lives until here, or it might have been reaped before we look.
    drop(input);
    assert_eq!(client.ended(20), How::Code(6));
}

#[test]
fn a_specification_that_is_none_starts_nothing() {
    let (mut client, _keeper) = greeted();
    let null = null();
    let targets = Targets::new([0, 1, 2]).unwrap();
    client.send(Request::Spawn { slot: 21, cgroup: false, held: Roles::EMPTY, targets }, &[null.as_fd(); 4]);
    let failure = Failure::at(Step::Prepare, Errno::INVAL);
    assert_eq!(client.told(21).standing, Standing::Failed(failure));
}

/// Starts one that fails, and finds it gone when that is told.
fn failure(spec: &Spec) -> Failure {
    let (mut client, _keeper) = greeted();
    let (_input, output) = client.spawn_piped(20, spec);
    let told = client.told(20);
    assert!(told.pidfd.is_none());
    let Standing::Failed(failure) = told.standing else { panic!("{told:?}") };
    assert_eq!(read_to_end(&output), "", "nobody holds its output");
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 1, "it can be forgotten at once");
    failure
}

#[test]
fn a_program_that_is_missing_is_a_failure_and_no_exit_code() {
    assert_eq!(failure(&command("/missing", &[])), Failure::at(Step::Exec, Errno::NOENT));
    assert_eq!(failure(&command("/etc/passwd", &[])), Failure::at(Step::Exec, Errno::ACCESS));
    // While 127 is an exit code like any other.
    let (mut client, _keeper) = greeted();
    client.spawn_quiet(20, &shell("exit 127"));
    assert_eq!(client.ended(20), How::Code(127));
}

#[test]
fn a_directory_that_is_missing_is_told_as_such() {
    let mut spec = command("/bin/true", &[]);
    spec.directory = Some(c"/missing".into());
    assert_eq!(failure(&spec), Failure::at(Step::Directory, Errno::NOENT));
}

#[test]
fn failures_among_many_are_all_told() {
    let (mut client, _keeper) = greeted();
    for slot in 100..200 {
        let (bad, good) = (command("/missing", &[]), command("/bin/true", &[]));
        client.spawn_quiet(slot, if slot % 2 == 0 { &bad } else { &good });
    }
    for slot in 100..200 {
        match slot % 2 {
            0 => assert!(matches!(client.told(slot).standing, Standing::Failed(_)), "{slot}"),
            _ => assert_eq!(client.ended(slot), How::Code(0), "{slot}"),
        }
    }
}

#[test]
fn a_wrong_number_of_descriptors_starts_nothing() {
    let (mut client, _keeper) = greeted();
    let (null, spec) = (null(), file::sealed_memory("spec", &shell("exit 1").encode()).unwrap());
    let targets = Targets::new([0, 1, 2]).unwrap();
    for (slot, count) in (20..).zip([0, 1, 2, 3, 5]) {
        let fds: Vec<_> = [spec.as_fd()].into_iter().chain([null.as_fd(); 5]).take(count).collect();
        client.send(Request::Spawn { slot, cgroup: false, held: Roles::EMPTY, targets }, &fds);
        let failure = Failure::at(Step::Prepare, Errno::MFILE);
        assert_eq!(client.told(slot).standing, Standing::Failed(failure), "{count}");
    }
}

#[test]
fn a_slot_that_is_taken_or_none_is_not_given_again() {
    let (mut client, _keeper) = greeted();
    let (input, output) = client.spawn_piped(20, &shell("echo first; read line"));
    assert_eq!(client.told(20).standing, Standing::Running);
    for slot in [0, 1, 15, 20, 1 << 63, u64::MAX] {
        client.spawn_quiet(slot, &shell("exit 9"));
        let null = null();
        let adopt = Request::Adopt { slot, pid: 1, standing: Standing::Running, held: Roles::EMPTY };
        client.send(adopt, &[null.as_fd()]);
    }
    client.slots.retain(|slot| *slot == 20);
    let slots: Vec<u64> = client.hello().iter().map(|told| told.slot).collect();
    assert_eq!(slots, [0, 20]);
    drop(input);
    assert_eq!(client.ended(20), How::Code(1));
    assert_eq!(read_to_end(&output), "first\n");
}

#[test]
fn a_child_taken_over_is_told_when_it_ends() {
    let (mut client, _keeper) = greeted();
    let (null, held) = (null(), pipe().unwrap());
    let started = spawn::spawn(&Child::new(
        Program::Path(c"/bin/sleep"),
        &[c"sleep", c"1000"],
        &[],
        spawn::Standing::Group,
        &[(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)],
    ))
    .unwrap();
    let roles = Roles::new([7]).unwrap();
    let adopt = Request::Adopt { slot: 20, pid: started.pid, standing: Standing::Running, held: roles };
    client.send(adopt, &[started.pidfd.as_fd(), held.write.as_fd()]);
    let table = client.hello();
    assert_eq!((table[1].slot, table[1].pid, table[1].roles()), (20, started.pid, vec![7]));
    client.signal(20, Signal::TERM, false);
    assert_eq!(client.ended(20), How::Signal(15));
}

#[test]
fn an_orphan_taken_over_tells_its_code() {
    let (mut client, _keeper) = greeted();
    let (input, output) = client.spawn_piped(20, &shell("exec 5<&0; (read line <&5; exit 33) & echo $!"));
    assert_eq!(client.ended(20), How::Code(0));
    let pid = kit::read(&output).trim().parse().unwrap();
    let pidfd = outpost_testkit::process(pid).unwrap();
    assert!(!pidfd::is_child(&pidfd));
    client.send(
        Request::Adopt { slot: 21, pid, standing: Standing::Running, held: Roles::EMPTY },
        &[pidfd.as_fd()],
    );
    client.hello();
    drop(input);
    // Before Linux 6.15 nobody knows when its new parent has reaped it.
    assert!(matches!(client.ended(21), How::Code(33) | How::Unknown));
}

#[test]
fn a_child_handed_over_without_its_pidfd_is_refused_so_that_the_worker_repeats_it() {
    let (mut client, _keeper) = greeted();
    for (slot, standing) in [(20, Standing::Running), (21, Standing::Starting)] {
        client.send(Request::Adopt { slot, pid: kit::me(), standing, held: Roles::EMPTY }, &[]);
        assert_eq!(client.told(slot).standing, Standing::Failed(outpost_keeper::NOT_ADOPTED));
        client.send(Request::Forget { slot }, &[]);
    }
    assert_eq!(client.hello().len(), 1, "both can be forgotten");
}

#[test]
fn refusals_do_not_make_the_table_grow_without_end() {
    let (mut client, _keeper) = kit::start();
    let refused = |slot| Request::Spawn { slot, cgroup: false, held: Roles::EMPTY, targets: Roles::EMPTY };
    for slot in 100..20_000 {
        client.send(refused(slot), &[]);
    }
    client.send(Request::Hello { version: LINK_VERSION }, &[]);
    let mut slots = Vec::new();
    while let Heard::Entry(told) = client.hear() {
        slots.push(told.slot);
    }
    assert_eq!(slots.len(), 17 * 1024);
    // Who forgets them has room again.
    for slot in slots {
        client.send(Request::Forget { slot }, &[]);
    }
    client.spawn_quiet(20, &shell("exit 5"));
    assert_eq!(client.ended(20), How::Code(5));
}
