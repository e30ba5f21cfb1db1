//! Characters: deceptive ones are refused in every field. Newlines and tabs are allowed in scripts.

use crate::kit::{
    broker, check, check_concurrently, error, in_every_field, ok, ping, plain, same, skip_on_original, with,
};
use outpost_testkit::stamp;
use serde_json::json;

/// Characters that are invisible, ambiguous, or control a terminal.
const DECEPTIVE: &[(&str, &[char])] = &[
    ("delete", &['\u{7f}']),
    ("C1 controls", &['\u{80}', '\u{85}', '\u{90}', '\u{9b}', '\u{9d}', '\u{9f}']),
    ("separators of lines and paragraphs", &['\u{2028}', '\u{2029}']),
    (
        "formats of Latin and Arabic",
        &['\u{ad}', '\u{600}', '\u{605}', '\u{61c}', '\u{6dd}', '\u{70f}', '\u{890}', '\u{8e2}'],
    ),
    (
        "formats that are invisible",
        &['\u{180e}', '\u{2060}', '\u{2061}', '\u{2064}', '\u{206a}', '\u{206f}', '\u{feff}'],
    ),
    ("annotations", &['\u{fff9}', '\u{fffa}', '\u{fffb}']),
    (
        "formats beyond the first plane",
        &['\u{110bd}', '\u{110cd}', '\u{13430}', '\u{1bca0}', '\u{1d173}', '\u{1d17a}'],
    ),
    ("private use", &['\u{e000}', '\u{f8ff}', '\u{f0000}', '\u{10fffd}']),
    ("tags", &['\u{e0001}', '\u{e0020}', '\u{e0041}', '\u{e007f}']),
];

fn refused(kind: &str) {
    let broker = broker();
    let (_, characters) = DECEPTIVE.iter().find(|(name, _)| *name == kind).unwrap();
    let rows: Vec<_> =
        characters.iter().flat_map(|character| in_every_field(&format!("a{character}b"))).collect();
    check_concurrently(&broker, &rows);
}

macro_rules! each_kind_is_refused {
    ($($name:ident: $kind:literal,)*) => {
        $(
            #[test]
            fn $name() {
                if !skip_on_original() {
                    refused($kind);
                }
            }
        )*
    };
}

each_kind_is_refused! {
    delete_is_refused: "delete",
    c1_controls_are_refused: "C1 controls",
    separators_are_refused: "separators of lines and paragraphs",
    latin_and_arabic_formats_are_refused: "formats of Latin and Arabic",
    invisible_formats_are_refused: "formats that are invisible",
    annotations_are_refused: "annotations",
    formats_beyond_the_first_plane_are_refused: "formats beyond the first plane",
    private_use_is_refused: "private use",
    tags_are_refused: "tags",
}

#[test]
fn the_time_field_is_checked_too() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let broker = broker();
    let now = stamp(0);
    let (date, clock) = now.split_once('T').unwrap();
    let refusal = error("a", "time contains forbidden control/bidi characters");
    for bad in ['\u{1b}', '\u{202e}', '\u{9b}', '\u{ad}', '\n'] {
        // The original skips characters that are not digits, and displays them.
        let time = format!("{date}-{bad}T{clock}");
        check(&broker, &[(with(ping("a"), json!({"time": time})), refusal.clone())]);
    }
}

#[test]
fn a_script_may_contain_newlines_and_tabs() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let mut broker = broker();
    let script = "if true; then\n\tprintf '%s' \"$0\"\nfi\n";
    let request = plain("a", json!([["sh", "-c", script, "x\ty\nz"]]));
    same(&broker.run(&request), &ok("a", &[(0, "")], "x\ty\nz"));
}
