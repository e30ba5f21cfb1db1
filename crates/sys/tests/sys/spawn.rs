//! The state of a started child, and the cleanup after a failed start.

use crate::kit::{self, alone, command, cstring, root, shell};
use outpost_sys::credentials::Credentials;
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::{Pipe, pipe, write_byte};
use outpost_sys::signal::{Signal, SignalFd, ignore_sigpipe};
use outpost_sys::spawn::{
    self, Begun, Child, DESCRIPTOR_LIMIT, ExecStatus, Executable, Failure, ResourceLimit, SessionKind, Step,
    replace_self,
};
use outpost_sys::{Errno, limits, pidfd, procfs, pty};
use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn zero_split(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.strip_suffix(b"\0").unwrap_or(bytes).split(|byte| *byte == 0).collect()
}

#[test]
fn arguments_arrive_exactly() {
    let mut cat = command("/bin/cat", &["/proc/self/cmdline"]);
    // The first argument may differ from the path; all bytes and empty strings are kept.
    cat.arguments = [&b"not the path"[..], b"--", b"/proc/self/cmdline", b"/dev/null"].map(cstring).to_vec();
    let (output, exit) = cat.output();
    assert_eq!(exit.cause, ExitCause::Code(0));
    assert_eq!(zero_split(&output), [&b"not the path"[..], b"--", b"/proc/self/cmdline", b"/dev/null"]);
    let print = command("/usr/bin/printf", &["<%s>", "", " a\tb\n", "'\"$x\\", "é"]);
    assert_eq!(print.text(), "<>< a\tb\n><'\"$x\\><é>");
}

#[test]
fn the_environment_is_exactly_the_given_one() {
    let mut cat = command("/bin/cat", &["/proc/self/environ"]);
    let given = [&b"B=1"[..], b"A=", b"A=again", b"no equals sign", b"BYTES=\xff\x01\n"];
    cat.environment = given.map(cstring).to_vec();
    assert_eq!(zero_split(&cat.output().0), given);
    cat.environment = Vec::new();
    assert_eq!(cat.output().0, b"");
}

#[test]
fn the_child_starts_in_its_directory_and_the_parent_stays_in_its_own() {
    let ours = std::env::current_dir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut child = command("/bin/readlink", &["/proc/self/cwd"]);
    child.directory = Some(cstring(dir.to_str().unwrap()));
    assert_eq!(child.text().trim_end(), dir.to_str().unwrap());
    assert_eq!(std::env::current_dir().unwrap(), ours);
}

#[test]
fn a_missing_directory_differs_from_a_missing_program() {
    let mut child = command("/bin/true", &[]);
    child.directory = Some(cstring("/no/such/directory"));
    assert_eq!(child.failure(), Failure::at(Step::Directory, Errno::NOENT));
    child.directory = Some(cstring("/bin/true"));
    assert_eq!(child.failure(), Failure::at(Step::Directory, Errno::NOTDIR));
    let missing = command("/no/such/program", &[]);
    assert_eq!(missing.failure(), Failure::at(Step::Exec, Errno::NOENT));
}

fn write_file(path: &Path, contents: &str, mode: u32) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_failed_exec_reports_its_errno() {
    // Alone, because a child of another test that is being started holds our file open for writing: ETXTBSY.
    alone("spawn::a_failed_exec_reports_its_errno", &[], || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let exec = |errno| Failure::at(Step::Exec, errno);
        let child = command(path.to_str().unwrap(), &[]);
        write_file(&path, "#!/bin/sh\n", 0o600);
        assert_eq!(child.failure(), exec(Errno::ACCESS));
        write_file(&path, "echo no interpreter\n", 0o700);
        assert_eq!(child.failure(), exec(Errno::NOEXEC));
        write_file(&path, "#!/no/such/interpreter\n", 0o700);
        assert_eq!(child.failure(), exec(Errno::NOENT));
        assert_eq!(command(dir.path().to_str().unwrap(), &[]).failure(), exec(Errno::ACCESS));
        write_file(&path, "#!/bin/sh\necho yes\n", 0o700);
        assert_eq!(child.text(), "yes\n");
    });
}

#[test]
fn a_failed_start_leaves_neither_zombie_nor_descriptor() {
    alone("spawn::a_failed_start_leaves_neither_zombie_nor_descriptor", &[], || {
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let (input, output) = (kit::null(), kit::null());
        let missing = command("/missing", &[]);
        let mut misplaced = command("/bin/true", &[]);
        misplaced.directory = Some(cstring("/no/such/directory"));
        let mut limitless = command("/bin/true", &[]);
        limitless.limits = vec![ResourceLimit { resource: 9999, soft: 1, hard: 1 }];
        let before = open();
        for _ in 0..100 {
            for (child, step) in
                [(&missing, Step::Exec), (&misplaced, Step::Directory), (&limitless, Step::Limits)]
            {
                assert_eq!(child.start_on(&input, &output).err().unwrap().step, step);
            }
        }
        assert_eq!(open(), before);
        let children: Vec<_> = procfs::all().into_iter().filter(|stat| stat.parent == kit::me()).collect();
        assert_eq!(children, []);
    });
}

