//! Tests of the whole mode without a network: presence, local blobs, failures, pruning, concurrency.

use super::fixture::{CLI, Fixture, RunOutput, packed, script, sha256};
use super::{LIMITS, Limits, Options, platform, run};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn run_options(options: &Options) -> RunOutput {
    let mut out = Vec::new();
    run(options, "9.9", &mut out);
    RunOutput::new(out)
}

/// The complete expected line.
fn facts(rest: &str) -> String {
    let (arch, libc) = (outpost_relay::go_compat::architecture(), platform::libc());
    format!(
        "__INSTALL_RESULT__{{\"serverVersion\":\"9.9\",\"os\":\"linux\",\"arch\":\"{arch}\",\"libc\":\"{libc}\",{rest}}}"
    )
}

#[test]
fn without_directory_or_version_only_facts_are_printed() {
    let fixture = Fixture::with_blob(&packed(CLI));
    let without_dir = Options { cli_dir: String::new(), ..fixture.options.clone() };
    let without_version = Options { cli_version: String::new(), ..fixture.options.clone() };
    for options in [Options::default(), without_dir, without_version] {
        assert_eq!(run_options(&options).result, facts("\"cliPath\":\"\",\"cliWasPresent\":false"));
    }
    assert!(!fixture.dir().exists());
    assert!(fs::exists(&fixture.options.cli_zst).unwrap());
}

#[test]
fn a_blob_is_installed_and_then_removed() {
    let mut fixture = Fixture::with_blob(&packed(CLI));
    fixture.options.cli_dir += "/./x/../";
    let path = fixture.root.path().join("clis/1.0");
    let expected =
        |present: bool| facts(&format!("\"cliPath\":\"{}\",\"cliWasPresent\":{present}", path.display()));
    assert_eq!(fixture.run().result, expected(false));
    assert_eq!(fs::read(&path).unwrap(), CLI);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
    let dir = path.parent().unwrap();
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "no temporary file is left");
    assert!(!fs::exists(&fixture.options.cli_zst).unwrap());
    assert_eq!(fixture.run().result, expected(true));
}

#[test]
fn a_relative_directory_works() {
    let mut fixture = Fixture::with_blob(&packed(CLI));
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    fixture.options.cli_dir = format!("{up}{}", fixture.options.cli_dir.trim_start_matches('/'));
    assert!(fixture.run().installed());
    assert!(fixture.run().was_present());
}

#[test]
fn an_invalid_version_writes_nothing() {
    for version in ["../x", "a/b", ".", "..", ".fetch-x", ".blob-x", "x.zst"] {
        let mut fixture = Fixture::with_blob(&packed(CLI));
        fixture.options.cli_version = version.to_owned();
        let output = fixture.run();
        assert!(output.result.contains("\"cliError\":\"invalid --cli-version \\\""), "{output:?}");
        assert!(!output.was_present());
        assert!(!fixture.dir().exists() && fs::exists(&fixture.options.cli_zst).unwrap());
    }
}

#[test]
fn without_a_source_the_missing_version_is_named() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run().error(), "cli 1.0 missing and no --cli-url or --cli-zst provided");
    assert!(!fixture.dir().exists());
}

#[test]
fn a_symlink_to_a_program_is_present_and_a_broken_one_is_replaced() {
    let fixture = Fixture::with_blob(&packed(CLI));
    fs::create_dir(fixture.dir()).unwrap();
    let program = script(fixture.root.path(), "program", "exit 0");
    symlink(&program, fixture.cli()).unwrap();
    assert!(fixture.run().was_present());
    assert!(fs::exists(&fixture.options.cli_zst).unwrap(), "the blob is not used");
    script(fixture.root.path(), "program", "exit 1");
    assert!(fixture.run().installed());
    assert!(fixture.cli().symlink_metadata().unwrap().is_file());
    assert!(program.exists());
}

