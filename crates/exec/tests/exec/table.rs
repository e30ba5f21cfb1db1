//! Requests and answers in tables, and the few shapes that answers have.

use outpost_testkit::{AppServer, Lack, Options};
use serde_json::{Value, json};

/// A server with the handshake behind it.
pub(crate) fn server() -> AppServer {
    AppServer::start(&Options::default())
}

/// True for a test of what we do otherwise on purpose, when the original has our place. With `OUTPOST_EXEC_ALL` such a test
/// runs there too: it must fail, or it would not notice when we do as the original does.
pub(crate) fn runs_on_original() -> bool {
    AppServer::is_original() && std::env::var_os("OUTPOST_EXEC_ALL").is_none()
}

/// For a test of what we do otherwise on purpose.
pub(crate) fn skip_on_original() -> Result<(), Lack> {
    match runs_on_original() {
        true => Err(Lack::of_host("the original does otherwise")),
        false => Ok(()),
    }
}

/// Params of a command that nothing confines.
pub(crate) fn danger(command: &[&str]) -> Value {
    json!({"command": command, "sandboxPolicy": {"type": "dangerFullAccess"}})
}

/// The same for a script.
pub(crate) fn sh(script: &str) -> Value {
    danger(&["/bin/sh", "-c", script])
}

/// Params with others over them.
pub(crate) fn with(mut params: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    params
}

/// The whole line of an error.
pub(crate) fn error(id: &str, code: i32, text: &str) -> String {
    format!(r#"{{"error":{{"code":{code},"message":{}}},"id":{id}}}"#, json!(text))
}

/// The line of a result up to its third member. Further members may follow.
pub(crate) fn result(id: &str, exit_code: i32, stdout: &str, stderr: &str) -> String {
    let (stdout, stderr) = (json!(stdout), json!(stderr));
    format!(r#"{{"id":{id},"result":{{"exitCode":{exit_code},"stdout":{stdout},"stderr":{stderr}"#)
}

/// Whether a line is the result that begins so: nothing else may stand before, and only members behind.
pub(crate) fn is_result(line: &str, begin: &str) -> bool {
    line.strip_prefix(begin)
        .is_some_and(|rest| rest == "}}" || (rest.starts_with(",\"") && rest.ends_with("}}")))
}

/// What a row expects: `-32602 text` for an error, `{}` as it stands, `exit N out|err` for a result.
pub(crate) fn fits(line: &str, id: &str, expected: &str) -> bool {
    if let Some(rest) = expected.strip_prefix("exit ") {
        let (code, streams) = rest.split_once(' ').unwrap_or((rest, "|"));
        let (stdout, stderr) = streams.split_once('|').unwrap();
        return is_result(line, &result(id, code.parse().unwrap(), stdout, stderr));
    }
    match expected.split_once(' ') {
        Some((code, text)) if code.parse::<i32>().is_ok() => line == error(id, code.parse().unwrap(), text),
        _ => line == format!(r#"{{"id":{id},"result":{expected}}}"#),
    }
}

/// A method, its params, and the answer as [`fits`] reads it.
pub(crate) type Row<'a> = (&'a str, Value, &'a str);

/// Sends every row, compares every reply, and reports all that differ.
pub(crate) fn check(server: &mut AppServer, rows: &[Row<'_>]) {
    let mut wrong = String::new();
    for (method, params, expected) in rows {
        let id = server.request(method, params);
        let line = server.reply(id);
        if !fits(&line, &id.to_string(), expected) {
            wrong += &format!("\n{method} {params:.300}\n  expected {expected}\n  got      {line}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The same for `command/exec` alone.
pub(crate) fn check_exec(server: &mut AppServer, rows: Vec<(Value, &str)>) {
    let rows: Vec<Row<'_>> = rows.into_iter().map(|(params, text)| ("command/exec", params, text)).collect();
    check(server, &rows);
}

/// A request that starts nothing and is always answered in the same way.
pub(crate) const PROBE: &str = r#""method":"command/exec/terminate","params":{"processId":"none"}"#;
/// Behind `error` of it.
pub(crate) const PROBE_TEXT: &str = r#"no active command/exec for process id "none""#;

/// Lines as sent, and the expected reply lines; an empty one means no reply.
pub(crate) fn check_lines(server: &mut AppServer, rows: &[(&str, String)]) {
    let mut wrong = String::new();
    for (line, expected) in rows {
        server.send(format!("{line}\n"));
        if expected.is_empty() {
            // Whatever came of it would come before this.
            server.send(format!("{{\"id\":\"probe\",{PROBE}}}\n"));
        }
        let got = server.line();
        let answer = if expected.is_empty() { &error("\"probe\"", -32600, PROBE_TEXT) } else { expected };
        if got != *answer {
            wrong += &format!("\n{line:.300}\n  expected {answer}\n  got      {got}");
            if expected.is_empty() {
                server.reply_to("\"probe\"");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
