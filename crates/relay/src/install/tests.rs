//! The mode as a whole, without a network: presence, local blobs, failures, prune, several at once.

use super::testkit::{CLI, Place, Ran, packed, script, sha256};
use super::{LIMITS, Limits, Options, platform, run};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn ran(options: &Options) -> Ran {
    let mut out = Vec::new();
    run(options, "9.9", &mut out);
    Ran::new(out)
}

/// The whole line, so that nothing can be in it that is not expected.
fn facts(rest: &str) -> String {
    let (arch, libc) = (crate::go::architecture(), platform::libc());
    format!(
        "__INSTALL_RESULT__{{\"serverVersion\":\"9.9\",\"os\":\"linux\",\"arch\":\"{arch}\",\"libc\":\"{libc}\",{rest}}}"
    )
}

#[test]
fn without_directory_or_version_only_facts_are_told() {
    let place = Place::with_blob(&packed(CLI));
    let without_dir = Options { cli_dir: String::new(), ..place.options.clone() };
    let without_version = Options { cli_version: String::new(), ..place.options.clone() };
    for options in [Options::default(), without_dir, without_version] {
        assert_eq!(ran(&options).result, facts("\"cliPath\":\"\",\"cliWasPresent\":false"));
    }
    assert!(!place.dir().exists());
    assert!(fs::exists(&place.options.cli_zst).unwrap());
}

#[test]
fn a_blob_is_installed_and_then_removed() {
    let mut place = Place::with_blob(&packed(CLI));
    place.options.cli_dir += "/./x/../";
    let path = place.root.path().join("clis/1.0");
    let told =
        |present: bool| facts(&format!("\"cliPath\":\"{}\",\"cliWasPresent\":{present}", path.display()));
    assert_eq!(place.run().result, told(false));
    assert_eq!(fs::read(&path).unwrap(), CLI);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
    let dir = path.parent().unwrap();
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing else is left");
    assert!(!fs::exists(&place.options.cli_zst).unwrap());
    assert_eq!(place.run().result, told(true));
}

#[test]
fn a_directory_relative_to_where_we_are_is_no_hindrance() {
    let mut place = Place::with_blob(&packed(CLI));
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    place.options.cli_dir = format!("{up}{}", place.options.cli_dir.trim_start_matches('/'));
    assert!(place.run().installed());
    assert!(place.run().was_present());
}

#[test]
fn a_version_that_is_no_single_name_writes_nothing() {
    for version in ["../x", "a/b", ".", "..", ".fetch-x", ".blob-x", "x.zst"] {
        let mut place = Place::with_blob(&packed(CLI));
        place.options.cli_version = version.to_owned();
        let ran = place.run();
        assert!(ran.result.contains("\"cliError\":\"invalid --cli-version \\\""), "{ran:?}");
        assert!(!ran.was_present());
        assert!(!place.dir().exists() && fs::exists(&place.options.cli_zst).unwrap());
    }
}

#[test]
fn without_a_source_the_missing_version_is_named() {
    let place = Place::new();
    assert_eq!(place.run().error(), "cli 1.0 missing and no --cli-url or --cli-zst provided");
    assert!(!place.dir().exists());
}

#[test]
fn a_link_to_a_program_is_present_and_a_broken_one_is_replaced() {
    let place = Place::with_blob(&packed(CLI));
    fs::create_dir(place.dir()).unwrap();
    let program = script(place.root.path(), "program", "exit 0");
    symlink(&program, place.cli()).unwrap();
    assert!(place.run().was_present());
    assert!(fs::exists(&place.options.cli_zst).unwrap(), "nothing was done with it");
    script(place.root.path(), "program", "exit 1");
    assert!(place.run().installed());
    assert!(place.cli().symlink_metadata().unwrap().is_file());
    assert!(program.exists());
}

#[test]
fn a_stale_directory_is_removed_for_the_program() {
    let place = Place::with_blob(&packed(CLI));
    fs::create_dir_all(place.cli().join("some/thing")).unwrap();
    assert!(place.run().installed());
    assert_eq!(fs::read(place.cli()).unwrap(), CLI);
}

#[test]
fn a_program_that_does_not_run_is_not_installed_and_its_blob_stays() {
    let hanging = b"#!/bin/sh\nexec sleep 1000\n".as_slice();
    let quick = Limits { probe: Duration::from_millis(300), ..LIMITS };
    for (program, limits) in
        [(b"#!/bin/sh\nexit 3\n".as_slice(), LIMITS), (b"no program", LIMITS), (hanging, quick)]
    {
        let place = Place::with_blob(&packed(program));
        fs::create_dir(place.dir()).unwrap();
        fs::write(place.cli(), "older").unwrap();
        let ran = place.run_within(&limits);
        assert_eq!(ran.error(), format!("installed cli at {} is not runnable", place.cli().display()));
        assert_eq!(place.names(), ["1.0"]);
        assert_eq!(fs::read(place.cli()).unwrap(), b"older");
        assert!(fs::exists(&place.options.cli_zst).unwrap());
    }
}

#[test]
fn a_blob_with_a_wrong_checksum_is_never_executed() {
    let marker = tempfile::tempdir().unwrap();
    let path = marker.path().join("executed");
    let blob = packed(format!("#!/bin/sh\ntouch {}\n", path.display()).as_bytes());
    let (right, wrong) = (sha256(&blob), "00".repeat(32));
    let mut place = Place::with_blob(&blob);
    place.options.cli_checksum.clone_from(&wrong);
    assert_eq!(place.run().error(), format!("checksum mismatch: expected={wrong}, actual={right}"));
    assert!(!path.exists() && place.names().is_empty());
    assert!(fs::exists(&place.options.cli_zst).unwrap());
    place.options.cli_checksum = right.to_uppercase();
    assert!(place.run().installed());
    assert!(path.exists());
}

