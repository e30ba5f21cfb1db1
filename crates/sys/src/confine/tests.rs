//! Programs that are no programs, and those that are.

use super::*;

fn program() -> Program {
    let mut builder = Builder::default();
    let (tree, rules) = (builder.register().unwrap(), builder.register().unwrap());
    builder.lease(c"/w", c".git");
    builder.join_network(4);
    builder.enter(true, false);
    builder.write(c"/proc/self/uid_map", b"0 0 1");
    builder.private();
    builder.take(c"/home", tree);
    builder.restrict(tree, attr::READ_ONLY);
    builder.place(tree, c"/home");
    builder.new_mount(c"tmpfs", c"/dev", attr::NO_SUID, c"size=64k");
    builder.make_link(c"/dev/fd", c"/proc/self/fd");
    builder.cover(c"/dev/null", c"/proc/slabinfo", attr::READ_ONLY);
    builder.command();
    builder.ruleset(1, 2, 3, rules);
    builder.allow(rules, c"/", 4);
    builder.enforce(rules);
    builder.filter(&[0; 16]);
    builder.finish().unwrap()
}

#[test]
fn a_program_reads_back_as_written() {
    let program = program();
    assert_eq!(Program::from_bytes(program.as_bytes()).as_ref(), Some(&program));
    assert_eq!(program.describe(5).as_deref(), Some("Take /home"));
    assert_eq!(program.describe(8).as_deref(), Some("New tmpfs /dev size=64k"));
    assert_eq!(program.describe(10).as_deref(), Some("Cover /dev/null /proc/slabinfo"));
    assert_eq!(program.describe(99), None);
}

#[test]
fn a_program_cut_anywhere_is_refused_or_ends_with_an_operation() {
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
fn operations_out_of_their_process_are_refused() {
    let mut early = Builder::default();
    early.private();
    assert!(early.finish().is_none(), "mounts of the host's own namespace");
    let mut halfway = Builder::default();
    halfway.enter(false, false);
    assert!(halfway.finish().is_none(), "init without a command");
    let mut late = Builder::default();
    late.enter(false, false);
    late.command();
    late.private();
    assert!(late.finish().is_none());
}

#[test]
fn nothing_follows_the_candidates() {
    let program = program().with_candidates(&[c"/bin/a", c"/usr/bin/a"]).unwrap();
    assert_eq!(Program::from_bytes(program.as_bytes()).as_ref(), Some(&program));
    assert!(program.with_candidates(&[c"/bin/b"]).is_none());
    assert!(Program::from_bytes(&[program.as_bytes(), &program.as_bytes()[4..]].concat()).is_none());
}
