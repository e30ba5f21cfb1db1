//! The specification of a child, as bytes in a sealed memfd, since it may be larger than a message.

use crate::bytes::{Reader, Writer};
use outpost_sys::confine;
use outpost_sys::credentials::{Credentials, GROUPS_MAX};
use outpost_sys::spawn::{ResourceLimit, SessionKind};
use std::ffi::{CStr, CString};

/// Maximum number of bytes of a specification. The kernel accepts no larger argument list on common machines.
pub(crate) const SPEC_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The initial capacity: few specifications are larger.
const TYPICAL_BYTES: usize = 8 * 1024;

/// Maximum number of resource limits. The kernel knows 16.
const LIMITS_MAX: u32 = 16;

/// Numbers of [`SessionKind`].
mod session {
    pub(super) const GROUP: u8 = 0;
    pub(super) const SESSION: u8 = 1;
    pub(super) const TERMINAL: u8 = 2;
}

/// The description of a child without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec<S = CString> {
    /// Absolute, or relative to the directory.
    pub program: S,
    pub arguments: Vec<S>,
    /// The whole environment.
    pub environment: Vec<S>,
    pub directory: Option<S>,
    pub session: SessionKind,
    pub limits: Vec<ResourceLimit>,
    pub umask: Option<u32>,
    pub oom_score: Option<i32>,
    /// The sandbox that the child enters before exec.
    pub confinement: Option<confine::Program>,
    /// The user that the child becomes, if not the daemon's.
    pub credentials: Option<Credentials>,
}

impl<S: AsRef<CStr>> Spec<S> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::with_capacity(TYPICAL_BYTES) };
        out.u8(match self.session {
            SessionKind::Group => session::GROUP,
            SessionKind::Session => session::SESSION,
            SessionKind::Terminal => session::TERMINAL,
        });
        out.flag(self.directory.is_some());
        out.flag(self.umask.is_some());
        out.flag(self.oom_score.is_some());
        out.u32(self.umask.unwrap_or(0));
        out.i32(self.oom_score.unwrap_or(0));
        out.count(self.limits.len());
        for limit in &self.limits {
            out.u32(limit.resource);
            out.u64(limit.soft);
            out.u64(limit.hard);
        }
        out.string(self.program.as_ref());
        out.string(self.directory.as_ref().map_or(c"", AsRef::as_ref));
        out.strings(&self.arguments);
        out.strings(&self.environment);
        out.flag(self.confinement.is_some());
        if let Some(confinement) = &self.confinement {
            out.block(confinement.as_bytes());
        }
        out.flag(self.credentials.is_some());
        if let Some(Credentials { uid, gid, groups }) = &self.credentials {
            out.u32(*uid);
            out.u32(*gid);
            out.count(groups.len());
            groups.iter().for_each(|group| out.u32(*group));
        }
        out.bytes
    }
}

impl<'a> Spec<&'a CStr> {
    /// Borrows from the bytes. `None` for bytes that are no specification.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Spec<&'a CStr>> {
        let mut from = Reader(bytes);
        let session = match from.u8()? {
            session::GROUP => SessionKind::Group,
            session::SESSION => SessionKind::Session,
            session::TERMINAL => SessionKind::Terminal,
            _ => return None,
        };
        let (has_directory, has_umask, has_oom_score) = (from.flag()?, from.flag()?, from.flag()?);
        let umask = Some(from.u32()?).filter(|_| has_umask);
        let oom_score = Some(from.i32()?).filter(|_| has_oom_score);
        let mut limits = Vec::new();
        for _ in 0..from.u32().filter(|count| *count <= LIMITS_MAX)? {
            limits.push(ResourceLimit { resource: from.u32()?, soft: from.u64()?, hard: from.u64()? });
        }
        let program = from.string()?;
        let directory = Some(from.string()?).filter(|_| has_directory);
        let (arguments, environment) = (from.strings()?, from.strings()?);
        let confinement = match from.flag()? {
            true => Some(confine::Program::from_bytes(from.block()?)?),
            false => None,
        };
        let credentials = match from.flag()? {
            true => Some(decode_credentials(&mut from)?),
            false => None,
        };
        Some(Spec {
            program,
            arguments,
            environment,
            directory,
            session,
            limits,
            umask,
            oom_score,
            confinement,
            credentials,
        })
    }
}

fn decode_credentials(from: &mut Reader<'_>) -> Option<Credentials> {
    let (uid, gid) = (from.u32()?, from.u32()?);
    let count = usize::try_from(from.u32()?).ok().filter(|count| *count <= GROUPS_MAX)?;
    let mut groups = Vec::new();
    for _ in 0..count {
        groups.push(from.u32()?);
    }
    Some(Credentials { uid, gid, groups })
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            program: c"/bin/true".into(),
            arguments: vec![c"true".into(), c"".into()],
            environment: vec![c"A=b".into()],
            directory: Some(c"/tmp".into()),
            session: SessionKind::Terminal,
            limits: vec![ResourceLimit { resource: 7, soft: 1, hard: 2 }],
            umask: Some(0o77),
            oom_score: Some(-5),
            confinement: None,
            credentials: Some(Credentials { uid: 1000, gid: 100, groups: vec![100, 27] }),
        }
    }

    #[test]
    fn a_specification_decodes_to_itself() {
        let spec = spec();
        let bytes = spec.encode();
        let read = Spec::decode(&bytes).unwrap();
        assert_eq!(read.program, spec.program.as_c_str());
        assert_eq!(read.arguments, [c"true", c""]);
        assert_eq!(read.environment, [c"A=b"]);
        assert_eq!(read.directory, Some(c"/tmp"));
        assert_eq!((read.session, read.umask, read.oom_score), (SessionKind::Terminal, Some(0o77), Some(-5)));
        assert_eq!(read.limits, spec.limits);
        assert_eq!(read.credentials, spec.credentials);
    }

    #[test]
    fn a_specification_cut_anywhere_is_refused() {
        let bytes = spec().encode();
        for len in 0..bytes.len() {
            assert!(Spec::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
    }
}
