//! Draws the full screen of `outpost top` at any size: daemon, summary, process list or details, sessions, keys.

use super::app::{App, Dialog, Row, Throughput, View};
use super::table::{self, SortOrder};
use crate::approver::printable;
use crate::columns::{cut, pad_end, width};
use crate::fullscreen::{BAR, Canvas, Theme, first_row, style_of};
use crate::ps::{CUT_MARK, age, size, state};
use crate::sessions;
use outpost_approvals::display;
use outpost_control::wire::{Status, Usage};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};

/// Smallest heights for the optional parts of the screen.
const ROWS_FOR_SUMMARY: u16 = 10;
const ROWS_FOR_STATUS: u16 = 6;
const ROWS_FOR_SESSIONS: u16 = 16;

const SUMMARY_ROWS: u16 = 3;

/// Narrower screens use shorter texts.
const COLUMNS_ROOMY: u16 = 100;

/// The rows of each part of the screen.
struct Layout {
    summary: Option<u16>,
    /// The list or the details.
    body: u16,
    body_rows: u16,
    /// First row and number of sessions, below a heading.
    sessions: Option<(u16, u16)>,
    status: Option<u16>,
    keys: Option<u16>,
}

impl Layout {
    fn of(app: &App) -> Layout {
        let rows = app.size.rows;
        let summary = (rows >= ROWS_FOR_SUMMARY).then_some(1);
        let body = 1 + summary.map_or(0, |_| SUMMARY_ROWS);
        let keys = (rows >= 2).then(|| rows - 1);
        let status = (rows >= ROWS_FOR_STATUS).then(|| rows - 2);
        let mut end = status.or(keys).unwrap_or(rows);
        let count = app.sessions.as_ref().map_or(0, |sessions| rows_of(sessions.len()));
        // Sessions get the rows that the list does not need, and at least a quarter of a large screen.
        let spare = end.saturating_sub(body).saturating_sub(rows_of(app.order.len()).saturating_add(2));
        let shown = count.min(spare.max(rows.saturating_sub(ROWS_FOR_SESSIONS) / 4 + 1));
        let is_shown = rows >= ROWS_FOR_SESSIONS && count > 0 && app.view == View::List;
        let sessions = is_shown.then(|| {
            end -= shown + 1;
            (end, shown)
        });
        Layout { summary, body, body_rows: end.saturating_sub(body), sessions, status, keys }
    }

    /// Without the heading of the list.
    fn list_rows(&self) -> usize {
        usize::from(self.body_rows.saturating_sub(1))
    }
}

