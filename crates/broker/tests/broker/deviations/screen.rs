//! The screen shows the whole request unambiguously, and no raw output of commands.

use crate::kit::{broker, denied, deny, ok, plain, same, sh, with};
use serde_json::json;

/// The letters and digits of a screen, without control sequences.
fn letters(screen: &str) -> String {
    let mut text = String::new();
    let mut characters = screen.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\x1b' && characters.peek() == Some(&'[') {
            characters.next();
            // Skip to the final byte of the control sequence.
            while characters.next().is_some_and(|next| !('@'..='~').contains(&next)) {}
        } else if character.is_ascii_alphanumeric() {
            text.push(character);
        }
    }
    text
}

#[test]
fn a_long_command_is_shown_in_full() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let words: Vec<String> = (0..1_000).map(|number| format!("w{number:04}x")).collect();
    let mut argv = vec!["true".to_owned()];
    argv.extend(words.clone());
    let mut client = broker.send(&plain("a", json!([argv])));
    broker.wait_prompt();
    let screen = broker.screen();
    assert!(!screen.contains("more chars hidden"), "{screen}");
    let letters = letters(&screen);
    let mut from = 0;
    for word in words {
        let at = letters.get(from..).unwrap().find(&word);
        from += at.unwrap_or_else(|| panic!("{word} is missing: {screen}")) + word.len();
    }
    broker.deny();
    same(&client.answer(), &denied("a"));
}

#[test]
fn a_long_argument_is_shown_in_full() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let word: String = (0..1_000).map(|number| format!("w{number:04}x")).collect();
    let mut client = broker.send(&plain("a", json!([["true", word]])));
    broker.wait_prompt();
    let screen = broker.screen();
    assert!(letters(&screen).contains(&word), "{screen}");
    broker.deny();
    same(&client.answer(), &denied("a"));
}

#[test]
fn an_argument_cannot_add_lines_to_the_screen() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let mut client = broker.send(&plain("a", json!([["printf", "%s", "one\nCommand: another\ttab"]])));
    broker.wait_prompt();
    let screen = broker.screen();
    let forged = screen.lines().any(|line| line.trim_start().starts_with("Command: another"));
    assert!(!forged && screen.contains("\\nCommand: another\\ttab"), "{screen}");
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, "")], "one\nCommand: another\ttab"));
}

#[test]
fn look_alike_letters_are_escaped() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    // `apt` with a Cyrillic first letter.
    let mut client =
        broker.send(&with(plain("a", json!([["printf", "\u{430}pt"]])), json!({"reason": "\u{430}pt"})));
    broker.wait_prompt();
    let screen = broker.screen();
    assert!(!screen.contains("\u{430}pt") && screen.contains("430"), "{screen}");
    broker.approve();
    same(&client.answer(), &ok("a", &[(0, "")], "\u{430}pt"));
}

#[test]
fn output_of_a_command_never_reaches_the_terminal_raw() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    // Sequences for title, colour and cursor, with ESC and with a C1 control, on stdout and stderr.
    let script = "printf '\\033]0;evil\\007\\033[31mevil\\033[2Jevil\\302\\2332Jevil\\rfake\\n'";
    let _answer = broker.run(&sh("a", &format!("{script}; {script} >&2; exit 1")));
    // The next prompt follows everything about the first request.
    deny(&mut broker, &sh("b", "true"));
    let screen = broker.screen();
    for sequence in ["\x1b]0;evil", "\x1b[31mevil", "\x1b[2Jevil", "\u{9b}2Jevil", "\rfake"] {
        assert!(!screen.contains(sequence), "{sequence:?} was drawn: {screen:?}");
    }
}
