//! Extraction tests: the shared fixture, and the contract rule by rule.

#[path = "tests_formats.rs"]
mod formats;
#[path = "tests_hostile.rs"]
mod hostile;
#[path = "tests_paths.rs"]
mod paths;

use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A temporary directory with an archive, a destination that has old content, and files outside that must not change.
struct Fixture {
    root: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture { root: tempfile::tempdir().unwrap() };
        fs::create_dir_all(fixture.path("dest/old")).unwrap();
        fs::create_dir_all(fixture.path("outside/empty")).unwrap();
        fs::write(fixture.path("dest/old/file"), "old").unwrap();
        fs::write(fixture.path("outside/file"), "precious").unwrap();
        fixture
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    fn text(&self, below: &str) -> String {
        self.path(below).to_str().unwrap().to_owned()
    }

    /// Extracts an archive. Asserts that the archive is removed and nothing outside has changed.
    fn extract(&self, archive: &[u8]) -> Extracted {
        self.extract_within(archive, LIMITS)
    }

    fn extract_within(&self, archive: &[u8], limits: Limits) -> Extracted {
        fs::write(self.path("archive.tgz"), archive).unwrap();
        let extracted = super::extract_within(&self.text("archive.tgz"), &self.text("dest"), None, limits);
        assert!(!self.path("archive.tgz").exists(), "the archive is consumed: {extracted:?}");
        self.assert_outside_unchanged();
        extracted
    }

