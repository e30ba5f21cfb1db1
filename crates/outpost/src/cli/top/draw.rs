//! The full screen as it is drawn, at any size: the daemon, what there is of everything, the list or one process, sessions, keys.

use super::app::{App, Dialog, Flow, Row, View};
use super::table::{self, Arranged};
use crate::cli::approver::printable;
use crate::cli::fullscreen::{BAR, Canvas, Looks, first_row, style_of};
use crate::cli::list::{age, cut, size, state, width};
use crate::cli::sessions;
use outpost_approvals::display;
use outpost_control::wire::{Status, Usage};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};

/// With fewer rows what there is of everything is not told, and with fewer yet nothing but the list.
const ROWS_FOR_SUMMARY: u16 = 10;
const ROWS_FOR_STATUS: u16 = 6;
const ROWS_FOR_SESSIONS: u16 = 16;

const SUMMARY_ROWS: u16 = 3;

/// With fewer columns the words are shorter.
const COLUMNS_ROOMY: u16 = 100;

/// What comes where, by row.
struct Places {
    summary: Option<u16>,
    /// The list or the details.
    body: u16,
    body_rows: u16,
    /// A heading, and so many sessions.
    sessions: Option<(u16, u16)>,
    status: Option<u16>,
    keys: Option<u16>,
}

impl Places {
    fn of(app: &App) -> Places {
        let rows = app.size.rows;
        let summary = (rows >= ROWS_FOR_SUMMARY).then_some(1);
        let body = 1 + summary.map_or(0, |_| SUMMARY_ROWS);
        let keys = (rows >= 2).then(|| rows - 1);
        let status = (rows >= ROWS_FOR_STATUS).then(|| rows - 2);
        let mut end = status.or(keys).unwrap_or(rows);
        let count = app.sessions.as_ref().map_or(0, |sessions| rows_of(sessions.len()));
        // What the list does not need, and some in any case.
        let spare = end.saturating_sub(body).saturating_sub(rows_of(app.order.len()).saturating_add(2));
        let shown = count.min(spare.max(rows.saturating_sub(ROWS_FOR_SESSIONS) / 4 + 1));
        let is_shown = rows >= ROWS_FOR_SESSIONS && count > 0 && app.view == View::List;
        let sessions = is_shown.then(|| {
            end -= shown + 1;
            (end, shown)
        });
        Places { summary, body, body_rows: end.saturating_sub(body), sessions, status, keys }
    }

    /// Without the heading of the list.
    fn list_rows(&self) -> usize {
        usize::from(self.body_rows.saturating_sub(1))
    }
}

