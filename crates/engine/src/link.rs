//! The worker's end of the link to the keeper, and the roles of the descriptors the keeper holds for us.

use outpost_keeper::{Event, Keeper, MESSAGE_BYTES, Request};
use outpost_sys::{Errno, file, message};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What a held descriptor is for.
pub(crate) mod role {
    /// The write end of the child's stdin pipe.
    pub(crate) const STDIN: u8 = 1;
    pub(crate) const STDOUT: u8 = 2;
    pub(crate) const STDERR: u8 = 3;
    /// The terminal's master, and the private pipes through which bytes come and go.
    pub(crate) const MASTER: u8 = 4;
    pub(crate) const FROM_MASTER_READ: u8 = 5;
    pub(crate) const FROM_MASTER_WRITE: u8 = 6;
    pub(crate) const TO_MASTER_READ: u8 = 7;
    pub(crate) const TO_MASTER_WRITE: u8 = 8;
    /// The reading description of the stdin log, whose position is what was delivered.
    pub(crate) const STDIN_LOG: u8 = 9;
    /// Where one that was forked ahead reports how its start went. Not held: what nobody is left to hear is in its exit.
    pub(crate) const REPORT: u8 = 10;
}

/// Messages that may wait for the keeper before new processes are refused.
pub(crate) const OUTBOX_MAX: usize = 1024;

/// What came over the link.
pub(crate) enum Received {
    Event(Event, Vec<OwnedFd>),
    Nothing,
    /// The keeper is gone.
    Closed,
}

pub(crate) struct Link {
    socket: Arc<OwnedFd>,
    outbox: VecDeque<(Request, Vec<OwnedFd>)>,
    /// The keeper's queue was full for a message that is not in the outbox.
    expects_room: bool,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> Link {
        Link { socket: Arc::new(socket), outbox: VecDeque::new(), expects_room: false }
    }

    /// The socket, for those who ask the keeper past the reactor.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    /// A link to a keeper that runs in a thread of this process until the link is dropped.
    pub(crate) fn to_embedded_keeper() -> std::io::Result<Link> {
        let (ours, its) = message::pair()?;
        let keeper = Keeper::embedded(its)?;
        std::thread::Builder::new().name("outpost-keeper".into()).spawn(move || keeper.run())?;
        Ok(Link::new(ours))
    }

    /// Sends, or keeps for later when the keeper's queue is full. Order is kept. A keeper that is gone is noticed when
    /// it is listened to.
    pub(crate) fn send(&mut self, request: Request, fds: Vec<OwnedFd>) {
        self.outbox.push_back((request, fds));
        self.flush();
    }

    /// Sends with descriptors of the caller's, which are copied only if the message has to wait.
    pub(crate) fn pass(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> outpost_sys::Result<()> {
        if self.send_now(request, fds) {
            return Ok(());
        }
        let copies = fds.iter().map(file::duplicate).collect::<outpost_sys::Result<Vec<_>>>()?;
        self.send(request, copies);
        Ok(())
    }

    /// Sends at once or not at all.
    pub(crate) fn send_now(&self, request: Request, fds: &[BorrowedFd<'_>]) -> bool {
        self.is_flushed() && message::send(&*self.socket, &request.encode(), fds).is_ok()
    }

    /// Sends what waits, as far as the keeper takes it.
    pub(crate) fn flush(&mut self) {
        self.expects_room = false;
        while let Some((request, fds)) = self.outbox.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match message::send(&*self.socket, &request.encode(), &borrowed) {
                Ok(()) => {
                    self.outbox.pop_front();
                }
                Err(_full_or_gone) => return,
            }
        }
    }

    /// Whether everything has reached the keeper's queue.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// A caller will send again when the keeper's queue has room.
    pub(crate) fn expect_room(&mut self) {
        self.expects_room = true;
    }

    /// Whether to wait for room in the keeper's queue.
    pub(crate) fn wants_room(&self) -> bool {
        self.expects_room || !self.is_flushed()
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.outbox.len() >= OUTBOX_MAX
    }

    /// What was never sent to a keeper that has died, for its successor.
    pub(crate) fn take_unsent(&mut self) -> VecDeque<(Request, Vec<OwnedFd>)> {
        std::mem::take(&mut self.outbox)
    }

    pub(crate) fn receive(&self) -> Received {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut fds = Vec::new();
        match message::receive(&*self.socket, &mut bytes, &mut fds) {
            Ok(Some(len)) => match bytes.get(..len).and_then(Event::decode) {
                Some(event) => Received::Event(event, fds),
                None => Received::Nothing,
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Ok(None) | Err(_) => Received::Closed,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
