//! Rows about sudo and sudo-rs: what a caller may say, which file is run, and what a refusal gives away.

use crate::gate::{Gate, GateOptions, line};
use crate::kit::{decoded, plain, privilege, script, with};
use outpost_testkit::{available, stamp};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request for root's rights.
fn root(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline})
}

pub(super) fn stdout(answer: &Value) -> String {
    assert_eq!(answer["status"], "ok", "{answer:.600}");
    String::from_utf8(decoded(&answer["stdout"])).unwrap()
}

/// No shell mode, no unescaping, and no option of sudo's comes from a request.
#[test]
fn sudo_cve_2021_3156_unescaping_in_shell_mode() {
    let mut gate = Gate::start();
    let words = ["\\", "a\\", "\\\\", "b\\ c\\", "-s", "\\\"", "$HOME\\"];
    let argv: Vec<&str> = ["printf", "<%s>"].into_iter().chain(words).collect();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(stdout(&gate.run(&plain("a", json!([argv])))), expected);
    for (id, argv) in
        [("b", json!(["-s", "\\"])), ("c", json!(["-i", "\\"])), ("d", json!(["--shell", "id"]))]
    {
        let told = gate.refused(&root(id, json!([argv])));
        assert!(told.contains("is not the name of a command"), "{told}");
    }
}

/// Who it runs as is one uid, looked up by us once; nothing in a request can name another.
#[test]
fn sudo_cve_2019_14287_user_minus_one_is_root() {
    let mut gate = Gate::start();
    for (number, who) in
        [json!("#-1"), json!("-1"), json!(-1), json!("4294967295"), json!("#0"), json!("nobody"), json!(0)]
            .into_iter()
            .enumerate()
    {
        let more = json!({"user": who, "uid": who, "run_as": who, "group": who, "target_user": who});
        let request = with(plain(&format!("plain {number}"), json!([["id", "-u"]])), more.clone());
        let (sent, question) = gate.ask(&request);
        let own = outpost_sys::limits::effective_uid();
        let shown = line(&question, "Runs", "as").to_owned();
        assert!(shown.ends_with(&format!("(uid {own})")), "{shown}");
        gate.approver().allow(&question);
        assert_eq!(stdout(&sent.answer()), format!("{own}\n"));
        let (_sent, question) = gate.ask(&with(root(&format!("root {number}"), json!([["id", "-u"]])), more));
        assert_eq!(line(&question, "Runs", "as"), "root (uid 0)");
    }
    for argv in [json!(["-u#-1", "id"]), json!(["-u", "#-1", "id"]), json!(["--user=#-1", "id"])] {
        gate.refused(&root(&argv.to_string(), json!([argv])));
    }
}

/// There is no root but ours, and names are looked up before anybody's directory counts.
#[test]
fn sudo_cve_2025_32463_chroot_reads_the_callers_nsswitch() {
    let mut gate = Gate::start();
    let jail = gate.path("jail");
    std::fs::create_dir_all(jail.join("etc")).unwrap();
    std::fs::write(jail.join("etc/nsswitch.conf"), "passwd: /woot1337\n").unwrap();
    std::fs::write(jail.join("etc/passwd"), "evil:x:0:0::/evil:/bin/sh\n").unwrap();
    let more = json!({"chroot": jail, "root": jail, "cwd": jail});
    let (sent, question) =
        gate.ask(&with(plain("a", json!([["readlink", "/proc/self/root"]])), more.clone()));
    assert!(!question.to_string().contains("evil"), "{question}");
    gate.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "/\n");
    for argv in [json!(["-R", jail, "id"]), json!([format!("--chroot={}", jail.display()), "id"])] {
        gate.refused(&with(root(&argv.to_string(), json!([argv])), more.clone()));
    }
}

