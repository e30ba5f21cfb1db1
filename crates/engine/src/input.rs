//! A child's stdin: from the log to its pipe or terminal, exactly once.

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

/// What a terminal takes for the end of input.
const END_OF_FILE_CHARACTER: u8 = 4;

/// Where input goes.
pub(crate) enum Target {
    /// No stdin, or one that has been closed.
    Closed,
    Pipe(OwnedFd),
    /// Through a private pipe to the terminal's master, since splice wants a pipe on one side.
    Terminal(Pipe),
}

/// How far a delivery got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Nothing waits.
    Done,
    /// The child does not read at the moment.
    Blocked,
    /// All is delivered and stdin was to be closed: it is now.
    Closed,
    /// The log goes on in another file: nothing is delivered before the keeper holds [`Input::unheld_reader`].
    NewReader,
    /// Nothing is delivered before a chore is done.
    Waits,
}

/// What a client wants of the input. It is answered in the order in which it came.
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

/// How far the log has come to be.
enum Log {
    Missing,
    Wanted,
    UnderWay,
    Ready(Box<StdinLog>),
}

impl Log {
    fn get(&self) -> Option<&StdinLog> {
        match self {
            Log::Ready(log) => Some(log),
            Log::Missing | Log::Wanted | Log::UnderWay => None,
        }
    }
}

pub(crate) struct Input {
    pub(crate) target: Target,
    log: Log,
    log_path: PathBuf,
    /// Close once everything accepted is delivered.
    pub(crate) closing: bool,
    /// Who waits for room.
    pub(crate) waiters: Vec<Waiter>,
    /// Offers that wait for a chore, and those behind them. Their bytes together are bounded.
    pub(crate) offers: VecDeque<Offer>,
}

/// One who waits until there is room for all before this byte.
pub(crate) struct Waiter {
    pub(crate) until: u64,
    pub(crate) told: oneshot::Sender<()>,
}

impl Input {
    pub(crate) fn new(target: Target, log_path: PathBuf) -> Input {
        let (waiters, offers) = (Vec::new(), VecDeque::new());
        Input { target, log: Log::Missing, log_path, closing: false, waiters, offers }
    }

    /// Goes on where another worker stopped. Without a description from the keeper nothing was delivered yet; then the
    /// one that the keeper must hold from now on is returned.
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

    /// Takes the log that was begun. Returns the description that the keeper must hold before the first delivery.
    pub(crate) fn begin(&mut self, log: outpost_journal::Result<StdinLog>) -> Result<OwnedFd> {
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
            Log::UnderWay => Ok(None),
            Log::Missing | Log::Wanted => {
                self.log = Log::Wanted;
                Ok(None)
            }
        }
    }

    /// Whether there is room for an offer behind those that wait.
    pub(crate) fn has_room_for(&self, offer: &Offer) -> bool {
        let waiting: u64 = self.offers.iter().map(Offer::bytes).sum();
        match offer {
            Offer::Bytes { waiting_max, .. } => {
                self.offers.is_empty() || waiting.saturating_add(offer.bytes()) <= *waiting_max
            }
            Offer::Close { .. } => true,
        }
    }

    /// Work on the log's files that another thread is to do.
    pub(crate) fn chores(&mut self) -> Vec<Chore> {
        match &mut self.log {
            Log::Ready(log) => log.chores(),
            Log::Wanted => {
                self.log = Log::UnderWay;
                vec![StdinLog::wanted(&self.log_path)]
            }
            Log::Missing | Log::UnderWay => Vec::new(),
        }
    }

    /// Takes the result of a chore.
    pub(crate) fn take(&mut self, done: StdinDone) -> Result<()> {
        match &mut self.log {
            Log::Ready(log) => Ok(log.take(done)?),
            Log::Missing | Log::Wanted | Log::UnderWay => Ok(()),
        }
    }

    /// For a terminal, closing is a character like any other.
    pub(crate) fn end_of_file(&self) -> Option<&'static [u8]> {
        matches!(self.target, Target::Terminal(_)).then_some(&[END_OF_FILE_CHARACTER])
    }

    /// The description that the keeper must hold before the next delivery.
    pub(crate) fn unheld_reader(&mut self) -> Result<Option<OwnedFd>> {
        let Log::Ready(log) = &mut self.log else { return Ok(None) };
        let reader = duplicate(log.reader())?;
        log.held();
        Ok(Some(reader))
    }

    /// The byte before which all may wait.
    pub(crate) fn room_until(&self, waiting_max: u64) -> u64 {
        let delivered = self.log.get().map_or(0, |log| log.delivered().unwrap_or(0).min(log.accepted()));
        delivered.saturating_add(waiting_max)
    }

    /// Adds a waiter in place of those that have given up, so that a child that never reads collects none.
    pub(crate) fn wait_for_room(&mut self, waiter: Waiter) {
        self.waiters.retain(|waiter| !waiter.told.is_closed());
        self.waiters.push(waiter);
    }

    /// Tells those who waited for room that there is now.
    pub(crate) fn tell_waiters(&mut self, waiting_max: u64) {
        if self.waiters.is_empty() || !self.offers.is_empty() {
            return;
        }
        let room_until = self.room_until(waiting_max);
        for waiter in self.waiters.extract_if(.., |waiter| waiter.until <= room_until) {
            let _given_up = waiter.told.send(());
        }
    }

    /// Moves what has been accepted towards the child. `master` is the terminal's, if it has one.
    pub(crate) fn deliver(&mut self, master: Option<&OwnedFd>) -> Result<Delivery> {
        let delivery = match (&self.target, &mut self.log) {
            (Target::Closed, _) => return Ok(Delivery::Done),
            (_, Log::Missing | Log::Wanted | Log::UnderWay) => Delivery::Done,
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

    /// The descriptors the keeper is to hold for this input.
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
            Delivered::Waits => return Ok(Delivery::Waits),
        }
    }
}

/// From the private pipe to the terminal. A terminal that is gone takes everything.
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
    let left = pipe::waiting(&pipe.read).unwrap_or(0);
    Ok(if left > 0 { Delivery::Blocked } else { moved })
}
