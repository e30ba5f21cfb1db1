//! Runs a program as if the disk below a directory were slow: `slowdisk MILLISECONDS DIRECTORY PROGRAM [ARGUMENT…]`.
//!
//! Each call that creates, opens, looks at, renames or removes a file below the directory takes so much longer, and so does
//! each call that changes a file's size or blocks or syncs it. Reading and writing open files does not. The delay is before
//! the call, in the thread that makes it. The calls wait for another process, which this program starts before it executes
//! the other one (seccomp's user notification).

#![forbid(unsafe_code)]

use outpost_sys::epoll::wait_readable;
use outpost_sys::intercept::{self, Call};
use outpost_sys::{Errno, message};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The first argument of the process that answers.
const ANSWER: &str = "--answer";

/// How long the answering process waits for its descriptor.
const TIMEOUT: Duration = Duration::from_secs(10);

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const HAND_OVER: u32 = 0x7fc0_0000;
const NUMBER_AT: u32 = 0;

/// Where a call has the file it is about.
#[derive(Clone, Copy)]
enum Object {
    /// The descriptor of a directory and a path from there.
    PathAt,
    Path,
    Descriptor,
}

fn calls() -> Vec<(libc::c_long, Object)> {
    use Object::{Descriptor, PathAt};
    let mut calls = vec![
        (libc::SYS_openat, PathAt),
        (libc::SYS_mkdirat, PathAt),
        (libc::SYS_unlinkat, PathAt),
        (libc::SYS_renameat, PathAt),
        (libc::SYS_renameat2, PathAt),
        (libc::SYS_linkat, PathAt),
        (libc::SYS_newfstatat, PathAt),
        (libc::SYS_statx, PathAt),
        (libc::SYS_getdents64, Descriptor),
        (libc::SYS_fallocate, Descriptor),
        (libc::SYS_ftruncate, Descriptor),
        (libc::SYS_fsync, Descriptor),
        (libc::SYS_fdatasync, Descriptor),
        (libc::SYS_syncfs, Descriptor),
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        (libc::SYS_open, Object::Path),
        (libc::SYS_mkdir, Object::Path),
        (libc::SYS_unlink, Object::Path),
        (libc::SYS_rmdir, Object::Path),
        (libc::SYS_rename, Object::Path),
        (libc::SYS_stat, Object::Path),
        (libc::SYS_lstat, Object::Path),
    ]);
    calls
}

/// Hands these calls over, and allows all others.
fn filter() -> Vec<u8> {
    let mut program = vec![(LOAD, 0, 0, NUMBER_AT)];
    for (number, _) in calls() {
        program.push((IF_EQUAL, 0, 1, u32::try_from(number).unwrap_or(u32::MAX)));
        program.push((RETURN, 0, 0, HAND_OVER));
    }
    program.push((RETURN, 0, 0, ALLOW));
    let each = program.iter().flat_map(|(code, yes, no, number): &(u16, u8, u8, u32)| {
        let ([a, b], [c, d, e, f]) = (code.to_ne_bytes(), number.to_ne_bytes());
        [a, b, *yes, *no, c, d, e, f]
    });
    each.collect()
}

/// The text at an address of another process, as far as it can be a path.
fn text(pid: u32, address: u64) -> Option<PathBuf> {
    let mut bytes = [0; 4096];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    // A path at the end of a mapping cannot be read beyond it.
    let in_page = 4096 - usize::try_from(address % 4096).ok()?;
    let mut read = memory.read_at(&mut bytes[..in_page], address).ok()?;
    if !bytes[..read].contains(&0) {
        read += memory.read_at(&mut bytes[read..], address + read as u64).unwrap_or(0);
    }
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    Some(PathBuf::from(std::str::from_utf8(&bytes[..end]).ok()?))
}

fn path_of(call: &Call, object: Object) -> Option<PathBuf> {
    let open = |descriptor: u64| {
        // AT_FDCWD is negative.
        let name = match i32::try_from(descriptor & u64::from(u32::MAX)) {
            Ok(descriptor) => format!("fd/{descriptor}"),
            Err(_) => "cwd".to_owned(),
        };
        std::fs::read_link(format!("/proc/{}/{name}", call.pid)).ok()
    };
    match object {
        Object::Descriptor => open(call.arguments[0]),
        Object::Path => text(call.pid, call.arguments[0]),
        Object::PathAt => {
            let path = text(call.pid, call.arguments[1])?;
            if path.is_absolute() { Some(path) } else { Some(open(call.arguments[0])?.join(path)) }
        }
    }
}

/// Lets calls through until no process is left that makes any.
fn answer(delay: Duration, directory: &Path) -> Result<(), Errno> {
    let socket = std::io::stdin();
    let (mut byte, mut fds) = ([0], Vec::new());
    wait_readable(&socket, TIMEOUT)?;
    message::receive(&socket, &mut byte, &mut fds)?;
    let listener = Arc::new(fds.pop().ok_or(Errno::BADF)?);
    let calls = calls();
    loop {
        let call = match intercept::receive(&listener) {
            Ok(call) => call,
            Err(Errno::NOENT | Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let object = calls.iter().find(|(number, _)| *number == libc::c_long::from(call.number));
        let path = object.and_then(|(_, object)| path_of(&call, *object));
        if path.is_some_and(|path| path.starts_with(directory)) {
            let listener = listener.clone();
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                intercept::let_through(&listener, &call)
            });
        } else {
            let _interrupted = intercept::let_through(&listener, &call);
        }
    }
}

/// Starts the process that answers, then becomes the program.
fn become_slow(delay: &str, directory: &str, program: &str, arguments: &[String]) -> Result<(), String> {
    let io = |what: &str, errno: Errno| format!("{what}: {errno}");
    let (ours, theirs) = message::pair().map_err(|errno| io("make a socket", errno))?;
    let own = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let mut answering = Command::new(own);
    answering.args([ANSWER, delay, directory]).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    answering.spawn().map_err(|error| format!("start the answering process: {error}"))?;
    let listener =
        intercept::intercept_own_calls(&filter()).map_err(|errno| io("filter system calls", errno))?;
    message::send(&ours, b"l", &[listener.as_fd()]).map_err(|errno| io("pass the listener", errno))?;
    drop((ours, listener));
    Err(format!("{program}: {}", Command::new(program).args(arguments).exec()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [mode, delay, directory] if mode == ANSWER => {
            let delay = Duration::from_millis(delay.parse().unwrap_or(0));
            let _all_are_gone = answer(delay, Path::new(directory));
            ExitCode::SUCCESS
        }
        [delay, directory, program, arguments @ ..] => {
            let Err(error) = become_slow(delay, directory, program, arguments) else {
                return ExitCode::SUCCESS;
            };
            eprintln!("error: {error}");
            ExitCode::from(125)
        }
        _ => {
            eprintln!("usage: slowdisk MILLISECONDS DIRECTORY PROGRAM [ARGUMENT...]");
            ExitCode::from(2)
        }
    }
}
