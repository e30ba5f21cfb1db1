//! Keys from the terminal: single ones, and the sequences that arrows and pastes send, each taken as a whole.

use outpost_sys::Errno;
use outpost_sys::epoll::{Waker, wait_any_readable, wait_readable};
use outpost_sys::terminal::Terminal;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of one sequence come together; the escape key comes alone.
const SEQUENCE_TIMEOUT: Duration = Duration::from_millis(30);

/// A paste whose end does not come within this is over.
const PASTE_TIMEOUT: Duration = Duration::from_secs(1);

/// Of a sequence. No key has so many bytes.
const SEQUENCE_BYTES_MAX: usize = 4096;

/// Keys that may be queued; a person types slower than they are read.
const KEYS_MAX: usize = 16;

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Byte(u8),
    /// A byte that arrived together with others: pasted, not typed.
    Pasted(u8),
    Move(Move),
    /// The escape key alone.
    Escape,
    /// Any other sequence, such as a paste that the terminal has marked. It means nothing.
    Sequence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Reads keys on a thread of its own until it is dropped.
pub(crate) struct Reader {
    keys: mpsc::Receiver<io::Result<Key>>,
    waker: Arc<Waker>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    pub(crate) fn new(terminal: Arc<Terminal>) -> io::Result<Reader> {
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
    pub(crate) async fn next(&mut self) -> io::Result<Key> {
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

/// A wait without a practical limit.
const WAIT: Duration = Duration::from_secs(3600);

fn read_all(terminal: &Terminal, waker: &Waker, keys: &mpsc::Sender<io::Result<Key>>) -> io::Result<()> {
    let mut follows = false;
    loop {
        let ready = wait_any_readable(&[terminal.as_fd(), waker.as_fd()], WAIT)?;
        if ready.last() == Some(&true) || keys.is_closed() {
            return Ok(());
        }
        for key in read_some(terminal, &mut follows)? {
            if keys.blocking_send(Ok(key)).is_err() {
                return Ok(());
            }
        }
    }
}

/// `follows` when the byte to be read was there together with the one before it.
fn read_some(terminal: &Terminal, follows: &mut bool) -> io::Result<Vec<Key>> {
    let mut byte = [0];
    match terminal.read(&mut byte) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) if byte == [0x1b] => {
            *follows = false;
            read_sequences(terminal)
        }
        Ok(_) => {
            let more = wait_readable(terminal, Duration::ZERO)?;
            let followed = std::mem::replace(follows, more);
            let [byte] = byte;
            Ok(vec![if more || followed { Key::Pasted(byte) } else { Key::Byte(byte) }])
        }
        Err(Errno::AGAIN) => Ok(Vec::new()),
        Err(errno) => Err(errno.into()),
    }
}

fn read_sequences(terminal: &Terminal) -> io::Result<Vec<Key>> {
    let mut bytes = vec![0x1b];
    loop {
        let timeout = if is_in_paste(&bytes) { PASTE_TIMEOUT } else { SEQUENCE_TIMEOUT };
        let known = known(&bytes);
        if known.is_some() || !wait_readable(terminal, timeout)? {
            return Ok(known.unwrap_or_else(|| unknown(&bytes)));
        }
        let mut piece = [0; 256];
        match terminal.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        if bytes.len() > SEQUENCE_BYTES_MAX {
            // Of a paste its beginning and what may be its end are enough to know it by.
            bytes.drain(PASTE_BEGIN.len()..bytes.len() - PASTE_END.len());
        }
    }
}

const PASTE_BEGIN: &[u8] = b"\x1b[200~";
const PASTE_END: &[u8] = b"\x1b[201~";

fn is_in_paste(bytes: &[u8]) -> bool {
    bytes.starts_with(PASTE_BEGIN) && !bytes.ends_with(PASTE_END)
}

/// Every key of what came, if there is nothing else in it: then nothing has to be waited for.
fn known(bytes: &[u8]) -> Option<Vec<Key>> {
    if bytes.starts_with(PASTE_BEGIN) && bytes.ends_with(PASTE_END) {
        return Some(vec![Key::Sequence]);
    }
    let sequences = bytes.split(|byte| *byte == 0x1b).skip(1);
    sequences.map(|sequence| moved(sequence).map(Key::Move)).collect()
}

fn unknown(bytes: &[u8]) -> Vec<Key> {
    vec![if bytes == b"\x1b" { Key::Escape } else { Key::Sequence }]
}

/// What comes behind the escape. Terminals send one or the other, by a mode that we do not set.
fn moved(sequence: &[u8]) -> Option<Move> {
    Some(match sequence {
        b"[A" | b"OA" => Move::Up,
        b"[B" | b"OB" => Move::Down,
        b"[5~" => Move::PageUp,
        b"[6~" => Move::PageDown,
        b"[H" | b"OH" | b"[1~" | b"[7~" => Move::Home,
        b"[F" | b"OF" | b"[4~" | b"[8~" => Move::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sequences_that_we_know_are_keys() {
        let down = Key::Move(Move::Down);
        assert_eq!(known(b"\x1b[B\x1bOB"), Some(vec![down, down]));
        assert_eq!(known(b"\x1b[6~"), Some(vec![Key::Move(Move::PageDown)]));
        for part in [&b"\x1b"[..], b"\x1b[", b"\x1b[B\x1b", b"\x1by", b"\x1b[By", b"\x1b]0;y\x07"] {
            assert_eq!(known(part), None, "{part:?}");
        }
        assert_eq!(unknown(b"\x1b"), [Key::Escape]);
        assert_eq!(unknown(b"\x1by"), [Key::Sequence]);
    }

    #[test]
    fn what_is_pasted_is_one_sequence_to_its_end() {
        assert!(is_in_paste(b"\x1b[200~yyy\n"));
        assert_eq!(known(b"\x1b[200~y\x1b[B\x1b[201~"), Some(vec![Key::Sequence]));
        assert!(!is_in_paste(b"\x1b[200~y\x1b[201~"));
    }
}
