//! Tests of `outpost approve` without a terminal: keys and events in, requests and screen contents out.

use super::app::{App, DaemonRequest, LinkEvent, READING_TIME, View};
use super::draw::draw;
use super::input::Action;
use crate::fullscreen::{Size, Theme};
use crate::tty::keys::{Key, Move};
use outpost_approvals::wire::{Grant, Request, ServerMessage};
use outpost_approvals::{Decision, Line, Outcome, Question, Remember, Section};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use std::time::{Duration, Instant};

const SIZE: Size = Size { columns: 60, rows: 16 };
const NOW_MS: u64 = 1_000_000;

fn question(id: &str, title: &str) -> Question {
    let line = |name: &str, value: &str| Line { name: name.into(), value: value.into() };
    let claims = Section { heading: "Claimed".into(), lines: vec![line("reason", "why not")], claimed: true };
    let runs = Section { heading: "Runs".into(), lines: vec![line("as", "you")], claimed: false };
    Question {
        id: id.into(),
        face: "broker".into(),
        digest: format!("{id}0123456789"),
        title: title.into(),
        sections: vec![runs, claims],
        warnings: vec![],
        privileged: false,
        rememberable: true,
        uid: None,
        asked_ms: NOW_MS - 5000,
        deadline_ms: NOW_MS + 55_000,
    }
}

/// An app with a test screen and a fake clock.
struct Harness {
    app: App,
    now: Instant,
}

impl Harness {
    fn with(questions: Vec<Question>) -> Harness {
        let mut harness = Harness { app: App::new(SIZE), now: Instant::now() };
        harness.on_link_event(LinkEvent::Connected { name: "uid 0 pid 7".into(), questions });
        harness
    }

