//! The stdin of a child: exactly-once delivery from the log to its pipe or terminal.

use crate::link::role;
use crate::{Error, Result};
use outpost_journal::{Accepted, Chore, Delivered, StdinDone, StdinLog};
use outpost_sys::Errno;
use outpost_sys::pipe::{self, Moved, Pipe};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Ctrl-D, which a terminal takes for EOF.
const END_OF_FILE_CHARACTER: u8 = 4;

/// The destination of stdin.
pub(crate) enum Target {
    /// No stdin, or a closed one.
    Closed,
    Pipe(OwnedFd),
    /// The terminal's master, through a private pipe, since splice needs a pipe on one side.
    Terminal(Pipe),
}

/// The result of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Everything accepted is delivered.
    Done,
    /// The pipe or the terminal is full.
    Blocked,
    /// Everything is delivered, and stdin is closed as requested.
    Closed,
    /// The log continues in another file. The keeper must hold [`Input::unheld_reader`] before the next delivery.
    NewReader,
    /// The delivery waits for a chore.
    Waits,
}

/// A request of a client. Replies are in the order of requests.
pub(crate) enum Offer {
    Bytes {
        offset: Option<u64>,
        data: Arc<Vec<u8>>,
        waiting_max: u64,
        reply: oneshot::Sender<Result<Accepted>>,
    },
    Close {
        reply: oneshot::Sender<Result<()>>,
    },
}

impl Offer {
    pub(crate) fn refuse(self, error: Error) {
        match self {
            Offer::Bytes { reply, .. } => drop(reply.send(Err(error))),
            Offer::Close { reply } => drop(reply.send(Err(error))),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Offer::Bytes { data, .. } => data.len() as u64,
            Offer::Close { .. } => 0,
        }
    }
}

/// The state of the log.
enum Log {
    Missing,
    Wanted,
    Creating,
    Ready(Box<StdinLog>),
}

impl Log {
    fn get(&self) -> Option<&StdinLog> {
        match self {
            Log::Ready(log) => Some(log),
            Log::Missing | Log::Wanted | Log::Creating => None,
        }
    }
}

pub(crate) struct Input {
    pub(crate) target: Target,
    log: Log,
    log_path: PathBuf,
    /// Close when everything accepted is delivered.
    pub(crate) closing: bool,
    pub(crate) waiters: Vec<RoomWaiter>,
    /// Offers that wait for a chore, and later ones. Their total size is bounded.
    pub(crate) offers: VecDeque<Offer>,
}

/// A caller that waits until all bytes before `until` would be accepted.
pub(crate) struct RoomWaiter {
    pub(crate) until: u64,
    pub(crate) reply: oneshot::Sender<()>,
}

impl Input {
    pub(crate) fn new(target: Target, log_path: PathBuf) -> Input {
        let (waiters, offers) = (Vec::new(), VecDeque::new());
        Input { target, log: Log::Missing, log_path, closing: false, waiters, offers }
    }

