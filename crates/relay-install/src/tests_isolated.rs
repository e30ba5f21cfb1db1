//! Tests that need a separate process: one with a full disk, one whose memory is measured.
//!
//! Each test runs the test binary again with an environment variable that identifies the second run.

use super::fixture::{CLI, Fixture, Server, noise, packed, respond, sha256};
use outpost_testkit::{Lack, require};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::Command;

/// Set in the second run, to the path of the small disk.
const DISK: &str = "OUTPOST_TEST_INSTALL_DISK";
/// Set in the second run, to any value.
const LARGE: &str = "OUTPOST_TEST_INSTALL_LARGE";

fn this_test(name: &str) -> [String; 3] {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [program, "--exact".to_owned(), format!("{}::{name}", module())]
}

/// The module path without the crate name, as the test harness prints it.
fn module() -> &'static str {
    module_path!().split_once("::").unwrap().1
}

/// Runs a test and asserts that it was not filtered out.
fn assert_passes(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn a_full_disk_is_reported_and_nothing_is_left_on_it() {
    if let Ok(disk) = std::env::var(DISK) {
        return install_on_a_small_disk(&disk);
    }
    let is_root = outpost_sys::process::effective_uid() == 0;
    let user_namespace = if is_root { [].as_slice() } else { &["-r"] };
    let mut probe = Command::new("unshare");
    let can_unshare = probe.args(user_namespace).args(["-m", "true"]).status().is_ok_and(|s| s.success());
    let lack = || Lack::of_host("this user may not make a mount namespace");
    require!((is_root || can_unshare).then_some(()).ok_or_else(lack));
    let dir = tempfile::tempdir().unwrap();
    // The mount namespace, and thus the mount, ends with the process.
    let mount = "mount -t tmpfs -o size=64k none \"$0\" && exec \"$@\"";
    assert_passes(
        Command::new("unshare")
            .args(user_namespace)
            .args(["-m", "sh", "-c", mount])
            .arg(dir.path())
            .args(this_test("a_full_disk_is_reported_and_nothing_is_left_on_it"))
            .env(DISK, dir.path()),
    );
}

fn install_on_a_small_disk(disk: &str) {
    // The blob does not fit.
    let blob = packed(&noise(100_000));
    let server = Server::of(&blob);
    let mut fixture = Fixture::with_url(server.url("/"), &blob);
    disk.clone_into(&mut fixture.options.cli_dir);
    let full = |text: &str, prefix: &str| {
        assert!(text.starts_with(&format!("{prefix}: write {disk}/.")), "{text}");
        assert!(text.ends_with(": no space left on device"), "{text}");
    };
    full(fixture.run().error(), "download failed");
    assert!(fixture.names().is_empty());
    // The blob fits, the decompressed program does not.
    let blob = packed(&[0; 100_000]);
    let server = Server::of(&blob);
    (fixture.options.cli_url, fixture.options.cli_checksum) = (server.url("/"), sha256(&blob));
    full(fixture.run().error(), "decompressing");
    assert!(fixture.names().is_empty());
    let mut fixture = Fixture::with_blob(&blob);
    disk.clone_into(&mut fixture.options.cli_dir);
    full(fixture.run().error(), "decompressing");
    assert!(fixture.names().is_empty() && fs::exists(&fixture.options.cli_zst).unwrap());
    // No room for a directory entry.
    let mut number = 0;
    while File::create(format!("{disk}/{number}")).and_then(|mut file| file.write_all(b"x")).is_ok() {
        number += 1;
    }
    let text = fixture.run().error().to_owned();
    assert!(text.ends_with(": no space left on device"), "{text}");
    assert!(fs::exists(&fixture.options.cli_zst).unwrap());
}

#[test]
fn memory_does_not_grow_with_the_size_of_the_program() {
    if std::env::var_os(LARGE).is_some() {
        return install_a_large_program();
    }
    let [program, arguments @ ..] = this_test("memory_does_not_grow_with_the_size_of_the_program");
    assert_passes(Command::new(program).args(arguments).env(LARGE, "1"));
}

fn install_a_large_program() {
    const NOISE_BYTES: usize = 64 << 20;
    const ZERO_BYTES: usize = 136 << 20;
    const GROWTH_KB_MAX: u64 = 16 << 10;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("blob");
    let mut encoder = zstd::Encoder::new(BufWriter::new(File::create(&path).unwrap()), 1).unwrap();
    encoder.write_all(CLI).unwrap();
    encoder.write_all(b"exit 0\n").unwrap();
    let noise = noise(1 << 20);
    for at in 0..NOISE_BYTES >> 20 {
        // The repetitions are further apart than the compression window.
        encoder.write_all(&[at as u8]).unwrap();
        encoder.write_all(&noise).unwrap();
    }
    for _ in 0..ZERO_BYTES >> 20 {
        encoder.write_all(&[0; 1 << 20]).unwrap();
    }
    encoder.finish().unwrap().flush().unwrap();
    let checksum = super::decompress::file_checksum(&mut File::open(&path).unwrap()).unwrap();
    let bytes = path.metadata().unwrap().len();
    assert!(bytes > 60 << 20, "{bytes}: the noise must not be compressed away");

    let served = path.clone();
    let server = Server::start(move |_, stream| {
        respond(stream, "200 OK", &format!("Content-Length: {bytes}\r\n"), b"");
        std::io::copy(&mut File::open(&served).unwrap(), stream).unwrap();
    });
    let mut fixture = Fixture::with_url(server.url("/"), b"");
    fixture.options.cli_checksum.clone_from(&checksum);
    let grown_kb = peak_growth_kb(|| assert!(fixture.run().installed()));
    assert!(grown_kb < GROWTH_KB_MAX, "{grown_kb} kB for a download");
    assert_eq!(
        fixture.cli().metadata().unwrap().len(),
        (CLI.len() + 7 + NOISE_BYTES + 64 + ZERO_BYTES) as u64
    );

    let mut fixture = Fixture::new();
    fixture.options.cli_checksum = checksum;
    fixture.options.cli_zst = path.to_str().unwrap().to_owned();
    let grown_kb = peak_growth_kb(|| assert!(fixture.run().installed()));
    assert!(grown_kb < GROWTH_KB_MAX, "{grown_kb} kB for a file");
}

/// The growth of peak RSS in kB during `run`.
fn peak_growth_kb(run: impl FnOnce()) -> u64 {
    // Resets VmHWM.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_kb("VmRSS:");
    run();
    status_kb("VmHWM:").saturating_sub(before)
}

fn status_kb(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
