//! Files by descriptor.

use outpost_sys::Errno;
use outpost_sys::file::*;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tempfile::TempDir;

fn scratch() -> (TempDir, OwnedFd) {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path().join("file"), Open::Create).unwrap();
    (dir, file)
}

#[test]
fn sealed_memory_can_be_read_and_never_changed() {
    let file = sealed_memory("name", b"contents").unwrap();
    assert_eq!(read_whole(&file, 8).unwrap(), b"contents");
    assert_eq!(write_all_at(&file, b"X", 0), Err(Errno::PERM));
    assert_eq!(write_all_at(&file, b"X", 8), Err(Errno::PERM));
    assert_eq!([set_size(&file, 0), set_size(&file, 9)], [Err(Errno::PERM); 2]);
    assert_eq!(punch_hole(&file, 0, 4), Err(Errno::PERM));
    let more = rustix::fs::SealFlags::FUTURE_WRITE;
    assert_eq!(rustix::fs::fcntl_add_seals(&file, more), Err(Errno::PERM));
    assert_eq!(read_whole(&file, 8).unwrap(), b"contents");
    assert_eq!(read_whole(sealed_memory("empty", b"").unwrap(), 0).unwrap(), b"");
}

#[test]
fn a_lock_excludes_every_other_opening_and_ends_with_the_last_descriptor() {
    let (dir, first) = scratch();
    let second = open(dir.path().join("file"), Open::ReadWrite).unwrap();
    assert_eq!(try_lock(&first), Ok(true));
    assert_eq!(try_lock(&first), Ok(true), "it holds it already");
    assert_eq!(try_lock(&second), Ok(false));
    let copy = duplicate(&first).unwrap();
    drop(first);
    assert_eq!(try_lock(&second), Ok(false));
    drop(copy);
    assert_eq!(try_lock(&second), Ok(true));
}

#[test]
fn a_read_from_the_cache_equals_a_read() {
    let (_dir, file) = scratch();
    let bytes: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
    write_all_at(&file, &bytes, 0).unwrap();
    for (offset, length) in [(0, 100_000), (0, 0), (1, 4096), (99_990, 100), (100_000, 10), (1 << 40, 10)] {
        let (mut cached, mut full) = (vec![0; length], vec![0; length]);
        // Just written, so it is in the page cache.
        let count = read_cached_at(&file, &mut cached, offset).unwrap();
        assert_eq!(Ok(count), read_full_at(&file, &mut full, offset));
        assert!(cached == full);
        let start = bytes.len().min(usize::try_from(offset).unwrap());
        assert!(cached[..count] == bytes[start..bytes.len().min(start + length)]);
    }
    // memfds, and files whose file system does not support RWF_NOWAIT.
    let memory = sealed_memory("name", b"memory").unwrap();
    let mut buffer = [0; 10];
    assert_eq!(read_cached_at(&memory, &mut buffer, 3), Ok(3));
    assert_eq!(&buffer[..3], b"ory");
    let status = open("/proc/self/status", Open::Read).unwrap();
    assert_eq!(read_cached_at(&status, &mut buffer, 0), Ok(10));
    assert_eq!(&buffer[..5], b"Name:");
}

#[test]
fn a_hole_reads_as_zeroes_gives_blocks_back_and_keeps_the_size() {
    let (dir, file) = scratch();
    let (size, hole) = (1u64 << 20, 512u64 << 10);
    write_all_at(&file, &vec![9; 1 << 20], 0).unwrap();
    rustix::fs::fdatasync(&file).unwrap();
    let blocks = || fs::metadata(dir.path().join("file")).unwrap().blocks();
    let before = blocks();
    punch_hole(&file, 0, hole).unwrap();
    assert!(blocks() < before, "{} of {before}", blocks());
    assert_eq!(outpost_sys::file::size(&file), Ok(size));
    let bytes = read_whole(&file, size).unwrap();
    let (zeroes, rest) = bytes.split_at(hole as usize);
    assert!(zeroes.iter().all(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 9));
}