#[test]
fn many_children_leave_no_descriptor_behind() {
    alone("spawn::many_children_leave_no_descriptor_behind", &[], || {
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for _ in 0..100 {
            assert_eq!(command("/bin/true", &[]).start_quiet().unwrap().end().cause, ExitCause::Code(0));
        }
        assert_eq!(open(), before);
    });
}

#[test]
fn a_group_leader_stays_in_our_session() {
    let sleeper = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
    let (ours, theirs) = (procfs::stat(kit::me()).unwrap(), procfs::stat(sleeper.pid).unwrap());
    assert_eq!((theirs.parent, theirs.group, theirs.session), (kit::me(), sleeper.pid, ours.session));
}

#[test]
fn a_session_leader_has_no_terminal() {
    let mut spec = command("/bin/sleep", &["1000"]);
    spec.session = SessionKind::Session;
    let sleeper = spec.start_quiet().unwrap();
    let theirs = procfs::stat(sleeper.pid).unwrap();
    assert_eq!((theirs.group, theirs.session), (sleeper.pid, sleeper.pid));
    assert_eq!(terminal_of(sleeper.pid), 0);
}

/// Field 7 of /proc/PID/stat: the device number of the controlling terminal, 0 without one.
pub(crate) fn terminal_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(4).unwrap().parse().unwrap()
}

#[test]
fn a_stdin_that_is_no_terminal_fails_the_start() {
    let mut spec = command("/bin/true", &[]);
    spec.session = SessionKind::Terminal;
    assert_eq!(spec.failure(), Failure::at(Step::Session, Errno::NOTTY));
    let taken = pty::open(pty::Size { rows: 1, cols: 1 }).unwrap();
    let mut owner = command("/bin/sleep", &["1000"]);
    owner.session = SessionKind::Terminal;
    let _owner = owner.start_on(&taken.slave, kit::null()).unwrap();
    // No process, privileged or not, takes the terminal of another session.
    assert_eq!(spec.start_on(&taken.slave, kit::null()).err().unwrap().step, Step::Session);
}

#[test]
fn blocked_and_ignored_signals_of_the_parent_are_default_in_the_child() {
    ignore_sigpipe();
    let names = ["TERM", "INT", "HUP", "USR1", "CHLD", "PIPE"];
    let _blocked = SignalFd::new(&names.map(|name| Signal::from_name(name).unwrap())).unwrap();
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let ours = fs::read_to_string("/proc/thread-self/status").unwrap();
    let pipe = 1 << (Signal::from_name("PIPE").unwrap().number() - 1);
    assert_ne!(field(&ours, "SigIgn:") & pipe, 0, "or this test tests nothing");
    assert_ne!(field(&ours, "SigBlk:") & pipe, 0, "or this test tests nothing");
    let theirs = command("/bin/cat", &["/proc/self/status"]).text();
    for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        assert_eq!(field(&theirs, name), 0, "{name}");
    }
    let after = fs::read_to_string("/proc/thread-self/status").unwrap();
    for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        assert_eq!(field(&after, name), field(&ours, name), "the parent's changed: {name}");
    }
}

#[test]
fn limits_umask_and_oom_score_of_the_child_do_not_change_the_parent() {
    alone("spawn::limits_umask_and_oom_score_of_the_child_do_not_change_the_parent", &[], || {
        let ours = (
            limits::descriptors(),
            outpost_sys::process::set_umask(0o022),
            outpost_sys::process::oom_score(),
        );
        outpost_sys::process::set_umask(ours.1);
        let mut spec = shell("ulimit -Sn; ulimit -Hn; umask; cat /proc/self/oom_score_adj");
        spec.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: 50, hard: 60 }];
        spec.umask = Some(0o127);
        spec.oom_score = Some(500);
        assert_eq!(spec.text(), "50\n60\n0127\n500\n");
        let after = (
            limits::descriptors(),
            outpost_sys::process::set_umask(0o022),
            outpost_sys::process::oom_score(),
        );
        assert_eq!(after, ours);
    });
}

