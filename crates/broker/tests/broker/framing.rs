//! "JSON lines over Unix socket. One request per connection": valid and invalid lines, and their responses.

use crate::kit::{broker, check_lines, error, ok, ping, plain, pong, same, sh};
use outpost_testkit::Broker;
use serde_json::json;
use std::time::{Duration, Instant};

/// "Maximum request size: 1 MB", including the newline.
const LINE_BYTES_MAX: usize = 1_048_576;

/// A ping line of exactly this many bytes, including the newline.
fn ping_of(id: &str, bytes: usize) -> String {
    let line = ping(id).to_string();
    let spaces = " ".repeat(bytes - line.len() - 1);
    format!("{line}{spaces}\n")
}

fn without_newline() -> String {
    error("", "read error: request missing trailing newline")
}

fn too_long() -> String {
    error("", "read error: request exceeds maximum size")
}

#[test]
fn one_line_gets_one_line_and_eof() {
    let broker = broker();
    let bytes = broker.send(&ping("a")).rest();
    assert_eq!(String::from_utf8(bytes).unwrap(), pong("a") + "\n");
}

#[test]
fn a_line_may_arrive_byte_by_byte() {
    let broker = broker();
    let mut client = broker.connect();
    for byte in ping("a").to_string().bytes() {
        client.send([byte]);
    }
    client.send("\n");
    same(&client.answer(), &pong("a"));
}

#[test]
fn whitespace_around_a_request_is_ignored() {
    let broker = broker();
    for (id, ending) in [("crlf", "\r\n"), ("spaces", "  \t \n")] {
        let line = format!(" \t{}{ending}", ping(id));
        same(&broker.send_raw(line).answer(), &pong(id));
    }
}

#[test]
fn data_after_the_first_newline_is_ignored() {
    let broker = broker();
    let two = format!("{}\n{}\n", ping("first"), ping("second"));
    same(&broker.send_raw(two).answer(), &pong("first"));
    let and_rubbish = format!("{}\n\u{0}rubbish", ping("third"));
    same(&broker.send_raw(and_rubbish).answer(), &pong("third"));
    // The second request was not processed: its id is unused.
    same(&broker.request(&ping("second")), &pong("second"));
}

#[test]
fn a_second_request_on_the_same_connection_is_not_answered() {
    let broker = broker();
    let mut client = broker.send(&ping("first"));
    assert!(client.has_answer(Duration::from_secs(60)));
    client.send(format!("{}\n", ping("second")));
    same(&client.answer(), &pong("first"));
}

