//! What a sandbox is made of as far as a command notices, how commands end in it, and that nothing of it stays.

use super::{Host, for_each_user, policy, profile};
use crate::process::Watched;
use crate::streaming::{fed, input, on_terminal, streamed};
use crate::table::{check, check_exec, fits, server, sh, with};
use serde_json::{Value, json};

fn read_only(params: Value) -> Value {
    with(params, policy(json!({"type": "readOnly"})))
}

#[test]
fn a_command_has_processes_and_devices_of_its_own() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let script = r#"
            grep NoNewPrivs /proc/self/status | tr -d '\t'
            for device in null zero full random urandom tty; do [ -c /dev/$device ] && echo $device; done
            ls /proc | grep -c '^[0-9]'
            kill -0 "$1" 2>/dev/null && echo sees the server
            true"#;
        let server = host.server.pid().to_string();
        let outcome =
            host.script(&policy(json!({"type": "readOnly"})), script, &[std::path::Path::new(&server)]);
        let begin = "NoNewPrivs:1\nnull\nzero\nfull\nrandom\nurandom\ntty\n";
        let count = outcome.strip_prefix(begin).unwrap_or_else(|| panic!("{outcome}")).trim();
        assert!(count.parse::<u32>().is_ok_and(|count| count < 10), "{outcome}");
    });
}

/// Shared memory is a file system, too; io_uring would go around every filter of system calls.
#[test]
fn ways_around_the_sandbox_are_closed() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let name = host.server.dir().file_name().unwrap().to_owned();
        let limits = policy(json!({"type": "readOnly"}));
        host.script(&limits, "echo x > \"/dev/shm/$1\"; true", &[name.as_ref()]);
        assert!(!std::path::Path::new("/dev/shm").join(&name).exists());
        // The number of io_uring_setup is the same everywhere.
        let script =
            r#"my $params = "\0" x 120; syscall(425, 1, $params); print $!{EPERM} ? "EPERM" : "open $!""#;
        let params = with(json!({"command": ["/usr/bin/perl", "-e", script]}), limits);
        assert_eq!(host.server.exec(&params)["stdout"], "EPERM");
    });
}

/// "signal inside the sandbox: 128+n", "timeout: 124", "terminate of a sandboxed command: -1".
#[test]
fn ends_in_a_sandbox() {
    let mut server = server();
    check_exec(
        &mut server,
        vec![
            (read_only(sh("printf out; printf err >&2; exit 3")), "exit 3 out|err"),
            (read_only(sh("kill -9 $$")), "exit 137"),
            (read_only(sh("kill -TERM $$")), "exit 143"),
            (read_only(with(sh("printf out; exec sleep 1000"), json!({"timeoutMs": 1500}))), "exit 124 out|"),
            (read_only(with(sh("printf abcdef"), json!({"outputBytesCap": 3}))), "exit 0 abc|"),
            (
                read_only(with(sh("true"), json!({"cwd": "/no/such/directory"}))),
                "-32603 failed to spawn command: No such file or directory (os error 2)",
            ),
        ],
    );
    let id = server.request("command/exec", &read_only(streamed("p", "echo up; exec sleep 1000")));
    server.wait_output("p", "up");
    check(&mut server, &[("command/exec/terminate", json!({"processId": "p"}), "{}")]);
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit -1"), "{line}");
}

/// In the original it is exit code 101 with words of its helper's.
#[test]
fn a_program_that_is_missing_in_a_sandbox_is_an_error() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let missing = "-32603 failed to spawn command: No such file or directory (os error 2)";
    let denied = "-32603 failed to spawn command: Permission denied (os error 13)";
    let run = |program: &str| read_only(json!({"command": [program]}));
    check_exec(
        &mut server(),
        vec![
            (run("/no/such/program"), missing),
            (run("no-such-program"), missing),
            (run("/etc/passwd"), denied),
        ],
    );
}

