//! Prometheus' text format, and the HTTP endpoint that serves it.

mod http;

pub use http::serve;

use std::fmt::Write;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A page in Prometheus' text format. Names and labels must be constants: data of clients must not become
/// one.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Starts a metric: its HELP and TYPE lines.
    pub fn describe(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _infallible = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One sample; `labels` is `name="value"` or empty.
    pub fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _infallible = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// A metric with one sample and no labels.
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
