//! The full screen without a terminal: samples and keys in, pictures out.

use super::app::{App, Dialog, Sort, View};
use super::draw::draw;
use super::input::Action;
use super::sampler::{News, Sample};
use crate::cli::fullscreen::{Looks, Size};
use crate::tty::keys::{Key, Move};
use outpost_control::wire::{ProcessInfo, Status};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::json;
use std::time::{Duration, Instant};

const NOW_MS: u64 = 1_000_000;

#[derive(Clone, Copy)]
struct Fake {
    id: &'static str,
    cpu_ms: u64,
    output: u64,
    exited: bool,
}

fn running(id: &'static str, cpu_ms: u64, output: u64) -> Fake {
    Fake { id, cpu_ms, output, exited: false }
}

fn process(fake: &Fake) -> ProcessInfo {
    let exit = fake.exited.then(|| json!({"code": 3, "userMs": 1, "systemMs": 1, "rssMaxKb": 1}));
    serde_json::from_value(json!({
        "process": format!("n{}", fake.id), "face": "control", "scope": "", "id": fake.id, "pid": 42,
        "state": "running", "exit": exit, "command": ["sh", "-c", format!("work {}", fake.id)],
        "directory": "/", "terminal": false, "startedMs": NOW_MS - 61_000, "startedBy": "uid 0",
        "rssBytes": 1_500_000, "cpuMs": fake.cpu_ms, "outputBytes": fake.output, "keptBytes": fake.output,
        "firstSeq": 1, "lastSeq": 9, "stdinAccepted": 0, "readers": 1, "stalled": false,
    }))
    .unwrap()
}

fn status(worker: u32) -> Status {
    serde_json::from_value(json!({
        "version": "1.2.3", "workerPid": worker, "keeperPid": 7, "processes": 1, "running": 1,
        "worker": {"rssBytes": 14_000_000, "ageMs": 120_000}, "keeper": {"rssBytes": 2_000_000, "ageMs": 7_200_000},
        "waiting": {"questions": 2, "oldestMs": 32_000},
    }))
    .unwrap()
}

fn session(path: &str) -> [String; 7] {
    ["1f3ac0de", "claude", "code", "busy", "0", "2", path].map(str::to_owned)
}

/// An app with a clock of its own.
struct Stage {
    app: App,
    now: Instant,
}

impl Stage {
    fn sized(columns: u16, rows: u16) -> Stage {
        Stage { app: App::new(Size { columns, rows }, false), now: Instant::now() }
    }

    /// Half a second later there are these.
    fn sample(&mut self, fakes: &[Fake]) {
        self.now += Duration::from_millis(500);
        self.app.hear(News::Sample(Box::new(Sample {
            at: self.now,
            now_ms: NOW_MS,
            status: status(8),
            processes: fakes.iter().map(process).collect(),
            sessions: Ok(vec![session("/srv/project")]),
        })));
    }

    fn press(&mut self, keys: &[u8]) -> Option<Action> {
        let key = |key: &u8| if *key == 0x1b { Key::Escape } else { Key::Byte(*key) };
        keys.iter().map(|byte| self.app.key(key(byte))).last().flatten()
    }

    fn picture(&self) -> String {
        let Size { columns, rows } = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let drawn = terminal.draw(|frame| draw(frame, &self.app, Looks { coloured: false })).unwrap();
        assert!(drawn.buffer.content.iter().all(|cell| cell.fg == Color::Reset));
        let cells: Vec<&str> = drawn.buffer.content.iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(columns)).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
    }
}

#[test]
fn rates_are_of_the_last_interval_and_the_busiest_comes_first() {
    let mut stage = Stage::sized(110, 18);
    stage.sample(&[running("idle", 5000, 10), running("busy", 100, 1000)]);
    assert!(stage.picture().contains("        -        1  sh -c work busy"), "{}", stage.picture());
    let ended = Fake { exited: true, ..running("short", 0, 500) };
    stage.sample(&[running("idle", 5000, 10), running("busy", 350, 3000), ended]);
    let expected = "\
outpost 1.2.3  keeper 7 up 2h, 2.0MB  worker 8 up 2m, 14.0MB
Processes  2 running, 1 ended; started 2.0/s, ended 2.0/s; output 5.0kB/s
Sessions   1, 1 busy
Approvals  2 wait, the oldest for 32s: outpost approve (what it is, only approvers are told)
  ID        FACE          PID  STATE      AGE  [CPU]    MEMORY   OUTPUT       RATE  READERS  COMMAND
> busy      control        42  running     1m    50%     1.5MB    3.0kB    4.0kB/s        1  sh -c work busy
  idle      control        42  running     1m     0%     1.5MB      10B       0B/s        1  sh -c work idle
";
    let picture = stage.picture();
    let seen: Vec<&str> = picture.lines().collect();
    assert_eq!(seen[..7], expected.lines().collect::<Vec<_>>()[..], "{picture}");
    assert_eq!(
        seen[14..16],
        [
            "  SESSION   AGENT   MODE  STATUS  WAITING  UNREAD  PATH",
            "  1f3ac0de  claude  code  busy    0        2       /srv/project"
        ]
    );
    assert!(seen[17].starts_with("Enter details  a attach  k end"), "{picture}");
}

