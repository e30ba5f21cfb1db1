//! A worker for tests: the protocol with timeouts, and a cleanup of everything.

use outpost_keeper::{
    Event, FdRoles, FdTargets, Keeper, LINK_VERSION, MESSAGE_BYTES_MAX, OWN_SLOT, ProcessState, Request,
    SpawnOptions, Spec,
};
use outpost_sys::epoll::{Epoll, Interest, wait_readable};
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::SessionKind;
use outpost_sys::{Errno, message, pidfd, procfs};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The longest wait of a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// An event about an entry, with its descriptors.
#[derive(Debug)]
pub(crate) struct EntryEvent {
    pub(crate) slot: u64,
    pub(crate) pid: i32,
    pub(crate) state: ProcessState,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) held: Vec<(u8, OwnedFd)>,
}

impl EntryEvent {
    pub(crate) fn take(&mut self, role: u8) -> OwnedFd {
        let at = self.held.iter().position(|(held, _)| *held == role).expect("held");
        self.held.remove(at).1
    }

    pub(crate) fn roles(&self) -> Vec<u8> {
        self.held.iter().map(|(role, _)| *role).collect()
    }
}

/// A message of the keeper.
#[derive(Debug)]
pub(crate) enum Received {
    Entry(EntryEvent),
    Event(Event),
    Closed,
}

/// A keeper in a thread, which sends the result of `run`.
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
        self.ended.recv_timeout(TIMEOUT).expect("the keeper hangs or has panicked")
    }
}

/// The worker's end of a link.
pub(crate) struct Client {
    link: OwnedFd,
    /// Entries that were received while the test waited for others.
    received: VecDeque<EntryEvent>,
    /// Slots that may be running.
    pub(crate) slots: BTreeSet<u64>,
}

/// A client and its keeper.
pub(crate) fn start() -> (Client, Thread<u8>) {
    let (client, its_end) = Client::pair();
    let keeper = Keeper::embedded(its_end).unwrap();
    let thread = Thread::start(move || keeper.run());
    (client, thread)
}

/// A client that has received the table of an empty keeper.
pub(crate) fn subscribed() -> (Client, Thread<u8>) {
    let (mut client, keeper) = start();
    let table = client.hello();
    assert_eq!(table.len(), 1, "{table:?}");
    (client, keeper)
}

impl Client {
    pub(crate) fn pair() -> (Client, OwnedFd) {
        let (link, its_end) = message::pair().unwrap();
        (Client { link, received: VecDeque::new(), slots: BTreeSet::new() }, its_end)
    }

    /// Closes the link and leaves the children to the keeper.
    pub(crate) fn die(mut self) {
        self.slots.clear();
    }

