//! Rows about openclaw, its derivatives, and Cursor: the display matches the executed command.

use super::sudo::stdout;
use crate::fixture::{Fixture, line, lines, warnings};
use crate::kit::{plain, script, with};
use serde_json::json;
use std::fs::{FileTimes, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The decision covers the exact bytes, and different commands are displayed differently.
#[test]
fn openclaw_cve_2026_32065_trailing_space_trimmed_in_the_display() {
    let mut fixture = Fixture::start();
    for (name, text) in [("tool", "good"), ("tool ", "evil")] {
        std::fs::copy("/usr/bin/printf", fixture.path(name)).unwrap();
        std::fs::write(fixture.path(&format!("{text}.txt")), text).unwrap();
    }
    let request = |id: &str, name: &str, word: &str| plain(id, json!([[fixture.path(name), word]]));
    let requests = [
        request("a", "tool", "x"),
        request("b", "tool ", "x"),
        request("c", "tool", "x "),
        request("d", "tool", " x"),
        request("e", "tool", "x\t"),
    ];
    let mut seen = Vec::new();
    for request in &requests {
        let (sent, question) = fixture.ask(request);
        seen.push((question["title"].clone(), question["digest"].clone()));
        match seen.len() {
            1 => {
                fixture.approver().allow_times(&question, 100);
                assert_eq!(stdout(&sent.answer()), "x");
            }
            _ => drop(sent),
        }
    }
    for (at, one) in seen.iter().enumerate() {
        let others = seen.iter().skip(at + 1);
        assert!(others.into_iter().all(|other| one.0 != other.0 && one.1 != other.1), "{seen:#?}");
    }
    assert!(seen.get(1).unwrap().0.as_str().unwrap().contains("tool ' "), "{seen:#?}");
}

/// The question shows every byte of the command.
#[test]
fn openclaw_ghsa_xww8_display_cut_full_command_ran() {
    let mut fixture = Fixture::start();
    let mut argv = vec!["printf".to_owned(), "%.0s".to_owned(), "x".repeat(100_000) + "END0"];
    argv.extend((1..2_000).map(|number| format!("word{number:04}")));
    argv.push("rm -rf / #END1".to_owned());
    let (sent, question) = fixture.ask(&plain("a", json!([argv, ["sh", "-c", "cat; printf END2"]])));
    let title = question["title"].as_str().unwrap();
    for text in ["END0", "word0001", "word1999", "'rm -rf / #END1'", "printf END2"] {
        assert!(title.contains(text), "{text} is not in the title");
    }
    assert_eq!(line(&question, "What it is", "size"), "2 stages, 2006 arguments, 116040 bytes, unprivileged");
    let shown = lines(&question, "Stage 1").iter().filter(|(name, _)| name.parse::<usize>().is_ok()).count();
    assert_eq!(shown, argv.len());
    fixture.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "END2");
}

/// The displayed argument vector is the executed one, including unused positions.
#[test]
fn openclaw_cve_2026_32971_32052_and_29608_shown_payload_is_not_the_argv() {
    let mut fixture = Fixture::start();
    let print = "cat /proc/$$/cmdline; :";
    for (number, argv) in [
        json!(["cat", "/proc/self/cmdline"]),
        json!(["sh", "-c", print, "hidden", "$(id)", ""]),
        json!(["env", "-i", "sh", "-c", print, "sh", "a b", "\\"]),
        json!(["nice", "-n", "1", "sh", "-c", print]),
    ]
    .into_iter()
    .enumerate()
    {
        let (sent, question) = fixture.ask(&plain(&number.to_string(), json!([argv])));
        let words: Vec<&str> = argv.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let shown = lines(&question, "Command");
        for (at, word) in words.iter().enumerate() {
            let is_plain = !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-".contains(&byte));
            let displayed =
                if is_plain { (*word).to_owned() } else { format!("'{}'", word.replace('\\', "\\\\")) };
            assert_eq!(shown.get(at), Some(&(at.to_string().as_str(), displayed.as_str())));
        }
        fixture.approver().allow(&question);
        let ran = stdout(&sent.answer());
        let ran: Vec<&str> = ran.strip_suffix('\0').unwrap().split('\0').collect();
        assert!(words.ends_with(&ran), "{words:?} became {ran:?}");
    }
}

