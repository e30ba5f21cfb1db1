//! Paths of the archive and the destination: refused paths, symlinks, and removal of the archive.

use super::*;
use std::os::unix::fs::symlink;

/// Extracts with these paths. `home` is relative to the fixture.
fn extract_to(fixture: &Fixture, archive_path: &str, dest_dir: &str, home: Option<&str>) -> Extracted {
    let home = home.map(|home| fixture.path(home));
    extract_tar(archive_path, dest_dir, home.as_deref())
}

fn with_archive() -> (Fixture, String) {
    let fixture = Fixture::new();
    fs::write(fixture.path("archive.tgz"), archive(&[file("f", "1")])).unwrap();
    let path = fixture.text("archive.tgz");
    (fixture, path)
}

#[test]
fn a_relative_or_root_destination_keeps_the_archive() {
    let (fixture, path) = with_archive();
    for dest in ["relative", "./x", "~/x", "/", "//", "/.", "/..", "/a/..", "/a/../../", "tab\t\"\u{1}"] {
        let expected =
            format!("destDir must be an absolute, non-root path: {}", crate::go_compat::quote(dest));
        assert_eq!(extract_to(&fixture, &path, dest, None), failure(0, expected));
        assert!(fixture.path("archive.tgz").exists());
    }
    assert_eq!(
        extract_tar("/nowhere", "a\"b", None).error.unwrap(),
        r#"destDir must be an absolute, non-root path: "a\"b""#
    );
}

#[test]
fn the_home_directory_is_never_wiped() {
    let (fixture, path) = with_archive();
    fs::create_dir_all(fixture.path("outside/home")).unwrap();
    symlink("outside", fixture.path("dest/way")).unwrap();
    symlink(fixture.path("outside"), fixture.path("dest/straight")).unwrap();
    let refused = [
        ("outside", "outside"),
        ("outside/home", "outside"),
        ("outside/home", "dest/../outside/"),
        ("outside/home/missing", "outside/home"),
        ("dest/straight/home", "outside"),
        ("outside/home", "dest/straight"),
        ("outside/home", "dest/straight/home"),
        ("outside/home/..", "outside"),
    ];
    for (home, dest) in refused {
        let dest = fixture.text(dest);
        let expected =
            format!("destDir must not be or contain the home directory: {}", crate::go_compat::quote(&dest));
        assert_eq!(extract_to(&fixture, &path, &dest, Some(home)), failure(0, expected), "{home}");
        assert!(fixture.path("archive.tgz").exists());
        assert!(fixture.path("outside/home").exists());
    }
    assert_eq!(
        extract_to(&fixture, &path, &fixture.text("outside/home/below"), Some("outside/home")),
        success(1)
    );
    assert!(fixture.path("outside/home/below/f").exists());
}

#[test]
fn a_home_with_a_similar_path_is_allowed() {
    for home in ["destiny", "des", "outside/dest", "dest/../missing"] {
        let (fixture, path) = with_archive();
        assert_eq!(extract_to(&fixture, &path, &fixture.text("dest"), Some(home)), success(1), "{home}");
    }
}

#[test]
fn an_archive_that_cannot_be_opened_changes_nothing() {
    let fixture = Fixture::new();
    let cases = [
        ("missing.tgz", "open {}: no such file or directory"),
        ("no/where.tgz", "open {}: no such file or directory"),
        ("outside/file/x", "open {}: not a directory"),
        ("outside/file/", "open {}: not a directory"),
        ("outside/file/.", "open {}: not a directory"),
        ("nul\0", "open {}: invalid argument"),
        ("outside", "gzip: read {}: is a directory"),
        ("outside/", "gzip: read {}: is a directory"),
        ("outside/..", "gzip: read {}: is a directory"),
        ("fifo", "open {}: not a regular file"),
    ];
    make_fifo(&fixture.path("fifo"));
    for (name, text) in cases {
        let path = format!("{}/{name}", fixture.root.path().display());
        let expected = failure(0, text.replace("{}", &path));
        assert_eq!(extract_to(&fixture, &path, &fixture.text("dest"), None), expected);
        assert!(fixture.path("dest/old/file").exists());
    }
    assert!(fixture.path("fifo").symlink_metadata().is_ok(), "a FIFO is not removed");
    assert_eq!(
        extract_tar("/dev/zero", &fixture.text("dest"), None).error.unwrap(),
        "open /dev/zero: not a regular file"
    );
}

