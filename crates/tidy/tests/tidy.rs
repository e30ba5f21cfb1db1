//! Applies the checks of `outpost-tidy` to every file that git tracks, and to the commits since the checks exist.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Last commit before the subjects of commits were checked.
const FIRST_PARENT: &str = "b271941";

/// Findings that stand: contract texts, recorded output of originals, and shell code of fixtures. Each line is a path,
/// a colon, and a piece of the line that is accepted.
const ACCEPTED: &str = include_str!("../accepted.txt");

#[test]
fn no_source_file_breaks_a_rule() {
    let mut findings = Vec::new();
    for path in tracked(&["*.rs"]).into_iter().filter(|path| !path.starts_with("crates/tidy/")) {
        let source = read(&path);
        let accepted = accepted(&path);
        let lines: Vec<&str> = source.lines().collect();
        for finding in outpost_tidy::rust_file(&path, &source) {
            let line =
                line_of(&finding).and_then(|number| lines.get(number - 1)).copied().unwrap_or_default();
            if !accepted.iter().any(|piece| line.contains(piece)) {
                findings.push(finding);
            }
        }
    }
    report(&findings);
}

#[test]
fn no_document_writes_of_processes_as_people() {
    let mut findings = Vec::new();
    for path in tracked(&["*.md", "scripts/*", "Makefile", "*.toml", ".ci/*"]) {
        let content = read(&path);
        let accepted = accepted(&path);
        for (index, line) in content.lines().enumerate() {
            if !accepted.iter().any(|piece| line.contains(piece)) {
                let found = outpost_tidy::text_file(&path, line);
                findings
                    .extend(found.into_iter().map(|it| it.replacen(":1:", &format!(":{}:", index + 1), 1)));
            }
        }
    }
    report(&findings);
}

#[test]
fn every_accepted_finding_still_exists() {
    let mut stale = Vec::new();
    for entry in ACCEPTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (path, piece) = entry.split_once(": ").unwrap();
        let stands =
            read(path).lines().any(|line| line.contains(piece) && outpost_tidy::personified(line).is_some());
        if !stands {
            stale.push(format!("accepted.txt: {entry}: no such finding"));
        }
    }
    report(&stale);
}

#[test]
fn architecture_is_short_and_names_files_that_exist() {
    let architecture = read("ARCHITECTURE.md");
    let words = architecture.split_whitespace().count();
    let mut findings = Vec::new();
    if words > outpost_tidy::ARCHITECTURE_WORDS_MAX {
        findings.push(format!(
            "ARCHITECTURE.md:1: {words} words, at most {}",
            outpost_tidy::ARCHITECTURE_WORDS_MAX
        ));
    }
    for (index, line) in architecture.lines().enumerate() {
        for piece in line.split('`').filter(|piece| piece.starts_with("crates/")) {
            if !root().join(piece).exists() {
                findings.push(format!("ARCHITECTURE.md:{}: {piece} does not exist", index + 1));
            }
        }
    }
    report(&findings);
}

#[test]
fn commit_subjects_fit_into_72_characters() {
    let known = git(&["rev-list", "--all"]).lines().any(|id| id.starts_with(FIRST_PARENT));
    // A shallow clone has the last commits only.
    let range = if known { format!("{FIRST_PARENT}..HEAD") } else { "HEAD".to_owned() };
    let log = git(&["log", "--no-merges", "--format=%h %s", &range]);
    let findings: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(id, subject)| outpost_tidy::commit(id, subject))
        .collect();
    report(&findings);
}

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

fn line_of(finding: &str) -> Option<usize> {
    finding.split(':').nth(1)?.parse().ok()
}

fn accepted(path: &str) -> Vec<&'static str> {
    ACCEPTED
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter(|(of, _)| *of == path)
        .map(|(_, piece)| piece)
        .collect()
}

fn tracked(patterns: &[&str]) -> Vec<String> {
    let mut arguments = vec!["ls-files", "--"];
    arguments.extend(patterns);
    let files: Vec<String> =
        git(&arguments).lines().map(str::to_owned).filter(|path| root().join(path).is_file()).collect();
    assert!(!files.is_empty(), "git lists no files for {patterns:?}");
    files
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn git(arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(root()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run git: {error}"));
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