#[test]
fn a_refused_oom_score_does_not_fail_the_start() {
    let mut spec = command("/bin/true", &[]);
    for score in [i32::MIN, -1000, 1001, i32::MAX] {
        spec.oom_score = Some(score);
        assert_eq!(spec.start_quiet().unwrap().end().cause, ExitCause::Code(0));
    }
}

#[test]
fn a_hard_limit_above_the_parents_is_refused_or_granted() {
    let hard = limits::descriptors().hard.unwrap();
    let mut spec = shell("ulimit -Hn");
    spec.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: 10, hard: hard + 1 }];
    match spec.start_quiet() {
        Ok(_) => assert!(kit::root()),
        Err(failure) => assert_eq!(failure, Failure::at(Step::Limits, Errno::PERM)),
    }
}

#[test]
fn an_open_program_runs_after_its_name_is_gone() {
    // Alone, for the same reason as above: the copy must not be open for writing anywhere.
    alone("spawn::an_open_program_runs_after_its_name_is_gone", &[], || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::copy("/bin/echo", &path).unwrap();
        let mut spec = command("echo", &["still", "here"]);
        spec.open = Some(file::open(&path, Open::Read).unwrap());
        fs::remove_file(&path).unwrap();
        assert_eq!(spec.text(), "still here\n");
        fs::write(&path, "text").unwrap();
        spec.open = Some(file::open(&path, Open::Read).unwrap());
        assert_eq!(spec.failure(), Failure::at(Step::Exec, Errno::ACCESS));
    });
}

