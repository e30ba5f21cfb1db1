//! signalfd, and the names of signals.

use crate::kit::readable;
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::{Signal, SignalFd};
use outpost_sys::{Errno, epoll};
use std::time::Duration;

#[test]
fn a_blocked_signal_is_read_from_the_descriptor() {
    let broken = Signal::from_name("SIGPIPE").unwrap();
    let signals = SignalFd::new(&[broken, Signal::TERM]).unwrap();
    assert_eq!(signals.next(), None);
    let Pipe { read, write } = pipe().unwrap();
    drop(read);
    // SIGPIPE is delivered to the writing thread, so no other test thread can receive it.
    assert_eq!(rustix::io::write(&write, b"x"), Err(Errno::PIPE));
    assert!(readable(&signals));
    assert_eq!(signals.next(), Some(broken));
    assert_eq!(signals.next(), None);
    let set = epoll::Epoll::new().unwrap();
    set.add(&signals, 1, epoll::Interest::Read).unwrap();
    let mut ready = Vec::new();
    set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert!(ready.is_empty());
}

#[test]
fn every_number_has_one_name_and_every_name_one_number() {
    for number in 1..=31 {
        let signal = Signal::from_number(number).unwrap();
        let name = signal.name().unwrap();
        assert_eq!(Signal::from_name(name), Some(signal));
        assert_eq!(Signal::from_name(&format!("sig{}", name.to_lowercase())), Some(signal));
        assert_eq!(format!("{signal:?}"), format!("SIG{name}"));
    }
    assert_eq!(Signal::from_number(64).unwrap().name(), None);
    assert_eq!([0, 65, -1].map(Signal::from_number), [None; 3]);
    assert_eq!(["", "SIG", "9", "SIGSIGKILL"].map(Signal::from_name), [None; 4]);
}