/// The standard library cannot create a FIFO.
fn make_fifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn only_the_given_archive_name_is_removed() {
    let (fixture, _) = with_archive();
    fs::create_dir(fixture.path("dest/links")).unwrap();
    symlink(fixture.path("archive.tgz"), fixture.path("outside/link.tgz")).unwrap();
    let link = fixture.text("outside/link.tgz");
    assert_eq!(extract_to(&fixture, &link, &fixture.text("dest"), None), success(1));
    assert!(fixture.path("outside/link.tgz").symlink_metadata().is_err(), "the given name is the link");
    assert!(fixture.path("archive.tgz").exists(), "its target stays");

    // An archive inside the destination: the wipe removes it, the extraction reads it through its descriptor, and an extracted
    // file of the same name stays.
    fs::create_dir_all(fixture.path("dest/sub")).unwrap();
    for name in ["sub/a.tgz", "a.tgz"] {
        fs::create_dir_all(fixture.path("dest/sub")).unwrap();
        fs::write(fixture.path("dest").join(name), archive(&[file(name, "new")])).unwrap();
        let path = format!("{}/{name}", fixture.text("dest"));
        assert_eq!(extract_to(&fixture, &path, &fixture.text("dest"), None), success(1));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}

#[test]
fn a_destination_that_is_a_symlink_is_replaced_and_its_target_kept() {
    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.path("dest")).unwrap();
    for target in ["outside", "outside/file", "missing"] {
        symlink(fixture.path(target), fixture.path("link")).unwrap();
        fs::rename(fixture.path("link"), fixture.path("dest")).unwrap();
        assert_eq!(fixture.extract(&archive(&[file("f", "1")])), success(1));
        assert!(fixture.path("dest").symlink_metadata().unwrap().is_dir());
        fs::remove_dir_all(fixture.path("dest")).unwrap();
    }
    fs::write(fixture.path("dest"), "a file").unwrap();
    assert_eq!(fixture.extract(&archive(&[file("f", "1")])), success(1), "a file is replaced too");
}

#[test]
fn wiping_keeps_the_targets_of_links() {
    let fixture = Fixture::new();
    symlink(fixture.path("outside"), fixture.path("dest/old/dir")).unwrap();
    symlink(fixture.path("outside/file"), fixture.path("dest/old/link")).unwrap();
    fs::hard_link(fixture.path("outside/file"), fixture.path("dest/old/hard")).unwrap();
    assert_eq!(fixture.extract(&archive(&[file("f", "1")])), success(1));
    assert_eq!(fixture.contents(), [".synced 600", "f 600 1"]);
}

#[test]
fn missing_ancestors_are_created_and_their_symlinks_followed() {
    let (fixture, path) = with_archive();
    symlink("outside", fixture.path("dest/../way")).unwrap();
    let dest = fixture.text("way/new/deep/dest/../dest/");
    assert_eq!(extract_to(&fixture, &path, &dest, None), success(1));
    let modes = ["outside/new", "outside/new/deep", "outside/new/deep/dest"]
        .map(|path| fs::metadata(fixture.path(path)).unwrap().permissions().mode() & 0o7777);
    assert_eq!(modes, [0o700; 3]);
    assert_eq!(fs::read(fixture.path("outside/new/deep/dest/f")).unwrap(), b"1");
}

#[test]
fn a_destination_that_cannot_be_created_consumes_the_archive() {
    let long = "n".repeat(256);
    let cases = [
        (
            "outside/file/x".to_owned(),
            "clean destDir: unlinkat {}/outside/file/x: not a directory".to_owned(),
        ),
        ("outside/file/x/y".to_owned(), "clean destDir: open {}/outside/file/x: not a directory".to_owned()),
        (long.clone(), format!("clean destDir: unlinkat {{}}/{long}: file name too long")),
        (format!("{long}/x"), format!("clean destDir: open {{}}/{long}: file name too long")),
        ("missing/nul\0/x".to_owned(), "clean destDir: open {}/missing/nul\0: invalid argument".to_owned()),
    ];
    for (dest, text) in cases {
        let (fixture, path) = with_archive();
        let dest = format!("{}/{dest}", fixture.root.path().display());
        let expected = failure(0, text.replace("{}", fixture.root.path().to_str().unwrap()));
        assert_eq!(extract_to(&fixture, &path, &dest, None), expected);
        assert!(!fixture.path("archive.tgz").exists());
        fixture.assert_outside_unchanged();
    }
    let (fixture, path) = with_archive();
    let found = extract_to(&fixture, &path, "/proc/nowhere/x", None);
    assert_eq!(found, failure(0, "mkdir destDir: mkdir /proc/nowhere: no such file or directory"));
    assert!(!fixture.path("archive.tgz").exists());
}

/// Like Go's `os.RemoveAll`, which empties such a directory before it fails to remove it.
#[test]
fn a_destination_in_a_read_only_parent_is_emptied_and_the_error_reported() {
    // Root ignores permissions.
    outpost_testkit::without_root(extract_into_a_read_only_parent);
}

fn extract_into_a_read_only_parent() {
    let (fixture, path) = with_archive();
    fs::create_dir_all(fixture.path("outside/closed/dest")).unwrap();
    fs::write(fixture.path("outside/closed/dest/kept"), "").unwrap();
    fs::set_permissions(fixture.path("outside/closed"), fs::Permissions::from_mode(0o500)).unwrap();
    let dest = fixture.text("outside/closed/dest");
    let expected = failure(0, format!("clean destDir: unlinkat {dest}: permission denied"));
    assert_eq!(extract_to(&fixture, &path, &dest, None), expected);
    assert!(fixture.path("outside/closed/dest").exists());
    assert!(!fixture.path("outside/closed/dest/kept").exists());
    assert!(!fixture.path("archive.tgz").exists());
    fs::set_permissions(fixture.path("outside/closed"), fs::Permissions::from_mode(0o700)).unwrap();
}
