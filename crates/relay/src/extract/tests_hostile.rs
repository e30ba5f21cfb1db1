//! Archives made to do harm, and a neighbour who swaps directories for links while we unpack.

use super::*;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

/// A header that claims any size, followed by less.
fn claiming(kind: u8, name: &str, size: u64, content: &[u8]) -> Vec<u8> {
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
fn a_claimed_size_costs_nothing() {
    let scene = Scene::new();
    for size in [1 << 20, 1 << 40, i64::MAX as u64] {
        for (kind, text) in
            [(b'0', "unexpected EOF"), (b'x', "gzip: unexpected EOF"), (b'L', "gzip: unexpected EOF")]
        {
            let bytes = gzip(&claiming(kind, "f", size, b"short"));
            assert_eq!(scene.extract(&bytes), failure(0, text), "{size}");
        }
    }
    assert!(fs::metadata(scene.path("dest")).unwrap().is_dir());
}

#[test]
fn headers_about_headers_are_bounded() {
    let scene = Scene::new();
    let name = vec![b'n'; SPECIAL_BYTES_MAX as usize + 1];
    for kind in *b"xLK" {
        let bytes = archive(&[claiming(kind, "l", name.len() as u64, &name), file("f", "1")]);
        assert_eq!(scene.extract(&bytes), failure(0, "gzip: archive/tar: header field too long"));
    }
    // Each of them small, but without end.
    let limits = Limits { overhead_bytes: 10_000, ..LIMITS };
    let bytes = archive(&vec![entry(b'L', b"l", b"name"); 100]);
    assert_eq!(scene.extract_within(&bytes, limits), failure(0, "gzip: extraction size limit exceeded"));
    let padding = gzip(&[tar(&[file("f", "1")]), vec![0; 100_000]].concat());
    assert_eq!(scene.extract_within(&padding, limits), failure(1, "gzip: extraction size limit exceeded"));
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let scene = Scene::new();
    let zeros = vec![0; 64 << 20];
    let bytes = archive(&[file("first", "1"), claiming(b'0', "bomb", zeros.len() as u64, &zeros)]);
    assert!(bytes.len() < 1 << 20);
    let limits = Limits { content_bytes: 1 << 20, ..LIMITS };
    assert_eq!(scene.extract_within(&bytes, limits), failure(1, "extraction size limit exceeded"));
    assert!(fs::metadata(scene.path("dest/bomb")).unwrap().len() <= 1 << 20);
}

#[test]
fn names_too_long_for_the_system_are_errors() {
    let scene = Scene::new();
    let named = |name: &str, kind: u8| {
        archive(&[claiming(b'L', "l", name.len() as u64, name.as_bytes()), entry(kind, b"f", b"")])
    };
    let dest = scene.text("dest");
    let long = "n".repeat(256);
    assert_eq!(
        scene.extract(&named(&long, b'0')),
        failure(0, format!("open {dest}/{long}: file name too long"))
    );
    assert_eq!(
        scene.extract(&named(&long, b'5')),
        failure(0, format!("mkdir {dest}/{long}: file name too long"))
    );
    // As deep as a path may be, and one name deeper.
    let (level, room) = ("d".repeat(99) + "/", 4095 - dest.len());
    let deep = level.repeat(room / 100) + &"d/".repeat(room % 100 / 2);
    assert_eq!(scene.extract(&named(&deep, b'5')), success(0));
    for name in [deep + "dd/d", level.repeat(100), level.repeat(SPECIAL_BYTES_MAX as usize / 100)] {
        for kind in *b"05" {
            let found = scene.extract(&named(&name, kind));
            let text = found.error.unwrap();
            assert!(text.starts_with("mkdir /") || text.starts_with("open /"), "{text}");
            assert!(text.ends_with("d: file name too long"), "{text}");
            assert_eq!(found.file_count, 0);
        }
    }
    let inside = "d/../".repeat(SPECIAL_BYTES_MAX as usize / 5 - 1) + "f";
    assert_eq!(scene.extract(&named(&inside, b'0')), success(1), "what counts is where it leads");
}

#[test]
fn a_tree_deeper_than_any_path_is_wiped() {
    let scene = Scene::new();
    // One letter and a slash each: more than the 4096 bytes of a path.
    let mut dir = outpost_sys::beneath::Dir::at(&scene.path("dest")).unwrap();
    for _ in 0..2_100 {
        dir = dir.make_dir("d".as_ref()).unwrap();
    }
    assert_eq!(scene.extract(&archive(&[file("f", "1")])), success(1));
    assert_eq!(scene.found(), [".synced 600", "f 600 1"]);
}

#[test]
fn names_that_are_no_text_arrive_and_show() {
    let scene = Scene::new();
    let bytes = archive(&[entry(b'0', b"caf\xe9", b"1"), entry(b'2', b"caf\xe9", b"")]);
    assert_eq!(scene.extract(&bytes), failure(0, "unsupported tar entry type 2: caf\u{fffd}"));
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"caf\xe9");
    assert_eq!(fs::read(scene.path("dest").join(name)).unwrap(), b"1");
    assert_eq!(text(b"a\xe2\x98b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}", "one for each byte");
}

#[test]
fn an_archive_cut_or_changed_anywhere_is_survived() {
    let scene = Scene::new();
    let whole = tar(&[entry(b'L', b"l", b"long/name\0"), file("x", "content"), entry(b'5', b"d", b"")]);
    for cut in (0..whole.len()).step_by(31) {
        let _any = scene.extract(&gzip(&whole[..cut]));
    }
    // Steps that share no factor with the size of a block: the headers are met at different places.
    for at in (0..whole.len()).step_by(13) {
        let mut changed = whole.clone();
        changed[at] ^= 0xa5;
        let _any = scene.extract(&gzip(&changed));
    }
    let packed = gzip(&whole);
    for at in (0..packed.len()).step_by(3) {
        let mut changed = packed.clone();
        changed[at] ^= 0x11;
        let _any = scene.extract(&changed);
        let _any = scene.extract(&packed[..at]);
    }
}

/// Runs `attack` all the time beside extractions of some hundred files; whatever these say, nothing outside changes.
fn race(rounds: usize, attack: impl Fn(&Scene) + Sync) {
    let scene = Scene::new();
    let mut entries = Vec::new();
    for directory in ["sub", "sub/below"] {
        entries.extend((0..100).map(|at| file(&format!("{directory}/file{at}"), "hostile")));
        entries.push(file("file", "hostile"));
    }
    let bytes = archive(&entries);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when an assertion fails: the neighbour would never stop.
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                attack(&scene);
            }
        });
        for _ in 0..rounds {
            let _any = scene.extract(&bytes);
        }
    });
    scene.assert_outside_is_untouched();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has a link to the outside in the place of a directory for a moment.
