//! Tests of `outpost top` without a terminal: samples and keys in, screen contents out.

use super::app::{App, Dialog, Sort, View};
use super::draw::draw;
use super::input::Action;
use super::sampler::{Sample, SamplerEvent};
use crate::fullscreen::{Size, Theme};
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

/// An app with a fake clock.
struct Harness {
    app: App,
    now: Instant,
}

impl Harness {
    fn sized(columns: u16, rows: u16) -> Harness {
        Harness { app: App::new(Size { columns, rows }, false), now: Instant::now() }
    }

    /// Delivers a sample half a second after the previous one.
    fn sample(&mut self, fakes: &[Fake]) {
        self.now += Duration::from_millis(500);
        self.app.on_event(SamplerEvent::Sample(Box::new(Sample {
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

    fn screen_text(&self) -> String {
        let Size { columns, rows } = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let drawn = terminal.draw(|frame| draw(frame, &self.app, Theme { color: false })).unwrap();
        assert!(drawn.buffer.content.iter().all(|cell| cell.fg == Color::Reset));
        let cells: Vec<&str> = drawn.buffer.content.iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(columns)).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
    }
}

#[test]
fn rates_cover_the_last_interval_and_the_busiest_process_is_first() {
    let mut harness = Harness::sized(110, 18);
    harness.sample(&[running("idle", 5000, 10), running("busy", 100, 1000)]);
    assert!(
        harness.screen_text().contains("        -        1  sh -c work busy"),
        "{}",
        harness.screen_text()
    );
    let ended = Fake { exited: true, ..running("short", 0, 500) };
    harness.sample(&[running("idle", 5000, 10), running("busy", 350, 3000), ended]);
    let expected = "\
outpost 1.2.3  keeper 7 up 2h, 2.0MB  worker 8 up 2m, 14.0MB
Processes  2 running, 1 ended; started 2.0/s, ended 2.0/s; output 5.0kB/s
Sessions   1, 1 busy
Approvals  2 pending, the oldest for 32s: outpost approve
  ID        FACE          PID  STATE      AGE  [CPU]    MEMORY   OUTPUT       RATE  READERS  COMMAND
> busy      control        42  running     1m    50%     1.5MB    3.0kB    4.0kB/s        1  sh -c work busy
  idle      control        42  running     1m     0%     1.5MB      10B       0B/s        1  sh -c work idle
";
    let screen_text = harness.screen_text();
    let seen: Vec<&str> = screen_text.lines().collect();
    assert_eq!(seen[..7], expected.lines().collect::<Vec<_>>()[..], "{screen_text}");
    assert_eq!(
        seen[14..16],
        [
            "  SESSION   AGENT   MODE  STATUS  WAITING  UNREAD  PATH",
            "  1f3ac0de  claude  code  busy    0        2       /srv/project"
        ]
    );
    assert!(seen[17].starts_with("Enter details  a attach  k kill"), "{screen_text}");
}

#[test]
fn every_size_is_drawn_and_foreign_text_is_escaped() {
    let hostile = Fake { id: "a\u{1b}[2J\u{202e}", ..running("", 1, 1) };
    for columns in [1, 2, 3, 7, 20, 39, 40, 80, 99, 100, 250] {
        for rows in [1, 2, 3, 5, 6, 9, 10, 15, 16, 30] {
            let mut harness = Harness::sized(columns, rows);
            harness.screen_text();
            harness.sample(&[hostile, running("b", 1, 1)]);
            harness.app.sessions = Ok(vec![session("/b"), session("/c"), session("/\u{1b}]0;x\u{7}\n")]);
            harness.app.selected = Some("na\u{1b}[2J\u{202e}".into());
            for keys in [&b""[..], b"\r", b"\x1bk", b"n/x\x1b", b"/\xff\x1b"] {
                harness.press(keys);
                harness.app.key(Key::Move(Move::PageDown));
                let screen_text = harness.screen_text();
                let is_harmless = |one: char| one == '\n' || (!one.is_control() && one != '\u{202e}');
                assert!(screen_text.chars().all(is_harmless), "{columns}x{rows} {screen_text:?}");
            }
            harness.app.on_event(SamplerEvent::Unreachable { why: "\u{1b}[2J".into() });
            let screen_text = harness.screen_text();
            assert!(
                columns < 21 || screen_text.starts_with("DAEMON UNREACHABLE"),
                "{columns}x{rows} {screen_text}"
            );
        }
    }
}

#[test]
fn small_screens_show_names_and_dialogs() {
    let mut harness = Harness::sized(40, 5);
    harness.sample(&[running("a", 1, 1), running("b", 1, 1)]);
    let screen_text = harness.screen_text();
    let lines: Vec<&str> = screen_text.lines().collect();
    assert!(
        lines[1].starts_with("  ID ") && lines[2].starts_with("> a ") && lines[3].starts_with("  b "),
        "{screen_text}"
    );
    assert!(lines[2].contains("sh -c work a"), "{screen_text}");
    harness.press(b"k");
    assert!(
        harness.screen_text().contains("\ny kills a (pid 42) and its descendants"),
        "{}",
        harness.screen_text()
    );
}

#[test]
fn a_kill_needs_two_keys_and_ignores_pastes() {
    let mut harness = Harness::sized(80, 24);
    harness.sample(&[running("a", 1, 1), running("b", 9, 9)]);
    harness.app.selected = Some("nb".into());
    assert_eq!(harness.press(b"kn"), None);
    assert_eq!((harness.press(b"y"), &harness.app.dialog), (None, &Dialog::None));
    harness.press(b"k");
    assert_eq!(harness.app.key(Key::Pasted(b'y')), None);
    assert!(harness.screen_text().contains("y kills b (pid 42)"), "{}", harness.screen_text());
    // The dialog keeps its process when the list changes.
    harness.sample(&[running("a", 1, 1)]);
    let kill = Action::Kill { process: "nb".into(), name: "b".into() };
    assert_eq!(harness.press(b"y"), Some(kill));
    harness.app.on_event(SamplerEvent::KillDone { what: "b: terminated".into() });
    assert!(harness.screen_text().contains("b: terminated"));
    let gone = Fake { exited: true, ..running("a", 1, 1) };
    harness.sample(&[gone]);
    assert_eq!((harness.press(b"k"), &harness.app.dialog), (None, &Dialog::None));
}

#[test]
fn the_list_is_sorted_and_filtered_and_can_show_ended_processes() {
    let mut harness = Harness::sized(80, 24);
    let ended = Fake { exited: true, ..running("gone", 0, 1) };
    let fakes = [running("beta", 1, 9), running("alpha", 9, 1), ended];
    harness.sample(&fakes);
    let names = |harness: &Harness| -> Vec<String> {
        harness.app.order.iter().map(|at| harness.app.rows[*at].name.clone()).collect()
    };
    harness.press(b"n");
    assert_eq!((names(&harness), harness.app.sort), (vec!["alpha".into(), "beta".into()], Sort::Name));
    harness.press(b"r");
    assert_eq!(names(&harness), ["beta", "alpha"]);
    assert!(harness.screen_text().contains("[ID ^]"));
    harness.press(b"e");
    assert_eq!(names(&harness), ["gone", "beta", "alpha"]);
    assert!(harness.screen_text().contains("exited 3"));
    harness.press(b"/BET");
    assert!(harness.screen_text().contains("Filter: BET_"), "{}", harness.screen_text());
    assert_eq!(names(&harness), ["beta"]);
    // Keys are text until Enter applies the filter.
    assert_eq!(harness.press(b"q\x7f\r"), None);
    assert!(harness.screen_text().contains("1 with \"BET\""), "{}", harness.screen_text());
    harness.press(b"/\x1b");
    assert_eq!(names(&harness).len(), 3);
    assert_eq!(harness.press(b"q"), Some(Action::Quit));
}

#[test]
fn details_are_complete_and_close_with_their_process() {
    let mut harness = Harness::sized(60, 24);
    harness.sample(&[running("a", 1500, 2000)]);
    harness.press(b"\r");
    let screen_text = harness.screen_text();
    for line in
        ["  Process    control/a, number na", "  Command    sh -c 'work a'", "  CPU        1.5 s total"]
    {
        assert!(screen_text.contains(line), "{line}\n{screen_text}");
    }
    assert_eq!(harness.press(b"a"), Some(Action::Attach { process: "na".into() }));
    harness.sample(&[running("b", 1, 1)]);
    assert_eq!((harness.app.view, harness.app.selected.as_deref()), (View::List, Some("nb")));
}

#[test]
fn a_replaced_worker_is_reported() {
    let mut harness = Harness::sized(80, 24);
    harness.sample(&[running("a", 1, 1)]);
    harness.app.on_event(SamplerEvent::Unreachable { why: "no socket".into() });
    assert!(harness.screen_text().starts_with("DAEMON UNREACHABLE for 0s, data is old: no socket"));
    harness.app.daemon = Some(status(5));
    harness.sample(&[running("a", 1, 1)]);
    let screen_text = harness.screen_text();
    assert!(
        screen_text.contains("worker 5 was replaced by 8") && !screen_text.contains("UNREACHABLE"),
        "{screen_text}"
    );
}
