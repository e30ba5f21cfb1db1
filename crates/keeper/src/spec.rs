//! The specification of a child, as bytes in a sealed memory file: it may be larger than any message.

use crate::bytes::{Reader, Writer};
use outpost_sys::spawn::{ResourceLimit, Standing};
use std::ffi::{CStr, CString};

/// The most bytes a specification may have: the kernel takes no larger argument list on common machines.
pub(crate) const SPEC_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The most resource limits one may name: the kernel knows 16.
const LIMITS_MAX: u32 = 16;

/// A child to be, without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Absolute, or relative to the directory.
    pub program: CString,
    pub arguments: Vec<CString>,
    /// The whole environment.
    pub environment: Vec<CString>,
    pub directory: Option<CString>,
    pub standing: Standing,
    pub limits: Vec<ResourceLimit>,
    pub umask: Option<u32>,
    pub oom_score: Option<i32>,
}

impl Spec {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(match self.standing {
            Standing::Group => 0,
            Standing::Session => 1,
            Standing::Terminal => 2,
        });
        out.u8(u8::from(self.directory.is_some()));
        out.u8(u8::from(self.umask.is_some()));
        out.u8(u8::from(self.oom_score.is_some()));
        out.u32(self.umask.unwrap_or(0));
        out.i32(self.oom_score.unwrap_or(0));
        out.u32(count(self.limits.len()));
        out.u32(count(self.arguments.len()));
        out.u32(count(self.environment.len()));
        for limit in &self.limits {
            out.u32(limit.resource);
            out.u64(limit.soft);
            out.u64(limit.hard);
        }
        out.string(&self.program);
        out.string(self.directory.as_deref().unwrap_or_default());
        for string in self.arguments.iter().chain(&self.environment) {
            out.string(string);
        }
        out.bytes
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// The same, borrowed from the bytes it was sent in.
pub(crate) struct SpecRef<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) arguments: Vec<&'a CStr>,
    pub(crate) environment: Vec<&'a CStr>,
    pub(crate) directory: Option<&'a CStr>,
    pub(crate) standing: Standing,
    pub(crate) limits: Vec<ResourceLimit>,
    pub(crate) umask: Option<u32>,
    pub(crate) oom_score: Option<i32>,
}

impl<'a> SpecRef<'a> {
    /// `None` for bytes that are no specification.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<SpecRef<'a>> {
        let mut from = Reader::new(bytes);
        let standing = match from.u8()? {
            0 => Standing::Group,
            1 => Standing::Session,
            2 => Standing::Terminal,
            _ => return None,
        };
        let (has_directory, has_umask, has_oom_score) = (from.u8()? != 0, from.u8()? != 0, from.u8()? != 0);
        let umask = Some(from.u32()?).filter(|_| has_umask);
        let oom_score = Some(from.i32()?).filter(|_| has_oom_score);
        let (limit_count, argument_count, environment_count) = (from.u32()?, from.u32()?, from.u32()?);
        if limit_count > LIMITS_MAX {
            return None;
        }
        let mut limits = Vec::new();
        for _ in 0..limit_count {
            limits.push(ResourceLimit { resource: from.u32()?, soft: from.u64()?, hard: from.u64()? });
        }
        let program = from.string()?;
        let directory = Some(from.string()?).filter(|_| has_directory);
        // Every string takes at least a byte, so the counts cannot make these grow beyond the bytes there are.
        let arguments = (0..argument_count).map(|_| from.string()).collect::<Option<Vec<_>>>()?;
        let environment = (0..environment_count).map(|_| from.string()).collect::<Option<Vec<_>>>()?;
        Some(SpecRef { program, arguments, environment, directory, standing, limits, umask, oom_score })
    }
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
            standing: Standing::Terminal,
            limits: vec![ResourceLimit { resource: 7, soft: 1, hard: 2 }],
            umask: Some(0o77),
            oom_score: Some(-5),
        }
    }

    #[test]
    fn a_specification_reads_back_as_written() {
        let spec = spec();
        let bytes = spec.encode();
        let read = SpecRef::decode(&bytes).unwrap();
        assert_eq!(read.program, spec.program.as_c_str());
        assert_eq!(read.arguments, [c"true", c""]);
        assert_eq!(read.environment, [c"A=b"]);
        assert_eq!(read.directory, Some(c"/tmp"));
        assert_eq!((read.standing, read.umask, read.oom_score), (Standing::Terminal, Some(0o77), Some(-5)));
        assert_eq!(read.limits, spec.limits);
    }

    #[test]
    fn a_specification_cut_anywhere_is_refused() {
        let bytes = spec().encode();
        for len in 0..bytes.len() {
            assert!(SpecRef::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
    }
}
