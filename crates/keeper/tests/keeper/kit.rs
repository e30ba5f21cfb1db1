//! A worker as the tests need it: it speaks the protocol, waits with a deadline, and leaves nothing behind.

use outpost_keeper::{
    Event, Keeper, LINK_VERSION, MESSAGE_BYTES, OWN_SLOT, Request, Roles, Spec, Standing, Targets,
};
use outpost_sys::epoll::{Epoll, Interest, wait_readable};
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::Standing as Place;
use outpost_sys::{Errno, message, pidfd, procfs};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// No test waits longer for anything; a slow machine under load is still much faster.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the keeper said of an entry.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) slot: u64,
    pub(crate) pid: i32,
    pub(crate) standing: Standing,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) held: Vec<(u8, OwnedFd)>,
}

impl Told {
    pub(crate) fn take(&mut self, role: u8) -> OwnedFd {
        let at = self.held.iter().position(|(held, _)| *held == role).expect("held");
        self.held.remove(at).1
    }

    pub(crate) fn roles(&self) -> Vec<u8> {
        self.held.iter().map(|(role, _)| *role).collect()
    }
}

/// What came over the link.
#[derive(Debug)]
pub(crate) enum Heard {
    Entry(Told),
    Event(Event),
    Closed,
}

/// A keeper in a thread, which sends what `run` makes of it when it has ended.
pub(crate) struct Thread<T> {
    ended: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Thread<T> {
    pub(crate) fn start(run: impl FnOnce() -> T + Send + 'static) -> Thread<T> {
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || end.send(run()));
        Thread { ended }
    }

    pub(crate) fn join(&self) -> T {
        self.ended.recv_timeout(PATIENCE).expect("the keeper hangs or has panicked")
    }
}

/// The worker's end of a link.
pub(crate) struct Client {
    link: OwnedFd,
    /// Entries heard while waiting for others.
    heard: VecDeque<Told>,
    /// Those that may be running.
    pub(crate) slots: BTreeSet<u64>,
}

/// A client and the keeper it talks to.
pub(crate) fn start() -> (Client, Thread<u8>) {
    let (client, its_end) = Client::pair();
    let keeper = Keeper::embedded(its_end).unwrap();
    let thread = Thread::start(move || keeper.run());
    (client, thread)
}

/// One that has said hello to an empty keeper.
pub(crate) fn greeted() -> (Client, Thread<u8>) {
    let (mut client, keeper) = start();
    let table = client.hello();
    assert_eq!(table.len(), 1, "{table:?}");
    (client, keeper)
}

impl Client {
    pub(crate) fn pair() -> (Client, OwnedFd) {
        let (link, its_end) = message::pair().unwrap();
        (Client { link, heard: VecDeque::new(), slots: BTreeSet::new() }, its_end)
    }

    /// Dies: what it asked for is no longer its business.
    pub(crate) fn die(mut self) {
        self.slots.clear();
    }

