//! The records of an extended (PAX) header: those that bear on names and sizes, and whether all are valid.

use std::collections::BTreeMap;

/// The records we look at. Others are only checked for their form.
const KNOWN: [&str; 16] = [
    "path",
    "linkpath",
    "uname",
    "gname",
    "size",
    "uid",
    "gid",
    "mtime",
    "atime",
    "ctime",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.name",
    "GNU.sparse.size",
    "GNU.sparse.realsize",
    "GNU.sparse.numblocks",
];
const MAP: &str = "GNU.sparse.map";

/// The last record of each known name that is not empty: an empty one takes back an earlier one.
#[derive(Default)]
pub(super) struct Records(BTreeMap<&'static str, Vec<u8>>);

impl Records {
    /// `None` when they are not valid.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Records> {
        let mut records = Records::default();
        // Format 0.0 of sparse files has a pair of records for each piece instead of a map.
        let mut pieces: Vec<&[u8]> = Vec::new();
        while !bytes.is_empty() {
            let (key, value, rest) = record(bytes)?;
            bytes = rest;
            let expected =
                if pieces.len().is_multiple_of(2) { "GNU.sparse.offset" } else { "GNU.sparse.numbytes" };
            if matches!(key, b"GNU.sparse.offset" | b"GNU.sparse.numbytes") {
                if key != expected.as_bytes() || value.contains(&b',') {
                    return None;
                }
                pieces.push(value);
            } else if let Some(known) = KNOWN.iter().chain(&[MAP]).find(|known| known.as_bytes() == key) {
                records.0.insert(known, value.to_vec());
            }
        }
        if !pieces.is_empty() {
            records.0.insert(MAP, pieces.join(&b','));
        }
        records.0.retain(|_, value| !value.is_empty());
        records.numbers_are_valid().then_some(records)
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }

    pub(super) fn map(&self) -> Option<&[u8]> {
        self.get(MAP)
    }

    /// The content's size in the archive, if it is stated here.
    pub(super) fn size(&self) -> Option<i64> {
        self.get("size").and_then(integer)
    }

    fn numbers_are_valid(&self) -> bool {
        let all = |keys: [&str; 3], valid: fn(&[u8]) -> bool| {
            keys.iter().filter_map(|key| self.get(key)).all(valid)
        };
        all(["size", "uid", "gid"], |value| integer(value).is_some())
            && all(["mtime", "atime", "ctime"], is_time)
    }
}

/// A whole number in decimal digits, with or without a sign.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn is_time(text: &[u8]) -> bool {
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let seconds = parts.next().unwrap_or_default();
    integer(seconds).is_some() && parts.next().unwrap_or_default().iter().all(u8::is_ascii_digit)
}

/// One record, `length key=value\n`, where the length counts all of it; then what follows.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|&byte| byte == b' ')?;
    let (digits, _) = bytes.split_at_checked(space)?;
    let length = usize::try_from(integer(digits)?).ok().filter(|&length| length >= 5)?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (body.get(..equals)?, body.get(equals + 1..)?);
    let text = if matches!(key, b"path" | b"linkpath" | b"uname" | b"gname") { value } else { key };
    (!key.is_empty() && !text.contains(&0)).then_some((key, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_name_counts_and_an_empty_one_takes_it_back() {
        let records = Records::parse(b"9 path=a\n9 path=b\n18 comment=x\0y=z\n\n").unwrap();
        assert_eq!(records.get("path"), Some(&b"b"[..]));
        assert_eq!(records.size(), None);
        let records = Records::parse(b"9 path=a\n8 path=\n11 size=12\n").unwrap();
        assert_eq!((records.get("path"), records.size()), (None, Some(12)));
    }

    #[test]
    fn what_is_not_a_record_is_refused() {
        let cases: [&[u8]; 15] = [
            b"x",
            b"9 path=a",
            b"11 path=a\n",
            b"8 path=a\n",
            b"-1 path=a\n",
            b" path=a\n",
            b"99999999999999999999 path=a\n",
            b"9223372036854775807 path=a\n",
            b"6 path\n",
            b"5 =b\n",
            b"11 path=\0b\n",
            b"11 size=x1\n",
            b"11 mtime=x\n",
            b"13 uid=1.5e3\n",
            b"15 mtime=1.2.3\n",
        ];
        for case in cases {
            assert!(Records::parse(case).is_none(), "{}", case.escape_ascii());
        }
    }
}
