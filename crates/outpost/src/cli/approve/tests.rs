//! The full screen without a terminal: keys and news in, requests and pictures out.

use super::app::{App, KEYS_IGNORED, News, Order, View};
use super::draw::draw;
use super::input::Action;
use crate::cli::fullscreen::{Looks, Size};
use crate::tty::keys::{Key, Move};
use outpost_approvals::wire::{Answer, Grant, Request};
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

/// An app with a screen and a clock of its own.
struct Stage {
    app: App,
    now: Instant,
}

impl Stage {
    fn with(questions: Vec<Question>) -> Stage {
        let mut stage = Stage { app: App::new(SIZE), now: Instant::now() };
        stage.hear(News::Connected { name: "uid 0 pid 7".into(), questions });
        stage
    }

    /// With the only question open, and long enough to be read.
    fn reading(question: Question) -> Stage {
        let mut stage = Stage::with(vec![question]);
        stage.press(b"\r");
        stage.wait(KEYS_IGNORED);
        stage
    }

    fn hear(&mut self, news: News) -> Option<Order> {
        let request = self.app.hear(news, self.now);
        self.picture();
        request
    }

    fn settle(&mut self, id: &str, outcome: Outcome) {
        self.hear(News::Event(Answer::Settled { id: id.into(), outcome }));
    }

    fn ask(&mut self, question: Question) {
        self.hear(News::Event(Answer::Asked { question: Box::new(question) }));
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.app.tick(self.now);
    }

    fn key(&mut self, key: Key) -> Option<Action> {
        let action = self.app.key(key, self.now);
        self.picture();
        action
    }

    /// Single keys; what the last one led to.
    fn press(&mut self, keys: &[u8]) -> Option<Action> {
        let mut last = None;
        for key in keys {
            last = self.key(if *key == 0x1b { Key::Escape } else { Key::Byte(*key) });
        }
        last
    }

    fn picture(&mut self) -> String {
        let Size { columns, rows } = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let looks = Looks { coloured: false };
        let drawn = terminal.draw(|frame| draw(frame, &self.app, NOW_MS, looks)).unwrap();
        let cells: Vec<&str> = drawn.buffer.content.iter().map(|cell| cell.symbol()).collect();
        let lines = cells.chunks(usize::from(columns)).map(|row| row.concat().trim_end().to_owned() + "\n");
        let picture = lines.collect();
        self.app.drawn(self.now);
        picture
    }
}

/// What was decided about question `aaaa`, by what it was shown as.
fn decided(allow: bool, note: &str, remember: Option<Remember>) -> Option<(String, String, Decision)> {
    Some(("aaaa".into(), "aaaa0123456789".into(), Decision { allow, note: note.into(), remember }))
}

