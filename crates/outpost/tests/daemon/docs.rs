//! The examples of the documentation: runs the commands of `console` blocks and compares their output.

use crate::support::outpost;
use outpost_testkit::{Daemon, install_fake_clis};
use std::path::Path;
use std::process::{Command, Stdio};

/// Matches any text within a line, or, as a whole line, any number of lines.
const ANYTHING: &str = "…";

/// Separates the outputs of the commands. No command prints it.
const MARK: &str = "\u{1}outpost-docs\u{1}";

struct Example {
    line: usize,
    command: String,
    expected: Vec<String>,
}

fn examples(page: &str) -> Vec<Example> {
    let mut all: Vec<Example> = Vec::new();
    let mut is_console = false;
    for (line, text) in (1..).zip(page.lines()) {
        if text.starts_with("```") {
            is_console = text == "```console";
        } else if is_console {
            match (text.strip_prefix("$ "), all.last_mut()) {
                (Some(command), _) => {
                    all.push(Example { line, command: command.to_owned(), expected: Vec::new() });
                }
                (None, Some(last)) => last.expected.push(text.to_owned()),
                (None, None) => panic!("line {line}: output of no command"),
            }
        }
    }
    all
}

fn line_matches(line: &str, pattern: &str) -> bool {
    let Some((head, tail)) = pattern.split_once(ANYTHING) else { return line == pattern };
    let Some(rest) = line.strip_prefix(head) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| line_matches(&rest[at..], tail))
}

fn matches(lines: &[&str], patterns: &[String]) -> bool {
    match patterns.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == ANYTHING => {
            (0..=lines.len()).any(|taken| matches(&lines[taken..], rest))
        }
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, others)| line_matches(line, first) && matches(others, rest)),
    }
}

/// Runs the examples of a page in order, in one shell, with a daemon that has fake agents.
fn run_page(name: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let examples = examples(&std::fs::read_to_string(page).unwrap());
    assert!(!examples.is_empty(), "{name} has no examples");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["bin", "home", "project", "tmp"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(outpost(), at("bin/outpost")).unwrap();
    install_fake_clis(&at("bin"), &["claude"]);
    let surroundings = [
        ("HOME", at("home").display().to_string()),
        ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", at("bin").display())),
        ("OUTPOST_STATE_DIR", at("state").display().to_string()),
        ("OUTPOST_RUNTIME_DIR", at("run").display().to_string()),
        ("XDG_CONFIG_HOME", at("config").display().to_string()),
    ];
    let mut serve = Command::new(outpost());
    serve.envs(surroundings.clone());
    let daemon = Daemon::start_by_in(serve, dir.path(), &[]);
    let steps = examples.iter().map(|example| format!("printf '\\n{MARK}\\n'\n{}\n", example.command));
    let script: String = steps.collect();
    std::fs::write(at("script"), script).unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=5", "120", "bash"]).arg(at("script")).envs(surroundings);
    shell.current_dir(at("project")).stdin(Stdio::null());
    // Both outputs go to one file, as in a terminal.
    let output = std::fs::File::create(at("output")).unwrap();
    shell.stdout(output.try_clone().unwrap()).stderr(output);
    shell.status().unwrap();
    let output = String::from_utf8_lossy(&std::fs::read(at("output")).unwrap()).into_owned();
    let outputs: Vec<&str> = output.split(&format!("\n{MARK}\n")).skip(1).collect();
    for (number, example) in examples.iter().enumerate() {
        let output = outputs.get(number).copied().unwrap_or_else(|| {
            panic!("{name}:{}: never reached: $ {}\n{}", example.line, example.command, daemon.log())
        });
        let lines: Vec<&str> = output.lines().collect();
        assert!(
            matches(&lines, &example.expected),
            "{name}:{}: $ {}\nprinted:\n{output}\ninstead of:\n{}\nlog:\n{}",
            example.line,
            example.command,
            example.expected.join("\n"),
            daemon.log()
        );
    }
}

#[test]
fn getting_started_does_what_it_shows() {
    run_page("getting-started.md");
}

#[test]
fn the_relay_page_does_what_it_shows() {
    run_page("relay.md");
}

#[test]
fn the_exec_page_does_what_it_shows() {
    run_page("exec.md");
}

#[test]
fn the_broker_page_does_what_it_shows() {
    run_page("broker.md");
}

#[test]
fn the_approvals_page_does_what_it_shows() {
    run_page("approvals.md");
}

#[test]
fn the_sessions_page_does_what_it_shows() {
    run_page("sessions.md");
}

#[test]
fn the_comparison_detects_differences() {
    let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert!(matches(&["a 12 b", "x", "y", "end"], &lines(&["a … b", "…", "end"])));
    assert!(matches(&[], &lines(&["…"])) && matches(&["abc"], &lines(&["a…"])));
    for (line, expected) in [("a 12 c", "a … b"), ("xa", "a"), ("ab", "a"), ("a b c", "a … b"), ("", "a")]
    {
        assert!(!matches(&[line], &lines(&[expected])), "{line} is not {expected}");
    }
    assert!(!matches(&["one", "two"], &lines(&["one"])) && !matches(&["one"], &lines(&["one", "two"])));
}

/// Appends every source file below this directory.
fn sources(dir: &Path, all: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// Every row of the table needs a test that proves it.
#[test]
fn each_known_class_of_bypass_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, table) = page.split_once("## Known classes of bypass").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() >= 35, "{} rows", rows.len());
    let mut code = String::new();
    sources(&root.join("crates"), &mut code);
    for row in rows {
        let tests: Vec<&str> = row.split('`').filter(|part| part.contains("::")).collect();
        assert!(!tests.is_empty(), "no test covers: {row}");
        for test in tests {
            let name = test.rsplit("::").next().unwrap();
            assert!(code.contains(&format!("fn {name}(")), "there is no test {test}");
        }
    }
}
