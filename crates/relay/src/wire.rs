//! The contract's messages: requests with their parameters, error codes and texts, and the frames of replies.

use crate::json::fill::{Place, check_and_fill, fill};
use crate::json::read::{Mistyped, Text, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

/// "A single request line is capped at 1 MiB": one byte less is served, this many and more close the connection.
pub(crate) const LINE_BYTES: usize = 1024 * 1024;

pub(crate) const PARSE: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL: i32 = -32603;
pub(crate) const UNAUTHORIZED: i32 = -32001;
pub(crate) const STDIN_GAP: i32 = -32003;

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    pub(crate) fn params(message: &str) -> Failure {
        Failure::new(INVALID_PARAMS, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(INTERNAL, message)
    }
}

/// "Mistyped params … is also -32602 Invalid params".
impl From<Mistyped> for Failure {
    fn from(Mistyped: Mistyped) -> Failure {
        Failure::params("Invalid params")
    }
}

/// What a method answers: the text of its result, or an error.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// One line from a client.
#[derive(Default)]
pub(crate) struct Request<'a> {
    jsonrpc: Text<'a>,
    id: Option<Value<'a>>,
    pub(crate) method: Text<'a>,
    pub(crate) params: Option<Value<'a>>,
    pub(crate) auth: Text<'a>,
}

impl<'a> Request<'a> {
    /// None when the line is no JSON, or a member that we know has a type that it cannot have.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Request<'a>> {
        let mut request = Request::default();
        let places: &mut [(&'static str, &mut dyn Place<'a>)] = &mut [
            ("jsonrpc", &mut request.jsonrpc),
            ("id", &mut request.id),
            ("method", &mut request.method),
            ("params", &mut request.params),
            ("auth", &mut request.auth),
        ];
        check_and_fill(line, places)?.ok()?;
        Some(request)
    }

    pub(crate) fn has_version_2(&self) -> bool {
        self.jsonrpc.is_written("2.0") || self.jsonrpc.read() == "2.0"
    }

    pub(crate) fn id(&self) -> Id<'a> {
        self.id.map_or(Id::Null, Id::Sent)
    }

    /// "Absent params → -32602 Invalid params — checked after method existence".
    pub(crate) fn params(&self) -> Result<Value<'a>, Failure> {
        self.params.ok_or(Failure::params("Invalid params"))
    }
}

/// What a reply carries as its id: the value that was sent, compact.
pub(crate) enum Id<'a> {
    /// Of a request that has none, or could not be read.
    Null,
    Sent(Value<'a>),
    /// Ready for the reply.
    Kept(Vec<u8>),
}

impl Id<'_> {
    /// For a reply that is given when the line is gone.
    pub(crate) fn keep(&self) -> Id<'static> {
        let mut text = Vec::new();
        self.append(&mut text);
        Id::Kept(text)
    }

    fn append(&self, out: &mut Vec<u8>) {
        match self {
            Id::Null => out.extend_from_slice(b"null"),
            Id::Sent(value) => value.append_compact(out),
            Id::Kept(text) => out.extend_from_slice(text),
        }
    }

    /// For the log.
    pub(crate) fn text(&self) -> String {
        let mut text = Vec::new();
        self.append(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Appends a whole reply line.
pub(crate) fn append_reply(out: &mut Vec<u8>, id: &Id<'_>, outcome: &Outcome) {
    match outcome {
        Ok(result) => append_result(out, id, |out| out.extend_from_slice(result)),
        Err(failure) => append_failure(out, id, failure),
    }
}

/// Appends the reply of which `append` appends the result.
pub(crate) fn append_result(out: &mut Vec<u8>, id: &Id<'_>, append: impl FnOnce(&mut Vec<u8>)) {
    begin_reply(out, id);
    out.extend_from_slice(b",\"result\":");
    append(out);
    out.extend_from_slice(b"}\n");
}

pub(crate) fn append_failure(out: &mut Vec<u8>, id: &Id<'_>, failure: &Failure) {
    begin_reply(out, id);
    let _infallible = write!(out, ",\"error\":{{\"code\":{},\"message\":", failure.code);
    crate::json::write::string(out, failure.message.as_bytes());
    out.extend_from_slice(b"}}\n");
}

fn begin_reply(out: &mut Vec<u8>, id: &Id<'_>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    id.append(out);
}

/// "claustrum binds params into one struct per namespace", so a member of the wrong type counts also where it is not used.
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
    pub(crate) data: Data<'a>,
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

/// A member that takes payload: its bytes are not looked at twice.
#[derive(Default)]
pub(crate) struct Data<'a>(pub(crate) Cow<'a, [u8]>);

impl<'a> Place<'a> for Data<'a> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if value.is_null() {
            return Ok(());
        }
        self.0 = match value.plain_string() {
            Some(plain) => Cow::Borrowed(plain),
            None => Cow::Owned(value.string()?.into_owned().into_bytes()),
        };
        Ok(())
    }
}

/// Parameters of a method, from an object.
pub(crate) trait Params<'a>: Default {
    fn fill(&mut self, value: Value<'a>) -> Result<(), Mistyped>;

    fn parse(request: &Request<'a>) -> Result<Self, Failure> {
        let mut params = Self::default();
        params.fill(request.params()?)?;
        Ok(params)
    }
}

/// Says which member of which name goes where.
macro_rules! params {
    ($($type:ident { $($name:literal => $field:ident),+ $(,)? })+) => {$(
        impl<'a> Params<'a> for $type<'a> {
            fn fill(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
                fill(value, &mut [$(($name, &mut self.$field)),+])
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

/// Reads a line in every way that methods do, and writes a reply with its id.
pub(crate) fn exercise(line: &[u8]) -> Option<Vec<u8>> {
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

    /// The fuzz target looks further; this much is looked at every time.
    #[test]
    fn no_line_brings_the_reader_down() {
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
        let mut read = 0;
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
            if let Some(reply) = exercise(&line) {
                read += 1;
                assert_eq!(
                    reply.iter().filter(|byte| **byte == b'\n').count(),
                    1,
                    "{}",
                    String::from_utf8_lossy(&line)
                );
            }
        }
        assert!((2_000..20_000).contains(&read), "{read} lines were read: the changes are too many, or none");
    }
}
