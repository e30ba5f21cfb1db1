//! Rows about sudo and sudo-rs: the caller's input, the executed file, and information in refusals.

use crate::fixture::{Fixture, FixtureOptions, line};
use crate::kit::{decoded, plain, privilege, script, with};
use outpost_testkit::{available, stamp};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

/// A privileged request.
fn root(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline})
}

pub(super) fn stdout(answer: &Value) -> String {
    assert_eq!(answer["status"], "ok", "{answer:.600}");
    String::from_utf8(decoded(&answer["stdout"])).unwrap()
}

/// There is no shell mode and no unescaping. A request cannot add options of sudo.
#[test]
fn sudo_cve_2021_3156_unescaping_in_shell_mode() {
    let mut fixture = Fixture::start();
    let words = ["\\", "a\\", "\\\\", "b\\ c\\", "-s", "\\\"", "$HOME\\"];
    let argv: Vec<&str> = ["printf", "<%s>"].into_iter().chain(words).collect();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(stdout(&fixture.run(&plain("a", json!([argv])))), expected);
    for (id, argv) in
        [("b", json!(["-s", "\\"])), ("c", json!(["-i", "\\"])), ("d", json!(["--shell", "id"]))]
    {
        let reply = fixture.refused(&root(id, json!([argv])));
        assert!(reply.contains("is not the name of a command"), "{reply}");
    }
}

/// The target uid is looked up once by the broker. No field of a request can change it.
#[test]
fn sudo_cve_2019_14287_user_minus_one_is_root() {
    let mut fixture = Fixture::start();
    for (number, user) in
        [json!("#-1"), json!("-1"), json!(-1), json!("4294967295"), json!("#0"), json!("nobody"), json!(0)]
            .into_iter()
            .enumerate()
    {
        let more = json!({"user": user, "uid": user, "run_as": user, "group": user, "target_user": user});
        let request = with(plain(&format!("plain {number}"), json!([["id", "-u"]])), more.clone());
        let (sent, question) = fixture.ask(&request);
        let own = outpost_sys::process::effective_uid();
        let shown = line(&question, "Runs", "as").to_owned();
        assert!(shown.ends_with(&format!("(uid {own})")), "{shown}");
        fixture.approver().allow(&question);
        assert_eq!(stdout(&sent.answer()), format!("{own}\n"));
        let (_sent, question) =
            fixture.ask(&with(root(&format!("root {number}"), json!([["id", "-u"]])), more));
        assert_eq!(line(&question, "Runs", "as"), "root (uid 0)");
    }
    for argv in [json!(["-u#-1", "id"]), json!(["-u", "#-1", "id"]), json!(["--user=#-1", "id"])] {
        fixture.refused(&root(&argv.to_string(), json!([argv])));
    }
}

/// There is no chroot. User names are looked up in the host's databases, before the working directory is used.
#[test]
fn sudo_cve_2025_32463_chroot_reads_the_callers_nsswitch() {
    let mut fixture = Fixture::start();
    let jail = fixture.path("jail");
    std::fs::create_dir_all(jail.join("etc")).unwrap();
    std::fs::write(jail.join("etc/nsswitch.conf"), "passwd: /woot1337\n").unwrap();
    std::fs::write(jail.join("etc/passwd"), "evil:x:0:0::/evil:/bin/sh\n").unwrap();
    let more = json!({"chroot": jail, "root": jail, "cwd": jail});
    let (sent, question) =
        fixture.ask(&with(plain("a", json!([["readlink", "/proc/self/root"]])), more.clone()));
    assert!(!question.to_string().contains("evil"), "{question}");
    fixture.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "/\n");
    for argv in [json!(["-R", jail, "id"]), json!([format!("--chroot={}", jail.display()), "id"])] {
        fixture.refused(&with(root(&argv.to_string(), json!([argv])), more.clone()));
    }
}

