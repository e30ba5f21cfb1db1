//! One connection to a broker: bytes there, one line back.

use crate::daemon::{TIMEOUT, pause};
use crate::user::as_user;
use outpost_sys::epoll::wait_readable;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub struct BrokerClient {
    stream: UnixStream,
}

impl BrokerClient {
    pub fn connect(socket: &Path) -> BrokerClient {
        let stream = crate::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        BrokerClient { stream }
    }

    /// As another user; only root can.
    pub fn connect_as(socket: &Path, uid: u32) -> BrokerClient {
        if uid == outpost_sys::process::effective_uid() {
            return BrokerClient::connect(socket);
        }
        as_user(uid, || BrokerClient::connect(socket))
    }

    /// The same for a socket that is not there yet, as long as its daemon runs.
    pub fn wait_connect(socket: &Path, runs: impl Fn() -> bool) -> BrokerClient {
        let begun = Instant::now();
        while crate::connect(socket).is_err() {
            assert!(begun.elapsed() < TIMEOUT && runs(), "no process listens on {}", socket.display());
            pause();
        }
        BrokerClient::connect(socket)
    }

    /// Sends bytes as they are; returns whether the daemon read them all. A daemon that refuses closes during the write.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        match self.stream.write_all(bytes.as_ref()) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => false,
            Err(error) => panic!("cannot write: {error}"),
        }
    }

    /// No more bytes will come from us.
    pub fn end(&mut self) {
        // Fails if the daemon has closed the connection.
        let _closed = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether something comes, or the end, within this time.
    pub fn has_answer(&self, timeout: Duration) -> bool {
        wait_readable(&self.stream, timeout).unwrap()
    }

    /// Everything until the daemon closes, which it must do within reason.
    pub fn rest(&mut self) -> Vec<u8> {
        self.rest_within(TIMEOUT)
    }

    /// The same for a test that knows how long that may take.
    pub fn rest_within(&mut self, timeout: Duration) -> Vec<u8> {
        let begun = Instant::now();
        let mut bytes = Vec::new();
        let mut piece = vec![0; 256 * 1024];
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            assert!(self.has_answer(left), "it neither answers nor closes; so far {:.300?}", text(&bytes));
            match self.stream.read(&mut piece) {
                Ok(0) => return bytes,
                Ok(read) => bytes.extend_from_slice(piece.get(..read).unwrap()),
                // It has closed without having read everything we sent.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return bytes,
                Err(error) => panic!("cannot read: {error}"),
            }
        }
    }

    /// The one line that comes before the daemon closes, without its newline.
    pub fn answer(&mut self) -> String {
        one_line(self.rest())
    }

    pub fn answer_within(&mut self, timeout: Duration) -> String {
        one_line(self.rest_within(timeout))
    }
}

fn one_line(bytes: Vec<u8>) -> String {
    let line = bytes.strip_suffix(b"\n").unwrap_or_else(|| panic!("no line: {:.300?}", text(&bytes)));
    assert!(!line.contains(&b'\n'), "more than one line: {:.600?}", text(&bytes));
    String::from_utf8(line.to_vec()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