    pub(crate) fn send(&mut self, request: Request, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&request.encode(), fds);
    }

    /// Waits for room. That the keeper is gone is seen when it is listened to.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match message::send(&self.link, bytes, fds) {
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => return,
                Err(Errno::AGAIN) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "the keeper does not read");
                    let room = Epoll::new().unwrap();
                    room.add(&self.link, 0, Interest::Write).unwrap();
                    room.wait(&mut Vec::new(), Some(left)).unwrap();
                }
                // Without privilege no more descriptors may be under way than may be open. Nothing tells when they are fewer.
                Err(Errno::TOOMANYREFS) if Instant::now() < deadline => outpost_testkit::pause(),
                Err(errno) => panic!("send: {errno}"),
            }
        }
    }

    /// The next message; `None` when there is none within `patience`.
    pub(crate) fn hear_within(&mut self, patience: Duration) -> Option<Heard> {
        let (mut bytes, mut fds) = ([0; MESSAGE_BYTES], Vec::new());
        if !wait_readable(&self.link, patience).unwrap() {
            return None;
        }
        let len = match message::receive(&self.link, &mut bytes, &mut fds) {
            Ok(Some(len)) => len,
            // What the keeper did not read when it ended makes it the second.
            Ok(None) | Err(Errno::CONNRESET) => return Some(Heard::Closed),
            Err(errno) => panic!("receive: {errno}"),
        };
        let mut fds = fds.into_iter();
        Some(match Event::decode(&bytes[..len]).expect("an event") {
            Event::Entry { slot, pid, standing, pidfd, held } => {
                assert_eq!(fds.len(), usize::from(pidfd) + held.len(), "descriptors of {slot}");
                if let Standing::Ended(_) | Standing::Failed(_) = standing {
                    self.slots.remove(&slot);
                }
                let pidfd = if pidfd { fds.next() } else { None };
                Heard::Entry(Told { slot, pid, standing, pidfd, held: held.iter().zip(fds).collect() })
            }
            event => Heard::Event(event),
        })
    }

    pub(crate) fn hear(&mut self) -> Heard {
        self.hear_within(PATIENCE).expect("the keeper says nothing")
    }

    /// The next that is said of `slot`, but for that it is starting.
    pub(crate) fn told(&mut self, slot: u64) -> Told {
        if let Some(at) = self.heard.iter().position(|told| told.slot == slot) {
            return self.heard.remove(at).unwrap();
        }
        loop {
            match self.hear() {
                Heard::Entry(told) if told.standing == Standing::Starting => {
                    assert!(told.pidfd.is_some(), "{told:?}")
                }
                Heard::Entry(told) if told.slot == slot => return told,
                Heard::Entry(told) => self.heard.push_back(told),
                other => panic!("{other:?}"),
            }
        }
    }

    /// How `slot` ends; it may be told before that it runs.
    pub(crate) fn ended(&mut self, slot: u64) -> pidfd::How {
        loop {
            match self.told(slot).standing {
                Standing::Ended(exit) => return exit.how,
                Standing::Waiting | Standing::Starting | Standing::Running => {}
                Standing::Failed(failure) => panic!("{failure:?}"),
            }
        }
    }

    /// As a new worker: the whole table. What was said before that does not count.
    pub(crate) fn hello(&mut self) -> Vec<Told> {
        self.send(Request::Hello { version: LINK_VERSION }, &[]);
        let mut table = Vec::new();
        loop {
            match self.hear() {
                Heard::Entry(told) => {
                    table.retain(|before: &Told| before.slot != told.slot);
                    table.push(told);
                }
                Heard::Event(Event::TableEnd) => break,
                other => panic!("{other:?}"),
            }
        }
        table.sort_by_key(|told| told.slot);
        assert!(table.iter().any(|told| told.slot == OWN_SLOT));
        table
    }

    /// Asks for a child with these to hold and these as its own.
    pub(crate) fn spawn(
        &mut self,
        slot: u64,
        spec: &Spec,
        held: &[(u8, BorrowedFd<'_>)],
        given: &[(BorrowedFd<'_>, u8)],
    ) {
        self.spawn_with(slot, spec, held, given, None);
    }

    pub(crate) fn spawn_with(
        &mut self,
        slot: u64,
        spec: &Spec,
        held: &[(u8, BorrowedFd<'_>)],
        given: &[(BorrowedFd<'_>, u8)],
        cgroup: Option<&OwnedFd>,
    ) {
        let bytes = file::sealed_memory("spec", &spec.encode()).unwrap();
        let mut fds = vec![bytes.as_fd()];
        fds.extend(cgroup.map(AsFd::as_fd));
        fds.extend(held.iter().map(|(_, fd)| *fd));
        fds.extend(given.iter().map(|(fd, _)| *fd));
        let targets = Targets::new(given.iter().map(|(_, target)| *target)).unwrap();
        let held = Roles::new(held.iter().map(|(role, _)| *role)).unwrap();
        self.slots.insert(slot);
        self.send(Request::Spawn { slot, cgroup: cgroup.is_some(), held, targets }, &fds);
    }

    /// With a pipe as input and one as output; returns the other ends.
    pub(crate) fn spawn_piped(&mut self, slot: u64, spec: &Spec) -> (OwnedFd, OwnedFd) {
        let (input, output): (Pipe, Pipe) = (pipe().unwrap(), pipe().unwrap());
        let null = null();
        self.spawn(slot, spec, &[], &[(input.read.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)]);
        (input.write, output.read)
    }

    pub(crate) fn spawn_quiet(&mut self, slot: u64, spec: &Spec) {
        let null = null();
        self.spawn(slot, spec, &[], &[(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)]);
    }

    pub(crate) fn signal(&mut self, slot: u64, signal: Signal, group: bool) {
        self.send(Request::Signal { slot, signal, group }, &[]);
    }
}

/// Ends what a test that failed has left.
impl Drop for Client {
    fn drop(&mut self) {
        for slot in self.slots.clone() {
            self.signal(slot, Signal::KILL, true);
        }
        while !self.slots.is_empty() {
            match self.hear_within(Duration::from_secs(5)) {
                None | Some(Heard::Closed) => break,
                Some(_) => {}
            }
        }
    }
}

pub(crate) fn command(program: &str, arguments: &[&str]) -> Spec {
    let string = |text: &str| CString::new(text).unwrap();
    Spec {
        program: string(program),
        arguments: [program].iter().chain(arguments).map(|text| string(text)).collect(),
        environment: vec![c"PATH=/usr/local/bin:/usr/bin:/bin".into()],
        directory: None,
        standing: Place::Group,
        limits: Vec::new(),
        umask: None,
        oom_score: None,
        confinement: None,
        credentials: None,
    }
}

pub(crate) fn shell(script: &str) -> Spec {
    command("/bin/sh", &["-c", script])
}

/// Numbers that look random and are the same in every run.
pub(crate) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 8
    }
}

pub(crate) fn null() -> OwnedFd {
    file::open("/dev/null", Open::ReadWrite).unwrap()
}

pub(crate) fn write(fd: &OwnedFd, text: &str) {
    File::from(fd.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
}

/// One read of what is or will be there; empty at the end.
pub(crate) fn read(fd: &OwnedFd) -> String {
    assert!(wait_readable(fd, PATIENCE).unwrap(), "nothing to read");
    let mut buffer = [0; 4096];
    let len = File::from(fd.try_clone().unwrap()).read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Everything until nobody holds the other end.
pub(crate) fn read_to_end(fd: &OwnedFd) -> String {
    let mut all = String::new();
    loop {
        match read(fd) {
            some if some.is_empty() => return all,
            some => all.push_str(&some),
        }
    }
}

pub(crate) fn me() -> i32 {
    std::process::id().cast_signed()
}

pub(crate) fn children() -> Vec<i32> {
    procfs::all().into_iter().filter(|stat| stat.parent == me()).map(|stat| stat.pid).collect()
}

/// How many descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Kills and reaps every child of this process, for a test that is alone in it.
pub(crate) fn bury_children() {
    for pid in children() {
        let Ok(pidfd) = outpost_testkit::process(pid) else { continue };
        let _gone = pidfd::signal(&pidfd, Signal::KILL);
        let _in_time = wait_readable(&pidfd, PATIENCE);
        let _reaped = pidfd::reap(&pidfd);
    }
}

struct Undertaker;

impl Drop for Undertaker {
    fn drop(&mut self) {
        bury_children();
    }
}

const ALONE: &str = "OUTPOST_KEEPER_TEST_ALONE";

/// Runs `body` in a process where no other test is, for what belongs to the whole process: descriptors and children.
/// Returns what that process said, outside it.
pub(crate) fn alone(test: &str, body: impl FnOnce()) -> Option<String> {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        let _orphans = Undertaker;
        body();
        return None;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let again = again.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, test);
    let output = again.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{test} is not the name of a test:\n{text}");
    Some(text)
}
