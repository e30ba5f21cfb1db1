//! Every subcommand as a user sees it: entered at a prompt in a pane of tmux, before a real daemon, and the screen compared
//! with the one that is stored in `screens/NAME.txt`, a file for each story.
//!
//! What differs from run to run (numbers of processes, times, ids, paths) is made the same by the rules of `rules`.
//! After a change that is meant: `OUTPOST_WRITE_SCREENS=1 cargo nextest run -E 'test(screens)'` writes the screens down as
//! they are seen, and git shows what became of them.

mod pane;
mod rules;
mod stories;
mod story;

use crate::support::outpost;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use story::{CAPTION, Story, folder};

/// A test for each, and its name, which is also that of its screens.
macro_rules! stories {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                let mut story = Story::begin();
                stories::$name(&mut story);
                story.compare(stringify!($name));
            }
        )*
        const STORIES: &[&str] = &[$(stringify!($name)),*];
    };
}

stories!(
    without_a_daemon,
    the_daemon,
    processes,
    terminals,
    top,
    configuration,
    approvals,
    sessions,
    the_host,
    faces,
    elsewhere
);

/// The commands below this one, as its help lists them.
fn listed(command: &[String]) -> Vec<String> {
    let output = Command::new(outpost()).arg("help").args(command).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // What goes on from the line before is farther to the right.
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Every command that does something, by all its words.
fn all_commands(above: &[String]) -> BTreeSet<String> {
    let below = listed(above).into_iter().map(|name| [above, &[name]].concat());
    let leaves = below.flat_map(|command| {
        let is_help = command.last().is_some_and(|name| name == "help");
        let inner = if is_help { BTreeSet::new() } else { all_commands(&command) };
        if inner.is_empty() { BTreeSet::from([command.join(" ")]) } else { inner }
    });
    leaves.collect()
}

/// Every command that a stored screen is about.
fn shown_commands(all: &BTreeSet<String>) -> BTreeSet<String> {
    let screens = STORIES.iter().map(|name| fs::read_to_string(story::stored(name)).unwrap_or_default());
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
        "no screen of outpost {missing:?}: a story in screens/stories.rs has to show it"
    );
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> =
        files.filter_map(|name| Some(name.strip_suffix(".txt")?.to_owned())).collect();
    assert_eq!(files, STORIES.iter().map(|name| (*name).to_owned()).collect(), "stored screens and stories");
}

/// What a line leaves on the screen, with its colours and the like.
fn looks(story: &mut Story, line: &str) -> String {
    let pane = story.pane();
    pane.enters(line);
    pane.wait_prompt();
    pane.seen_with_looks()
}

#[test]
fn what_is_written_has_colours_on_a_terminal_only_and_for_those_who_want_them() {
    let mut story = Story::begin();
    for line in ["outpost pss", "outpost --help"] {
        assert!(looks(&mut story, line).contains('\u{1b}'), "{line} has no emphasis");
        for plain in [format!("NO_COLOR=1 {line}"), format!("{line} 2>&1 | cat")] {
            let seen = looks(&mut story, &plain);
            assert!(!seen.contains('\u{1b}'), "{seen}");
        }
    }
    for (line, is_coloured) in [("outpost serve", true), ("NO_COLOR=1 outpost serve", false)] {
        let pane = story.pane();
        pane.enters(line);
        pane.wait_seen("try: outpost approve");
        // Has it say something.
        story.said(&["reload"]);
        pane.wait_seen("the configuration was read again");
        let seen = pane.seen_with_looks();
        assert_eq!(seen.contains('\u{1b}'), is_coloured, "{seen}");
        pane.presses("C-c");
        pane.wait_prompt();
    }
}

#[test]
fn full_screens_have_bars_for_everybody_and_colours_for_those_who_want_them() {
    const BAR: &str = "\u{1b}[7m";
    /// As tmux writes it, of whichever kind it was.
    const RED: [&str; 2] = ["\u{1b}[31m", "\u{1b}[38;5;1m"];
    let mut story = Story::begin();
    for (line, is_coloured) in [("outpost top", true), ("NO_COLOR=1 outpost top", false)] {
        story.serve();
        let pane = story.pane();
        pane.enters(line);
        pane.wait_seen("nothing waits for a human");
        assert!(pane.seen_with_looks().contains(BAR), "{}", pane.seen_with_looks());
        story.said(&["stop"]);
        pane.wait_seen("THE DAEMON IS AWAY");
        let seen = pane.seen_with_looks();
        assert_eq!(RED.iter().any(|red| seen.contains(red)), is_coloured, "{}", seen.escape_debug());
        pane.presses("q");
        let left = pane.wait_prompt();
        assert!(!left.contains("DAEMON") && !pane.seen_with_looks().contains('\u{1b}'), "{left}");
    }
}
