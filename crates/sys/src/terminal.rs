//! The controlling terminal: raw modes, which are undone on drop, and non-blocking reads and writes.

use crate::pty::Size;
use crate::{Errno, Result, file, retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::sync::Arc;
use std::time::Duration;

/// The controlling terminal, non-blocking.
pub struct Terminal {
    tty: OwnedFd,
}

impl Terminal {
    /// Opens a new file description, so that O_NONBLOCK does not affect other processes on the terminal.
    pub fn open() -> Result<Terminal> {
        Ok(Terminal { tty: file::open("/dev/tty", file::Open::Terminal)? })
    }

    /// cbreak mode: delivers single keys without echo. Discards pending input.
    pub fn cbreak(self: &Arc<Terminal>) -> Result<ModeGuard> {
        let before = termios::tcgetattr(&self.tty)?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(&self.tty, OptionalActions::Flush, &now)?;
        Ok(ModeGuard { terminal: self.clone(), before })
    }

    /// cbreak mode without signals and flow control, for a full-screen program. Output processing stays on.
    pub fn raw_input(self: &Arc<Terminal>) -> Result<ModeGuard> {
        let guard = self.cbreak()?;
        let mut now = termios::tcgetattr(&self.tty)?;
        now.local_modes.remove(LocalModes::ISIG | LocalModes::IEXTEN);
        now.input_modes.remove(InputModes::IXON | InputModes::ICRNL);
        termios::tcsetattr(&self.tty, OptionalActions::Now, &now)?;
        Ok(guard)
    }

    /// Raw mode: every byte passes unchanged in both directions.
    pub fn make_raw(self: &Arc<Terminal>) -> Result<ModeGuard> {
        let before = termios::tcgetattr(&self.tty)?;
        let mut now = before.clone();
        now.make_raw();
        termios::tcsetattr(&self.tty, OptionalActions::Drain, &now)?;
        Ok(ModeGuard { terminal: self.clone(), before })
    }

    pub fn size(&self) -> Option<Size> {
        let size = termios::tcgetwinsize(&self.tty).ok()?;
        (size.ws_col > 0).then_some(Size { rows: size.ws_row, cols: size.ws_col })
    }

    /// Reads typed bytes; `EAGAIN` when there are none.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        retry(|| rustix::io::read(&self.tty, &mut *buffer))
    }

    /// Writes all bytes. `ETIMEDOUT` when the terminal accepts nothing for `timeout`.
    pub fn write_all(&self, mut bytes: &[u8], timeout: Duration) -> Result<()> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(timeout.subsec_nanos()) };
        while !bytes.is_empty() {
            match retry(|| rustix::io::write(&self.tty, bytes)) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(Errno::AGAIN) => {
                    let mut entries = [PollFd::new(&self.tty, PollFlags::OUT)];
                    if retry(|| poll(&mut entries, Some(&timeout)))? == 0 {
                        return Err(Errno::TIMEDOUT);
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}

/// Restores the terminal's mode on drop.
pub struct ModeGuard {
    terminal: Arc<Terminal>,
    before: Termios,
}

impl Drop for ModeGuard {
    /// Discards pending input, so that the next reader (a shell) does not take our keys for a command.
    fn drop(&mut self) {
        let _gone = termios::tcsetattr(&self.terminal.tty, OptionalActions::Flush, &self.before);
    }
}