    /// Resumes the delivery of an earlier worker. Without a reader from the keeper nothing was delivered yet. Then this
    /// returns the reader that the keeper must hold.
    pub(crate) fn resume(
        target: Target,
        log_path: PathBuf,
        reader: Option<OwnedFd>,
    ) -> Result<(Input, Option<OwnedFd>)> {
        let mut input = Input::new(target, log_path);
        if let Some(reader) = reader {
            input.log = Log::Ready(Box::new(StdinLog::resume(&input.log_path, reader)?));
            return Ok((input, None));
        }
        let log = StdinLog::from_start(&input.log_path)?;
        input.log = log.map_or(Log::Missing, |log| Log::Ready(Box::new(log)));
        let unheld = input.log.get().map(|log| duplicate(log.reader())).transpose()?;
        Ok((input, unheld))
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.log.get().map_or(0, StdinLog::accepted)
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.target, Target::Closed) && !self.closing
    }

    /// Takes the created log. Returns the reader that the keeper must hold before the first delivery.
    pub(crate) fn set_log(&mut self, log: outpost_journal::Result<StdinLog>) -> Result<OwnedFd> {
        self.log = Log::Missing;
        let log = log?;
        let reader = duplicate(log.reader())?;
        self.log = Log::Ready(Box::new(log));
        Ok(reader)
    }

    /// `None` until a chore is done.
    pub(crate) fn accept(
        &mut self,
        offset: Option<u64>,
        data: &[u8],
        waiting_max: u64,
    ) -> Result<Option<Accepted>> {
        match &mut self.log {
            Log::Ready(log) => Ok(log.accept(offset, data, waiting_max)?),
            Log::Creating => Ok(None),
            Log::Missing | Log::Wanted => {
                self.log = Log::Wanted;
                Ok(None)
            }
        }
    }

    /// Whether an offer fits behind those that wait.
    pub(crate) fn has_room_for(&self, offer: &Offer) -> bool {
        let waiting: u64 = self.offers.iter().map(Offer::bytes).sum();
        match offer {
            Offer::Bytes { waiting_max, .. } => {
                self.offers.is_empty() || waiting.saturating_add(offer.bytes()) <= *waiting_max
            }
            Offer::Close { .. } => true,
        }
    }

    /// Work on the log's files for a housekeeping thread.
    pub(crate) fn chores(&mut self) -> Vec<Chore> {
        match &mut self.log {
            Log::Ready(log) => log.chores(),
            Log::Wanted => {
                self.log = Log::Creating;
                vec![StdinLog::create_chore(&self.log_path)]
            }
            Log::Missing | Log::Creating => Vec::new(),
        }
    }

    /// Takes the result of a chore.
    pub(crate) fn take(&mut self, done: StdinDone) -> Result<()> {
        match &mut self.log {
            Log::Ready(log) => Ok(log.take(done)?),
            Log::Missing | Log::Wanted | Log::Creating => Ok(()),
        }
    }

    /// The bytes that close the stdin of a terminal.
    pub(crate) fn end_of_file(&self) -> Option<&'static [u8]> {
        matches!(self.target, Target::Terminal(_)).then_some(&[END_OF_FILE_CHARACTER])
    }

    /// The reader that the keeper must hold before the next delivery.
    pub(crate) fn unheld_reader(&mut self) -> Result<Option<OwnedFd>> {
        let Log::Ready(log) = &mut self.log else { return Ok(None) };
        let reader = duplicate(log.reader())?;
        log.set_reader_held();
        Ok(Some(reader))
    }

    /// The first byte that would not be accepted.
    pub(crate) fn room_until(&self, waiting_max: u64) -> u64 {
        let delivered = self.log.get().map_or(0, |log| log.delivered().unwrap_or(0).min(log.accepted()));
        delivered.saturating_add(waiting_max)
    }

    /// Adds a waiter, and removes those whose caller is gone.
    pub(crate) fn wait_for_room(&mut self, waiter: RoomWaiter) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(waiter);
    }

    /// Replies to waiters whose bytes would be accepted now.
    pub(crate) fn wake_waiters(&mut self, waiting_max: u64) {
        if self.waiters.is_empty() || !self.offers.is_empty() {
            return;
        }
        let room_until = self.room_until(waiting_max);
        for waiter in self.waiters.extract_if(.., |waiter| waiter.until <= room_until) {
            let _gone = waiter.reply.send(());
        }
    }

    /// Moves accepted bytes towards the child. `master` is that of its terminal.
    pub(crate) fn deliver(&mut self, master: Option<&OwnedFd>) -> Result<Delivery> {
        let delivery = match (&self.target, &mut self.log) {
            (Target::Closed, _) => return Ok(Delivery::Done),
            (_, Log::Missing | Log::Wanted | Log::Creating) => Delivery::Done,
            (Target::Pipe(pipe), Log::Ready(log)) => move_all(log, pipe)?,
            (Target::Terminal(pipe), Log::Ready(log)) => {
                let moved = move_all(log, &pipe.write)?;
                match master {
                    _ if moved == Delivery::NewReader => moved,
                    Some(master) => flush(pipe, master, moved)?,
                    None => Delivery::Done,
                }
            }
        };
        if delivery == Delivery::Done && self.closing {
            self.target = Target::Closed;
            return Ok(Delivery::Closed);
        }
        Ok(delivery)
    }

    /// The descriptors that the keeper is to hold.
    pub(crate) fn held(&self) -> Vec<(u8, BorrowedFd<'_>)> {
        let mut held = match &self.target {
            Target::Closed => Vec::new(),
            Target::Pipe(pipe) => vec![(role::STDIN, pipe.as_fd())],
            Target::Terminal(pipe) => {
                vec![(role::TO_MASTER_READ, pipe.read.as_fd()), (role::TO_MASTER_WRITE, pipe.write.as_fd())]
            }
        };
        held.extend(self.log.get().map(|log| (role::STDIN_LOG, log.reader().as_fd())));
        held
    }
}

fn duplicate(reader: &OwnedFd) -> Result<OwnedFd> {
    outpost_sys::file::duplicate(reader).map_err(|errno| Error::io("duplicate", "the stdin log", errno))
}

fn move_all(log: &mut StdinLog, to: &OwnedFd) -> Result<Delivery> {
    loop {
        match log.deliver(to)? {
            Delivered::Bytes(_) => {}
            Delivered::WouldBlock => return Ok(Delivery::Blocked),
            Delivered::End => return Ok(Delivery::Done),
            Delivered::NextPart => return Ok(Delivery::NewReader),
            Delivered::AwaitsChore => return Ok(Delivery::Waits),
        }
    }
}

/// Moves bytes from the private pipe to the terminal. They are lost if that is gone.
fn flush(pipe: &Pipe, master: &OwnedFd, moved: Delivery) -> Result<Delivery> {
    const AT_ONCE_BYTES: usize = 64 * 1024;
    loop {
        match pipe::splice(&pipe.read, master, AT_ONCE_BYTES) {
            Ok(Moved::Bytes(_)) => {}
            Ok(Moved::WouldBlock | Moved::End) => break,
            Err(Errno::IO) => return Ok(Delivery::Done),
            Err(errno) => return Err(Error::io("write to", "the terminal", errno)),
        }
    }
    let left = pipe::buffered(&pipe.read).unwrap_or(0);
    Ok(if left > 0 { Delivery::Blocked } else { moved })
}
