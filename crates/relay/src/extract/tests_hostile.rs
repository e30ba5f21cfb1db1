//! Hostile archives, and another process that swaps directories for symlinks during the extraction.

use super::*;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

/// An entry whose header claims another size than its content has.
fn with_claimed_size(kind: u8, name: &str, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.as_old_mut().linkflag = [kind];
    header.set_size(size);
    header.set_mode(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    sealed(header, content)
}

#[test]
fn a_claimed_size_allocates_nothing() {
    let fixture = Fixture::new();
    for size in [1 << 20, 1 << 40, i64::MAX as u64] {
        for (kind, text) in
            [(b'0', "unexpected EOF"), (b'x', "gzip: unexpected EOF"), (b'L', "gzip: unexpected EOF")]
        {
            let bytes = gzip(&with_claimed_size(kind, "f", size, b"short"));
            assert_eq!(fixture.extract(&bytes), failure(0, text), "{size}");
        }
    }
    assert!(fs::metadata(fixture.path("dest")).unwrap().is_dir());
}

#[test]
fn extension_headers_are_bounded() {
    let fixture = Fixture::new();
    let name = vec![b'n'; EXTENSION_BYTES_MAX as usize + 1];
    for kind in *b"xLK" {
        let bytes = archive(&[with_claimed_size(kind, "l", name.len() as u64, &name), file("f", "1")]);
        assert_eq!(fixture.extract(&bytes), failure(0, "gzip: archive/tar: header field too long"));
    }
    // Many small ones.
    let limits = Limits { overhead_bytes: 10_000, ..LIMITS };
    let bytes = archive(&vec![entry(b'L', b"l", b"name"); 100]);
    assert_eq!(fixture.extract_within(&bytes, limits), failure(0, "gzip: extraction size limit exceeded"));
    let padding = gzip(&[tar(&[file("f", "1")]), vec![0; 100_000]].concat());
    assert_eq!(fixture.extract_within(&padding, limits), failure(1, "gzip: extraction size limit exceeded"));
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let fixture = Fixture::new();
    let zeros = vec![0; 64 << 20];
    let bytes = archive(&[file("first", "1"), with_claimed_size(b'0', "bomb", zeros.len() as u64, &zeros)]);
    assert!(bytes.len() < 1 << 20);
    let limits = Limits { content_bytes: 1 << 20, ..LIMITS };
    assert_eq!(fixture.extract_within(&bytes, limits), failure(1, "extraction size limit exceeded"));
    assert!(fs::metadata(fixture.path("dest/bomb")).unwrap().len() <= 1 << 20);
}

#[test]
fn names_too_long_for_the_system_are_errors() {
    let fixture = Fixture::new();
    let named = |name: &str, kind: u8| {
        archive(&[with_claimed_size(b'L', "l", name.len() as u64, name.as_bytes()), entry(kind, b"f", b"")])
    };
    let dest = fixture.text("dest");
    let long = "n".repeat(256);
    assert_eq!(
        fixture.extract(&named(&long, b'0')),
        failure(0, format!("open {dest}/{long}: file name too long"))
    );
    assert_eq!(
        fixture.extract(&named(&long, b'5')),
        failure(0, format!("mkdir {dest}/{long}: file name too long"))
    );
    // A path of the maximum length, and longer ones.
    let (level, room) = ("d".repeat(99) + "/", 4095 - dest.len());
    let deep = level.repeat(room / 100) + &"d/".repeat(room % 100 / 2);
    assert_eq!(fixture.extract(&named(&deep, b'5')), success(0));
    for name in [deep + "dd/d", level.repeat(100), level.repeat(EXTENSION_BYTES_MAX as usize / 100)] {
        for kind in *b"05" {
            let found = fixture.extract(&named(&name, kind));
            let text = found.error.unwrap();
            assert!(text.starts_with("mkdir /") || text.starts_with("open /"), "{text}");
            assert!(text.ends_with("d: file name too long"), "{text}");
            assert_eq!(found.file_count, 0);
        }
    }
    let inside = "d/../".repeat(EXTENSION_BYTES_MAX as usize / 5 - 1) + "f";
    assert_eq!(fixture.extract(&named(&inside, b'0')), success(1), "the resolved path is short");
}

#[test]
fn a_tree_deeper_than_any_path_is_wiped() {
    let fixture = Fixture::new();
    // Two bytes per level: longer than PATH_MAX.
    let mut dir = outpost_sys::beneath::Dir::at(&fixture.path("dest")).unwrap();
    for _ in 0..2_100 {
        dir = dir.make_dir("d".as_ref()).unwrap();
    }
    assert_eq!(fixture.extract(&archive(&[file("f", "1")])), success(1));
    assert_eq!(fixture.contents(), [".synced 600", "f 600 1"]);
}

#[test]
fn names_that_are_not_utf8_are_extracted_and_reported() {
    let fixture = Fixture::new();
    let bytes = archive(&[entry(b'0', b"caf\xe9", b"1"), entry(b'2', b"caf\xe9", b"")]);
    assert_eq!(fixture.extract(&bytes), failure(0, "unsupported tar entry type 2: caf\u{fffd}"));
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"caf\xe9");
    assert_eq!(fs::read(fixture.path("dest").join(name)).unwrap(), b"1");
    assert_eq!(text(b"a\xe2\x98b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}", "one replacement per byte");
}

#[test]
fn an_archive_truncated_or_modified_anywhere_never_panics() {
    let fixture = Fixture::new();
    let whole = tar(&[entry(b'L', b"l", b"long/name\0"), file("x", "content"), entry(b'5', b"d", b"")]);
    for cut in (0..whole.len()).step_by(31) {
        let _any = fixture.extract(&gzip(&whole[..cut]));
    }
    // The steps are coprime to the block size, so every header field is hit.
    for at in (0..whole.len()).step_by(13) {
        let mut changed = whole.clone();
        changed[at] ^= 0xa5;
        let _any = fixture.extract(&gzip(&changed));
    }
    let packed = gzip(&whole);
    for at in (0..packed.len()).step_by(3) {
        let mut changed = packed.clone();
        changed[at] ^= 0x11;
        let _any = fixture.extract(&changed);
        let _any = fixture.extract(&packed[..at]);
    }
}

/// Runs `attack` in a loop during extractions of some hundred files. Asserts that nothing outside changes.
fn race(rounds: usize, attack: impl Fn(&Fixture) + Sync) {
    let fixture = Fixture::new();
    let mut entries = Vec::new();
    for directory in ["sub", "sub/below"] {
        entries.extend((0..100).map(|at| file(&format!("{directory}/file{at}"), "hostile")));
        entries.push(file("file", "hostile"));
    }
    let bytes = archive(&entries);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also after a failed assertion, or the scope would wait for the attacker forever.
        let _guard = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                attack(&fixture);
            }
        });
        for _ in 0..rounds {
            let _any = fixture.extract(&bytes);
        }
    });
    fixture.assert_outside_unchanged();
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces a directory by a symlink to the outside for a moment.
fn swap(fixture: &Fixture, directory: &str) {
    let (path, moved) = (fixture.path(directory), fixture.path(&format!("{directory}.away")));
    let _any = fs::rename(&path, &moved);
    let _any = symlink(fixture.path("outside"), &path);
    let _any = fs::remove_file(&path);
    let _any = fs::rename(&moved, &path);
}

#[test]
fn a_subdirectory_swapped_for_a_symlink_is_not_followed() {
    race(60, |fixture| {
        swap(fixture, "dest/sub");
        swap(fixture, "dest/sub/below");
    });
}

#[test]
fn a_destination_swapped_for_a_symlink_is_not_followed() {
    race(1000, |fixture| {
        let (dest, moved) = (fixture.path("dest"), fixture.path("moved"));
        let _any = fs::rename(&dest, &moved);
        // Empty like a new destination, so that the emptiness check passes.
        let _any = symlink(fixture.path("outside/empty"), &dest);
        let _any = fs::remove_file(&dest);
        let _any = fs::remove_dir_all(&moved);
    });
}

#[test]
fn a_file_swapped_for_a_link_is_not_written_to() {
    race(60, |fixture| {
        for name in ["dest/file", "dest/sub/file50", "dest/.synced"] {
            let _any = fs::remove_file(fixture.path(name));
            let _any = symlink(fixture.path("outside/file"), fixture.path(name));
            let _any = fs::remove_file(fixture.path(name));
            let _any = fs::hard_link(fixture.path("outside/file"), fixture.path(name));
        }
    });
}
