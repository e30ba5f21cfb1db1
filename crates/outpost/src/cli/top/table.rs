//! The processes as lines of a table that is as wide as the screen: what matters least goes first where room is short.

use super::app::{Row, Sort};
use crate::cli::list::{age, cut, shown, size, state, width};

/// The widest name that is shown whole.
const NAME_COLUMNS_MAX: usize = 24;

/// What the command gets at least, before other columns go.
const COMMAND_COLUMNS_MIN: usize = 16;

/// What stands before each line.
const MARK_COLUMNS: usize = 2;

struct Column {
    name: &'static str,
    sort: Option<Sort>,
    right: bool,
    /// So that numbers that grow do not move everything each second.
    columns_min: usize,
    /// Columns of a lower rank go first.
    rank: u8,
    cell: fn(&Row, u64) -> String,
}

const COLUMNS: [Column; 10] = [
    Column { name: "ID", sort: Some(Sort::Name), right: false, columns_min: 8, rank: 10, cell: name },
    Column { name: "FACE", sort: None, right: false, columns_min: 8, rank: 5, cell: face },
    Column { name: "PID", sort: None, right: true, columns_min: 7, rank: 4, cell: pid },
    Column { name: "STATE", sort: None, right: false, columns_min: 7, rank: 7, cell: stands },
    Column { name: "AGE", sort: Some(Sort::Age), right: true, columns_min: 5, rank: 6, cell: old },
    Column { name: "CPU", sort: Some(Sort::Cpu), right: true, columns_min: 5, rank: 9, cell: cpu },
    Column { name: "MEMORY", sort: Some(Sort::Memory), right: true, columns_min: 8, rank: 8, cell: memory },
    Column { name: "OUTPUT", sort: None, right: true, columns_min: 7, rank: 2, cell: output },
    Column { name: "RATE", sort: Some(Sort::Rate), right: true, columns_min: 9, rank: 3, cell: rate },
    Column { name: "READERS", sort: None, right: true, columns_min: 7, rank: 1, cell: readers },
];

fn name(row: &Row, _: u64) -> String {
    cut(&row.name.escape_debug().to_string(), Some(NAME_COLUMNS_MAX)).into_owned()
}

fn face(row: &Row, _: u64) -> String {
    row.info.face.escape_debug().to_string()
}

fn pid(row: &Row, _: u64) -> String {
    row.info.pid.to_string()
}

fn stands(row: &Row, _: u64) -> String {
    state(&row.info)
}

fn old(row: &Row, now_ms: u64) -> String {
    age(now_ms.saturating_sub(row.info.started_ms) / 1000)
}

fn cpu(row: &Row, _: u64) -> String {
    row.cpu.map_or_else(|| "-".into(), |percent| format!("{percent}%"))
}

fn memory(row: &Row, _: u64) -> String {
    if row.lives() { size(row.info.rss_bytes) } else { "-".into() }
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

/// How the list is arranged, for its heading.
#[derive(Clone, Copy)]
pub(super) struct Arranged {
    pub(super) by: Sort,
    pub(super) reversed: bool,
}

/// A heading and a line for each row. None is wider than the screen.
pub(super) fn lines(rows: &[(&Row, bool)], arranged: Arranged, now_ms: u64, columns: usize) -> Vec<String> {
    let cells: Vec<[String; 10]> =
        rows.iter().map(|(row, _)| COLUMNS.each_ref().map(|column| (column.cell)(row, now_ms))).collect();
    let heading = COLUMNS.each_ref().map(|column| headed(column, arranged));
    let all = || std::iter::once(&heading).chain(&cells);
    let widths: [usize; 10] = std::array::from_fn(|at| {
        let widest = all().filter_map(|row| row.get(at)).map(|cell| width(cell)).max();
        widest.unwrap_or_default().max(COLUMNS.get(at).map_or(0, |column| column.columns_min))
    });
    let kept = kept(&widths, columns);
    let line = |mark: &str, row: &[String; 10], last: &str| {
        let mut line = mark.to_owned();
        let parts = row.iter().zip(&COLUMNS).zip(widths).zip(kept);
        for (((cell, column), width_wanted), _) in parts.filter(|(_, kept)| *kept) {
            let blanks = " ".repeat(width_wanted.saturating_sub(width(cell)));
            line += &if column.right { format!("{blanks}{cell}  ") } else { format!("{cell}{blanks}  ") };
        }
        cut(&(line + last), Some(columns)).into_owned()
    };
    let processes = rows.iter().zip(&cells).map(|((row, selected), cells)| {
        line(if *selected { "> " } else { "  " }, cells, &shown(&row.info.command))
    });
    std::iter::once(line("  ", &heading, "COMMAND")).chain(processes).collect()
}

/// What the list is arranged by stands in brackets.
fn headed(column: &Column, arranged: Arranged) -> String {
    match column.sort == Some(arranged.by) {
        true if arranged.reversed => format!("[{} ^]", column.name),
        true => format!("[{}]", column.name),
        false => column.name.to_owned(),
    }
}

/// Which columns there is room for. The name stays in any case.
fn kept(widths: &[usize; 10], columns: usize) -> [bool; 10] {
    let mut kept = [true; 10];
    let mut by_rank: Vec<usize> = (1..COLUMNS.len()).collect();
    by_rank.sort_by_key(|at| COLUMNS.get(*at).map(|column| column.rank));
    for at in by_rank {
        let taken: usize =
            widths.iter().zip(kept).filter(|(_, kept)| *kept).map(|(width, _)| width + 2).sum();
        if MARK_COLUMNS + taken + COMMAND_COLUMNS_MIN <= columns {
            break;
        }
        if let Some(kept) = kept.get_mut(at) {
            *kept = false;
        }
    }
    kept
}
