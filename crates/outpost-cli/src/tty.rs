//! The controlling terminal: reads keys, writes text, and prompts for secrets without echo.

pub(crate) mod keys;

use keys::{Key, Reader};
use outpost_sys::terminal::Terminal;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// A terminal that blocks writes for this long is unusable.
pub(crate) const TERMINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest secret.
const SECRET_BYTES_MAX: usize = 1024;

/// Whether colors are allowed: <https://no-color.org>.
pub(crate) fn wants_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes the whole text before it returns, because a question must be visible before its answer is read.
pub async fn show(terminal: &Arc<Terminal>, text: String) -> io::Result<()> {
    let terminal = terminal.clone();
    let written =
        tokio::task::spawn_blocking(move || terminal.write_all(text.as_bytes(), TERMINAL_WRITE_TIMEOUT));
    Ok(written.await.map_err(io::Error::other)??)
}

/// Reads a line without echo; `None` after Ctrl-C or Ctrl-D. Cancel-safe: the drop restores the terminal.
pub async fn ask_secret(what: &str) -> io::Result<Option<Zeroizing<String>>> {
    let terminal = Arc::new(Terminal::open()?);
    let mode = terminal.cbreak()?;
    let mut keys = Reader::new(terminal.clone())?;
    show(&terminal, format!("\n{what} ")).await?;
    let mut typed = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX));
    let done = loop {
        match keys.next().await? {
            // Secrets are often pasted.
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