#[test]
fn a_screen_of_any_size_is_drawn_and_no_text_of_others_reaches_it_as_it_is() {
    let hostile = Fake { id: "a\u{1b}[2J\u{202e}", ..running("", 1, 1) };
    for columns in [1, 2, 3, 7, 20, 39, 40, 80, 99, 100, 250] {
        for rows in [1, 2, 3, 5, 6, 9, 10, 15, 16, 30] {
            let mut stage = Stage::sized(columns, rows);
            stage.picture();
            stage.sample(&[hostile, running("b", 1, 1)]);
            stage.app.sessions = Ok(vec![session("/b"), session("/c"), session("/\u{1b}]0;x\u{7}\n")]);
            stage.app.selected = Some("na\u{1b}[2J\u{202e}".into());
            for keys in [&b""[..], b"\r", b"\x1bk", b"n/x\x1b", b"/\xff\x1b"] {
                stage.press(keys);
                stage.app.key(Key::Move(Move::PageDown));
                let picture = stage.picture();
                let is_harmless = |one: char| one == '\n' || (!one.is_control() && one != '\u{202e}');
                assert!(picture.chars().all(is_harmless), "{columns}x{rows} {picture:?}");
            }
            stage.app.hear(News::Away { why: "\u{1b}[2J".into() });
            let picture = stage.picture();
            assert!(columns < 21 || picture.starts_with("THE DAEMON IS AWAY"), "{columns}x{rows} {picture}");
        }
    }
}

#[test]
fn the_name_and_what_is_asked_are_in_sight_on_small_screens() {
    let mut stage = Stage::sized(40, 5);
    stage.sample(&[running("a", 1, 1), running("b", 1, 1)]);
    let picture = stage.picture();
    let lines: Vec<&str> = picture.lines().collect();
    assert!(
        lines[1].starts_with("  ID ") && lines[2].starts_with("> a ") && lines[3].starts_with("  b "),
        "{picture}"
    );
    assert!(lines[2].contains("sh -c work a"), "{picture}");
    stage.press(b"k");
    assert!(stage.picture().contains("\ny ends a (pid 42) and everything it s..."), "{}", stage.picture());
}

#[test]
fn a_process_is_ended_by_two_keys_and_by_no_paste() {
    let mut stage = Stage::sized(80, 24);
    stage.sample(&[running("a", 1, 1), running("b", 9, 9)]);
    stage.app.selected = Some("nb".into());
    assert_eq!(stage.press(b"kn"), None);
    assert_eq!((stage.press(b"y"), &stage.app.dialog), (None, &Dialog::None));
    stage.press(b"k");
    assert_eq!(stage.app.key(Key::Pasted(b'y')), None);
    assert!(stage.picture().contains("y ends b (pid 42)"), "{}", stage.picture());
    // It stays about the same one, whatever comes and goes.
    stage.sample(&[running("a", 1, 1)]);
    let end = Action::End { process: "nb".into(), name: "b".into() };
    assert_eq!(stage.press(b"y"), Some(end));
    stage.app.hear(News::Ended { what: "b: ended".into() });
    assert!(stage.picture().contains("b: ended"));
    let gone = Fake { exited: true, ..running("a", 1, 1) };
    stage.sample(&[gone]);
    assert_eq!((stage.press(b"k"), &stage.app.dialog), (None, &Dialog::None));
}

#[test]
fn the_list_is_sorted_and_filtered_and_shows_what_has_ended_when_asked() {
    let mut stage = Stage::sized(80, 24);
    let ended = Fake { exited: true, ..running("gone", 0, 1) };
    let fakes = [running("beta", 1, 9), running("alpha", 9, 1), ended];
    stage.sample(&fakes);
    let names = |stage: &Stage| -> Vec<String> {
        stage.app.order.iter().map(|at| stage.app.rows[*at].name.clone()).collect()
    };
    stage.press(b"n");
    assert_eq!((names(&stage), stage.app.sort), (vec!["alpha".into(), "beta".into()], Sort::Name));
    stage.press(b"r");
    assert_eq!(names(&stage), ["beta", "alpha"]);
    assert!(stage.picture().contains("[ID ^]"));
    stage.press(b"e");
    assert_eq!(names(&stage), ["gone", "beta", "alpha"]);
    assert!(stage.picture().contains("exited 3"));
    stage.press(b"/BET");
    assert!(stage.picture().contains("Only those with: BET_"), "{}", stage.picture());
    assert_eq!(names(&stage), ["beta"]);
    // Keys are text until it is kept.
    assert_eq!(stage.press(b"q\x7f\r"), None);
    assert!(stage.picture().contains("1 with \"BET\""), "{}", stage.picture());
    stage.press(b"/\x1b");
    assert_eq!(names(&stage).len(), 3);
    assert_eq!(stage.press(b"q"), Some(Action::Quit));
}

#[test]
fn details_say_everything_and_go_with_their_process() {
    let mut stage = Stage::sized(60, 24);
    stage.sample(&[running("a", 1500, 2000)]);
    stage.press(b"\r");
    let picture = stage.picture();
    for line in
        ["  Process    control/a, number na", "  Command    sh -c 'work a'", "  CPU        1.5 s in all"]
    {
        assert!(picture.contains(line), "{line}\n{picture}");
    }
    assert_eq!(stage.press(b"a"), Some(Action::Attach { process: "na".into() }));
    stage.sample(&[running("b", 1, 1)]);
    assert_eq!((stage.app.view, stage.app.selected.as_deref()), (View::List, Some("nb")));
}

#[test]
fn a_worker_that_was_replaced_is_told() {
    let mut stage = Stage::sized(80, 24);
    stage.sample(&[running("a", 1, 1)]);
    stage.app.hear(News::Away { why: "no daemon answers".into() });
    assert!(stage.picture().starts_with("THE DAEMON IS AWAY for 0s, this is from before: no daemon answers"));
    stage.app.daemon = Some(status(5));
    stage.sample(&[running("a", 1, 1)]);
    let picture = stage.picture();
    assert!(picture.contains("worker 5 was replaced by 8") && !picture.contains("AWAY"), "{picture}");
}
