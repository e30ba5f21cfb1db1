//! Message sockets: whole messages with descriptors.

use crate::kit::{self, alone};
use outpost_sys::file;
use outpost_sys::message::{FDS_MAX, pair, peer_uid, receive, send};
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::{Errno, limits};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

fn receive_all(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let (mut buffer, mut fds) = ([0; 1024], Vec::new());
    let count = receive(socket, &mut buffer, &mut fds).unwrap().unwrap();
    (buffer[..count].to_vec(), fds)
}

#[test]
fn as_many_descriptors_as_were_sent_arrive_and_close_on_exec() {
    let (ours, theirs) = pair().unwrap();
    for count in [0, 1, FDS_MAX] {
        let Pipe { read, write } = pipe().unwrap();
        // The sender's close-on-exec flag does not apply to the receiver.
        file::set_inherited(&write, true).unwrap();
        send(&ours, b"message", &vec![write.as_fd(); count]).unwrap();
        drop(write);
        let (bytes, fds) = receive_all(&theirs);
        assert_eq!((&bytes[..], fds.len()), (&b"message"[..], count));
        for fd in &fds {
            assert_eq!(rustix::io::fcntl_getfd(fd).unwrap(), rustix::io::FdFlags::CLOEXEC);
            kit::write_all(fd, b".");
        }
        drop(fds);
        assert_eq!(kit::read_to_end(read).len(), count);
    }
}

#[test]
fn too_many_descriptors_and_empty_messages_are_refused() {
    let (ours, theirs) = pair().unwrap();
    let null = kit::null();
    assert_eq!(send(&ours, b"x", &[null.as_fd(); FDS_MAX + 1]), Err(Errno::INVAL));
    // The receiver would take it for EOF.
    assert_eq!(send(&ours, b"", &[null.as_fd()]), Err(Errno::INVAL));
    assert_eq!(receive(&theirs, &mut [0; 8], &mut Vec::new()), Err(Errno::AGAIN));
}

#[test]
fn eof_follows_the_last_message_of_a_closed_peer() {
    let (ours, theirs) = pair().unwrap();
    send(&ours, b"last", &[]).unwrap();
    drop(ours);
    assert_eq!(receive_all(&theirs).0, b"last");
    assert_eq!(receive(&theirs, &mut [0; 8], &mut Vec::new()), Ok(None));
    // No SIGPIPE kills the sender.
    assert_eq!(send(&theirs, b"answer", &[]), Err(Errno::PIPE));
}

#[test]
fn messages_keep_their_borders() {
    let (ours, theirs) = pair().unwrap();
    let null = kit::null();
    for length in 1..=50 {
        send(&ours, &vec![length; usize::from(length)], &vec![null.as_fd(); usize::from(length % 3)])
            .unwrap();
    }
    for length in 1..=50u8 {
        let (bytes, fds) = receive_all(&theirs);
        assert_eq!((bytes, fds.len()), (vec![length; usize::from(length)], usize::from(length % 3)));
    }
}

#[test]
fn a_full_queue_returns_again_and_accepts_more_later() {
    let (ours, theirs) = pair().unwrap();
    let message = [7; 1000];
    let mut sent = 0;
    let full = loop {
        match send(&ours, &message, &[]) {
            Ok(()) => sent += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::AGAIN);
    for _ in 0..sent {
        assert_eq!(receive_all(&theirs).0, message);
    }
    assert_eq!(
        receive(&theirs, &mut [0; 8], &mut Vec::new()),
        Err(Errno::AGAIN),
        "the refused one was not sent"
    );
    send(&ours, &message, &[]).unwrap();
}

#[test]
fn a_message_longer_than_the_buffer_is_refused_and_does_not_run_into_the_next() {
    let (ours, theirs) = pair().unwrap();
    send(&ours, b"0123456789", &[]).unwrap();
    send(&ours, b"next", &[]).unwrap();
    let (mut buffer, mut fds) = ([0; 9], Vec::new());
    assert_eq!(receive(&theirs, &mut buffer, &mut fds), Err(Errno::MSGSIZE));
    assert_eq!(receive(&theirs, &mut buffer, &mut fds), Ok(Some(4)));
    assert_eq!(&buffer[..4], b"next");
}

#[test]
fn descriptors_beyond_those_we_take_are_closed_and_the_message_arrives() {
    alone("message::descriptors_beyond_those_we_take_are_closed_and_the_message_arrives", &[], || {
        let (ours, theirs) = pair().unwrap();
        let null = kit::null();
        let open = || file::names(file::open("/proc/self/fd", file::Open::Directory).unwrap()).unwrap().len();
        let before = open();
        let fds = [null.as_fd(); FDS_MAX * 2];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX * 2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&ours, &[IoSlice::new(b"many")], &mut ancillary, SendFlags::empty()).unwrap();
        let mut received = Vec::new();
        assert_eq!(receive(&theirs, &mut [0; 8], &mut received), Ok(Some(4)));
        // The alignment of the buffer leaves room for a few more than FDS_MAX.
        assert!((FDS_MAX..fds.len()).contains(&received.len()), "{}", received.len());
        received.clear();
        assert_eq!(open(), before);
    });
}

#[test]
fn a_full_descriptor_table_loses_descriptors_and_not_the_message() {
    alone("message::a_full_descriptor_table_loses_descriptors_and_not_the_message", &[], || {
        let (ours, theirs) = pair().unwrap();
        let null = kit::null();
        send(&ours, b"four", &[null.as_fd(); 4]).unwrap();
        let before = limits::descriptors();
        // The lowest free number determines how many fit.
        let next = u64::try_from(kit::null().as_raw_fd()).unwrap();
        let small = Rlimit { current: Some(next + 2), maximum: before.hard };
        setrlimit(Resource::Nofile, small).unwrap();
        let mut received = Vec::new();
        assert_eq!(receive(&theirs, &mut [0; 8], &mut received), Ok(Some(4)));
        assert_eq!(received.len(), 2);
    });
}

#[test]
fn a_peer_is_identified_by_its_uid() {
    let (ours, _theirs) = pair().unwrap();
    assert_eq!(peer_uid(&ours), Ok(outpost_sys::process::effective_uid()));
}
