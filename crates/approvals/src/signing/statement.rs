//! The statement: the bytes that an approver signs to decide one question of one host.

use super::encoding::{Decoder, Encoder};
use super::{DecodeError, SignedError};
use crate::question::{Decision, Question, Remember};
use outpost_ledger::audit::Head;
use sha2::{Digest, Sha256};

const MAGIC: &str = "outpost-decision-statement";
const SHOWN_MAGIC: &str = "outpost-question-shown";

/// How long a statement can be submitted after its issue.
pub const VALID_MS: u64 = 10 * 60 * 1000;

/// Everything that a decision binds. Equal statements have equal encodings, and vice versa.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The public key of the asking host, in SSH wire format.
    pub host: Vec<u8>,
    /// The question's id.
    pub question: String,
    /// The question's digest.
    pub digest: String,
    /// [`shown_hash`] of the question as the approver saw it.
    pub shown: [u8; 32],
    pub decision: Decision,
    /// The newest audit record when the question was shown.
    pub head: Head,
    /// Unix milliseconds by the approver's clock.
    pub issued_ms: u64,
    pub expires_ms: u64,
}

impl Statement {
    /// A decision about a question, issued now.
    pub fn new(question: &Question, host: &[u8], head: Head, decision: Decision) -> Statement {
        let issued_ms = outpost_ledger::unix_ms();
        Statement {
            host: host.to_vec(),
            question: question.id.clone(),
            digest: question.digest.clone(),
            shown: shown_hash(question),
            decision,
            head,
            issued_ms,
            expires_ms: issued_ms.saturating_add(VALID_MS),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (kind, count) = match self.decision.remember {
            None => ("", 0),
            Some(Remember::Times(times)) => ("times", times),
            Some(Remember::Minutes(minutes)) => ("minutes", minutes),
        };
        Encoder::new(MAGIC)
            .string(&self.host)
            .string(&self.question)
            .string(&self.digest)
            .string(self.shown)
            .string(if self.decision.allow { "allow" } else { "deny" })
            .string(&self.decision.note)
            .string(kind)
            .number(count.into())
            .head(&self.head)
            .number(self.issued_ms)
            .number(self.expires_ms)
            .bytes()
    }

    /// Decodes the exact output of [`encode`](Statement::encode). Other versions, unknown values and trailing
    /// bytes are errors.
    pub fn decode(bytes: &[u8]) -> Result<Statement, SignedError> {
        Statement::parse(bytes).map_err(SignedError::Statement)
    }

    fn parse(bytes: &[u8]) -> Result<Statement, DecodeError> {
        let mut from = Decoder::new(bytes, MAGIC)?;
        let host = from.bytes("host key")?;
        let (question, digest) = (from.text("question")?, from.text("digest")?);
        let shown = from.hash("hash of what was shown")?;
        let allow = match from.text("verdict")?.as_str() {
            "allow" => true,
            "deny" => false,
            _ => return Err(DecodeError::Unknown("verdict")),
        };
        let note = from.text("note")?;
        let kind = from.text("grant")?;
        let count = u32::try_from(from.number("grant")?).map_err(|_| DecodeError::TooLarge("grant"))?;
        let remember = match (kind.as_str(), count) {
            ("", 0) => None,
            ("times", times) => Some(Remember::Times(times)),
            ("minutes", minutes) => Some(Remember::Minutes(minutes)),
            _ => return Err(DecodeError::Unknown("grant")),
        };
        let head = from.head()?;
        let (issued_ms, expires_ms) = (from.number("time of issue")?, from.number("expiry")?);
        from.end()?;
        let decision = Decision { allow, note, remember };
        Ok(Statement { host, question, digest, shown, decision, head, issued_ms, expires_ms })
    }

    /// An id in UUID format, from the hash of the encoding. A grant has this id, so a signature grants once.
    pub fn id(&self) -> String {
        let hash = Sha256::digest(self.encode());
        let mut first = [0; 16];
        first.iter_mut().zip(hash.iter()).for_each(|(to, from)| *to = *from);
        uuid::Uuid::from_bytes(first).to_string()
    }
}

/// Hash of everything in a question that an approver reads. It excludes the deadline, which changes while the
/// question is pending.
pub fn shown_hash(question: &Question) -> [u8; 32] {
    let flag = |set: bool| if set { "1" } else { "" };
    let mut fields = Encoder::new(SHOWN_MAGIC)
        .string(&question.id)
        .string(&question.face)
        .string(&question.digest)
        .string(&question.title)
        .string(flag(question.privileged))
        .string(flag(question.rememberable))
        .string(question.uid.map(|uid| uid.to_string()).unwrap_or_default())
        .number(question.asked_ms)
        .strings(&question.warnings)
        .number(question.sections.len() as u64);
    for section in &question.sections {
        fields =
            fields.string(&section.heading).string(flag(section.claimed)).number(section.lines.len() as u64);
        for line in &section.lines {
            fields = fields.string(&line.name).string(&line.value);
        }
    }
    Sha256::digest(fields.bytes()).into()
}
