//! Open files instead of names and pipes: programs, directories, the ends of another process's pipe.

use crate::support::{Host, read_all, shell, within};
use outpost_engine::{ExitCause, Key, OpenFiles, Spawn};
use outpost_sys::file::{self, Open};
use outpost_sys::pipe;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_between_two_processes_carries_output_and_eof() {
    let host = Host::new();
    let pipe = pipe::pipe().unwrap();
    let mut first = shell("a", "echo one; echo reported >&2; exit 3");
    first.open_files = OpenFiles { stdout: Some(Arc::new(pipe.write)), ..OpenFiles::default() };
    let mut second = shell("b", "cat; echo two");
    second.open_files = OpenFiles { stdin: Some(Arc::new(pipe.read)), ..OpenFiles::default() };
    let (first, second) = (host.engine.spawn(first).await.unwrap(), host.engine.spawn(second).await.unwrap());
    let (a, b) = (read_all(&first, 0).await, read_all(&second, 0).await);
    assert_eq!((a.stdout.as_slice(), a.stderr.as_slice()), (&b""[..], &b"reported\n"[..]));
    assert_eq!(a.ended.unwrap().exit.cause, ExitCause::Code(3));
    // It has read to EOF, so no other process holds the write end.
    assert_eq!((b.stdout.as_slice(), b.ended.unwrap().exit.cause), (&b"one\ntwo\n"[..], ExitCause::Code(0)));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigpipe_ends_a_writer_whose_reader_has_ended() {
    let host = Host::new();
    let pipe = pipe::pipe().unwrap();
    let mut first = Spawn::new(Key::new("test", "", "a"), ["yes"]);
    first.program = "/usr/bin/yes".into();
    first.open_files = OpenFiles { stdout: Some(Arc::new(pipe.write)), ..OpenFiles::default() };
    let mut second = shell("b", "head -n 1");
    second.open_files = OpenFiles { stdin: Some(Arc::new(pipe.read)), ..OpenFiles::default() };
    let first = host.engine.spawn(first).await.unwrap();
    let second = host.engine.spawn(second).await.unwrap();
    assert_eq!(read_all(&second, 0).await.stdout, b"y\n");
    let exit = within("the writer's end", first.finished()).await.unwrap();
    assert_eq!(exit.cause, ExitCause::Signal(13));
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_program_and_an_open_directory_survive_a_rename() {
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    let (tool, place) = (dir.path().join("tool"), dir.path().join("place"));
    std::fs::copy("/bin/pwd", &tool).unwrap();
    std::fs::create_dir(&place).unwrap();
    let program = file::open(&tool, Open::Program).unwrap();
    let directory = file::open(&place, Open::Directory).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(&place, &elsewhere).unwrap();
    std::fs::create_dir(&place).unwrap();
    std::fs::remove_file(&tool).unwrap();
    std::fs::write(&tool, "#!/bin/sh\necho another\n").unwrap();
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
    let mut spawn = Spawn::new(Key::new("test", "", "a"), ["pwd", "-P"]);
    spawn.program = tool;
    spawn.directory = Some(place);
    spawn.open_files = OpenFiles {
        program: Some(Arc::new(program)),
        directory: Some(Arc::new(directory)),
        ..OpenFiles::default()
    };
    let seen = read_all(&host.engine.spawn(spawn).await.unwrap(), 0).await;
    let expected = format!("{}\n", std::fs::canonicalize(&elsewhere).unwrap().display());
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), expected);
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_does_not_inherit_the_files_of_its_start() {
    let host = Host::new();
    let mut spawn = Spawn::new(Key::new("test", "", "a"), ["ls", "/proc/self/fd"]);
    spawn.program = "/bin/ls".into();
    spawn.open_files = OpenFiles {
        program: Some(Arc::new(file::open("/bin/ls", Open::Program).unwrap())),
        directory: Some(Arc::new(file::open("/", Open::Directory).unwrap())),
        ..OpenFiles::default()
    };
    let seen = read_all(&host.engine.spawn(spawn).await.unwrap(), 0).await;
    // The fourth is the directory that it lists.
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "0\n1\n2\n3\n");
    host.close().await;
}
