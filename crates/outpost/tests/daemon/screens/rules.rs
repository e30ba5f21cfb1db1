//! Rules that replace values which vary between runs by fixed text.

use super::pane::COLUMNS;

/// Replaces one kind of value in the unwrapped lines of a screen.
pub(super) type Rule = fn(&str) -> String;

/// Rules for every screen.
pub(super) const ALWAYS: &[Rule] = &[ids, digests, fingerprints, times, ports, pids, version];

/// UUIDs.
fn ids(text: &str) -> String {
    let is_id = |word: &str| {
        let parts: Vec<usize> = word.split('-').map(str::len).collect();
        parts == [8, 4, 4, 4, 12] && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    words(text, |_, word| is_id(word).then(|| zeros(word)))
}

/// SHA-256 and secrets: long words of hexadecimal digits.
fn digests(text: &str) -> String {
    let is_digest = |word: &str| word.len() >= 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    words(text, |_, word| match word.strip_prefix("outpost_") {
        Some(secret) => is_digest(secret).then(|| format!("outpost_{}", zeros(secret))),
        None => is_digest(word).then(|| zeros(word)),
    })
}

/// Key fingerprints: `SHA256:` and base64.
fn fingerprints(text: &str) -> String {
    const KIND: &str = "SHA256:";
    const DIGITS: usize = 43;
    let mut parts = text.split(KIND);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |normalized, part| match part.get(DIGITS..) {
        Some(rest) => normalized + KIND + &"0".repeat(DIGITS) + rest,
        None => normalized + KIND + part,
    })
}

/// RFC 3339 timestamps.
fn times(text: &str) -> String {
    let is_time = |word: &str| {
        word.len() >= 19
            && word.get(10..11) == Some("T")
            && word.get(..4).is_some_and(|year| year.bytes().all(|byte| byte.is_ascii_digit()))
    };
    words(text, |_, word| is_time(word).then(|| "0000-00-00T00:00:00Z".into()))
}

fn ports(text: &str) -> String {
    let port = |word: &str| word.strip_prefix("127.0.0.1:")?.parse::<u16>().ok().filter(|port| *port > 0);
    words(text, |_, word| port(word).map(|_| "127.0.0.1:40000".into()))
}

/// Numbers after a word such as `pid` or `worker`.
fn pids(text: &str) -> String {
    const OWNERS: [&str; 5] = ["keeper", "worker", "process", "pid", "uid"];
    let is_pid = |before: &str, word: &str| {
        let owner = before.trim_end().rsplit(|letter: char| !letter.is_ascii_alphabetic()).next();
        owner.is_some_and(|owner| OWNERS.contains(&owner)) && word.parse::<u32>().is_ok()
    };
    words(text, |before, word| is_pid(before, word).then(|| "PID".into()))
}

/// The version of outpost.
fn version(text: &str) -> String {
    words(text, |_, word| (word == env!("CARGO_PKG_VERSION")).then(|| "VERSION".into()))
}

/// Durations such as `3s`.
pub(super) fn ages(text: &str) -> String {
    words(text, |_, word| is_age(word).then(|| "AGE".into()))
}

/// Durations in columns without a heading. The padding before them varies with their width.
pub(super) fn age_cells(text: &str) -> String {
    let marked = words(text, |_, word| is_age(word).then(|| format!("{BLANKS}AGE")));
    let parts: Vec<&str> = marked.split(BLANKS).collect();
    let (last, before) = parts.split_last().unwrap();
    before.iter().map(|part| format!("{} ", part.trim_end_matches(' '))).collect::<String>() + last
}

