//! [`Dir`] under replaced directories, deep trees and injected faults.

use super::*;
use std::fs as files;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

/// A directory `inside`, next to `outside`, which no operation below `inside` may touch.
fn scene() -> (tempfile::TempDir, Dir) {
    let scene = tempfile::tempdir().unwrap();
    files::create_dir_all(scene.path().join("outside/kept")).unwrap();
    files::write(scene.path().join("outside/file"), "precious").unwrap();
    let dir = Dir::at(scene.path()).unwrap().make_dir("inside".as_ref()).unwrap();
    symlink("../outside", scene.path().join("inside/link")).unwrap();
    symlink("../outside/file", scene.path().join("inside/file")).unwrap();
    (scene, dir)
}

fn assert_untouched(scene: &Path) {
    assert_eq!(files::read(scene.join("outside/file")).unwrap(), b"precious");
    assert_eq!(files::read_dir(scene.join("outside")).unwrap().count(), 2);
    assert_eq!(files::read_dir(scene.join("outside/kept")).unwrap().count(), 0);
}

fn make_deep(dir: &Dir, levels: usize, each: impl Fn(&Dir)) {
    let mut dir = dir.make_dir("deep".as_ref()).unwrap();
    for _ in 0..levels {
        each(&dir);
        dir = dir.make_dir("d".as_ref()).unwrap();
    }
}

#[test]
fn no_link_is_followed_with_or_without_openat2() {
    let (scene, dir) = scene();
    for path in ["link", "link/kept"] {
        assert!(matches!(dir.open_dir(path.as_ref()), Err(Errno::LOOP | Errno::NOTDIR)));
        let walked = dir.walk(path.as_ref(), DIRECTORY, Mode::empty());
        assert!(matches!(walked, Err(Errno::LOOP | Errno::NOTDIR)));
    }
    assert_eq!(dir.make_dir("link".as_ref()).unwrap_err(), Errno::EXIST);
    let _new = dir.create_file("file".as_ref()).unwrap();
    assert!(files::symlink_metadata(scene.path().join("inside/file")).unwrap().is_file());
    assert_untouched(scene.path());
}

#[test]
fn a_path_that_leads_elsewhere_is_refused() {
    let (scene, dir) = scene();
    for name in ["", ".", "..", "/", "a/..", "../outside", "/etc", "a//b", "a/", "nul\0"] {
        assert_eq!(dir.open_dir(name.as_ref()).unwrap_err(), Errno::INVAL, "{name:?}");
        assert_eq!(dir.remove_tree(name.as_ref()).unwrap_err().errno, Errno::INVAL, "{name:?}");
    }
    for name in ["", ".", "..", "/", "a/b", "nul\0"] {
        assert_eq!(dir.make_dir(name.as_ref()).unwrap_err(), Errno::INVAL, "{name:?}");
        assert_eq!(dir.create_file(name.as_ref()).unwrap_err(), Errno::INVAL, "{name:?}");
        assert_eq!(dir.open_any(name.as_ref()).unwrap_err(), Errno::INVAL, "{name:?}");
    }
    assert_untouched(scene.path());
}

#[test]
fn a_planted_fifo_or_hard_link_is_replaced_and_a_directory_is_not() {
    let (scene, dir) = scene();
    fs::mknodat(&dir.0, "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
    files::hard_link(scene.path().join("outside/file"), scene.path().join("inside/hard")).unwrap();
    for name in ["fifo", "hard", "new", "new"] {
        let file = dir.create_file(name.as_ref()).unwrap();
        crate::file::write_all_at(&file, b"ours", 0).unwrap();
        let found = files::symlink_metadata(scene.path().join("inside").join(name)).unwrap();
        assert_eq!((found.is_file(), found.nlink(), found.len()), (true, 1, 4), "{name}");
    }
    let _dir = dir.make_dir("dir".as_ref()).unwrap();
    assert_eq!(dir.create_file("dir".as_ref()).unwrap_err(), Errno::ISDIR);
    assert_untouched(scene.path());
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    // The umask is per process, so the test reruns itself in a child. An unprivileged user cannot open a
    // directory that its own umask closes.
    let mask = if crate::process::effective_uid() == 0 { "0777" } else { "0377" };
    if std::env::var_os("BENEATH_MASKED").is_none() {
        let itself = std::env::current_exe().unwrap();
        let line =
            format!("umask {mask}; exec \"$0\" --exact beneath::tests::modes_do_not_depend_on_the_umask");
        let run = std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg(line)
            .arg(itself)
            .env("BENEATH_MASKED", "1")
            .output();
        let run = run.unwrap();
        let output = String::from_utf8_lossy(&run.stdout);
        return assert!(run.status.success() && output.contains("1 passed"), "{output}");
    }
    let scene = tempfile::Builder::new().permissions(files::Permissions::from_mode(0o700)).tempdir().unwrap();
    files::set_permissions(scene.path(), files::Permissions::from_mode(0o700)).unwrap();
    let dir = Dir::at(scene.path()).unwrap().make_dir("d".as_ref()).unwrap();
    let _file = dir.create_file("f".as_ref()).unwrap();
    let mode = |path: &str| files::metadata(scene.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("d/f")), (0o700, 0o600));
}

