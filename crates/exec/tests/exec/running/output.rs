//! Buffered output: how much of it, and how bytes become text.

use crate::table::{check_exec, danger, server, sh, with};
use serde_json::json;

const MIB: usize = 1024 * 1024;

/// "per stream, in bytes".
#[test]
fn each_stream_is_cut_at_the_cap_of_its_own() {
    let capped = |cap: u64| with(sh("printf abcdef; printf uvw >&2"), json!({"outputBytesCap": cap}));
    check_exec(
        &mut server(),
        vec![
            (capped(0), "exit 0 |"),
            (capped(1), "exit 0 a|u"),
            (capped(3), "exit 0 abc|uvw"),
            (capped(5), "exit 0 abcde|uvw"),
            (capped(6), "exit 0 abcdef|uvw"),
            (capped(u64::MAX), "exit 0 abcdef|uvw"),
            (
                with(sh("printf abcdef; printf uvw >&2"), json!({"disableOutputCap": true})),
                "exit 0 abcdef|uvw",
            ),
        ],
    );
}

#[test]
fn without_a_cap_of_its_own_a_stream_has_one_mebibyte() {
    let mut server = server();
    for (more, bytes) in [
        (json!({}), MIB),
        (json!({"outputBytesCap": null}), MIB),
        (json!({"outputBytesCap": 3 * MIB + 1}), 3 * MIB + 1),
        (json!({"disableOutputCap": true}), 4 * MIB),
    ] {
        let script = "head -c 4194304 /dev/zero | tr '\\0' x; head -c 4194304 /dev/zero | tr '\\0' y >&2";
        let result = server.exec(&with(sh(script), more));
        for (stream, letter) in [("stdout", 'x'), ("stderr", 'y')] {
            let text = result[stream].as_str().unwrap();
            assert!(
                text.len() == bytes && text.chars().all(|have| have == letter),
                "{stream}: {}",
                text.len()
            );
        }
    }
}

/// "excess is read and discarded: no block, no SIGPIPE".
#[test]
fn a_command_that_writes_far_beyond_the_cap_is_not_held_up() {
    let script = "head -c 100000000 /dev/zero && echo whole >&2";
    check_exec(&mut server(), vec![(with(sh(script), json!({"outputBytesCap": 2})), "exit 0 \0\0|wh")]);
}

/// "valid UTF-8 as is (NUL kept)".
#[test]
fn text_arrives_as_it_was_written() {
    let mut server = server();
    let text = "a\0b\u{1}\t\r\n\"\\/\u{7f}é\u{2028}\u{1f600}\u{feff}\u{fffd}";
    let result = server.exec(&danger(&["/usr/bin/printf", "%b", &escaped(text.as_bytes())]));
    assert_eq!(result["stdout"], text);
    // From its beginning, too.
    let result = server.exec(&danger(&["/usr/bin/printf", "%b", &escaped("\u{feff}x".as_bytes())]));
    assert_eq!(result["stdout"], "\u{feff}x");
}

/// For printf's `%b`.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\0{byte:03o}")).collect()
}

/// "otherwise *charset detection*": what the original's guess makes of bytes that are no UTF-8.
#[test]
fn bytes_that_are_no_utf8_become_what_they_were_meant_as() {
    let rows: Vec<(serde_json::Value, String)> = [
        (&b"caf\xe9"[..], "café"),
        (b"a\xffb", "aÿb"),
        (b"\x80\x81\x82", "АБВ"),
        (b"\x93quoted\x94 \x96 dash", "“quoted” – dash"),
        (b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0", "Привет, мир"),
        (b"\x83\x65\x83\x58\x83\x67\x82\xc5\x82\xb7", "テストです"),
    ]
    .into_iter()
    .map(|(bytes, text)| (danger(&["/usr/bin/printf", "%b", &escaped(bytes)]), format!("exit 0 {text}|")))
    .collect();
    check_exec(
        &mut server(),
        rows.iter().map(|(params, outcome)| (params.clone(), outcome.as_str())).collect(),
    );
}

/// The original takes what is left for another charset and garbles the whole.
#[test]
fn a_cap_within_a_character_does_not_garble_the_text() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let capped = |text: &str, cap: usize| {
        let text = format!("%b|{}", escaped(text.as_bytes()));
        let (format, text) = text.split_once('|').unwrap();
        with(danger(&["/usr/bin/printf", format, text]), json!({"outputBytesCap": cap}))
    };
    check_exec(
        &mut server(),
        vec![
            (capped("éé", 1), "exit 0 |"),
            (capped("éé", 2), "exit 0 é|"),
            (capped("éé", 3), "exit 0 é|"),
            (capped("éé", 4), "exit 0 éé|"),
            (capped("ab\u{1f600}", 3), "exit 0 ab|"),
            (capped("ab\u{1f600}", 5), "exit 0 ab|"),
            (capped("ab\u{1f600}", 6), "exit 0 ab\u{1f600}|"),
            (capped("日本", 4), "exit 0 日|"),
        ],
    );
}
