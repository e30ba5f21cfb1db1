//! Children: started, failed, ended, adopted.

use crate::kit::{self, Received, command, null, read_to_end, shell, subscribed};
use outpost_keeper::{FdRoles, FdTargets, LINK_VERSION, ProcessState, Request, SpawnOptions, Spec};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, Failure, Step};
use outpost_sys::{Errno, file, pidfd};
use std::os::fd::AsFd;

#[test]
fn a_child_runs_writes_and_ends_with_its_code() {
    let (mut client, _keeper) = subscribed();
    let (input, output) = client.spawn_piped(20, &shell("echo hello; read line; echo $line; exit 42"));
    let started = client.next_entry(20);
    assert_eq!((started.state, started.roles()), (ProcessState::Running, vec![]));
    let pidfd = started.pidfd.expect("a pidfd");
    assert!(pidfd::is_child(&pidfd));
    assert_eq!(kit::read(&output), "hello\n");
    kit::write(&input, "again\n");
    assert_eq!(read_to_end(&output), "again\n");
    let ended = client.next_entry(20);
    let ProcessState::Ended(exit) = ended.state else { panic!("{ended:?}") };
    assert_eq!((exit.cause, ended.pid, ended.pidfd.is_none()), (ExitCause::Code(42), started.pid, true));
    assert!(exit.rss_max_kb > 0);
    assert_eq!(pidfd::reap(&pidfd), Err(Errno::CHILD), "reaped");
}

