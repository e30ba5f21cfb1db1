//! The terminal that this process was started on: keys as they are pressed, and everything as it was afterwards.

use crate::pty::Size;
use crate::{Errno, Result, file, retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::sync::Arc;
use std::time::Duration;

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
    pub fn keys(self: &Arc<Terminal>) -> Result<Keys> {
        let before = termios::tcgetattr(&self.tty)?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(&self.tty, OptionalActions::Flush, &now)?;
        Ok(Keys { terminal: self.clone(), before })
    }

    /// The same for a whole screen: no key does anything by itself, not even those that end or stop a program.
    pub fn raw(self: &Arc<Terminal>) -> Result<Keys> {
        let keys = self.keys()?;
        let mut now = termios::tcgetattr(&self.tty)?;
        now.local_modes.remove(LocalModes::ISIG | LocalModes::IEXTEN);
        now.input_modes.remove(InputModes::IXON | InputModes::ICRNL);
        termios::tcsetattr(&self.tty, OptionalActions::Now, &now)?;
        Ok(keys)
    }

    /// The terminal takes no part any more: every byte goes through as it is, in both directions.
    pub fn transparent(self: &Arc<Terminal>) -> Result<Keys> {
        let before = termios::tcgetattr(&self.tty)?;
        let mut now = before.clone();
        now.make_raw();
        termios::tcsetattr(&self.tty, OptionalActions::Drain, &now)?;
        Ok(Keys { terminal: self.clone(), before })
    }

    pub fn size(&self) -> Option<Size> {
        let size = termios::tcgetwinsize(&self.tty).ok()?;
        (size.ws_col > 0).then_some(Size { rows: size.ws_row, cols: size.ws_col })
    }

    /// What was typed, into `buffer`; `EAGAIN` when there is nothing.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        retry(|| rustix::io::read(&self.tty, &mut *buffer))
    }

    /// Writes everything, or fails when the terminal takes nothing for as long as `patience`.
    pub fn write_all(&self, mut bytes: &[u8], patience: Duration) -> Result<()> {
        let seconds = i64::try_from(patience.as_secs()).unwrap_or(i64::MAX);
        let patience = Timespec { tv_sec: seconds, tv_nsec: i64::from(patience.subsec_nanos()) };
        while !bytes.is_empty() {
            match retry(|| rustix::io::write(&self.tty, bytes)) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(Errno::AGAIN) => {
                    let mut entries = [PollFd::new(&self.tty, PollFlags::OUT)];
                    if retry(|| poll(&mut entries, Some(&patience)))? == 0 {
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

/// A terminal that gives keys.
pub struct Keys {
    terminal: Arc<Terminal>,
    before: Termios,
}

impl Drop for Keys {
    /// What was typed into our question must not be taken for a command by whoever reads next.
    fn drop(&mut self) {
        let _gone = termios::tcsetattr(&self.terminal.tty, OptionalActions::Flush, &self.before);
    }
}