    fn assert_outside_unchanged(&self) {
        assert_eq!(fs::read(self.path("outside/file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(self.path("outside")).unwrap().count(), 2);
        assert_eq!(fs::read_dir(self.path("outside/empty")).unwrap().count(), 0);
        let mut names: Vec<_> =
            fs::read_dir(self.root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name != "archive.tgz" && name != "dest" && name != "moved");
        assert_eq!(names, ["outside"]);
    }

    /// The tree in the destination, sorted: `name/ 700` or `name 600 content`.
    fn contents(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut directories = vec![self.path("dest")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
                let name = path.strip_prefix(self.path("dest")).unwrap().display().to_string();
                let mode = path.symlink_metadata().unwrap().permissions().mode() & 0o7777;
                if kind.is_dir() {
                    found.push(format!("{name}/ {mode:o}"));
                    directories.push(path);
                } else {
                    assert!(kind.is_file(), "{name}");
                    let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                    found.push(format!("{name} {mode:o} {content}").trim_end().to_owned());
                }
            }
        }
        found.sort();
        found
    }
}

fn success(file_count: u64) -> Extracted {
    Extracted { file_count, error: None }
}

fn failure(file_count: u64, text: impl Into<String>) -> Extracted {
    Extracted { file_count, error: Some(text.into()) }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A tar entry: the header with any name and type, then the content and its padding.
fn entry(kind: u8, name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkflag = [kind];
    header.set_mode(0o7755);
    header.set_size(content.len() as u64);
    sealed(header, content)
}

fn sealed(mut header: tar::Header, content: &[u8]) -> Vec<u8> {
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    gzip(&tar(entries))
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(b'0', name.as_bytes(), content.as_bytes())
}

#[test]
fn entries_get_owner_only_modes_and_replace_the_old_content() {
    let fixture = Fixture::new();
    let bytes = archive(&[
        entry(b'5', b"dir/", b""),
        file("dir/run.sh", "echo"),
        file("implied/deep/f", "x"),
        file("empty", ""),
        file("./dot//slashes", "y"),
        entry(b'5', b"./", b""),
        entry(b'5', b"dir", b""),
    ]);
    assert_eq!(fixture.extract(&bytes), success(4));
    let expected = [
        ".synced 600",
        "dir/ 700",
        "dir/run.sh 600 echo",
        "dot/ 700",
        "dot/slashes 600 y",
        "empty 600",
        "implied/ 700",
        "implied/deep/ 700",
        "implied/deep/f 600 x",
    ];
    assert_eq!(fixture.contents(), expected);
    assert_eq!(fs::metadata(fixture.path("dest")).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[test]
fn extracting_again_gives_the_same() {
    let fixture = Fixture::new();
    let bytes = archive(&[file("a/b", "1")]);
    for _ in 0..2 {
        assert_eq!(fixture.extract(&bytes), success(1));
        assert_eq!(fixture.contents(), [".synced 600", "a/ 700", "a/b 600 1"]);
    }
}

#[test]
fn a_duplicate_file_is_replaced_and_counts_twice() {
    let fixture = Fixture::new();
    assert_eq!(fixture.extract(&archive(&[file("f", "longer"), file("./f", "2")])), success(2));
    assert_eq!(fixture.contents(), [".synced 600", "f 600 2"]);
}

#[test]
fn an_archive_without_entries_or_end_marker_is_complete() {
    let fixture = Fixture::new();
    let one = file("f", "1");
    for (bytes, count) in [(vec![], 0), (tar(&[]), 0), (vec![0; 512], 0), (one, 1)] {
        assert_eq!(fixture.extract(&gzip(&bytes)), success(count), "{} bytes", bytes.len());
    }
}

#[test]
fn a_name_outside_of_the_destination_stops_the_extraction() {
    let names =
        ["../x", "a/../../x", "..", "a/../..", "../outside/x", "../destiny", "/../x", "./../outside/file"];
    for name in names {
        for kind in *b"0512g" {
            let fixture = Fixture::new();
            let bytes = archive(&[file("first", "1"), entry(kind, name.as_bytes(), b"")]);
            assert_eq!(fixture.extract(&bytes), failure(0, format!("unsafe path in archive: {name}")));
            assert_eq!(fixture.contents(), ["first 600 1"], "no .synced marker");
        }
    }
}

#[test]
fn a_name_that_resolves_inside_is_allowed() {
    let fixture = Fixture::new();
    let bytes = archive(&[
        file("a/../b", "1"),
        file("/etc/x", "2"),
        file("../dest/back", "3"),
        entry(b'5', b"/../dest/", b""),
        file("...", "4"),
    ]);
    assert_eq!(fixture.extract(&bytes), success(4));
    assert_eq!(
        fixture.contents(),
        ["... 600 4", ".synced 600", "b 600 1", "back 600 3", "etc/ 700", "etc/x 600 2"]
    );
}

#[test]
fn an_entry_that_is_neither_file_nor_directory_stops_the_extraction() {
    for kind in *b"123467SVMDNAZg\x80" {
        let fixture = Fixture::new();
        let mut header = tar::Header::new_gnu();
        header.set_path("it").unwrap();
        header.set_link_name("../outside").unwrap();
        header.as_old_mut().linkflag = [kind];
        header.set_size(0);
        header.set_mode(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let bytes = archive(&[file("first", "1"), sealed(header, b""), file("it/x", "2")]);
        let expected = format!("unsupported tar entry type {}: it", char::from(kind));
        assert_eq!(fixture.extract(&bytes), failure(0, expected));
        assert_eq!(fixture.contents(), ["first 600 1"]);
    }
}

#[test]
fn a_conflict_between_file_and_directory_is_an_error() {
    let target = |fixture: &Fixture, name: &str| fixture.text("dest") + name;
    let fixture = Fixture::new();
    type Case<'a> = (&'a [Vec<u8>], u64, &'a str, &'a str, &'a str);
    let cases: [Case<'_>; 7] = [
        (&[file("f", "1"), entry(b'5', b"f/", b"")], 1, "mkdir", "/f", "not a directory"),
        (&[file("f", "1"), file("f/g/h", "2")], 1, "mkdir", "/f", "not a directory"),
        (&[file("d/f", "1"), file("d", "2")], 1, "open", "/d", "is a directory"),
        (&[file(".", "1")], 0, "open", "", "is a directory"),
        (&[file("", "1")], 0, "open", "", "is a directory"),
        (&[file("a/..", "1")], 0, "open", "", "is a directory"),
        (
            &[file("a", "1"), entry(b'5', b".synced", b"")],
            1,
            "write .synced: open",
            "/.synced",
            "is a directory",
        ),
    ];
    for (entries, count, call, name, text) in cases {
        let expected = format!("{call} {}: {text}", target(&fixture, name));
        assert_eq!(fixture.extract(&archive(entries)), failure(count, expected));
    }
}

#[test]
fn a_synced_marker_in_the_archive_is_an_ordinary_file() {
    let fixture = Fixture::new();
    assert_eq!(fixture.extract(&archive(&[file(".synced", "theirs")])), success(1));
    assert_eq!(fixture.contents(), [".synced 600"]);
}

#[test]
fn the_total_size_is_limited_inclusively() {
    let fixture = Fixture::new();
    let limits = Limits { content_bytes: 10, ..LIMITS };
    let bytes = archive(&[file("a", "12345"), file("b", "67890"), file("empty", "")]);
    assert_eq!(fixture.extract_within(&bytes, limits), success(3));
    let bytes = archive(&[file("a", "12345"), file("b", "678901"), file("c", "")]);
    assert_eq!(fixture.extract_within(&bytes, limits), failure(1, "extraction size limit exceeded"));
    assert!(!fixture.path("dest/.synced").exists());
}

#[test]
fn the_number_of_entries_and_implied_directories_is_limited() {
    let fixture = Fixture::new();
    let limits = Limits { entries: 3, ..LIMITS };
    let three = [file("a", ""), entry(b'5', b".", b""), file("b", "")];
    assert_eq!(fixture.extract_within(&archive(&three), limits), success(2));
    let four = [three.concat(), file("c", "")];
    assert_eq!(fixture.extract_within(&archive(&four), limits), failure(2, "too many entries in archive"));
    let implied = [file("a/b/c/d", ""), file("e", "")];
    assert_eq!(fixture.extract_within(&archive(&implied), limits), failure(1, "too many entries in archive"));
}