fn answer(action: Option<Action>) -> Option<(String, String, Decision)> {
    match action {
        Some(Action::Do(Order::Decide { question, decision })) => {
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
fn the_list_says_age_time_left_rights_and_digest() {
    let mut stage = Stage::with(vec![question("aaaa", "echo hi"), privileged("bbbb")]);
    let expected = "\
outpost approve: 2 questions wait
   AGE LEFT AS   DIGEST   COMMAND
>   5s  55s own  aaaa0123 echo hi
    5s  55s ROOT bbbb0123 reboot









connected as uid 0 pid 7

Enter details  g grants  q quit
";
    assert_eq!(stage.picture(), expected);
}

#[test]
fn the_details_have_warnings_first_and_claims_labelled() {
    let warnings = vec!["argument 1 mixes alphabets".to_owned()];
    let mut stage = Stage::reading(Question { warnings, ..privileged("aaaa") });
    let expected = "\
aaaa0123 ROOT 5s ago 55s left 1-9/9
PRIVILEGED: this would run with root's rights
WARNING: argument 1 mixes alphabets
In one line
  reboot
Runs
  as: you
Claimed (not checked by anybody)
  reason: why not
End of the question



connected as uid 0 pid 7

y yes n no d note r remember Esc q
";
    assert_eq!(stage.picture(), expected);
}

#[test]
fn a_key_before_the_question_can_have_been_read_is_no_answer() {
    let mut stage = Stage::with(vec![question("aaaa", "echo hi")]);
    assert_eq!(stage.press(b"yyn\ry"), None);
    stage.wait(KEYS_IGNORED - Duration::from_millis(1));
    assert_eq!(stage.press(b"y"), None);
    assert_eq!(stage.press(b"n"), None);
    stage.wait(Duration::from_millis(1));
    assert_eq!(answer(stage.press(b"y")), decided(true, "", None));
    assert_eq!(stage.press(b"y"), None, "one answer is enough");
}

#[test]
fn what_was_never_drawn_cannot_be_approved() {
    let mut app = App::new(SIZE);
    let now = Instant::now();
    let questions = vec![question("aaaa", "echo hi")];
    app.hear(News::Connected { name: String::new(), questions }, now);
    app.key(Key::Byte(b'\r'), now);
    assert_eq!(app.key(Key::Byte(b'y'), now + Duration::from_secs(60)), None);
}

#[test]
fn enter_never_approves_and_neither_do_pastes_and_sequences() {
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    assert_eq!(stage.press(b"\r\n\r Yj"), None);
    for key in [Key::Pasted(b'y'), Key::Sequence, Key::Pasted(b'n'), Key::Move(Move::Down)] {
        assert_eq!(stage.key(key), None, "{key:?}");
    }
    assert_eq!(answer(stage.press(b"y")), decided(true, "", None));
}

#[test]
fn what_does_not_fit_is_approved_only_once_its_end_was_in_sight() {
    for keys in [b"y", b"r"] {
        let mut stage = Stage::reading(long("aaaa"));
        assert_eq!(stage.press(keys), None);
        assert!(stage.picture().contains("read to its end first"), "{}", stage.picture());
        let mut seen = String::new();
        while !stage.picture().contains("End of the question") {
            seen += &stage.picture();
            stage.key(Key::Move(Move::PageDown));
        }
        assert!(seen.matches('x').count() >= 3000);
        stage.key(Key::Move(Move::Home));
        match keys {
            b"y" => assert_eq!(answer(stage.press(b"y")), decided(true, "", None), "what was seen was seen"),
            _ => {
                stage.press(b"r");
                assert!(stage.picture().contains("Approve this"), "{}", stage.picture());
            }
        }
    }
}

#[test]
fn a_screen_of_another_size_has_to_be_read_again() {
    let mut stage = Stage::reading(question("aaaa", &"x".repeat(300)));
    stage.app.resize(Size { columns: 40, rows: 10 });
    stage.picture();
    stage.wait(KEYS_IGNORED);
    assert_eq!(stage.press(b"y"), None);
    stage.key(Key::Move(Move::End));
    assert_eq!(answer(stage.press(b"y")), decided(true, "", None));
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    stage.app.resize(Size { columns: 39, rows: 10 });
    assert!(stage.picture().contains("too small"), "{}", stage.picture());
    stage.wait(KEYS_IGNORED);
    assert_eq!(stage.press(b"y"), None);
}

#[test]
fn every_size_from_the_smallest_shows_all_of_a_question() {
    let sizes = [(40, 10), (41, 11), (75, 24), (76, 24), (300, 100)];
    for (columns, rows) in sizes {
        let mut stage = Stage::with(vec![long("aaaa")]);
        stage.app.resize(Size { columns, rows });
        stage.press(b"\r");
        let View::Details(details) = &stage.app.view else { panic!("no details") };
        assert!(details.rows.iter().all(|row| row.text.len() <= usize::from(columns)));
        stage.key(Key::Move(Move::End));
        let picture = stage.picture();
        let keys = if columns < 76 { "y yes" } else { "y approve" };
        assert!(picture.contains("End of the question") && picture.contains(keys), "{picture}");
    }
}

#[test]
fn what_is_privileged_takes_a_second_press_within_three_seconds() {
    let mut stage = Stage::reading(privileged("aaaa"));
    assert_eq!(stage.press(b"y"), None);
    assert!(stage.picture().contains("press y again within 3 s"), "{}", stage.picture());
    stage.wait(Duration::from_millis(3001));
    assert!(!stage.picture().contains("press y again"), "{}", stage.picture());
    assert_eq!(stage.press(b"y"), None, "that was too late, and is a first one again");
    assert_eq!(stage.press(b" y"), None, "another key in between takes it back");
    assert_eq!(answer(stage.press(b"y")), decided(true, "", None));
}

#[test]
fn a_denial_can_have_a_note_and_escape_takes_it_back() {
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    assert_eq!(answer(stage.press(b"n")), decided(false, "", None));
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    assert_eq!(stage.press(b"dyes, no\x1b"), None);
    stage.wait(KEYS_IGNORED);
    stage.press("dn\u{f6}".as_bytes());
    assert!(stage.picture().contains("n\\u{f6}_"), "{}", stage.picture());
    assert_eq!(answer(stage.press(b"\x7fo\r")), decided(false, "no", None));
}

#[test]
fn an_answer_is_remembered_for_times_or_minutes_and_enter_does_not_give_it() {
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    assert_eq!(stage.press(b"r15\ry"), None, "nor does a key that comes too early");
    stage.wait(KEYS_IGNORED);
    assert_eq!(stage.press(b"\r"), None);
    assert_eq!(answer(stage.press(b"y")), decided(true, "", Some(Remember::Times(15))));
    let mut stage = Stage::reading(privileged("aaaa"));
    stage.press(b"rm10");
    assert!(stage.picture().contains("the same for 10_ minutes"), "{}", stage.picture());
    stage.wait(KEYS_IGNORED);
    assert_eq!(stage.press(b"y"), None, "what is privileged still takes two");
    assert_eq!(answer(stage.press(b"y")), decided(true, "", Some(Remember::Minutes(10))));
    let mut stage = Stage::reading(Question { rememberable: false, ..question("aaaa", "sh") });
    stage.press(b"r");
    assert!(stage.picture().contains("cannot be remembered"), "{}", stage.picture());
}

#[test]
fn a_question_that_vanishes_takes_the_keys_that_were_meant_for_it_along() {
    let mut stage = Stage::with(vec![question("aaaa", "echo hi"), question("bbbb", "echo ho")]);
    stage.press(b"\r");
    stage.wait(KEYS_IGNORED);
    stage.settle("aaaa", by("uid 5 pid 9 with outpost approvals", false));
    let picture = stage.picture();
    assert!(picture.contains("aaaa0123 denied by uid 5 pid 9 with outpost approvals"), "{picture}");
    assert!(picture.contains(">   5s  55s own  bbbb0123"), "{picture}");
    assert_eq!(stage.press(b"\ryq"), None);
    assert!(matches!(stage.app.view, View::List));
    stage.wait(KEYS_IGNORED);
    stage.press(b"\r");
    assert!(matches!(stage.app.view, View::Details(_)));
}

#[test]
fn how_others_ended_is_told_and_changes_nothing_that_is_looked_at() {
    let questions = vec![question("aaaa", "echo hi"), question("bbbb", "b"), question("cccc", "c")];
    let mut stage = Stage::with(questions);
    stage.key(Key::Move(Move::Down));
    stage.press(b"\r");
    stage.wait(KEYS_IGNORED);
    stage.settle("aaaa", Outcome::Withdrawn);
    assert!(stage.picture().contains("aaaa0123 ended: whoever asked has left"), "{}", stage.picture());
    stage.settle("cccc", Outcome::Expired);
    stage.ask(question("dddd", "new"));
    assert!(stage.picture().starts_with("bbbb0123 "), "{}", stage.picture());
    let Some(Action::Do(Order::Decide { question, .. })) = stage.press(b"y") else { panic!("no answer") };
    let id = question.id;
    assert_eq!(id, "bbbb");
    stage.settle("bbbb", by("uid 0 pid 7", true));
    assert!(stage.picture().contains("bbbb0123 approved by you"), "{}", stage.picture());
}

#[test]
fn without_a_connection_nothing_is_decided_and_questions_survive_it() {
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    stage.hear(News::Lost { why: "the daemon is ending".into() });
    assert!(stage.picture().contains("no connection: the daemon is ending"), "{}", stage.picture());
    assert_eq!(stage.press(b"y"), None);
    let (name, same) = ("uid 0 pid 7".to_owned(), vec![question("aaaa", "echo hi")]);
    stage.hear(News::Connected { name: name.clone(), questions: same });
    assert_eq!(answer(stage.press(b"y")), decided(true, "", None));
    stage.hear(News::Lost { why: "the daemon is ending".into() });
    assert!(stage.picture().contains("whether the answer arri"), "{}", stage.picture());
    stage.hear(News::Connected { name, questions: vec![] });
    assert!(matches!(stage.app.view, View::List));
    assert!(stage.picture().contains("aaaa0123 does not wait any more"), "{}", stage.picture());
}

#[test]
fn a_decision_that_does_not_stand_can_be_made_again() {
    let mut stage = Stage::reading(question("aaaa", "echo hi"));
    assert!(stage.press(b"y").is_some());
    stage.hear(News::Refused { why: "the disk is full".into() });
    assert!(stage.picture().contains("the disk is full"), "{}", stage.picture());
    assert!(stage.press(b"n").is_some());
}

#[test]
fn grants_are_listed_and_revoked() {
    let mut stage = Stage::with(vec![]);
    assert_eq!(stage.press(b"g"), Some(Action::Do(Order::Ask(Request::Grants))));
    let grant = |id: &str, times_left, seconds_left| Grant {
        id: id.into(),
        digest: "aaaa0123456789".into(),
        title: "echo hi".into(),
        by: "uid 5".into(),
        times_left,
        seconds_left,
    };
    let grants = vec![grant("g1", Some(2), None), grant("g2", None, Some(600))];
    stage.hear(News::Answered(Answer::Grants { grants }));
    stage.key(Key::Move(Move::Down));
    let picture = stage.picture();
    assert!(picture.contains("     2 times aaaa0123 echo hi  by uid 5"), "{picture}");
    assert!(picture.contains(">        10m aaaa0123"), "{picture}");
    assert_eq!(stage.press(b"x"), Some(Action::Do(Order::Ask(Request::Revoke { id: "g2".into() }))));
    let next = stage.hear(News::Answered(Answer::Revoked { id: "g2".into() }));
    assert_eq!(next, Some(Order::Ask(Request::Grants)));
    assert_eq!(stage.press(b"\x1bq"), Some(Action::Quit));
}

#[test]
fn colours_are_for_those_who_want_them_and_say_nothing_alone() {
    let stage = Stage::reading(privileged("aaaa"));
    for coloured in [false, true] {
        let mut terminal = Terminal::new(TestBackend::new(SIZE.columns, SIZE.rows)).unwrap();
        let drawn = terminal.draw(|frame| draw(frame, &stage.app, NOW_MS, Looks { coloured })).unwrap();
        let plain =
            drawn.buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset);
        assert_eq!(plain, !coloured);
    }
}

#[test]
fn text_that_is_not_printable_does_not_reach_the_screen() {
    let mut stage = Stage::reading(question("aaaa", "a\u{1b}[2Jb\u{202e}"));
    assert!(stage.picture().contains("a\\u{1b}[2Jb\\u{202e}"), "{}", stage.picture());
}
