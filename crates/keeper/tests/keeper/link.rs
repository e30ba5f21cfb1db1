//! The link itself: greetings, garbage, a worker that does not read, one that is gone.

use crate::kit::{self, Client, Heard, Thread, alone, command, greeted, null, shell, start};
use outpost_keeper::{
    Event, GATE_TARGET, KEPT, Keeper, MESSAGE_BYTES, OPENER_TARGET, OWN_SLOT, Request, Standing, What,
};
use outpost_sys::pidfd::How;
use outpost_sys::pipe::{pipe, write_byte};
use outpost_sys::{Errno, message, pidfd};
use std::os::fd::AsFd;

#[test]
fn a_greeting_is_answered_with_the_table_and_its_end() {
    let (mut client, keeper) = start();
    let table = client.hello();
    assert_eq!(table.len(), 1);
    assert_eq!((table[0].slot, table[0].pid, table[0].roles()), (OWN_SLOT, 0, vec![]));
    assert!(table[0].pidfd.is_none());
    client.send(Request::Stop, &[]);
    assert!(matches!(client.hear(), Heard::Closed));
    assert_eq!(keeper.join(), 0);
}

#[test]
fn a_worker_of_another_version_is_told_nothing() {
    let (mut client, keeper) = start();
    client.send(Request::Hello { version: 99 }, &[]);
    client.spawn_quiet(20, &shell("exit 1"));
    client.send(Request::Stop, &[]);
    assert!(matches!(client.hear(), Heard::Closed));
    assert_eq!(keeper.join(), 0);
}

#[test]
fn nothing_is_told_before_the_greeting_and_everything_with_it() {
    let (mut client, _keeper) = start();
    let (_input, output) = client.spawn_piped(20, &shell("echo done; exit 3"));
    let table = client.hello();
    assert_eq!((table.len(), table[1].standing), (2, Standing::Starting));
    assert_eq!(kit::read_to_end(&output), "done\n");
    assert_eq!(client.ended(20), How::Code(3));
}

