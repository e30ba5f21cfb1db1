//! Where the archive and the destination are: which are refused, what becomes of links, and who consumes what.

use super::*;
use std::os::unix::fs::symlink;

/// Extracts a good archive by these paths, given below the scene unless absolute.
fn extract_to(scene: &Scene, archive_path: &str, dest_dir: &str, home: Option<&str>) -> Extracted {
    let home = home.map(|home| scene.path(home));
    extract_tar(archive_path, dest_dir, home.as_deref())
}

fn with_archive() -> (Scene, String) {
    let scene = Scene::new();
    fs::write(scene.path("archive.tgz"), archive(&[file("f", "1")])).unwrap();
    let path = scene.text("archive.tgz");
    (scene, path)
}

#[test]
fn a_destination_that_is_not_absolute_or_the_root_leaves_the_archive() {
    let (scene, path) = with_archive();
    for dest in ["relative", "./x", "~/x", "/", "//", "/.", "/..", "/a/..", "/a/../../", "tab\t\"\u{1}"] {
        let expected = format!("destDir must be an absolute, non-root path: {}", crate::go::quote(dest));
        assert_eq!(extract_to(&scene, &path, dest, None), failure(0, expected));
        assert!(scene.path("archive.tgz").exists());
    }
    assert_eq!(
        extract_tar("/nowhere", "a\"b", None).error.unwrap(),
        r#"destDir must be an absolute, non-root path: "a\"b""#
    );
}

#[test]
fn the_home_directory_is_never_wiped() {
    let (scene, path) = with_archive();
    fs::create_dir_all(scene.path("outside/home")).unwrap();
    symlink("outside", scene.path("dest/way")).unwrap();
    symlink(scene.path("outside"), scene.path("dest/straight")).unwrap();
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
        let dest = scene.text(dest);
        let expected =
            format!("destDir must not be or contain the home directory: {}", crate::go::quote(&dest));
        assert_eq!(extract_to(&scene, &path, &dest, Some(home)), failure(0, expected), "{home}");
        assert!(scene.path("archive.tgz").exists());
        assert!(scene.path("outside/home").exists());
    }
    assert_eq!(
        extract_to(&scene, &path, &scene.text("outside/home/below"), Some("outside/home")),
        success(1)
    );
    assert!(scene.path("outside/home/below/f").exists());
}

#[test]
fn a_home_that_only_looks_alike_is_no_reason() {
    for home in ["destiny", "des", "outside/dest", "dest/../missing"] {
        let (scene, path) = with_archive();
        assert_eq!(extract_to(&scene, &path, &scene.text("dest"), Some(home)), success(1), "{home}");
    }
}

#[test]
fn an_archive_that_cannot_be_opened_changes_nothing() {
    let scene = Scene::new();
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
    make_fifo(&scene.path("fifo"));
    for (name, text) in cases {
        let path = format!("{}/{name}", scene.root.path().display());
        let expected = failure(0, text.replace("{}", &path));
        assert_eq!(extract_to(&scene, &path, &scene.text("dest"), None), expected);
        assert!(scene.path("dest/old/file").exists());
    }
    assert!(scene.path("fifo").symlink_metadata().is_ok(), "what is not a file is not consumed");
    assert_eq!(
        extract_tar("/dev/zero", &scene.text("dest"), None).error.unwrap(),
        "open /dev/zero: not a regular file"
    );
}

