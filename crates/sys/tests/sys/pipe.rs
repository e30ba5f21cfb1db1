//! splice(2) between pipes and files: no byte is lost in between.

use crate::kit::{self, alone};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::{
    Content, Moved, Pipe, buffered, capacity, peek, pipe, set_capacity, splice, splice_to_file, write_byte,
};
use outpost_testkit::{Lack, require};
use std::os::fd::OwnedFd;

fn scratch() -> OwnedFd {
    let dir = tempfile::tempdir().unwrap();
    file::open(dir.path().join("file"), Open::Create).unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

fn contents(file: &OwnedFd) -> Vec<u8> {
    file::read_whole(file, 1 << 20).unwrap()
}

#[test]
fn bytes_move_to_the_given_offset_and_not_to_the_files_position() {
    let (pipe, file) = (pipe().unwrap(), scratch());
    file::set_position(&file, 3).unwrap();
    kit::write_all(&pipe.write, b"hello, world");
    assert_eq!(splice_to_file(&pipe.read, &file, 5, 5), Ok(Moved::Bytes(5)));
    assert_eq!(buffered(&pipe.read), Ok(7));
    assert_eq!(splice_to_file(&pipe.read, &file, 10, 4096), Ok(Moved::Bytes(7)));
    assert_eq!(contents(&file), b"\0\0\0\0\0hello, world");
    assert_eq!(file::position(&file), Ok(3));
}

#[test]
fn an_empty_pipe_would_block_until_its_writers_are_gone() {
    let (Pipe { read, write }, file) = (pipe().unwrap(), scratch());
    assert_eq!(splice_to_file(&read, &file, 0, 4096), Ok(Moved::WouldBlock));
    kit::write_all(&write, b"rest");
    drop(write);
    assert_eq!(splice_to_file(&read, &file, 0, 4096), Ok(Moved::Bytes(4)));
    assert_eq!(splice_to_file(&read, &file, 4, 4096), Ok(Moved::End));
}

#[test]
fn a_full_pipe_would_block_and_a_closed_one_is_broken() {
    let (Pipe { read, write }, file) = (pipe().unwrap(), scratch());
    let bytes = pattern(capacity(&write).unwrap() * 2);
    file::write_all_at(&file, &bytes, 0).unwrap();
    let mut total = 0;
    loop {
        match splice(&file, &write, bytes.len()).unwrap() {
            Moved::Bytes(count) => total += count as u64,
            other => break assert_eq!(other, Moved::WouldBlock),
        }
    }
    // The position of the file is the number of delivered bytes.
    assert_eq!(buffered(&read), Ok(total));
    assert_eq!(file::position(&file), Ok(total));
    drop(read);
    assert_eq!(splice(&file, &write, 1), Err(Errno::PIPE));
    assert_eq!(file::position(&file), Ok(total));
}

#[test]
fn the_end_of_a_file_is_not_final() {
    let (Pipe { read, write }, file) = (pipe().unwrap(), scratch());
    assert_eq!(splice(&file, &write, 10), Ok(Moved::End));
    file::write_all_at(&file, b"more", 0).unwrap();
    assert_eq!(splice(&file, &write, 10), Ok(Moved::Bytes(4)));
    assert_eq!(buffered(&read), Ok(4));
}

#[test]
fn a_capacity_below_the_buffered_bytes_is_refused() {
    let Pipe { read, write } = pipe().unwrap();
    assert!(set_capacity(&write, 16 << 10).unwrap() >= 16 << 10);
    kit::write_all(&write, &pattern(12 << 10));
    assert_eq!(set_capacity(&write, 4 << 10), Err(Errno::BUSY));
    assert_eq!((capacity(&read), buffered(&read)), (Ok(16 << 10), Ok(12 << 10)));
}

#[test]
fn a_full_disk_leaves_the_rest_in_the_pipe() {
    require!(outpost_testkit::root());
    let unshare =
        kit::command("/usr/bin/unshare", &["--mount", "/bin/mount", "-t", "tmpfs", "tmpfs", "/mnt"]);
    let is_mounted = unshare.start_quiet().is_ok_and(|mut kid| kid.end().cause == ExitCause::Code(0));
    require!(is_mounted.then_some(()).ok_or_else(|| Lack::of_host("root may not mount a tmpfs")));
    let mount = "mount -t tmpfs -o size=64k tmpfs /mnt && exec \"$@\"";
    let before = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", mount, "sh"];
    alone("pipe::a_full_disk_leaves_the_rest_in_the_pipe", &before, || {
        let Pipe { read, write } = pipe().unwrap();
        set_capacity(&write, 256 << 10).unwrap();
        let bytes = pattern(100_000);
        kit::write_all(&write, &bytes);
        drop(write);
        let file = file::open("/mnt/file", Open::Create).unwrap();
        let first = drain(&read, &file);
        assert_eq!(first, Err((64 << 10, Errno::NOSPC)));
        assert_eq!(buffered(&read), Ok(bytes.len() as u64 - (64 << 10)));
        let mut arrived = contents(&file);
        // Again, to check that a failed call consumes nothing; then with room.
        assert_eq!(splice_to_file(&read, &file, 64 << 10, bytes.len()), Err(Errno::NOSPC));
        file::set_size(&file, 0).unwrap();
        assert_eq!(drain(&read, &file), Ok(bytes.len() - (64 << 10)));
        arrived.extend(contents(&file));
        assert!(arrived == bytes);
    });
}

/// Moves from `pipe` to the start of `file` until EOF or an error. Returns the number of bytes moved.
fn drain(pipe: &OwnedFd, file: &OwnedFd) -> Result<usize, (usize, Errno)> {
    let mut total = 0;
    loop {
        match splice_to_file(pipe, file, total as u64, 1 << 20) {
            Ok(Moved::Bytes(count)) => total += count,
            Ok(_) => return Ok(total),
            Err(errno) => return Err((total, errno)),
        }
    }
}

#[test]
fn peek_distinguishes_bytes_nothing_and_eof_and_consumes_nothing() {
    let Pipe { read, write } = pipe().unwrap();
    assert_eq!(peek(&read), Ok(Content::Nothing));
    write_byte(&write).unwrap();
    assert_eq!([peek(&read), peek(&read)], [Ok(Content::Bytes); 2]);
    drop(write);
    assert_eq!(peek(&read), Ok(Content::Bytes), "the byte comes before EOF");
    read_byte(&read);
    assert_eq!(peek(&read), Ok(Content::End));
}

fn read_byte(pipe: &std::os::fd::OwnedFd) {
    use std::io::Read;
    std::fs::File::from(outpost_sys::file::duplicate(pipe).unwrap()).read_exact(&mut [0]).unwrap();
}
