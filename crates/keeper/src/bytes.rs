//! Little-endian fields in sequence. Reads past the end return `None`.

use std::ffi::CStr;

/// Writes fields.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

/// Reads fields; `None` once the bytes are used up.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

macro_rules! numbers {
    ($($number:ident)*) => {
        impl Writer {
            $(pub(crate) fn $number(&mut self, value: $number) {
                self.bytes.extend_from_slice(&value.to_le_bytes());
            })*
        }
        impl Reader<'_> {
            $(pub(crate) fn $number(&mut self) -> Option<$number> {
                self.array().map($number::from_le_bytes)
            })*
        }
    };
}
numbers!(u8 u32 i32 u64);

impl Writer {
    pub(crate) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(crate) fn count(&mut self, len: usize) {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// A string and its terminating zero.
    pub(crate) fn string(&mut self, value: &CStr) {
        self.bytes.extend_from_slice(value.to_bytes_with_nul());
    }

    /// Bytes after their count.
    pub(crate) fn block(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn strings(&mut self, values: &[impl AsRef<CStr>]) {
        self.count(values.len());
        values.iter().for_each(|value| self.string(value.as_ref()));
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    /// A string up to its zero.
    pub(crate) fn string(&mut self) -> Option<&'a CStr> {
        let string = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = self.0.get(string.count_bytes() + 1..)?;
        Some(string)
    }

    pub(crate) fn block(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (block, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(block)
    }

    /// Every string takes at least one byte, so a wrong count does not make this grow beyond the input.
    pub(crate) fn strings(&mut self) -> Option<Vec<&'a CStr>> {
        (0..self.u32()?).map(|_| self.string()).collect()
    }
}
