//! The terminal that this process was started on: keys from it, text on it, and secrets that are typed unseen.

pub(crate) mod keys;

use keys::{Key, Reader};
use outpost_sys::terminal::Terminal;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// A terminal that takes nothing for this long is no place to ask.
pub(crate) const TERMINAL_PATIENCE: Duration = Duration::from_secs(10);

/// The longest secret that is typed here.
const SECRET_BYTES_MAX: usize = 1024;

/// What everybody asks who draws: <https://no-color.org>.
pub(crate) fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// All of it, before anything else is done: what was not shown cannot be answered.
pub(crate) async fn show(terminal: &Arc<Terminal>, text: String) -> io::Result<()> {
    let terminal = terminal.clone();
    let written = tokio::task::spawn_blocking(move || terminal.write_all(text.as_bytes(), TERMINAL_PATIENCE));
    Ok(written.await.map_err(io::Error::other)??)
}

/// Reads a line that is not shown; nothing when it was given up. Safe to cancel: the terminal is then as it was.
pub(crate) async fn ask_secret(what: &str) -> io::Result<Option<Zeroizing<String>>> {
    let terminal = Arc::new(Terminal::open()?);
    let mode = terminal.keys()?;
    let mut keys = Reader::new(terminal.clone())?;
    show(&terminal, format!("\n{what} ")).await?;
    let mut typed = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX));
    let done = loop {
        match keys.next().await? {
            // A secret may well be pasted.
            Key::Byte(byte) | Key::Pasted(byte) => match byte {
                b'\r' | b'\n' => break true,
                0x03 | 0x04 => break false,
                0x7f | 0x08 => {
                    typed.pop();
                }
                0x15 => typed.clear(),
                _ if typed.len() < SECRET_BYTES_MAX => typed.push(byte),
                _ => {}
            },
            Key::Move(_) | Key::Escape | Key::Sequence => {}
        }
    };
    show(&terminal, "\n".into()).await?;
    drop((keys, mode));
    let text = std::str::from_utf8(&typed).ok().filter(|_| done);
    Ok(text.map(|text| Zeroizing::new(text.to_owned())))
}
