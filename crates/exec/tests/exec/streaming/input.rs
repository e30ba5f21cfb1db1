//! `command/exec/write`: what reaches standard input, and what is refused.

use super::{base64, fed, input, streamed};
use crate::process::Watched;
use crate::table::{check, server, sh, with};
use serde_json::json;

const WRITE: &str = "command/exec/write";

/// "delta first, then close".
#[test]
fn what_is_written_arrives_in_order_and_ends() {
    let mut server = server();
    let id = server.request("command/exec", &fed("p", "cat; echo end"));
    // Directly behind the request that starts it: it must find the command.
    let first = server.request(WRITE, &input("p", "one "));
    let second = server.request(WRITE, &input("p", ""));
    let third =
        server.request(WRITE, &json!({"processId": "p", "deltaBase64": base64("two\n"), "closeStdin": true}));
    for write in [first, second, third] {
        assert_eq!(server.reply(write), format!(r#"{{"id":{write},"result":{{}}}}"#));
    }
    server.reply(id);
    assert_eq!(server.text("p", "stdout"), "one two\nend\n");
}

#[test]
fn an_answer_to_input_comes_while_the_command_goes_on() {
    let mut server = server();
    let id = server.request("command/exec", &fed("p", "while read -r x; do echo \"<$x>\"; done"));
    for word in ["a", "b\tc", "é"] {
        server.call(WRITE, &input("p", format!("{word}\n")));
        server.wait_output("p", &format!("<{word}>\n"));
    }
    assert!(!server.has_reply(id));
    server.call(WRITE, &json!({"processId": "p", "closeStdin": true}));
    server.reply(id);
}

#[test]
fn megabytes_of_any_bytes_arrive_as_they_were_sent() {
    let mut server = server();
    let bytes: Vec<u8> = (0..4_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = server.dir().join("copy");
    let id = server.request("command/exec", &fed("p", &format!("cat > {}; echo done", file.display())));
    for piece in bytes.chunks(100_000) {
        let write = server.request(WRITE, &input("p", piece));
        assert!(server.reply(write).ends_with(r#""result":{}}"#));
    }
    server.call(WRITE, &json!({"processId": "p", "closeStdin": true}));
    server.reply(id);
    assert!(std::fs::read(&file).unwrap() == bytes, "what arrived is not what was sent");
}

/// "(before the id is looked up)".
#[test]
fn a_write_is_checked_before_its_process_is_looked_up() {
    let rows = |write: serde_json::Value, text| (WRITE, with(json!({"processId": "ghost"}), write), text);
    check(
        &mut server(),
        &[
            rows(json!({}), "-32602 command/exec/write requires deltaBase64 or closeStdin"),
            rows(
                json!({"deltaBase64": null}),
                "-32602 command/exec/write requires deltaBase64 or closeStdin",
            ),
            rows(
                json!({"closeStdin": false}),
                "-32602 command/exec/write requires deltaBase64 or closeStdin",
            ),
            rows(json!({"deltaBase64": "!"}), "-32602 invalid deltaBase64: Invalid symbol 33, offset 0."),
            rows(json!({"deltaBase64": "YW!j"}), "-32602 invalid deltaBase64: Invalid symbol 33, offset 2."),
            rows(json!({"deltaBase64": "YW\nj"}), "-32602 invalid deltaBase64: Invalid symbol 10, offset 2."),
            rows(json!({"deltaBase64": " YWJj"}), "-32602 invalid deltaBase64: Invalid symbol 32, offset 0."),
            rows(json!({"deltaBase64": "YW_-"}), "-32602 invalid deltaBase64: Invalid symbol 95, offset 2."),
            rows(json!({"deltaBase64": "é==="}), "-32602 invalid deltaBase64: Invalid symbol 195, offset 0."),
            rows(json!({"deltaBase64": "YQ"}), "-32602 invalid deltaBase64: Invalid padding"),
            rows(json!({"deltaBase64": "YQ="}), "-32602 invalid deltaBase64: Invalid padding"),
            rows(json!({"deltaBase64": "YWJ"}), "-32602 invalid deltaBase64: Invalid padding"),
            rows(
                json!({"deltaBase64": "YR=="}),
                "-32602 invalid deltaBase64: Invalid last symbol 82, offset 1.",
            ),
            rows(
                json!({"deltaBase64": "YWK="}),
                "-32602 invalid deltaBase64: Invalid last symbol 75, offset 2.",
            ),
            rows(json!({"deltaBase64": "Y"}), "-32602 invalid deltaBase64: Invalid input length: 1"),
            rows(json!({"deltaBase64": "===="}), "-32602 invalid deltaBase64: Invalid symbol 61, offset 0."),
            rows(
                json!({"deltaBase64": "YQ==YQ=="}),
                "-32602 invalid deltaBase64: Invalid symbol 61, offset 2.",
            ),
            rows(json!({"deltaBase64": "YQ==="}), "-32602 invalid deltaBase64: Invalid symbol 61, offset 2."),
            // Right in itself: now the process counts.
            rows(json!({"deltaBase64": ""}), r#"-32600 no active command/exec for process id "ghost""#),
            rows(json!({"deltaBase64": "YQ=="}), r#"-32600 no active command/exec for process id "ghost""#),
            rows(json!({"closeStdin": true}), r#"-32600 no active command/exec for process id "ghost""#),
            rows(
                json!({"closeStdin": true, "deltaBase64": "!"}),
                "-32602 invalid deltaBase64: Invalid symbol 33, offset 0.",
            ),
        ],
    );
}

#[test]
fn input_to_a_command_without_open_stdin_is_refused() {
    let mut server = server();
    let none = server.request("command/exec", &with(sh("exec sleep 1000"), json!({"processId": "none"})));
    let out = server.request("command/exec", &streamed("out", "exec sleep 1000"));
    let closed = server.request("command/exec", &fed("closed", "cat; echo end; exec sleep 1000"));
    let disabled = "-32600 stdin streaming is not enabled for this command/exec";
    let close = |process: &str| json!({"processId": process, "closeStdin": true});
    check(
        &mut server,
        &[
            (WRITE, input("none", "x"), disabled),
            (WRITE, input("none", ""), disabled),
            (WRITE, close("none"), disabled),
            (WRITE, input("out", "x"), disabled),
            (WRITE, close("closed"), "{}"),
            (WRITE, input("closed", "x"), "-32600 stdin is already closed"),
            // Nothing more was asked for than there is.
            (WRITE, input("closed", ""), "{}"),
            (WRITE, close("closed"), "{}"),
            (WRITE, with(close("closed"), json!({"deltaBase64": ""})), "{}"),
            (WRITE, with(close("closed"), json!({"deltaBase64": "YQ=="})), "-32600 stdin is already closed"),
        ],
    );
    server.wait_output("closed", "end");
    for (process, id) in [("none", none), ("out", out), ("closed", closed)] {
        server.call("command/exec/terminate", &json!({"processId": process}));
        server.reply(id);
    }
}

/// "`{}` means *queued* …, not delivered: writing to a process that closed its stdin gives `{}` and the bytes vanish".
#[test]
fn input_for_a_command_that_has_closed_it_vanishes() {
    let mut server = server();
    let file = server.dir().join("pid");
    let script = format!("exec 0<&-; echo $$ > {}; exec sleep 1000", file.display());
    let id = server.request("command/exec", &fed("p", &script));
    let command = Watched::pid_in(&file);
    for _ in 0..20 {
        assert!(server.call(WRITE, &input("p", "x".repeat(100_000))).ends_with(r#""result":{}}"#));
    }
    assert!(command.runs());
    server.call("command/exec/terminate", &json!({"processId": "p"}));
    server.reply(id);
}