#[test]
fn a_large_parent_can_start_children() {
    alone("spawn::a_large_parent_can_start_children", &[], || {
        let memory = vec![7u8; 512 << 20];
        assert_eq!(shell("echo small").text(), "small\n");
        assert_eq!(command("/missing", &[]).failure().step, Step::Exec);
        assert!(memory.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn threads_may_start_children_at_the_same_time() {
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            std::thread::spawn(move || {
                for round in 0..25 {
                    let word = format!("{thread}.{round}");
                    assert_eq!(command("/bin/echo", &[&word]).text(), format!("{word}\n"));
                    assert_eq!(command("/missing", &[]).failure().errno, Errno::NOENT);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn only_the_kernel_limits_the_argument_list() {
    let long = "x".repeat(100_000);
    let Pipe { read, write } = pipe().unwrap();
    let mut kid = command("/usr/bin/printf", &["%.3s", &long]).start_on(kit::null(), write).unwrap();
    assert_eq!(kit::read_to_end(read), b"xxx");
    assert_eq!(kid.end().cause, ExitCause::Code(0));
    let too_long = "x".repeat(200_000);
    let failure = command("/bin/true", &[&too_long]).failure();
    assert_eq!(failure, Failure::at(Step::Exec, Errno::TOOBIG));
}

#[test]
fn replace_self_keeps_the_pid_and_the_children() {
    alone("spawn::replace_self_keeps_the_pid_and_the_children", &[], || {
        assert_eq!(replace_self(kit::null().as_fd(), &[c"sh"], &[]), Errno::ACCESS);
        let child = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
        let (ours, theirs) = (cstring(kit::me().to_string()), cstring(child.pid.to_string()));
        // The shell prints the result for `alone`, since it has replaced the test.
        let script = c"[ $$ = $1 ] && grep -q \"^PPid:[[:space:]]*$1$\" /proc/$2/status; ok=$?
                       kill -9 $2; [ $ok = 0 ] && echo 1 passed";
        let shell = file::open(fs::canonicalize("/bin/sh").unwrap(), Open::Read).unwrap();
        let errno = replace_self(
            shell.as_fd(),
            &[c"sh", c"-c", script, c"sh", &ours, &theirs],
            &[c"PATH=/usr/bin:/bin"],
        );
        panic!("{errno}");
    });
}

#[test]
fn a_child_of_another_user_keeps_no_privilege_of_its_parent() {
    let mut child = shell(
        "grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)):' /proc/self/status; ulimit -n; \
         cat /proc/self/keys | wc -l; echo 0 > /proc/sys/kernel/printk && echo writes",
    );
    child.credentials = Some(Credentials { uid: 54_321, gid: 54_322, groups: vec![54_323, 54_324] });
    child.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: 77, hard: 77 }];
    if !root() {
        assert_eq!(child.failure(), Failure::at(Step::Credentials, Errno::PERM));
        return;
    }
    let (output, _) = child.output();
    let text = String::from_utf8(output).unwrap();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let none = "0000000000000000";
    let wanted = [
        vec!["Uid:", "54321", "54321", "54321", "54321"],
        vec!["Gid:", "54322", "54322", "54322", "54322"],
        vec!["Groups:", "54323", "54324"],
        vec!["CapInh:", none],
        vec!["CapPrm:", none],
        vec!["CapEff:", none],
        vec!["CapAmb:", none],
        vec!["77"],
    ];
    assert_eq!(words.get(..wanted.len()), Some(&wanted[..]), "{text}");
    assert!(!text.contains("writes"), "{text}");
}

#[test]
fn a_child_of_another_user_looks_up_its_directory_as_that_user() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut child = shell("true");
    child.directory = Some(cstring(dir.path().join("inner").to_str().unwrap()));
    fs::create_dir(dir.path().join("inner")).unwrap();
    child.credentials = Some(Credentials { uid: 54_321, gid: 54_321, groups: Vec::new() });
    assert_eq!(child.failure(), Failure::at(Step::Directory, Errno::ACCESS));
}

/// Runs `start` with a shell that writes to `output`, and with the read end of an exec gate.
fn with_gated<T>(script: &CStr, output: &Pipe, gate: &Pipe, start: impl FnOnce(&Child<'_>) -> T) -> T {
    let null = kit::null();
    let descriptors = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    let arguments = [c"sh", c"-c", script];
    let shell = Executable::Path(c"/bin/sh");
    let child = Child::new(shell, &arguments, &[c"PATH=/usr/bin:/bin"], SessionKind::Group, &descriptors);
    start(&Child { exec_gate: Some(gate.read.as_fd()), ..child })
}

#[test]
fn a_child_at_its_gate_does_not_delay_the_parent_and_needs_nothing_of_it() {
    alone("spawn::a_child_at_its_gate_does_not_delay_the_parent_and_needs_nothing_of_it", &[], || {
        let (output, gate) = (pipe().unwrap(), pipe().unwrap());
        let script = CString::new("echo executed").unwrap();
        let Begun { pidfd, status, .. } = with_gated(&script, &output, &gate, spawn::begin).ok().unwrap();
        assert_eq!(status.read(), ExecStatus::Pending);
        // All that the child was described by is gone, and so is the pipe that owns its memory.
        drop((script, status));
        let _other_allocations: Vec<Vec<u8>> = (0..1000).map(|count| vec![7; count]).collect();
        write_byte(&gate.write).unwrap();
        drop(output.write);
        assert_eq!(kit::read_to_end(output.read), b"executed\n");
        assert!(wait_readable(&pidfd, kit::TIMEOUT).unwrap());
        assert_eq!(pidfd::reap(&pidfd).unwrap().unwrap().cause, ExitCause::Code(0));
    });
}

#[test]
fn a_child_whose_gate_closes_exits_without_an_exec() {
    let (output, gate) = (pipe().unwrap(), pipe().unwrap());
    let begun = with_gated(c"echo executed", &output, &gate, spawn::begin).ok().unwrap();
    drop((gate, output.write));
    assert_eq!(kit::read_to_end(output.read), b"");
    assert!(wait_readable(&begun.pidfd, kit::TIMEOUT).unwrap());
    let _reaped = pidfd::reap(&begun.pidfd);
    assert_eq!(begun.status.read(), ExecStatus::Failed(Failure::at(Step::Gate, Errno::CANCELED)));
}

/// A child that shares the parent's memory shares its `errno` too.
#[test]
fn the_calls_of_a_child_do_not_change_errno_of_the_parent() {
    alone("spawn::the_calls_of_a_child_do_not_change_errno_of_the_parent", &[], || {
        let null = kit::null();
        let descriptors = [0, 1, 2].map(|number| (null.as_fd(), number));
        let missing = Executable::Path(c"/no/such/program");
        let child = Child::new(missing, &[c"sh"], &[], SessionKind::Group, &descriptors);
        for _ in 0..100 {
            let is_a_directory = fs::read("/").unwrap_err().raw_os_error();
            let begun = spawn::begin(&child).ok().unwrap();
            assert!(wait_readable(&begun.pidfd, kit::TIMEOUT).unwrap());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), is_a_directory);
            let _reaped = pidfd::reap(&begun.pidfd);
            assert_eq!(begun.status.read(), ExecStatus::Failed(Failure::at(Step::Exec, Errno::NOENT)));
        }
    });
}

#[test]
fn the_memory_of_started_and_failed_children_is_freed() {
    alone("spawn::the_memory_of_started_and_failed_children_is_freed", &[], || {
        let mapped = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let start = || {
            assert_eq!(command("/bin/true", &[]).start_quiet().unwrap().end().cause, ExitCause::Code(0));
            assert_eq!(command("/missing", &[]).failure().step, Step::Exec);
        };
        start();
        let before = mapped();
        (0..100).for_each(|_| start());
        assert!(mapped() <= before + 2, "{before} mappings, then {}", mapped());
    });
}
