//! Which parts of a file are in the archive: all of it, or the pieces that a sparse file's map names.
//!
//! GNU tar writes maps in three ways into extended headers (0.0, 0.1 and 1.0). The original's reader knows them, so an
//! archive made with `tar --sparse` unpacks.

use crate::extract::pax::{Records, integer};

/// A part of the file whose bytes are in the archive. What lies between is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Where the map of a sparse file is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In the records themselves.
    Records,
    /// In front of the content.
    Content,
}

/// `None` when the file is not sparse, or in a way nobody knows.
pub(super) fn form(records: &Records) -> Option<Form> {
    match (records.get("GNU.sparse.major"), records.get("GNU.sparse.minor")) {
        (Some(b"0"), Some(b"0" | b"1")) => Some(Form::Records),
        (Some(b"1"), Some(b"0")) => Some(Form::Content),
        (None, None) if records.map().is_some() => Some(Form::Records),
        _ => None,
    }
}

/// The size of the whole file; `stated` where the records have none.
pub(super) fn size(records: &Records, stated: i64) -> Option<u64> {
    let size = records.get("GNU.sparse.size").or_else(|| records.get("GNU.sparse.realsize"));
    u64::try_from(size.map_or(Some(stated), integer)?).ok()
}

/// The map in the records: offsets and lengths by turns, and how many pairs there are.
pub(super) fn map_in_records(records: &Records, size: u64) -> Option<Vec<Piece>> {
    let count = usize::try_from(integer(records.get("GNU.sparse.numblocks")?)?).ok()?;
    let numbers = records.map().map_or_else(Vec::new, |map| map.split(|&byte| byte == b',').collect());
    if numbers.len() != count.checked_mul(2)? {
        return None;
    }
    pieces(&numbers, size)
}

/// The map in front of the content, read in whole blocks by `next_block`: a line with the number of pairs, then one line
/// for each number. `Ok(None)` when it is not valid.
pub(super) fn map_in_content(
    size: u64,
    mut next_block: impl FnMut() -> Result<[u8; 512], String>,
) -> Result<Option<Vec<Piece>>, String> {
    let (mut text, mut lines_read) = (Vec::new(), 0);
    let mut lines_wanted = 1;
    loop {
        while lines_read < lines_wanted {
            if text.len() + 512 > super::SPECIAL_BYTES_MAX {
                return Err("archive/tar: sparse map too long".to_owned());
            }
            let block = next_block()?;
            lines_read += block.iter().filter(|&&byte| byte == b'\n').count();
            text.extend(block);
        }
        let mut lines = text.split(|&byte| byte == b'\n');
        let count = lines.next().and_then(integer).and_then(|count| usize::try_from(count).ok());
        let Some(all) = count.and_then(|count| count.checked_mul(2)?.checked_add(1)) else { return Ok(None) };
        if lines_wanted == all {
            let numbers: Vec<&[u8]> = lines.take(all - 1).collect();
            return Ok(pieces(&numbers, size));
        }
        lines_wanted = all;
    }
}

/// Pairs of numbers as pieces, if those are in order, apart from each other and within the file.
fn pieces(numbers: &[&[u8]], size: u64) -> Option<Vec<Piece>> {
    let mut pieces = Vec::with_capacity(numbers.len() / 2);
    let mut end = 0;
    for pair in numbers.chunks_exact(2) {
        let [offset, bytes] = pair else { return None };
        let offset = u64::try_from(integer(offset)?).ok().filter(|&offset| offset >= end)?;
        let bytes = u64::try_from(integer(bytes)?).ok()?;
        end = offset.checked_add(bytes).filter(|&end| end <= size)?;
        pieces.push(Piece { offset, bytes });
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_overlaps_or_leaves_the_file_is_refused() {
        let map = |text: &str| pieces(&text.split(',').map(str::as_bytes).collect::<Vec<_>>(), 100);
        assert_eq!(map("0,5,5,0,90,10").unwrap().len(), 3);
        for wrong in
            ["0,5,4,1", "0,101", "-1,1", "1,-1", "9223372036854775807,9223372036854775807", "a,1", "90,11"]
        {
            assert_eq!(map(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_map_that_claims_more_than_it_has_is_bounded() {
        let mut blocks = 0;
        let endless = map_in_content(1, || {
            blocks += 1;
            let mut block = [b'1'; 512];
            block[..20].copy_from_slice(b"4611686018427387903\n");
            Ok(block)
        });
        assert_eq!(endless, Err("archive/tar: sparse map too long".to_owned()));
        assert!(blocks <= 2048);
        assert_eq!(map_in_content(1, || Ok([b'\n'; 512])), Ok(None));
        assert_eq!(map_in_content(1, || Err("cut".to_owned())), Err("cut".to_owned()));
    }
}