fn is_age(word: &str) -> bool {
    word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Marks positions before which blanks are collapsed.
const BLANKS: char = '\u{1}';

/// Sizes such as `1.5MB`.
pub(super) fn sizes(text: &str) -> String {
    let is_size = |word: &str| {
        let number = word.strip_suffix('B').map(|number| number.trim_end_matches(['k', 'M', 'G', 'T']));
        number.is_some_and(|number| number.parse::<f64>().is_ok())
    };
    words(text, |_, word| is_size(word).then(|| "SIZE".into()))
}

/// Verdicts of `doctor` about the host. Its list of checks and its verdicts about outpost's own files do not vary.
pub(super) fn verdicts(text: &str) -> String {
    const VERDICTS: [&str; 3] = ["ok", "warning", "error"];
    const OWN: [&str; 4] = ["config", "state", "runtime", "daemon"];
    let mut of_host = false;
    let mut normalized = Vec::new();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["effect:" | "fix:", ..] if of_host => {}
            // This check appears only on hosts that end user services at the last logout.
            [verdict, "linger", ..] if VERDICTS.contains(verdict) => of_host = true,
            [verdict, name, ..] if VERDICTS.contains(verdict) => {
                of_host = !OWN.contains(name);
                normalized.push(if of_host { format!("  VERDICT   {name}") } else { line.to_owned() });
            }
            ["[0]" | "[1]"] => normalized.push("[VERDICT]".into()),
            _ => normalized.push(line.to_owned()),
        }
    }
    normalized.join("\n")
}

/// The user that runs the tests, and programs of this host.
pub(super) fn host_specifics(text: &str) -> String {
    let normalize = |line: &str| {
        let begin = |begin: &&str| line.trim_start().starts_with(begin);
        let known = ["as:", "env: HOME=", "env: LOGNAME=", "env: USER=", "file:"];
        if let Some(begin) = known.iter().find(|known| begin(known)) {
            return format!("  {begin} …");
        }
        if let Some((before, _)) = line.split_once("enable-linger ") {
            return format!("{before}enable-linger USER");
        }
        // The chain of parent processes.
        match line.split_once(") of pid ") {
            Some((asker, _)) => format!("{asker}) …"),
            None => line.to_owned(),
        }
    };
    text.lines().map(normalize).collect::<Vec<_>>().join("\n")
}

/// The host in the reply to `initialize`.
pub(super) fn user_agent(text: &str) -> String {
    let normalize = |line: &str| match (line.split_once(" ("), line.split_once(") screen")) {
        (Some((before, _)), Some((_, after))) => format!("{before} (HOST) screen{after}"),
        _ => line.to_owned(),
    };
    text.lines().map(normalize).collect::<Vec<_>>().join("\n")
}

/// Columns with varying numbers, and the text for each.
const CHANGING: [(&str, &str); 7] = [
    ("PID", "PID"),
    ("AGE", "AGE"),
    ("LEFT", "AGE"),
    ("CPU", "0%"),
    ("[CPU]", "0%"),
    ("MEMORY", "SIZE"),
    ("RATE", "RATE"),
];

/// For tables whose columns are as wide as their contents.
pub(super) fn fitted_columns(text: &str) -> String {
    CHANGING.iter().fold(text.to_owned(), |text, (heading, shown)| column(&text, heading, shown, true))
}

/// For tables with columns of a fixed width.
pub(super) fn fixed_columns(text: &str) -> String {
    CHANGING.iter().fold(text.to_owned(), |text, (heading, shown)| column(&text, heading, shown, false))
}

/// Replaces the cells of one column. Requires that every cell ends at the same position as its heading.
fn column(text: &str, heading: &str, shown: &str, is_fitted: bool) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let padded = format!(" {heading} ");
    let Some(at) = lines.iter().position(|line| line.contains(&padded)) else { return text.into() };
    let end = lines[at].find(&padded).unwrap() + 1 + heading.len();
    // The table ends at the first row that does not reach the column.
    let cell = |line: &str| -> Option<usize> {
        let word = line.get(..end)?.rsplit(' ').next()?;
        (line.as_bytes().get(end) == Some(&b' ') && !word.is_empty()).then_some(word.len())
    };
    let widths: Vec<usize> = lines[at..].iter().map_while(|line| cell(line)).collect();
    let taken = widths.iter().max().copied().unwrap_or_default().max(heading.len());
    let given = if is_fitted { heading.len() } else { taken };
    let normalized =
        |(number, line): (usize, &&str)| match number.checked_sub(at).and_then(|row| widths.get(row)) {
            Some(width) => {
                let word = &line[end - width..end];
                let word = if number == at || word == "-" { word } else { shown };
                format!("{}{word:>given$}{}", &line[..end - taken], &line[end..])
            }
            None => (*line).to_owned(),
        };
    lines.iter().enumerate().map(normalized).collect::<Vec<_>>().join("\n")
}