#[test]
fn a_sandboxed_command_streams_and_takes_input() {
    let mut server = server();
    let id = server.request("command/exec", &read_only(fed("p", "cat; echo err >&2")));
    server.call("command/exec/write", &with(input("p", "typed"), json!({"closeStdin": true})));
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 0"), "{line}");
    assert_eq!((server.text("p", "stdout"), server.text("p", "stderr")), ("typed".into(), "err\n".into()));
    let script = "[ -t 0 ] && [ -t 1 ] && echo is a terminal; stty size";
    let terminal = with(on_terminal("t", script), json!({"size": {"rows": 31, "cols": 101}}));
    let id = server.request("command/exec", &read_only(terminal));
    let line = server.reply(id);
    assert!(fits(&line, &id.to_string(), "exit 0"), "{line}");
    assert_eq!(server.text("t", "stdout"), "is a terminal\r\n31 101\r\n");
}

/// Whatever it started and wherever that went.
#[test]
fn nothing_of_a_sandboxed_command_runs_on() {
    let mut server = server();
    let marker = format!("MARK={}", server.dir().display());
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo up; read x";
    let params = with(read_only(fed("p", script)), json!({"env": {"MARK": server.dir()}}));
    let id = server.request("command/exec", &params);
    server.wait_output("p", "up");
    let inside: Vec<Watched> = outpost_sys::procfs::all()
        .into_iter()
        .filter(|stat| outpost_sys::procfs::has_environment(stat.pid, marker.as_bytes()))
        .map(|stat| Watched::new(stat.pid))
        .collect();
    assert!(inside.len() >= 2, "{} processes", inside.len());
    server.call("command/exec/write", &json!({"processId": "p", "closeStdin": true}));
    server.reply(id);
    for process in inside {
        process.ends("a process of the sandbox");
    }
}

/// The original leaves empty files where something missing was to be protected.
#[test]
fn a_sandbox_leaves_nothing_on_the_host() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let cwd = host.server.cwd();
        let missing = [cwd.join("missing"), cwd.join("deep/er/missing")];
        let entries: Vec<(&str, &str)> = [("read", ":root"), ("write", ":current_working_directory")]
            .into_iter()
            .chain(missing.iter().map(|path| ("none", path.to_str().unwrap())))
            .collect();
        for limits in [
            policy(json!({"type": "workspaceWrite"})),
            policy(json!({"type": "readOnly"})),
            profile(&entries),
        ] {
            assert_eq!(host.script(&limits, "echo runs", &[]), "runs\n", "{limits}");
            let left: Vec<_> =
                std::fs::read_dir(&cwd).unwrap().flatten().map(|entry| entry.file_name()).collect();
            assert!(left.is_empty(), "{limits} leaves {left:?}");
        }
        // And what is missing can still not be made by the command.
        let limits = policy(json!({"type": "workspaceWrite"}));
        let outcome = host.script(
            &limits,
            "mkdir .codex 2>/dev/null; touch .codex/x 2>/dev/null && echo made; true",
            &[],
        );
        assert_eq!(outcome, "");
        assert!(!cwd.join(".codex/x").exists());
    });
}

/// In the original root keeps all its capabilities in the sandbox and mounts it away.
#[test]
fn root_does_not_get_out() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let target = host.dir("other");
        let script = r#"
            mount -o remount,rw,bind / 2>/dev/null && echo remounted
            mount -t tmpfs none /mnt 2>/dev/null && echo mounted
            umount -l /proc 2>/dev/null && echo unmounted
            unshare -m true 2>/dev/null && echo unshared
            mknod /dev/shm/disk b 8 0 2>/dev/null && echo mknod
            chroot / true 2>/dev/null && echo chroot
            { echo x > "$1/written"; } 2>/dev/null && echo written
            grep -E '^Cap(Prm|Eff):' /proc/self/status | tr -d '\t'"#;
        let outcome = host.script(&policy(json!({"type": "readOnly"})), script, &[&target]);
        let none = "0000000000000000";
        assert_eq!(outcome, format!("CapPrm:{none}\nCapEff:{none}\n"));
        assert!(!target.join("written").exists());
    });
}

/// The reply reports the active layers after the three members of the original.
#[test]
fn the_reply_lists_the_layers_of_the_sandbox() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let mut server = server();
    let result = server.exec(&read_only(sh("true")));
    assert!(result["sandbox"].as_object().is_some_and(|layers| !layers.is_empty()), "{result}");
}