#[test]
fn a_stale_directory_is_replaced_by_the_program() {
    let fixture = Fixture::with_blob(&packed(CLI));
    fs::create_dir_all(fixture.cli().join("some/thing")).unwrap();
    assert!(fixture.run().installed());
    assert_eq!(fs::read(fixture.cli()).unwrap(), CLI);
}

#[test]
fn a_program_that_does_not_run_is_not_installed_and_its_blob_stays() {
    let hanging = b"#!/bin/sh\nexec sleep 1000\n".as_slice();
    let quick = Limits { probe_timeout: Duration::from_millis(300), ..LIMITS };
    for (program, limits) in
        [(b"#!/bin/sh\nexit 3\n".as_slice(), LIMITS), (b"no program", LIMITS), (hanging, quick)]
    {
        let fixture = Fixture::with_blob(&packed(program));
        fs::create_dir(fixture.dir()).unwrap();
        fs::write(fixture.cli(), "older").unwrap();
        let output = fixture.run_within(&limits);
        assert_eq!(output.error(), format!("installed cli at {} is not runnable", fixture.cli().display()));
        assert_eq!(fixture.names(), ["1.0"]);
        assert_eq!(fs::read(fixture.cli()).unwrap(), b"older");
        assert!(fs::exists(&fixture.options.cli_zst).unwrap());
    }
}

#[test]
fn a_blob_with_a_wrong_checksum_is_never_executed() {
    let marker = tempfile::tempdir().unwrap();
    let path = marker.path().join("executed");
    let blob = packed(format!("#!/bin/sh\ntouch {}\n", path.display()).as_bytes());
    let (right, wrong) = (sha256(&blob), "00".repeat(32));
    let mut fixture = Fixture::with_blob(&blob);
    fixture.options.cli_checksum.clone_from(&wrong);
    assert_eq!(fixture.run().error(), format!("checksum mismatch: expected={wrong}, actual={right}"));
    assert!(!path.exists() && fixture.names().is_empty());
    assert!(fs::exists(&fixture.options.cli_zst).unwrap());
    fixture.options.cli_checksum = right.to_uppercase();
    assert!(fixture.run().installed());
    assert!(path.exists());
}

#[test]
fn a_corrupt_blob_is_a_mismatch_with_a_checksum_and_a_decoding_error_without() {
    let mut fixture = Fixture::with_blob(b"not compressed");
    assert_eq!(fixture.run().error(), "decompressing: invalid input: magic number mismatch");
    fixture.options.cli_checksum = "ab".to_owned();
    let actual = sha256(b"not compressed");
    assert_eq!(fixture.run().error(), format!("checksum mismatch: expected=ab, actual={actual}"));
    let blob = packed(CLI);
    let fixture = Fixture::with_blob(&blob[..blob.len() - 1]);
    assert_eq!(fixture.run().error(), "decompressing: unexpected EOF");
    assert!(fixture.names().is_empty() && fs::exists(&fixture.options.cli_zst).unwrap());
}

#[test]
fn a_decompression_bomb_is_not_installed() {
    let fixture = Fixture::with_blob(&packed(&[0; 2000]));
    let output = fixture.run_within(&Limits { decompressed_bytes_max: 1999, ..LIMITS });
    assert_eq!(output.error(), "decompressing: decompressed CLI exceeds 1999 bytes");
    assert!(fixture.names().is_empty());
}

#[test]
fn a_blob_that_cannot_be_opened_is_reported_before_anything_is_created() {
    let mut fixture = Fixture::new();
    let missing = fixture.root.path().join("missing").display().to_string();
    let fifo = fixture.root.path().join("fifo").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let root = fixture.root.path().display().to_string();
    let cases = [
        (missing.clone(), format!("opening input: open {missing}: no such file or directory")),
        (root.clone(), format!("opening input: read {root}: is a directory")),
        (fifo.clone(), format!("opening input: open {fifo}: not a regular file")),
    ];
    for (path, text) in cases {
        fixture.options.cli_zst = path;
        assert_eq!(fixture.run().error(), text);
        assert!(!fixture.dir().exists());
    }
}

