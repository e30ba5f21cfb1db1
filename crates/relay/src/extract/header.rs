//! One 512-byte header block of a tar: which of its formats it is in, and the fields we use.
//!
//! The tar crate knows where the fields are. What counts as valid follows the original's reader, which is stricter
//! about numbers and looser about versions than the crate is.

/// What a header says by itself, before extended headers change it.
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) kind: u8,
    pub(super) size: i64,
}

/// `None` when the block is no valid header.
pub(super) fn parse(block: &tar::Header) -> Option<Header> {
    let fields = block.as_old();
    let stated = octal(&fields.cksum)?;
    if stated != sum(block, i64::from) && stated != sum(block, |byte| i64::from(byte.cast_signed())) {
        return None;
    }
    for ignored in [&fields.mode[..], &fields.uid, &fields.gid, &fields.mtime] {
        number(ignored)?;
    }
    let [kind] = fields.linkflag;
    let prefix = prefix(block)?;
    let mut name = Vec::with_capacity(prefix.len() + fields.name.len() + 1);
    if !prefix.is_empty() {
        name.extend(prefix);
        name.push(b'/');
    }
    name.extend(c_string(&fields.name));
    Some(Header { name, kind, size: number(&fields.size)? })
}

/// Directories and links have no content whatever size they state.
pub(super) fn is_header_only(kind: u8) -> bool {
    matches!(kind, b'1'..=b'6')
}

/// The first part of the name, where the format has one. `None` when a field of the format is not valid.
fn prefix(block: &tar::Header) -> Option<&[u8]> {
    let field = |range: std::ops::Range<usize>| block.as_bytes().get(range).unwrap_or_default();
    let (magic, version, devices, trailer) =
        (field(257..263), field(263..265), field(329..345), field(508..512));
    let is_gnu = magic == b"ustar " && version == b" \0";
    if magic != b"ustar\0" && !is_gnu {
        return Some(b"");
    }
    let (major, minor) = devices.split_at(8);
    number(major)?;
    number(minor)?;
    if !is_gnu && trailer == b"tar\0" {
        number(field(476..488))?;
        number(field(488..500))?;
        return Some(c_string(field(345..476)));
    }
    let prefix = c_string(field(345..500));
    if !is_gnu {
        return Some(prefix);
    }
    // GNU has times where others have the prefix. A writer of old put a prefix there nevertheless: then they are no times.
    let is_time = |time: &[u8]| time.first() == Some(&0) || number(time).is_some();
    let times_are_valid = is_time(field(345..357)) && is_time(field(357..369));
    Some(if times_are_valid || !prefix.is_ascii() { b"" } else { prefix })
}

/// All bytes added up, those of the checksum itself as blanks. Old writers added them as signed ones.
fn sum(block: &tar::Header, value: impl Fn(u8) -> i64) -> i64 {
    let bytes = block.as_bytes().iter().enumerate();
    bytes.map(|(at, &byte)| value(if (148..156).contains(&at) { b' ' } else { byte })).sum()
}

/// A field up to its first NUL.
pub(super) fn c_string(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number in octal digits, or, if the first bit is set, in two's complement with the highest byte first.
fn number(field: &[u8]) -> Option<i64> {
    let Some(first) = field.first().copied().filter(|first| first & 0x80 != 0) else { return octal(field) };
    let invert = if first & 0x40 == 0 { 0 } else { 0xff };
    let mut value: u64 = 0;
    for (at, byte) in field.iter().enumerate() {
        let byte = (byte ^ invert) & if at == 0 { 0x7f } else { 0xff };
        if value >> 56 != 0 {
            return None;
        }
        value = value << 8 | u64::from(byte);
    }
    let value = i64::try_from(value).ok()?;
    Some(if invert == 0 { value } else { !value })
}

/// Octal digits between any number of blanks and NULs; nothing is zero.
fn octal(field: &[u8]) -> Option<i64> {
    let is_filler = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_filler(byte)).unwrap_or(field.len());
    let end = field.iter().rposition(|byte| !is_filler(byte)).map_or(start, |last| last + 1);
    let digits = c_string(field.get(start..end).unwrap_or_default());
    digits.iter().try_fold(0_i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_original_reads_them() {
        let cases: [(&[u8], Option<i64>); 14] = [
            (b"0000644\0", Some(0o644)),
            (b" 644 \0", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"", Some(0)),
            (b"12\08", Some(0o12)),
            (b"8", None),
            (b"+7", None),
            (b"-1", None),
            (b"7 7", None),
            (b"\x80\0\0\x01", Some(1)),
            (b"\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
        ];
        for (field, value) in cases {
            assert_eq!(number(field), value, "{field:?}");
        }
        assert_eq!(number(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None, "too large for any file");
    }
}
