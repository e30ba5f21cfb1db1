//! Lines, and the handshake that comes before everything else.

use crate::table::{PROBE, PROBE_TEXT, check_lines, danger, error, server, sh, with};
use base64::Engine;
use outpost_testkit::{AppServer, Options};
use serde_json::{Value, json};

fn probe(id: &str) -> String {
    error(id, -32600, PROBE_TEXT)
}

#[test]
fn what_stands_around_a_request_is_ignored() {
    let mut server = server();
    let rows: Vec<(String, String)> = [
        format!("{{\"id\":1,{PROBE}}}\r"),
        format!("\t {{ \"id\" : 1 , {PROBE} }} "),
        format!("\r\n\n\n   \n{{\"id\":1,{PROBE}}}"),
        format!(r#"{{{PROBE},"id":1}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,{PROBE}}}"#),
        format!(r#"{{"jsonrpc":"1.0","id":1,{PROBE}}}"#),
        format!(r#"{{"jsonrpc":null,"id":1,{PROBE}}}"#),
        format!(r#"{{"id":1,{PROBE},"unknown":{{"a":[1,null]}},"auth":5}}"#),
        format!(r#"{{"id":1,{PROBE},"trace":null}}"#),
        format!(r#"{{"id":1,{PROBE},"trace":{{"traceparent":"00-1-2-3","tracestate":null}}}}"#),
        // A member that the params do not have, one in another case, one that comes twice.
        r#"{"id":1,"method":"command/exec/terminate","params":{"x":1,"PROCESSID":5,"processId":"none"}}"#
            .into(),
        r#"{"id":1,"method":"command/exec/terminate","params":{"processId":5,"processId":"none"}}"#.into(),
        r#"{"id":1,"method":"command\/exec/term\u0069nate","params":{"process\u0049d":"n\u006fne"}}"#.into(),
    ]
    .map(|line| (line, probe("1")))
    .into();
    let rows: Vec<(&str, String)> = rows.iter().map(|(line, reply)| (line.as_str(), reply.clone())).collect();
    check_lines(&mut server, &rows);
}

#[test]
fn an_id_comes_back_as_it_was_sent() {
    let mut server = server();
    let ids = [
        "0",
        "-5",
        "9223372036854775807",
        "-9223372036854775808",
        r#""""#,
        r#""abc""#,
        r#""1""#,
        "\"é \u{1f600}\"",
        r#""\n\t\"\\""#,
        r#""\u0001\u001f""#,
        "\"\u{7f}\u{2028}</script>\"",
    ];
    let rows: Vec<(String, String)> =
        ids.iter().map(|id| (format!("{{\"id\":{id},{PROBE}}}"), probe(id))).collect();
    let rows: Vec<(&str, String)> = rows.iter().map(|(line, reply)| (line.as_str(), reply.clone())).collect();
    check_lines(&mut server, &rows);
}

/// A notification gets no reply, and nothing runs.
#[test]
fn a_message_without_an_id_is_never_answered() {
    let mut server = server();
    let file = server.dir().join("made");
    let exec = json!({"method": "command/exec", "params": danger(&["/bin/touch", file.to_str().unwrap()])});
    let exec = exec.to_string();
    check_lines(
        &mut server,
        &[
            (r#"{"method":"initialized"}"#, String::new()),
            (r#"{"method":"initialized","params":{}}"#, String::new()),
            (r#"{"method":"no/such/notification"}"#, String::new()),
            (r#"{"method":"no/such/notification","params":3}"#, String::new()),
            (r#"{"method":"initialize","params":{}}"#, String::new()),
            (&exec, String::new()),
            // Answers to requests that were never made.
            (r#"{"id":5,"result":{}}"#, String::new()),
            (r#"{"id":"x","error":{"code":1,"message":"no"}}"#, String::new()),
        ],
    );
    server.exec(&danger(&["/bin/true"]));
    assert!(!file.exists());
}

#[test]
fn a_line_has_no_limit() {
    let mut server = server();
    let long = "x".repeat(11 << 20);
    server.send(format!("{{\"id\":1,\"filler\":\"{long}\",{PROBE}}}\n"));
    assert_eq!(server.line(), probe("1"));
    // The same in what comes back, cut and not cut in its middle by the pipe.
    let name = "y".repeat(3 << 20);
    let params = json!({"processId": name});
    let reply = server.call("command/exec/terminate", &params);
    let text = format!("no active command/exec for process id \"{name}\"");
    assert!(reply.contains(&json!(text).to_string()), "{reply:.200}");
}

/// "params are parsed *before* that check, so a malformed request yields the parse error even uninitialised".
#[test]
fn nothing_is_done_before_the_handshake() {
    let mut server = AppServer::launch(&Options::default());
    let file = server.dir().join("made");
    let exec =
        json!({"id": 1, "method": "command/exec", "params": danger(&["/bin/touch", file.to_str().unwrap()])});
    let refused = error("1", -32600, "Not initialized");
    let malformed = |text: &str| error("1", -32600, &format!("Invalid request: {text}"));
    let name = |name: &str| {
        let text = format!("Invalid clientInfo.name: '{name}'. Must be a valid HTTP header value.");
        error("1", -32600, &text)
    };
    // The texts of errors are compared in full, so one line takes the place of a probe.
    let rows = [
        (exec.to_string(), refused.clone()),
        (format!("{{\"id\":1,{PROBE}}}"), refused.clone()),
        (r#"{"id":1,"method":"command/exec/write","params":{"processId":"x"}}"#.into(), refused.clone()),
        // Semantic checks come later.
        (r#"{"id":1,"method":"command/exec","params":{"command":[]}}"#.into(), refused.clone()),
        (r#"{"id":1,"method":"command/exec","params":{}}"#.into(), malformed("missing field `command`")),
        (r#"{"id":1,"method":"initialize"}"#.into(), malformed("missing field `params`")),
        (r#"{"id":1,"method":"initialize","params":null}"#.into(), malformed("missing field `params`")),
        (r#"{"id":1,"method":"initialize","params":{}}"#.into(), malformed("missing field `clientInfo`")),
        (
            r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"x"}}}"#.into(),
            malformed("missing field `version`"),
        ),
        (
            r#"{"id":1,"method":"initialize","params":{"clientInfo":{"version":"x"}}}"#.into(),
            malformed("missing field `name`"),
        ),
        (
            r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"a\nb","version":"1"}}}"#.into(),
            name("a\nb"),
        ),
        (
            r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"a\u007fb","version":"1"}}}"#
                .into(),
            name("a\u{7f}b"),
        ),
        // A failed handshake is none.
        (format!("{{\"id\":1,{PROBE}}}"), refused),
    ];
    let rows: Vec<(&str, String)> = rows.iter().map(|(line, reply)| (line.as_str(), reply.clone())).collect();
    check_lines(&mut server, &rows);
    assert!(!file.exists());
    server.initialize();
    server.exec(&danger(&["/bin/true"]));
    check_lines(
        &mut server,
        &[
            (
                r#"{"id":"again","method":"initialize","params":{"clientInfo":{"name":"x","version":"1"}}}"#,
                error("\"again\"", -32600, "Already initialized"),
            ),
            (
                r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"x"}}}"#,
                malformed("missing field `version`"),
            ),
        ],
    );
}

/// A client that never sends `initialized` is served all the same.
#[test]
fn the_handshake_reports_the_server_and_its_home() {
    let tell = |server: &mut AppServer, params: &Value| server.call("initialize", params);
    let mut server = AppServer::launch(&Options::default());
    let client = json!({"name": "a client é", "title": "T", "version": "7 (x)", "unknown": [1]});
    let params =
        json!({"clientInfo": client, "capabilities": {"experimentalApi": true, "unknown": 1}, "more": null});
    let reply = tell(&mut server, &params);
    let home = server.home();
    assert!(reply.starts_with(r#"{"id":1,"result":{"userAgent":"a client é/0.124.0 ("#), "{reply}");
    let end = format!(
        r#" (a client é; 7 (x))","codexHome":"{}","platformFamily":"unix","platformOs":"linux"}}}}"#,
        home.display()
    );
    assert!(reply.ends_with(&end), "{reply}");
    server.exec(&danger(&["/bin/true"]));
    // Without a setting of its own, it is below the user's home.
    let mut server = AppServer::launch(&Options::default().without_env("CODEX_HOME"));
    let home = server.home().join(".codex");
    std::fs::create_dir(&home).unwrap();
    let reply = tell(&mut server, &json!({"clientInfo": {"name": "x", "version": ""}, "capabilities": null}));
    assert!(reply.contains(&format!(r#""codexHome":"{}""#, home.display())), "{reply}");
}

#[test]
fn a_client_can_do_without_deltas() {
    let mut server = AppServer::launch(&Options::default());
    let capabilities = json!({"optOutNotificationMethods": ["command/exec/outputDelta", "no/such"]});
    server.call(
        "initialize",
        &json!({"clientInfo": {"name": "x", "version": "1"}, "capabilities": capabilities}),
    );
    let params = with(sh("echo out; echo err >&2"), json!({"processId": "p", "streamStdoutStderr": true}));
    let id = server.request("command/exec", &params);
    let begin = crate::table::result(&id.to_string(), 0, "", "");
    assert!(crate::table::is_result(&server.reply(id), &begin));
    assert!(server.deltas("p").is_empty());
    // Only exact names count.
    let mut server = AppServer::launch(&Options::default());
    let capabilities = json!({"optOutNotificationMethods": ["command/exec/output", "command/*", ""]});
    server.call(
        "initialize",
        &json!({"clientInfo": {"name": "x", "version": "1"}, "capabilities": capabilities}),
    );
    server.exec(&params);
    assert_eq!(server.text("p", "stdout"), "out\n");
}

#[test]
fn members_stand_in_the_original_order() {
    let mut server = server();
    let params = with(
        sh("printf abc; read x; printf '\\0\\377' >&2"),
        json!({"processId": "a\"é", "streamStdoutStderr": true, "streamStdin": true, "outputBytesCap": 3}),
    );
    let id = server.request("command/exec", &params);
    let abc = server.line();
    let begin = r#"{"method":"command/exec/outputDelta","params":{"processId":"a\"é","stream":"#;
    assert_eq!(abc, format!(r#"{begin}"stdout","deltaBase64":"YWJj","capReached":true}}}}"#));
    let write = server.request("command/exec/write", &json!({"processId": "a\"é", "closeStdin": true}));
    assert_eq!(server.reply(write), format!(r#"{{"id":{write},"result":{{}}}}"#));
    let reply = server.reply(id);
    let data = base64::engine::general_purpose::STANDARD.encode([0, 255]);
    let delta = format!(r#"{begin}"stderr","deltaBase64":"{data}","capReached":false}}}}"#);
    assert!(server.lines().contains(&delta), "{:?}", server.lines());
    assert!(crate::table::is_result(&reply, &crate::table::result(&id.to_string(), 0, "", "")), "{reply}");
}

/// The original stops reading at such a byte and ends; we answer and continue.
#[test]
fn a_byte_that_is_no_text_does_not_end_the_server() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    for line in [&b"\xff"[..], b"{\"id\":1,\xc3}", b"{\"id\":1,\"method\":\"\xed\xa0\x80\"}", b"\xc3\x28"] {
        server.send([line, b"\n"].concat());
        let reply: Value = serde_json::from_str(&server.line()).unwrap();
        assert_eq!((&reply["error"]["code"], &reply["id"]), (&json!(-32700), &Value::Null), "{line:?}");
    }
    server.exec(&danger(&["/bin/true"]));
}