#[test]
fn an_error_names_the_directory_that_cannot_be_created() {
    let mut fixture = Fixture::with_blob(&packed(CLI));
    let file = fixture.root.path().join("file");
    File::create(&file).unwrap();
    fixture.options.cli_dir = file.join("clis").display().to_string();
    assert_eq!(fixture.run().error(), format!("mkdir {}: not a directory", file.display()));
}

/// Creates versions besides `1.0`, with their ages in minutes.
fn with_versions(fixture: &Fixture, versions: &[(&str, u64)]) {
    fs::create_dir_all(fixture.dir()).unwrap();
    for (name, minutes) in versions {
        let file = File::create(fixture.dir().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
    }
}

#[test]
fn an_installation_prunes_and_counts_the_new_version() {
    let mut fixture = Fixture::with_blob(&packed(CLI));
    fixture.options.cli_keep = 2;
    with_versions(&fixture, &[("a", 1), ("b", 2), (".blob-crashed", 90)]);
    assert!(fixture.run().installed());
    assert_eq!(fixture.names(), ["1.0", "a"]);
}

#[test]
fn a_present_version_causes_no_pruning() {
    let mut fixture = Fixture::with_blob(&packed(CLI));
    assert!(fixture.run().installed());
    File::open(fixture.cli()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fixture.options.cli_keep = 1;
    with_versions(&fixture, &[("junk", 0), (".fetch-crashed", 90)]);
    assert!(fixture.run().was_present());
    assert_eq!(fixture.names(), [".fetch-crashed", "1.0", "junk"]);
}

#[test]
fn a_failed_installation_prunes_nothing() {
    let mut fixture = Fixture::with_blob(b"not compressed");
    fixture.options.cli_keep = 1;
    with_versions(&fixture, &[("a", 1), ("b", 2), (".fetch-crashed", 90)]);
    assert_ne!(fixture.run().error(), "");
    assert_eq!(fixture.names(), [".fetch-crashed", "a", "b"]);
}

#[test]
fn concurrent_installations_of_one_blob_succeed() {
    let fixture = Fixture::with_blob(&packed(CLI));
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let install = || {
            start.wait();
            fixture.run()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(install)).collect();
        for one in all {
            assert_eq!(one.join().unwrap().error(), "");
        }
    });
    assert_eq!(fixture.names(), ["1.0"]);
    assert!(!fs::exists(&fixture.options.cli_zst).unwrap());
    assert!(fixture.run().was_present());
}

#[test]
fn a_blob_installed_and_removed_by_another_process_counts_as_present() {
    let mut fixture = Fixture::new();
    fixture.options.cli_zst = fixture.root.path().join("gone").display().to_string();
    fs::create_dir(fixture.dir()).unwrap();
    // The version probe fails before the blob is opened and succeeds afterwards.
    let seen = fixture.root.path().join("seen");
    let body = format!("test -e {0} || {{ touch {0}; exit 1; }}", seen.display());
    script(&fixture.dir(), "1.0", &body);
    let output = fixture.run();
    assert_eq!(output.error(), "");
    assert!(output.was_present());
}

#[test]
fn a_blob_at_the_path_of_the_program_is_replaced_by_it() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.dir()).unwrap();
    fs::write(fixture.cli(), packed(CLI)).unwrap();
    fixture.options.cli_zst = fixture.cli().display().to_string();
    assert!(fixture.run().installed());
    assert_eq!(fs::read(fixture.cli()).unwrap(), CLI);
}

/// An output whose reader is closed.
struct BrokenPipe;

impl io::Write for BrokenPipe {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn an_installation_continues_if_its_output_is_closed() {
    let fixture = Fixture::with_blob(&packed(CLI));
    run(&fixture.options, "9.9", &mut BrokenPipe);
    assert_eq!(fixture.names(), ["1.0"]);
}
