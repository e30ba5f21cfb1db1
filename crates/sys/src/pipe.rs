//! Pipes and splice(2), which moves output without a copy through our memory.

use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The two ends of a pipe, close-on-exec.
pub struct Pipe {
    pub read: OwnedFd,
    pub write: OwnedFd,
}

/// Creates a pipe with the kernel's default capacity.
pub fn pipe() -> Result<Pipe> {
    fault::failpoint()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok(Pipe { read, write })
}

/// Requests another capacity. The kernel rounds it up, or refuses it (quota, or buffered data that would not
/// fit).
pub fn set_capacity(pipe: impl AsFd, bytes: usize) -> Result<usize> {
    fault::failpoint()?;
    rustix::pipe::fcntl_setpipe_size(pipe, bytes)
}

/// The capacity of the pipe in bytes.
pub fn capacity(pipe: impl AsFd) -> Result<usize> {
    fault::failpoint()?;
    rustix::pipe::fcntl_getpipe_size(pipe)
}

/// The number of bytes in the pipe.
pub fn buffered(pipe: impl AsFd) -> Result<u64> {
    fault::failpoint()?;
    rustix::io::ioctl_fionread(pipe)
}

/// What a reader of a pipe would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Bytes,
    /// The pipe is empty and has a writer.
    Nothing,
    /// EOF: the pipe is empty and has no writer.
    End,
}

/// Polls a pipe without reading from it.
pub fn peek(pipe: impl AsFd) -> Result<Content> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
    retry(|| {
        fault::failpoint()?;
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
    /// `EAGAIN`.
    WouldBlock,
    /// EOF. For a regular file, its current end.
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

/// Moves bytes from a pipe into a file at `offset`. Bytes that the file does not accept stay in the pipe.
pub fn splice_to_file(pipe: impl AsFd, file: impl AsFd, offset: u64, len: usize) -> Result<Moved> {
    moved(retry(|| {
        let wanted = fault::length(len)?;
        let mut offset = offset;
        rustix::pipe::splice(&pipe, None, &file, Some(&mut offset), wanted, FLAGS)
    }))
}

/// Moves bytes between two descriptors, one of which is a pipe, at their current positions.
pub fn splice(from: impl AsFd, to: impl AsFd, len: usize) -> Result<Moved> {
    moved(retry(|| {
        let wanted = fault::length(len)?;
        rustix::pipe::splice(&from, None, &to, None, wanted, FLAGS)
    }))
}

/// Writes one byte, to wake the reader.
pub fn write_byte(pipe: impl AsFd) -> Result<()> {
    retry(|| {
        fault::failpoint()?;
        rustix::io::write(&pipe, &[1]).map(|_| ())
    })
}