/// The working directory is opened before the question, and the command runs in this directory.
#[test]
fn openclaw_cve_2026_27545_cwd_link_rebound() {
    let mut fixture = Fixture::start();
    for name in ["good", "evil"] {
        std::fs::create_dir(fixture.path(name)).unwrap();
        std::fs::write(fixture.path(name).join("which"), name).unwrap();
    }
    let link = fixture.path("link");
    symlink(fixture.path("good"), &link).unwrap();
    let request = |id: &str| with(plain(id, json!([["cat", "which"]])), json!({"cwd": link}));
    let (sent, question) = fixture.ask(&request("a"));
    assert_eq!(line(&question, "Runs", "in"), fixture.path("good").to_str().unwrap());
    std::fs::remove_file(&link).unwrap();
    symlink(fixture.path("evil"), &link).unwrap();
    fixture.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "good");
    // The directory itself is renamed, and another takes its place.
    std::fs::remove_file(&link).unwrap();
    symlink(fixture.path("good"), &link).unwrap();
    let (sent, question) = fixture.ask(&request("b"));
    std::fs::rename(fixture.path("good"), fixture.path("away")).unwrap();
    std::fs::rename(fixture.path("evil"), fixture.path("good")).unwrap();
    fixture.approver().allow(&question);
    let answer = sent.answer();
    assert!(answer["status"] == "error" || stdout(&answer) == "good", "{answer}");
    // A relative directory is refused.
    let message = fixture.refused(&with(plain("c", json!([["true"]])), json!({"cwd": "relative"})));
    assert_eq!(message, "cwd must be an absolute path");
}