/// The standard library makes no FIFOs.
fn make_fifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_name_that_was_given_is_consumed_and_not_what_took_it() {
    let (scene, _) = with_archive();
    fs::create_dir(scene.path("dest/links")).unwrap();
    symlink(scene.path("archive.tgz"), scene.path("outside/link.tgz")).unwrap();
    let link = scene.text("outside/link.tgz");
    assert_eq!(extract_to(&scene, &link, &scene.text("dest"), None), success(1));
    assert!(scene.path("outside/link.tgz").symlink_metadata().is_err(), "the link was named");
    assert!(scene.path("archive.tgz").exists(), "its target was not");

    // Inside the destination: wiped with it, read to its end, and the file that is unpacked to its name stays.
    fs::create_dir_all(scene.path("dest/sub")).unwrap();
    for name in ["sub/a.tgz", "a.tgz"] {
        fs::create_dir_all(scene.path("dest/sub")).unwrap();
        fs::write(scene.path("dest").join(name), archive(&[file(name, "new")])).unwrap();
        let path = format!("{}/{name}", scene.text("dest"));
        assert_eq!(extract_to(&scene, &path, &scene.text("dest"), None), success(1));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}

#[test]
fn a_destination_that_is_a_link_is_replaced_and_its_target_kept() {
    let scene = Scene::new();
    fs::remove_dir_all(scene.path("dest")).unwrap();
    for target in ["outside", "outside/file", "missing"] {
        symlink(scene.path(target), scene.path("link")).unwrap();
        fs::rename(scene.path("link"), scene.path("dest")).unwrap();
        assert_eq!(scene.extract(&archive(&[file("f", "1")])), success(1));
        assert!(scene.path("dest").symlink_metadata().unwrap().is_dir());
        fs::remove_dir_all(scene.path("dest")).unwrap();
    }
    fs::write(scene.path("dest"), "a file").unwrap();
    assert_eq!(scene.extract(&archive(&[file("f", "1")])), success(1), "a file goes too");
}

#[test]
fn wiping_keeps_what_links_lead_to() {
    let scene = Scene::new();
    symlink(scene.path("outside"), scene.path("dest/old/dir")).unwrap();
    symlink(scene.path("outside/file"), scene.path("dest/old/link")).unwrap();
    fs::hard_link(scene.path("outside/file"), scene.path("dest/old/hard")).unwrap();
    assert_eq!(scene.extract(&archive(&[file("f", "1")])), success(1));
    assert_eq!(scene.found(), [".synced 600", "f 600 1"]);
}

#[test]
fn missing_directories_above_are_made_and_links_there_are_followed() {
    let (scene, path) = with_archive();
    symlink("outside", scene.path("dest/../way")).unwrap();
    let dest = scene.text("way/new/deep/dest/../dest/");
    assert_eq!(extract_to(&scene, &path, &dest, None), success(1));
    let modes = ["outside/new", "outside/new/deep", "outside/new/deep/dest"]
        .map(|path| fs::metadata(scene.path(path)).unwrap().permissions().mode() & 0o7777);
    assert_eq!(modes, [0o700; 3]);
    assert_eq!(fs::read(scene.path("outside/new/deep/dest/f")).unwrap(), b"1");
}

#[test]
fn a_destination_that_cannot_be_made_consumes_the_archive() {
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
        let (scene, path) = with_archive();
        let dest = format!("{}/{dest}", scene.root.path().display());
        let expected = failure(0, text.replace("{}", scene.root.path().to_str().unwrap()));
        assert_eq!(extract_to(&scene, &path, &dest, None), expected);
        assert!(!scene.path("archive.tgz").exists());
        scene.assert_outside_is_untouched();
    }
    let (scene, path) = with_archive();
    let found = extract_to(&scene, &path, "/proc/nowhere/x", None);
    assert_eq!(found, failure(0, "mkdir destDir: mkdir /proc/nowhere: no such file or directory"));
    assert!(!scene.path("archive.tgz").exists());
}

/// The original's `os.RemoveAll` empties such a directory before it fails to remove it, and so do we.
#[test]
fn a_destination_in_a_read_only_parent_is_emptied_and_the_refusal_reported() {
    // Root may write everywhere.
    outpost_testkit::without_root(extract_into_a_read_only_parent);
}

fn extract_into_a_read_only_parent() {
    let (scene, path) = with_archive();
    fs::create_dir_all(scene.path("outside/closed/dest")).unwrap();
    fs::write(scene.path("outside/closed/dest/kept"), "").unwrap();
    fs::set_permissions(scene.path("outside/closed"), fs::Permissions::from_mode(0o500)).unwrap();
    let dest = scene.text("outside/closed/dest");
    let expected = failure(0, format!("clean destDir: unlinkat {dest}: permission denied"));
    assert_eq!(extract_to(&scene, &path, &dest, None), expected);
    assert!(scene.path("outside/closed/dest").exists());
    assert!(!scene.path("outside/closed/dest/kept").exists());
    assert!(!scene.path("archive.tgz").exists());
    fs::set_permissions(scene.path("outside/closed"), fs::Permissions::from_mode(0o700)).unwrap();
}
