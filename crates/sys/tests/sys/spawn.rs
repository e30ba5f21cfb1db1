//! What a child is started as, and what is left when it cannot be started.

use crate::kit::{self, alone, command, cstring, root, shell};
use outpost_sys::credentials::Credentials;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::How;
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::{Signal, SignalFd, ignore_sigpipe};
use outpost_sys::spawn::{DESCRIPTOR_LIMIT, Failure, ResourceLimit, Standing, Step, replace_self};
use outpost_sys::{Errno, limits, procfs, pty};
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
    // The name is the caller's choice; odd bytes and empty strings are kept.
    cat.arguments = [&b"not the path"[..], b"--", b"/proc/self/cmdline", b"/dev/null"].map(cstring).to_vec();
    let (output, exit) = cat.output();
    assert_eq!(exit.how, How::Code(0));
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
fn the_child_starts_in_its_directory_and_we_stay_in_ours() {
    let ours = std::env::current_dir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut child = command("/bin/readlink", &["/proc/self/cwd"]);
    child.directory = Some(cstring(dir.to_str().unwrap()));
    assert_eq!(child.text().trim_end(), dir.to_str().unwrap());
    assert_eq!(std::env::current_dir().unwrap(), ours);
}

#[test]
fn a_missing_directory_is_told_apart_from_a_missing_program() {
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
fn what_cannot_be_executed_says_why() {
    // Alone, because a child of another test that is being started holds our file open for writing: ETXTBSY.
    alone("spawn::what_cannot_be_executed_says_why", &[], || {
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
            assert_eq!(command("/bin/true", &[]).start_quiet().unwrap().end().how, How::Code(0));
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
    spec.standing = Standing::Session;
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
fn a_terminal_that_is_none_fails_the_start() {
    let mut spec = command("/bin/true", &[]);
    spec.standing = Standing::Terminal;
    assert_eq!(spec.failure(), Failure::at(Step::Standing, Errno::NOTTY));
    let taken = pty::open(pty::Size { rows: 1, cols: 1 }).unwrap();
    let mut owner = command("/bin/sleep", &["1000"]);
    owner.standing = Standing::Terminal;
    let _owner = owner.start_on(&taken.slave, kit::null()).unwrap();
    // Nobody, privileged or not, takes the terminal of another session away.
    assert_eq!(spec.start_on(&taken.slave, kit::null()).err().unwrap().step, Step::Standing);
}

#[test]
fn signals_we_block_and_ignore_are_default_in_the_child() {
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
        assert_eq!(field(&after, name), field(&ours, name), "ours must stay: {name}");
    }
}

#[test]
fn limits_and_mask_and_oom_score_are_the_childs_alone() {
    alone("spawn::limits_and_mask_and_oom_score_are_the_childs_alone", &[], || {
        let ours = (limits::descriptors(), limits::set_umask(0o022), limits::oom_score());
        limits::set_umask(ours.1);
        let mut spec = shell("ulimit -Sn; ulimit -Hn; umask; cat /proc/self/oom_score_adj");
        spec.limits = vec![ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: 50, hard: 60 }];
        spec.umask = Some(0o127);
        spec.oom_score = Some(500);
        assert_eq!(spec.text(), "50\n60\n0127\n500\n");
        let after = (limits::descriptors(), limits::set_umask(0o022), limits::oom_score());
        assert_eq!(after, ours);
    });
}

#[test]
fn an_oom_score_we_may_not_set_does_not_fail_the_start() {
    let mut spec = command("/bin/true", &[]);
    for score in [i32::MIN, -1000, 1001, i32::MAX] {
        spec.oom_score = Some(score);
        assert_eq!(spec.start_quiet().unwrap().end().how, How::Code(0));
    }
}

#[test]
fn a_hard_limit_above_ours_is_told_or_granted() {
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
fn the_largest_argument_list_is_the_kernels_limit_and_not_ours() {
    let long = "x".repeat(100_000);
    let Pipe { read, write } = pipe().unwrap();
    let mut kid = command("/usr/bin/printf", &["%.3s", &long]).start_on(kit::null(), write).unwrap();
    assert_eq!(kit::read_to_end(read), b"xxx");
    assert_eq!(kid.end().how, How::Code(0));
    let too_long = "x".repeat(200_000);
    let failure = command("/bin/true", &[&too_long]).failure();
    assert_eq!(failure, Failure::at(Step::Exec, Errno::TOOBIG));
}

#[test]
fn replacing_ourselves_keeps_the_number_and_the_children() {
    alone("spawn::replacing_ourselves_keeps_the_number_and_the_children", &[], || {
        assert_eq!(replace_self(kit::null().as_fd(), &[c"sh"], &[]), Errno::ACCESS);
        let child = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
        let (ours, theirs) = (cstring(kit::me().to_string()), cstring(child.pid.to_string()));
        // The last word is for `alone`, since the test itself cannot report from here on.
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
fn a_child_of_another_user_keeps_no_right_of_its_parent() {
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
fn a_child_of_another_user_looks_its_directory_up_with_that_users_rights() {
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
