//! Runs a command on a terminal, waits for what it shows, types, and leaves the screen as a picture.

#![forbid(unsafe_code)]

use clap::Parser;
use outpost_testkit::Terminal;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 24)]
    rows: u16,
    #[arg(long, default_value_t = 80)]
    columns: u16,
    /// Alternative text of the picture
    #[arg(long)]
    title: String,
    /// Where the picture goes
    #[arg(long, value_name = "SVG")]
    out: PathBuf,
    /// In order: `wait:TEXT` until it is seen, `gone:TEXT` until it is not, `ends:TEXT` until nothing follows it, `type:TEXT`;
    /// with \r, \n, \e and \\
    #[arg(long = "step", value_name = "STEP")]
    steps: Vec<Step>,
    /// The program, by its absolute path, and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<String>,
}

#[derive(Clone)]
enum Step {
    Wait(String),
    Gone(String),
    Ends(String),
    Type(String),
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        match text.split_once(':') {
            Some(("wait", text)) => Ok(Step::Wait(unescaped(text))),
            Some(("gone", text)) => Ok(Step::Gone(unescaped(text))),
            Some(("ends", text)) => Ok(Step::Ends(unescaped(text))),
            Some(("type", text)) => Ok(Step::Type(unescaped(text))),
            _ => Err("not wait:TEXT, gone:TEXT, ends:TEXT or type:TEXT".into()),
        }
    }
}

fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, characters.clone().next()) {
            ('\\', Some(next @ ('r' | 'n' | 'e' | '\\'))) => {
                plain.push(match next {
                    'r' => '\r',
                    'n' => '\n',
                    'e' => '\x1b',
                    other => other,
                });
                characters.next();
            }
            _ => plain.push(character),
        }
    }
    plain
}

fn main() -> std::io::Result<()> {
    let options = Options::parse();
    let mut environment: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| name != "TERM" && name != "NO_COLOR").collect();
    environment.push(("TERM".into(), "xterm-256color".into()));
    let directory = std::env::current_dir()?.display().to_string();
    let mut terminal =
        Terminal::start_sized(&options.command, &environment, &directory, options.rows, options.columns);
    for step in &options.steps {
        match step {
            Step::Wait(text) => {
                terminal.wait_seen(text);
            }
            Step::Gone(text) => {
                terminal.wait_picture(text, |seen| !seen.contains(text));
            }
            Step::Ends(text) => {
                terminal.wait_picture(text, |seen| seen.trim_end().ends_with(text));
            }
            Step::Type(text) => terminal.key(text.as_bytes()),
        }
    }
    std::fs::write(&options.out, terminal.svg(&options.title))
}