#[test]
fn a_corrupt_blob_is_a_mismatch_when_there_is_a_checksum_and_a_decoding_error_when_there_is_none() {
    let mut place = Place::with_blob(b"not compressed");
    assert_eq!(place.run().error(), "decompressing: invalid input: magic number mismatch");
    place.options.cli_checksum = "ab".to_owned();
    let actual = sha256(b"not compressed");
    assert_eq!(place.run().error(), format!("checksum mismatch: expected=ab, actual={actual}"));
    let blob = packed(CLI);
    let place = Place::with_blob(&blob[..blob.len() - 1]);
    assert_eq!(place.run().error(), "decompressing: unexpected EOF");
    assert!(place.names().is_empty() && fs::exists(&place.options.cli_zst).unwrap());
}

#[test]
fn a_bomb_is_not_installed() {
    let place = Place::with_blob(&packed(&[0; 2000]));
    let ran = place.run_within(&Limits { unpacked_bytes_max: 1999, ..LIMITS });
    assert_eq!(ran.error(), "decompressing: decompressed CLI exceeds 1999 bytes");
    assert!(place.names().is_empty());
}

#[test]
fn what_cannot_be_opened_is_said_in_the_originals_words_before_anything_is_created() {
    let mut place = Place::new();
    let missing = place.root.path().join("missing").display().to_string();
    let fifo = place.root.path().join("fifo").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let root = place.root.path().display().to_string();
    let cases = [
        (missing.clone(), format!("opening input: open {missing}: no such file or directory")),
        (root.clone(), format!("opening input: read {root}: is a directory")),
        (fifo.clone(), format!("opening input: open {fifo}: not a regular file")),
    ];
    for (path, text) in cases {
        place.options.cli_zst = path;
        assert_eq!(place.run().error(), text);
        assert!(!place.dir().exists());
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let mut place = Place::with_blob(&packed(CLI));
    let file = place.root.path().join("file");
    File::create(&file).unwrap();
    place.options.cli_dir = file.join("clis").display().to_string();
    assert_eq!(place.run().error(), format!("mkdir {}: not a directory", file.display()));
}

/// Versions besides `1.0`, with their ages in minutes.
fn with_versions(place: &Place, versions: &[(&str, u64)]) {
    fs::create_dir_all(place.dir()).unwrap();
    for (name, minutes) in versions {
        let file = File::create(place.dir().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
    }
}

#[test]
fn an_installation_prunes_and_counts_itself() {
    let mut place = Place::with_blob(&packed(CLI));
    place.options.cli_keep = 2;
    with_versions(&place, &[("a", 1), ("b", 2), (".blob-crashed", 90)]);
    assert!(place.run().installed());
    assert_eq!(place.names(), ["1.0", "a"]);
}

#[test]
fn a_version_that_was_found_is_not_pruned_nor_is_anything_else() {
    let mut place = Place::with_blob(&packed(CLI));
    assert!(place.run().installed());
    File::open(place.cli()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    place.options.cli_keep = 1;
    with_versions(&place, &[("junk", 0), (".fetch-crashed", 90)]);
    assert!(place.run().was_present());
    assert_eq!(place.names(), [".fetch-crashed", "1.0", "junk"]);
}

#[test]
fn a_failed_installation_prunes_nothing() {
    let mut place = Place::with_blob(b"not compressed");
    place.options.cli_keep = 1;
    with_versions(&place, &[("a", 1), ("b", 2), (".fetch-crashed", 90)]);
    assert_ne!(place.run().error(), "");
    assert_eq!(place.names(), [".fetch-crashed", "a", "b"]);
}

#[test]
fn many_may_install_the_same_blob_at_the_same_time() {
    let place = Place::with_blob(&packed(CLI));
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let install = || {
            start.wait();
            place.run()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(install)).collect();
        for one in all {
            assert_eq!(one.join().unwrap().error(), "");
        }
    });
    assert_eq!(place.names(), ["1.0"]);
    assert!(!fs::exists(&place.options.cli_zst).unwrap());
    assert!(place.run().was_present());
}

#[test]
fn a_blob_that_another_one_has_just_installed_and_removed_is_not_missed() {
    let mut place = Place::new();
    place.options.cli_zst = place.root.path().join("gone").display().to_string();
    fs::create_dir(place.dir()).unwrap();
    // Not there when it is looked for, and there when the blob is not any more.
    let seen = place.root.path().join("seen");
    let body = format!("test -e {0} || {{ touch {0}; exit 1; }}", seen.display());
    script(&place.dir(), "1.0", &body);
    let ran = place.run();
    assert_eq!(ran.error(), "");
    assert!(ran.was_present());
}

#[test]
fn a_blob_that_stands_where_the_program_belongs_does_not_take_it_away() {
    let mut place = Place::new();
    fs::create_dir(place.dir()).unwrap();
    fs::write(place.cli(), packed(CLI)).unwrap();
    place.options.cli_zst = place.cli().display().to_string();
    assert!(place.run().installed());
    assert_eq!(fs::read(place.cli()).unwrap(), CLI);
}

/// Standard output after its reader has gone.
struct Broken;

impl io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn an_installation_goes_on_when_nobody_reads() {
    let place = Place::with_blob(&packed(CLI));
    run(&place.options, "9.9", &mut Broken);
    assert_eq!(place.names(), ["1.0"]);
}