/// `host` is a label: no rule is chosen by it.
#[test]
fn sudo_cve_2025_32462_host_chooses_other_rules() {
    let rules = "[[rule]]\nname = \"no-touch\"\ndecision = \"deny\"\ncommand = [\"/usr/bin/touch\", { rest = true }]\n";
    let mut gate = Gate::ruled(rules);
    let file = gate.path("ran");
    for host in ["", "elsewhere", "ALL", "localhost", "*"] {
        let request = with(plain(host, json!([["touch", file]])), json!({"host": host, "hostname": host}));
        let answer = gate.unasked(&request);
        assert_eq!(
            (&answer["status"], &answer["message"]),
            (&json!("denied"), &json!("denied by rule no-touch"))
        );
    }
    assert!(!file.exists());
    // Nor can an operator believe that one would be: such a file is no rules file.
    std::fs::write(gate.rules(), format!("{rules}host = \"elsewhere\"\n")).unwrap();
    let answer = gate.unasked(&plain("b", json!([["true"]])));
    assert_eq!(answer["status"], "denied", "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("unknown key host"), "{answer}");
}

/// Arguments are a vector from end to end: no text is split, and no dashes in one mean anything.
#[test]
fn sudo_cve_2023_22809_dashes_in_editor_add_files() {
    let mut gate = Gate::start();
    for name in ["EDITOR", "SUDO_EDITOR", "VISUAL"] {
        let request = with(root(name, json!([["true"]])), json!({"env": {name: "vim -- /etc/shadow"}}));
        assert_eq!(gate.refused(&request), format!("environment variable not allowed: {name}"));
    }
    let words = ["--", "-- /etc/shadow", "a b", "--user=root", "", "--"];
    let argv: Vec<&str> = ["printf", "<%s>"].into_iter().chain(words).collect();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(stdout(&gate.run(&plain("a", json!([argv.clone()])))), expected);
    if available!(privilege()).is_some() {
        assert_eq!(stdout(&gate.run(&root("b", json!([argv])))), expected);
    }
}

/// A zone is a name of the system's, and no zone of anybody's moves our own judgement of time.
#[test]
fn sudo_cve_2014_9680_and_cve_2026_96512_time_zones() {
    let zone = ("TZ", "Pacific/Kiritimati".into());
    let mut gate = Gate::with(GateOptions { env: vec![zone], ..GateOptions::default() });
    for (number, zone) in
        ["/etc/shadow", ":/dev/zero", "../../../etc/shadow", "/usr/share/zoneinfo/UTC", "X99", "\u{20}UTC"]
            .into_iter()
            .enumerate()
    {
        let told =
            gate.refused(&with(root(&number.to_string(), json!([["date"]])), json!({"env": {"TZ": zone}})));
        assert!(told.starts_with("environment variable not allowed: TZ"), "{zone}: {told}");
    }
    for (number, zone) in ["Etc/GMT+12", "Pacific/Kiritimati", "AAA-99:00"].into_iter().enumerate() {
        let old = json!({"env": {"TZ": zone}, "time": stamp(-100)});
        let told = gate.refused(&with(plain(&format!("old {number}"), json!([["true"]])), old));
        assert!(told.starts_with("request too old: 10"), "{told}");
        let ahead = json!({"env": {"TZ": zone}, "time": stamp(3600)});
        let told = gate.refused(&with(plain(&format!("new {number}"), json!([["true"]])), ahead));
        assert!(told.starts_with("request from the future"), "{told}");
    }
    // It reaches the command, where it may.
    let request = with(plain("z", json!([["date", "+%z"]])), json!({"env": {"TZ": "Etc/GMT+12"}}));
    assert_eq!(stdout(&gate.run(&request)), "-1200\n");
}

/// The file that was shown is the file that runs: opened once, judged by its descriptor, executed by it.
#[test]
fn sudo_cve_2005_1993_and_sudo_rs_ghsa_f42v_path_and_link_races() {
    let mut gate = Gate::start();
    let (good, evil, name) = (gate.path("good"), gate.path("evil"), gate.path("tool"));
    std::fs::copy("/usr/bin/printf", &good).unwrap();
    std::fs::copy("/usr/bin/printenv", &evil).unwrap();
    symlink(&good, &name).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (new, stop, evil, good, name) = (gate.path("new"), &stop, &evil, &good, &name);
        scope.spawn(move || {
            for target in [evil, good].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _there = std::fs::remove_file(&new);
                symlink(target, &new).unwrap();
                std::fs::rename(&new, name).unwrap();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut ran = 0;
            for number in 0..30 {
                let sent = gate.send(&plain(&number.to_string(), json!([[name, "PATH"]])));
                let question = gate.approver().question();
                gate.approver().allow(&question);
                let answer = sent.answer();
                if answer["status"] == "error" {
                    let told = answer["message"].as_str().unwrap();
                    assert!(told.contains("changed after it was looked at"), "{told}");
                    continue;
                }
                ran += 1;
                let is_good = line(&question, "Command", "file") == good.to_str().unwrap();
                assert_eq!(
                    stdout(&answer) == "PATH",
                    is_good,
                    "another file ran than was shown: {question} {answer}"
                );
                assert_eq!(&answer["stages"][0]["resolved"]["sha256"], line(&question, "Command", "sha256"));
            }
            ran
        }));
        stop.store(true, Ordering::Relaxed);
        eprintln!("{} of 30 ran", outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

/// What is granted is an exact digest; nothing that a client or a terminal is called gets it for another.
#[test]
fn sudo_cve_2013_1776_and_cve_2017_1000367_terminal_identity() {
    let mut gate = Gate::start();
    // In /proc/PID/stat the name of a program stands before the numbers; this one looks like them.
    let client = gate.path("x) S 1 1 1 34816 0");
    std::fs::copy("/usr/bin/perl", &client).unwrap();
    let program = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; \
                   print $s $ARGV[1], \"\\n\"; $s->flush; print <$s>;";
    let request = plain("a", json!([["stat", "--version"]]));
    let child = std::process::Command::new(&client)
        .args(["-e", program])
        .arg(gate.socket())
        .arg(request.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let question = gate.approver().question();
    let shown = line(&question, "Asked by", "process").to_owned();
    let parent = format!(" of pid {} (", std::process::id());
    assert!(shown.starts_with(&format!("pid {} (", child.id())) && shown.contains(&parent), "{shown}");
    gate.approver().allow_often(&question, 5);
    assert!(child.wait_with_output().unwrap().status.success());
    // The same to the byte, by another process: that is what was granted. Anything else, by whatever name, is not.
    assert_eq!(gate.unasked(&plain("b", json!([["stat", "--version"]])))["decision"], "grant");
    let other = json!({"session": "unknown", "host": "same", "version": "same"});
    gate.asks(&with(plain("c", json!([["stat", "--help"]])), other));
}

/// What is escaped on the screen is escaped in logs, too.
#[test]
fn sudo_cve_2023_28486_and_28487_control_characters_in_logs() {
    let mut gate = Gate::start();
    let noise = "one\ntwo\t\u{430}\u{301}";
    let shout = "printf '\\033]0;evil\\007\\033[2J\\r'; printf '\\033[31m' >&2";
    let request =
        with(plain("\u{e4}", json!([["sh", "-c", shout, noise]])), json!({"reason": "\u{e4}\u{430}"}));
    let answer = gate.run(&request);
    assert_eq!(answer["status"], "ok", "{answer}");
    gate.refused(&with(plain("b", json!([["true"]])), json!({"reason": "\u{1b}]0;evil\u{7}"})));
    gate.refused(&with(plain("c", json!([["true"]])), json!({"env": {"A\u{1b}[2J": "x"}})));
    let (_sent, question) = gate.ask(&plain("d", json!([["true"]])));
    let told = gate.approver().decide(&question, json!({"allow": false, "note": "\u{1b}[2J"}));
    assert_eq!(told["is"], "failed", "{told}");
    let wrong = json!({"do": "hello", "nonce": "\u{1b}[2J", "client": "\u{1b}[2J\n"});
    assert_eq!(gate.approver().tell(&wrong)["is"], "hello");
    let told =
        gate.approver().tell(&json!({"do": "decide", "statement": "\u{1b}[2J", "signature": "\u{1b}[2J"}));
    assert_eq!(told["is"], "failed", "{told}");
    for (what, text) in [("audit", gate.audit()), ("log", gate.daemon().log().into_bytes())] {
        let raw = text.iter().find(|byte| byte.is_ascii_control() && **byte != b'\n');
        assert_eq!(raw, None, "in the {what}: {}", String::from_utf8_lossy(&text));
    }
    let audit = String::from_utf8(gate.audit()).unwrap();
    assert!(audit.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{audit}");
    assert!(
        !audit.contains('\u{9b}') && !audit.contains("evil\\u0007\\u001b[2J\\r"),
        "output is in the audit: {audit}"
    );
}

/// Who is refused by a rule does not learn which files there are.
#[test]
fn sudo_rs_cve_2025_46717_and_46718_existence_of_files() {
    let everything =
        "[[rule]]\nname = \"nothing\"\ndecision = \"deny\"\ncommand = [{ any = true }, { rest = true }]\n";
    let mut gate = Gate::ruled(everything);
    let secret = gate.path("secret");
    let tool = gate.path("tool");
    std::fs::write(&secret, "x").unwrap();
    script(&tool, "true");
    let missing = gate.path("missing");
    let mut answers = Vec::new();
    for (number, argv) in [
        json!(["true"]),
        json!(["no-such-command"]),
        json!([secret]),
        json!([missing]),
        json!([tool]),
        json!([missing.join("deeper")]),
        json!(["sh", secret]),
        json!(["sh", missing]),
    ]
    .into_iter()
    .enumerate()
    {
        for privileged in [false, true] {
            let id = format!("{number} {privileged}");
            let request = with(plain(&id, json!([["true"], argv])), json!({"privileged": privileged}));
            answers.push((argv.clone(), gate.unasked(&with(request, json!({"cwd": "/tmp"})))));
        }
    }
    for cwd in [gate.path(""), missing.clone(), secret] {
        let request = with(plain(&cwd.display().to_string(), json!([["true"]])), json!({"cwd": cwd}));
        answers.push((json!(cwd), gate.unasked(&request)));
    }
    for (what, answer) in &answers {
        assert_eq!(answer["message"], "denied by rule nothing", "{what}: {answer}");
        assert_eq!(answer["status"], "denied", "{what}: {answer}");
    }
    // A file of rules that cannot be understood denies just as blindly.
    std::fs::write(gate.rules(), "rubbish").unwrap();
    let [there, not_there] =
        [("e", &tool), ("f", &missing)].map(|(id, path)| gate.unasked(&plain(id, json!([[path]]))));
    assert_eq!((&there["status"], &there["message"]), (&not_there["status"], &not_there["message"]));
    assert_eq!(there["status"], "denied");
}
