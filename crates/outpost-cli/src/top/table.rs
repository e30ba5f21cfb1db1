//! The process table of `outpost top`, fitted to the screen: a narrow screen omits the least important columns.

use super::app::{Row, Sort};
use crate::columns::{cut, pad_end, pad_start, width};
use crate::ps::{CUT_MARK, age, command_line, size, state};

/// Widest name; longer ones are cut.
const NAME_COLUMNS_MAX: usize = 24;

/// Smallest width of the command before other columns are omitted.
const COMMAND_COLUMNS_MIN: usize = 16;

/// Width of the selection mark.
const MARK_COLUMNS: usize = 2;

struct Column {
    name: &'static str,
    sort: Option<Sort>,
    right: bool,
    /// Keeps the layout stable while numbers grow.
    columns_min: usize,
    /// Columns with a lower rank are omitted first.
    rank: u8,
    cell: fn(&Row, u64) -> String,
}

const COLUMNS: [Column; 10] = [
    Column { name: "ID", sort: Some(Sort::Name), right: false, columns_min: 8, rank: 10, cell: name },
    Column { name: "FACE", sort: None, right: false, columns_min: 8, rank: 5, cell: face },
    Column { name: "PID", sort: None, right: true, columns_min: 7, rank: 4, cell: pid },
    Column { name: "STATE", sort: None, right: false, columns_min: 7, rank: 7, cell: state_cell },
    Column { name: "AGE", sort: Some(Sort::Age), right: true, columns_min: 5, rank: 6, cell: age_cell },
    Column { name: "CPU", sort: Some(Sort::Cpu), right: true, columns_min: 5, rank: 9, cell: cpu },
    Column { name: "MEMORY", sort: Some(Sort::Memory), right: true, columns_min: 8, rank: 8, cell: memory },
    Column { name: "OUTPUT", sort: None, right: true, columns_min: 7, rank: 2, cell: output },
    Column { name: "RATE", sort: Some(Sort::Rate), right: true, columns_min: 9, rank: 3, cell: rate },
    Column { name: "READERS", sort: None, right: true, columns_min: 7, rank: 1, cell: readers },
];

fn name(row: &Row, _: u64) -> String {
    cut(&row.name.escape_debug().to_string(), NAME_COLUMNS_MAX, CUT_MARK).into_owned()
}

fn face(row: &Row, _: u64) -> String {
    row.info.face.escape_debug().to_string()
}

fn pid(row: &Row, _: u64) -> String {
    row.info.pid.to_string()
}

fn state_cell(row: &Row, _: u64) -> String {
    state(&row.info)
}

fn age_cell(row: &Row, now_ms: u64) -> String {
    age(now_ms.saturating_sub(row.info.started_ms) / 1000)
}

fn cpu(row: &Row, _: u64) -> String {
    row.cpu.map_or_else(|| "-".into(), |percent| format!("{percent}%"))
}

fn memory(row: &Row, _: u64) -> String {
    if row.is_running() { size(row.info.rss_bytes) } else { "-".into() }
}

fn output(row: &Row, _: u64) -> String {
    size(row.info.output_bytes)
}

fn rate(row: &Row, _: u64) -> String {
    row.rate.map_or_else(|| "-".into(), |bytes| format!("{}/s", size(bytes)))
}

fn readers(row: &Row, _: u64) -> String {
    row.info.readers.to_string()
}

/// The sort order, for the heading.
#[derive(Clone, Copy)]
pub(super) struct SortOrder {
    pub(super) by: Sort,
    pub(super) reversed: bool,
}

/// A heading and one line per row, cut to the width of the screen.
pub(super) fn lines(
    rows: &[(&Row, bool)],
    sort_order: SortOrder,
    now_ms: u64,
    columns: usize,
) -> Vec<String> {
    let cells: Vec<[String; 10]> =
        rows.iter().map(|(row, _)| COLUMNS.each_ref().map(|column| (column.cell)(row, now_ms))).collect();
    let heading = COLUMNS.each_ref().map(|column| heading(column, sort_order));
    let all = || std::iter::once(&heading).chain(&cells);
    let widths: [usize; 10] = std::array::from_fn(|at| {
        let widest = all().filter_map(|row| row.get(at)).map(|cell| width(cell)).max();
        widest.unwrap_or_default().max(COLUMNS.get(at).map_or(0, |column| column.columns_min))
    });
    let visible = visible_columns(&widths, columns);
    let line = |mark: &str, row: &[String; 10], last: &str| {
        let mut line = mark.to_owned();
        let parts = row.iter().zip(&COLUMNS).zip(widths).zip(visible);
        for (((cell, column), width), _) in parts.filter(|(_, visible)| *visible) {
            line += &if column.right { pad_start(cell, width) } else { pad_end(cell, width) };
            line += "  ";
        }
        cut(&(line + last), columns, CUT_MARK).into_owned()
    };
    let processes = rows.iter().zip(&cells).map(|((row, selected), cells)| {
        line(if *selected { "> " } else { "  " }, cells, &command_line(&row.info.command))
    });
    std::iter::once(line("  ", &heading, "COMMAND")).chain(processes).collect()
}

/// The heading of a column; the sort column is in brackets.
fn heading(column: &Column, sort_order: SortOrder) -> String {
    match column.sort == Some(sort_order.by) {
        true if sort_order.reversed => format!("[{} ^]", column.name),
        true => format!("[{}]", column.name),
        false => column.name.to_owned(),
    }
}

/// The columns that fit. The name is always shown.
fn visible_columns(widths: &[usize; 10], columns: usize) -> [bool; 10] {
    let mut visible = [true; 10];
    let mut by_rank: Vec<usize> = (1..COLUMNS.len()).collect();
    by_rank.sort_by_key(|at| COLUMNS.get(*at).map(|column| column.rank));
    for at in by_rank {
        let taken: usize =
            widths.iter().zip(visible).filter(|(_, visible)| *visible).map(|(width, _)| width + 2).sum();
        if MARK_COLUMNS + taken + COMMAND_COLUMNS_MIN <= columns {
            break;
        }
        if let Some(visible) = visible.get_mut(at) {
            *visible = false;
        }
    }
    visible
}
