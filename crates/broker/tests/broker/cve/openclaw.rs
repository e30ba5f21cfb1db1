//! Rows about openclaw, its kin, and Cursor: what is shown against what runs.

use super::sudo::stdout;
use crate::gate::{Gate, line, lines, warnings};
use crate::kit::{plain, script, with};
use serde_json::json;
use std::fs::{FileTimes, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// What is decided is the exact bytes, and what is drawn stands for nothing else.
#[test]
fn openclaw_cve_2026_32065_trailing_space_trimmed_in_the_display() {
    let mut gate = Gate::start();
    for (name, text) in [("tool", "good"), ("tool ", "evil")] {
        std::fs::copy("/usr/bin/printf", gate.path(name)).unwrap();
        std::fs::write(gate.path(&format!("{text}.txt")), text).unwrap();
    }
    let request = |id: &str, name: &str, word: &str| plain(id, json!([[gate.path(name), word]]));
    let requests = [
        request("a", "tool", "x"),
        request("b", "tool ", "x"),
        request("c", "tool", "x "),
        request("d", "tool", " x"),
        request("e", "tool", "x\t"),
    ];
    let mut seen = Vec::new();
    for request in &requests {
        let (sent, question) = gate.ask(request);
        seen.push((question["title"].clone(), question["digest"].clone()));
        match seen.len() {
            1 => {
                gate.approver().allow_often(&question, 100);
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

/// What was not shown cannot be approved: everything is shown, to the last byte.
#[test]
fn openclaw_ghsa_xww8_display_cut_full_command_ran() {
    let mut gate = Gate::start();
    let mut argv = vec!["printf".to_owned(), "%.0s".to_owned(), "x".repeat(100_000) + "END0"];
    argv.extend((1..2_000).map(|number| format!("word{number:04}")));
    argv.push("rm -rf / #END1".to_owned());
    let (sent, question) = gate.ask(&plain("a", json!([argv, ["sh", "-c", "cat; printf END2"]])));
    let title = question["title"].as_str().unwrap();
    for text in ["END0", "word0001", "word1999", "'rm -rf / #END1'", "printf END2"] {
        assert!(title.contains(text), "{text} is not in the title");
    }
    assert_eq!(line(&question, "What it is", "size"), "2 stages, 2006 arguments, 116040 bytes, unprivileged");
    let shown = lines(&question, "Stage 1").iter().filter(|(name, _)| name.parse::<usize>().is_ok()).count();
    assert_eq!(shown, argv.len());
    gate.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "END2");
}

/// The vector that is shown is the vector that runs, hidden positions and all.
#[test]
fn openclaw_cve_2026_32971_32052_and_29608_shown_payload_is_not_the_argv() {
    let mut gate = Gate::start();
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
        let (sent, question) = gate.ask(&plain(&number.to_string(), json!([argv])));
        let words: Vec<&str> = argv.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let shown = lines(&question, "Command");
        for (at, word) in words.iter().enumerate() {
            let is_plain = !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-".contains(&byte));
            let drawn =
                if is_plain { (*word).to_owned() } else { format!("'{}'", word.replace('\\', "\\\\")) };
            assert_eq!(shown.get(at), Some(&(at.to_string().as_str(), drawn.as_str())));
        }
        gate.approver().allow(&question);
        let ran = stdout(&sent.answer());
        let ran: Vec<&str> = ran.strip_suffix('\0').unwrap().split('\0').collect();
        assert!(words.ends_with(&ran), "{words:?} became {ran:?}");
    }
}

/// The directory is opened before anybody is asked, and it is that one in which it runs.
#[test]
fn openclaw_cve_2026_27545_cwd_link_rebound() {
    let mut gate = Gate::start();
    for name in ["good", "evil"] {
        std::fs::create_dir(gate.path(name)).unwrap();
        std::fs::write(gate.path(name).join("which"), name).unwrap();
    }
    let link = gate.path("link");
    symlink(gate.path("good"), &link).unwrap();
    let request = |id: &str| with(plain(id, json!([["cat", "which"]])), json!({"cwd": link}));
    let (sent, question) = gate.ask(&request("a"));
    assert_eq!(line(&question, "Runs", "in"), gate.path("good").to_str().unwrap());
    std::fs::remove_file(&link).unwrap();
    symlink(gate.path("evil"), &link).unwrap();
    gate.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "good");
    // The real directory renamed away, and another in its place.
    std::fs::remove_file(&link).unwrap();
    symlink(gate.path("good"), &link).unwrap();
    let (sent, question) = gate.ask(&request("b"));
    std::fs::rename(gate.path("good"), gate.path("away")).unwrap();
    std::fs::rename(gate.path("evil"), gate.path("good")).unwrap();
    gate.approver().allow(&question);
    let answer = sent.answer();
    assert!(answer["status"] == "error" || stdout(&answer) == "good", "{answer}");
    // A link that is absolute or climbs leads nowhere else.
    let told = gate.refused(&with(plain("c", json!([["true"]])), json!({"cwd": "relative"})));
    assert_eq!(told, "cwd must be an absolute path");
}

/// Ways to change a file between the question and the answer.
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

/// A file that is executed, or that an interpreter is given, is what it was when it was shown, or nothing runs.
#[test]
fn openclaw_cve_2026_32921_32979_and_53822_script_changed_after_approval() {
    let mut gate = Gate::start();
    let dir = gate.path("dir");
    let file = dir.join("deploy.sh");
    // By itself; as an interpreter's; behind options; behind wrappers; and behind a file that only looks like it.
    let decoy = gate.path("5");
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
            let ran = gate.path("ran");
            let _none = std::fs::remove_dir_all(dir.with_extension("away"));
            let _none = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).unwrap();
            script(&file, &format!("printf good # {}", "padding".repeat(40)));
            let evil = gate.path("evil");
            script(&evil, &format!("touch {}; printf evil", ran.display()));
            let id = format!("{number} {how}");
            let more = json!({"cwd": gate.path(""), "session": id});
            let (sent, question) = gate.ask(&with(plain(&id, json!([argv])), more));
            assert!(question.to_string().contains("deploy.sh"), "{question}");
            change(&file, &evil);
            gate.approver().allow(&question);
            let answer = sent.answer();
            assert!(!ran.exists(), "{argv}, {how}: the other one ran: {answer}");
            assert_eq!(answer["status"], "error", "{argv}, {how}: {answer}");
            let told = answer["message"].as_str().unwrap();
            assert!(told.contains("changed after it was looked at"), "{argv}, {how}: {told}");
        }
    }
    // What cannot be bound is said.
    std::fs::set_permissions(gate.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let question = gate.asks(&plain("bound", json!([["sh", file]])));
    assert!(warnings(&question).contains("others can change it in between"), "{question:#}");
    let question = gate.asks(&plain("piped", json!([["cat", file], ["sh"]])));
    assert!(warnings(&question).contains("stage 2 executes what it is given"), "{question:#}");
}

