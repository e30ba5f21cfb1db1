//! The mode against a server on this host that does everything a server should not do.

use super::testkit::{CLI, Place, Server, noise, ok, packed, respond, sha256};
use super::{LIMITS, Limits, run_within};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

const QUICK: Limits = Limits { stall: Duration::from_millis(500), ..LIMITS };

fn head(stream: &mut TcpStream, headers: &str) {
    respond(stream, "200 OK", headers, b"");
}

/// Returns when the client has gone; closes if it never goes, so that a test without its feature fails and does not hang.
fn until_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _gone = stream.read(&mut [0; 16]);
}

/// Much more than anybody should read of it, but not so much that a disk is full of it.
fn flood(stream: &mut TcpStream) {
    for _ in 0..64 << 8 {
        if stream.write_all(&[b'x'; 4096]).is_err() {
            return;
        }
    }
}

#[test]
fn a_download_is_installed_and_measured() {
    let blob = packed(CLI);
    let server = Server::of(&blob);
    let place = Place::with_url(server.url("/cli"), &blob);
    let ran = place.run();
    assert!(ran.installed(), "{ran:?}");
    assert_eq!(place.names(), ["1.0"]);
    assert_eq!(std::fs::read(place.cli()).unwrap(), CLI);
    assert_eq!(ran.fetch("bytes"), Some(blob.len() as u64));
    assert!(ran.fetch("longestPauseMs").unwrap() <= ran.fetch("ms").unwrap());
    let again = place.run();
    assert!(again.was_present() && again.fetch("bytes").is_none(), "nothing was attempted: {again:?}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_checksum_is_asked_for_on_every_download() {
    let marker = tempfile::tempdir().unwrap();
    let path = marker.path().join("executed");
    let blob = packed(format!("#!/bin/sh\ntouch {}\n", path.display()).as_bytes());
    let (server, actual) = (Server::of(&blob), sha256(&blob));
    let mut place = Place::with_url(server.url("/"), &blob);
    for wrong in ["", "00", "zz"] {
        place.options.cli_checksum = wrong.to_owned();
        let ran = place.run();
        assert_eq!(ran.error(), format!("checksum mismatch: expected={wrong}, actual={actual}"));
        assert_eq!(ran.fetch("bytes"), Some(blob.len() as u64));
        assert!(!path.exists() && place.names().is_empty());
    }
    place.options.cli_checksum = actual.to_uppercase();
    assert!(place.run().installed());
}

#[test]
fn a_local_blob_wins_over_a_url() {
    let server = Server::of(b"");
    let mut place = Place::with_blob(&packed(CLI));
    place.options.cli_url = server.url("/");
    let ran = place.run();
    assert!(ran.installed() && ran.fetch("ms").is_none());
    assert!(server.requests().is_empty());
}

#[test]
fn a_body_that_ends_early_is_an_error_however_it_is_framed() {
    let blob = packed(CLI);
    let half = blob[..blob.len() / 2].to_vec();
    for framing in ["length", "chunks", "chunk"] {
        let (whole, half) = (blob.len(), half.clone());
        let server = Server::start(move |_, stream| match framing {
            "length" => respond(stream, "200 OK", &format!("Content-Length: {whole}\r\n"), &half),
            _ => {
                head(stream, "Transfer-Encoding: chunked\r\n");
                let announced = if framing == "chunk" { whole } else { half.len() };
                write!(stream, "{announced:x}\r\n").unwrap();
                stream.write_all(&half).unwrap();
            }
        });
        let place = Place::with_url(server.url("/"), &blob);
        let ran = place.run();
        assert_eq!(ran.error(), "download failed: unexpected EOF", "{framing}");
        assert!(place.names().is_empty());
        assert_eq!(ran.fetch("bytes"), Some(blob.len() as u64 / 2), "{framing}");
    }
}

#[test]
fn a_body_without_any_framing_cannot_end_early_unnoticed_either() {
    let blob = packed(CLI);
    let half = blob[..blob.len() / 2].to_vec();
    let actual = sha256(&half);
    let server = Server::start(move |_, stream| respond(stream, "200 OK", "", &half));
    let place = Place::with_url(server.url("/"), &blob);
    assert_eq!(
        place.run().error(),
        format!("checksum mismatch: expected={}, actual={actual}", place.options.cli_checksum)
    );
    let whole = blob.clone();
    let server = Server::start(move |_, stream| respond(stream, "200 OK", "", &whole));
    assert!(Place::with_url(server.url("/"), &blob).run().installed());
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let blob = packed(CLI);
    let total = blob.len();
    let (known, unknown) = (format!("Content-Length: {total}\r\n"), String::new());
    for (headers, shown) in [(known, total.to_string()), (unknown, "unknown".to_owned())] {
        let part = blob[..10].to_vec();
        let server = Server::start(move |_, stream| {
            respond(stream, "200 OK", &headers, &part);
            until_closed(stream);
        });
        let place = Place::with_url(server.url("/"), &blob);
        let ran = place.run_within(&QUICK);
        assert_eq!(ran.error(), format!("download stalled: no data for 500ms after 10/{shown} bytes"));
        assert!(ran.fetch("longestPauseMs").unwrap() >= 500);
        assert!(place.names().is_empty());
    }
    let server = Server::start(|_, stream| until_closed(stream));
    let ran = Place::with_url(server.url("/"), &blob).run_within(&QUICK);
    assert_eq!(ran.error(), "download stalled: no data for 500ms after 0/unknown bytes");
}

#[test]
fn the_real_limit_is_shown_in_seconds() {
    let server = Server::start(|_, stream| until_closed(stream));
    let second = Limits { stall: Duration::from_secs(1), ..LIMITS };
    let ran = Place::with_url(server.url("/"), b"").run_within(&second);
    assert_eq!(ran.error(), "download stalled: no data for 1s after 0/unknown bytes");
    assert_eq!(LIMITS.stall, Duration::from_secs(60));
}

#[test]
fn a_slow_download_is_no_stalled_one() {
    let blob = packed(CLI);
    let sent = blob.clone();
    let server = Server::start(move |_, stream| {
        head(stream, &format!("Content-Length: {}\r\n", sent.len()));
        for (index, byte) in sent.iter().enumerate() {
            stream.write_all(&[*byte]).unwrap();
            if index < 12 {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let limits = Limits { stall: Duration::from_secs(1), ..LIMITS };
    let ran = Place::with_url(server.url("/"), &blob).run_within(&limits);
    assert!(ran.installed(), "{ran:?}");
    assert!(ran.fetch("ms").unwrap() >= 1200);
}

#[test]
fn progress_is_told_while_nothing_comes() {
    struct Out(Vec<u8>, Option<mpsc::Sender<()>>);
    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            // Twice the same, so the second was told while nothing came.
            let half = "\"bytes\":10,";
            if String::from_utf8_lossy(&self.0).matches(half).count() >= 2 {
                self.1.take();
            }
            Ok(())
        }
    }
    let blob = packed(CLI);
    let (seen, wait) = mpsc::channel::<()>();
    let (sent, wait) = (blob.clone(), Mutex::new(wait));
    let server = Server::start(move |_, stream| {
        respond(stream, "200 OK", &format!("Content-Length: {}\r\n", sent.len()), &sent[..10]);
        let _hung_up = wait.lock().unwrap().recv();
        stream.write_all(&sent[10..]).unwrap();
    });
    let place = Place::with_url(server.url("/"), &blob);
    let mut out = Out(Vec::new(), Some(seen));
    run_within(&Limits { tick: Duration::from_millis(10), ..LIMITS }, &place.options, "9.9", &mut out);
    let ran = super::testkit::Ran::new(out.0);
    assert!(ran.installed(), "{ran:?}");
    let line =
        format!("__INSTALL_PROGRESS__{{\"phase\":\"download\",\"bytes\":10,\"total\":{}}}", blob.len());
    assert!(ran.progress.iter().filter(|told| **told == line).count() >= 2, "{ran:?}");
}

#[test]
fn redirects_of_all_kinds_are_followed() {
    for status in ["301 M", "302 F", "303 S", "307 T", "308 P"] {
        let blob = packed(CLI);
        let sent = blob.clone();
        let server = Server::start(move |target, stream| match target {
            "/a/b?sig=x" => respond(stream, status, "Location: ../c?d\r\nContent-Length: 0\r\n", b""),
            "/c?d" => {
                let own = stream.local_addr().unwrap();
                respond(
                    stream,
                    status,
                    &format!("Location: http://{own}/e#f\r\n"),
                    b"a page that nobody reads",
                );
            }
            "/e" => ok(stream, &sent),
            _ => respond(stream, "404 Not Found", "", b""),
        });
        let ran = Place::with_url(server.url("/a/b?sig=x"), &blob).run();
        assert!(ran.installed(), "{status}: {ran:?}");
        assert_eq!(server.requests().len(), 3);
    }
}

#[test]
fn redirects_that_never_end_do() {
    let server = Server::start(|_, stream| respond(stream, "302 Found", "Location: /\r\n", b""));
    let place = Place::with_url(server.url("/"), b"");
    assert_eq!(place.run().error(), "download failed: stopped after 10 redirects");
    assert_eq!(server.requests().len(), 11);
    assert!(place.names().is_empty());
}

#[test]
fn the_body_of_a_redirect_is_not_waited_for() {
    let blob = packed(CLI);
    let sent = blob.clone();
    let server = Server::start(move |target, stream| match target {
        "/endless" => {
            head_of_redirect(stream, "Content-Length: 1000000000000\r\n");
            flood(stream);
        }
        "/cut" => {
            head_of_redirect(stream, "Transfer-Encoding: chunked\r\n");
            stream.write_all(b"0\r\n").unwrap();
        }
        _ => ok(stream, &sent),
    });
    for target in ["/endless", "/cut"] {
        let ran = Place::with_url(server.url(target), &blob).run();
        assert!(ran.installed(), "{target}: {ran:?}");
    }
}

fn head_of_redirect(stream: &mut TcpStream, headers: &str) {
    respond(stream, "302 Found", &format!("Location: /cli\r\n{headers}"), b"");
}

#[test]
fn what_is_not_the_file_is_an_error_with_its_status() {
    for (status, headers) in [
        ("404 Not Found", ""),
        ("500 Oops", ""),
        ("403 Forbidden", ""),
        ("204 No Content", ""),
        ("206 Partial", ""),
        ("304 Not Modified", ""),
        ("300 Choose", "Location: /elsewhere\r\n"),
        ("302 Nowhere", ""),
    ] {
        let server = Server::start(move |_, stream| respond(stream, status, headers, b""));
        let place = Place::with_url(server.url("/"), b"");
        let ran = place.run();
        assert_eq!(ran.error(), format!("download failed with status {}", &status[..3]));
        assert_eq!(ran.fetch("bytes"), Some(0));
        assert!(place.names().is_empty());
    }
}

#[test]
fn what_is_too_large_is_refused_before_or_while_it_comes() {
    let server = Server::start(|_, stream| {
        respond(stream, "200 OK", &format!("Content-Length: {}\r\n", 1_u64 << 60), b"");
        until_closed(stream);
    });
    let place = Place::with_url(server.url("/"), b"");
    assert_eq!(place.run().error(), "download failed: response exceeds 536870912 bytes");
    let server = Server::start(|_, stream| {
        head(stream, "");
        flood(stream);
    });
    let place = Place::with_url(server.url("/"), b"");
    let ran = place.run_within(&Limits { download_bytes_max: 100_000, ..LIMITS });
    assert_eq!(ran.error(), "download failed: response exceeds 100000 bytes");
    assert!(place.names().is_empty());
}

#[test]
fn a_file_in_chunks_is_a_file() {
    let blob = packed(&[CLI, b"exit 0\n", &noise(100_000)].concat());
    let sent = blob.clone();
    let server = Server::start(move |_, stream| {
        head(stream, "Transfer-Encoding: chunked\r\n");
        for chunk in sent.chunks(777) {
            write!(stream, "{:x};extension\r\n", chunk.len()).unwrap();
            stream.write_all(chunk).unwrap();
            stream.write_all(b"\r\n").unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let ran = Place::with_url(server.url("/"), &blob).run();
    assert!(ran.installed(), "{ran:?}");
    assert_eq!(ran.fetch("bytes"), Some(blob.len() as u64));
}

#[test]
fn a_file_is_hashed_as_it_was_sent_whatever_the_server_calls_its_encoding() {
    let blob = packed(CLI);
    for encoding in ["gzip", "br", "zstd", "deflate"] {
        let sent = blob.clone();
        let server = Server::start(move |_, stream| {
            let headers = format!("Content-Encoding: {encoding}\r\nContent-Length: {}\r\n", sent.len());
            respond(stream, "200 OK", &headers, &sent);
        });
        assert!(Place::with_url(server.url("/"), &blob).run().installed(), "{encoding}");
        let asked = server.requests().concat().iter().any(|line| line.to_ascii_lowercase().contains("gzip"));
        assert!(!asked, "nobody asked for an encoding");
    }
}

#[test]
fn a_signed_url_is_used_and_never_shown() {
    let server = Server::start(|target, stream| match target {
        "/x?sig=secret" => respond(stream, "302 Found", "Location: ftp://a:secret@h/?secret\r\n", b""),
        _ => respond(stream, "200 OK", "Content-Length: secret\r\n", b""),
    });
    let url = |target| server.url(target).replace("127.0.0.1", "user:secret@127.0.0.1");
    let texts = [
        (url("/x?sig=secret"), "download failed: bad redirect: unsupported protocol scheme \\\"ftp\\\""),
        (url("/y?sig=secret"), "download failed: "),
        ("ftp://user:secret@h/?secret".to_owned(), "download failed: unsupported protocol scheme"),
        ("http://user:secret@127.0.0.1:1/?secret".to_owned(), "download failed: connection refused"),
    ];
    for (url, text) in texts {
        let ran = Place::with_url(url, b"").run();
        assert!(ran.result.contains(&format!("\"cliError\":\"{text}")), "{ran:?}");
        assert!(!ran.result.contains("secret"), "{ran:?}");
        assert!(ran.fetch("ms").is_some());
    }
    let first = server.requests().remove(0);
    assert!(first.iter().any(|line| line == "authorization: Basic dXNlcjpzZWNyZXQ="), "{first:?}");
}

#[test]
fn garbage_for_an_answer_is_an_error() {
    for garbage in [
        b"\0\xff\0\xff\r\n\r\n".as_slice(),
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"SSH-2.0-x\r\n",
    ] {
        let server = Server::start(move |_, stream| stream.write_all(garbage).unwrap());
        let place = Place::with_url(server.url("/"), b"");
        let ran = place.run();
        assert!(ran.error().starts_with("download failed: "), "{ran:?}");
        assert!(place.names().is_empty());
    }
}

#[test]
fn many_may_download_the_same_version_at_the_same_time() {
    let blob = packed(CLI);
    let server = Server::of(&blob);
    let place = Place::with_url(server.url("/"), &blob);
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let install = || {
            start.wait();
            place.run()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(install)).collect();
        for one in all {
            assert_eq!(one.join().unwrap().error(), "");
        }
    });
    assert_eq!(place.names(), ["1.0"]);
    assert!(place.run().was_present());
}

#[test]
fn nothing_is_downloaded_into_a_directory_that_cannot_be_made() {
    let server = Server::of(b"");
    let mut place = Place::with_url(server.url("/"), b"");
    let file = place.root.path().join("file");
    std::fs::write(&file, "").unwrap();
    place.options.cli_dir = file.display().to_string();
    let ran = place.run();
    assert_eq!(ran.error(), format!("mkdir {}: not a directory", file.display()));
    assert!(ran.fetch("ms").is_none() && server.requests().is_empty());
}
