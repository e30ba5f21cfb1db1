//! Input for an attached process: standard input, or keys of a raw terminal.

use super::detach::{DetachKeys, DetachMatcher, Typed};
use super::raw_terminal::RawTerminal;
use std::io::{self, Read};
use std::os::fd::AsFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{self, Receiver};

/// Read sizes.
const INPUT_BYTES: usize = 48 * 1024;
const KEYS_BYTES: usize = 4096;

/// Ctrl-C, which ends a read-only view.
const INTERRUPT: u8 = 3;

pub(super) enum Input {
    None,
    /// Chunks of standard input, read by a thread. The channel closes at EOF.
    Standard(Receiver<Vec<u8>>),
    Keys {
        /// Tokio has no async TTY; its pipe receiver works for any readable descriptor.
        tty: pipe::Receiver,
        matcher: DetachMatcher,
        /// Keys can only detach.
        read_only: bool,
    },
}

pub(super) enum InputEvent {
    Bytes(Vec<u8>),
    Eof,
    /// The detach keys, after these last bytes.
    Detach(Vec<u8>),
    /// The terminal was closed.
    Hangup,
}

impl Input {
    pub(super) fn standard() -> io::Result<Input> {
        let (sender, chunks) = mpsc::channel(1);
        std::thread::Builder::new().name("outpost-stdin".into()).spawn(move || {
            let mut buffer = vec![0; INPUT_BYTES];
            let mut stdin = io::stdin().lock();
            while let Ok(read @ 1..) = stdin.read(&mut buffer) {
                let chunk = buffer.get(..read).unwrap_or_default().to_vec();
                if sender.blocking_send(chunk).is_err() {
                    break;
                }
            }
        })?;
        Ok(Input::Standard(chunks))
    }

    pub(super) fn keys(terminal: &RawTerminal, keys: DetachKeys) -> io::Result<Input> {
        let tty = outpost_sys::file::duplicate(terminal.tty().as_fd())?;
        let tty = pipe::Receiver::from_owned_fd_unchecked(tty)?;
        Ok(Input::Keys { tty, matcher: DetachMatcher::new(keys), read_only: false })
    }

    /// Another terminal holds the input of the process.
    pub(super) fn make_read_only(&mut self) {
        match self {
            Input::Keys { read_only, .. } => *read_only = true,
            Input::None | Input::Standard(_) => *self = Input::None,
        }
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> InputEvent {
        match self {
            Input::None => std::future::pending().await,
            Input::Standard(chunks) => match chunks.recv().await {
                Some(chunk) => InputEvent::Bytes(chunk),
                None => {
                    *self = Input::None;
                    InputEvent::Eof
                }
            },
            Input::Keys { tty, matcher, read_only } => {
                let mut typed = Vec::with_capacity(KEYS_BYTES);
                let Ok(1..) = tty.read_buf(&mut typed).await else { return InputEvent::Hangup };
                let Typed { bytes, detach } = matcher.feed(&typed);
                match detach || (*read_only && bytes.contains(&INTERRUPT)) {
                    true => InputEvent::Detach(bytes),
                    false => InputEvent::Bytes(bytes),
                }
            }
        }
    }
}
