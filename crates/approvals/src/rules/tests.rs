//! Valid and invalid rule files, and their effect.

use super::*;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;

struct RulesFile {
    dir: tempfile::TempDir,
}

impl RulesFile {
    fn new() -> RulesFile {
        RulesFile { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("rules.toml")
    }

    fn load(&self, text: &str) -> Rules {
        std::fs::write(self.path(), text).unwrap();
        std::fs::set_permissions(self.path(), PermissionsExt::from_mode(0o600)).unwrap();
        Rules::load(&self.path())
    }

    fn rules(&self, text: &str) -> Rules {
        let rules = self.load(text);
        assert_eq!(rules.problem(), None);
        rules
    }

    /// The problem of the rules, without the file name.
    fn load_error(&self, text: &str) -> String {
        let rules = self.load(text);
        let verdict = evaluate(&rules, &TestRequest::new(&["/usr/bin/id"]));
        assert_eq!((verdict.ruling, verdict.rules.len()), (Ruling::Deny, 0), "{text}");
        let problem = rules.problem().unwrap();
        let begin = format!("rules file {}", crate::display::quote(self.path().to_str().unwrap()));
        let rest = problem.strip_prefix(&begin).unwrap_or_else(|| panic!("{problem}"));
        rest.strip_suffix("; every request is denied until the file is fixed").unwrap().to_owned()
    }
}

/// A harmless request. Tests modify it.
#[derive(Clone)]
struct TestRequest {
    stages: Vec<Vec<String>>,
    privileged: bool,
    run_as: String,
    session: String,
    env: BTreeMap<String, String>,
    cwd: String,
    has_reason: bool,
}

impl TestRequest {
    fn new(words: &[&str]) -> TestRequest {
        let words = words.iter().map(|word| word.to_string()).collect();
        TestRequest {
            stages: vec![words],
            privileged: false,
            run_as: "joe".into(),
            session: "s".into(),
            env: BTreeMap::new(),
            cwd: "/".into(),
            has_reason: false,
        }
    }

    fn and(mut self, words: &[&str]) -> TestRequest {
        self.stages.extend(TestRequest::new(words).stages);
        self
    }