#[test]
fn a_child_is_reported_before_it_executes() {
    let (mut client, _keeper) = subscribed();
    let (input, output, null) = (pipe().unwrap(), pipe().unwrap(), null());
    let given = [(input.read.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn_with(20, &shell("echo passed; read line; exit 6"), &[], &given, None);
    let Received::Entry(starting) = client.receive() else { panic!("not an entry") };
    assert_eq!((starting.slot, starting.state), (20, ProcessState::Starting));
    assert!(pidfd::is_child(starting.pidfd.expect("a pidfd")));
    assert_eq!(kit::read(&output.read), "passed\n");
    // The child lives until here, so it was not reaped before the checks.
    drop(input);
    assert_eq!(client.ended(20), ExitCause::Code(6));
}

#[test]
fn a_malformed_specification_starts_nothing() {
    let (mut client, _keeper) = subscribed();
    let null = null();
    let targets = FdTargets::new([0, 1, 2]).unwrap();
    client.send(
        Request::Spawn { slot: 21, options: SpawnOptions::default(), held: FdRoles::EMPTY, targets },
        &[null.as_fd(); 6],
    );
    let failure = Failure::at(Step::Prepare, Errno::INVAL);
    assert_eq!(client.next_entry(21).state, ProcessState::Failed(failure));
}

/// Starts a child that fails, and checks that it is reaped when the failure is reported.
fn failure(spec: &Spec) -> Failure {
    let (mut client, _keeper) = subscribed();
    let (_input, output) = client.spawn_piped(20, spec);
    let entry = client.next_entry(20);
    assert!(entry.pidfd.is_none());
    let ProcessState::Failed(failure) = entry.state else { panic!("{entry:?}") };
    assert_eq!(read_to_end(&output), "", "no process holds its output");
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 1, "it can be forgotten at once");
    failure
}

#[test]
fn a_program_that_is_missing_is_a_failure_and_no_exit_code() {
    assert_eq!(failure(&command("/missing", &[])), Failure::at(Step::Exec, Errno::NOENT));
    assert_eq!(failure(&command("/etc/passwd", &[])), Failure::at(Step::Exec, Errno::ACCESS));
    // 127 is an exit code like any other.
    let (mut client, _keeper) = subscribed();
    client.spawn_quiet(20, &shell("exit 127"));
    assert_eq!(client.ended(20), ExitCause::Code(127));
}

#[test]
fn a_missing_directory_is_reported() {
    let mut spec = command("/bin/true", &[]);
    spec.directory = Some(c"/missing".into());
    assert_eq!(failure(&spec), Failure::at(Step::Directory, Errno::NOENT));
}

#[test]
fn all_failures_among_many_starts_are_reported() {
    let (mut client, _keeper) = subscribed();
    for slot in 100..200 {
        let (bad, good) = (command("/missing", &[]), command("/bin/true", &[]));
        client.spawn_quiet(slot, if slot % 2 == 0 { &bad } else { &good });
    }
    for slot in 100..200 {
        match slot % 2 {
            0 => assert!(matches!(client.next_entry(slot).state, ProcessState::Failed(_)), "{slot}"),
            _ => assert_eq!(client.ended(slot), ExitCause::Code(0), "{slot}"),
        }
    }
}

#[test]
fn a_wrong_number_of_descriptors_starts_nothing() {
    let (mut client, _keeper) = subscribed();
    let (null, spec) = (null(), file::sealed_memory("spec", &shell("exit 1").encode()).unwrap());
    let targets = FdTargets::new([0, 1, 2]).unwrap();
    for (slot, count) in (20..).zip([0, 1, 2, 3, 4, 5, 7]) {
        let fds: Vec<_> = [spec.as_fd()].into_iter().chain([null.as_fd(); 7]).take(count).collect();
        client.send(
            Request::Spawn { slot, options: SpawnOptions::default(), held: FdRoles::EMPTY, targets },
            &fds,
        );
        let failure = Failure::at(Step::Prepare, Errno::MFILE);
        assert_eq!(client.next_entry(slot).state, ProcessState::Failed(failure), "{count}");
    }
}

#[test]
fn a_taken_or_invalid_slot_is_refused() {
    let (mut client, _keeper) = subscribed();
    let (input, output) = client.spawn_piped(20, &shell("echo first; read line"));
    assert_eq!(client.next_entry(20).state, ProcessState::Running);
    for slot in [0, 1, 15, 20, 1 << 63, u64::MAX] {
        client.spawn_quiet(slot, &shell("exit 9"));
        let null = null();
        let adopt = Request::Adopt { slot, pid: 1, state: ProcessState::Running, held: FdRoles::EMPTY };
        client.send(adopt, &[null.as_fd()]);
    }
    client.slots.retain(|slot| *slot == 20);
    let slots: Vec<u64> = client.hello().iter().map(|entry| entry.slot).collect();
    assert_eq!(slots, [0, 20]);
    drop(input);
    assert_eq!(client.ended(20), ExitCause::Code(1));
    assert_eq!(read_to_end(&output), "first\n");
}

#[test]
fn the_end_of_an_adopted_child_is_reported() {
    let (mut client, _keeper) = subscribed();
    let (null, held) = (null(), pipe().unwrap());
    let started = spawn::spawn(&Child::new(
        Executable::Path(c"/bin/sleep"),
        &[c"sleep", c"1000"],
        &[],
        spawn::SessionKind::Group,
        &[(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)],
    ))
    .unwrap();
    let roles = FdRoles::new([7]).unwrap();
    let adopt = Request::Adopt { slot: 20, pid: started.pid, state: ProcessState::Running, held: roles };
    client.send(adopt, &[started.pidfd.as_fd(), held.write.as_fd()]);
    let table = client.hello();
    assert_eq!((table[1].slot, table[1].pid, table[1].roles()), (20, started.pid, vec![7]));
    client.signal(20, Signal::TERM, false);
    assert_eq!(client.ended(20), ExitCause::Signal(15));
}

#[test]
fn the_exit_code_of_an_adopted_orphan_is_reported() {
    let (mut client, _keeper) = subscribed();
    let (input, output) = client.spawn_piped(20, &shell("exec 5<&0; (read line <&5; exit 33) & echo $!"));
    assert_eq!(client.ended(20), ExitCause::Code(0));
    let pid = kit::read(&output).trim().parse().unwrap();
    let pidfd = outpost_testkit::process(pid).unwrap();
    assert!(!pidfd::is_child(&pidfd));
    client.send(
        Request::Adopt { slot: 21, pid, state: ProcessState::Running, held: FdRoles::EMPTY },
        &[pidfd.as_fd()],
    );
    client.hello();
    drop(input);
    // Before Linux 6.15 the exit status is unknown after its new parent has reaped it.
    assert!(matches!(client.ended(21), ExitCause::Code(33) | ExitCause::Unknown));
}

#[test]
fn a_child_that_is_handed_over_without_its_pidfd_is_refused() {
    let (mut client, _keeper) = subscribed();
    for (slot, state) in [(20, ProcessState::Running), (21, ProcessState::Starting)] {
        client.send(Request::Adopt { slot, pid: kit::me(), state, held: FdRoles::EMPTY }, &[]);
        assert_eq!(client.next_entry(slot).state, ProcessState::Failed(outpost_keeper::NOT_ADOPTED));
        client.send(Request::Forget { slot }, &[]);
    }
    assert_eq!(client.hello().len(), 1, "both can be forgotten");
}

#[test]
fn refused_starts_do_not_grow_the_table_without_bound() {
    let (mut client, _keeper) = kit::start();
    let options = SpawnOptions::default();
    let refused = |slot| Request::Spawn { slot, options, held: FdRoles::EMPTY, targets: FdRoles::EMPTY };
    for slot in 100..20_000 {
        client.send(refused(slot), &[]);
    }
    client.send(Request::Hello { version: LINK_VERSION }, &[]);
    let mut slots = Vec::new();
    while let Received::Entry(entry) = client.receive() {
        slots.push(entry.slot);
    }
    assert_eq!(slots.len(), 17 * 1024);
    // Forgetting them makes room.
    for slot in slots {
        client.send(Request::Forget { slot }, &[]);
    }
    client.spawn_quiet(20, &shell("exit 5"));
    assert_eq!(client.ended(20), ExitCause::Code(5));
}
