//! All budgets, and the table that shows which of them hold.

use std::fmt;

/// Output of one child to one client, journal on, as a multiple of what the floor program moves without a journal.
pub(crate) const THROUGHPUT_RATIO_MIN: f64 = 1.2;
/// A client that keeps up loses nothing.
pub(crate) const LOST_MB_MAX: f64 = 0.0;
/// Private memory of the worker after all that output.
pub(crate) const WORKER_AFTER_OUTPUT_MB_MAX: f64 = 16.0;
/// Private memory of worker and keeper for each idle child.
pub(crate) const IDLE_CHILD_KB_MAX: f64 = 24.0;

/// Of the worker and the keeper together, with all faces on.
pub(crate) const IDLE_DAEMON_MB_MAX: f64 = 12.0;
pub(crate) const SERVE_MS_MAX: f64 = 25.0;
/// Private memory of the keeper, which is what makes a start independent of how large the worker is.
pub(crate) const KEEPER_MB_MAX: f64 = 2.0;
/// From `kill -9` of the worker until its successor answers.
pub(crate) const RESTART_MS_MAX: f64 = 10.0;
/// The same with 1,000 children.
pub(crate) const RESTART_MANY_MS_MAX: f64 = 25.0;

/// The same through the relay face, and what the worker may spend on it, as a multiple of the floor's CPU time.
pub(crate) const RELAY_STREAM_RATIO_MIN: f64 = 1.2;
pub(crate) const RELAY_STREAM_CPU_MAX: f64 = 1.6;
/// From the journal, in bytes on the wire.
pub(crate) const RELAY_REPLAY_GB_MIN: f64 = 1.0;
pub(crate) const RELAY_STDIN_MB_MIN: f64 = 400.0;
pub(crate) const RELAY_PINGS_MIN: f64 = 400_000.0;
/// One ping after the other, as a multiple of a bare echo.
pub(crate) const RELAY_PING_RATIO_MAX: f64 = 1.3;
/// From the request to the exit frame, as a multiple of posix_spawn and wait.
pub(crate) const RELAY_SPAWN_RATIO_MAX: f64 = 1.6;
pub(crate) const RELAY_START_MS_MAX: f64 = 10.0;

/// The broker: `true` that a rule allows, against the original's under its grant.
pub(crate) const BROKER_RATIO_MAX: f64 = 0.7;

/// The sessions face: health with 5,000 sessions as a multiple of that with few, the first event after a message as a
/// multiple of what the CLI alone takes for its first line, and what 100,000 unread events take.
pub(crate) const SESSIONS_MANY_RATIO_MIN: f64 = 0.8;
pub(crate) const SESSIONS_FIRST_EVENT_RATIO_MAX: f64 = 5.0;
pub(crate) const SESSIONS_UNREAD_MB_MAX: f64 = 2.0;

/// The exec face against its original, each as a multiple of the original's figure: `/bin/true` read-only and without a
/// sandbox from request to reply, one stream, start to handshake, memory of an idle server, eight commands in flight.
pub(crate) const EXEC_READ_ONLY_RATIO_MAX: f64 = 0.1;
pub(crate) const EXEC_OPEN_RATIO_MAX: f64 = 0.55;
pub(crate) const EXEC_STREAM_RATIO_MIN: f64 = 4.0;
pub(crate) const EXEC_START_RATIO_MAX: f64 = 0.1;
pub(crate) const EXEC_IDLE_RATIO_MAX: f64 = 0.2;
pub(crate) const EXEC_IN_FLIGHT_RATIO_MIN: f64 = 5.0;
/// What the sandbox may cost, as a multiple of our own time without one.
pub(crate) const EXEC_SANDBOX_RATIO_MAX: f64 = 3.0;

/// What a figure is held to.
#[derive(Clone, Copy)]
enum Budget {
    AtLeast(f64),
    AtMost(f64),
    /// For information.
    None,
}

impl Budget {
    fn is_kept(self, value: f64) -> bool {
        match self {
            Budget::AtLeast(min) => value >= min,
            Budget::AtMost(max) => value <= max,
            Budget::None => true,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::AtLeast(min) => f.pad(&format!(">= {min}")),
            Budget::AtMost(max) => f.pad(&format!("<= {max}")),
            Budget::None => f.pad(""),
        }
    }
}

struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    budget: Budget,
}

/// What was measured, in the order it was.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn at_least(&mut self, name: &str, value: f64, unit: &'static str, min: f64) {
        self.push(name, value, unit, Budget::AtLeast(min));
    }

    pub(crate) fn at_most(&mut self, name: &str, value: f64, unit: &'static str, max: f64) {
        self.push(name, value, unit, Budget::AtMost(max));
    }

    /// A figure without a budget.
    pub(crate) fn info(&mut self, name: &str, value: f64, unit: &'static str) {
        self.push(name, value, unit, Budget::None);
    }

    fn push(&mut self, name: &str, value: f64, unit: &'static str, budget: Budget) {
        self.rows.push(Row { name: name.to_owned(), value, unit, budget });
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.rows.iter().all(|row| row.budget.is_kept(row.value))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { name, value, unit, budget } in &self.rows {
            let verdict = match budget {
                Budget::None => "",
                _ if budget.is_kept(*value) => "ok",
                _ => "MISSED",
            };
            let line = format!("{name:<58} {value:>9.2} {unit:<4}  {budget:<8}  {verdict}");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missed_budget_spoils_the_table_and_information_does_not() {
        let mut table = Table::default();
        table.info("a", 1e9, "");
        table.at_most("b", 1.0, "", 1.0);
        table.at_least("c", 1.2, "", 1.2);
        assert!(table.is_kept());
        table.at_least("d", 1.19, "", 1.2);
        assert!(!table.is_kept());
        assert_eq!(table.to_string().matches("MISSED").count(), 1);
    }

    #[test]
    fn a_figure_that_is_none_keeps_no_budget() {
        let mut table = Table::default();
        table.at_most("nothing was measured", f64::NAN, "", 1.0);
        assert!(!table.is_kept());
    }
}
