//! epoll, eventfd, timerfd and poll helpers.

use crate::kit::{self, TIMEOUT};
use outpost_sys::Errno;
use outpost_sys::epoll::{Epoll, Interest, Ready, Timer, Waker, is_readable, wait_readable};
use outpost_sys::message;
use outpost_sys::pipe::{Pipe, pipe};
use std::time::{Duration, Instant};

fn wait(set: &Epoll, timeout: Duration) -> Vec<Ready> {
    let mut ready = vec![Ready { token: 99, readable: true, writable: true, hung_up: true }];
    set.wait(&mut ready, Some(timeout)).unwrap();
    ready
}

/// Token, readable, writable and hung-up of the only ready descriptor.
fn only(set: &Epoll) -> (u64, bool, bool, bool) {
    let ready = wait(set, TIMEOUT);
    assert_eq!(ready.len(), 1, "{ready:?}");
    (ready[0].token, ready[0].readable, ready[0].writable, ready[0].hung_up)
}

#[test]
fn readiness_has_its_token_and_stays_until_it_is_consumed() {
    let set = Epoll::new().unwrap();
    let Pipe { read, write } = pipe().unwrap();
    set.add(&read, u64::MAX, Interest::Read).unwrap();
    assert!(wait(&set, Duration::ZERO).is_empty());
    kit::write_all(&write, b"x");
    assert_eq!(only(&set), (u64::MAX, true, false, false));
    assert_eq!(only(&set), (u64::MAX, true, false, false));
    drop(write);
    // What was written before EOF is still readable.
    assert_eq!(only(&set), (u64::MAX, true, false, true));
    assert_eq!(kit::read_to_end(&read), b"x");
    assert_eq!(only(&set), (u64::MAX, false, false, true));
    set.remove(&read).unwrap();
    assert!(wait(&set, Duration::ZERO).is_empty());
}

#[test]
fn interest_can_be_changed_and_a_hang_up_is_always_reported() {
    let set = Epoll::new().unwrap();
    let (ours, theirs) = message::pair().unwrap();
    set.add(&ours, 1, Interest::Write).unwrap();
    assert_eq!(set.add(&ours, 1, Interest::Write), Err(Errno::EXIST));
    assert_eq!(only(&set), (1, false, true, false));
    message::send(&theirs, b"x", &[]).unwrap();
    set.modify(&ours, 2, Interest::ReadWrite).unwrap();
    assert_eq!(only(&set), (2, true, true, false));
    set.modify(&ours, 3, Interest::Nothing).unwrap();
    assert!(wait(&set, Duration::ZERO).is_empty());
    drop(theirs);
    assert_eq!(only(&set), (3, false, false, true));
    assert_eq!(set.modify(Waker::new().unwrap(), 4, Interest::Read), Err(Errno::NOENT));
}

#[test]
fn more_than_one_batch_of_descriptors_is_reported_in_turn() {
    let set = Epoll::new().unwrap();
    let wakers: Vec<Waker> = (0..100).map(|_| Waker::new().unwrap()).collect();
    for (token, waker) in wakers.iter().enumerate() {
        set.add(waker, token as u64, Interest::Read).unwrap();
        waker.wake();
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < wakers.len() {
        let ready = wait(&set, Duration::ZERO);
        assert!(!ready.is_empty());
        for one in ready {
            wakers[usize::try_from(one.token).unwrap()].clear();
            assert!(seen.insert(one.token));
        }
    }
    assert!(wait(&set, Duration::ZERO).is_empty());
}

#[test]
fn another_thread_wakes_the_set_and_wake_ups_add_up_to_one() {
    let (set, waker) = (Epoll::new().unwrap(), std::sync::Arc::new(Waker::new().unwrap()));
    set.add(&*waker, 5, Interest::Read).unwrap();
    let other = std::sync::Arc::clone(&waker);
    let thread = std::thread::spawn(move || (0..1000).for_each(|_| other.wake()));
    // Without a timeout, and with one that exceeds the range of milliseconds.
    let mut ready = Vec::new();
    set.wait(&mut ready, None).unwrap();
    assert_eq!(ready[0].token, 5);
    set.wait(&mut ready, Some(Duration::MAX)).unwrap();
    assert_eq!(ready[0].token, 5);
    thread.join().unwrap();
    waker.clear();
    assert!(wait(&set, Duration::ZERO).is_empty());
    waker.clear();
}

#[test]
fn a_timer_fires_once_and_not_early() {
    let (set, timer) = (Epoll::new().unwrap(), Timer::new().unwrap());
    set.add(&timer, 6, Interest::Read).unwrap();
    assert!(wait(&set, Duration::ZERO).is_empty());
    for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(5)] {
        let begin = Instant::now();
        timer.set(delay).unwrap();
        assert_eq!(only(&set), (6, true, false, false));
        assert!(begin.elapsed() >= delay);
        timer.clear();
        assert!(wait(&set, Duration::ZERO).is_empty());
    }
    // A later setting replaces an earlier one, also one that has expired.
    timer.set(Duration::ZERO).unwrap();
    assert_eq!(only(&set).0, 6);
    timer.set(Duration::MAX).unwrap();
    assert!(wait(&set, Duration::ZERO).is_empty());
    timer.set(Duration::ZERO).unwrap();
    assert_eq!(only(&set).0, 6);
}

#[test]
fn a_single_descriptor_can_be_waited_for_with_a_limit() {
    let waker = Waker::new().unwrap();
    assert!(!is_readable(&waker));
    let (begin, timeout) = (Instant::now(), Duration::from_millis(5));
    assert_eq!(wait_readable(&waker, timeout), Ok(false));
    assert!(begin.elapsed() >= timeout);
    waker.wake();
    assert!(is_readable(&waker));
    assert_eq!(wait_readable(&waker, Duration::ZERO), Ok(true));
    assert_eq!(wait_readable(&waker, TIMEOUT), Ok(true));
    let Pipe { read, write } = pipe().unwrap();
    drop(write);
    assert!(is_readable(&read), "EOF is readable");
}