/// Replaces every word for which `other` returns a text. `other` gets the part of the line before the word.
fn words(text: &str, other: impl Fn(&str, &str) -> Option<String>) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-.:+_".contains(letter);
    let normalize = |line: &str| {
        let mut normalized = String::new();
        let mut at = 0;
        while let Some(letter) = line[at..].chars().next() {
            let rest = &line[at..];
            let length = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            let word = rest[..length].trim_end_matches(['.', ':']);
            match word.is_empty() {
                true => {
                    normalized.push(letter);
                    at += letter.len_utf8();
                }
                false => {
                    normalized += &other(&line[..at], word).unwrap_or_else(|| word.to_owned());
                    at += word.len();
                }
            }
        }
        normalized
    };
    text.lines().map(normalize).collect::<Vec<_>>().join("\n")
}

fn zeros(word: &str) -> String {
    word.chars().map(|letter| if letter == '-' { '-' } else { '0' }).collect()
}

/// Wraps lines as the terminal does.
pub(super) fn wrapped(text: &str) -> String {
    let broken = |line: &str| {
        let letters: Vec<char> = line.chars().collect();
        let rows: Vec<String> = letters.chunks(COLUMNS).map(|row| row.iter().collect()).collect();
        rows.join("\n")
    };
    text.lines().map(broken).collect::<Vec<_>>().join("\n")
}

#[test]
fn rules_replace_only_what_varies() {
    let always = |text: &str| ALWAYS.iter().fold(text.to_owned(), |text, rule| rule(&text));
    for (seen, normalized) in [
        ("keeper     4711, since 3s", "keeper     PID, since 3s"),
        ("http://127.0.0.1:34567/rpc", "http://127.0.0.1:40000/rpc"),
        ("at 2026-11-16T07:05:47.123Z.", "at 0000-00-00T00:00:00Z."),
        ("1b4e28ba-2fa1-11d2-883f-0016d3cca427:", "00000000-0000-0000-0000-000000000000:"),
        ("4 processes, 40 lines", "4 processes, 40 lines"),
    ] {
        assert_eq!(always(seen), normalized);
    }
    assert_eq!(ages("waits, for 12s; 90 lines"), "waits, for AGE; 90 lines");
    assert_eq!(age_cells("id     3s    10m own  a\n"), "id AGE AGE own  a");
    assert_eq!(sizes("1.5MB of 7B in 3 files"), "SIZE of SIZE in 3 files");
    let fitted = "ID      PID  AGE    CPU  X\na   1234567  12s  1000%  x\nb         8   1h      -  y\nend";
    let normalized = "ID  PID  AGE  CPU  X\na   PID  AGE   0%  x\nb   PID  AGE    -  y\nend";
    assert_eq!(fitted_columns(fitted), normalized);
    assert_eq!(fitted_columns(normalized), normalized);
    let fixed = "ID      PID    AGE  X\na   1234567    12s  x\nb         8     1h  y";
    assert_eq!(fixed_columns(fixed), "ID      PID    AGE  X\na       PID    AGE  x\nb       PID    AGE  y");
    assert_ne!(
        fitted_columns(&fitted.replace("  -  ", " -   ")),
        normalized,
        "a cell that is not in its column"
    );
    assert_eq!(wrapped(&"ab".repeat(60)).lines().map(str::len).collect::<Vec<_>>(), [100, 20]);
}