#[test]
fn a_name_is_removed_only_while_it_leads_to_the_same_file() {
    let (scene, dir) = scene();
    let file = dir.open_any("file".as_ref()).unwrap();
    let opened = file_id(&file).unwrap();
    assert_eq!(dir.remove_same("link".as_ref(), opened), Ok(false));
    assert_eq!(dir.remove_same("missing".as_ref(), opened), Ok(false));
    assert_eq!(dir.remove_same("file".as_ref(), opened), Ok(true));
    assert!(files::symlink_metadata(scene.path().join("inside/file")).is_err());
    assert_untouched(scene.path());
}

#[test]
fn a_tree_of_any_shape_is_removed_without_its_link_targets() {
    let (scene, dir) = scene();
    for name in 0..PENDING_MAX * 2 + 1 {
        let _dir = dir.make_dir(name.to_string().as_ref()).unwrap();
    }
    make_deep(&dir, HELD_MAX + 9, |dir| {
        for name in 0..PENDING_DEEP_MAX * 2 + 1 {
            let _dir = dir.make_dir(name.to_string().as_ref()).unwrap();
            let _file = dir.create_file(format!("f{name}").as_ref()).unwrap();
        }
    });
    let base = Dir::at(scene.path()).unwrap();
    assert_eq!(base.remove_tree("inside".as_ref()), Ok(()));
    assert_eq!(base.remove_tree("inside".as_ref()), Ok(()), "it is gone already");
    assert!(!scene.path().join("inside").exists());
    assert_untouched(scene.path());
    symlink("outside", scene.path().join("inside")).unwrap();
    assert_eq!(base.remove_tree("inside".as_ref()), Ok(()), "the link alone");
    assert_untouched(scene.path());
}

#[test]
fn ten_thousand_levels_take_neither_stack_nor_descriptors() {
    let (scene, dir) = scene();
    make_deep(&dir, 10_000, |_| {});
    assert_eq!(dir.remove_tree("deep".as_ref()), Ok(()));
    assert!(!scene.path().join("inside/deep").exists());
}

#[test]
fn the_parent_of_a_moved_directory_is_refused() {
    let (scene, dir) = scene();
    let below = dir.make_dir("below".as_ref()).unwrap();
    let ours = file_id(&dir.0).unwrap();
    assert!(open_parent(&below, ours).is_ok());
    files::rename(scene.path().join("inside/below"), scene.path().join("outside/kept/below")).unwrap();
    assert_eq!(open_parent(&below, ours).unwrap_err(), Errno::STALE);
}

#[test]
fn what_is_mounted_below_is_not_emptied() {
    let root = Dir::at("/".as_ref()).unwrap();
    let device = file_id(&root.0).unwrap().device;
    assert_eq!(root.open_to_empty("proc".as_ref(), device).unwrap_err(), Errno::BUSY);
}

/// Injects a fault into the n-th call, for every n. The result is an error or complete, and nothing outside
/// changes.
#[cfg(feature = "faults")]
#[test]
fn every_call_may_fail() {
    use crate::fault::{Fault, arm, disarm};
    for errno in
        [Errno::IO, Errno::NOSYS, Errno::PERM, Errno::INTR, Errno::EXIST, Errno::NOTDIR, Errno::NOTEMPTY]
    {
        for nth in 1.. {
            let (scene, dir) = scene();
            make_deep(&dir, HELD_MAX + 3, |_| {});
            let base = Dir::at(scene.path()).unwrap();
            arm(nth, Fault::Errno(errno));
            let done = everything(&base, &dir);
            let reached = !disarm();
            assert_untouched(scene.path());
            assert!(reached || done == Ok(()), "{errno} {nth}: {done:?}");
            assert!(done.is_err() || !scene.path().join("inside").exists(), "{errno} {nth}");
            assert_eq!(base.remove_tree("inside".as_ref()), Ok(()));
            if !reached {
                break;
            }
        }
    }
}

#[cfg(feature = "faults")]
fn everything(base: &Dir, dir: &Dir) -> Result<()> {
    let made = dir.make_dir("made".as_ref())?;
    let again = dir.open_dir("made".as_ref())?;
    let _file = made.create_file("new".as_ref())?;
    let file = made.create_file("new".as_ref())?;
    let _removed = again.remove_same("new".as_ref(), file_id(&file)?)?;
    let _opened = dir.open_any("file".as_ref())?;
    let _empty = made.is_empty()?;
    base.remove_tree("inside".as_ref()).map_err(|stopped| stopped.errno)
}

/// Without `openat2` everything works the same.
#[cfg(feature = "faults")]
#[test]
fn a_missing_openat2_falls_back_to_the_walk() {
    use crate::fault::{Fault, arm, disarm};
    for errno in [Errno::NOSYS, Errno::PERM] {
        let (_scene, dir) = scene();
        let _below = dir.make_dir("a".as_ref()).unwrap().make_dir("b".as_ref()).unwrap();
        arm(1, Fault::Errno(errno));
        assert!(dir.open_dir("a/b".as_ref()).is_ok());
        arm(1, Fault::Errno(errno));
        assert!(matches!(dir.open_dir("link/kept".as_ref()), Err(Errno::LOOP | Errno::NOTDIR)));
        arm(1, Fault::Errno(errno));
        assert!(dir.create_file("new".as_ref()).is_ok());
        assert!(!disarm());
    }
}
