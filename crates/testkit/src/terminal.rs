//! A program on a terminal of its own: what it draws, the keys it is given, and its end when the test is over.

use crate::daemon::TIMEOUT;
use crate::svg::svg;
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::pty::{self, Size};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, SessionKind, WorkingDirectory};
use outpost_sys::{file, procfs};
use rustix::termios::LocalModes;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Wide, so that lines are wrapped where a test is about that and nowhere else.
const SIZE: Size = Size { rows: 50, cols: 200 };

pub struct Terminal {
    pid: i32,
    pidfd: Pidfd,
    master: File,
    screen: Arc<Screen>,
    size: Size,
    exit: Option<Exit>,
}

/// Everything that was written to a terminal, in order.
#[derive(Default)]
struct Screen {
    bytes: Mutex<Vec<u8>>,
    more: Condvar,
}

impl Terminal {
    /// Starts a program, by its absolute path, as leader of a session whose terminal this is.
    pub fn start(arguments: &[String], environment: &[(String, String)], directory: &str) -> Terminal {
        Terminal::start_sized(arguments, environment, directory, SIZE.rows, SIZE.cols)
    }

    /// The same on a terminal of another size.
    pub fn start_sized(
        arguments: &[String],
        environment: &[(String, String)],
        directory: &str,
        rows: u16,
        cols: u16,
    ) -> Terminal {
        let size = Size { rows, cols };
        let pty = pty::open(size).unwrap();
        let text = |text: &str| CString::new(text).unwrap();
        let arguments: Vec<CString> = arguments.iter().map(|argument| text(argument)).collect();
        let environment: Vec<CString> =
            environment.iter().map(|(name, value)| text(&format!("{name}={value}"))).collect();
        let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
        let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
        let slave = pty.slave.as_fd();
        let started = spawn::spawn(&Child {
            directory: Some(WorkingDirectory::Path(&text(directory))),
            ..Child::new(
                Executable::Path(arguments.first().unwrap()),
                &arguments,
                &environment,
                SessionKind::Terminal,
                &[(slave, 0), (slave, 1), (slave, 2)],
            )
        })
        .unwrap_or_else(|failure| panic!("{arguments:?}: {failure:?}"));
        drop(pty.slave);
        let screen = Arc::new(Screen::default());
        let (drawn, reader) = (Arc::clone(&screen), File::from(file::duplicate(&pty.master).unwrap()));
        std::thread::spawn(move || drawn.follow(reader));
        let (pid, pidfd) = (started.pid, started.pidfd);
        Terminal { pid, pidfd, master: File::from(pty.master), screen, size, exit: None }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Everything that was drawn so far.
    pub fn screen(&self) -> String {
        self.screen_from(0)
    }

    /// The same without what was drawn before.
    pub fn screen_from(&self, from: usize) -> String {
        let bytes = self.screen.bytes.lock().unwrap();
        String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
    }

    /// How much was drawn so far.
    pub fn drawn_bytes(&self) -> usize {
        self.screen.bytes.lock().unwrap().len()
    }

    /// Where the first occurrence of this text ends that begins at `from` or later, if it comes in time.
    pub fn find(&self, wanted: &str, from: usize, timeout: Duration) -> Option<usize> {
        let begun = Instant::now();
        let mut bytes = self.screen.bytes.lock().unwrap();
        loop {
            let place = memchr::memmem::find(bytes.get(from..).unwrap_or_default(), wanted.as_bytes());
            if let Some(place) = place {
                return Some(from + place + wanted.len());
            }
            let left = timeout.checked_sub(begun.elapsed())?;
            bytes = self.screen.more.wait_timeout(bytes, left).unwrap().0;
        }
    }

    /// What a human sees on it now, if it was this size from the start: rows without the blanks at their ends.
    pub fn picture(&self) -> String {
        picture(&self.screen.bytes.lock().unwrap(), self.size)
    }

    /// The same with its colours, to be looked at elsewhere.
    pub fn svg(&self, title: &str) -> String {
        svg(seen(&self.screen.bytes.lock().unwrap(), self.size).screen(), title)
    }

    /// Waits until what is seen is as wanted, and returns it.
    pub fn wait_picture(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        let mut bytes = self.screen.bytes.lock().unwrap();
        loop {
            let seen = picture(&bytes, self.size);
            if wanted(&seen) {
                return seen;
            }
            let left = TIMEOUT.checked_sub(begun.elapsed()).unwrap_or_else(|| panic!("no {what}:\n{seen}"));
            bytes = self.screen.more.wait_timeout(bytes, left).unwrap().0;
        }
    }

    /// Waits for something to be drawn, for a while.
    pub fn wait_drawn(&self, timeout: Duration) {
        let bytes = self.screen.bytes.lock().unwrap();
        let _either = self.screen.more.wait_timeout(bytes, timeout).unwrap();
    }

    /// Waits until this text is seen.
    pub fn wait_seen(&self, wanted: &str) -> String {
        self.wait_picture(wanted, |seen| seen.contains(wanted))
    }

    /// As typed.
    pub fn key(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).unwrap();
    }