    pub(crate) fn send(&mut self, request: Request, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&request.encode(), fds);
    }

    /// Sends, and waits for room. Ignores that the keeper is gone, which the next receive reports.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match message::send(&self.link, bytes, fds) {
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => return,
                Err(Errno::AGAIN) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "the keeper does not receive");
                    let room = Epoll::new().unwrap();
                    room.add(&self.link, 0, Interest::Write).unwrap();
                    room.wait(&mut Vec::new(), Some(left)).unwrap();
                }
                // The kernel limits the descriptors in flight of an unprivileged user, and no event announces when they
                // are fewer.
                Err(Errno::TOOMANYREFS) if Instant::now() < deadline => outpost_testkit::pause(),
                Err(errno) => panic!("send: {errno}"),
            }
        }
    }

    /// The next message; `None` when there is none within `timeout`.
    pub(crate) fn receive_within(&mut self, timeout: Duration) -> Option<Received> {
        let (mut bytes, mut fds) = ([0; MESSAGE_BYTES_MAX], Vec::new());
        if !wait_readable(&self.link, timeout).unwrap() {
            return None;
        }
        let len = match message::receive(&self.link, &mut bytes, &mut fds) {
            Ok(Some(len)) => len,
            // The second if the keeper has ended with unread messages.
            Ok(None) | Err(Errno::CONNRESET) => return Some(Received::Closed),
            Err(errno) => panic!("receive: {errno}"),
        };
        let mut fds = fds.into_iter();
        Some(match Event::decode(&bytes[..len]).expect("an event") {
            Event::Entry { slot, pid, state, pidfd, held } => {
                assert_eq!(fds.len(), usize::from(pidfd) + held.len(), "descriptors of {slot}");
                if let ProcessState::Ended(_) | ProcessState::Failed(_) = state {
                    self.slots.remove(&slot);
                }
                let pidfd = if pidfd { fds.next() } else { None };
                Received::Entry(EntryEvent { slot, pid, state, pidfd, held: held.iter().zip(fds).collect() })
            }
            event => Received::Event(event),
        })
    }

    pub(crate) fn receive(&mut self) -> Received {
        self.receive_within(TIMEOUT).expect("no message from the keeper")
    }

    /// The next event about `slot` except `Starting`.
    pub(crate) fn next_entry(&mut self, slot: u64) -> EntryEvent {
        if let Some(at) = self.received.iter().position(|entry| entry.slot == slot) {
            return self.received.remove(at).unwrap();
        }
        loop {
            match self.receive() {
                Received::Entry(entry) if entry.state == ProcessState::Starting => {
                    assert!(entry.pidfd.is_some(), "{entry:?}")
                }
                Received::Entry(entry) if entry.slot == slot => return entry,
                Received::Entry(entry) => self.received.push_back(entry),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The exit status of `slot`. `Running` may be reported before.
    pub(crate) fn ended(&mut self, slot: u64) -> pidfd::ExitCause {
        loop {
            match self.next_entry(slot).state {
                ProcessState::Ended(exit) => return exit.cause,
                ProcessState::Starting | ProcessState::Running => {}
                ProcessState::Failed(failure) => panic!("{failure:?}"),
            }
        }
    }

    /// The whole table, as for a new worker. Discards earlier events.
    pub(crate) fn hello(&mut self) -> Vec<EntryEvent> {
        self.send(Request::Hello { version: LINK_VERSION }, &[]);
        let mut table = Vec::new();
        loop {
            match self.receive() {
                Received::Entry(entry) => {
                    table.retain(|before: &EntryEvent| before.slot != entry.slot);
                    table.push(entry);
                }
                Received::Event(Event::TableEnd) => break,
                other => panic!("{other:?}"),
            }
        }
        table.sort_by_key(|entry| entry.slot);
        assert!(table.iter().any(|entry| entry.slot == OWN_SLOT));
        table
    }

    /// Requests a child with held and given descriptors.
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
        let gate = pipe().unwrap();
        self.spawn_gated(slot, spec, held, given, cgroup, &gate);
    }

    pub(crate) fn spawn_gated(
        &mut self,
        slot: u64,
        spec: &Spec,
        held: &[(u8, BorrowedFd<'_>)],
        given: &[(BorrowedFd<'_>, u8)],
        cgroup: Option<&OwnedFd>,
        gate: &Pipe,
    ) {
        let bytes = file::sealed_memory("spec", &spec.encode()).unwrap();
        let mut fds = vec![bytes.as_fd(), gate.read.as_fd(), gate.write.as_fd()];
        fds.extend(cgroup.map(AsFd::as_fd));
        fds.extend(held.iter().map(|(_, fd)| *fd));
        fds.extend(given.iter().map(|(fd, _)| *fd));
        let targets = FdTargets::new(given.iter().map(|(_, target)| *target)).unwrap();
        let held = FdRoles::new(held.iter().map(|(role, _)| *role)).unwrap();
        self.slots.insert(slot);
        let options = SpawnOptions { cgroup: cgroup.is_some(), ..SpawnOptions::default() };
        self.send(Request::Spawn { slot, options, held, targets }, &fds);
    }

    /// With pipes as stdin and stdout; returns the other ends.
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

/// Kills what a failed test has left.
impl Drop for Client {
    fn drop(&mut self) {
        for slot in self.slots.clone() {
            self.signal(slot, Signal::KILL, true);
        }
        while !self.slots.is_empty() {
            match self.receive_within(Duration::from_secs(5)) {
                None | Some(Received::Closed) => break,
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
        session: SessionKind::Group,
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

/// Pseudorandom numbers, the same in every run.
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

/// One read; empty at EOF.
pub(crate) fn read(fd: &OwnedFd) -> String {
    assert!(wait_readable(fd, TIMEOUT).unwrap(), "nothing to read");
    let mut buffer = [0; 4096];
    let len = File::from(fd.try_clone().unwrap()).read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Everything until EOF.
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

/// The number of open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Kills and reaps every child of this process, for a test that is alone in it.
pub(crate) fn kill_and_reap_children() {
    for pid in children() {
        let Ok(pidfd) = outpost_testkit::process(pid) else { continue };
        let _gone = pidfd::signal(&pidfd, Signal::KILL);
        let _in_time = wait_readable(&pidfd, TIMEOUT);
        let _reaped = pidfd::reap(&pidfd);
    }
}

struct KillChildren;

impl Drop for KillChildren {
    fn drop(&mut self) {
        kill_and_reap_children();
    }
}

const ALONE: &str = "OUTPOST_KEEPER_TEST_ALONE";

/// Runs `body` in a process of its own, for tests about descriptors and children. Returns the output of that process.
pub(crate) fn alone(test: &str, body: impl FnOnce()) -> Option<String> {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        let _children = KillChildren;
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