    fn but(&self, change: impl FnOnce(&mut TestRequest)) -> TestRequest {
        let mut other = self.clone();
        change(&mut other);
        other
    }
}

fn evaluate_at(rules: &Rules, asked: &TestRequest, now: &str) -> Verdict {
    let stages: Vec<(&str, &[String])> =
        asked.stages.iter().map(|words| (words[0].as_str(), &words[1..])).collect();
    let input = RuleInput {
        stages: &stages,
        privileged: asked.privileged,
        run_as: &asked.run_as,
        session: &asked.session,
        env: &asked.env,
        cwd: &asked.cwd,
        has_reason: asked.has_reason,
    };
    rules.evaluate(&input, now.parse().unwrap())
}

fn evaluate(rules: &Rules, asked: &TestRequest) -> Verdict {
    evaluate_at(rules, asked, "2026-11-16T00:00:00Z")
}

fn ruling(rules: &Rules, asked: &TestRequest) -> Ruling {
    evaluate(rules, asked).ruling
}

fn allow(command: &str, more: &str) -> String {
    format!("[[rule]]\nname = \"r\"\ndecision = \"allow\"\nprivileged = false\ncommand = {command}\n{more}\n")
}

#[test]
fn a_missing_file_asks_about_everything() {
    let file = RulesFile::new();
    let rules = Rules::load(&file.path());
    assert_eq!(rules.problem(), None);
    assert_eq!(
        evaluate(&rules, &TestRequest::new(&["/bin/ls"])),
        Verdict { ruling: Ruling::Ask, rules: Vec::new() }
    );
    assert_eq!(
        ruling(&Rules::load(Path::new("/no/such/place/rules.toml")), &TestRequest::new(&["/bin/ls"])),
        Ruling::Ask
    );
    assert_eq!(ruling(&file.rules(""), &TestRequest::new(&["/bin/ls"])), Ruling::Ask);
}

#[test]
fn the_example_file_works_as_documented() {
    let file = RulesFile::new();
    let rules = file.rules(include_str!("../../../../docs/rules.example.toml"));
    let mut update = TestRequest::new(&["/usr/bin/apt-get", "update"]);
    update.privileged = true;
    update.run_as = "root".into();
    update.session = "ci-7".into();
    update.has_reason = true;
    let allowed = Verdict { ruling: Ruling::Allow, rules: vec!["apt-update".into()] };
    assert_eq!(evaluate(&rules, &update), allowed);
    let fine = update.but(|asked| {
        asked.env.insert("DEBIAN_FRONTEND".into(), "noninteractive".into());
    });
    assert_eq!(evaluate(&rules, &fine), allowed);
    let others = [
        update.but(|asked| asked.privileged = false),
        update.but(|asked| asked.run_as = "joe".into()),
        update.but(|asked| asked.session = "xci-7".into()),
        update.but(|asked| asked.has_reason = false),
        update.but(|asked| asked.cwd = "/tmp".into()),
        update.but(|asked| asked.stages[0].push("--x".into())),
        update.but(|asked| asked.stages[0][1] = "update ".into()),
        update.but(|asked| asked.stages[0][0] = "/usr/bin/../bin/apt-get".into()),
        update.but(|asked| {
            asked.env.insert("DEBIAN_FRONTEND".into(), "dialog".into());
        }),
        update.but(|asked| {
            asked.env.insert("LANG".into(), "C".into());
        }),
    ];
    for other in others {
        assert_eq!(ruling(&rules, &other), Ruling::Ask, "{:?}", other.stages);
    }
    assert_eq!(evaluate_at(&rules, &update, "2099-12-30T23:59:59Z").ruling, Ruling::Allow);
    assert_eq!(evaluate_at(&rules, &update, "2099-12-31T00:00:00Z").ruling, Ruling::Ask);
    let nightly = update.but(|asked| asked.session = "ci-nightly-1".into());
    assert_eq!(
        evaluate(&rules, &nightly),
        Verdict { ruling: Ruling::Deny, rules: vec!["ci-is-never-privileged".into()] }
    );
}

#[test]
fn the_strictest_rule_wins_in_any_order() {
    let file = RulesFile::new();
    let rule = |name: &str, decision: &str| {
        let program = "command = [\"/opt/x\", { rest = true }]";
        format!("[[rule]]\nname = \"{name}\"\ndecision = \"{decision}\"\nprivileged = false\n{program}\n")
    };
    let (allowing, asking, denying) = (rule("a", "allow"), rule("b", "ask"), rule("c", "deny"));
    let asked = TestRequest::new(&["/opt/x", "1"]);
    let table = [
        (vec![&allowing], Ruling::Allow, "a"),
        (vec![&allowing, &asking], Ruling::Ask, "b"),
        (vec![&asking, &allowing], Ruling::Ask, "b"),
        (vec![&denying, &asking, &allowing], Ruling::Deny, "c"),
        (vec![&allowing, &denying], Ruling::Deny, "c"),
    ];
    for (texts, ruling, name) in table {
        let text: String = texts.into_iter().cloned().collect();
        assert_eq!(evaluate(&file.rules(&text), &asked), Verdict { ruling, rules: vec![name.to_owned()] });
    }
}

#[test]
fn a_pipeline_is_allowed_only_if_every_stage_is() {
    let file = RulesFile::new();
    let rules = file.rules(
        r#"
        [[rule]]
        name = "one"
        decision = "allow"
        privileged = false
        command = ["/opt/one"]
        [[rule]]
        name = "two"
        decision = "allow"
        privileged = false
        command = ["/opt/two"]
        [[rule]]
        name = "never"
        decision = "deny"
        command = ["/opt/never"]
        "#,
    );
    let one = TestRequest::new(&["/opt/one"]);
    let both = one.clone().and(&["/opt/two"]).and(&["/opt/one"]);
    let names = |verdict: Verdict| (verdict.ruling, verdict.rules.join(" "));
    assert_eq!(names(evaluate(&rules, &both)), (Ruling::Allow, "one two".into()));
    assert_eq!(names(evaluate(&rules, &both.clone().and(&["/opt/other"]))), (Ruling::Ask, String::new()));
    let denied = both.and(&["/opt/other"]).and(&["/opt/never"]);
    assert_eq!(names(evaluate(&rules, &denied)), (Ruling::Deny, "never".into()));
    assert_eq!(
        ruling(&rules, &one.but(|asked| asked.stages.clear())),
        Ruling::Ask,
        "a request without stages is not allowed"
    );
}

#[test]
fn tokens_match_one_argument_each() {
    let file = RulesFile::new();
    let rules = file.rules(&allow(r#"["/opt/x", ["a", "b"], { any = true }]"#, ""));
    let table: [(&[&str], Ruling); 8] = [
        (&["/opt/x", "a", "z"], Ruling::Allow),
        (&["/opt/x", "b", "a b"], Ruling::Allow),
        (&["/opt/x", "b", ""], Ruling::Allow),
        (&["/opt/x", "c", "z"], Ruling::Ask),
        (&["/opt/x", "a"], Ruling::Ask),
        (&["/opt/x", "a", "z", "z"], Ruling::Ask),
        (&["/opt/x", "a", "-z"], Ruling::Ask),
        (&["/opt/xx", "a", "z"], Ruling::Ask),
    ];
    for (words, expected) in table {
        assert_eq!(ruling(&rules, &TestRequest::new(words)), expected, "{words:?}");
    }
    let deny = "[[rule]]\nname = \"d\"\ndecision = \"deny\"\ncommand = [\"/opt/x\", { any = true }, { rest = true }]\n";
    let rules = file.rules(deny);
    assert_eq!(
        ruling(&rules, &TestRequest::new(&["/opt/x", "-z"])),
        Ruling::Deny,
        "a denial means options too"
    );
    assert_eq!(ruling(&rules, &TestRequest::new(&["/opt/x"])), Ruling::Ask);
}

#[test]
fn a_deny_rule_matches_omitted_keys() {
    let file = RulesFile::new();
    let rules = file
        .rules("[[rule]]\nname = \"d\"\ndecision = \"deny\"\ncommand = [\"/opt/x\"]\nenv = { A = \"1\" }\n");
    let mut asked = TestRequest::new(&["/opt/x"]);
    asked.cwd = "/anywhere".into();
    assert_eq!(ruling(&rules, &asked), Ruling::Ask);
    asked.env.insert("A".into(), "1".into());
    asked.env.insert("B".into(), "2".into());
    for privileged in [false, true] {
        asked.privileged = privileged;
        assert_eq!(ruling(&rules, &asked), Ruling::Deny);
    }
}

#[test]
fn deny_rules_follow_symlinks_and_allow_rules_do_not() {
    let file = RulesFile::new();
    let dir = file.dir.path().canonicalize().unwrap();
    std::fs::write(dir.join("real"), "").unwrap();
    symlink(dir.join("real"), dir.join("link")).unwrap();
    let (link, real) = (dir.join("link"), dir.join("real"));
    let (link, real) = (link.to_str().unwrap(), real.to_str().unwrap());
    let rules = file.rules(&format!("[[rule]]\nname = \"d\"\ndecision = \"deny\"\ncommand = [\"{link}\"]\n"));
    assert_eq!(ruling(&rules, &TestRequest::new(&[real])), Ruling::Deny);
    let rules = file.rules(&allow(&format!("[\"{link}\"]"), ""));
    assert_eq!(ruling(&rules, &TestRequest::new(&[real])), Ruling::Ask);
    symlink("/bin/sh", dir.join("tool")).unwrap();
    let error = file.load_error(&allow(&format!("[\"{}\"]", dir.join("tool").display()), ""));
    assert!(error.contains("runs other commands"), "{error}");
}

#[test]
fn an_error_has_a_position_and_denies_everything() {
    let file = RulesFile::new();
    let table = [
        ("x = 1", ", line 1, column 1: unknown key x"),
        ("[[rules]]", ", line 1, column 3: unknown key rules; do you mean rule?"),
        ("[rule]", ", line 1, column 1: begin each rule with [[rule]]"),
        ("rule = [1]", ", line 1, column 9: begin each rule with [[rule]]"),
        ("[[rule]]\nname = \"a\"\n", ", line 1, column 1: the rule has no decision"),
        (
            "[[rule]]\nname = \"a\"\n  comand = []",
            ", line 3, column 3: unknown key comand; do you mean command?",
        ),
        ("[[rule]]\ndecision = \"yes\"", ", line 2, column 12: a decision is \"allow\", \"ask\" or \"deny\""),
    ];
    for (text, error) in table {
        assert_eq!(file.load_error(text), error, "{text}");
    }
    let syntax = file.load_error("[[rule]]\nname = \"a\nx");
    assert!(syntax.starts_with(", line 2, column "), "{syntax}");
    let twice = file.load_error("[[rule]]\nname = \"a\"\nname = \"b\"");
    assert!(twice.starts_with(", line 3, column 1: duplicate key"), "{twice}");
}

#[test]
fn every_key_rejects_invalid_values() {
    let file = RulesFile::new();
    let deny = |rest: &str| format!("[[rule]]\nname = \"r\"\ndecision = \"deny\"\n{rest}\n");
    let table = [
        (deny("command = []"), "no program"),
        (deny("command = \"/opt/x\""), "command is a list"),
        (deny("command = [{ rest = true }]"), "can only be the last"),
        (deny("command = [\"x\"]"), "not an absolute path"),
        (deny("command = [\"/opt/../x\"]"), "not an absolute path"),
        (deny("command = [\"/opt/x\", []]"), "no alternatives"),
        (deny("command = [\"/opt/x\", [1]]"), "a token is"),
        (deny("command = [\"/opt/x\", 1]"), "a token is"),
        (deny("command = [\"/opt/x\", { any = false }]"), "written { any = true }"),
        (deny("command = [\"/opt/x\", { any = true, rest = true }]"), "written { rest = true }"),
        (deny("command = [\"/opt/x\", { an = true }]"), "do you mean any?"),
        (deny("command = [\"/opt/x\", { rest = true }, \"y\"]"), "can only be the last"),
        (deny("command = [\"/opt/x\"]\nreason_required = true"), "only for allow rules"),
        (allow("[{ any = true }]", ""), "must name the program"),
        (allow("[\"/opt/x\"]", "expires = 2026-01-01"), "a time with its offset"),
        (allow("[\"/opt/x\"]", "expires = \"2026-01-01T00:00:00Z\""), "a time with its offset"),
        (allow("[\"/opt/x\"]", "run_as = 0"), "run_as is a text"),
        (allow("[\"/opt/x\"]", "env = { \"A B\" = \"x\" }"), "cannot name a variable"),
        (allow("[\"/opt/x\"]", "env = { A = 1 }"), "A is a text"),
        (allow("[\"/opt/x\"]", "cwd = \"tmp\""), "not an absolute path"),
        (
            allow("[\"/opt/x\"]", "matches = [[\"/opt/x\", \"y\"]]"),
            "line 6, column 12: the rule does not match",
        ),
        (allow("[\"/opt/x\"]", "differs = [[\"/opt/x\"]]"), "the rule matches this example"),
        (allow("[\"/opt/x\"]", "differs = [[]]"), "a program at least"),
        (allow("[\"/opt/x\"]", "").replace("privileged = false\n", ""), "must set privileged"),
        (allow("[\"/opt/x\"]", "").replace("\"r\"", "\"a b\""), "a name has"),
        (allow("[\"/opt/x\"]", "").repeat(2), "line 8, column 8: a second rule has the name r"),
    ];
    for (text, expected) in table {
        let error = file.load_error(&text);
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn shells_and_interpreters_cannot_be_allowed() {
    let file = RulesFile::new();
    for program in
        ["/bin/sh", "/usr/bin/python3.11", "/usr/bin/env", "/usr/bin/find", "/usr/bin/git", "/opt/vim.tiny"]
    {
        let error = file.load_error(&allow(&format!("[\"{program}\", \"x\"]"), ""));
        assert!(error.contains("no rule can allow it"), "{error}");
        let error = file.load_error(&allow(&format!("[[\"/opt/fine\", \"{program}\"]]"), ""));
        assert!(error.contains("no rule can allow it"), "{error}");
        file.rules(&format!(
            "[[rule]]\nname = \"d\"\ndecision = \"deny\"\ncommand = [\"{program}\", {{ rest = true }}]\n"
        ));
    }
}

#[test]
fn a_file_writable_by_others_denies_everything() {
    let file = RulesFile::new();
    file.rules("");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let problem = || Rules::load(&file.path()).problem().map(str::to_owned);
    for wrong in [0o620, 0o602, 0o666] {
        mode(&file.path(), wrong);
        assert!(problem().unwrap().contains("it can be written by others"));
    }
    mode(&file.path(), 0o644);
    assert_eq!(problem(), None);
    for wrong in [0o770, 0o707, 0o1777] {
        mode(file.dir.path(), wrong);
        assert!(problem().unwrap().contains("its directory"), "{wrong:o}");
    }
    mode(file.dir.path(), 0o700);
    if outpost_sys::process::effective_uid() == 0 {
        chown(file.path(), Some(12345), None).unwrap();
        assert!(problem().unwrap().contains("it belongs to user 12345; it must belong to root"));
        chown(file.path(), Some(0), None).unwrap();
        chown(file.dir.path(), Some(12345), None).unwrap();
        assert!(problem().unwrap().contains("its directory"));
    }
}

#[test]
fn anything_but_a_regular_utf8_file_denies_everything() {
    let file = RulesFile::new();
    let other = file.dir.path().join("other.toml");
    std::fs::write(&other, "").unwrap();
    symlink(&other, file.path()).unwrap();
    let problem = || Rules::load(&file.path()).problem().unwrap_or_default().to_owned();
    assert!(problem().contains("not a regular file"));
    std::fs::remove_file(file.path()).unwrap();
    std::fs::create_dir(file.path()).unwrap();
    assert!(problem().contains("not a regular file"));
    std::fs::remove_dir(file.path()).unwrap();
    file.load(&"#".repeat((1 << 20) + 1));
    assert!(problem().contains("more than 1048576 bytes"));
    std::fs::write(file.path(), b"# \xff").unwrap();
    assert!(problem().contains("byte 3 is not UTF-8"));
}

#[test]
fn problems_are_printable() {
    let file = RulesFile::new();
    for text in [
        "\"\u{1b}[2J\u{202e}\" = 1",
        "\"\\u001b[2J\" = 1",
        "x = \u{1b}",
        "[[rule]]\nname = \"\u{9b}\"\ndecision = \"ask\"",
    ] {
        let error = file.load_error(text);
        assert!(error.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{error}");
    }
}
