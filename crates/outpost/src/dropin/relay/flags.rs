//! Parses the original's flags, with one dash or two, as Go's flag package does.
//!
//! clap does the parsing. It has no long flags with one dash, so these get a second dash first.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::ffi::OsString;
use std::fmt::Write;
use std::num::IntErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) version: bool,
    pub(crate) install: bool,
    pub(crate) serve: bool,
    pub(crate) bridge: bool,
    pub(crate) stop: bool,
    pub(crate) socket: OsString,
    pub(crate) token_file: OsString,
    pub(crate) token_fd: i64,
    pub(crate) metrics_addr: String,
    pub(crate) keep_children: bool,
    pub(crate) journal_bytes: u64,
    pub(crate) cli_dir: String,
    pub(crate) cli_version: String,
    pub(crate) cli_url: String,
    pub(crate) cli_checksum: String,
    pub(crate) cli_zst: String,
    pub(crate) cli_keep: i64,
}

pub(crate) enum Parsed {
    Flags(Flags),
    Help,
    /// The first line of the error message.
    Invalid(String),
}

/// Name, help text and value type of each flag.
const FLAGS: [(&str, &str, Takes); 17] = [
    ("bridge", "Connect stdin and stdout to a running server", Takes::Nothing),
    ("cli-checksum", "SHA-256 that the compressed CLI must have", Takes::Text),
    ("cli-dir", "Where CLI versions are kept", Takes::Text),
    ("cli-keep", "How many of the newest CLI versions stay (0: all)", Takes::Number("3")),
    ("cli-url", "Where to download the compressed CLI", Takes::Text),
    ("cli-version", "Which CLI version to have", Takes::Text),
    ("cli-zst", "A compressed CLI that was uploaded", Takes::Text),
    ("install", "Have the CLI installed, and print what was found", Takes::Nothing),
    ("journal-bytes", "Most output kept on disk for one process (0: by free space)", Takes::Number("0")),
    ("keep-children", "Leave processes running when the server stops", Takes::Nothing),
    ("metrics-addr", "Serve Prometheus metrics on this address (none: nowhere)", Takes::Text),
    ("serve", "Run the server in the background", Takes::Nothing),
    ("socket", "Path of the server's socket", Takes::Text),
    ("stop", "Stop a running server", Takes::Nothing),
    ("token-fd", "Descriptor to read the token from", Takes::Number("-1")),
    ("token-file", "File to read the token from; it is removed", Takes::Text),
    ("version", "Print the version", Takes::Nothing),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Text,
    /// With its default.
    Number(&'static str),
}

pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Parsed {
    let (arguments, wants_help) = match with_two_dashes(arguments) {
        Ok(with_dashes) => with_dashes,
        Err(reason) => return Parsed::Invalid(reason),
    };
    match command().try_get_matches_from(arguments) {
        Ok(_) if wants_help => Parsed::Help,
        Ok(matches) => Parsed::Flags(flags(&matches)),
        Err(error) => Parsed::Invalid(error_message(&error)),
    }
}

fn command() -> Command {
    let arg = |(name, _, takes): (&'static str, &str, Takes)| {
        let arg = Arg::new(name).long(name).overrides_with(name);
        match takes {
            Takes::Nothing => arg
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .default_value("false")
                .value_parser(boolean),
            Takes::Text => {
                let arg = arg.action(ArgAction::Set).allow_hyphen_values(true).default_value("");
                arg.value_parser(value_parser!(OsString))
            }
            Takes::Number(default) => {
                let arg = arg.action(ArgAction::Set).allow_hyphen_values(true).default_value(default);
                arg.value_parser(number)
            }
        }
    };
    Command::new("claustrum").disable_help_flag(true).disable_version_flag(true).args(FLAGS.map(arg))
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("parse error".into()),
    }
}

