//! Any text as a rules file yields rules, or an error whose position is in the text. No rules allow a shell.

#![no_main]

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use outpost_approvals::rules::{Rules, Ruling, RuleInput};
use std::collections::BTreeMap;

fuzz_target!(|text: &str| {
    let rules = match Rules::from_text(text) {
        Ok(rules) => rules,
        Err(mistake) => return check_position(text, &mistake.to_string()),
    };
    let arguments = ["-c".to_owned(), "id".to_owned()];
    let (env, now) = (BTreeMap::new(), Timestamp::now());
    for program in ["/usr/bin/sh", "/usr/bin/python3.13", "/usr/bin/env", "/usr/bin/sudo"] {
        for privileged in [false, true] {
            let subject = RuleInput {
                stages: &[(program, &arguments)],
                privileged,
                run_as: "root",
                session: "unknown",
                env: &env,
                cwd: "/",
                has_reason: true,
            };
            assert_ne!(rules.evaluate(&subject, now).ruling, Ruling::Allow, "{program}");
        }
    }
});

fn check_position(text: &str, mistake: &str) {
    let (position, why) = mistake.split_once(": ").unwrap();
    let (line, column) = position.strip_prefix("line ").unwrap().split_once(", column ").unwrap();
    let (line, column): (usize, usize) = (line.parse().unwrap(), column.parse().unwrap());
    let length = text.split('\n').nth(line - 1).map(|line| line.chars().count()).unwrap();
    // Right after the last character something may be missing.
    assert!((1..=length + 1).contains(&column), "{mistake}");
    assert!(!why.is_empty() && why.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{mistake}");
}
