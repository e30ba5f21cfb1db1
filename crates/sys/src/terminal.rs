//! The terminal that this process was started on: keys as they are pressed, and everything as it was afterwards.

use crate::pty::Size;
use crate::{Result, file, retry};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::termios::{self, LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios};

/// The controlling terminal. Reading never waits.
pub struct Terminal {
    tty: OwnedFd,
}

impl Terminal {
    /// An open file of our own, so that nobody else's is made not to wait.
    pub fn open() -> Result<Terminal> {
        Ok(Terminal { tty: file::open("/dev/tty", file::Open::Terminal)? })
    }

    /// Keys come one by one, unseen, until this is dropped. What was typed before is thrown away.
    pub fn keys(&self) -> Result<Keys<'_>> {
        let before = termios::tcgetattr(&self.tty)?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(&self.tty, OptionalActions::Flush, &now)?;
        Ok(Keys { terminal: self, before })
    }

    /// Throws away what was typed and not read.
    pub fn forget_typed(&self) {
        let _not_a_terminal_any_more = termios::tcflush(&self.tty, QueueSelector::IFlush);
    }

    pub fn size(&self) -> Option<Size> {
        let size = termios::tcgetwinsize(&self.tty).ok()?;
        (size.ws_col > 0).then_some(Size { rows: size.ws_row, cols: size.ws_col })
    }

    /// What was typed, into `buffer`; `EAGAIN` when there is nothing.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        retry(|| rustix::io::read(&self.tty, &mut *buffer))
    }

    /// Writes as much as the terminal takes; `EAGAIN` when it takes nothing.
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        retry(|| rustix::io::write(&self.tty, bytes))
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}

impl std::os::fd::AsRawFd for Terminal {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.tty.as_raw_fd()
    }
}

/// A terminal that gives keys.
pub struct Keys<'a> {
    terminal: &'a Terminal,
    before: Termios,
}

impl Drop for Keys<'_> {
    /// What was typed into our question must not be taken for a command by whoever reads next.
    fn drop(&mut self) {
        let _gone = termios::tcsetattr(&self.terminal.tty, OptionalActions::Flush, &self.before);
    }
}
