//! What we are given for a process: lines or a file on standard input, or keys on a terminal.

use super::detach::{DetachKeys, Typed, Watch};
use super::terminal::Taken;
use std::io::{self, Read};
use std::os::fd::AsFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{self, Receiver};

/// Taken at a time.
const INPUT_BYTES: usize = 48 * 1024;
const KEYS_BYTES: usize = 4096;

/// Ends a view that has no input.
const INTERRUPT: u8 = 3;

pub(super) enum Input {
    Nothing,
    /// Ends with the standard input.
    Standard(Receiver<Vec<u8>>),
    Keys {
        /// The runtime's end of a pipe is what it has for descriptors that are only read.
        tty: pipe::Receiver,
        watch: Watch,
        /// Nobody wants them: they only leave.
        read_only: bool,
    },
}

/// What was given.
pub(super) enum Given {
    Bytes(Vec<u8>),
    /// There is no more.
    End,
    /// Last of all these, then the keys that detach.
    Detach(Vec<u8>),
    /// The terminal is gone.
    Gone,
}

impl Input {
    pub(super) fn standard() -> io::Result<Input> {
        let (sender, given) = mpsc::channel(1);
        std::thread::Builder::new().name("outpost-stdin".into()).spawn(move || {
            let mut buffer = vec![0; INPUT_BYTES];
            let mut stdin = io::stdin().lock();
            while let Ok(read @ 1..) = stdin.read(&mut buffer) {
                let piece = buffer.get(..read).unwrap_or_default().to_vec();
                if sender.blocking_send(piece).is_err() {
                    break;
                }
            }
        })?;
        Ok(Input::Standard(given))
    }

    pub(super) fn keys(taken: &Taken, keys: DetachKeys) -> io::Result<Input> {
        let tty = outpost_sys::file::duplicate(taken.tty().as_fd())?;
        let tty = pipe::Receiver::from_owned_fd_unchecked(tty)?;
        Ok(Input::Keys { tty, watch: Watch::new(keys), read_only: false })
    }

    /// Somebody else has the input of the process.
    pub(super) fn make_read_only(&mut self) {
        match self {
            Input::Keys { read_only, .. } => *read_only = true,
            Input::Nothing | Input::Standard(_) => *self = Input::Nothing,
        }
    }

    /// What comes next. Safe to cancel.
    pub(super) async fn next(&mut self) -> Given {
        match self {
            Input::Nothing => std::future::pending().await,
            Input::Standard(pieces) => match pieces.recv().await {
                Some(piece) => Given::Bytes(piece),
                None => {
                    *self = Input::Nothing;
                    Given::End
                }
            },
            Input::Keys { tty, watch, read_only } => {
                let mut typed = Vec::with_capacity(KEYS_BYTES);
                let Ok(1..) = tty.read_buf(&mut typed).await else { return Given::Gone };
                let Typed { bytes, detach } = watch.take(&typed);
                match detach || (*read_only && bytes.contains(&INTERRUPT)) {
                    true => Given::Detach(bytes),
                    false => Given::Bytes(bytes),
                }
            }
        }
    }
}