    /// With the only question open for `READING_TIME`.
    fn reading(question: Question) -> Harness {
        let mut harness = Harness::with(vec![question]);
        harness.press(b"\r");
        harness.wait(READING_TIME);
        harness
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Option<DaemonRequest> {
        let request = self.app.on_link_event(event, self.now);
        self.screen_text();
        request
    }

    fn settle(&mut self, id: &str, outcome: Outcome) {
        self.on_link_event(LinkEvent::Event(ServerMessage::Settled { id: id.into(), outcome }));
    }

    fn ask(&mut self, question: Question) {
        self.on_link_event(LinkEvent::Event(ServerMessage::Asked { question: Box::new(question) }));
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.app.tick(self.now);
    }

    fn key(&mut self, key: Key) -> Option<Action> {
        let action = self.app.key(key, self.now);
        self.screen_text();
        action
    }

    /// Presses keys; returns the action of the last one.
    fn press(&mut self, keys: &[u8]) -> Option<Action> {
        let mut last = None;
        for key in keys {
            last = self.key(if *key == 0x1b { Key::Escape } else { Key::Byte(*key) });
        }
        last
    }

    fn screen_text(&mut self) -> String {
        let Size { columns, rows } = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let theme = Theme { color: false };
        let drawn = terminal.draw(|frame| draw(frame, &self.app, NOW_MS, theme)).unwrap();
        let cells: Vec<&str> = drawn.buffer.content.iter().map(|cell| cell.symbol()).collect();
        let lines = cells.chunks(usize::from(columns)).map(|row| row.concat().trim_end().to_owned() + "\n");
        let screen_text = lines.collect();
        self.app.drawn(self.now);
        screen_text
    }
}

/// The expected decision about question `aaaa`: id, digest, decision.
fn decided(allow: bool, note: &str, remember: Option<Remember>) -> Option<(String, String, Decision)> {
    Some(("aaaa".into(), "aaaa0123456789".into(), Decision { allow, note: note.into(), remember }))
}

fn answer(action: Option<Action>) -> Option<(String, String, Decision)> {
    match action {
        Some(Action::Send(DaemonRequest::Decide { question, decision })) => {
            Some((question.id, question.digest, decision))
        }
        _ => None,
    }
}

fn by(by: &str, allow: bool) -> Outcome {
    let decision = Decision { allow, note: String::new(), remember: None };
    Outcome::Decided { decision, by: by.into(), proof: None }
}

fn long(id: &str) -> Question {
    question(id, &"x".repeat(3000))
}

fn privileged(id: &str) -> Question {
    Question { privileged: true, ..question(id, "reboot") }
}

#[test]
fn the_list_shows_age_time_left_user_and_digest() {
    let mut harness = Harness::with(vec![question("aaaa", "echo hi"), privileged("bbbb")]);
    let expected = "\
outpost approve: 2 pending questions
   AGE LEFT AS   DIGEST   COMMAND
>   5s  55s you  aaaa0123 echo hi
    5s  55s root bbbb0123 reboot









connected as uid 0 pid 7

Enter details  g grants  q quit
";
    assert_eq!(harness.screen_text(), expected);
}

#[test]
fn details_show_warnings_first_and_label_claims() {
    let warnings = vec!["argument 1 mixes alphabets".to_owned()];
    let mut harness = Harness::reading(Question { warnings, ..privileged("aaaa") });
    let expected = "\
aaaa0123 root 5s ago 55s left 1-9/9
PRIVILEGED: this runs as root
WARNING: argument 1 mixes alphabets
Command
  reboot
Runs
  as: you
Claimed (not verified)
  reason: why not
End of the question



connected as uid 0 pid 7

y approve n deny d note r rem. Esc q
";
    assert_eq!(harness.screen_text(), expected);
}

#[test]
fn keys_within_the_reading_time_are_ignored() {
    let mut harness = Harness::with(vec![question("aaaa", "echo hi")]);
    assert_eq!(harness.press(b"yyn\ry"), None);
    harness.wait(READING_TIME - Duration::from_millis(1));
    assert_eq!(harness.press(b"y"), None);
    assert_eq!(harness.press(b"n"), None);
    harness.wait(Duration::from_millis(1));
    assert_eq!(answer(harness.press(b"y")), decided(true, "", None));
    assert_eq!(harness.press(b"y"), None, "one answer is enough");
}

#[test]
fn a_question_that_was_never_drawn_cannot_be_approved() {
    let mut app = App::new(SIZE);
    let now = Instant::now();
    let questions = vec![question("aaaa", "echo hi")];
    app.on_link_event(LinkEvent::Connected { name: String::new(), questions }, now);
    app.key(Key::Byte(b'\r'), now);
    assert_eq!(app.key(Key::Byte(b'y'), now + Duration::from_secs(60)), None);
}

#[test]
fn enter_pastes_and_sequences_never_approve() {
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    assert_eq!(harness.press(b"\r\n\r Yj"), None);
    for key in [Key::Pasted(b'y'), Key::Sequence, Key::Pasted(b'n'), Key::Move(Move::Down)] {
        assert_eq!(harness.key(key), None, "{key:?}");
    }
    assert_eq!(answer(harness.press(b"y")), decided(true, "", None));
}

#[test]
fn a_long_question_is_approved_only_after_its_end_was_visible() {
    for keys in [b"y", b"r"] {
        let mut harness = Harness::reading(long("aaaa"));
        assert_eq!(harness.press(keys), None);
        assert!(harness.screen_text().contains("more below: press End"), "{}", harness.screen_text());
        let mut seen = String::new();
        while !harness.screen_text().contains("End of the question") {
            seen += &harness.screen_text();
            harness.key(Key::Move(Move::PageDown));
        }
        assert!(seen.matches('x').count() >= 3000);
        harness.key(Key::Move(Move::Home));
        match keys {
            b"y" => assert_eq!(
                answer(harness.press(b"y")),
                decided(true, "", None),
                "the end stays seen after scrolling back"
            ),
            _ => {
                harness.press(b"r");
                assert!(harness.screen_text().contains("Approve this"), "{}", harness.screen_text());
            }
        }
    }
}

#[test]
fn a_resized_question_must_be_read_again() {
    let mut harness = Harness::reading(question("aaaa", &"x".repeat(300)));
    harness.app.resize(Size { columns: 40, rows: 10 });
    harness.screen_text();
    harness.wait(READING_TIME);
    assert_eq!(harness.press(b"y"), None);
    harness.key(Key::Move(Move::End));
    assert_eq!(answer(harness.press(b"y")), decided(true, "", None));
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    harness.app.resize(Size { columns: 39, rows: 10 });
    assert!(harness.screen_text().contains("too small"), "{}", harness.screen_text());
    harness.wait(READING_TIME);
    assert_eq!(harness.press(b"y"), None);
}

#[test]
fn every_supported_size_shows_the_whole_question() {
    let sizes = [(40, 10), (41, 11), (75, 24), (76, 24), (300, 100)];
    for (columns, rows) in sizes {
        let mut harness = Harness::with(vec![long("aaaa")]);
        harness.app.resize(Size { columns, rows });
        harness.press(b"\r");
        let View::Details(details) = &harness.app.view else { panic!("no details") };
        assert!(details.rows.iter().all(|row| row.text.len() <= usize::from(columns)));
        harness.key(Key::Move(Move::End));
        let screen_text = harness.screen_text();
        let keys = if columns < 76 { "y approve n deny" } else { "y approve  n deny" };
        assert!(screen_text.contains("End of the question") && screen_text.contains(keys), "{screen_text}");
    }
}

#[test]
fn a_privileged_approval_needs_a_second_key_within_three_seconds() {
    let mut harness = Harness::reading(privileged("aaaa"));
    assert_eq!(harness.press(b"y"), None);
    assert!(harness.screen_text().contains("press y again within 3 s"), "{}", harness.screen_text());
    harness.wait(Duration::from_millis(3001));
    assert!(!harness.screen_text().contains("press y again"), "{}", harness.screen_text());
    assert_eq!(harness.press(b"y"), None, "too late: it counts as a first press");
    assert_eq!(harness.press(b" y"), None, "another key cancels the confirmation");
    assert_eq!(answer(harness.press(b"y")), decided(true, "", None));
}

#[test]
fn a_denial_can_have_a_note_and_escape_cancels_it() {
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    assert_eq!(answer(harness.press(b"n")), decided(false, "", None));
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    assert_eq!(harness.press(b"dyes, no\x1b"), None);
    harness.wait(READING_TIME);
    harness.press("dn\u{f6}".as_bytes());
    assert!(harness.screen_text().contains("n\\u{f6}_"), "{}", harness.screen_text());
    assert_eq!(answer(harness.press(b"\x7fo\r")), decided(false, "no", None));
}

#[test]
fn an_approval_is_remembered_for_times_or_minutes_and_enter_does_not_submit_it() {
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    assert_eq!(harness.press(b"r15\ry"), None, "a key within the reading time is ignored");
    harness.wait(READING_TIME);
    assert_eq!(harness.press(b"\r"), None);
    assert_eq!(answer(harness.press(b"y")), decided(true, "", Some(Remember::Times(15))));
    let mut harness = Harness::reading(privileged("aaaa"));
    harness.press(b"rm10");
    assert!(harness.screen_text().contains("also for 10_ minutes"), "{}", harness.screen_text());
    harness.wait(READING_TIME);
    assert_eq!(harness.press(b"y"), None, "a privileged approval still needs two keys");
    assert_eq!(answer(harness.press(b"y")), decided(true, "", Some(Remember::Minutes(10))));
    let mut harness = Harness::reading(Question { rememberable: false, ..question("aaaa", "sh") });
    harness.press(b"r");
    assert!(harness.screen_text().contains("cannot be remembered"), "{}", harness.screen_text());
}

#[test]
fn keys_after_a_question_vanished_are_ignored() {
    let mut harness = Harness::with(vec![question("aaaa", "echo hi"), question("bbbb", "echo ho")]);
    harness.press(b"\r");
    harness.wait(READING_TIME);
    harness.settle("aaaa", by("uid 5 pid 9 with outpost approvals", false));
    let screen_text = harness.screen_text();
    assert!(screen_text.contains("aaaa0123 denied by uid 5 pid 9 with outpost approvals"), "{screen_text}");
    assert!(screen_text.contains(">   5s  55s you  bbbb0123"), "{screen_text}");
    assert_eq!(harness.press(b"\ryq"), None);
    assert!(matches!(harness.app.view, View::List));
    harness.wait(READING_TIME);
    harness.press(b"\r");
    assert!(matches!(harness.app.view, View::Details(_)));
}

#[test]
fn outcomes_of_other_questions_do_not_affect_the_open_one() {
    let questions = vec![question("aaaa", "echo hi"), question("bbbb", "b"), question("cccc", "c")];
    let mut harness = Harness::with(questions);
    harness.key(Key::Move(Move::Down));
    harness.press(b"\r");
    harness.wait(READING_TIME);
    harness.settle("aaaa", Outcome::Withdrawn);
    assert!(
        harness.screen_text().contains("aaaa0123 withdrawn: the requester disconnected"),
        "{}",
        harness.screen_text()
    );
    harness.settle("cccc", Outcome::Expired);
    harness.ask(question("dddd", "new"));
    assert!(harness.screen_text().starts_with("bbbb0123 "), "{}", harness.screen_text());
    let Some(Action::Send(DaemonRequest::Decide { question, .. })) = harness.press(b"y") else {
        panic!("no answer")
    };
    let id = question.id;
    assert_eq!(id, "bbbb");
    harness.settle("bbbb", by("uid 0 pid 7", true));
    assert!(harness.screen_text().contains("bbbb0123 approved by you"), "{}", harness.screen_text());
}

#[test]
fn a_lost_connection_blocks_decisions_and_keeps_the_open_question() {
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    harness.on_link_event(LinkEvent::Lost { why: "the daemon is stopping".into() });
    assert!(
        harness.screen_text().contains("no connection: the daemon is stopping"),
        "{}",
        harness.screen_text()
    );
    assert_eq!(harness.press(b"y"), None);
    let (name, same) = ("uid 0 pid 7".to_owned(), vec![question("aaaa", "echo hi")]);
    harness.on_link_event(LinkEvent::Connected { name: name.clone(), questions: same });
    assert_eq!(answer(harness.press(b"y")), decided(true, "", None));
    harness.on_link_event(LinkEvent::Lost { why: "the daemon is stopping".into() });
    assert!(harness.screen_text().contains("it is unknown whether"), "{}", harness.screen_text());
    harness.on_link_event(LinkEvent::Connected { name, questions: vec![] });
    assert!(matches!(harness.app.view, View::List));
    assert!(harness.screen_text().contains("aaaa0123 is no longer pending"), "{}", harness.screen_text());
}

#[test]
fn a_failed_decision_can_be_repeated() {
    let mut harness = Harness::reading(question("aaaa", "echo hi"));
    assert!(harness.press(b"y").is_some());
    harness.on_link_event(LinkEvent::Failed { why: "the disk is full".into() });
    assert!(harness.screen_text().contains("the disk is full"), "{}", harness.screen_text());
    assert!(harness.press(b"n").is_some());
}

#[test]
fn grants_are_listed_and_revoked() {
    let mut harness = Harness::with(vec![]);
    assert_eq!(harness.press(b"g"), Some(Action::Send(DaemonRequest::Ask(Request::Grants))));
    let grant = |id: &str, times_left, seconds_left| Grant {
        id: id.into(),
        digest: "aaaa0123456789".into(),
        title: "echo hi".into(),
        by: "uid 5".into(),
        times_left,
        seconds_left,
    };
    let grants = vec![grant("g1", Some(2), None), grant("g2", None, Some(600))];
    harness.on_link_event(LinkEvent::Reply(ServerMessage::Grants { grants }));
    harness.key(Key::Move(Move::Down));
    let screen_text = harness.screen_text();
    assert!(screen_text.contains("     2 times aaaa0123 echo hi  by uid 5"), "{screen_text}");
    assert!(screen_text.contains(">        10m aaaa0123"), "{screen_text}");
    assert_eq!(
        harness.press(b"x"),
        Some(Action::Send(DaemonRequest::Ask(Request::Revoke { id: "g2".into() })))
    );
    let next = harness.on_link_event(LinkEvent::Reply(ServerMessage::Revoked { id: "g2".into() }));
    assert_eq!(next, Some(DaemonRequest::Ask(Request::Grants)));
    assert_eq!(harness.press(b"\x1bq"), Some(Action::Quit));
}

#[test]
fn colors_are_used_only_if_enabled() {
    let harness = Harness::reading(privileged("aaaa"));
    for color in [false, true] {
        let mut terminal = Terminal::new(TestBackend::new(SIZE.columns, SIZE.rows)).unwrap();
        let drawn = terminal.draw(|frame| draw(frame, &harness.app, NOW_MS, Theme { color })).unwrap();
        let plain =
            drawn.buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset);
        assert_eq!(plain, !color);
    }
}

#[test]
fn unprintable_text_is_escaped() {
    let mut harness = Harness::reading(question("aaaa", "a\u{1b}[2Jb\u{202e}"));
    assert!(harness.screen_text().contains("a\\u{1b}[2Jb\\u{202e}"), "{}", harness.screen_text());
}