/// A way to change a file between the question and the decision.
type Change = (&'static str, fn(&Path, &Path));

const CHANGES: [Change; 5] = [
    ("another file in its place", |file, evil| std::fs::rename(evil, file).unwrap()),
    ("written in place", |file, evil| {
        let text = std::fs::read(evil).unwrap();
        OpenOptions::new().write(true).truncate(true).open(file).unwrap().write_all(&text).unwrap();
    }),
    ("written in place, with its time and size restored", |file, evil| {
        let before = std::fs::metadata(file).unwrap();
        let mut text = std::fs::read(evil).unwrap();
        text.resize(usize::try_from(before.len()).unwrap(), b' ');
        let mut open = OpenOptions::new().write(true).open(file).unwrap();
        open.write_all(&text).unwrap();
        open.set_times(
            FileTimes::new()
                .set_modified(before.modified().unwrap())
                .set_accessed(before.accessed().unwrap()),
        )
        .unwrap();
    }),
    ("a link in its place", |file, evil| {
        std::fs::remove_file(file).unwrap();
        symlink(evil, file).unwrap();
    }),
    ("its directory renamed", |file, evil| {
        let dir = file.parent().unwrap();
        std::fs::rename(dir, dir.with_extension("away")).unwrap();
        std::fs::create_dir(dir).unwrap();
        std::fs::copy(evil, file).unwrap();
    }),
];

/// Nothing runs if an executed file, or a file argument of an interpreter, changed after it was displayed.
#[test]
fn openclaw_cve_2026_32921_32979_and_53822_script_changed_after_approval() {
    let mut fixture = Fixture::start();
    let dir = fixture.path("dir");
    let file = dir.join("deploy.sh");
    // Executed directly, by an interpreter, after options, by wrappers, and after a decoy argument.
    let decoy = fixture.path("5");
    std::fs::write(&decoy, "decoy").unwrap();
    let forms = [
        json!([file]),
        json!(["sh", file]),
        json!(["sh", "-e", "-u", "./dir/deploy.sh", "arg"]),
        json!(["env", "A=b", "sh", file]),
        json!(["nice", "-n", "5", file]),
        json!(["bash", "--rcfile", decoy, file]),
        json!(["bash", format!("--rcfile={}", file.display()), decoy]),
        json!(["perl", format!("-x{}", file.display()), decoy]),
    ];
    for (number, argv) in forms.iter().enumerate() {
        for (how, change) in CHANGES {
            let ran = fixture.path("ran");
            let _missing = std::fs::remove_dir_all(dir.with_extension("away"));
            let _missing = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).unwrap();
            script(&file, &format!("printf good # {}", "padding".repeat(40)));
            let evil = fixture.path("evil");
            script(&evil, &format!("touch {}; printf evil", ran.display()));
            let id = format!("{number} {how}");
            let more = json!({"cwd": fixture.path(""), "session": id});
            let (sent, question) = fixture.ask(&with(plain(&id, json!([argv])), more));
            assert!(question.to_string().contains("deploy.sh"), "{question}");
            change(&file, &evil);
            fixture.approver().allow(&question);
            let answer = sent.answer();
            assert!(!ran.exists(), "{argv}, {how}: the changed file ran: {answer}");
            assert_eq!(answer["status"], "error", "{argv}, {how}: {answer}");
            let message = answer["message"].as_str().unwrap();
            assert!(message.contains("changed after it was looked at"), "{argv}, {how}: {message}");
        }
    }
    // Files that cannot be pinned reliably cause warnings.
    std::fs::set_permissions(fixture.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let question = fixture.ask_and_withdraw(&plain("bound", json!([["sh", file]])));
    assert!(warnings(&question).contains("others can change it in between"), "{question:#}");
    let question = fixture.ask_and_withdraw(&plain("piped", json!([["cat", file], ["sh"]])));
    assert!(warnings(&question).contains("stage 2 executes what it is given"), "{question:#}");
}

/// The same for a binary: a file that is executed by its descriptor can still be written in place.
#[test]
fn openclaw_cve_2026_32921_32979_and_53822_program_changed_after_approval() {
    let mut fixture = Fixture::start();
    let (dir, evil, ran) = (fixture.path("dir"), fixture.path("evil"), fixture.path("ran"));
    let file = dir.join("tool");
    for (how, change) in CHANGES {
        let _missing = std::fs::remove_dir_all(dir.with_extension("away"));
        let _missing = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy("/usr/bin/printf", &file).unwrap();
        std::fs::copy("/usr/bin/touch", &evil).unwrap();
        let (sent, question) = fixture.ask(&with(plain(how, json!([[file, ran]])), json!({"session": how})));
        change(&file, &evil);
        fixture.approver().allow(&question);
        let answer = sent.answer();
        assert!(!ran.exists(), "{how}: the changed file ran: {answer}");
        assert_eq!(answer["status"], "error", "{how}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("changed after it was looked at"), "{how}: {message}");
    }
}

/// Rules match exact arguments and do not interpret options. Otherwise a human decides.
#[test]
fn openclaw_cve_2026_28363_abbreviated_options() {
    let rules = "[[rule]]\nname = \"sort\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/sort\", \"--parallel=2\", { any = true }]\nprivileged = false\n\
                 [[rule]]\nname = \"sort-one\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/sort\", { any = true }]\nprivileged = false\n";
    let mut fixture = Fixture::with_rules(rules);
    for (number, argv) in [
        json!(["sort", "--paral=2", "/dev/null"]),
        json!(["sort", "--compress-prog=/tmp/x"]),
        json!(["sort", "--compress-prog", "/tmp/x"]),
        json!(["sort", "--parallel=2", "--compress-program=/tmp/x"]),
        json!(["sort", "--parallel=2", "/dev/null", "-o/tmp/x"]),
        json!(["sort", "--parallel=2"]),
        json!(["sort", "--parallel=2 ", "/dev/null"]),
        json!(["sort"]),
    ]
    .into_iter()
    .enumerate()
    {
        fixture.ask_and_withdraw(&with(
            plain(&number.to_string(), json!([argv])),
            json!({"session": number.to_string()}),
        ));
    }
    // A rule does not cover other variables, another directory, or more privileges.
    let exact = || plain("exact", json!([["sort", "--parallel=2", "/dev/null"]]));
    for (id, more) in [
        ("env", json!({"env": {"LC_ALL": "C"}})),
        ("cwd", json!({"cwd": "/tmp"})),
        ("root", json!({"privileged": true})),
        ("agent", json!({"forward_agent": true})),
    ] {
        fixture.ask_and_withdraw(&with(with(exact(), json!({"id": id, "session": id})), more));
    }
    assert_eq!(fixture.answer_unasked(&exact())["decision"], "rule:sort");
}

/// A rule covers a program under its own name. A symlink to a multi-call binary is another command.
#[test]
fn openclaw_cve_2026_28363_a_program_of_several_names_is_allowed_by_its_own_only() {
    let program = std::fs::canonicalize(crate::fixture::binary()).unwrap();
    let rules = format!(
        "[[rule]]\nname = \"version\"\ndecision = \"allow\"\ncommand = [\"{}\", \"--version\"]\nprivileged = false\n",
        program.display()
    );
    let mut fixture = Fixture::with_rules(&rules);
    assert_eq!(
        fixture.answer_unasked(&plain("a", json!([[program, "--version"]])))["decision"],
        "rule:version"
    );
    // Under this name the binary is the drop-in, as `systemctl` under the name `reboot` is another command.
    let link = fixture.path("sudo-proxy");
    symlink(&program, &link).unwrap();
    let question = fixture.ask_and_withdraw(&plain("b", json!([[link, "--version"]])));
    assert_eq!(line(&question, "Command", "0"), link.to_str().unwrap());
    // A link with the program's own name is the same command.
    symlink(&program, fixture.path("outpost")).unwrap();
    assert_eq!(
        fixture.answer_unasked(&plain("c", json!([[fixture.path("outpost"), "--version"]])))["decision"],
        "rule:version"
    );
}
