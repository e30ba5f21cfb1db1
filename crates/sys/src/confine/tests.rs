//! The checks of sandbox programs, and their execution.

use super::*;
use crate::pidfd::ExitCause;
use crate::spawn::{self, Child, Failure, SessionKind, Step};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

fn program() -> Program {
    let mut builder = Builder::default();
    let (tree, rules) = (builder.register().unwrap(), builder.register().unwrap());
    builder.hold_placeholder(c"/w", c".git");
    builder.set_network_ns(4);
    builder.fork_init(true, false);
    builder.write_file(c"/proc/self/uid_map", b"0 0 1");
    builder.make_private();
    builder.open_tree(c"/home", tree);
    builder.set_tree_attributes(tree, attr::READ_ONLY);
    builder.move_mount(tree, c"/home");
    builder.mount(c"tmpfs", c"/dev", attr::NO_SUID, c"size=64k");
    builder.make_link(c"/dev/fd", c"/proc/self/fd");
    builder.bind_over(c"/dev/null", c"/proc/slabinfo", attr::READ_ONLY);
    builder.create_ruleset(1, 2, 3, rules);
    builder.allow(rules, c"/", 4);
    builder.begin_command();
    builder.install_filter(&[0; 16]);
    builder.await_view();
    builder.enforce_ruleset(rules);
    builder.finish().unwrap()
}

#[test]
fn a_program_reads_back_as_written() {
    let program = program();
    assert_eq!(Program::from_bytes(program.as_bytes()).as_ref(), Some(&program));
    assert_eq!(program.describe(5).as_deref(), Some("OpenTree /home"));
    assert_eq!(program.describe(8).as_deref(), Some("Mount tmpfs /dev size=64k"));
    assert_eq!(program.describe(10).as_deref(), Some("BindOver /dev/null /proc/slabinfo"));
    assert_eq!(program.describe(99), None);
}

#[test]
fn a_truncated_program_is_refused_or_ends_with_an_operation() {
    let program = program();
    let (mut at, mut ends) = (MAGIC.len(), vec![MAGIC.len()]);
    for operation in program.operations() {
        at += HEAD_BYTES + operation.texts.iter().map(|text| text.len()).sum::<usize>();
        ends.push(at);
    }
    for len in 0..program.as_bytes().len() {
        let cut = Program::from_bytes(&program.as_bytes()[..len]);
        assert!(cut.is_none() || ends.contains(&len), "{len} bytes");
    }
}

#[test]
fn any_bytes_are_refused_or_sound() {
    let original = program().0;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for _ in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() % bytes.len();
            bytes[at] = next() as u8;
        }
        if next() % 4 == 0 {
            bytes.truncate(next() % bytes.len());
        }
        if let Some(program) = Program::from_bytes(&bytes) {
            assert!(program.operations().all(|operation| is_sound(&operation)));
            let _printed = program.to_string();
        }
        let noise: Vec<u8> = (0..next() % 64).map(|_| next() as u8).collect();
        let _refused = Program::from_bytes(&[&MAGIC[..], &noise].concat());
    }
}

#[test]
fn operations_of_another_process_are_refused() {
    let mut early = Builder::default();
    early.make_private();
    assert!(early.finish().is_none(), "mounts of the host's own namespace");
    let mut halfway = Builder::default();
    halfway.fork_init(false, false);
    assert!(halfway.finish().is_none(), "init without a command");
    let mut late = Builder::default();
    late.fork_init(false, false);
    late.begin_command();
    late.make_private();
    assert!(late.finish().is_none());
}

#[test]
fn nothing_may_follow_the_candidates() {
    let program = program().with_candidates(&[c"/bin/a", c"/usr/bin/a"]).unwrap();
    assert_eq!(Program::from_bytes(program.as_bytes()).as_ref(), Some(&program));
    assert!(program.with_candidates(&[c"/bin/b"]).is_none());
    assert!(Program::from_bytes(&[program.as_bytes(), &program.as_bytes()[4..]].concat()).is_none());
}

/// Appends operations without flags, as older workers did.
fn raw(builder: Builder, codes: &[Code]) -> Vec<u8> {
    let mut bytes = builder.bytes;
    for code in codes {
        builder::append(&mut bytes, *code, (NO_REGISTER, NO_REGISTER), 0, 0, [&[]; 3]);
    }
    bytes
}

/// A builder whose init is in new namespaces, for root and for other users.
fn entered() -> Builder {
    let mut builder = Builder::default();
    let user = crate::process::effective_uid() != 0;
    builder.fork_init(user, false);
    if user {
        let ids = crate::namespace::id_maps();
        builder.write_file(c"/proc/self/setgroups", b"deny");
        builder.write_file(c"/proc/self/uid_map", ids.user.as_bytes());
        builder.write_file(c"/proc/self/gid_map", ids.group.as_bytes());
    }
    builder.make_private();
    builder
}

#[test]
fn a_command_awaits_its_view_once() {
    let concurrent = |views: usize| {
        let mut builder = entered();
        builder.begin_command();
        (0..views).for_each(|_| builder.await_view());
        builder.finish().is_some()
    };
    assert!(!concurrent(0) && concurrent(1) && !concurrent(2));
    assert!(Program::from_bytes(&raw(Builder::default(), &[Code::AwaitView])).is_none());
}

/// Runs `exit 7` in a shell under the program.
fn exit_7(program: &Program) -> std::result::Result<ExitCause, Failure> {
    let null = crate::file::open("/dev/null", crate::file::Open::Read).unwrap();
    let descriptors = [0, 1, 2].map(|number| (null.as_fd(), number));
    let arguments = [c"sh", c"-c", c"exit 7"];
    let child =
        Child::new(spawn::Executable::Path(c"/bin/sh"), &arguments, &[], SessionKind::Session, &descriptors);
    let started = spawn::spawn(&Child { confinement: Some(program), ..child })?;
    poll(&mut [PollFd::new(&started.pidfd, PollFlags::IN)], None).unwrap();
    Ok(crate::pidfd::reap(&started.pidfd).unwrap().unwrap().cause)
}

#[test]
fn the_failed_operation_of_init_and_command_is_reported() {
    let finish = |mut builder: Builder, filter: &[u8]| {
        builder.begin_command();
        builder.no_new_privileges();
        builder.install_filter(filter);
        builder.await_view();
        builder.drop_capabilities();
        builder.finish().unwrap()
    };
    let failure = |program: &Program| {
        let failure = exit_7(program).unwrap_err();
        assert_eq!(failure.step, Step::Confine);
        (program.describe(failure.operation.into()).unwrap(), failure.errno)
    };
    let mut init = entered();
    let tree = init.register().unwrap();
    init.open_tree(c"/no/such/place", tree);
    // BPF: return SECCOMP_RET_ALLOW.
    let all = [[6, 0, 0, 0], 0x7fff_0000_u32.to_ne_bytes()].concat();
    assert_eq!(failure(&finish(init, &all)), ("OpenTree /no/such/place".into(), Errno::NOENT));
    assert_eq!(failure(&finish(entered(), &[0xff; 8])), ("InstallFilter".into(), Errno::INVAL));
    assert_eq!(exit_7(&finish(entered(), &all)), Ok(ExitCause::Code(7)));
}
