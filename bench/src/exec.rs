//! The exec face as a client sees it, in turn with its original: starts, commands, streams, and what an idle server costs.

mod commands;
mod idle;
mod server;
mod streams;

use crate::Result;
use crate::budget::Table;
use server::{Contender, Server};
use std::path::Path;

pub(crate) fn measure(table: &mut Table, binary: &Path, peer: Option<&Path>, quick: bool) -> Result<()> {
    let mut contenders = vec![Contender::new("ours", binary)?];
    match peer {
        Some(peer) => contenders.push(Contender::new("original", peer)?),
        None => {
            println!("exec: without the original (--peer-exec or OUTPOST_EXEC_PEER); only ours is measured")
        }
    }
    idle::measure(table, &contenders, quick)?;
    commands::measure(table, &contenders, quick)?;
    streams::measure(table, &contenders, quick)
}

/// Both figures, and their ratio with its budget when there are two.
struct Pair<'a> {
    name: &'a str,
    unit: &'static str,
}

impl Pair<'_> {
    fn info(&self, table: &mut Table, figures: &[f64]) {
        for (figure, label) in figures.iter().zip(["", ", the original"]) {
            table.info(&format!("exec: {}{label}", self.name), *figure, self.unit);
        }
    }

    /// How many times as much as the original's ours is, when there is an original.
    fn ratio(figures: &[f64]) -> Option<f64> {
        match figures {
            [ours, original] => Some(ours / original),
            _ => None,
        }
    }

    fn at_most(&self, table: &mut Table, figures: &[f64], max: f64) {
        self.info(table, figures);
        if let Some(ratio) = Pair::ratio(figures) {
            table.at_most(&format!("exec: {} / original", self.name), ratio, "x", max);
        }
    }

    fn at_least(&self, table: &mut Table, figures: &[f64], min: f64) {
        self.info(table, figures);
        if let Some(ratio) = Pair::ratio(figures) {
            table.at_least(&format!("exec: {} / original", self.name), ratio, "x", min);
        }
    }
}

/// One running server of each.
fn start_all(contenders: &[Contender]) -> Result<Vec<Server>> {
    contenders.iter().map(Contender::start).collect()
}