    /// Changes the size; the program gets SIGWINCH.
    pub fn resize(&mut self, rows: u16, cols: u16) {
        self.size = Size { rows, cols };
        pty::resize(&self.master, self.size).unwrap();
    }

    /// Whether the program reads single keys now, and not whole lines.
    pub fn reads_keys(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.master).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON)
    }

    /// Whether the program has not ended yet.
    pub fn runs(&self) -> bool {
        self.exit.is_none() && !wait_readable(&self.pidfd, Duration::ZERO).unwrap()
    }

    /// How the program ended, which it must do within reason.
    pub fn wait(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        assert!(wait_readable(&self.pidfd, TIMEOUT).unwrap(), "it still runs: {}", self.screen());
        let exit = pidfd::reap(&self.pidfd).unwrap().unwrap();
        self.exit = Some(exit);
        exit
    }

    pub fn signal(&self, signal: Signal) {
        pidfd::signal(&self.pidfd, signal).unwrap();
    }

    /// Running processes: descendants, and orphans in its session.
    pub fn family(&self) -> Vec<i32> {
        let all = procfs::all();
        let mut family: Vec<i32> =
            procfs::descendants(&all, &[self.pid]).into_iter().map(|stat| stat.pid).collect();
        let orphans = all.iter().filter(|stat| stat.session == self.pid && stat.pid != self.pid);
        family.extend(orphans.filter(|stat| !matches!(stat.state, b'Z' | b'X')).map(|stat| stat.pid));
        // Ours has its keeper, which is part of it.
        let is_keeper = |pid: &i32| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).nth(1) == Some(b"keeper")
        };
        family.retain(|pid| !is_keeper(pid));
        family.sort_unstable();
        family.dedup();
        family
    }
}

fn picture(bytes: &[u8], size: Size) -> String {
    let contents = seen(bytes, size).screen().contents();
    contents.lines().map(|row| row.trim_end().to_owned() + "\n").collect()
}

/// Between the marks of a synchronised update the screen is not parsed.
fn seen(bytes: &[u8], size: Size) -> vt100::Parser {
    let last = |mark: &[u8]| memchr::memmem::rfind(bytes, mark);
    let unfinished = last(b"\x1b[?2026h").filter(|begin| last(b"\x1b[?2026l").is_none_or(|end| end < *begin));
    let bytes = bytes.get(..unfinished.unwrap_or(bytes.len())).unwrap_or_default();
    let mut terminal = vt100::Parser::new(size.rows.try_into().unwrap(), size.cols.try_into().unwrap(), 0);
    terminal.process(bytes);
    terminal
}

impl Screen {
    /// Reads until no process has the terminal open.
    fn follow(&self, mut master: File) {
        let mut piece = [0; 64 * 1024];
        while let Ok(read @ 1..) = master.read(&mut piece) {
            self.bytes.lock().unwrap().extend_from_slice(piece.get(..read).unwrap());
            self.more.notify_all();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let kill = |pid: i32| {
            if let Ok(process) = crate::process(pid) {
                let _gone = pidfd::signal(process, Signal::KILL);
            }
        };
        // First the program, which would start or wait for others.
        let family = self.family();
        if self.exit.is_none() {
            let _gone = pidfd::signal(&self.pidfd, Signal::KILL);
        }
        family.into_iter().for_each(kill);
        if self.exit.is_none() && wait_readable(&self.pidfd, TIMEOUT).unwrap_or(false) {
            let _reaped = pidfd::reap(&self.pidfd);
        }
        // Processes that were forked in between.
        self.family().into_iter().for_each(kill);
    }
}