fn rows_of(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// By how much a page moves.
pub(super) fn page_rows(app: &App) -> usize {
    let places = Places::of(app);
    match app.view {
        View::List => places.list_rows(),
        View::Details { .. } => usize::from(places.body_rows),
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, looks: Looks) {
    let mut canvas = Canvas::new(frame, looks);
    let places = Places::of(app);
    head(&mut canvas, app);
    if let (Some(at), Some(_)) = (places.summary, &app.daemon) {
        summary(&mut canvas, app, at);
    }
    match app.view {
        View::List => list(&mut canvas, app, &places),
        View::Details { top } => {
            let lines = app.selected_row().map(|row| details(row, app)).unwrap_or_default();
            for (at, line) in (places.body..).zip(lines.iter().skip(top).take(places.body_rows.into())) {
                canvas.line(at, line, Style::new());
            }
        }
    }
    if let (Some((at, rows)), Ok(all)) = (places.sessions, &app.sessions) {
        session_list(&mut canvas, all, at, rows);
    }
    let told = told(app);
    // What is asked is in sight on the smallest screen.
    match (places.status, places.keys) {
        (Some(status), Some(keys)) => {
            canvas.cut(status, &told, Style::new());
            canvas.cut(keys, keys_of(app), BAR);
        }
        (None, Some(keys)) if told.is_empty() => canvas.cut(keys, keys_of(app), BAR),
        (None, keys) if !told.is_empty() => canvas.cut(keys.unwrap_or_default(), &told, BAR),
        _ => {}
    }
}

fn head(canvas: &mut Canvas<'_>, app: &App) {
    let roomy = canvas.area.width >= COLUMNS_ROOMY;
    match (&app.away, &app.daemon) {
        (Some(away), _) => {
            let (since, why) = (age(away.since.elapsed().as_secs()), printable(&away.why));
            let style = canvas.looks.coloured(BAR, Color::Red);
            canvas.cut(0, &format!("THE DAEMON IS AWAY for {since}, this is from before: {why}"), style);
        }
        (None, None) => canvas.cut(0, "outpost top: asking the daemon", BAR),
        (None, Some(daemon)) => canvas.cut(0, &daemon_line(daemon, roomy), BAR),
    }
}

fn daemon_line(daemon: &Status, roomy: bool) -> String {
    let part = |name: &str, pid: u32, usage: Option<Usage>| match usage {
        Some(Usage { rss_bytes, age_ms }) if roomy => {
            format!("{name} {pid} up {}, {}", age(age_ms / 1000), size(rss_bytes))
        }
        Some(Usage { rss_bytes, age_ms }) => {
            format!("{name} {pid} {} {}", age(age_ms / 1000), size(rss_bytes))
        }
        None => format!("{name} {pid}"),
    };
    let keeper = part("keeper", daemon.keeper_pid, daemon.keeper);
    let worker = part("worker", daemon.worker_pid, daemon.worker);
    let stands = if daemon.keeping { "  STOPPED, keeps its processes" } else { "" };
    format!("outpost {}{stands}  {keeper}  {worker}", escaped(&daemon.version))
}

fn summary(canvas: &mut Canvas<'_>, app: &App, at: u16) {
    let plain = Style::new();
    canvas.cut(at, &format!("Processes  {}", processes(app)), plain);
    let sessions = match &app.sessions {
        Ok(all) => {
            let is_busy =
                |session: &&[String; 7]| session.get(sessions::STATUS).is_some_and(|status| status == "busy");
            match (all.len(), all.iter().filter(is_busy).count()) {
                (0, _) => "none".into(),
                (all, 0) => format!("{all}, none busy"),
                (all, busy) => format!("{all}, {busy} busy"),
            }
        }
        Err(why) => format!("not known: {}", printable(why)),
    };
    canvas.cut(at + 1, &format!("Sessions   {sessions}"), plain);
    let waiting = app.daemon.as_ref().and_then(|daemon| daemon.faces.waiting);
    let (text, style) = match waiting {
        None => ("nobody is asked by this daemon".to_owned(), plain),
        Some(waiting) if waiting.questions == 0 => ("nothing waits for a human".to_owned(), plain),
        Some(waiting) => {
            let since = age(waiting.oldest_ms / 1000);
            let count = match waiting.questions {
                1 => format!("1 waits, for {since}"),
                more => format!("{more} wait, the oldest for {since}"),
            };
            let bold = Style::new().add_modifier(Modifier::BOLD);
            let style = canvas.looks.coloured(bold, Color::Yellow);
            (format!("{count}: outpost approve (what it is, only approvers are told)"), style)
        }
    };
    canvas.cut(at + 2, &format!("Approvals  {text}"), style);
}

fn processes(app: &App) -> String {
    let running = app.rows.iter().filter(|row| row.lives()).count();
    let mut text = format!("{running} running, {} ended", app.rows.len() - running);
    if let Some(Flow { started, ended, bytes }) = app.flow {
        text += &format!("; started {started:.1}/s, ended {ended:.1}/s; output {}/s", size(bytes));
    }
    if !app.filter.is_empty() {
        text += &format!("; {} with \"{}\"", app.order.len(), escaped(&app.filter));
    }
    text
}

fn list(canvas: &mut Canvas<'_>, app: &App, places: &Places) {
    if places.body_rows == 0 {
        return;
    }
    let selected = app.selected_at();
    let rows = places.list_rows();
    let in_sight: Vec<(&Row, bool)> = app
        .order
        .iter()
        .enumerate()
        .skip(first_row(selected, rows))
        .take(rows)
        .filter_map(|(at, row)| Some((app.rows.get(*row)?, selected == Some(at))))
        .collect();
    let arranged = Arranged { by: app.sort, reversed: app.reversed };
    let lines = table::lines(&in_sight, arranged, app.now_ms, canvas.area.width.into());
    let mut lines = (places.body..).zip(lines);
    if let Some((at, heading)) = lines.next() {
        canvas.line(at, &heading, Style::new().add_modifier(Modifier::BOLD));
    }
    for ((at, line), (_, selected)) in lines.zip(&in_sight) {
        canvas.line(at, &line, style_of(*selected));
    }
    if in_sight.is_empty() && rows > 0 && app.daemon.is_some() {
        let none = match (app.filter.is_empty(), app.with_ended) {
            (false, _) => "  none of them; / changes the filter",
            (true, true) => "  nothing has run yet: outpost run -- uname -a",
            (true, false) => "  nothing runs; e shows what has ended",
        };
        canvas.cut(places.body + 1, none, Style::new());
    }
}

fn session_list(canvas: &mut Canvas<'_>, all: &[[String; 7]], at: u16, rows: u16) {
    let mut table = vec![sessions::HEAD.map(str::to_owned)];
    if let Some(first) = table.first_mut().and_then(|heading| heading.first_mut()) {
        *first = "SESSION".into();
    }
    // Those that do something first: there may be more than are shown.
    let mut sorted: Vec<&[String; 7]> = all.iter().collect();
    sorted.sort_by_key(|session| session.get(sessions::STATUS).is_none_or(|status| status != "busy"));
    let shown = sorted.into_iter().take(rows.into());
    table.extend(shown.map(|session| session.each_ref().map(|cell| escaped(cell))));
    let widths: Vec<usize> = (0..sessions::HEAD.len())
        .map(|column| {
            table.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    for (row, place) in table.iter().zip(at..) {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, wanted)| format!("{cell}{}  ", " ".repeat(wanted.saturating_sub(width(cell)))))
            .collect();
        let style = if place == at { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        let line = format!("  {}", line.trim_end());
        canvas.line(place, &cut(&line, Some(canvas.area.width.into())), style);
    }
}

/// How many lines the details have.
pub(super) fn details_rows(app: &App) -> usize {
    app.selected_row().map_or(0, |row| details(row, app).len())
}

/// Everything about a process, none of it wider than the screen.
fn details(row: &Row, app: &App) -> Vec<String> {
    let info = &row.info;
    let while_alive = |text: String| if row.lives() { text } else { "-".into() };
    let percent = row.cpu.map_or_else(String::new, |percent| format!("{percent}% now, "));
    let rate = row.rate.map_or_else(String::new, |bytes| format!(", {}/s now", size(bytes)));
    let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let started = age(app.now_ms.saturating_sub(info.started_ms) / 1000);
    let by = if info.started_by.is_empty() { String::new() } else { format!(" by {}", info.started_by) };
    let lines = [
        ("Process", format!("{}, number {}", info.address(), info.process)),
        ("State", state(info)),
        ("Pid", info.pid.to_string()),
        ("Started", format!("{started} ago{by}")),
        ("Command", display::command(std::slice::from_ref(&info.command))),
        ("Directory", info.directory.clone().unwrap_or_else(|| "-".into())),
        ("Stdio", if info.terminal { "a terminal".into() } else { "pipes".into() }),
        ("CPU", while_alive(format!("{percent}{} in all", seconds(info.cpu_ms)))),
        ("Memory", while_alive(size(info.rss_bytes))),
        ("Output", format!("{} written, {} kept{rate}", size(info.output_bytes), size(info.kept_bytes))),
        ("Frames", format!("{} to {}", info.first_seq, info.last_seq)),
        ("Input", format!("{} accepted", size(info.stdin_accepted))),
        ("Readers", info.readers.to_string()),
    ];
    let columns = usize::from(app.size.columns);
    lines
        .iter()
        .flat_map(|(name, value)| display::wrap(&format!("{name:<10} {}", printable(value)), columns))
        .collect()
}

/// What is being typed or asked, or what happened last.
fn told(app: &App) -> String {
    match &app.dialog {
        Dialog::None => app.status.clone(),
        Dialog::Filter(typed) => format!("Only those with: {}_", escaped(&String::from_utf8_lossy(typed))),
        Dialog::End { name, pid, .. } => {
            format!("y ends {} (pid {pid}) and everything it started", escaped(name))
        }
    }
}

fn keys_of(app: &App) -> &'static str {
    let roomy = app.size.columns >= COLUMNS_ROOMY;
    match (&app.dialog, app.view) {
        (Dialog::Filter(_), _) => "Enter keeps it  Esc shows all",
        (Dialog::End { .. }, _) => "y ends it  any other key does not",
        (Dialog::None, View::Details { .. }) => "Esc back  a attach  k end  q quit",
        (Dialog::None, View::List) if roomy => {
            "Enter details  a attach  k end  / filter  e ended  sort: c m o t n, r reverse  q quit"
        }
        (Dialog::None, View::List) => "q quit  Enter  a attach  k end  / filter  e ended  sort cmotn r",
    }
}

/// Names and words of others: nothing in them reaches the terminal as a command to it.
pub(super) fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
