//! Snapshot tests of every subcommand: each is entered in a tmux pane with a real daemon, and the screen is compared with
//! `screens/NAME.txt`, one file per scenario.
//!
//! The rules in `rules` replace values that vary between runs, such as pids, times, ids and paths.
//! After an intended change, `OUTPOST_WRITE_SCREENS=1 cargo nextest run -E 'test(screens)'` writes the snapshots anew, and
//! git shows the differences.

mod pane;
mod rules;
mod scenario;
mod scenarios;

use crate::support::outpost;
use scenario::{CAPTION, Scenario, folder};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Defines a test for each scenario. Its name is also that of its snapshot file.
macro_rules! scenarios {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                let mut scenario = Scenario::start();
                scenarios::$name(&mut scenario);
                scenario.compare(stringify!($name));
            }
        )*
        const SCENARIOS: &[&str] = &[$(stringify!($name)),*];
    };
}

scenarios!(
    without_a_daemon,
    the_daemon,
    processes,
    terminals,
    top,
    configuration,
    approvals,
    sessions,
    local_host,
    faces,
    remote_host
);

/// The subcommands that the help of this command lists.
fn listed(command: &[String]) -> Vec<String> {
    let output = Command::new(outpost()).arg("help").args(command).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // Continuation lines have a deeper indent.
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Every command without subcommands, with all its words.
fn all_commands(above: &[String]) -> BTreeSet<String> {
    let below = listed(above).into_iter().map(|name| [above, &[name]].concat());
    let leaves = below.flat_map(|command| {
        let is_help = command.last().is_some_and(|name| name == "help");
        let inner = if is_help { BTreeSet::new() } else { all_commands(&command) };
        if inner.is_empty() { BTreeSet::from([command.join(" ")]) } else { inner }
    });
    leaves.collect()
}

/// Every command that a snapshot shows.
fn shown_commands(all: &BTreeSet<String>) -> BTreeSet<String> {
    let screens =
        SCENARIOS.iter().map(|name| fs::read_to_string(scenario::screen_file(name)).unwrap_or_default());
    let screens: Vec<String> = screens.collect();
    let captions = screens.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix(CAPTION));
    let entered: Vec<Vec<&str>> = captions.map(|caption| caption.split_whitespace().collect()).collect();
    let is_shown = |command: &&String| {
        let words: Vec<&str> = ["outpost"].into_iter().chain(command.split(' ')).collect();
        entered.iter().any(|line| line.windows(words.len()).any(|part| part == words))
    };
    all.iter().filter(is_shown).cloned().collect()
}

#[test]
fn every_command_has_a_screen_and_every_screen_a_test() {
    let all = all_commands(&[]);
    assert!(all.contains("ps") && all.contains("approvals deny") && all.contains("config help"), "{all:?}");
    let missing: Vec<String> = all.difference(&shown_commands(&all)).cloned().collect();
    assert!(
        missing.is_empty(),
        "no screen of outpost {missing:?}: add it to a scenario in screens/scenarios.rs"
    );
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> =
        files.filter_map(|name| Some(name.strip_suffix(".txt")?.to_owned())).collect();
    assert_eq!(
        files,
        SCENARIOS.iter().map(|name| (*name).to_owned()).collect(),
        "snapshot files and scenarios"
    );
}

/// The screen after this line, with colours and other attributes.
fn looks(scenario: &mut Scenario, line: &str) -> String {
    let pane = scenario.pane();
    pane.enters(line);
    pane.wait_prompt();
    pane.seen_with_looks()
}

#[test]
fn output_has_colours_only_on_a_terminal_without_no_color() {
    let mut scenario = Scenario::start();
    for line in ["outpost pss", "outpost --help"] {
        assert!(looks(&mut scenario, line).contains('\u{1b}'), "{line} has no emphasis");
        for plain in [format!("NO_COLOR=1 {line}"), format!("{line} 2>&1 | cat")] {
            let seen = looks(&mut scenario, &plain);
            assert!(!seen.contains('\u{1b}'), "{seen}");
        }
    }
    for (line, is_coloured) in [("outpost serve", true), ("NO_COLOR=1 outpost serve", false)] {
        let pane = scenario.pane();
        pane.enters(line);
        pane.wait_seen("try: outpost approve");
        // A reload makes the daemon log a line.
        scenario.stdout_of(&["reload"]);
        pane.wait_seen("the configuration was reloaded");
        let seen = pane.seen_with_looks();
        assert_eq!(seen.contains('\u{1b}'), is_coloured, "{seen}");
        pane.presses("C-c");
        pane.wait_prompt();
    }
}

#[test]
fn full_screens_always_have_bars_and_have_colours_without_no_color() {
    const BAR: &str = "\u{1b}[7m";
    /// Two encodings of red that tmux may write.
    const RED: [&str; 2] = ["\u{1b}[31m", "\u{1b}[38;5;1m"];
    let mut scenario = Scenario::start();
    for (line, is_coloured) in [("outpost top", true), ("NO_COLOR=1 outpost top", false)] {
        scenario.serve();
        let pane = scenario.pane();
        pane.enters(line);
        pane.wait_seen("none pending");
        assert!(pane.seen_with_looks().contains(BAR), "{}", pane.seen_with_looks());
        scenario.stdout_of(&["stop"]);
        pane.wait_seen("DAEMON UNREACHABLE");
        let seen = pane.seen_with_looks();
        assert_eq!(RED.iter().any(|red| seen.contains(red)), is_coloured, "{}", seen.escape_debug());
        pane.presses("q");
        let left = pane.wait_prompt();
        assert!(!left.contains("DAEMON") && !pane.seen_with_looks().contains('\u{1b}'), "{left}");
    }
}
