//! Downloads from a local HTTP server that misbehaves in many ways.

use super::fixture::{CLI, Fixture, Server, noise, ok, packed, respond, sha256};
use super::{LIMITS, Limits, run_within};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

const SHORT_STALL: Limits = Limits { stall_timeout: Duration::from_millis(500), ..LIMITS };

fn head(stream: &mut TcpStream, headers: &str) {
    respond(stream, "200 OK", headers, b"");
}

/// Returns when the client disconnects. The timeout makes a broken test fail instead of hang.
fn until_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _gone = stream.read(&mut [0; 16]);
}

/// Sends 64 MiB: more than a client should read, but too little to fill a disk.
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
    let fixture = Fixture::with_url(server.url("/cli"), &blob);
    let output = fixture.run();
    assert!(output.installed(), "{output:?}");
    assert_eq!(fixture.names(), ["1.0"]);
    assert_eq!(std::fs::read(fixture.cli()).unwrap(), CLI);
    assert_eq!(output.fetch("bytes"), Some(blob.len() as u64));
    assert!(output.fetch("longestPauseMs").unwrap() <= output.fetch("ms").unwrap());
    let again = fixture.run();
    assert!(again.was_present() && again.fetch("bytes").is_none(), "no download was attempted: {again:?}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_checksum_is_verified_on_every_download() {
    let marker = tempfile::tempdir().unwrap();
    let path = marker.path().join("executed");
    let blob = packed(format!("#!/bin/sh\ntouch {}\n", path.display()).as_bytes());
    let (server, actual) = (Server::of(&blob), sha256(&blob));
    let mut fixture = Fixture::with_url(server.url("/"), &blob);
    for wrong in ["", "00", "zz"] {
        fixture.options.cli_checksum = wrong.to_owned();
        let output = fixture.run();
        assert_eq!(output.error(), format!("checksum mismatch: expected={wrong}, actual={actual}"));
        assert_eq!(output.fetch("bytes"), Some(blob.len() as u64));
        assert!(!path.exists() && fixture.names().is_empty());
    }
    fixture.options.cli_checksum = actual.to_uppercase();
    assert!(fixture.run().installed());
}

#[test]
fn a_local_blob_takes_precedence_over_a_url() {
    let server = Server::of(b"");
    let mut fixture = Fixture::with_blob(&packed(CLI));
    fixture.options.cli_url = server.url("/");
    let output = fixture.run();
    assert!(output.installed() && output.fetch("ms").is_none());
    assert!(server.requests().is_empty());
}

#[test]
fn a_truncated_body_is_an_error_with_any_framing() {
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
        let fixture = Fixture::with_url(server.url("/"), &blob);
        let output = fixture.run();
        assert_eq!(output.error(), "download failed: unexpected EOF", "{framing}");
        assert!(fixture.names().is_empty());
        assert_eq!(output.fetch("bytes"), Some(blob.len() as u64 / 2), "{framing}");
    }
}

#[test]
fn a_truncated_body_without_framing_fails_the_checksum() {
    let blob = packed(CLI);
    let half = blob[..blob.len() / 2].to_vec();
    let actual = sha256(&half);
    let server = Server::start(move |_, stream| respond(stream, "200 OK", "", &half));
    let fixture = Fixture::with_url(server.url("/"), &blob);
    assert_eq!(
        fixture.run().error(),
        format!("checksum mismatch: expected={}, actual={actual}", fixture.options.cli_checksum)
    );
    let whole = blob.clone();
    let server = Server::start(move |_, stream| respond(stream, "200 OK", "", &whole));
    assert!(Fixture::with_url(server.url("/"), &blob).run().installed());
}

