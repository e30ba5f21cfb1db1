//! Our terminal in the hands of a process, and as it was before once we are done, however that comes.

use super::modes::Modes;
use crate::tty::TERMINAL_PATIENCE;
use outpost_control::wire::TerminalSize;
use outpost_sys::terminal::{Keys, Terminal};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A terminal that we leave gets this long to take it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Taken {
    tty: Arc<Terminal>,
    mode: Mutex<Option<Keys>>,
    modes: Mutex<Modes>,
}

impl Taken {
    pub(super) fn take() -> io::Result<Arc<Taken>> {
        let tty = Arc::new(Terminal::open()?);
        let mode = Mutex::new(Some(tty.transparent()?));
        let taken = Arc::new(Taken { tty, mode, modes: Mutex::default() });
        let before = std::panic::take_hook();
        let on_panic = taken.clone();
        // Before the panic is told, so that it can be read.
        std::panic::set_hook(Box::new(move |panic| {
            on_panic.give_back();
            before(panic);
        }));
        Ok(taken)
    }

    pub(super) fn tty(&self) -> &Arc<Terminal> {
        &self.tty
    }

    pub(super) fn size(&self) -> Option<TerminalSize> {
        self.tty.size().map(|size| TerminalSize { rows: size.rows, cols: size.cols })
    }

    /// What the process writes. Waits as long as the terminal does.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner).follow(bytes);
        loop {
            match self.tty.write_all(bytes, TERMINAL_PATIENCE) {
                Err(outpost_sys::Errno::TIMEDOUT) => {}
                written => return Ok(written?),
            }
        }
    }

    /// Once is enough.
    pub(super) fn give_back(&self) {
        let Some(mode) = self.mode.try_lock().ok().and_then(|mut mode| mode.take()) else { return };
        // Whoever follows what is written may be the one that panicked.
        let leave = self.modes.try_lock().map(|modes| modes.leave());
        let leave = leave.unwrap_or_else(|_| Modes::default().leave());
        let _gone = self.tty.write_all(&leave, LEAVE_PATIENCE);
        drop(mode);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back();
    }
}
