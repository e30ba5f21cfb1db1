//! What can be measured from outside, as Prometheus reads it, and the door where it is read.

#![forbid(unsafe_code)]

mod http;

pub use http::{Door, serve};

use std::fmt::Write;

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A page in Prometheus' text format. Names and labels are ours: nothing that comes from outside may become one.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// What the values that follow are about.
    pub fn describe(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _infallible = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One value; `labels` as `name="value"`, or nothing.
    pub fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _infallible = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// A value that stands alone.
    pub fn one(&mut self, name: &str, help: &str, kind: Kind, value: impl std::fmt::Display) {
        self.describe(name, help, kind);
        self.value(name, "", value);
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_what_prometheus_reads() {
        let mut page = Page::default();
        page.one("a_total", "How many.", Kind::Counter, 3);
        page.describe("b", "By face.", Kind::Gauge);
        page.value("b", "face=\"exec\"", 0.5);
        let expected = "# HELP a_total How many.\n# TYPE a_total counter\na_total 3\n\
                        # HELP b By face.\n# TYPE b gauge\nb{face=\"exec\"} 0.5\n";
        assert_eq!(page.into_text(), expected);
    }
}
