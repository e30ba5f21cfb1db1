//! Directives for the fake model in a prompt: `[[name: arguments]]`, anywhere in the text.

use serde_json::Value;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Directive {
    /// `[[sh: CMD]]`: call the tool that runs shell commands.
    Shell(String),
    /// `[[write: PATH | TEXT]]`: call the tool that writes files.
    Write { path: String, text: String },
    /// `[[call: TOOL {json}]]`
    Call { tool: String, arguments: Value },
    /// `[[think]]`: think aloud before the answer.
    Think,
    /// `[[slow: N SECS]]`: so many deltas, so far apart.
    Slow { deltas: usize, apart: Duration },
    /// `[[hang: SECS]]`: silence before the answer begins.
    Hang(Duration),
    /// `[[status: CODE]]`: every request fails.
    Status(u16),
    /// `[[flaky: CODE K]]`: the first K requests with this prompt fail.
    Flaky { status: u16, times: u32 },
    /// `[[cut]]`: the connection breaks in the middle of a stream.
    Cut,
    /// `[[sseerror]]`: an error in the middle of a stream.
    StreamError,
    /// `[[history]]`: reply with the number of prompts and the first one.
    History,
    /// `[[text: TEXT]]`
    Text(String),
}

/// The directives of a prompt in their order, and the text around them. What is no directive stays text: a mistyped one is
/// then seen in the echo.
pub(super) fn parse(prompt: &str) -> (Vec<Directive>, String) {
    let (mut found, mut around) = (Vec::new(), String::new());
    let mut rest = prompt;
    while let Some(begin) = rest.find("[[") {
        let (before, from_bracket) = rest.split_at(begin);
        around.push_str(before);
        let inner = balanced(from_bracket);
        match inner.and_then(|inner| Some((inner, directive(inner)?))) {
            Some((inner, directive)) => {
                found.push(directive);
                rest = from_bracket.get(inner.len() + 4..).unwrap_or_default();
            }
            None => {
                around.push_str("[[");
                rest = from_bracket.get(2..).unwrap_or_default();
            }
        }
    }
    around.push_str(rest);
    (found, around.trim().to_owned())
}

/// What is between the brackets that open this text and those that close them: a shell command may have pairs of its own.
fn balanced(text: &str) -> Option<&str> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let rest = text.get(at..)?;
        if rest.starts_with("[[") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("]]") {
            depth -= 1;
            if depth == 0 {
                return text.get(2..at);
            }
            at += 2;
        } else {
            at += rest.chars().next()?.len_utf8();
        }
    }
}

fn directive(inner: &str) -> Option<Directive> {
    let (name, arguments) = inner.split_once(':').unwrap_or((inner, ""));
    let arguments = arguments.trim();
    Some(match name.trim() {
        "sh" => Directive::Shell(arguments.to_owned()),
        "write" => {
            let (path, text) = arguments.split_once('|')?;
            Directive::Write { path: path.trim().to_owned(), text: text.trim().to_owned() }
        }
        "call" => {
            let (tool, json) = arguments.split_once(' ')?;
            Directive::Call { tool: tool.to_owned(), arguments: serde_json::from_str(json).ok()? }
        }
        "think" => Directive::Think,
        "slow" => {
            let (deltas, apart) = arguments.split_once(' ')?;
            Directive::Slow { deltas: deltas.parse().ok()?, apart: seconds(apart)? }
        }
        "hang" => Directive::Hang(seconds(arguments)?),
        "status" => Directive::Status(arguments.parse().ok()?),
        "flaky" => {
            let (status, times) = arguments.split_once(' ')?;
            Directive::Flaky { status: status.parse().ok()?, times: times.trim().parse().ok()? }
        }
        "cut" => Directive::Cut,
        "sseerror" => Directive::StreamError,
        "history" => Directive::History,
        "text" => Directive::Text(arguments.to_owned()),
        _ => return None,
    })
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn only(prompt: &str) -> Directive {
        let (mut found, around) = parse(prompt);
        assert_eq!((found.len(), around.as_str()), (1, ""), "{prompt}: {found:?}");
        found.remove(0)
    }

    #[test]
    fn every_directive_is_read() {
        assert_eq!(only("[[sh: ls -l | wc]]"), Directive::Shell("ls -l | wc".into()));
        let write = Directive::Write { path: "/a b".into(), text: "x | y".into() };
        assert_eq!(only("[[write: /a b | x | y]]"), write);
        let call = Directive::Call { tool: "Read".into(), arguments: json!({"list": [[1]], "s": "a"}) };
        assert_eq!(only(r#"[[call: Read {"list": [[1]], "s": "a"}]]"#), call);
        assert_eq!(only("[[think]]"), Directive::Think);
        let slow = Directive::Slow { deltas: 3, apart: Duration::from_millis(500) };
        assert_eq!(only("[[slow: 3 0.5]]"), slow);
        assert_eq!(only("[[hang: 2]]"), Directive::Hang(Duration::from_secs(2)));
        assert_eq!(only("[[status: 429]]"), Directive::Status(429));
        assert_eq!(only("[[flaky: 529 2]]"), Directive::Flaky { status: 529, times: 2 });
        assert_eq!(only("[[cut]]"), Directive::Cut);
        assert_eq!(only("[[sseerror]]"), Directive::StreamError);
        assert_eq!(only("[[history]]"), Directive::History);
        assert_eq!(only("[[text: one: two]]"), Directive::Text("one: two".into()));
    }

    #[test]
    fn a_command_with_brackets_of_its_own_is_not_cut_short() {
        assert_eq!(only("[[sh: [[ -f ü ]] && ls]]"), Directive::Shell("[[ -f ü ]] && ls".into()));
    }

    #[test]
    fn several_directives_keep_their_order_and_the_text_around_them() {
        let (found, around) = parse("\"please [[think]] and [[text: hi]]\"");
        assert_eq!(found, [Directive::Think, Directive::Text("hi".into())]);
        assert_eq!(around, "\"please  and \"");
    }

    #[test]
    fn what_is_no_directive_stays_text() {
        for prompt in
            ["[[status: many]]", "[[what]]", "[[call: Read {]]", "[[", "a [[ b", "[[hang: -1]]", "]]"]
        {
            assert_eq!(parse(prompt), (vec![], prompt.to_owned()));
        }
        assert_eq!(parse("[[ [[think]]"), (vec![Directive::Think], "[[".to_owned()));
    }
}
