//! The alternate screen of full-screen commands; the terminal is restored on exit and on a panic.

use super::Size;
use crate::tty::TERMINAL_WRITE_TIMEOUT;
use outpost_sys::terminal::{ModeGuard, Terminal as Tty};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::queue;
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the terminal may take to accept the restoring sequences.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<Output>>,
    raw_mode: Arc<RawMode>,
}

impl Screen {
    pub(crate) fn enter() -> io::Result<Screen> {
        let tty = Arc::new(Tty::open()?);
        let saved = Mutex::new(Some(tty.raw_input()?));
        let raw_mode = Arc::new(RawMode { tty: tty.clone(), saved });
        restore_on_panic(raw_mode.clone());
        match enter_alternate_screen(Output { tty, text: Vec::new() }) {
            Ok(terminal) => Ok(Screen { terminal, raw_mode }),
            Err(error) => {
                raw_mode.restore();
                Err(error)
            }
        }
    }

    pub(crate) fn size(&self) -> io::Result<Size> {
        let size = self.terminal.size()?;
        Ok(Size { columns: size.width, rows: size.height })
    }

    pub(crate) fn tty(&self) -> Arc<Tty> {
        self.raw_mode.tty.clone()
    }
}

fn enter_alternate_screen(mut output: Output) -> io::Result<Terminal<CrosstermBackend<Output>>> {
    queue!(output, EnterAlternateScreen, EnableBracketedPaste, Hide)?;
    output.flush()?;
    Terminal::new(CrosstermBackend::new(output))
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.raw_mode.restore();
    }
}

/// The terminal in raw mode, until it is restored.
struct RawMode {
    tty: Arc<Tty>,
    saved: Mutex<Option<ModeGuard>>,
}

impl RawMode {
    /// Idempotent.
    fn restore(&self) {
        let Some(mode) = self.saved.try_lock().ok().and_then(|mut mode| mode.take()) else { return };
        let mut text = Vec::new();
        let _infallible = queue!(text, DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _gone = self.tty.write_all(&text, RESTORE_TIMEOUT);
        drop(mode);
    }
}

/// Restores the terminal before the panic message is printed.
fn restore_on_panic(raw_mode: Arc<RawMode>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        raw_mode.restore();
        before(panic);
    }));
}

/// Buffers a frame and writes it as one synchronized update.
pub(crate) struct Output {
    tty: Arc<Tty>,
    text: Vec<u8>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut text = Vec::with_capacity(self.text.len());
        queue!(text, BeginSynchronizedUpdate)?;
        text.append(&mut self.text);
        queue!(text, EndSynchronizedUpdate)?;
        Ok(self.tty.write_all(&text, TERMINAL_WRITE_TIMEOUT)?)
    }
}