#[test]
fn a_stalled_download_times_out() {
    let blob = packed(CLI);
    let total = blob.len();
    let (known, unknown) = (format!("Content-Length: {total}\r\n"), String::new());
    for (headers, shown) in [(known, total.to_string()), (unknown, "unknown".to_owned())] {
        let part = blob[..10].to_vec();
        let server = Server::start(move |_, stream| {
            respond(stream, "200 OK", &headers, &part);
            until_closed(stream);
        });
        let fixture = Fixture::with_url(server.url("/"), &blob);
        let output = fixture.run_within(&SHORT_STALL);
        assert_eq!(output.error(), format!("download stalled: no data for 500ms after 10/{shown} bytes"));
        assert!(output.fetch("longestPauseMs").unwrap() >= 500);
        assert!(fixture.names().is_empty());
    }
    let server = Server::start(|_, stream| until_closed(stream));
    let output = Fixture::with_url(server.url("/"), &blob).run_within(&SHORT_STALL);
    assert_eq!(output.error(), "download stalled: no data for 500ms after 0/unknown bytes");
}

#[test]
fn the_stall_timeout_is_shown_in_seconds() {
    let server = Server::start(|_, stream| until_closed(stream));
    let second = Limits { stall_timeout: Duration::from_secs(1), ..LIMITS };
    let output = Fixture::with_url(server.url("/"), b"").run_within(&second);
    assert_eq!(output.error(), "download stalled: no data for 1s after 0/unknown bytes");
    assert_eq!(LIMITS.stall_timeout, Duration::from_secs(60));
}

#[test]
fn a_slow_download_does_not_time_out() {
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
    let limits = Limits { stall_timeout: Duration::from_secs(1), ..LIMITS };
    let output = Fixture::with_url(server.url("/"), &blob).run_within(&limits);
    assert!(output.installed(), "{output:?}");
    assert!(output.fetch("ms").unwrap() >= 1200);
}

#[test]
fn progress_is_printed_during_a_stall() {
    struct Out(Vec<u8>, Option<mpsc::Sender<()>>);
    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            // The same count twice: the second line was printed during the stall.
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
    let fixture = Fixture::with_url(server.url("/"), &blob);
    let mut out = Out(Vec::new(), Some(seen));
    run_within(
        &Limits { progress_interval: Duration::from_millis(10), ..LIMITS },
        &fixture.options,
        "9.9",
        &mut out,
    );
    let output = super::fixture::RunOutput::new(out.0);
    assert!(output.installed(), "{output:?}");
    let line =
        format!("__INSTALL_PROGRESS__{{\"phase\":\"download\",\"bytes\":10,\"total\":{}}}", blob.len());
    assert!(output.progress.iter().filter(|printed| **printed == line).count() >= 2, "{output:?}");
}

#[test]
fn redirects_of_every_status_are_followed() {
    for status in ["301 M", "302 F", "303 S", "307 T", "308 P"] {
        let blob = packed(CLI);
        let sent = blob.clone();
        let server = Server::start(move |target, stream| match target {
            "/a/b?sig=x" => respond(stream, status, "Location: ../c?d\r\nContent-Length: 0\r\n", b""),
            "/c?d" => {
                let own = stream.local_addr().unwrap();
                respond(stream, status, &format!("Location: http://{own}/e#f\r\n"), b"an ignored body");
            }
            "/e" => ok(stream, &sent),
            _ => respond(stream, "404 Not Found", "", b""),
        });
        let output = Fixture::with_url(server.url("/a/b?sig=x"), &blob).run();
        assert!(output.installed(), "{status}: {output:?}");
        assert_eq!(server.requests().len(), 3);
    }
}

#[test]
fn endless_redirects_are_stopped() {
    let server = Server::start(|_, stream| respond(stream, "302 Found", "Location: /\r\n", b""));
    let fixture = Fixture::with_url(server.url("/"), b"");
    assert_eq!(fixture.run().error(), "download failed: stopped after 10 redirects");
    assert_eq!(server.requests().len(), 11);
    assert!(fixture.names().is_empty());
}

#[test]
fn the_body_of_a_redirect_is_not_read() {
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
        let output = Fixture::with_url(server.url(target), &blob).run();
        assert!(output.installed(), "{target}: {output:?}");
    }
}

fn head_of_redirect(stream: &mut TcpStream, headers: &str) {
    respond(stream, "302 Found", &format!("Location: /cli\r\n{headers}"), b"");
}

