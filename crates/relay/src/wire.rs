//! The contract's messages: requests, params of each method, error codes, and reply lines.

use crate::go_json::read::{Mistyped, Text, Value};
use crate::go_json::unmarshal::{Field, unmarshal, validate_and_unmarshal};
pub(crate) use outpost_wire::jsonrpc::Failure;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

/// "A single request line is capped at 1 MiB". A line of this length or longer closes the connection.
pub(crate) const LINE_BYTES_MAX: usize = 1024 * 1024;

pub(crate) const UNAUTHORIZED: i32 = -32001;
pub(crate) const STDIN_GAP: i32 = -32003;

/// "Mistyped params … is also -32602 Invalid params".
impl From<Mistyped> for Failure {
    fn from(Mistyped: Mistyped) -> Failure {
        Failure::invalid_params("Invalid params")
    }
}

/// The JSON text of a method's result, or an error.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// A request line.
#[derive(Default)]
pub(crate) struct Request<'a> {
    jsonrpc: Text<'a>,
    id: Option<Value<'a>>,
    pub(crate) method: Text<'a>,
    pub(crate) params: Option<Value<'a>>,
    pub(crate) auth: Text<'a>,
}

impl<'a> Request<'a> {
    /// `None` if the line is not JSON or a known member has the wrong type.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Request<'a>> {
        let mut request = Request::default();
        let fields: &mut [(&'static str, &mut dyn Field<'a>)] = &mut [
            ("jsonrpc", &mut request.jsonrpc),
            ("id", &mut request.id),
            ("method", &mut request.method),
            ("params", &mut request.params),
            ("auth", &mut request.auth),
        ];
        validate_and_unmarshal(line, fields)?.ok()?;
        Some(request)
    }

    pub(crate) fn has_version_2(&self) -> bool {
        self.jsonrpc.source_equals("2.0") || self.jsonrpc.decode() == "2.0"
    }

    pub(crate) fn id(&self) -> Id<'a> {
        self.id.map_or(Id::Null, Id::Borrowed)
    }

    /// "Absent params → -32602 Invalid params — checked after method existence".
    pub(crate) fn params(&self) -> Result<Value<'a>, Failure> {
        self.params.ok_or(Failure::invalid_params("Invalid params"))
    }
}

/// The id of a reply: the request's value in compact form.
pub(crate) enum Id<'a> {
    /// The request has no id or could not be parsed.
    Null,
    Borrowed(Value<'a>),
    /// Compact JSON text.
    Owned(Vec<u8>),
}

impl Id<'_> {
    /// A copy for a reply that outlives the request line.
    pub(crate) fn to_owned(&self) -> Id<'static> {
        let mut text = Vec::new();
        self.append(&mut text);
        Id::Owned(text)
    }

    fn append(&self, out: &mut Vec<u8>) {
        match self {
            Id::Null => out.extend_from_slice(b"null"),
            Id::Borrowed(value) => value.append_compact(out),
            Id::Owned(text) => out.extend_from_slice(text),
        }
    }

    /// The text for the log.
    pub(crate) fn text(&self) -> String {
        let mut text = Vec::new();
        self.append(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Appends a reply line.
pub(crate) fn append_reply(out: &mut Vec<u8>, id: &Id<'_>, outcome: &Outcome) {
    match outcome {
        Ok(result) => append_result(out, id, |out| out.extend_from_slice(result)),
        Err(failure) => append_failure(out, id, failure),
    }
}

/// Appends a success reply. `append` writes the result.
pub(crate) fn append_result(out: &mut Vec<u8>, id: &Id<'_>, append: impl FnOnce(&mut Vec<u8>)) {
    begin_reply(out, id);
    out.extend_from_slice(b",\"result\":");
    append(out);
    out.extend_from_slice(b"}\n");
}

pub(crate) fn append_failure(out: &mut Vec<u8>, id: &Id<'_>, failure: &Failure) {
    begin_reply(out, id);
    let _infallible = write!(out, ",\"error\":{{\"code\":{},\"message\":", failure.code);
    crate::go_json::write::string(out, failure.message.as_bytes());
    out.extend_from_slice(b"}}\n");
}

fn begin_reply(out: &mut Vec<u8>, id: &Id<'_>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    id.append(out);
}

/// "claustrum binds params into one struct per namespace". A mistyped member is therefore an error in every method of the
/// namespace, also in one that does not use it.
#[derive(Default)]
pub(crate) struct PathParams<'a> {
    pub(crate) path: Cow<'a, str>,
    pub(crate) max_bytes: i64,
}

#[derive(Default)]
pub(crate) struct ExtractTarParams<'a> {
    pub(crate) archive_path: Cow<'a, str>,
    pub(crate) dest_dir: Cow<'a, str>,
}

#[derive(Default)]
pub(crate) struct GitParams<'a> {
    pub(crate) path: Cow<'a, str>,
    pub(crate) base_repo: Cow<'a, str>,
    pub(crate) branch_name: Cow<'a, str>,
    pub(crate) worktree_path: Cow<'a, str>,
    pub(crate) source_branch: Cow<'a, str>,
}

#[derive(Default)]
pub(crate) struct SpawnParams<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) command: Cow<'a, str>,
    pub(crate) args: Vec<Cow<'a, str>>,
    pub(crate) cwd: Cow<'a, str>,
    pub(crate) env: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    pub(crate) want_pid: bool,
}

