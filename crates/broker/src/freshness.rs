//! The freshness check: compares a request's time with the clock at its arrival.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimeParser;
use std::time::Duration;
use thiserror::Error;

static PARSER: DateTimeParser = DateTimeParser::new();

/// Allowed distance between a request's time and this host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshnessWindow {
    pub past: Duration,
    pub future: Duration,
}

impl Default for FreshnessWindow {
    fn default() -> FreshnessWindow {
        FreshnessWindow { past: Duration::from_secs(60), future: Duration::from_secs(5) }
    }
}

/// Why a request is not fresh, as the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotFresh {
    #[error("missing time field")]
    Missing,
    #[error("malformed time field")]
    Malformed,
    #[error("request too old: {age}s (max {max}s)")]
    TooOld { age: i64, max: u64 },
    #[error(
        "request from the future: {ahead}s ahead of this host's clock (max {max}s); set one of the clocks"
    )]
    Future { ahead: i64, max: u64 },
}

/// The parsed time of a fresh request.
pub(crate) fn check(time: &str, now: Timestamp, window: FreshnessWindow) -> Result<Timestamp, NotFresh> {
    if time.is_empty() {
        return Err(NotFresh::Missing);
    }
    let time = parse(time).filter(|time| time.as_second() >= 0).ok_or(NotFresh::Malformed)?;
    let age = now.as_second() - time.as_second();
    if age > seconds(window.past) {
        return Err(NotFresh::TooOld { age, max: window.past.as_secs() });
    }
    if -age > seconds(window.future) {
        return Err(NotFresh::Future { ahead: -age, max: window.future.as_secs() });
    }
    Ok(time)
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// RFC 3339. As in sudo-proxy, a time without an offset is UTC.
fn parse(text: &str) -> Option<Timestamp> {
    if !is_strict_format(text) {
        return None;
    }
    if let Ok(timestamp) = PARSER.parse_timestamp(text) {
        return Some(timestamp);
    }
    let civil = PARSER.parse_datetime(text).ok()?;
    civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// `YYYY-MM-DDTHH:MM:SS`, an optional fraction, then `Z`, an offset or nothing. The parser alone accepts more forms.
fn is_strict_format(text: &str) -> bool {
    let bytes = text.as_bytes();
    let pattern = b"dddd-dd-ddTdd:dd:dd";
    let fits = |(byte, pattern): (&u8, &u8)| match pattern {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't'),
        other => byte == other,
    };
    let Some(rest) = bytes.get(pattern.len()..) else { return false };
    if !bytes.iter().zip(pattern).all(fits) {
        return false;
    }
    let fraction = match rest {
        [b'.', rest @ ..] => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return false;
            }
            digits + 1
        }
        _ => 0,
    };
    match rest.get(fraction..).unwrap_or_default() {
        [] | [b'Z' | b'z'] => true,
        [b'+' | b'-', offset @ ..] => {
            matches!(offset, [a, b, b':', c, d] if [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Result<Timestamp, String> {
        let now: Timestamp = "2026-02-13T14:30:00Z".parse().unwrap();
        check(text, now, FreshnessWindow::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_rfc_3339_is_accepted() {
        for text in [
            "2026-02-13T14:30:00Z",
            "2026-02-13T14:30:00",
            "2026-02-13T14:30:00.5Z",
            "2026-02-13t14:30:00.123456789z",
            "2026-02-13T16:30:00+02:00",
            "2026-02-13T09:30:00-05:00",
            "2026-02-13T14:29:00Z",
            "2026-02-13T14:30:05Z",
        ] {
            assert!(at(text).is_ok(), "{text}: {:?}", at(text));
        }
    }

    #[test]
    fn stale_and_future_times_are_refused() {
        assert_eq!(at("2026-02-13T14:28:58Z"), Err("request too old: 62s (max 60s)".into()));
        assert_eq!(at("2026-02-13T14:30:00+02:00"), Err("request too old: 7200s (max 60s)".into()));
        assert!(at("2026-02-13T14:30:06Z").unwrap_err().starts_with("request from the future: 6s"));
        assert!(at("2026-02-14T14:30:00Z").unwrap_err().starts_with("request from the future"));
        assert!(at("2026-02-13T14:30:00-05:00").unwrap_err().starts_with("request from the future"));
    }

    #[test]
    fn other_formats_are_malformed() {
        assert_eq!(at(""), Err("missing time field".into()));
        for text in [
            "now",
            "2026-02-13",
            "2026-02-13 14:30:00Z",
            " 2026-02-13T14:30:00Z",
            "2026-02-13T14:30:00Z ",
            "2026-02-13T14:30Z",
            "2026-02-13T14:30:00ZZ",
            "2026-02-13T14:30:00+02",
            "2026-02-13T14:30:00[UTC]",
            "2026-02-13T14:30:00.Z",
            "2026-02-30T14:30:00Z",
            "2026-02-13T25:30:00Z",
            "+002026-02-13T14:30:00Z",
            "20260213T143000Z",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(at(text), Err("malformed time field".into()), "{text}");
        }
    }
}
