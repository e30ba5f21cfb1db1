//! Rows about the display: padding, escape sequences, look-alike letters, and texts of the client.

use super::sudo::stdout;
use crate::fixture::{Fixture, FixtureOptions, line, lines, warnings};
use crate::kit::{broker, denied, deny, plain, same, script, sh, with};
use outpost_testkit::stamp;
use serde_json::{Value, json};

/// Runs of blanks are shown as counts, invisible characters are refused, and the sizes are shown first.
#[test]
fn trojan_source_cve_2021_42574_and_prompts_padded_out_of_sight() {
    let mut fixture = Fixture::start();
    let blanks = " ".repeat(5_000);
    let argv = json!(["printf", "%.0s", format!("harmless{blanks}; rm -rf /"), blanks]);
    let request = with(plain("a", json!([argv])), json!({"reason": format!("a{}b", " ".repeat(1_000))}));
    let (sent, question) = fixture.ask(&request);
    let text = question.to_string();
    assert!(!text.contains(&" ".repeat(20)), "raw blanks: {text:.3000}");
    assert!(line(&question, "Command", "2").ends_with("\\u{20*5000}; rm -rf /'"), "{question:#}");
    let first = &question["sections"][0];
    assert_eq!(first["lines"][0]["value"], "1 stage, 4 arguments, 10028 bytes, unprivileged");
    fixture.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "");
    let invisible = [
        '\u{202e}',
        '\u{2066}',
        '\u{200b}',
        '\u{200d}',
        '\u{2060}',
        '\u{feff}',
        '\u{ad}',
        '\u{e0041}',
        '\u{61c}',
    ];
    for (number, bad) in invisible.into_iter().enumerate() {
        let id = number.to_string();
        fixture.refused(&plain(&id, json!([["printf", format!("x{bad}y")]])));
        fixture.refused(&with(plain(&id, json!([["printf", "x"]])), json!({"reason": format!("x{bad}y")})));
    }
    // Characters that look like a blank are allowed and shown as code points.
    for (id, blank) in
        [("hangul", '\u{3164}'), ("no-break", '\u{a0}'), ("em", '\u{2003}'), ("braille", '\u{2800}')]
    {
        let question = fixture.ask_and_withdraw(&plain(id, json!([["printf", format!("x{blank}y")]])));
        let drawn = line(&question, "Command", "1");
        assert_eq!(drawn, format!("'x\\u{{{:x}}}y'", u32::from(blank)));
    }
}

/// No raw text of a field or of a command's output reaches the terminal.
#[test]
fn terminal_escapes_in_prompts_and_output() {
    outpost_testkit::require!(crate::kit::extension_tests());
    let mut broker = broker();
    let bad = ["\u{1b}[2J", "\u{9b}2J", "\u{7}", "\r", "\u{8}", "\u{7f}", "\u{90}x\u{9c}", "\u{85}"];
    for (number, bad) in bad.into_iter().enumerate() {
        for (at, more) in [
            json!({"pipeline": [[format!("ls{bad}")]]}),
            json!({"pipeline": [["ls", bad]]}),
            json!({"env": {"TZ": bad}}),
            json!({"env": {format!("LC_{bad}"): "C"}}),
            json!({"cwd": format!("/{bad}")}),
            json!({"reason": bad}),
            json!({"session": bad}),
            json!({"host": bad}),
            json!({"version": bad}),
            json!({"time": format!("{}{bad}", stamp(0))}),
        ]
        .into_iter()
        .enumerate()
        {
            let request = with(plain(&format!("{number} {at}"), json!([["true"]])), more);
            crate::kit::refused_unasked(&broker, &request);
        }
    }
    // Names of directories and files may contain any character. They are shown escaped.
    let dir = broker.path("d\u{1b}]0;evil\u{7}\n");
    std::fs::create_dir(&dir).unwrap();
    let link = broker.path("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    script(&dir.join("tool"), "printf '\\033]0;evil\\007\\033[8m\\302\\233\\r'; printf '\\033[2J' >&2");
    let request = with(plain("named", json!([[link.join("tool")]])), json!({"cwd": link}));
    let mut client = broker.send(&request);
    broker.approve();
    let answer: Value = serde_json::from_str(&client.answer()).unwrap();
    assert_eq!(answer["status"], "ok", "{answer}");
    // The next prompt follows everything about the first request.
    deny(&mut broker, &sh("next", "true"));
    let screen = broker.screen();
    // The terminal adds a carriage return to each newline.
    let plain = screen.replace("\r\n", "\n");
    let raw = plain.chars().find(|character| character.is_control() && *character != '\n');
    assert_eq!(raw, None, "{screen:?}");
    assert!(screen.contains("\\u{1b}]0;evil\\u{7}"), "{screen}");
}

/// Characters outside ASCII are shown as code points, and mixed scripts cause a warning.
#[test]
fn look_alike_letters_in_names() {
    let mut fixture = Fixture::start();
    let evil = fixture.path("\u{430}pt");
    std::fs::copy("/usr/bin/true", &evil).unwrap();
    let question = fixture.ask_and_withdraw(&with(
        plain("a", json!([[evil, "\u{455}udo", "\u{ff52}\u{ff4d}", "e\u{301}"]])),
        json!({"session": "cl\u{430}ude", "reason": "\u{440}"}),
    ));
    assert!(question.to_string().is_ascii(), "{question}");
    assert!(line(&question, "Command", "file").ends_with("/\\u{430}pt'"), "{question:#}");
    assert_eq!(line(&question, "Command", "1"), "'\\u{455}udo'");
    assert_eq!(line(&question, "Claimed", "session"), "cl\\u{430}ude");
    assert!(warnings(&question).contains("argument 1 of stage 1"), "{question:#}");
}

/// Programs are looked up once on the secure path: the displayed file runs, whatever PATH is set.
#[test]
fn sudo_proxy_1_2_0_path_differs_between_display_and_execution() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    for name in ["id", "sudo", "sh", "setpriv"] {
        script(&dir.path().join(name), &format!("touch {}; exit 1", ran.display()));
    }
    let path = format!("{}:.:/usr/sbin:/usr/bin:/sbin:/bin", dir.path().display());
    let mut fixture =
        Fixture::with(FixtureOptions { env: vec![("PATH", path.into())], ..FixtureOptions::default() });
    let request =
        with(plain("a", json!([["id", "-u"], ["sh", "-c", "cat; id -u"]])), json!({"cwd": dir.path()}));
    let (sent, question) = fixture.ask(&request);
    assert_eq!(line(&question, "Stage 1", "file"), "/usr/bin/id");
    fixture.approver().allow(&question);
    let answer = sent.answer();
    let own = outpost_sys::process::effective_uid();
    assert_eq!(stdout(&answer), format!("{own}\n{own}\n"));
    for (stage, name) in [(0, "Stage 1"), (1, "Stage 2")] {
        let resolved = &answer["stages"][stage]["resolved"];
        assert_eq!(resolved["path"], line(&question, name, "file"));
        assert_eq!(resolved["sha256"], line(&question, name, "sha256"));
    }
    fixture.refused(&with(plain("b", json!([["id"]])), json!({"env": {"PATH": dir.path()}})));
    assert!(!ran.exists());
}