#[derive(Default)]
pub(crate) struct StdinParams<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) data: Payload<'a>,
    pub(crate) offset: Option<i64>,
}

#[derive(Default)]
pub(crate) struct KillParams<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) signal: Cow<'a, str>,
}

#[derive(Default)]
pub(crate) struct KillAndWaitParams<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) signal: Cow<'a, str>,
    pub(crate) timeout_ms: i64,
    pub(crate) escalate: Option<bool>,
}

#[derive(Default)]
pub(crate) struct ReattachParams<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) from_seq: i64,
    pub(crate) want_pid: bool,
}

/// A base64 payload. It stays borrowed if the string has no escapes.
#[derive(Default)]
pub(crate) struct Payload<'a>(pub(crate) Cow<'a, [u8]>);

impl<'a> Field<'a> for Payload<'a> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if value.is_null() {
            return Ok(());
        }
        self.0 = match value.unescaped_bytes() {
            Some(plain) => Cow::Borrowed(plain),
            None => Cow::Owned(value.string()?.into_owned().into_bytes()),
        };
        Ok(())
    }
}

/// Params of a method, decoded from the request's `params` object.
pub(crate) trait Params<'a>: Default {
    fn unmarshal(&mut self, value: Value<'a>) -> Result<(), Mistyped>;

    fn parse(request: &Request<'a>) -> Result<Self, Failure> {
        let mut params = Self::default();
        params.unmarshal(request.params()?)?;
        Ok(params)
    }
}

/// Implements [`Params`] by a table of member names and fields.
macro_rules! params {
    ($($type:ident { $($name:literal => $field:ident),+ $(,)? })+) => {$(
        impl<'a> Params<'a> for $type<'a> {
            fn unmarshal(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
                unmarshal(value, &mut [$(($name, &mut self.$field)),+])
            }
        }
    )+};
}

params! {
    PathParams { "path" => path, "maxBytes" => max_bytes }
    ExtractTarParams { "archivePath" => archive_path, "destDir" => dest_dir }
    GitParams {
        "path" => path,
        "baseRepo" => base_repo,
        "branchName" => branch_name,
        "worktreePath" => worktree_path,
        "sourceBranch" => source_branch,
    }
    SpawnParams {
        "id" => id,
        "command" => command,
        "args" => args,
        "cwd" => cwd,
        "env" => env,
        "wantPid" => want_pid,
    }
    StdinParams { "id" => id, "data" => data, "offset" => offset }
    KillParams { "id" => id, "signal" => signal }
    KillAndWaitParams { "id" => id, "signal" => signal, "timeoutMs" => timeout_ms, "escalate" => escalate }
    ReattachParams { "id" => id, "fromSeq" => from_seq, "wantPid" => want_pid }
}

/// See [`crate::read_request`].
pub(crate) fn parse_as_every_method(line: &[u8]) -> Option<Vec<u8>> {
    let request = Request::parse(line)?;
    let outcomes = [
        PathParams::parse(&request).map(|_| ()),
        ExtractTarParams::parse(&request).map(|_| ()),
        GitParams::parse(&request).map(|_| ()),
        SpawnParams::parse(&request).map(|_| ()),
        StdinParams::parse(&request)
            .map(|params| drop(outpost_wire::base64::decode_leniently(&params.data.0))),
        KillParams::parse(&request).map(|_| ()),
        KillAndWaitParams::parse(&request).map(|_| ()),
        ReattachParams::parse(&request).map(|_| ()),
    ];
    let failure = outcomes.into_iter().find_map(Result::err);
    let outcome = failure.map_or_else(|| Ok(b"{}".to_vec()), Err);
    let mut reply = Vec::new();
    append_reply(&mut reply, &request.id(), &outcome);
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short, deterministic version of the fuzz target.
    #[test]
    fn mutated_lines_never_panic() {
        let seeds: [&[u8]; 4] = [
            br#"{"jsonrpc":"2.0","id":[1,{"a":"\u2028<>"}],"method":"process.spawn","params":{"id":"p","args":["a",null],"env":{"A":"b"}},"auth":"t"}"#,
            br#"{"id":1e3,"params":{"id":"x","data":"YQ==","offset":-9223372036854775808,"timeoutMs":1,"escalate":null}}"#,
            b"{\"jsonrpc\":\"\xff\\ud800\\udc00\",\"ID\":-0,\"Params\":[[[[]]]]}",
            br#"{"params":{"path":"\/","maxBytes":99999999999999999999,"fromSeq":1.5}}"#,
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let mut parsed = 0;
        for round in 0..20_000 {
            let mut line = seeds[round % seeds.len()].to_vec();
            for _ in 0..next(4) {
                if line.len() < 2 {
                    break;
                }
                let at = next(line.len());
                match next(4) {
                    0 => line[at] = next(256) as u8,
                    1 => drop(line.remove(at)),
                    2 => line.insert(at, b"{}[]\",:\\u0e-."[next(13)]),
                    _ => line.truncate(at.max(1)),
                }
            }
            if let Some(reply) = parse_as_every_method(&line) {
                parsed += 1;
                assert_eq!(
                    reply.iter().filter(|byte| **byte == b'\n').count(),
                    1,
                    "{}",
                    String::from_utf8_lossy(&line)
                );
            }
        }
        assert!(
            (2_000..20_000).contains(&parsed),
            "{parsed} of 20000 lines parsed: too many or no mutations"
        );
    }
}
