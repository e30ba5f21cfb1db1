//! Our terminal in raw mode while a process is attached; restored on exit, on a signal and on a panic.

use super::modes::Modes;
use crate::tty::TERMINAL_WRITE_TIMEOUT;
use outpost_control::wire::TerminalSize;
use outpost_sys::terminal::{ModeGuard, Terminal};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the terminal may take to accept the restoring sequences.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct RawTerminal {
    tty: Arc<Terminal>,
    saved: Mutex<Option<ModeGuard>>,
    modes: Mutex<Modes>,
}

impl RawTerminal {
    pub(super) fn enter() -> io::Result<Arc<RawTerminal>> {
        let tty = Arc::new(Terminal::open()?);
        let saved = Mutex::new(Some(tty.make_raw()?));
        let terminal = Arc::new(RawTerminal { tty, saved, modes: Mutex::default() });
        let before = std::panic::take_hook();
        let on_panic = terminal.clone();
        // Restore the terminal before the panic message is printed.
        std::panic::set_hook(Box::new(move |panic| {
            on_panic.restore();
            before(panic);
        }));
        Ok(terminal)
    }

    pub(super) fn tty(&self) -> &Arc<Terminal> {
        &self.tty
    }

    pub(super) fn size(&self) -> Option<TerminalSize> {
        self.tty.size().map(|size| TerminalSize { rows: size.rows, cols: size.cols })
    }

    /// Writes output of the process. Blocks as long as the terminal does.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner).track(bytes);
        loop {
            match self.tty.write_all(bytes, TERMINAL_WRITE_TIMEOUT) {
                Err(outpost_sys::Errno::TIMEDOUT) => {}
                written => return Ok(written?),
            }
        }
    }

    /// Idempotent.
    pub(super) fn restore(&self) {
        let Some(mode) = self.saved.try_lock().ok().and_then(|mut mode| mode.take()) else { return };
        // The thread that panicked may hold the lock of `modes`.
        let restoring = self.modes.try_lock().map(|modes| modes.leave());
        let restoring = restoring.unwrap_or_else(|_| Modes::default().leave());
        let _gone = self.tty.write_all(&restoring, RESTORE_TIMEOUT);
        drop(mode);
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}
