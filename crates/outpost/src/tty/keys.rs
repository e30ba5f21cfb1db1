//! Keys from the terminal: single ones, with the sequences that arrows and pastes send taken as a whole and as nothing.

use outpost_sys::Errno;
use outpost_sys::epoll::{Waker, wait_any_readable, wait_readable};
use outpost_sys::terminal::Terminal;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of one sequence come together; the escape key comes alone.
const SEQUENCE_PATIENCE: Duration = Duration::from_millis(30);

/// Keys that may wait; nobody types faster than they are looked at.
const KEYS_MAX: usize = 16;

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Byte(u8),
    /// A sequence, or the escape key alone.
    Escape,
}

/// Reads keys on a thread of its own until it is dropped.
pub(super) struct Reader {
    keys: mpsc::Receiver<io::Result<Key>>,
    waker: Arc<Waker>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    pub(super) fn new(terminal: Arc<Terminal>) -> io::Result<Reader> {
        let (sender, keys) = mpsc::channel(KEYS_MAX);
        let waker = Arc::new(Waker::new()?);
        let its_waker = waker.clone();
        let thread = std::thread::Builder::new().name("outpost-keys".into());
        let thread = thread.spawn(move || {
            if let Err(error) = read_all(&terminal, &its_waker, &sender) {
                let _gone = sender.blocking_send(Err(error));
            }
        })?;
        Ok(Reader { keys, waker, thread: Some(thread) })
    }

    /// The next key. Safe to cancel.
    pub(super) async fn next(&mut self) -> io::Result<Key> {
        self.keys.recv().await.unwrap_or(Err(io::ErrorKind::UnexpectedEof.into()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.keys.close();
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Longer than anybody waits for a key.
const WAIT: Duration = Duration::from_secs(3600);

fn read_all(terminal: &Terminal, waker: &Waker, keys: &mpsc::Sender<io::Result<Key>>) -> io::Result<()> {
    loop {
        let ready = wait_any_readable(&[terminal.as_fd(), waker.as_fd()], WAIT)?;
        if ready.last() == Some(&true) || keys.is_closed() {
            return Ok(());
        }
        if let Some(key) = read_one(terminal)?
            && keys.blocking_send(Ok(key)).is_err()
        {
            return Ok(());
        }
    }
}

fn read_one(terminal: &Terminal) -> io::Result<Option<Key>> {
    let mut bytes = [0; 64];
    match terminal.read(bytes.get_mut(..1).unwrap_or_default()) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) if bytes.first() == Some(&0x1b) => {
            while wait_readable(terminal, SEQUENCE_PATIENCE)? && terminal.read(&mut bytes)? > 0 {}
            Ok(Some(Key::Escape))
        }
        Ok(_) => Ok(bytes.first().copied().map(Key::Byte)),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
