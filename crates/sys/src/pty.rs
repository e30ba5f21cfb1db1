//! Pseudo-terminals.

use crate::{Result, fault};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

/// Both sides of a new pseudo-terminal. The slave is for the child.
pub struct Pty {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Opens a pseudo-terminal of this size.
pub fn open(size: Size) -> Result<Pty> {
    fault::failpoint()?;
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    Ok(Pty { master, slave })
}

/// The current window size.
pub fn size(master: impl AsFd) -> Result<Size> {
    let size = rustix::termios::tcgetwinsize(master)?;
    Ok(Size { rows: size.ws_row, cols: size.ws_col })
}

/// Sets the window size. The kernel sends SIGWINCH to the foreground process group.
pub fn resize(master: impl AsFd, size: Size) -> Result<()> {
    fault::failpoint()?;
    rustix::termios::tcsetwinsize(
        master,
        Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 },
    )
}