#[test]
fn a_partial_line_gets_the_missing_newline_error() {
    let broker = broker();
    for bytes in [ping("a").to_string(), "{".to_owned(), "not json".to_owned(), " ".to_owned()] {
        let mut client = broker.send_raw(&bytes);
        client.end();
        same(&client.answer(), &without_newline());
    }
    // The id of a complete request without its newline stays unused.
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn an_empty_connection_gets_no_response() {
    let broker = broker();
    let mut silent = broker.connect();
    silent.end();
    assert_eq!(silent.rest(), b"");
    assert_eq!(broker.send_raw("\n").rest(), b"", "a blank line");
    assert_eq!(broker.send_raw(format!("\n{}\n", ping("a"))).rest(), b"", "a blank line before a request");
    // A connection that closes at once has no effect.
    drop(broker.connect());
    same(&broker.request(&ping("b")), &pong("b"));
    assert!(!broker.has_prompt());
}

#[test]
fn invalid_json_is_reported_with_its_position() {
    let broker = broker();
    let rows = [
        ("not json", "invalid JSON: expected ident at line 1 column 2"),
        ("rubbish", "invalid JSON: expected value at line 1 column 1"),
        (" ", "invalid JSON: EOF while parsing a value at line 1 column 1"),
        ("\r", "invalid JSON: EOF while parsing a value at line 1 column 1"),
        ("{", "invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("{\"id\":\"x\",}", "invalid JSON: trailing comma at line 1 column 11"),
        ("{} {}", "invalid JSON: trailing characters at line 1 column 4"),
        ("{'id':1}", "invalid JSON: key must be a string at line 1 column 2"),
    ];
    let rows = rows.map(|(line, message)| (line.to_owned(), error("", message)));
    check_lines(&broker, &rows);
    let not_utf8 = broker.send_raw(b"{\"id\":\"\xff\"}\n").answer();
    // The original's version of serde_json reports the next column.
    let column = if Broker::is_original() { 9 } else { 8 };
    let message = format!("invalid JSON: invalid unicode code point at line 1 column {column}");
    same(&not_utf8, &error("", &message));
}

#[test]
fn a_line_of_the_maximum_size_is_accepted_and_a_longer_one_refused() {
    let broker = broker();
    same(&broker.send_raw(ping_of("a", LINE_BYTES_MAX)).answer(), &pong("a"));
    same(&broker.send_raw(ping_of("b", LINE_BYTES_MAX + 1)).answer(), &too_long());
    same(&broker.send_raw(ping_of("b", LINE_BYTES_MAX)).answer(), &pong("b"));
}

#[test]
fn an_endless_line_is_refused_while_it_is_sent() {
    let broker = broker();
    let mut client = broker.connect();
    let piece = vec![b' '; 256 * 1024];
    let mut sent = 0;
    while sent < 64 * piece.len() && client.send(&piece) {
        sent += piece.len();
        if client.has_answer(Duration::ZERO) {
            break;
        }
    }
    same(&client.answer(), &too_long());
}

#[test]
fn the_deadline_for_a_line_is_ten_seconds_at_any_pace() {
    let broker = broker();
    let mut client = broker.connect();
    let begun = Instant::now();
    // One byte per second: no single read waits long.
    for byte in ping("a").to_string().bytes() {
        client.send([byte]);
        if client.has_answer(Duration::from_secs(1)) {
            break;
        }
    }
    same(&client.answer(), &error("", "handshake deadline exceeded"));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(9_500), "after {waited:?} already");
    assert!(waited < Duration::from_secs(20), "only after {waited:?}");
    same(&broker.request(&ping("a")), &pong("a"));
}

#[test]
fn a_client_that_shut_down_its_sending_side_gets_the_response() {
    let mut broker = broker();
    let mut client = broker.send(&ping("a"));
    client.end();
    same(&client.answer(), &pong("a"));
    let mut client = broker.send(&plain("b", json!([["printf", "x"]])));
    client.end();
    broker.approve();
    same(&client.answer(), &ok("b", &[(0, "")], "x"));
}

#[test]
fn a_running_command_survives_its_clients_disconnect() {
    let mut broker = broker();
    let (fifo, file) = (broker.path("go"), broker.path("done"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let client = broker.send(&sh("a", &format!("cat {} >{}", fifo.display(), file.display())));
    broker.approve();
    // The open blocks until the command reads the FIFO.
    let mut writer = std::fs::File::options().write(true).open(&fifo).unwrap();
    drop(client);
    same(&broker.request(&ping("b")), &pong("b"));
    std::io::Write::write_all(&mut writer, b"done").unwrap();
    drop(writer);
    broker.wait_childless();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "done");
}

#[test]
fn many_connections_are_served_at_once() {
    let mut broker = broker();
    let mut slow = broker.send(&plain("slow", json!([["sleep", "600"]])));
    broker.approve();
    // A running command, a pending prompt and a partial line do not block other connections.
    let asked = broker.send(&plain("asked", json!([["true"]])));
    broker.wait_prompt();
    let partial = broker.send_raw("{");
    same(&broker.request(&ping("a")), &pong("a"));
    assert!(!slow.has_answer(Duration::ZERO));
    drop(partial);
    broker.approve();
    let mut asked = asked;
    same(&asked.answer(), &ok("asked", &[(0, "")], ""));
    drop(broker);
    // The daemon exited and killed the command. No response comes.
    let _nothing = slow.rest();
}

#[test]
fn a_large_request_runs_unchanged() {
    let mut broker = broker();
    // Two arguments, since the kernel limits each to 128 KiB, in a line of 900 kB.
    let argument = "x".repeat(100_000);
    let request = plain("a", json!([["printf", "%s%s", argument, argument]]));
    let line = request.to_string();
    let line = line + &" ".repeat(700_000) + "\n";
    let mut client = broker.send_raw(line);
    broker.approve();
    let answer = client.answer();
    same(&answer, &ok("a", &[(0, "")], &argument.repeat(2)));
    assert!(Broker::is_original() || !broker.screen().contains("hidden"));
}
