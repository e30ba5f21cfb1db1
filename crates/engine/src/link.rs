//! The worker's end of the link to the keeper, and the roles of the descriptors that the keeper holds for it.
//!
//! [`KeeperLink`] owns the socket. The reactor receives from it. Requests keep their order, whatever thread sends them.

use outpost_keeper::{Event, Keeper, MESSAGE_BYTES_MAX, Request};
use outpost_sys::{Errno, file, message};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The roles of held descriptors.
pub(crate) mod role {
    /// The write end of the child's stdin pipe.
    pub(crate) const STDIN: u8 = 1;
    pub(crate) const STDOUT: u8 = 2;
    pub(crate) const STDERR: u8 = 3;
    /// The terminal's master, and the private pipes from it and to it.
    pub(crate) const MASTER: u8 = 4;
    pub(crate) const FROM_MASTER_READ: u8 = 5;
    pub(crate) const FROM_MASTER_WRITE: u8 = 6;
    pub(crate) const TO_MASTER_READ: u8 = 7;
    pub(crate) const TO_MASTER_WRITE: u8 = 8;
    /// The stdin log, open for reading. Its position is the number of delivered bytes.
    pub(crate) const STDIN_LOG: u8 = 9;
}

/// Maximum number of queued requests. Starts are refused beyond.
const OUTBOX_MAX: usize = 1024;

/// The result of a receive.
pub(crate) enum Received {
    Event(Event, Vec<OwnedFd>),
    Nothing,
    /// The keeper is gone.
    Closed,
}

/// The link to the keeper.
pub(crate) struct KeeperLink(Mutex<Outbox>);

/// The sending side of the link.
pub(crate) struct Outbox {
    /// `None` while there is no keeper.
    socket: Option<Arc<OwnedFd>>,
    queue: VecDeque<(Request, Vec<OwnedFd>)>,
    /// The keeper's queue was full for a request that is not in `queue`.
    expects_room: bool,
}

impl KeeperLink {
    pub(crate) fn new(socket: OwnedFd) -> KeeperLink {
        let socket = Some(Arc::new(socket));
        KeeperLink(Mutex::new(Outbox { socket, queue: VecDeque::new(), expects_room: false }))
    }

    /// A link to a keeper in a thread of this process, which ends when the link closes.
    pub(crate) fn to_embedded_keeper() -> std::io::Result<KeeperLink> {
        let (ours, its) = message::pair()?;
        let keeper = Keeper::embedded(its)?;
        std::thread::Builder::new().name("outpost-keeper".into()).spawn(move || keeper.run())?;
        Ok(KeeperLink::new(ours))
    }

    /// Locks the sending side, for a caller that sends and then does something before any other request is sent.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket, if there is a keeper.
    pub(crate) fn socket(&self) -> Option<Arc<OwnedFd>> {
        self.lock().socket.clone()
    }

    /// The keeper is gone. Requests are queued from here on.
    pub(crate) fn disconnect(&self) {
        self.lock().socket = None;
    }

    /// Uses the link to another keeper. Returns the requests that the keeper before was never sent.
    pub(crate) fn connect(&self, socket: OwnedFd) -> VecDeque<(Request, Vec<OwnedFd>)> {
        let mut outbox = self.lock();
        outbox.socket = Some(Arc::new(socket));
        std::mem::take(&mut outbox.queue)
    }

    /// Sends a request, or queues it while the keeper's queue is full.
    pub(crate) fn send(&self, request: Request, fds: Vec<OwnedFd>) {
        let mut outbox = self.lock();
        outbox.queue.push_back((request, fds));
        outbox.flush();
    }

    /// As [`KeeperLink::send`] with descriptors of the caller, which are duplicated only if the request is queued.
    pub(crate) fn pass(&self, request: Request, fds: &[BorrowedFd<'_>]) -> outpost_sys::Result<()> {
        let mut outbox = self.lock();
        if outbox.send_now(&request, fds).is_ok() {
            return Ok(());
        }
        let copies = fds.iter().map(file::duplicate).collect::<outpost_sys::Result<Vec<_>>>()?;
        outbox.queue.push_back((request, copies));
        outbox.flush();
        Ok(())
    }

    /// Sends queued requests, as far as the keeper's queue has room.
    pub(crate) fn flush(&self) {
        self.lock().flush();
    }

    /// Whether every request was sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.lock().queue.is_empty()
    }

    /// The caller repeats its request when the keeper's queue has room.
    pub(crate) fn expect_room(&self) {
        self.lock().expects_room = true;
    }

    /// Whether the socket is to be watched for room.
    pub(crate) fn wants_room(&self) -> bool {
        let outbox = self.lock();
        outbox.expects_room || !outbox.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().queue.len() >= OUTBOX_MAX
    }

    pub(crate) fn receive(&self) -> Received {
        let Some(socket) = self.socket() else { return Received::Closed };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut fds = Vec::new();
        match message::receive(&*socket, &mut bytes, &mut fds) {
            Ok(Some(len)) => match bytes.get(..len).and_then(Event::decode) {
                Some(event) => Received::Event(event, fds),
                None => Received::Nothing,
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Ok(None) | Err(_) => Received::Closed,
        }
    }
}

impl Outbox {
    /// Sends a request at once or not at all.
    pub(crate) fn send_now(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> outpost_sys::Result<()> {
        match &self.socket {
            Some(socket) if self.queue.is_empty() => message::send(&**socket, &request.encode(), fds),
            Some(_) => Err(Errno::AGAIN),
            None => Err(Errno::PIPE),
        }
    }

    fn flush(&mut self) {
        self.expects_room = false;
        let Some(socket) = &self.socket else { return };
        while let Some((request, fds)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match message::send(&**socket, &request.encode(), &borrowed) {
                Ok(()) => self.queue.pop_front(),
                // The queue is full, or the keeper is gone, which the receiver notices.
                Err(_) => return,
            };
        }
    }
}