fn rows_of(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Rows of one page.
pub(super) fn page_rows(app: &App) -> usize {
    let layout = Layout::of(app);
    match app.view {
        View::List => layout.list_rows(),
        View::Details { .. } => usize::from(layout.body_rows),
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, theme: Theme) {
    let mut canvas = Canvas::new(frame, theme);
    let layout = Layout::of(app);
    head(&mut canvas, app);
    if let (Some(at), Some(_)) = (layout.summary, &app.daemon) {
        summary(&mut canvas, app, at);
    }
    match app.view {
        View::List => list(&mut canvas, app, &layout),
        View::Details { top } => {
            let lines = app.selected_row().map(|row| details(row, app)).unwrap_or_default();
            for (at, line) in (layout.body..).zip(lines.iter().skip(top).take(layout.body_rows.into())) {
                canvas.line(at, line, Style::new());
            }
        }
    }
    if let (Some((at, rows)), Ok(all)) = (layout.sessions, &app.sessions) {
        session_list(&mut canvas, all, at, rows);
    }
    let status_text = status_text(app);
    // A question of a dialog must be visible even on the smallest screen.
    match (layout.status, layout.keys) {
        (Some(status), Some(keys)) => {
            canvas.cut(status, &status_text, Style::new());
            canvas.cut(keys, keys_of(app), BAR);
        }
        (None, Some(keys)) if status_text.is_empty() => canvas.cut(keys, keys_of(app), BAR),
        (None, keys) if !status_text.is_empty() => canvas.cut(keys.unwrap_or_default(), &status_text, BAR),
        _ => {}
    }
}

fn head(canvas: &mut Canvas<'_>, app: &App) {
    let roomy = canvas.area.width >= COLUMNS_ROOMY;
    match (&app.outage, &app.daemon) {
        (Some(outage), _) => {
            let (since, why) = (age(outage.since.elapsed().as_secs()), printable(&outage.why));
            let style = canvas.theme.paint(BAR, Color::Red);
            canvas.cut(0, &format!("DAEMON UNREACHABLE for {since}, data is old: {why}"), style);
        }
        (None, None) => canvas.cut(0, "outpost top: waiting for the daemon", BAR),
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
    let state = if daemon.keeping { "  STOPPED, keeps its processes" } else { "" };
    format!("outpost {}{state}  {keeper}  {worker}", escaped(&daemon.version))
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
        Err(why) => format!("unknown: {}", printable(why.lines().next().unwrap_or_default())),
    };
    canvas.cut(at + 1, &format!("Sessions   {sessions}"), plain);
    let waiting = app.daemon.as_ref().and_then(|daemon| daemon.faces.waiting);
    let (text, style) = match waiting {
        None => ("not used by this daemon".to_owned(), plain),
        Some(waiting) if waiting.questions == 0 => ("none pending".to_owned(), plain),
        Some(waiting) => {
            let since = age(waiting.oldest_ms / 1000);
            let count = match waiting.questions {
                1 => format!("1 pending for {since}"),
                more => format!("{more} pending, the oldest for {since}"),
            };
            let bold = Style::new().add_modifier(Modifier::BOLD);
            let style = canvas.theme.paint(bold, Color::Yellow);
            (format!("{count}: outpost approve"), style)
        }
    };
    canvas.cut(at + 2, &format!("Approvals  {text}"), style);
}

fn processes(app: &App) -> String {
    let running = app.rows.iter().filter(|row| row.is_running()).count();
    let mut text = format!("{running} running, {} ended", app.rows.len() - running);
    if let Some(Throughput { started, ended, bytes }) = app.throughput {
        text += &format!("; started {started:.1}/s, ended {ended:.1}/s; output {}/s", size(bytes));
    }
    if !app.filter.is_empty() {
        text += &format!("; {} with \"{}\"", app.order.len(), escaped(&app.filter));
    }
    text
}

fn list(canvas: &mut Canvas<'_>, app: &App, layout: &Layout) {
    if layout.body_rows == 0 {
        return;
    }
    let selected = app.selected_at();
    let rows = layout.list_rows();
    let in_sight: Vec<(&Row, bool)> = app
        .order
        .iter()
        .enumerate()
        .skip(first_row(selected, rows))
        .take(rows)
        .filter_map(|(at, row)| Some((app.rows.get(*row)?, selected == Some(at))))
        .collect();
    let sort_order = SortOrder { by: app.sort, reversed: app.reversed };
    let lines = table::lines(&in_sight, sort_order, app.now_ms, canvas.area.width.into());
    let mut lines = (layout.body..).zip(lines);
    if let Some((at, heading)) = lines.next() {
        canvas.line(at, &heading, Style::new().add_modifier(Modifier::BOLD));
    }
    for ((at, line), (_, selected)) in lines.zip(&in_sight) {
        canvas.line(at, &line, style_of(*selected));
    }
    if in_sight.is_empty() && rows > 0 && app.daemon.is_some() {
        let none = match (app.filter.is_empty(), app.show_ended) {
            (false, _) => "  no process matches; / changes the filter",
            (true, true) => "  no processes yet: outpost run -- uname -a",
            (true, false) => "  no running processes; e shows ended ones",
        };
        canvas.cut(layout.body + 1, none, Style::new());
    }
}

fn session_list(canvas: &mut Canvas<'_>, all: &[[String; 7]], at: u16, rows: u16) {
    let mut table = vec![sessions::COLUMNS.map(str::to_owned)];
    if let Some(first) = table.first_mut().and_then(|heading| heading.first_mut()) {
        *first = "SESSION".into();
    }
    // Busy sessions first, because not all may fit.
    let mut sorted: Vec<&[String; 7]> = all.iter().collect();
    sorted.sort_by_key(|session| session.get(sessions::STATUS).is_none_or(|status| status != "busy"));
    let shown = sorted.into_iter().take(rows.into());
    table.extend(shown.map(|session| session.each_ref().map(|cell| escaped(cell))));
    let widths: Vec<usize> = (0..sessions::COLUMNS.len())
        .map(|column| {
            table.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    for (row, place) in table.iter().zip(at..) {
        let cells = row.iter().zip(&widths);
        let line: String = cells.map(|(cell, wanted)| pad_end(cell, *wanted) + "  ").collect();
        let style = if place == at { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        let line = format!("  {}", line.trim_end());
        canvas.line(place, &cut(&line, canvas.area.width.into(), CUT_MARK), style);
    }
}

/// Number of lines of the details.
pub(super) fn details_rows(app: &App) -> usize {
    app.selected_row().map_or(0, |row| details(row, app).len())
}

/// All facts about a process, wrapped to the width of the screen.
fn details(row: &Row, app: &App) -> Vec<String> {
    let info = &row.info;
    let while_alive = |text: String| if row.is_running() { text } else { "-".into() };
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
        ("CPU", while_alive(format!("{percent}{} total", seconds(info.cpu_ms)))),
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

/// The active dialog, or the last event.
fn status_text(app: &App) -> String {
    match &app.dialog {
        Dialog::None => app.status.clone(),
        Dialog::Filter(typed) => format!("Filter: {}_", escaped(&String::from_utf8_lossy(typed))),
        Dialog::ConfirmKill { name, pid, .. } => {
            format!("y kills {} (pid {pid}) and its descendants", escaped(name))
        }
    }
}

fn keys_of(app: &App) -> &'static str {
    let roomy = app.size.columns >= COLUMNS_ROOMY;
    match (&app.dialog, app.view) {
        (Dialog::Filter(_), _) => "Enter apply  Esc clear",
        (Dialog::ConfirmKill { .. }, _) => "y kill  any other key cancels",
        (Dialog::None, View::Details { .. }) => "Esc back  a attach  k kill  q quit",
        (Dialog::None, View::List) if roomy => {
            "Enter details  a attach  k kill  / filter  e ended  sort: c m o t n, r reverse  q quit"
        }
        (Dialog::None, View::List) => "q quit  Enter  a attach  k kill  / filter  e ended  sort cmotn r",
    }
}

/// Foreign text with its control characters escaped.
pub(super) fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