#[test]
fn a_new_worker_is_told_the_whole_table_with_all_descriptors() {
    let (mut client, _keeper) = greeted();
    let (null, held) = (null(), pipe().unwrap());
    let given = [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
    for slot in 20..30 {
        let roles = [(slot as u8, held.read.as_fd()), (200, held.write.as_fd())];
        client.spawn(slot, &command("/bin/sleep", &["1000"]), &roles, &given);
        assert_eq!(client.told(slot).standing, Standing::Running);
    }
    for _worker in 0..3 {
        let table = client.hello();
        assert_eq!(
            table.iter().map(|told| told.slot).collect::<Vec<_>>(),
            [0, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
        );
        for told in &table[1..] {
            assert_eq!((told.standing, told.roles()), (Standing::Running, vec![told.slot as u8, 200]));
            assert!(pidfd::is_child(told.pidfd.as_ref().unwrap()));
        }
    }
}

#[test]
fn garbage_is_ignored_and_its_descriptors_are_closed() {
    let said = alone("link::garbage_is_ignored_and_its_descriptors_are_closed", || {
        let (mut client, _keeper) = greeted();
        let (null, before) = (null(), kit::open_descriptors());
        let mut random = kit::random(7);
        for round in 0..2000 {
            let len = 1 + (random() % 200) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if round % 2 == 0 {
                bytes.resize(MESSAGE_BYTES, 0);
            }
            // Hello, Adopt, Replace and Stop would be understood, as they should, and so would be to keep a descriptor.
            let keeps =
                matches!(Request::decode(&bytes), Some(Request::Hold { slot, .. }) if slot & KEPT != 0);
            if keeps || matches!(bytes[0], 1 | 4 | 9 | 10) {
                bytes[0] = 0;
            }
            let fds = [null.as_fd(); 3];
            client.send_bytes(&bytes, &fds[..(random() % 4) as usize]);
        }
        client.send_bytes(&[3; 100_000], &[null.as_fd()]);
        // Some of it were spawns with the wrong descriptors.
        for told in client.hello() {
            assert!(told.slot == OWN_SLOT || matches!(told.standing, Standing::Failed(_)), "{told:?}");
            client.send(Request::Forget { slot: told.slot }, &[]);
            client.send(Request::Release { slot: told.slot, role: 0 }, &[]);
        }
        for role in 0..255 {
            client.send(Request::Release { slot: OWN_SLOT, role }, &[]);
        }
        assert_eq!(client.hello().len(), 1);
        assert_eq!(kit::open_descriptors(), before);
        client.spawn_quiet(20, &shell("exit 4"));
        assert_eq!(client.ended(20), How::Code(4));
    });
    // A thousand wrong requests, and few lines of them.
    let complaints = said.map(|text| text.matches("outpost keeper: ").count());
    assert!(complaints.is_none_or(|count| (1..=8).contains(&count)), "{complaints:?}");
}

#[test]
fn a_worker_that_does_not_read_holds_nobody_up_and_hears_everything_later() {
    // More than the link takes, and less than the descriptors a process has without asking for more.
    const COUNT: u64 = 340;
    let (mut client, _keeper) = greeted();
    let (null, output) = (null(), pipe().unwrap());
    let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    for slot in 100..100 + COUNT {
        let code = slot % 7;
        client.spawn(slot, &shell(&format!("echo; exit {code}")), &[], &given);
    }
    drop(output.write);
    // Nothing of what the keeper says is read, and it goes on: those that it could tell of run.
    let early = kit::read(&output.read).len();
    assert!(early > 0);
    for slot in 100..100 + COUNT {
        assert_eq!(client.ended(slot), How::Code((slot % 7) as i32), "{slot}");
        client.send(Request::Forget { slot }, &[]);
    }
    assert_eq!((early + kit::read_to_end(&output.read).len()) as u64, COUNT);
    assert_eq!(client.hello().len(), 1);
}

#[test]
fn a_child_that_no_worker_has_heard_of_does_nothing() {
    alone("link::a_child_that_no_worker_has_heard_of_does_nothing", || {
        let (mut client, its_end) = Client::pair();
        message::send(&its_end, &Event::TableEnd.encode(), &[]).unwrap();
        let (output, null) = (pipe().unwrap(), null());
        let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
        client.spawn_with(20, &shell("echo born"), &[], &given, None);
        client.die();
        drop(output.write);
        let keeper = Keeper::embedded(its_end).unwrap();
        let keeper = Thread::start(move || keeper.run());
        assert_eq!(keeper.join(), 0);
        assert_eq!(kit::read_to_end(&output.read), "");
    });
}

#[test]
fn a_child_whose_keeper_has_ended_is_let_through_by_who_made_its_gate() {
    alone("link::a_child_whose_keeper_has_ended_is_let_through_by_who_made_its_gate", || {
        let (mut client, its_end) = Client::pair();
        message::send(&its_end, &Event::TableEnd.encode(), &[]).unwrap();
        let (output, gate, null) = (pipe().unwrap(), pipe().unwrap(), null());
        let given = [
            (null.as_fd(), 0),
            (output.write.as_fd(), 1),
            (null.as_fd(), 2),
            (gate.read.as_fd(), GATE_TARGET),
            (gate.write.as_fd(), OPENER_TARGET),
        ];
        client.spawn_with(20, &shell("echo born; ls -l /proc/self/fd | grep -c pipe:"), &[], &given, None);
        client.die();
        drop(output.write);
        let keeper = Keeper::embedded(its_end).unwrap();
        let keeper = Thread::start(move || keeper.run());
        assert_eq!(keeper.join(), 0);
        write_byte(&gate.write).unwrap();
        // Its output and grep's input are all the pipes there are.
        assert_eq!(kit::read_to_end(&output.read), "born\n1\n");
    });
}

#[test]
fn an_embedded_keeper_replaces_nothing() {
    let (mut client, _keeper) = greeted();
    let null = null();
    for what in [What::Worker, What::Keeper] {
        for (fds, errno) in [(&[null.as_fd()][..], Errno::OPNOTSUPP), (&[], Errno::BADF)] {
            client.send(Request::Replace(what), fds);
            let heard = client.hear();
            assert!(
                matches!(heard, Heard::Event(event) if event == Event::NotReplaced(what, errno)),
                "{heard:?}"
            );
        }
    }
}

#[test]
fn a_closed_link_ends_an_embedded_keeper() {
    let (client, keeper) = start();
    drop(client);
    assert_eq!(keeper.join(), 0);
}
