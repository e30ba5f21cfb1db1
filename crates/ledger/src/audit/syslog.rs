//! Sends the head of the chain to the system log. An attacker that truncates the chain has to change that log
//! too.

use super::Head;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// The socket of the system log.
pub const SOCKET: &str = "/dev/log";
/// Facility authpriv, severity info.
const PRIORITY: u8 = 86;

/// Sends one line without blocking. Best effort: errors are ignored, because the chain does not depend on the
/// log.
pub fn send_head(socket: &Path, head: &Head) {
    let _best_effort = send(socket, head);
}

fn send(socket: &Path, head: &Head) -> std::io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    let line = format!("<{PRIORITY}>outpost[{}]: audit head {head}", std::process::id());
    sender.send_to(line.as_bytes(), socket).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_from_syslog_can_be_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = UnixDatagram::bind(&path).unwrap();
        let head = Head { seq: 7, hash: [0xab; 32] };
        send(&path, &head).unwrap();
        let mut bytes = [0; 512];
        let len = log.recv(&mut bytes).unwrap();
        let line = std::str::from_utf8(&bytes[..len]).unwrap();
        assert!(line.starts_with("<86>outpost["), "{line}");
        let (_, text) = line.split_once("audit head ").unwrap();
        assert_eq!(text.parse(), Ok(head));
    }

    #[test]
    fn a_full_or_missing_log_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(send(&path, &Head::NONE).is_err());
        let _never_reads = UnixDatagram::bind(&path).unwrap();
        while send(&path, &Head::NONE).is_ok() {}
    }
}
