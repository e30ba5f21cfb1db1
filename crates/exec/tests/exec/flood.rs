//! More at once than any queue holds.

use crate::table::{PROBE, PROBE_TEXT, danger, error, ours_only, server};
use serde_json::json;
use std::fmt::Write;

const REQUESTS: usize = 3000;

/// The original loses most of them without a word, or says that it is overloaded.
#[test]
fn of_three_thousand_requests_in_one_write_none_is_lost() {
    if ours_only() {
        return;
    }
    let mut server = server();
    let mut lines = String::new();
    for id in 0..REQUESTS {
        writeln!(lines, "{{\"id\":\"f{id}\",{PROBE}}}").unwrap();
    }
    server.send(lines);
    for id in 0..REQUESTS {
        let id = json!(format!("f{id}")).to_string();
        assert_eq!(server.reply_to(&id), error(&id, -32600, PROBE_TEXT));
    }
}

#[test]
fn of_many_commands_in_one_write_none_is_lost() {
    if ours_only() {
        return;
    }
    let mut server = server();
    let mut lines = String::new();
    for id in 0..400 {
        let request =
            json!({"id": id, "method": "command/exec", "params": danger(&["/bin/echo", &id.to_string()])});
        writeln!(lines, "{request}").unwrap();
    }
    server.send(lines);
    for id in 0..400 {
        let reply = server.reply_to(&id.to_string());
        let begin = crate::table::result(&id.to_string(), 0, &format!("{id}\n"), "");
        assert!(crate::table::is_result(&reply, &begin), "{reply}");
    }
}

/// Both run, both are answered.
#[test]
fn two_requests_under_one_id_are_two_requests() {
    let mut server = server();
    let line = |word: &str| {
        json!({"id": 7, "method": "command/exec", "params": danger(&["/bin/echo", word])}).to_string() + "\n"
    };
    server.send(line("a") + &line("b"));
    let mut said = [server.line(), server.line()];
    said.sort();
    let [a, b] = said.map(|line| line.split(r#","stderr":"#).next().unwrap().to_owned());
    assert_eq!(a, r#"{"id":7,"result":{"exitCode":0,"stdout":"a\n""#);
    assert_eq!(b, r#"{"id":7,"result":{"exitCode":0,"stdout":"b\n""#);
}