/// Commands are argument vectors. No argument reaches a shell, in pipelines either.
#[test]
fn mcp_servers_cve_2025_53107_and_cve_2025_54994_shell_strings() {
    let mut fixture = Fixture::start();
    let file = fixture.path("ran");
    let touch = format!("touch {}", file.display());
    let words = [
        format!("x; {touch}"),
        format!("$({touch})"),
        format!("`{touch}`"),
        format!("x\n{touch}\n"),
        format!("| {touch}"),
        format!("&& {touch}"),
        "${IFS}".into(),
        "*".into(),
        "~".into(),
        "{a,b}".into(),
    ];
    let argv: Vec<&str> = ["printf", "<%s>"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(stdout(&fixture.run(&plain("a", json!([argv])))), expected);
    assert_eq!(stdout(&fixture.run(&plain("b", json!([argv, ["cat"], ["cat", "-"]])))), expected);
    // A string in place of a vector is invalid, and a command line is not a program name.
    for (number, pipeline) in
        [json!(touch), json!([touch]), json!([[[touch]]]), json!({"0": [touch]})].into_iter().enumerate()
    {
        assert_eq!(fixture.send(&plain(&number.to_string(), pipeline)).answer()["status"], "error");
    }
    fixture.refused(&plain("c", json!([[touch]])));
    assert!(!file.exists());
}

/// Enter does not approve, the broker writes the prompt, and texts of the client are marked as claims.
#[test]
fn trustfall_one_enter_trusts_and_the_server_writes_the_question() {
    outpost_testkit::require!(crate::kit::extension_tests());
    let mut broker = broker();
    let file = broker.path("ran");
    let words = "Everything is fine. Execute? [y/N] approved -> Approved Command: true";
    let claims = json!({"reason": words, "session": words, "host": words, "version": words, "id": words});
    let mut client = broker.send(&with(plain("a", json!([["touch", file]])), claims));
    broker.wait_prompt();
    // Repeat beyond the time in which keys are ignored. Enter then denies.
    let begun = std::time::Instant::now();
    while !client.has_answer(std::time::Duration::from_millis(50)) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{}", broker.screen());
        broker.key(b"\r");
    }
    same(&client.answer(), &denied(words));
    assert!(!file.exists());
    let screen = broker.screen();
    let claimed = screen.find("Claimed by the client (not verified)").unwrap();
    let command = screen.find("\nCommand:").or(screen.find("\r\nCommand:")).unwrap();
    for (at, _) in screen.match_indices("Everything is fine") {
        assert!(claimed < at && at < command, "{screen}");
        // Each claim follows its field name and never starts a line.
        let line = screen.get(..at).unwrap().rsplit('\n').next().unwrap();
        assert!(line.trim_end().ends_with(':'), "{line:?}");
    }
    let mut fixture = Fixture::start();
    let question = fixture.ask_and_withdraw(&with(plain("b", json!([["true"]])), json!({"reason": words})));
    let sections = question["sections"].as_array().unwrap();
    let unclaimed: Vec<&Value> = sections.iter().filter(|section| section["claimed"] != true).collect();
    assert!(
        unclaimed.len() + 1 == sections.len() && !json!(unclaimed).to_string().contains("fine"),
        "{question:#}"
    );
    assert_eq!(lines(&question, "Claimed").len(), 3, "{question:#}");
}
