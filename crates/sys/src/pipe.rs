//! Pipes and splice(2), by which every output byte moves without passing through our memory.

use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The two ends of a pipe, close-on-exec.
pub struct Pipe {
    pub read: OwnedFd,
    pub write: OwnedFd,
}

/// Makes a pipe of the kernel's default size.
pub fn pipe() -> Result<Pipe> {
    fault::gate()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok(Pipe { read, write })
}

/// Asks for another capacity; the kernel rounds it up and may refuse (quota, or data that would not fit).
pub fn set_capacity(pipe: impl AsFd, bytes: usize) -> Result<usize> {
    fault::gate()?;
    rustix::pipe::fcntl_setpipe_size(pipe, bytes)
}

/// How much fits into the pipe.
pub fn capacity(pipe: impl AsFd) -> Result<usize> {
    fault::gate()?;
    rustix::pipe::fcntl_getpipe_size(pipe)
}

/// How many bytes wait in the pipe.
pub fn waiting(pipe: impl AsFd) -> Result<u64> {
    fault::gate()?;
    rustix::io::ioctl_fionread(pipe)
}

/// What a pipe has for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Bytes,
    /// Nothing now.
    Nothing,
    /// Nothing, and nobody left who could write.
    End,
}

/// Looks into a pipe without taking anything.
pub fn look(pipe: impl AsFd) -> Result<Content> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
    retry(|| {
        fault::gate()?;
        poll(&mut polled, Some(&now)).map(|_| ())
    })?;
    let [polled] = polled;
    Ok(match polled.revents() {
        seen if seen.contains(PollFlags::IN) => Content::Bytes,
        seen if seen.contains(PollFlags::HUP) => Content::End,
        _ => Content::Nothing,
    })
}

/// What one splice did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    Bytes(usize),
    /// Nothing can be moved now.
    WouldBlock,
    /// The source has ended (a file: for now).
    End,
}

fn moved(result: Result<usize>) -> Result<Moved> {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN) => Ok(Moved::WouldBlock),
        Err(errno) => Err(errno),
    }
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// Moves bytes from a pipe into a file at `offset`. What the file did not take stays in the pipe.
pub fn splice_to_file(pipe: impl AsFd, file: impl AsFd, offset: u64, len: usize) -> Result<Moved> {
    moved(retry(|| {
        let wanted = fault::length(len)?;
        let mut offset = offset;
        rustix::pipe::splice(&pipe, None, &file, Some(&mut offset), wanted, FLAGS)
    }))
}

/// Moves bytes between two descriptors of which one is a pipe, by the positions the kernel keeps for them.
pub fn splice(from: impl AsFd, to: impl AsFd, len: usize) -> Result<Moved> {
    moved(retry(|| {
        let wanted = fault::length(len)?;
        rustix::pipe::splice(&from, None, &to, None, wanted, FLAGS)
    }))
}

/// Writes one byte, as a sign to who holds the other end.
pub fn write_byte(pipe: impl AsFd) -> Result<()> {
    retry(|| {
        fault::gate()?;
        rustix::io::write(&pipe, &[1]).map(|_| ())
    })
}