fn swap(scene: &Scene, directory: &str) {
    let (place, away) = (scene.path(directory), scene.path(&format!("{directory}.away")));
    let _any = fs::rename(&place, &away);
    let _any = symlink(scene.path("outside"), &place);
    let _any = fs::remove_file(&place);
    let _any = fs::rename(&away, &place);
}

#[test]
fn a_subdirectory_swapped_for_a_link_leads_nowhere() {
    race(60, |scene| {
        swap(scene, "dest/sub");
        swap(scene, "dest/sub/below");
    });
}

#[test]
fn a_destination_swapped_for_a_link_leads_nowhere() {
    race(1000, |scene| {
        let (dest, away) = (scene.path("dest"), scene.path("moved"));
        let _any = fs::rename(&dest, &away);
        // Empty, as a destination that was just made is.
        let _any = symlink(scene.path("outside/empty"), &dest);
        let _any = fs::remove_file(&dest);
        let _any = fs::remove_dir_all(&away);
    });
}

#[test]
fn a_file_swapped_for_a_link_is_not_written_through() {
    race(60, |scene| {
        for name in ["dest/file", "dest/sub/file50", "dest/.synced"] {
            let _any = fs::remove_file(scene.path(name));
            let _any = symlink(scene.path("outside/file"), scene.path(name));
            let _any = fs::remove_file(scene.path(name));
            let _any = fs::hard_link(scene.path("outside/file"), scene.path(name));
        }
    });
}
