//! The text of the approval prompt: a question, and the result of its command. Everything but our own control sequences
//! is printable ASCII.

use crate::console::printable;
use crate::tty;
use outpost_approvals::display::{output_lines, wrap};
use outpost_approvals::{Question, Section};
use outpost_broker_wire::{Response, Status};

/// Excerpt of a command's output.
const OUTPUT_LINES: usize = 3;
const OUTPUT_COLUMNS: usize = 200;

/// Width of a terminal that does not report its size.
const DEFAULT_COLUMNS: usize = 80;

/// Emphasis; empty with `NO_COLOR`.
#[derive(Clone, Copy)]
pub struct Style {
    bold: &'static str,
    dim: &'static str,
    plain: &'static str,
}

impl Style {
    pub fn from_env() -> Style {
        match tty::wants_colors() {
            true => Style { bold: "\x1b[1m", dim: "\x1b[2m", plain: "\x1b[0m" },
            false => Style { bold: "", dim: "", plain: "" },
        }
    }

    pub fn dimmed(self, text: &str) -> String {
        format!("{}{text}{}\n", self.dim, self.plain)
    }
}

/// The content of a question. The command comes last, so that it is on the screen when the prompt appears.
pub(crate) fn question(question: &Question, columns: Option<u16>, style: Style) -> String {
    let columns = columns.map_or(DEFAULT_COLUMNS, usize::from).max(20);
    let Style { bold, dim, plain } = style;
    let mut text =
        format!("\n{bold}=== Privilege request {} ==={plain}\n", printable(short(&question.digest)));
    for section in &question.sections {
        let claimed = if section.claimed { " (not verified)" } else { "" };
        text.push_str(&format!("{dim}{}{claimed}{plain}\n", printable(&section.heading)));
        push_section(&mut text, section, columns);
    }
    text.push_str(&format!("{bold}Command:{plain}\n"));
    for line in wrap(&printable(&question.title), columns.saturating_sub(4)) {
        text.push_str(&format!("  {bold}{line}{plain}\n"));
    }
    for warning in &question.warnings {
        for line in wrap(&format!("Warning: {}", printable(warning)), columns.saturating_sub(2)) {
            text.push_str(&format!("{bold}{line}{plain}\n"));
        }
    }
    text
}

fn push_section(text: &mut String, section: &Section, columns: usize) {
    for line in &section.lines {
        let shown = match line.name.is_empty() {
            true => line.value.clone(),
            false => format!("{}: {}", line.name, line.value),
        };
        for part in wrap(&printable(&shown), columns.saturating_sub(4)) {
            text.push_str(&format!("  {part}\n"));
        }
    }
}

/// The prompt line.
pub(crate) fn ask(question: &Question, seconds_left: u64, offer_always: bool, style: Style) -> String {
    let always = match offer_always {
        true => style
            .dimmed("a = approve, and run all unprivileged commands without asking until this process ends"),
        false => String::new(),
    };
    let what = if question.privileged { "Execute as root?" } else { "Execute?" };
    let choices = if offer_always { "[y/N/a]" } else { "[y/N]" };
    format!("{always}{what} {choices} ({seconds_left}s timeout, default=N) ")
}

fn short(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}

/// The exit status of a command and the start of its output, escaped.
pub fn result(response: &Response, style: Style) -> String {
    let Style { bold, dim, plain } = style;
    let status = match response.status {
        Status::Ok => {
            let codes: Vec<String> =
                response.stages.iter().map(|stage| stage.exit_code.to_string()).collect();
            let all_well = response.stages.iter().all(|stage| stage.exit_code == 0);
            let codes = if codes.len() == 1 { codes.concat() } else { format!("[{}]", codes.join(", ")) };
            format!("{}exit {codes}{plain}", if all_well { dim } else { bold })
        }
        Status::Denied => format!("{dim}denied{plain}"),
        Status::Timeout => format!("{dim}timeout{plain}"),
        Status::Error => {
            let message = response.message.as_deref().unwrap_or("unknown error");
            format!("{bold}error: {}{plain}", outpost_approvals::display::escape_untrusted(message, 500))
        }
    };
    let mut text = format!("{status}\n");
    let stderr = response.stages.iter().map(|stage| ("stderr", Some(&stage.stderr)));
    for (name, output) in [("stdout", response.stdout.as_ref())].into_iter().chain(stderr) {
        let Some(bytes) = output.and_then(|output| outpost_wire::base64::decode(output.as_bytes())) else {
            continue;
        };
        let lines = output_lines(&bytes, OUTPUT_LINES, OUTPUT_COLUMNS);
        if !lines.is_empty() {
            text.push_str(&format!("{dim}{name}, {} bytes{plain}\n", bytes.len()));
            lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon may run on another host that is not trusted.
    #[test]
    fn a_hostile_question_is_escaped() {
        let hostile = "x\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}2J\u{202e}\r\ny";
        let asked: Question = serde_json::from_value(serde_json::json!({
            "id": hostile, "face": "broker", "digest": hostile, "title": hostile, "warnings": [hostile],
            "sections": [{"heading": hostile, "lines": [{"name": hostile, "value": hostile}], "claimed": true}],
            "privileged": true, "rememberable": false, "asked_ms": 0, "deadline_ms": 0,
        }))
        .unwrap();
        let style = Style { bold: "", dim: "", plain: "" };
        let text = question(&asked, Some(80), style);
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with('y')), "{text}");
    }
}