/// Parses a number as Go does: with a prefix for the base, and underscores between digits.
fn number(text: &str) -> Result<i64, String> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = if text.starts_with('-') { "-" } else { "" };
    let (digits, base) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (unsigned.get(2..), 16),
        [b'0', b'o' | b'O', ..] => (unsigned.get(2..), 8),
        [b'0', b'b' | b'B', ..] => (unsigned.get(2..), 2),
        [b'0', _, ..] => (unsigned.get(1..), 8),
        _ => (Some(unsigned), 10),
    };
    let digits = digits.unwrap_or_default();
    // Underscores are valid only after a digit or a prefix, never at the end, and not in decimal numbers.
    let underscores = digits.contains('_');
    let misplaced = digits.ends_with('_') || digits.contains("__") || (base == 10 && underscores);
    if digits.starts_with(['-', '+']) || misplaced {
        return Err("parse error".into());
    }
    let plain = format!("{sign}{}", digits.replace('_', ""));
    i64::from_str_radix(&plain, base).map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range".into(),
        _ => "parse error".into(),
    })
}

/// Gives each flag its second dash. Flags end at the first argument that is no flag, and at `--`; the rest is ignored, as in
/// the original. They also end at `-help` or `-h`, which sets the returned flag.
fn with_two_dashes(arguments: impl Iterator<Item = OsString>) -> Result<(Vec<OsString>, bool), String> {
    let mut with_dashes = vec![OsString::from("claustrum")];
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let Some(name) =
            bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")).filter(|_| bytes != b"-")
        else {
            break;
        };
        if name.is_empty() {
            break;
        }
        if matches!(name.first(), Some(b'-' | b'=')) {
            return Err(format!("bad flag syntax: {}", argument.to_string_lossy()));
        }
        if matches!(name, b"help" | b"h") {
            return Ok((with_dashes, true));
        }
        with_dashes.push(OsString::from_vec([b"--", name].concat()));
        let known = FLAGS.iter().find(|(known, _, _)| known.as_bytes() == name);
        if known.is_some_and(|(_, _, takes)| *takes != Takes::Nothing) {
            with_dashes.extend(arguments.next());
        }
    }
    Ok((with_dashes, false))
}

/// The error message in the wording of Go's flag package.
fn error_message(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let name = argument.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("flag provided but not defined: -{name}"),
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            format!("flag needs an argument: -{name}")
        }
        _ => {
            let value = text(ContextKind::InvalidValue);
            let boolean = FLAGS.iter().any(|(known, _, takes)| *known == name && *takes == Takes::Nothing);
            match boolean {
                true => format!("invalid boolean value {value:?} for -{name}: parse error"),
                false => {
                    let reason = number(&value).err().unwrap_or_default();
                    format!("invalid value {value:?} for flag -{name}: {reason}")
                }
            }
        }
    }
}

fn flags(matches: &ArgMatches) -> Flags {
    let bool = |name| matches.get_one::<bool>(name).copied().unwrap_or_default();
    let raw = |name| matches.get_one::<OsString>(name).cloned().unwrap_or_default();
    let text = |name| raw(name).to_string_lossy().into_owned();
    let number = |name| matches.get_one::<i64>(name).copied().unwrap_or_default();
    Flags {
        version: bool("version"),
        install: bool("install"),
        serve: bool("serve"),
        bridge: bool("bridge"),
        stop: bool("stop"),
        socket: raw("socket"),
        token_file: raw("token-file"),
        token_fd: number("token-fd"),
        metrics_addr: text("metrics-addr"),
        keep_children: bool("keep-children"),
        journal_bytes: u64::try_from(number("journal-bytes")).unwrap_or(0),
        cli_dir: text("cli-dir"),
        cli_version: text("cli-version"),
        cli_url: text("cli-url"),
        cli_checksum: text("cli-checksum"),
        cli_zst: text("cli-zst"),
        cli_keep: number("cli-keep"),
    }
}