#[test]
fn another_status_than_200_is_an_error() {
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
        let fixture = Fixture::with_url(server.url("/"), b"");
        let output = fixture.run();
        assert_eq!(output.error(), format!("download failed with status {}", &status[..3]));
        assert_eq!(output.fetch("bytes"), Some(0));
        assert!(fixture.names().is_empty());
    }
}

#[test]
fn a_too_large_response_is_refused_by_header_or_by_size() {
    let server = Server::start(|_, stream| {
        respond(stream, "200 OK", &format!("Content-Length: {}\r\n", 1_u64 << 60), b"");
        until_closed(stream);
    });
    let fixture = Fixture::with_url(server.url("/"), b"");
    assert_eq!(fixture.run().error(), "download failed: response exceeds 536870912 bytes");
    let server = Server::start(|_, stream| {
        head(stream, "");
        flood(stream);
    });
    let fixture = Fixture::with_url(server.url("/"), b"");
    let output = fixture.run_within(&Limits { download_bytes_max: 100_000, ..LIMITS });
    assert_eq!(output.error(), "download failed: response exceeds 100000 bytes");
    assert!(fixture.names().is_empty());
}

#[test]
fn a_chunked_response_is_installed() {
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
    let output = Fixture::with_url(server.url("/"), &blob).run();
    assert!(output.installed(), "{output:?}");
    assert_eq!(output.fetch("bytes"), Some(blob.len() as u64));
}

#[test]
fn the_checksum_ignores_the_content_encoding_header() {
    let blob = packed(CLI);
    for encoding in ["gzip", "br", "zstd", "deflate"] {
        let sent = blob.clone();
        let server = Server::start(move |_, stream| {
            let headers = format!("Content-Encoding: {encoding}\r\nContent-Length: {}\r\n", sent.len());
            respond(stream, "200 OK", &headers, &sent);
        });
        assert!(Fixture::with_url(server.url("/"), &blob).run().installed(), "{encoding}");
        let asked = server.requests().concat().iter().any(|line| line.to_ascii_lowercase().contains("gzip"));
        assert!(!asked, "the client requests no encoding");
    }
}

#[test]
fn a_signed_url_is_never_shown() {
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
        let output = Fixture::with_url(url, b"").run();
        assert!(output.result.contains(&format!("\"cliError\":\"{text}")), "{output:?}");
        assert!(!output.result.contains("secret"), "{output:?}");
        assert!(output.fetch("ms").is_some());
    }
    let first = server.requests().remove(0);
    assert!(first.iter().any(|line| line == "authorization: Basic dXNlcjpzZWNyZXQ="), "{first:?}");
}

#[test]
fn a_malformed_response_is_an_error() {
    for garbage in [
        b"\0\xff\0\xff\r\n\r\n".as_slice(),
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"SSH-2.0-x\r\n",
    ] {
        let server = Server::start(move |_, stream| stream.write_all(garbage).unwrap());
        let fixture = Fixture::with_url(server.url("/"), b"");
        let output = fixture.run();
        assert!(output.error().starts_with("download failed: "), "{output:?}");
        assert!(fixture.names().is_empty());
    }
}

#[test]
fn concurrent_downloads_of_one_version_succeed() {
    let blob = packed(CLI);
    let server = Server::of(&blob);
    let fixture = Fixture::with_url(server.url("/"), &blob);
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let install = || {
            start.wait();
            fixture.run()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(install)).collect();
        for one in all {
            assert_eq!(one.join().unwrap().error(), "");
        }
    });
    assert_eq!(fixture.names(), ["1.0"]);
    assert!(fixture.run().was_present());
}

#[test]
fn nothing_is_downloaded_if_the_directory_cannot_be_created() {
    let server = Server::of(b"");
    let mut fixture = Fixture::with_url(server.url("/"), b"");
    let file = fixture.root.path().join("file");
    std::fs::write(&file, "").unwrap();
    fixture.options.cli_dir = file.display().to_string();
    let output = fixture.run();
    assert_eq!(output.error(), format!("mkdir {}: not a directory", file.display()));
    assert!(output.fetch("ms").is_none() && server.requests().is_empty());
}
