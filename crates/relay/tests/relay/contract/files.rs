//! "files.*": stat, validate, list and read.

use crate::contract::table::{Row, answer, check, unprivileged};
use outpost_testkit::Relay;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

fn file(path: &Path, content: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, content).unwrap();
    set_mode(path, mode);
}

fn dir(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").args(["-m", "640"]).arg(path).status().unwrap().success());
}

/// "{exists, isDir, size, mode}": the mode in Go's format. Symlinks are followed.
#[test]
fn stat_returns_type_size_and_mode() {
    let relay = Relay::start();
    let at = |name: &str| relay.path(name);
    for (name, mode) in [
        ("plain", 0o644),
        ("private", 0o600),
        ("none", 0),
        ("setuid", 0o4755),
        ("setgid", 0o2755),
        ("sticky", 0o1644),
        ("all", 0o7777),
    ] {
        file(&at(name), "12345", mode);
    }
    for (name, mode) in [("dir", 0o755), ("tmp", 0o1777), ("shared", 0o2775), ("every", 0o7777)] {
        dir(&at(name), mode);
    }
    fifo(&at("fifo"));
    let _socket = UnixListener::bind(at("socket")).unwrap();
    set_mode(&at("socket"), 0o755);
    symlink("plain", at("link")).unwrap();
    symlink("dir", at("dirlink")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    file(&at("empty"), "", 0o400);
    file(&at("é \"<&>\n"), "x", 0o644);
    let size = at("dir").metadata().unwrap().len();
    let of_dir = |mode: &str| format!(r#"{{"exists":true,"isDir":true,"size":{size},"mode":"{mode}"}}"#);
    let of_file =
        |size: u64, mode: &str| format!(r#"{{"exists":true,"isDir":false,"size":{size},"mode":"{mode}"}}"#);
    let absent = r#"{"exists":false,"isDir":false,"size":0,"mode":""}"#.to_owned();
    let long = "x".repeat(256);
    let longer = "x/".repeat(2500);
    let rows = [
        ("$D/plain", of_file(5, "-rw-r--r--")),
        ("$D/private", of_file(5, "-rw-------")),
        ("$D/none", of_file(5, "----------")),
        ("$D/empty", of_file(0, "-r--------")),
        ("$D/setuid", of_file(5, "urwxr-xr-x")),
        ("$D/setgid", of_file(5, "grwxr-xr-x")),
        ("$D/sticky", of_file(5, "trw-r--r--")),
        ("$D/all", of_file(5, "ugtrwxrwxrwx")),
        ("$D/dir", of_dir("drwxr-xr-x")),
        ("$D/dir/", of_dir("drwxr-xr-x")),
        ("$D/./dir/../dir/.", of_dir("drwxr-xr-x")),
        ("$D//dir", of_dir("drwxr-xr-x")),
        ("$D/tmp", of_dir("dtrwxrwxrwx")),
        ("$D/shared", of_dir("dgrwxrwxr-x")),
        ("$D/every", of_dir("dugtrwxrwxrwx")),
        ("$D/fifo", of_file(0, "prw-r-----")),
        ("$D/socket", of_file(0, "Srwxr-xr-x")),
        ("/dev/null", of_file(0, "Dcrw-rw-rw-")),
        ("$D/link", of_file(5, "-rw-r--r--")),
        ("$D/dirlink", of_dir("drwxr-xr-x")),
        ("$D/dirlink/", of_dir("drwxr-xr-x")),
        (r#"$D/é \"<&>\n"#, of_file(1, "-rw-r--r--")),
        (r"$D/\u00e9 \u0022\u003c&>\u000a", of_file(1, "-rw-r--r--")),
        // Relative paths are relative to the directory in which the daemon was started.
        ("plain", of_file(5, "-rw-r--r--")),
        ("./dir/../plain", of_file(5, "-rw-r--r--")),
        ("rpc.sock", of_file(0, "Srw-------")),
        // "Missing path", and other paths for which stat fails.
        ("", absent.clone()),
        ("$D/nope", absent.clone()),
        ("$D/nope/x", absent.clone()),
        ("$D/dangling", absent.clone()),
        ("$D/loop", absent.clone()),
        ("$D/plain/", absent.clone()),
        ("$D/plain/x", absent.clone()),
        ("$D/plain/../plain", absent.clone()),
        (r"$D/plain\u0000", absent.clone()),
        (r"\u0000", absent.clone()),
        ("~", absent.clone()),
        ("$HOME", absent.clone()),
        (&long, absent.clone()),
        // "on a pathological over-long path claustrum returns the empty exists:false result"
        (&longer, absent),
    ];
    let params: Vec<String> = rows.iter().map(|(path, _)| format!(r#"{{"path":"{path}"}}"#)).collect();
    let table: Vec<Row<'_>> = params
        .iter()
        .zip(&rows)
        .map(|(params, (_, expected))| ("files.stat", params.as_str(), expected.as_str()))
        .collect();
    let mut client = relay.connect();
    check(&mut client, relay.dir(), &table);
    // files.validate on the same paths: "{valid, isDir [,error]}".
    let expected: Vec<String> = rows
        .iter()
        .map(|(_, expected)| {
            match (expected.contains(r#""exists":true"#), expected.contains(r#""isDir":true"#)) {
                (true, is_dir) => format!(r#"{{"valid":true,"isDir":{is_dir}}}"#),
                _ => r#"{"valid":false,"isDir":false,"error":"Path does not exist"}"#.to_owned(),
            }
        })
        .collect();
    let table: Vec<Row<'_>> = params
        .iter()
        .zip(&expected)
        .map(|(params, expected)| ("files.validate", params.as_str(), expected.as_str()))
        .collect();
    check(&mut client, relay.dir(), &table);
}

/// "name-sorted", "Hidden entries are omitted", "symlinks are FOLLOWED".
#[test]
#[expect(clippy::too_many_lines, reason = "a table of requests and replies")]
fn list_is_sorted_omits_hidden_entries_and_follows_symlinks() {
    let relay = Relay::start();
    let list = relay.path("l");
    dir(&list, 0o755);
    dir(&list.join(".hidden-dir"), 0o755);
    dir(&list.join("dir"), 0o755);
    for name in [
        &b"a"[..],
        b"B",
        b"a b",
        b"..twice",
        b".hidden",
        b"z.txt",
        b"a-b",
        "é".as_bytes(),
        b"\"q\\",
        b"<x>&",
        b"n\nl\tt",
        b"\xff\xfe",
        "\u{2028}".as_bytes(),
        b"~",
        b"10",
        b"9",
    ] {
        fs::write(list.join(OsStr::from_bytes(name)), "").unwrap();
    }
    symlink("dir", list.join("link-to-dir")).unwrap();
    symlink("a", list.join("link-to-file")).unwrap();
    symlink("nowhere", list.join("dangling")).unwrap();
    symlink("..", list.join("up")).unwrap();
    fifo(&list.join("fifo"));
    dir(&relay.path("empty"), 0o755);
    dir(&relay.path("only-hidden"), 0o755);
    file(&relay.path("only-hidden/.x"), "", 0o644);
    file(&relay.path("plain"), "", 0o644);
    symlink("l", relay.path("list-link")).unwrap();
    let entries = |dir: &str| {
        let names = [
            (r#"\"q\\"#, false),
            ("10", false),
            ("9", false),
            (r"\u003cx\u003e\u0026", false),
            ("B", false),
            ("a", false),
            ("a b", false),
            ("a-b", false),
            ("dangling", false),
            ("dir", true),
            ("fifo", false),
            ("link-to-dir", true),
            ("link-to-file", false),
            (r"n\nl\tt", false),
            ("up", true),
            ("z.txt", false),
            ("~", false),
            ("é", false),
            (r"\u2028", false),
            (r"\ufffd\ufffd", false),
        ];
        let entry = |(name, is_dir): (&str, bool)| {
            format!(r#"{{"name":"{name}","path":"{dir}{name}","isDir":{is_dir}}}"#)
        };
        format!(r#"{{"entries":[{}]}}"#, names.map(entry).join(","))
    };
    let (long, longer) = ("x".repeat(256), "x/".repeat(2500));
    let too_long = |path: &str| format!("-32603 open {path}: file name too long");
    let rows = [
        ("$D/l", entries("$D/l/")),
        ("$D/l/", entries("$D/l/")),
        ("$D/l//", entries("$D/l/")),
        ("$D//l/.", entries("$D/l/")),
        ("$D/./l", entries("$D/l/")),
        ("$D/empty/../l", entries("$D/l/")),
        ("$D/list-link", entries("$D/list-link/")),
        ("$D/list-link/", entries("$D/list-link/")),
        ("l", entries("l/")),
        ("./l/", entries("l/")),
        ("empty/../l", entries("l/")),
        ("$D/empty", r#"{"entries":[]}"#.to_owned()),
        ("empty", r#"{"entries":[]}"#.to_owned()),
        ("$D/only-hidden", r#"{"entries":[]}"#.to_owned()),
        // "Missing dir → -32603 open …: no such file or directory", with the path of the request.
        ("$D/nope", "-32603 open $D/nope: no such file or directory".to_owned()),
        ("$D/nope/", "-32603 open $D/nope/: no such file or directory".to_owned()),
        ("$D/nope/../l", "-32603 open $D/nope/../l: no such file or directory".to_owned()),
        ("nope", "-32603 open nope: no such file or directory".to_owned()),
        ("", "-32603 open : no such file or directory".to_owned()),
        ("$D/plain", "-32603 open $D/plain: not a directory".to_owned()),
        ("$D/plain/x", "-32603 open $D/plain/x: not a directory".to_owned()),
        ("$D/l/fifo", "-32603 open $D/l/fifo: not a directory".to_owned()),
        ("$D/l/dangling", "-32603 open $D/l/dangling: no such file or directory".to_owned()),
        (r"$D\u0000", r"-32603 open $D\u0000: invalid argument".to_owned()),
        (
            r"<&>\u2028\u0001é",
            r"-32603 open \u003c\u0026\u003e\u2028\u0001é: no such file or directory".to_owned(),
        ),
        (&long, too_long(&long)),
        (&longer, too_long(&longer)),
    ];
    let params: Vec<String> = rows.iter().map(|(path, _)| format!(r#"{{"path":"{path}"}}"#)).collect();
    let table: Vec<Row<'_>> = params
        .iter()
        .zip(&rows)
        .map(|(params, (_, expected))| ("files.list", params.as_str(), expected.as_str()))
        .collect();
    check(&mut relay.connect(), relay.dir(), &table);
}

/// "content is raw text, not base64", "Size > maxBytes → -32602".
#[test]
fn read_returns_the_content_or_an_error() {
    let relay = Relay::start();
    file(&relay.path("five"), "12345", 0o644);
    file(&relay.path("empty"), "", 0o644);
    file(&relay.path("text"), "a\"b\\c/\n\r\t\x08\x0c\0\x1f\x7f<&>é☃😀\u{2028}\u{2029}", 0o644);
    file(&relay.path("bytes"), b"a\xff\xfeb\xe2\x82c\xed\xa0\x80\xf0\x9f", 0o644);
    file(&relay.path("large"), "x".repeat(300_000), 0o644);
    dir(&relay.path("dir"), 0o755);
    symlink("five", relay.path("link")).unwrap();
    symlink("dir", relay.path("dirlink")).unwrap();
    symlink("nowhere", relay.path("dangling")).unwrap();
    let five = r#"{"content":"12345","exists":true}"#;
    let absent = r#"{"content":"","exists":false}"#;
    let exceeds = "-32602 files.read: file exceeds maxBytes";
    let directory = "-32602 files.read: path is a directory";
    let text = "{\"content\":\"a\\\"b\\\\c/\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}\\u003c\\u0026\\u003eé☃😀\\u2028\\u2029\",\"exists\":true}";
    let large = format!(r#"{{"content":"{}","exists":true}}"#, "x".repeat(300_000));
    let long = format!(r#"{{"path":"{}"}}"#, "x".repeat(5000));
    let mut client = relay.connect();
    check(
        &mut client,
        relay.dir(),
        &[
            ("files.read", r#"{"path":"$D/five"}"#, five),
            ("files.read", r#"{"path":"five"}"#, five),
            ("files.read", r#"{"path":"$D/link"}"#, five),
            ("files.read", r#"{"path":"$D/dir/../five"}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":5}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":6}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":9223372036854775807}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":4}"#, exceeds),
            ("files.read", r#"{"path":"$D/five","maxBytes":1}"#, exceeds),
            ("files.read", r#"{"path":"$D/link","maxBytes":4}"#, exceeds),
            // A non-positive maxBytes means no limit.
            ("files.read", r#"{"path":"$D/five","maxBytes":0}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":-0}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":-1}"#, five),
            ("files.read", r#"{"path":"$D/five","maxBytes":null}"#, five),
            ("files.read", r#"{"path":"$D/large"}"#, &large),
            ("files.read", r#"{"path":"$D/large","maxBytes":300000}"#, &large),
            ("files.read", r#"{"path":"$D/large","maxBytes":299999}"#, exceeds),
            ("files.read", r#"{"path":"$D/empty"}"#, r#"{"content":"","exists":true}"#),
            ("files.read", r#"{"path":"$D/empty","maxBytes":1}"#, r#"{"content":"","exists":true}"#),
            ("files.read", r#"{"path":"$D/text"}"#, text),
            (
                "files.read",
                r#"{"path":"$D/bytes"}"#,
                r#"{"content":"a\ufffd\ufffdb\ufffd\ufffdc\ufffd\ufffd\ufffd\ufffd\ufffd","exists":true}"#,
            ),
            ("files.read", r#"{"path":"$D/dir"}"#, directory),
            ("files.read", r#"{"path":"$D/dir/"}"#, directory),
            ("files.read", r#"{"path":"$D/dirlink"}"#, directory),
            ("files.read", r#"{"path":"$D/dir","maxBytes":1}"#, directory),
            ("files.read", r#"{"path":"/"}"#, directory),
            ("files.read", r#"{"path":"."}"#, directory),
            // "Missing file → {content:"",exists:false} (not an error)", and other paths for which stat fails.
            ("files.read", r#"{"path":"$D/nope"}"#, absent),
            ("files.read", r#"{"path":""}"#, absent),
            ("files.read", r#"{"path":"$D/dangling"}"#, absent),
            ("files.read", r#"{"path":"$D/five/"}"#, absent),
            ("files.read", r#"{"path":"$D/five/x"}"#, absent),
            ("files.read", r#"{"path":"$D/five\u0000"}"#, absent),
            ("files.read", &long, absent),
        ],
    );
    // A file in /proc has size 0 in stat, but content.
    let version = serde_json::to_string(&fs::read_to_string("/proc/version").unwrap()).unwrap();
    let expected = format!(r#"{{"content":{version},"exists":true}}"#);
    check(&mut client, relay.dir(), &[("files.read", r#"{"path":"/proc/version"}"#, &expected)]);
}

/// The original's behaviour from 1.1 to 1.7. Later versions read such files and can block forever.
#[test]
fn a_file_that_is_not_regular_is_refused_without_blocking() {
    let relay = Relay::start();
    fifo(&relay.path("fifo"));
    let _socket = UnixListener::bind(relay.path("socket")).unwrap();
    let refused = "-32602 files.read: not a regular file";
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("files.read", r#"{"path":"$D/fifo"}"#, refused),
            ("files.read", r#"{"path":"$D/fifo","maxBytes":10}"#, refused),
            ("files.read", r#"{"path":"$D/socket"}"#, refused),
            ("files.read", r#"{"path":"/dev/null"}"#, refused),
            ("files.read", r#"{"path":"/dev/zero","maxBytes":10}"#, refused),
        ],
    );
}

#[test]
fn a_permission_error_names_the_path() {
    let relay = unprivileged();
    dir(&relay.path("secret"), 0o700);
    file(&relay.path("secret/inside"), "x", 0o644);
    set_mode(&relay.path("secret"), 0);
    file(&relay.path("closed"), "x", 0);
    file(&relay.path("closed-too-large"), "xx", 0);
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("files.list", r#"{"path":"$D/secret"}"#, "-32603 open $D/secret: permission denied"),
            ("files.list", r#"{"path":"$D/secret/"}"#, "-32603 open $D/secret/: permission denied"),
            (
                "files.list",
                r#"{"path":"$D/secret/inside"}"#,
                "-32603 open $D/secret/inside: permission denied",
            ),
            ("files.list", r#"{"path":"$D/closed"}"#, "-32603 open $D/closed: not a directory"),
            ("files.read", r#"{"path":"$D/closed"}"#, "-32603 open $D/closed: permission denied"),
            (
                "files.read",
                r#"{"path":"$D/closed-too-large","maxBytes":1}"#,
                "-32602 files.read: file exceeds maxBytes",
            ),
            ("files.read", r#"{"path":"$D/secret"}"#, "-32602 files.read: path is a directory"),
            // A path for which stat fails counts as missing.
            ("files.read", r#"{"path":"$D/secret/inside"}"#, r#"{"content":"","exists":false}"#),
            (
                "files.stat",
                r#"{"path":"$D/secret/inside"}"#,
                r#"{"exists":false,"isDir":false,"size":0,"mode":""}"#,
            ),
            (
                "files.validate",
                r#"{"path":"$D/secret/inside"}"#,
                r#"{"valid":false,"isDir":false,"error":"Path does not exist"}"#,
            ),
            ("files.validate", r#"{"path":"$D/secret"}"#, r#"{"valid":true,"isDir":true}"#),
        ],
    );
    let reply =
        relay.connect().call("files.stat", &format!(r#"{{"path":"{}"}}"#, relay.path("secret").display()));
    assert!(reply.ends_with(r#""mode":"d---------"}"#), "{reply}");
    assert_ne!(reply, answer("{}"));
    set_mode(&relay.path("secret"), 0o700);
}