pub(crate) fn usage() -> String {
    let mut text = String::from("Usage of claustrum:\n");
    for (name, help, takes) in FLAGS {
        let kind = match takes {
            Takes::Nothing => "",
            Takes::Text => " string",
            Takes::Number(_) => " int",
        };
        let default = match takes {
            Takes::Number(default) if default != "0" => format!(" (default {default})"),
            _ => String::new(),
        };
        let _infallible = write!(text, "  -{name}{kind}\n    \t{help}{default}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Flags {
        match parse(arguments.iter().map(OsString::from)) {
            Parsed::Flags(flags) => flags,
            Parsed::Help => panic!("{arguments:?} is help"),
            Parsed::Invalid(reason) => panic!("{arguments:?}: {reason}"),
        }
    }

    fn invalid(arguments: &[&str]) -> String {
        match parse(arguments.iter().map(OsString::from)) {
            Parsed::Invalid(reason) => reason,
            _ => panic!("{arguments:?} is valid"),
        }
    }

    #[test]
    fn flags_may_have_one_dash_or_two() {
        for serve in [["-serve", "-socket", "/s"], ["--serve", "--socket", "/s"]] {
            let flags = parsed(&serve);
            assert!(flags.serve && !flags.stop);
            assert_eq!(flags.socket, "/s");
        }
        assert_eq!(parsed(&["-socket=/a=b", "-token-fd=0"]).socket, "/a=b");
        assert_eq!(parsed(&[]), Flags { token_fd: -1, cli_keep: 3, ..Flags::default() });
    }

    #[test]
    fn a_value_may_look_like_a_flag_and_the_last_value_wins() {
        let flags =
            parsed(&["-socket", "-serve", "--cli-keep", "-2", "-cli-keep=5", "-serve=false", "-serve=T"]);
        assert_eq!(flags.socket, "-serve");
        assert_eq!(flags.cli_keep, 5);
        assert!(flags.serve);
    }

    #[test]
    fn numbers_are_parsed_as_in_go() {
        for (text, number) in
            [("0x10", 16), ("-0X1f", -31), ("0b101", 5), ("0o17", 15), ("017", 15), ("0x_1_0", 16), ("+7", 7)]
        {
            assert_eq!(parsed(&["-cli-keep", text]).cli_keep, number, "{text}");
        }
    }

    #[test]
    fn help_is_a_flag_and_not_a_value() {
        assert_eq!(parsed(&["-socket", "--help"]).socket, "--help");
        for help in [&["-h"][..], &["-serve", "--help", "-bogus"], &["-help"]] {
            assert!(matches!(parse(help.iter().map(OsString::from)), Parsed::Help), "{help:?}");
        }
    }

    #[test]
    fn flags_end_at_the_first_argument_that_is_no_flag() {
        assert!(!parsed(&["-serve", "stray", "-stop"]).stop);
        assert!(!parsed(&["--", "-stop"]).stop);
        assert!(!parsed(&["-", "-stop"]).stop);
    }

    #[test]
    fn error_messages_are_those_of_the_original() {
        assert_eq!(invalid(&["-bogus"]), "flag provided but not defined: -bogus");
        assert_eq!(invalid(&["--bogus=1"]), "flag provided but not defined: -bogus");
        assert_eq!(invalid(&["-socket"]), "flag needs an argument: -socket");
        assert_eq!(invalid(&["-cli-keep", "x"]), "invalid value \"x\" for flag -cli-keep: parse error");
        for bad in ["0x", "1_0", "0x_", "0x1__0", "08", "--1", "0x-1", " 1"] {
            assert!(invalid(&["-cli-keep", bad]).ends_with(": parse error"), "{bad}");
        }
        let far = "99999999999999999999";
        assert_eq!(
            invalid(&["-cli-keep", far]),
            format!("invalid value {far:?} for flag -cli-keep: value out of range")
        );
        assert_eq!(invalid(&["-bogus", "-help"]), "flag provided but not defined: -bogus");
        assert_eq!(invalid(&["-serve=x"]), "invalid boolean value \"x\" for -serve: parse error");
        assert_eq!(invalid(&["---serve"]), "bad flag syntax: ---serve");
        assert_eq!(invalid(&["-=x"]), "bad flag syntax: -=x");
    }
}