/// The same of a program that no interpreter reads: what is executed by its descriptor can be written in place.
#[test]
fn openclaw_cve_2026_32921_32979_and_53822_program_changed_after_approval() {
    let mut gate = Gate::start();
    let (dir, evil, ran) = (gate.path("dir"), gate.path("evil"), gate.path("ran"));
    let file = dir.join("tool");
    for (how, change) in CHANGES {
        let _none = std::fs::remove_dir_all(dir.with_extension("away"));
        let _none = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy("/usr/bin/printf", &file).unwrap();
        std::fs::copy("/usr/bin/touch", &evil).unwrap();
        let (sent, question) = gate.ask(&with(plain(how, json!([[file, ran]])), json!({"session": how})));
        change(&file, &evil);
        gate.approver().allow(&question);
        let answer = sent.answer();
        assert!(!ran.exists(), "{how}: the other one ran: {answer}");
        assert_eq!(answer["status"], "error", "{how}: {answer}");
        let told = answer["message"].as_str().unwrap();
        assert!(told.contains("changed after it was looked at"), "{how}: {told}");
    }
}

/// Rules do not reason about options: exact tokens, or a human is asked.
#[test]
fn openclaw_cve_2026_28363_abbreviated_options() {
    let rules = "[[rule]]\nname = \"sort\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/sort\", \"--parallel=2\", { any = true }]\nprivileged = false\n\
                 [[rule]]\nname = \"sort-one\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/sort\", { any = true }]\nprivileged = false\n";
    let mut gate = Gate::ruled(rules);
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
        gate.asks(&with(plain(&number.to_string(), json!([argv])), json!({"session": number.to_string()})));
    }
    // Nor by the way it is called: not with variables, not elsewhere, not with more rights.
    let exact = || plain("exact", json!([["sort", "--parallel=2", "/dev/null"]]));
    for (id, more) in [
        ("env", json!({"env": {"LC_ALL": "C"}})),
        ("cwd", json!({"cwd": "/tmp"})),
        ("root", json!({"privileged": true})),
        ("agent", json!({"forward_agent": true})),
    ] {
        gate.asks(&with(with(exact(), json!({"id": id, "session": id})), more));
    }
    assert_eq!(gate.unasked(&exact())["decision"], "rule:sort");
}

/// A rule is about what runs: a link that makes a program another one by its name is another command.
#[test]
fn openclaw_cve_2026_28363_a_program_of_several_names_is_allowed_by_its_own_only() {
    let program = std::fs::canonicalize(crate::gate::binary()).unwrap();
    let rules = format!(
        "[[rule]]\nname = \"version\"\ndecision = \"allow\"\ncommand = [\"{}\", \"--version\"]\nprivileged = false\n",
        program.display()
    );
    let mut gate = Gate::ruled(&rules);
    assert_eq!(gate.unasked(&plain("a", json!([[program, "--version"]])))["decision"], "rule:version");
    // Under this name it is the drop-in; `reboot` is to `systemctl` as this is to that.
    let link = gate.path("sudo-proxy");
    symlink(&program, &link).unwrap();
    let question = gate.asks(&plain("b", json!([[link, "--version"]])));
    assert_eq!(line(&question, "Command", "0"), link.to_str().unwrap());
    // By its own name, wherever the link is, it is itself.
    symlink(&program, gate.path("outpost")).unwrap();
    assert_eq!(
        gate.unasked(&plain("c", json!([[gate.path("outpost"), "--version"]])))["decision"],
        "rule:version"
    );
}
