//! What a command is given: arguments, directory, variables, a program found by its name, and nothing of the server's own.

use crate::table::{check_exec, danger, server, sh, with};
use outpost_testkit::{AppServer, Options};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

#[test]
fn arguments_arrive_as_they_were_sent() {
    let script = r#"for a in "$0" "$@"; do printf '[%s]' "$a"; done"#;
    check_exec(
        &mut server(),
        vec![
            (
                danger(&["/bin/sh", "-c", script, "", "a b", "$x", "é\n<&>", "*", "--"]),
                "exit 0 [][a b][$x][é\n<&>][*][--]|",
            ),
            (danger(&["sh", "-c", "printf %s $#", "sh"]), "exit 0 0|"),
            // The name stays the one that was sent.
            (danger(&["sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline | cut -c1-6"]), "exit 0 sh -c \n|"),
        ],
    );
}

/// "merged over the server environment …; null unsets; names are not validated".
#[test]
fn variables_are_the_servers_with_the_requests_over_them() {
    let options = Options::default().env("KEPT", "kept <&>").env("CHANGED", "before").env("DROPPED", "x");
    let mut server = AppServer::start(&options);
    let env = json!({"CHANGED": "after", "DROPPED": null, "NEW": "é = \n", "EMPTY": "", "NEVER": null, "A=B": "c", "": "d"});
    let result = server.exec(&with(danger(&["/usr/bin/env", "-0"]), json!({"env": env})));
    let outcome = result["stdout"].as_str().unwrap();
    let outcome: Vec<&str> = outcome.split_terminator('\0').collect();
    let home = format!("HOME={}", server.home().display());
    let codex_home = format!("CODEX_HOME={}", server.home().display());
    for line in ["KEPT=kept <&>", "CHANGED=after", "NEW=é = \n", "EMPTY=", "A=B=c", "=d", &home, &codex_home]
    {
        assert_eq!(outcome.iter().filter(|outcome| **outcome == line).count(), 1, "{line} in {outcome:?}");
    }
    for name in ["DROPPED=", "NEVER=", "CODEX_SANDBOX"] {
        assert!(!outcome.iter().any(|line| line.starts_with(name)), "{name} in {outcome:?}");
    }
    // Nothing that neither the server was given nor the request.
    let given = std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap();
    let given = String::from_utf8_lossy(&given).into_owned();
    let name = |line: &str| line.split('=').next().unwrap().to_owned();
    let given: Vec<String> = given.split('\0').chain(["NEW=", "EMPTY=", "A=B", "=d"]).map(name).collect();
    let leaks: Vec<&&str> = outcome.iter().filter(|line| !given.contains(&name(line))).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}

/// "absolute, or relative to the server cwd; `~`, `~/x` expand to the server's HOME; "" = server cwd; lexically normalised".
#[test]
fn a_directory_can_be_named_in_each_of_its_forms() {
    let mut server = server();
    let (cwd, home) = (server.cwd(), server.home());
    std::fs::create_dir_all(cwd.join("a/b c")).unwrap();
    std::fs::create_dir_all(home.join("x")).unwrap();
    std::fs::create_dir_all(cwd.join("~z")).unwrap();
    std::os::unix::fs::symlink(cwd.join("a/b c"), cwd.join("link")).unwrap();
    let (cwd, home) = (cwd.display().to_string(), home.display().to_string());
    let absolute = format!("{cwd}/a");
    let rows: Vec<(Value, String)> = vec![
        (json!(null), cwd.clone()),
        (json!(""), cwd.clone()),
        (json!("."), cwd.clone()),
        (json!("a"), absolute.clone()),
        (json!("a/b c"), format!("{cwd}/a/b c")),
        (json!("./a//b c/../."), absolute.clone()),
        (json!("no-such/../a"), absolute.clone()),
        (json!(absolute), absolute.clone()),
        (json!(format!("{absolute}/../a/")), absolute.clone()),
        (json!("~"), home.clone()),
        (json!("~/x"), format!("{home}/x")),
        (json!("~z"), format!("{cwd}/~z")),
        (json!("/"), "/".into()),
        // Without looking at what is there: the parent of a link is where the link is.
        (json!("link/../a"), absolute),
    ];
    let rows: Vec<(Value, String)> = rows
        .into_iter()
        .map(|(cwd, outcome)| {
            (with(danger(&["/bin/pwd"]), json!({"cwd": cwd})), format!("exit 0 {outcome}\n|"))
        })
        .collect();
    check_exec(
        &mut server,
        rows.iter().map(|(params, outcome)| (params.clone(), outcome.as_str())).collect(),
    );
}

/// "bare names looked up in the *resulting* environment's PATH (unset PATH: the libc default works); names with `/` relative
/// to cwd".
#[test]
fn a_program_is_found_where_the_command_would_look_for_it() {
    let mut server = server();
    let cwd = server.cwd();
    for dir in ["bin", "work"] {
        std::fs::create_dir(cwd.join(dir)).unwrap();
        let tool = cwd.join(dir).join("tool");
        std::fs::write(&tool, format!("#!/bin/sh\necho {dir}\n")).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("/no/such:{}:/bin", cwd.join("bin").display());
    let missing = "-32603 failed to spawn command: No such file or directory (os error 2)";
    check_exec(
        &mut server,
        vec![
            (with(danger(&["tool"]), json!({"env": {"PATH": path}})), "exit 0 bin\n|"),
            (danger(&["tool"]), missing),
            (danger(&["work/tool"]), "exit 0 work\n|"),
            (with(danger(&["./tool"]), json!({"cwd": "work"})), "exit 0 work\n|"),
            (with(danger(&["../bin/tool"]), json!({"cwd": "work"})), "exit 0 bin\n|"),
            (with(danger(&["tool"]), json!({"cwd": "work"})), missing),
            (with(danger(&["true"]), json!({"env": {"PATH": null}})), "exit 0"),
            (with(danger(&["tool"]), json!({"env": {"PATH": null}, "cwd": "work"})), missing),
        ],
    );
}

/// "new session (`setsid`), so no controlling tty and pgid = pid; …; no signals blocked or ignored".
#[test]
fn a_command_begins_with_a_clean_slate() {
    let mut server = server();
    let script = r#"
        readlink /proc/$$/fd/0
        read -r pid comm state ppid pgrp session tty rest < /proc/$$/stat
        [ "$pid" = "$pgrp" ] && [ "$pid" = "$session" ] && [ "$tty" = 0 ] && echo own session
        while read -r name value rest; do
            # Those above are the C library's own.
            case $name in SigBlk:|SigIgn:) echo $name$((0x$value & 0x7fffffff));; esac
        done < /proc/$$/status
    "#;
    check_exec(&mut server, vec![(sh(script), "exit 0 /dev/null\nown session\nSigBlk:0\nSigIgn:0\n|")]);
    // No descriptor of the server's own but the three.
    let result = server.exec(&danger(&["/bin/ls", "/proc/self/fd"]));
    assert_eq!(result["stdout"], "0\n1\n2\n3\n", "ls itself opens the last");
}

/// Standard input is at its end from the beginning, unless it is asked for.
#[test]
fn a_command_that_reads_does_not_wait_for_ever() {
    check_exec(
        &mut server(),
        vec![(danger(&["/bin/cat"]), "exit 0"), (sh("read x || echo end"), "exit 0 end\n|")],
    );
}