/// `host` is only a label. It selects no rules.
#[test]
fn sudo_cve_2025_32462_host_chooses_other_rules() {
    let rules = "[[rule]]\nname = \"no-touch\"\ndecision = \"deny\"\ncommand = [\"/usr/bin/touch\", { rest = true }]\n";
    let mut fixture = Fixture::with_rules(rules);
    let file = fixture.path("ran");
    for host in ["", "elsewhere", "ALL", "localhost", "*"] {
        let request = with(plain(host, json!([["touch", file]])), json!({"host": host, "hostname": host}));
        let answer = fixture.answer_unasked(&request);
        assert_eq!(
            (&answer["status"], &answer["message"]),
            (&json!("denied"), &json!("denied by rule no-touch"))
        );
    }
    assert!(!file.exists());
    // A rules file with a `host` key is invalid, so an operator cannot rely on it.
    std::fs::write(fixture.rules(), format!("{rules}host = \"elsewhere\"\n")).unwrap();
    let answer = fixture.answer_unasked(&plain("b", json!([["true"]])));
    assert_eq!(answer["status"], "denied", "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("unknown key host"), "{answer}");
}

/// Arguments are a vector end to end. No text is split, and `--` in an argument has no meaning.
#[test]
fn sudo_cve_2023_22809_dashes_in_editor_add_files() {
    let mut fixture = Fixture::start();
    for name in ["EDITOR", "SUDO_EDITOR", "VISUAL"] {
        let request = with(root(name, json!([["true"]])), json!({"env": {name: "vim -- /etc/shadow"}}));
        assert_eq!(fixture.refused(&request), format!("environment variable not allowed: {name}"));
    }
    let words = ["--", "-- /etc/shadow", "a b", "--user=root", "", "--"];
    let argv: Vec<&str> = ["printf", "<%s>"].into_iter().chain(words).collect();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(stdout(&fixture.run(&plain("a", json!([argv.clone()])))), expected);
    if available!(privilege()).is_some() {
        assert_eq!(stdout(&fixture.run(&root("b", json!([argv])))), expected);
    }
}

/// TZ must be an installed zone, and no TZ affects the broker's freshness check.
#[test]
fn sudo_cve_2014_9680_and_cve_2026_96512_time_zones() {
    let zone = ("TZ", "Pacific/Kiritimati".into());
    let mut fixture = Fixture::with(FixtureOptions { env: vec![zone], ..FixtureOptions::default() });
    for (number, zone) in
        ["/etc/shadow", ":/dev/zero", "../../../etc/shadow", "/usr/share/zoneinfo/UTC", "X99", "\u{20}UTC"]
            .into_iter()
            .enumerate()
    {
        let reply = fixture
            .refused(&with(root(&number.to_string(), json!([["date"]])), json!({"env": {"TZ": zone}})));
        assert!(reply.starts_with("environment variable not allowed: TZ"), "{zone}: {reply}");
    }
    for (number, zone) in ["Etc/GMT+12", "Pacific/Kiritimati", "AAA-99:00"].into_iter().enumerate() {
        let old = json!({"env": {"TZ": zone}, "time": stamp(-100)});
        let reply = fixture.refused(&with(plain(&format!("old {number}"), json!([["true"]])), old));
        assert!(reply.starts_with("request too old: 10"), "{reply}");
        let ahead = json!({"env": {"TZ": zone}, "time": stamp(3600)});
        let reply = fixture.refused(&with(plain(&format!("new {number}"), json!([["true"]])), ahead));
        assert!(reply.starts_with("request from the future"), "{reply}");
    }
    // An allowed TZ reaches the command. This form needs no time zone database.
    let request = with(plain("z", json!([["date", "+%z"]])), json!({"env": {"TZ": "AAA12"}}));
    assert_eq!(stdout(&fixture.run(&request)), "-1200\n");
}

/// The displayed file is the executed file: opened once, checked and executed by its descriptor.
#[test]
fn sudo_cve_2005_1993_and_sudo_rs_ghsa_f42v_path_and_link_races() {
    let mut fixture = Fixture::start();
    let (good, evil, name) = (fixture.path("good"), fixture.path("evil"), fixture.path("tool"));
    std::fs::copy("/usr/bin/printf", &good).unwrap();
    std::fs::copy("/usr/bin/printenv", &evil).unwrap();
    symlink(&good, &name).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (new, stop, evil, good, name) = (fixture.path("new"), &stop, &evil, &good, &name);
        scope.spawn(move || {
            for target in [evil, good].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _missing = std::fs::remove_file(&new);
                symlink(target, &new).unwrap();
                std::fs::rename(&new, name).unwrap();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut ran = 0;
            for number in 0..30 {
                let sent = fixture.send(&plain(&number.to_string(), json!([[name, "PATH"]])));
                let question = fixture.approver().question();
                fixture.approver().allow(&question);
                let answer = sent.answer();
                if answer["status"] == "error" {
                    let reply = answer["message"].as_str().unwrap();
                    assert!(reply.contains("changed after it was looked at"), "{reply}");
                    continue;
                }
                ran += 1;
                let is_good = line(&question, "Command", "file") == good.to_str().unwrap();
                assert_eq!(
                    stdout(&answer) == "PATH",
                    is_good,
                    "the executed file differs from the displayed one: {question} {answer}"
                );
                assert_eq!(&answer["stages"][0]["resolved"]["sha256"], line(&question, "Command", "sha256"));
            }
            ran
        }));
        stop.store(true, Ordering::Relaxed);
        eprintln!("{} of 30 ran", outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

/// A grant covers an exact digest. Names of clients or terminals do not extend it.
#[test]
fn sudo_cve_2013_1776_and_cve_2017_1000367_terminal_identity() {
    let mut fixture = Fixture::start();
    // In /proc/PID/stat the program's name precedes the numbers. This name imitates them.
    let client = fixture.path("x) S 1 1 1 34816 0");
    std::fs::copy("/usr/bin/perl", &client).unwrap();
    let program = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; \
                   print $s $ARGV[1], \"\\n\"; $s->flush; print <$s>;";
    let request = plain("a", json!([["stat", "--version"]]));
    let child = std::process::Command::new(&client)
        .args(["-e", program])
        .arg(fixture.socket())
        .arg(request.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let question = fixture.approver().question();
    let shown = line(&question, "Asked by", "process").to_owned();
    let parent = format!(" of pid {} (", std::process::id());
    assert!(shown.starts_with(&format!("pid {} (", child.id())) && shown.contains(&parent), "{shown}");
    fixture.approver().allow_times(&question, 5);
    assert!(child.wait_with_output().unwrap().status.success());
    // The grant covers the identical command from another process, and no other command.
    assert_eq!(fixture.answer_unasked(&plain("b", json!([["stat", "--version"]])))["decision"], "grant");
    let other = json!({"session": "unknown", "host": "same", "version": "same"});
    fixture.ask_and_withdraw(&with(plain("c", json!([["stat", "--help"]])), other));
}

/// Logs and the audit chain contain no raw control characters.
#[test]
fn sudo_cve_2023_28486_and_28487_control_characters_in_logs() {
    let mut fixture = Fixture::start();
    let noise = "one\ntwo\t\u{430}\u{301}";
    let shout = "printf '\\033]0;evil\\007\\033[2J\\r'; printf '\\033[31m' >&2";
    let request =
        with(plain("\u{e4}", json!([["sh", "-c", shout, noise]])), json!({"reason": "\u{e4}\u{430}"}));
    let answer = fixture.run(&request);
    assert_eq!(answer["status"], "ok", "{answer}");
    fixture.refused(&with(plain("b", json!([["true"]])), json!({"reason": "\u{1b}]0;evil\u{7}"})));
    fixture.refused(&with(plain("c", json!([["true"]])), json!({"env": {"A\u{1b}[2J": "x"}})));
    let (_sent, question) = fixture.ask(&plain("d", json!([["true"]])));
    let reply = fixture.approver().decide(&question, json!({"allow": false, "note": "\u{1b}[2J"}));
    assert_eq!(reply["is"], "failed", "{reply}");
    let wrong = json!({"do": "hello", "nonce": "\u{1b}[2J", "client": "\u{1b}[2J\n"});
    assert_eq!(fixture.approver().request(&wrong)["is"], "hello");
    let reply = fixture
        .approver()
        .request(&json!({"do": "decide", "statement": "\u{1b}[2J", "signature": "\u{1b}[2J"}));
    assert_eq!(reply["is"], "failed", "{reply}");
    for (what, text) in [("audit", fixture.audit()), ("log", fixture.daemon().log().into_bytes())] {
        let raw = text.iter().find(|byte| byte.is_ascii_control() && **byte != b'\n');
        assert_eq!(raw, None, "in the {what}: {}", String::from_utf8_lossy(&text));
    }
    let audit = String::from_utf8(fixture.audit()).unwrap();
    assert!(audit.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{audit}");
    assert!(
        !audit.contains('\u{9b}') && !audit.contains("evil\\u0007\\u001b[2J\\r"),
        "the audit chain contains output: {audit}"
    );
}

/// A denial by a rule does not reveal which files exist.
#[test]
fn sudo_rs_cve_2025_46717_and_46718_existence_of_files() {
    let everything =
        "[[rule]]\nname = \"nothing\"\ndecision = \"deny\"\ncommand = [{ any = true }, { rest = true }]\n";
    let mut fixture = Fixture::with_rules(everything);
    let secret = fixture.path("secret");
    let tool = fixture.path("tool");
    std::fs::write(&secret, "x").unwrap();
    script(&tool, "true");
    let missing = fixture.path("missing");
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
            answers.push((argv.clone(), fixture.answer_unasked(&with(request, json!({"cwd": "/tmp"})))));
        }
    }
    for cwd in [fixture.path(""), missing.clone(), secret] {
        let request = with(plain(&cwd.display().to_string(), json!([["true"]])), json!({"cwd": cwd}));
        answers.push((json!(cwd), fixture.answer_unasked(&request)));
    }
    for (what, answer) in &answers {
        assert_eq!(answer["message"], "denied by rule nothing", "{what}: {answer}");
        assert_eq!(answer["status"], "denied", "{what}: {answer}");
    }
    // An invalid rules file denies without revealing files, too.
    std::fs::write(fixture.rules(), "rubbish").unwrap();
    let [there, not_there] =
        [("e", &tool), ("f", &missing)].map(|(id, path)| fixture.answer_unasked(&plain(id, json!([[path]]))));
    assert_eq!((&there["status"], &there["message"]), (&not_there["status"], &not_there["message"]));
    assert_eq!(there["status"], "denied");
}
