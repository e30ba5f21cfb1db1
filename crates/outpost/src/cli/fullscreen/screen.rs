//! The terminal as a full screen, and as it was before once we are done with it, however that comes.

use super::Size;
use crate::tty::TERMINAL_PATIENCE;
use outpost_sys::terminal::{Keys, Terminal as Tty};
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

/// A terminal that we leave gets this long to take it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

pub(in crate::cli) struct Screen {
    pub(in crate::cli) terminal: Terminal<CrosstermBackend<Output>>,
    taken: Arc<Taken>,
}

impl Screen {
    pub(in crate::cli) fn enter() -> io::Result<Screen> {
        let tty = Arc::new(Tty::open()?);
        let mode = Mutex::new(Some(tty.raw()?));
        let taken = Arc::new(Taken { tty: tty.clone(), mode });
        give_back_on_panic(taken.clone());
        match begin(Output { tty, text: Vec::new() }) {
            Ok(terminal) => Ok(Screen { terminal, taken }),
            Err(error) => {
                taken.give_back();
                Err(error)
            }
        }
    }

    pub(in crate::cli) fn size(&self) -> io::Result<Size> {
        let size = self.terminal.size()?;
        Ok(Size { columns: size.width, rows: size.height })
    }

    pub(in crate::cli) fn tty(&self) -> Arc<Tty> {
        self.taken.tty.clone()
    }
}

fn begin(mut output: Output) -> io::Result<Terminal<CrosstermBackend<Output>>> {
    queue!(output, EnterAlternateScreen, EnableBracketedPaste, Hide)?;
    output.flush()?;
    Terminal::new(CrosstermBackend::new(output))
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.taken.give_back();
    }
}

/// A terminal that is ours, until it is given back.
struct Taken {
    tty: Arc<Tty>,
    mode: Mutex<Option<Keys>>,
}

impl Taken {
    /// Once is enough.
    fn give_back(&self) {
        let Some(mode) = self.mode.try_lock().ok().and_then(|mut mode| mode.take()) else { return };
        let mut text = Vec::new();
        let _memory_takes_all = queue!(text, DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _gone = self.tty.write_all(&text, LEAVE_PATIENCE);
        drop(mode);
    }
}

/// Before the panic is told, so that it can be read.
fn give_back_on_panic(taken: Arc<Taken>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        taken.give_back();
        before(panic);
    }));
}

/// Text for the terminal, written in one go and shown in one, where the terminal knows how.
pub(in crate::cli) struct Output {
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
        Ok(self.tty.write_all(&text, TERMINAL_PATIENCE)?)
    }
}
