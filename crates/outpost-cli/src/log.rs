//! The log: writes redacted lines to standard error, as text, as JSON, or for journald.

use crate::config;
use crate::redact;
use crate::tty;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people
    Text,
    /// One JSON object per line
    Json,
    /// The priority as `<N>` before the line, and no time: journald has both
    Journald,
}

/// The current [`Format`]. A reload of the configuration can change it.
static FORMAT: AtomicU8 = AtomicU8::new(Format::Text as u8);
/// Replaces the filter of the running subscriber.
static FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();
/// The log file that standard error refers to, if `serve --detach` opened one, and the size at which it rotates.
static FILE: OnceLock<PathBuf> = OnceLock::new();
static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// `OUTPOST_LOG` overrides the configured level.
fn filter(level: &str) -> EnvFilter {
    EnvFilter::try_from_env("OUTPOST_LOG").unwrap_or_else(|_| level.into())
}

/// Installs the subscriber of this process.
pub fn init(level: &str) {
    redact::learn_environment(std::env::vars_os());
    let (filter, handle) = reload::Layer::new(filter(level));
    let _set_once = FILTER.set(Box::new(move |filter| {
        let _subscriber_gone = handle.reload(filter);
    }));
    let lines = tracing_subscriber::fmt::layer()
        .event_format(LineFormat::new())
        .with_ansi(io::stderr().is_terminal() && tty::wants_colors())
        .with_writer(|| RedactingStderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
}

/// Applies the `[log]` table to the running subscriber.
pub fn configure(log: &config::Log) {
    FORMAT.store(log.format.unwrap_or(Format::Text) as u8, Ordering::Relaxed);
    FILE_BYTES_MAX.store(log.file_bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    if let (Some(set), Some(level)) = (FILTER.get(), &log.level) {
        set(filter(level));
    }
}

/// Declares that standard error refers to this file. It rotates when it is too large.
pub fn set_log_file(path: PathBuf) {
    let _set_once = FILE.set(path);
}

/// The only writer of log lines, so that every line is redacted.
struct RedactingStderr;

impl Write for RedactingStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if let Some(file) = FILE.get() {
            outpost_sys::file::rotate_if_large(file, FILE_BYTES_MAX.load(Ordering::Relaxed));
        }
        stderr.write_all(redact::text(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct LineFormat {
    text: format::Format<Full>,
    /// Without time and level, which journald has.
    bare: format::Format<Full, ()>,
}

impl LineFormat {
    fn new() -> LineFormat {
        let text = format::Format::default();
        LineFormat { bare: text.clone().without_time().with_level(false).with_ansi(false), text }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match FORMAT.load(Ordering::Relaxed) {
            json if json == Format::Json as u8 => writeln!(writer, "{}", json_line(context, event)),
            journald if journald == Format::Journald as u8 => {
                write!(writer, "<{}>", priority(*event.metadata().level()))?;
                self.bare.format_event(context, writer, event)
            }
            _ => self.text.format_event(context, writer, event),
        }
    }
}

/// The syslog priority.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn json_line<S, N>(context: &FmtContext<'_, S, N>, event: &Event<'_>) -> Value
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let mut members = Members(Map::new());
    members.put("time", jiff::Timestamp::now().to_string().into());
    members.put("level", event.metadata().level().as_str().to_ascii_lowercase().into());
    members.put("target", event.metadata().target().into());
    event.record(&mut members);
    let scope = context.event_scope().into_iter().flat_map(|scope| scope.from_root());
    let spans: Vec<Value> = scope
        .map(|span| {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map_or("", |fields| fields.fields.as_str());
            format!("{}{{{fields}}}", span.name()).into()
        })
        .collect();
    if !spans.is_empty() {
        members.put("spans", spans.into());
    }
    Value::Object(members.0)
}

struct Members(Map<String, Value>);

impl Members {
    fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }
}