#[test]
fn names_lists_all_entries_on_every_call() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path(), Open::Directory).unwrap();
    assert_eq!(names(&opened).unwrap(), Vec::<String>::new());
    let mut expected: Vec<String> = (0..300).map(|number| format!("entry {number}")).collect();
    expected.push("..not a parent".to_owned());
    for name in &expected {
        open_at(&opened, name, Open::Create).unwrap();
    }
    use std::os::unix::ffi::OsStrExt;
    open_at(&opened, std::ffi::OsStr::from_bytes(b"\xff"), Open::Create).unwrap();
    expected.sort();
    for _ in 0..2 {
        let mut found = names(&opened).unwrap();
        found.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_we_create_is_for_its_owner_only_and_never_behind_a_symbolic_link() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path(), Open::Directory).unwrap();
    for (name, how) in [("created", Open::Create), ("replaced", Open::Replace)] {
        let file = open_at(&opened, name, how).unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&file).unwrap(), rustix::io::FdFlags::CLOEXEC);
        assert_eq!(fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    std::os::unix::fs::symlink("created", dir.path().join("link")).unwrap();
    for how in [Open::Read, Open::ReadWrite, Open::Create, Open::Replace] {
        assert_eq!(open_at(&opened, "link", how).err(), Some(Errno::LOOP), "{how:?}");
    }
    assert_eq!(open_at(&opened, "missing", Open::ReadWrite).err(), Some(Errno::NOENT));
    assert_eq!(open_at(&opened, "created", Open::Directory).err(), Some(Errno::NOTDIR));
}

#[test]
fn replacing_empties_and_creating_keeps() {
    let (dir, file) = scratch();
    write_all_at(&file, b"12345", 0).unwrap();
    assert_eq!(size(open(dir.path().join("file"), Open::Create).unwrap()), Ok(5));
    assert_eq!(size(open(dir.path().join("file"), Open::Replace).unwrap()), Ok(0));
}

#[test]
fn a_file_above_the_limit_is_refused_whole() {
    let (_dir, file) = scratch();
    write_all_at(&file, b"12345", 0).unwrap();
    assert_eq!(read_whole(&file, 4), Err(Errno::FBIG));
    assert_eq!(read_whole(&file, 5).unwrap(), b"12345");
    set_size(&file, 1 << 40).unwrap();
    assert_eq!(read_whole(&file, 1 << 30), Err(Errno::FBIG));
}

#[test]
fn the_position_is_shared_with_every_copy_of_the_descriptor() {
    let (dir, file) = scratch();
    let copy = duplicate(&file).unwrap();
    let other = open(dir.path().join("file"), Open::ReadWrite).unwrap();
    set_position(&file, 1 << 40).unwrap();
    assert_eq!((position(&copy), position(&other)), (Ok(1 << 40), Ok(0)));
    // Positioned writes do not change it.
    write_all_at(&copy, b"x", 7).unwrap();
    assert_eq!(position(&file), Ok(1 << 40));
}

#[test]
fn only_an_open_descriptor_without_an_owner_is_inherited_and_only_once() {
    for number in [-1, i32::MIN, 100_000] {
        assert_eq!(inherited(number).err(), Some(Errno::BADF));
    }
    let (_dir, owned) = scratch();
    assert_eq!(inherited(owned.as_raw_fd()).err(), Some(Errno::BADF), "close-on-exec, so it has an owner");
    let number = into_inherited(owned).unwrap();
    let taken = inherited(number).unwrap();
    assert_eq!(taken.as_raw_fd(), number);
    assert_eq!(inherited(number).err(), Some(Errno::BADF), "taken already");
    assert_ne!(inherited(2).unwrap().as_raw_fd(), 2, "a standard descriptor is duplicated");
}

#[test]
fn a_nonblocking_read_fails_with_eagain() {
    let pipe = outpost_sys::pipe::pipe().unwrap();
    set_nonblocking(&pipe.read).unwrap();
    assert_eq!(rustix::io::read(&pipe.read, &mut [0u8; 1]), Err(Errno::AGAIN));
}
