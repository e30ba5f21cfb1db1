//! The link: the table, malformed messages, a worker that does not receive, a worker that is gone.

use crate::kit::{self, Client, Received, Thread, alone, command, null, shell, start, subscribed};
use outpost_keeper::{
    Component, Event, FDS_ONLY, Keeper, MESSAGE_BYTES_MAX, OWN_SLOT, ProcessState, Request,
};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::{pipe, write_byte};
use outpost_sys::{Errno, message, pidfd};
use std::os::fd::AsFd;

#[test]
fn hello_is_answered_with_the_table_and_its_end() {
    let (mut client, keeper) = start();
    let table = client.hello();
    assert_eq!(table.len(), 1);
    assert_eq!((table[0].slot, table[0].pid, table[0].roles()), (OWN_SLOT, 0, vec![]));
    assert!(table[0].pidfd.is_none());
    client.send(Request::Stop, &[]);
    assert!(matches!(client.receive(), Received::Closed));
    assert_eq!(keeper.join(), 0);
}

#[test]
fn a_worker_of_another_version_gets_no_event() {
    let (mut client, keeper) = start();
    client.send(Request::Hello { version: 99 }, &[]);
    client.spawn_quiet(20, &shell("exit 1"));
    client.send(Request::Stop, &[]);
    assert!(matches!(client.receive(), Received::Closed));
    assert_eq!(keeper.join(), 0);
}

#[test]
fn no_event_is_sent_before_hello_and_all_after_it() {
    let (mut client, _keeper) = start();
    let (_input, output) = client.spawn_piped(20, &shell("echo done; exit 3"));
    let table = client.hello();
    assert_eq!((table.len(), table[1].state), (2, ProcessState::Starting));
    assert_eq!(kit::read_to_end(&output), "done\n");
    assert_eq!(client.ended(20), ExitCause::Code(3));
}

#[test]
fn a_new_worker_gets_the_whole_table_with_all_descriptors() {
    let (mut client, _keeper) = subscribed();
    let (null, held) = (null(), pipe().unwrap());
    let given = [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
    for slot in 20..30 {
        let roles = [(slot as u8, held.read.as_fd()), (200, held.write.as_fd())];
        client.spawn(slot, &command("/bin/sleep", &["1000"]), &roles, &given);
        assert_eq!(client.next_entry(slot).state, ProcessState::Running);
    }
    for _worker in 0..3 {
        let table = client.hello();
        assert_eq!(
            table.iter().map(|entry| entry.slot).collect::<Vec<_>>(),
            [0, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
        );
        for entry in &table[1..] {
            assert_eq!((entry.state, entry.roles()), (ProcessState::Running, vec![entry.slot as u8, 200]));
            assert!(pidfd::is_child(entry.pidfd.as_ref().unwrap()));
        }
    }
}

#[test]
fn malformed_messages_are_ignored_and_their_descriptors_are_closed() {
    let output = alone("link::malformed_messages_are_ignored_and_their_descriptors_are_closed", || {
        let (mut client, _keeper) = subscribed();
        let (null, before) = (null(), kit::open_descriptors());
        let mut random = kit::random(7);
        for round in 0..2000 {
            let len = 1 + (random() % 200) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if round % 2 == 0 {
                bytes.resize(MESSAGE_BYTES_MAX, 0);
            }
            // Well-formed requests of these kinds would have an effect.
            let has_effect = match Request::decode(&bytes) {
                Some(Request::Hold { slot, .. }) => slot & FDS_ONLY != 0,
                Some(Request::Hello { .. } | Request::Adopt { .. } | Request::Replace(_) | Request::Stop) => {
                    true
                }
                _ => false,
            };
            if has_effect {
                bytes[0] = 0;
            }
            let fds = [null.as_fd(); 3];
            client.send_bytes(&bytes, &fds[..(random() % 4) as usize]);
        }
        client.send_bytes(&[3; 100_000], &[null.as_fd()]);
        // Some of them were spawn requests with too few descriptors.
        for entry in client.hello() {
            assert!(entry.slot == OWN_SLOT || matches!(entry.state, ProcessState::Failed(_)), "{entry:?}");
            client.send(Request::Forget { slot: entry.slot }, &[]);
            client.send(Request::Release { slot: entry.slot, role: 0 }, &[]);
        }
        for role in 0..255 {
            client.send(Request::Release { slot: OWN_SLOT, role }, &[]);
        }
        assert_eq!(client.hello().len(), 1);
        assert_eq!(kit::open_descriptors(), before);
        client.spawn_quiet(20, &shell("exit 4"));
        assert_eq!(client.ended(20), ExitCause::Code(4));
    });
    // The log of a thousand malformed messages has few lines.
    let lines = output.map(|text| text.matches("outpost keeper: ").count());
    assert!(lines.is_none_or(|count| (1..=8).contains(&count)), "{lines:?}");
}

#[test]
fn a_worker_that_does_not_receive_delays_no_child_and_gets_all_events_later() {
    // More than fit into the link, and fewer than the default limit on descriptors.
    const COUNT: u64 = 340;
    let (mut client, _keeper) = subscribed();
    let (null, output) = (null(), pipe().unwrap());
    let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    for slot in 100..100 + COUNT {
        let code = slot % 7;
        client.spawn(slot, &shell(&format!("echo; exit {code}")), &[], &given);
    }
    drop(output.write);
    // The keeper continues although no event is received. The children that it could report run.
    let early = kit::read(&output.read).len();
    assert!(early > 0);
    for slot in 100..100 + COUNT {
        assert_eq!(client.ended(slot), ExitCause::Code((slot % 7) as i32), "{slot}");
        client.send(Request::Forget { slot }, &[]);
    }
    assert_eq!((early + kit::read_to_end(&output.read).len()) as u64, COUNT);
    assert_eq!(client.hello().len(), 1);
}

#[test]
fn a_child_that_no_worker_knows_does_nothing() {
    alone("link::a_child_that_no_worker_knows_does_nothing", || {
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
fn the_worker_can_open_the_exec_gate_after_the_end_of_the_keeper() {
    alone("link::the_worker_can_open_the_exec_gate_after_the_end_of_the_keeper", || {
        let (mut client, its_end) = Client::pair();
        message::send(&its_end, &Event::TableEnd.encode(), &[]).unwrap();
        let (output, gate, null) = (pipe().unwrap(), pipe().unwrap(), null());
        let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
        let script = "echo born; ls -l /proc/self/fd | grep -c pipe:";
        client.spawn_gated(20, &shell(script), &[], &given, None, &gate);
        client.die();
        drop(output.write);
        let keeper = Keeper::embedded(its_end).unwrap();
        let keeper = Thread::start(move || keeper.run());
        assert_eq!(keeper.join(), 0);
        write_byte(&gate.write).unwrap();
        // The pipes are its output and grep's input.
        assert_eq!(kit::read_to_end(&output.read), "born\n1\n");
    });
}

#[test]
fn an_embedded_keeper_replaces_nothing() {
    let (mut client, _keeper) = subscribed();
    let null = null();
    for component in [Component::Worker, Component::Keeper] {
        for (fds, errno) in [(&[null.as_fd()][..], Errno::OPNOTSUPP), (&[], Errno::BADF)] {
            client.send(Request::Replace(component), fds);
            let received = client.receive();
            assert!(
                matches!(received, Received::Event(event) if event == Event::NotReplaced(component, errno)),
                "{received:?}"
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
