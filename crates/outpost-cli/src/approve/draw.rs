//! Draws the full screen of `outpost approve`: title, list or question, status, keys.

use super::app::{App, COLUMNS_MIN, Details, Dialog, ROWS_MIN, Unit, View, short};
use super::page::Kind;
use crate::approvals::print::left;
use crate::approver::printable;
use crate::fullscreen::{BAR, Canvas, Theme, first_row, style_of};
use crate::ps::age;
use outpost_approvals::{Question, display};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};

/// Narrower screens use shorter texts.
const COLUMNS_ROOMY: u16 = 76;

fn look(theme: Theme, kind: Kind) -> Style {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    match kind {
        Kind::Warning => theme.paint(bold.add_modifier(Modifier::REVERSED), Color::Red),
        Kind::Heading => bold,
        Kind::Claimed => theme.paint(Style::new(), Color::Yellow),
        Kind::Text => Style::new(),
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, now_ms: u64, theme: Theme) {
    let mut canvas = Canvas::new(frame, theme);
    let area = canvas.area;
    if app.is_too_small() {
        let text = format!("The screen is too small: it needs {COLUMNS_MIN} columns and {ROWS_MIN} rows.");
        for (at, line) in (0..area.height).zip(display::wrap(&text, usize::from(area.width))) {
            canvas.line(at, &line, Style::new());
        }
        return;
    }
    match &app.view {
        View::List => canvas.list(app, now_ms),
        View::Details(details) => canvas.details(app, details, now_ms),
        View::Grants => canvas.grants(app),
    }
    canvas.status(app);
    canvas.line(area.height - 1, keys(app), BAR);
}

impl Canvas<'_> {
    fn list(&mut self, app: &App, now_ms: u64) {
        let head = match (app.connected, app.questions.len()) {
            (false, _) if app.status.is_empty() => "outpost approve: connecting".to_owned(),
            (false, _) => "outpost approve: NO CONNECTION".to_owned(),
            (true, 0) => "outpost approve: no pending questions".to_owned(),
            (true, 1) => "outpost approve: 1 pending question".to_owned(),
            (true, more) => format!("outpost approve: {more} pending questions"),
        };
        self.line(0, &head, BAR);
        let heading = Style::new().add_modifier(Modifier::BOLD);
        self.line(1, "   AGE LEFT AS   DIGEST   COMMAND", heading);
        let rows = app.body_rows().saturating_sub(1);
        let selected = app.selected_at();
        let visible = app.questions.iter().enumerate().skip(first_row(selected, rows)).take(rows);
        for (at, (number, question)) in (2..).zip(visible) {
            self.cut(
                at,
                &row(question, selected == Some(number), now_ms),
                style_of(selected == Some(number)),
            );
        }
    }

    fn details(&mut self, app: &App, details: &Details, now_ms: u64) {
        let (question, body) = (&details.question, app.body_rows());
        let last = details.rows.len().min(details.top + body);
        let (digest, age, left) = (short(&question.digest), since(question, now_ms), until(question, now_ms));
        let (first, all) = (details.top + 1, details.rows.len());
        let head = match self.area.width >= COLUMNS_ROOMY {
            true => format!(
                "Question {digest}  {}  asked {age} ago, {left} left  lines {first}-{last} of {all}",
                runs_as(question)
            ),
            false => format!("{digest} {} {age} ago {left} left {first}-{last}/{all}", runs_as(question)),
        };
        let head = if app.connected { head } else { format!("NO CONNECTION  {head}") };
        self.line(0, &head, BAR);
        for (at, row) in (1..).zip(details.rows.iter().skip(details.top).take(body)) {
            self.line(at, &row.text, look(self.theme, row.kind));
        }
    }

    fn grants(&mut self, app: &App) {
        let head = match app.grants.len() {
            0 => "No grants".to_owned(),
            1 => "1 grant".to_owned(),
            more => format!("{more} grants"),
        };
        self.line(0, &head, BAR);
        let rows = app.body_rows();
        let selected = app.grants.iter().position(|grant| Some(&grant.id) == app.selected_grant.as_ref());
        let visible = app.grants.iter().enumerate().skip(first_row(selected, rows)).take(rows);
        for (at, (number, grant)) in (1..).zip(visible) {
            let mark = if selected == Some(number) { ">" } else { " " };
            let (left, digest) = (left(grant), short(&grant.digest));
            let text = format!(
                "{mark} {left:>10} {digest} {}  by {}",
                printable(&grant.title),
                printable(&grant.by)
            );
            self.cut(at, &text, style_of(selected == Some(number)));
        }
    }

    /// The active dialog, or the last event.
    fn status(&mut self, app: &App) {
        let dialog = match &app.view {
            View::Details(details) => &details.dialog,
            View::List | View::Grants => &Dialog::None,
        };
        let (first, width) = (self.area.height - 3, usize::from(self.area.width));
        match dialog {
            Dialog::None => self.folded(first, &printable(&app.status), Style::new()),
            Dialog::Note(typed) => {
                let typed = display::escape_untrusted(&String::from_utf8_lossy(typed), usize::MAX);
                let shown = typed.chars().count().saturating_sub(width.saturating_sub(1));
                let end: String = typed.chars().skip(shown).collect();
                self.line(first, "Reason of the denial, for the requester:", Style::new());
                self.line(first + 1, &format!("{end}_"), Style::new());
            }
            Dialog::Remember { unit, digits } => {
                let unit = match unit {
                    Unit::Times => "more times",
                    Unit::Minutes => "minutes",
                };
                self.line(first, &format!("Approve this, also for {digits}_ {unit}"), Style::new());
                self.cut(first + 1, &printable(&app.status), Style::new());
            }
        }
    }

    /// Draws a text on two lines.
    fn folded(&mut self, at: u16, text: &str, style: Style) {
        let split = text.char_indices().nth(usize::from(self.area.width)).map_or(text.len(), |(at, _)| at);
        let (one, two) = text.split_at(split);
        self.line(at, one, style);
        self.cut(at + 1, two, style);
    }
}

fn row(question: &Question, selected: bool, now_ms: u64) -> String {
    format!(
        "{} {:>4} {:>4} {} {} {}",
        if selected { ">" } else { " " },
        since(question, now_ms),
        until(question, now_ms),
        runs_as(question),
        short(&question.digest),
        printable(&question.title),
    )
}

fn runs_as(question: &Question) -> &'static str {
    if question.privileged { "root" } else { "you " }
}

fn since(question: &Question, now_ms: u64) -> String {
    age(now_ms.saturating_sub(question.asked_ms) / 1000)
}

fn until(question: &Question, now_ms: u64) -> String {
    age(question.deadline_ms.saturating_sub(now_ms) / 1000)
}

fn keys(app: &App) -> &'static str {
    let roomy = app.size.columns >= COLUMNS_ROOMY;
    match (&app.view, roomy) {
        (View::List, _) => "Enter details  g grants  q quit",
        (View::Grants, _) => "x revoke  g refresh  Esc back  q quit",
        (View::Details(details), _) => match (&details.dialog, details.question.rememberable) {
            (Dialog::None, true) if roomy => {
                "y approve  n deny  d deny with a note  r remember  Esc back  q quit"
            }
            (Dialog::None, false) if roomy => "y approve  n deny  d deny with a note  Esc back  q quit",
            (Dialog::None, true) => "y approve n deny d note r rem. Esc q",
            (Dialog::None, false) => "y approve n deny d note Esc q",
            (Dialog::Note(_), _) => "Enter deny  Esc cancel",
            (Dialog::Remember { .. }, _) => "t times m minutes y approve Esc cancel",
        },
    }
}
