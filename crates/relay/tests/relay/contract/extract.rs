//! "files.extract_tar": the replies, and "Side effects — deliberate, and not visible in the frame".

use crate::contract::table::{check, unprivileged};
use flate2::Compression;
use flate2::write::GzEncoder;
use outpost_testkit::Relay;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tar::{EntryType, Header};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Writes an archive of entries: type, name, mode, content. Writes also unsafe names unchanged.
fn archive(path: &Path, entries: &[(EntryType, &str, u32, &str)]) {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, mode, content) in entries {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    fs::write(path, gzip(&builder.into_inner().unwrap())).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;

#[test]
fn extraction_wipes_the_destination_and_consumes_the_archive() {
    let relay = Relay::start();
    let (source, dest) = (relay.path("a.tgz"), relay.path("dest"));
    fs::create_dir_all(dest.join("old/dir")).unwrap();
    fs::write(dest.join("old/file"), "old").unwrap();
    fs::set_permissions(&dest, fs::Permissions::from_mode(0o777)).unwrap();
    archive(
        &source,
        &[
            (DIR, "dir/", 0o777, ""),
            (FILE, "dir/file", 0o644, "content"),
            (FILE, "run", 0o755, "#!/bin/sh\n"),
            (FILE, "made/on/the/way", 0o4777, ""),
            (FILE, "dir/../back", 0o666, "inside"),
            (FILE, "/absolute", 0o666, "below"),
            (FILE, "run", 0o755, "again"),
            (DIR, "./", 0o777, ""),
        ],
    );
    let mut client = relay.connect();
    let row =
        |expected| [("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"$D/dest"}"#, expected)];
    // "fileCount counts regular files only", "same file twice counts twice".
    check(&mut client, relay.dir(), &row(r#"{"success":true,"fileCount":6}"#));
    assert!(!source.exists(), "the archive is consumed");
    assert!(!dest.join("old").exists(), "the destination is wiped");
    assert_eq!(mode(&dest), 0o700);
    for (name, content) in [
        ("dir/file", "content"),
        ("run", "again"),
        ("made/on/the/way", ""),
        ("back", "inside"),
        ("absolute", "below"),
        (".synced", ""),
    ] {
        assert_eq!(fs::read_to_string(dest.join(name)).unwrap(), content, "{name}");
        assert_eq!(mode(&dest.join(name)), 0o600, "{name}");
    }
    for name in ["dir", "made", "made/on", "made/on/the"] {
        assert_eq!(mode(&dest.join(name)), 0o700, "{name}");
    }
    // The archive is consumed, so a second request cannot open it and wipes nothing.
    check(
        &mut client,
        relay.dir(),
        &row(r#"{"success":false,"fileCount":0,"error":"open $D/a.tgz: no such file or directory"}"#),
    );
    assert!(dest.join("run").exists());
    // An empty archive is valid. Missing ancestors of the destination are created.
    fs::write(&source, gzip(&[0; 1024])).unwrap();
    check(
        &mut client,
        relay.dir(),
        &[(
            "files.extract_tar",
            r#"{"archivePath":"$D/a.tgz","destDir":"$D/new/er/dest/"}"#,
            r#"{"success":true,"fileCount":0}"#,
        )],
    );
    assert_eq!(fs::read_dir(relay.path("new/er/dest")).unwrap().count(), 1, "only .synced");
}

#[test]
fn a_destination_that_must_not_be_wiped_is_refused_before_the_archive_is_opened() {
    let relay = Relay::start();
    let source = relay.path("a.tgz");
    archive(&source, &[(FILE, "f", 0o644, "x")]);
    let required = "-32602 archivePath and destDir are required";
    let refused = |quoted: &str| {
        format!(
            r#"{{"success":false,"fileCount":0,"error":"destDir must be an absolute, non-root path: {quoted}"}}"#
        )
    };
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("files.extract_tar", "{}", required),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz"}"#, required),
            ("files.extract_tar", r#"{"destDir":"$D/dest"}"#, required),
            ("files.extract_tar", r#"{"archivePath":"","destDir":"$D/dest"}"#, required),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":""}"#, required),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"dest"}"#, &refused(r#"\"dest\""#)),
            (
                "files.extract_tar",
                r#"{"archivePath":"$D/a.tgz","destDir":"./dest"}"#,
                &refused(r#"\"./dest\""#),
            ),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"~/x"}"#, &refused(r#"\"~/x\""#)),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":" /x"}"#, &refused(r#"\" /x\""#)),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"/"}"#, &refused(r#"\"/\""#)),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"//"}"#, &refused(r#"\"//\""#)),
            ("files.extract_tar", r#"{"archivePath":"$D/a.tgz","destDir":"/."}"#, &refused(r#"\"/.\""#)),
            (
                "files.extract_tar",
                r#"{"archivePath":"$D/a.tgz","destDir":"/tmp/../"}"#,
                &refused(r#"\"/tmp/../\""#),
            ),
            (
                "files.extract_tar",
                r#"{"archivePath":"$D/a.tgz","destDir":"a\"\n<é\u0001"}"#,
                &refused(r#"\"a\\\"\\n\u003cé\\x01\""#),
            ),
            ("files.extract_tar", r#"{"archivePath":"$D/nope","destDir":"rel"}"#, &refused(r#"\"rel\""#)),
        ],
    );
    assert!(source.exists(), "rejected before the archive is opened, so the archive is not consumed");
}

#[test]
fn an_invalid_archive_is_consumed() {
    let relay = Relay::start();
    let (source, dest) = (relay.path("a.tgz"), relay.path("dest"));
    let mut client = relay.connect();
    let mut run = |bytes: &[u8], error: &str, wiped: bool| {
        let _none = fs::remove_dir_all(&dest);
        fs::create_dir(&dest).unwrap();
        fs::write(dest.join("old"), "").unwrap();
        fs::write(&source, bytes).unwrap();
        let expected = format!(r#"{{"success":false,"fileCount":0,"error":"{error}"}}"#);
        let params = r#"{"archivePath":"$D/a.tgz","destDir":"$D/dest"}"#;
        check(&mut client, relay.dir(), &[("files.extract_tar", params, &expected)]);
        assert!(!source.exists(), "{error}: consumed on every outcome once opened");
        assert_eq!(dest.join("old").exists(), !wiped, "{error}");
        assert!(!dest.join(".synced").exists(), "{error}");
    };
    run(b"no gzip at all", "gzip: gzip: invalid header", false);
    run(b"", "gzip: EOF", false);
    run(b"\x1f\x8b\x08", "gzip: unexpected EOF", false);
    run(&gzip(b"too short for a header"), "gzip: unexpected EOF", true);
    run(&gzip(&[b'x'; 1024]), "gzip: archive/tar: invalid tar header", true);
    // Truncated inside a file: the partial file stays and does not count.
    let noise: String =
        (0..20_000u32).map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26)).collect();
    archive(&relay.path("whole"), &[(FILE, "cut", 0o644, &noise)]);
    let whole = fs::read(relay.path("whole")).unwrap();
    run(&whole[..whole.len() / 2], "unexpected EOF", true);
}

#[test]
fn an_unsafe_or_unsupported_entry_stops_the_extraction_with_count_0() {
    let relay = Relay::start();
    let (source, dest) = (relay.path("a.tgz"), relay.path("dest"));
    let mut client = relay.connect();
    let cases = [
        (FILE, "../evil", "unsafe path in archive: ../evil"),
        (FILE, "a/../../evil", "unsafe path in archive: a/../../evil"),
        (FILE, "..", "unsafe path in archive: .."),
        (DIR, "../evil/", "unsafe path in archive: ../evil/"),
        (EntryType::Symlink, "link", "unsupported tar entry type 2: link"),
        (EntryType::Link, "hard", "unsupported tar entry type 1: hard"),
        (EntryType::Char, "char", "unsupported tar entry type 3: char"),
        (EntryType::Block, "block", "unsupported tar entry type 4: block"),
        (EntryType::Fifo, "fifo", "unsupported tar entry type 6: fifo"),
        // The path is checked before the type.
        (EntryType::Symlink, "../link", "unsafe path in archive: ../link"),
        (EntryType::Fifo, "a<b", r"unsupported tar entry type 6: a\u003cb"),
    ];
    for (kind, name, error) in cases {
        archive(&source, &[(FILE, "good", 0o644, "x"), (kind, name, 0o644, ""), (FILE, "after", 0o644, "x")]);
        let expected = format!(r#"{{"success":false,"fileCount":0,"error":"{error}"}}"#);
        let params = r#"{"archivePath":"$D/a.tgz","destDir":"$D/dest"}"#;
        check(&mut client, relay.dir(), &[("files.extract_tar", params, &expected)]);
        assert!(!source.exists(), "{name}: consumed");
        assert!(!relay.path("evil").exists() && !relay.path("link").exists(), "{name}");
        assert!(dest.join("good").exists() && !dest.join("after").exists(), "{name}");
        assert!(!dest.join(".synced").exists(), "{name}");
    }
}

/// "destDir clean/mkdir or marker-write failures → clean destDir: … / mkdir destDir: … / write .synced: …".
#[test]
fn a_destination_error_names_the_failed_step() {
    let relay = unprivileged();
    let source = relay.path("a.tgz");
    let mut client = relay.connect();
    fs::write(relay.path("file"), "").unwrap();
    fs::create_dir(relay.path("closed")).unwrap();
    fs::create_dir_all(relay.path("held/inside")).unwrap();
    for name in ["closed", "held"] {
        fs::set_permissions(relay.path(name), fs::Permissions::from_mode(0o555)).unwrap();
    }
    let cases = [
        ("$D/closed/x", "mkdir destDir: mkdir $D/closed/x: permission denied"),
        ("$D/held/inside", "clean destDir: unlinkat $D/held/inside: permission denied"),
        ("$D/file/x", "clean destDir: unlinkat $D/file/x: not a directory"),
    ];
    for (dest, error) in cases {
        archive(&source, &[(FILE, "f", 0o644, "x")]);
        fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).unwrap();
        let params = format!(r#"{{"archivePath":"$D/a.tgz","destDir":"{dest}"}}"#);
        let expected = format!(r#"{{"success":false,"fileCount":0,"error":"{error}"}}"#);
        check(&mut client, relay.dir(), &[("files.extract_tar", &params, &expected)]);
        assert!(!source.exists(), "{dest}: consumed");
    }
    // An archive that cannot be opened is not consumed.
    archive(&source, &[(FILE, "f", 0o644, "x")]);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o000)).unwrap();
    check(
        &mut client,
        relay.dir(),
        &[(
            "files.extract_tar",
            r#"{"archivePath":"$D/a.tgz","destDir":"$D/dest"}"#,
            r#"{"success":false,"fileCount":0,"error":"open $D/a.tgz: permission denied"}"#,
        )],
    );
    assert!(source.exists() && !relay.path("dest").exists());
    for name in ["closed", "held"] {
        fs::set_permissions(relay.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
