//! "Message shapes", "Error codes", "Validation precedence": the request envelope without params.

use crate::contract::table::{check_lines, raw};
use outpost_testkit::{Relay, TOKEN};

const PARSE: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
const PONG_NULL: &str = r#"{"jsonrpc":"2.0","id":null,"result":{"pong":true}}"#;

fn pong(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"pong":true}}}}"#)
}

fn error(id: &str, code: i32, text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{text}"}}}}"#)
}

fn check(rows: &[(&str, String)]) {
    let relay = Relay::start();
    let rows: Vec<(&str, &str)> = rows.iter().map(|(line, reply)| (*line, reply.as_str())).collect();
    check_lines(&relay, &rows);
}

/// "-32700 parse error — malformed JSON line (response id is null)".
#[test]
fn a_malformed_request_is_a_parse_error_with_a_null_id() {
    let relay = Relay::start();
    let malformed = [
        "x",
        "{",
        "}",
        " ",
        "\t",
        "{}{}",
        "{} x",
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":"$T"} {}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":"$T",}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":"$T""#,
        r#"{'jsonrpc':'2.0'}"#,
        r#"{jsonrpc:"2.0"}"#,
        r#"{"id":01}"#,
        r#"{"id":1.}"#,
        r#"{"id":.5}"#,
        r#"{"id":+1}"#,
        r#"{"id":1e}"#,
        r#"{"id":NaN}"#,
        r#"{"id":nul}"#,
        r#"{"id":True}"#,
        r#"{"id":"\x41"}"#,
        r#"{"id":"\u12g4"}"#,
        r#"{"id":"\u12"}"#,
        r#"{"id":[1,]}"#,
        r#"{"id":{"a":1,}}"#,
        r#"{"id":"open}"#,
        "{\"id\":\"tab\tinside\"}",
        "{\"id\":\"\u{1}\"}",
        "\u{feff}{}",
        "{} // comment",
        // Well-formed JSON, but not an object.
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":"$T"}]"#,
        r#""text""#,
        "1",
        "true",
        "false",
        // A mistyped member of the envelope.
        r#"{"jsonrpc":2.0,"id":1,"method":"server.ping","auth":"$T"}"#,
        r#"{"jsonrpc":2,"id":1,"method":"server.ping","auth":"$T"}"#,
        r#"{"jsonrpc":["2.0"],"id":1,"method":"server.ping","auth":"$T"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":1,"auth":"$T"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":["server.ping"],"auth":"$T"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":{},"auth":"$T"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":true}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"server.ping","auth":["$T"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5,"auth":"wrong"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5,"method":"server.ping","auth":"$T"}"#,
        r#"{"jsonrpc":"2.0","id":1,"METHOD":5,"auth":"$T","method":"server.ping"}"#,
    ];
    let rows: Vec<(&str, &str)> = malformed.into_iter().map(|line| (line, PARSE)).collect();
    check_lines(&relay, &rows);
    // The connection stays open.
    check_lines(
        &relay,
        &[("x", PARSE), (r#"{"jsonrpc":"2.0","method":"server.ping","auth":"$T"}"#, PONG_NULL)],
    );
}

/// "A bad or missing token → -32001", "reports -32001 Unauthorized, not the version error".
#[test]
fn the_token_is_checked_before_everything_else() {
    let refused = |id: &str| error(id, -32001, "Unauthorized: invalid or missing auth token");
    check(&[
        ("null", refused("null")),
        ("{}", refused("null")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"server.ping"}"#, refused("1")),
        (r#"{"jsonrpc":"2.0","id":2,"method":"server.ping","auth":""}"#, refused("2")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"server.ping","auth":null}"#, refused("3")),
        (r#"{"jsonrpc":"2.0","id":4,"method":"server.ping","auth":"wrong"}"#, refused("4")),
        (r#"{"jsonrpc":"2.0","id":5,"method":"server.ping","auth":"$T "}"#, refused("5")),
        (r#"{"jsonrpc":"2.0","id":6,"method":"server.ping","auth":" $T"}"#, refused("6")),
        (r#"{"jsonrpc":"2.0","id":7,"method":"server.ping","auth":"$T\n"}"#, refused("7")),
        (r#"{"jsonrpc":"2.0","id":8,"method":"server.ping","auth":"a token with"}"#, refused("8")),
        (r#"{"jsonrpc":"2.0","id":9,"method":"server.ping","auth":"A TOKEN WITH SPACES"}"#, refused("9")),
        (r#"{"jsonrpc":"2.0","id":10,"method":"server.ping","auth":"$T","auth":"no"}"#, refused("10")),
        (r#"{"jsonrpc":"2.0","id":11,"method":"server.ping","params":{"auth":"$T"}}"#, refused("11")),
        // The token is checked before version, method and params.
        (r#"{"id":12,"method":"server.ping"}"#, refused("12")),
        (r#"{"jsonrpc":"1.0","id":13,"method":"nope","auth":"x"}"#, refused("13")),
        (r#"{"jsonrpc":"2.0","id":14,"method":"nope.nope"}"#, refused("14")),
        (r#"{"jsonrpc":"2.0","id":15,"method":"files.stat","params":5}"#, refused("15")),
        // "an unauthenticated or wrong-token server.shutdown is rejected … and the daemon stays up"
        (r#"{"jsonrpc":"2.0","id":16,"method":"server.shutdown"}"#, refused("16")),
        (r#"{"jsonrpc":"2.0","id":17,"method":"server.shutdown","auth":"x"}"#, refused("17")),
        (r#"{"jsonrpc":"2.0","id":18,"method":"server.ping","auth":"no","auth":"$T"}"#, pong("18")),
        (r#"{"jsonrpc":"2.0","id":19,"method":"server.ping","auth":"$T","auth":null}"#, pong("19")),
        (
            r#"{"jsonrpc":"2.0","id":20,"method":"server.ping","auth":"\u0061 token\u0020with spaces"}"#,
            pong("20"),
        ),
    ]);
}

/// "-32600 Invalid JSON-RPC version — jsonrpc absent or != "2.0"".
#[test]
fn the_version_is_checked_after_the_token_and_before_the_method() {
    let refused = |id: &str| error(id, -32600, "Invalid JSON-RPC version");
    check(&[
        (r#"{"id":1,"method":"server.ping","auth":"$T"}"#, refused("1")),
        (r#"{"jsonrpc":"1.0","id":2,"method":"server.ping","auth":"$T"}"#, refused("2")),
        (r#"{"jsonrpc":"","id":3,"method":"server.ping","auth":"$T"}"#, refused("3")),
        (r#"{"jsonrpc":null,"id":4,"method":"server.ping","auth":"$T"}"#, refused("4")),
        (r#"{"jsonrpc":"2","id":5,"method":"server.ping","auth":"$T"}"#, refused("5")),
        (r#"{"jsonrpc":"2.0 ","id":6,"method":"server.ping","auth":"$T"}"#, refused("6")),
        (r#"{"jsonrpc":"2.00","id":7,"method":"server.ping","auth":"$T"}"#, refused("7")),
        (r#"{"jsonrpc":"1.0","id":8,"method":"nope","auth":"$T"}"#, refused("8")),
        (r#"{"jsonrpc":"1.0","id":9,"method":"files.stat","auth":"$T"}"#, refused("9")),
        (r#"{"jsonrpc":"1.0","method":"server.ping","auth":"$T"}"#, refused("null")),
        (r#"{"jsonrpc":"1.0","id":10,"method":"server.shutdown","auth":"$T"}"#, refused("10")),
        (r#"{"jsonrpc":"2.0","jsonrpc":"3","id":11,"method":"server.ping","auth":"$T"}"#, refused("11")),
        (r#"{"auth":"$T"}"#, refused("null")),
        (r#"{"jsonrpc":"3","jsonrpc":"2.0","id":12,"method":"server.ping","auth":"$T"}"#, pong("12")),
        (r#"{"jsonrpc":"2.0","jsonrpc":null,"id":13,"method":"server.ping","auth":"$T"}"#, pong("13")),
        (r#"{"jsonrpc":"2\u002e0","id":14,"method":"server.ping","auth":"$T"}"#, pong("14")),
    ]);
}

/// "Invalid method format: <m> (method has no .), Unknown namespace: <ns> …, or Unknown method: <ns>.<m>".
#[test]
fn a_method_is_checked_by_format_then_namespace_then_name() {
    let cases = [
        ("", "Invalid method format: "),
        ("ping", "Invalid method format: ping"),
        ("server", "Invalid method format: server"),
        ("files", "Invalid method format: files"),
        ("server/ping", "Invalid method format: server/ping"),
        (".", "Unknown namespace: "),
        (".ping", "Unknown namespace: "),
        ("..", "Unknown namespace: "),
        ("foo.bar", "Unknown namespace: foo"),
        ("foo.bar.baz", "Unknown namespace: foo"),
        ("foo.", "Unknown namespace: foo"),
        ("Server.ping", "Unknown namespace: Server"),
        (" server.ping", "Unknown namespace:  server"),
        ("plugins.prune", "Unknown namespace: plugins"),
        ("server.", "Unknown method: server."),
        ("server.nope", "Unknown method: server.nope"),
        ("server.Ping", "Unknown method: server.Ping"),
        ("server.ping ", "Unknown method: server.ping "),
        ("server.ping.x", "Unknown method: server.ping.x"),
        ("server..ping", "Unknown method: server..ping"),
        ("files.nope", "Unknown method: files.nope"),
        ("files.write", "Unknown method: files.write"),
        ("files.", "Unknown method: files."),
        ("git.nope", "Unknown method: git.nope"),
        ("git.clone", "Unknown method: git.clone"),
        ("process.nope", "Unknown method: process.nope"),
        ("process.list", "Unknown method: process.list"),
        ("process.killandwait", "Unknown method: process.killandwait"),
        // The method in the message is escaped as in Go.
        ("<a>&\u{2028}\u{2029}", r"Invalid method format: \u003ca\u003e\u0026\u2028\u2029"),
        (r"\u003ca\u003e", r"Invalid method format: \u003ca\u003e"),
        (r#"q\"b\\s\/"#, r#"Invalid method format: q\"b\\s/"#),
        (r"\b\f\n\r\t\u0000\u001f\u007f", "Invalid method format: \\b\\f\\n\\r\\t\\u0000\\u001f\u{7f}"),
        (r"\u00e9\ud83d\ude00", "Invalid method format: é😀"),
        ("é😀", "Invalid method format: é😀"),
        (r"\ud800|\udc00|\ud800\ud800", "Invalid method format: \u{fffd}|\u{fffd}|\u{fffd}\u{fffd}"),
        ("<x>.y", r"Unknown namespace: \u003cx\u003e"),
        ("git.<x>", r"Unknown method: git.\u003cx\u003e"),
    ];
    let lines: Vec<String> = cases
        .iter()
        .map(|(method, _)| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","auth":"$T"}}"#))
        .collect();
    let replies = cases.iter().map(|(_, text)| error("1", -32601, text));
    let mut rows: Vec<(&str, String)> = lines.iter().map(String::as_str).zip(replies).collect();
    rows.push((r#"{"jsonrpc":"2.0","id":1,"auth":"$T"}"#, error("1", -32601, "Invalid method format: ")));
    rows.push((
        r#"{"jsonrpc":"2.0","id":1,"method":null,"auth":"$T"}"#,
        error("1", -32601, "Invalid method format: "),
    ));
    // "checked after method existence, so an unknown method is -32601 regardless"
    for params in ["", r#","params":5"#, r#","params":{}"#, r#","params":null"#] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"files.nope","auth":"$T"{params}}}"#);
        rows.push((line.leak(), error("2", -32601, "Unknown method: files.nope")));
    }
    check(&rows);
}

/// "match them by id": the reply has the id's text, compact and HTML-escaped.
#[test]
fn an_id_is_echoed() {
    let cases = [
        ("1", "1"),
        ("0", "0"),
        ("-0", "-0"),
        ("-1", "-1"),
        ("1.0", "1.0"),
        ("1e3", "1e3"),
        ("1E+2", "1E+2"),
        ("0.10", "0.10"),
        ("12345678901234567890", "12345678901234567890"),
        ("123456789012345678901234567890.5e-400", "123456789012345678901234567890.5e-400"),
        ("9007199254740993", "9007199254740993"),
        (r#""text""#, r#""text""#),
        (r#""""#, r#""""#),
        (r#""two words""#, r#""two words""#),
        (r#""<a>&b""#, r#""\u003ca\u003e\u0026b""#),
        ("\"\u{2028}\u{2029}\"", r#""\u2028\u2029""#),
        (r#""\u003c""#, r#""\u003c""#),
        (r#""\u00e9""#, r#""\u00e9""#),
        (r#""\u00E9\/\b""#, r#""\u00E9\/\b""#),
        (r#""é☃😀""#, r#""é☃😀""#),
        (r#""\ud800""#, r#""\ud800""#),
        (r#""q\"\\""#, r#""q\"\\""#),
        ("\"\u{7f}\"", "\"\u{7f}\""),
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        ("[]", "[]"),
        ("{}", "{}"),
        ("[ 1 , 2 ]", "[1,2]"),
        (r#"[1, "a b", null, {"x" : [ ]}]"#, r#"[1,"a b",null,{"x":[]}]"#),
        (r#"{ "b" : 1 , "a" : { "c" : "d e" } }"#, r#"{"b":1,"a":{"c":"d e"}}"#),
        (r#"{"<":"&"}"#, r#"{"\u003c":"\u0026"}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#),
        ("\t7 ", "7"),
    ];
    let lines: Vec<String> = cases
        .iter()
        .map(|(id, _)| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"server.ping","auth":"$T"}}"#))
        .collect();
    let mut rows: Vec<(&str, String)> =
        lines.iter().map(String::as_str).zip(cases.iter().map(|(_, id)| pong(id))).collect();
    rows.extend([
        (r#"{"jsonrpc":"2.0","method":"server.ping","auth":"$T"}"#, PONG_NULL.to_owned()),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"server.ping","auth":"$T"}"#, pong("2")),
        (r#"{"jsonrpc":"2.0","id":1,"id":null,"method":"server.ping","auth":"$T"}"#, pong("null")),
        (r#"{"jsonrpc":"2.0","id":1,"ID":{"x":3},"method":"server.ping","auth":"$T"}"#, pong(r#"{"x":3}"#)),
        // Error replies echo the id too.
        (
            r#"{"jsonrpc":"2.0","id":{ "a": "<" },"method":"x","auth":"$T"}"#,
            error(r#"{"a":"\u003c"}"#, -32601, "Invalid method format: x"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":[ 1.50 ],"method":"files.stat","auth":"$T"}"#,
            error("[1.50]", -32602, "Invalid params"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":"\u2028 ","method":"x"}"#,
            error(r#""\u2028 ""#, -32001, "Unauthorized: invalid or missing auth token"),
        ),
    ]);
    check(&rows);
}

/// Invalid UTF-8 is kept in an id, which is not decoded, and becomes U+FFFD in decoded strings.
#[test]
fn invalid_utf8_passes_through_an_id_and_is_replaced_in_strings() {
    let relay = Relay::start();
    let request = |id: &[u8], method: &[u8]| {
        let begin = [b"{\"jsonrpc\":\"2.0\",\"id\":\"", id, b"\",\"method\":\"", method].concat();
        [begin.as_slice(), b"\",\"auth\":\"", TOKEN.as_bytes(), b"\"}\n"].concat()
    };
    let reply = raw(&relay, &request(b"a\xff\xfe\xe2\x80", b"server.ping"));
    assert_eq!(reply, b"{\"jsonrpc\":\"2.0\",\"id\":\"a\xff\xfe\xe2\x80\",\"result\":{\"pong\":true}}\n");
    let reply = raw(&relay, &request(b"1", b"m\xff\xe2\x82\xed\xa0\x80"));
    let text = format!("Invalid method format: m{}", "\u{fffd}".repeat(6));
    assert_eq!(String::from_utf8(reply).unwrap(), error("\"1\"", -32601, &text) + "\n");
}

/// Keys match case-insensitively, and the last duplicate wins.
#[test]
fn keys_match_case_insensitively_and_unknown_ones_are_ignored() {
    check(&[
        (r#"{"JSONRPC":"2.0","ID":1,"METHOD":"server.ping","AUTH":"$T"}"#, pong("1")),
        (r#"{"JsonRpc":"2.0","Id":2,"Method":"server.ping","Auth":"$T","Params":5}"#, pong("2")),
        ("{\"j\u{17f}onrpc\":\"2.0\",\"id\":3,\"method\":\"server.ping\",\"auth\":\"$T\"}", pong("3")),
        (r#"{"\u006asonrpc":"2.0","i\u0064":4,"method":"server.ping","auth":"$T"}"#, pong("4")),
        (r#"{"jsonrpc":"2.0","id":5,"method":"nope","Method":"server.ping","auth":"$T"}"#, pong("5")),
        (r#"{"x":[{"id":9}],"jsonrpc":"2.0","id":6,"method":"server.ping","auth":"$T","y":null}"#, pong("6")),
        (r#" { "jsonrpc" : "2.0" , "id" : 7 , "method" : "server.ping" , "auth" : "$T" } "#, pong("7")),
        (r#"{"auth":"$T","method":"server.ping","id":8,"jsonrpc":"2.0"}"#, pong("8")),
        (
            r#"{"jsonrpc ":"2.0","id":9,"method":"server.ping","auth":"$T"}"#,
            error("9", -32600, "Invalid JSON-RPC version"),
        ),
    ]);
}
