//! The output lines: progress during a download, and the facts line at the end.

use super::download::DownloadStats;
use super::platform;
use outpost_relay::go_json::write::Object;
use std::io::Write;

/// The content of the facts line.
#[derive(Default)]
pub(super) struct Facts<'a> {
    pub(super) server_version: &'a str,
    pub(super) libc: &'static str,
    pub(super) cli_path: String,
    pub(super) cli_was_present: bool,
    pub(super) cli_error: String,
    /// Present if a download was attempted.
    pub(super) download: Option<DownloadStats>,
}

/// Writes the facts line.
pub(super) fn result(out: &mut dyn Write, facts: &Facts<'_>) {
    let mut line = b"__INSTALL_RESULT__".to_vec();
    let mut object = Object::begin(&mut line);
    object
        .string("serverVersion", facts.server_version)
        .string("os", platform::OS)
        .string("arch", outpost_relay::go_compat::architecture())
        .string("libc", facts.libc)
        .string("cliPath", &facts.cli_path)
        .bool("cliWasPresent", facts.cli_was_present)
        .string_unless_empty("cliError", &facts.cli_error);
    if let Some(download) = facts.download {
        Object::begin(object.key("fetch"))
            .number("bytes", download.bytes)
            .number("ms", download.elapsed.as_millis())
            .number("longestPauseMs", download.longest_pause.as_millis())
            .end();
    }
    object.end();
    send(out, line);
}

/// Writes a progress line.
pub(super) fn progress(out: &mut dyn Write, bytes: u64, total: Option<u64>) {
    let mut line = b"__INSTALL_PROGRESS__".to_vec();
    let mut object = Object::begin(&mut line);
    object.string("phase", "download").number("bytes", bytes);
    if let Some(total) = total {
        object.number("total", total);
    }
    object.end();
    send(out, line);
}

/// Ignores a write error: a client that disconnects can come back and use the installed version.
fn send(out: &mut dyn Write, mut line: Vec<u8>) {
    line.push(b'\n');
    let _client_gone = out.write_all(&line).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn text(facts: &Facts<'_>) -> String {
        let mut out = Vec::new();
        result(&mut out, facts);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_facts_line_matches_the_contract_exactly() {
        let arch = outpost_relay::go_compat::architecture();
        let mut facts = Facts { server_version: "1.2<3>", libc: "glibc", ..Facts::default() };
        assert_eq!(
            text(&facts),
            format!(
                "__INSTALL_RESULT__{{\"serverVersion\":\"1.2\\u003c3\\u003e\",\"os\":\"linux\",\
                 \"arch\":\"{arch}\",\"libc\":\"glibc\",\"cliPath\":\"\",\"cliWasPresent\":false}}\n"
            )
        );
        facts.libc = "musl";
        facts.cli_path = "/d/1\n".to_owned();
        facts.cli_was_present = true;
        facts.cli_error = "a \"b\"".to_owned();
        let (elapsed, longest_pause) = (Duration::from_micros(12_999), Duration::from_secs(3));
        facts.download = Some(DownloadStats { bytes: 7, elapsed, longest_pause });
        assert_eq!(
            text(&facts),
            format!(
                "__INSTALL_RESULT__{{\"serverVersion\":\"1.2\\u003c3\\u003e\",\"os\":\"linux\",\
                 \"arch\":\"{arch}\",\"libc\":\"musl\",\"cliPath\":\"/d/1\\n\",\"cliWasPresent\":true,\
                 \"cliError\":\"a \\\"b\\\"\",\"fetch\":{{\"bytes\":7,\"ms\":12,\"longestPauseMs\":3000}}}}\n"
            )
        );
    }

    #[test]
    fn progress_has_a_total_only_if_it_is_known() {
        let mut out = Vec::new();
        progress(&mut out, 5, None);
        progress(&mut out, 6, Some(7));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "__INSTALL_PROGRESS__{\"phase\":\"download\",\"bytes\":5}\n\
             __INSTALL_PROGRESS__{\"phase\":\"download\",\"bytes\":6,\"total\":7}\n"
        );
    }
}
