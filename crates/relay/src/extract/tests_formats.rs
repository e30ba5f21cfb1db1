//! Tar and gzip formats: long names in each dialect, old tars, gzip members, truncated and damaged archives.

use super::*;

fn record(key: &str, value: &str) -> Vec<u8> {
    let body = format!(" {key}={value}\n");
    let mut length = body.len();
    while length != body.len() + length.to_string().len() {
        length = body.len() + length.to_string().len();
    }
    format!("{length}{body}").into_bytes()
}

/// A PAX header with these records.
fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let bytes: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
    entry(b'x', b"PaxHeaders/x", &bytes)
}

fn long(of: &str) -> String {
    format!("{}/{of}", ["a-rather-long-name"; 12].join("/"))
}

#[test]
fn long_names_are_extracted_in_every_dialect() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    builder.append_data(&mut header, long("gnu"), &b"1"[..]).unwrap();
    builder.append_pax_extensions([("path", long("pax").as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(1);
    header.set_mode(0o644);
    header.set_cksum();
    header.set_path("short").unwrap();
    header.set_cksum();
    builder.append(&header, &b"2"[..]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(1);
    // Split into name and prefix of ustar.
    header.set_path(&long("ustar")[20..]).unwrap();
    header.set_cksum();
    builder.append(&header, &b"3"[..]).unwrap();
    let fixture = Fixture::new();
    assert_eq!(fixture.extract(&gzip(&builder.into_inner().unwrap())), success(3));
    for (name, content) in [(long("gnu"), b"1"), (long("pax"), b"2"), (long("ustar")[20..].to_owned(), b"3")]
    {
        assert_eq!(fs::read(fixture.path("dest").join(name)).unwrap(), content);
    }
}

#[test]
fn a_long_name_is_checked_like_a_short_one() {
    let fixture = Fixture::new();
    let out = "a/../../x".to_owned() + &"/y".repeat(100);
    let gnu = [entry(b'L', b"././@LongLink", &[out.as_bytes(), b"\0"].concat()), file("fine", "1")];
    assert_eq!(fixture.extract(&archive(&gnu)), failure(0, format!("unsafe path in archive: {out}")));
    let by_pax = [pax(&[("path", &out)]), file("fine", "1")];
    assert_eq!(fixture.extract(&archive(&by_pax)), failure(0, format!("unsafe path in archive: {out}")));
    let both = [pax(&[("path", "../x")]), entry(b'L', b"l", b"fine\0"), file("../y", "1")];
    assert_eq!(fixture.extract(&archive(&both)), success(1), "only the effective name is checked");
}

#[test]
fn a_global_header_is_an_unsupported_entry_as_in_the_original() {
    let fixture = Fixture::new();
    let bytes = archive(&[entry(b'g', b"pax_global_header", &record("comment", "x")), file("f", "1")]);
    assert_eq!(fixture.extract(&bytes), failure(0, "unsupported tar entry type g: pax_global_header"));
}

#[test]
fn an_entry_of_ambiguous_size_is_refused() {
    let fixture = Fixture::new();
    let cases = [
        [pax(&[("size", "3")]), file("f", "")],
        [pax(&[("size", "0")]), file("f", "abc")],
        [pax(&[]), entry(b'5', b"d", b"abc")],
        [pax(&[]), entry(0, b"d/", b"abc")],
    ];
    for entries in cases {
        let bytes = archive(&[file("first", "1"), entries.concat(), file("after", "2")]);
        assert_eq!(fixture.extract(&bytes), failure(1, "gzip: archive/tar: invalid tar header"));
    }
    let same = archive(&[pax(&[("size", "3"), ("mtime", "1.5")]), file("f", "abc"), file("g", "2")]);
    assert_eq!(fixture.extract(&same), success(2));
    assert_eq!(fixture.contents(), [".synced 600", "f 600 abc", "g 600 2"]);
}

#[test]
fn old_tars_are_extracted() {
    let old = |name: &[u8], content: &[u8]| {
        let mut header = tar::Header::new_old();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_size(content.len() as u64);
        sealed(header, content)
    };
    let fixture = Fixture::new();
    let bytes = [old(b"d/", b""), old(b"d/f", b"1"), old("d/é".as_bytes(), b"2")];
    assert_eq!(fixture.extract(&archive(&bytes)), success(2));
    assert_eq!(fixture.contents(), [".synced 600", "d/ 700", "d/f 600 1", "d/é 600 2"]);
}

#[test]
fn a_sparse_file_is_refused() {
    let forms: [&[(&str, &str)]; 3] = [
        &[("GNU.sparse.size", "13"), ("GNU.sparse.offset", "3"), ("GNU.sparse.numbytes", "2")],
        &[("GNU.sparse.numblocks", "1"), ("GNU.sparse.map", "3,2")],
        &[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "../holes")],
    ];
    for records in forms {
        let fixture = Fixture::new();
        let bytes = archive(&[file("first", "1"), pax(records), file("GNUSparseFile.1/holes", "ab")]);
        assert_eq!(fixture.extract(&bytes), failure(1, "gzip: archive/tar: invalid tar header"));
        assert_eq!(fixture.contents(), ["first 600 1"]);
    }
}

#[test]
fn all_gzip_members_are_read_and_trailing_garbage_is_ignored() {
    let whole = tar(&[file("a", "1"), file("b", "2")]);
    let (front, back) = whole.split_at(700);
    let fixture = Fixture::new();
    assert_eq!(fixture.extract(&[gzip(front), gzip(b""), gzip(back)].concat()), success(2));
    let garbage = b"garbage that is no tar".repeat(100_000);
    assert_eq!(fixture.extract(&gzip(&[&whole[..], &garbage].concat())), success(2));
    assert_eq!(fixture.extract(&[&gzip(&whole)[..], &garbage].concat()), success(2));
    assert_eq!(fixture.extract(&[&gzip(&whole)[..], b"x"].concat()), success(2));
    assert_eq!(fixture.extract(&[gzip(&whole), gzip(b"more")].concat()), success(2));
    let between = [gzip(front), b"garbage, ten bytes or more".to_vec(), gzip(back)].concat();
    assert_eq!(fixture.extract(&between), failure(1, "gzip: gzip: invalid header"));
}

#[test]
fn a_file_that_is_not_gzip_leaves_the_destination_unchanged() {
    let good = gzip(b"");
    let with_flags = |flags: u8, rest: &[u8]| [&good[..3], &[flags], &good[4..10], rest].concat();
    let cases = [
        (vec![], "gzip: EOF"),
        (b"x".to_vec(), "gzip: unexpected EOF"),
        (good[..9].to_vec(), "gzip: unexpected EOF"),
        (b"this is plain text".to_vec(), "gzip: gzip: invalid header"),
        (tar(&[file("f", "1")]), "gzip: gzip: invalid header"),
        (b"\x1f\x8b\x07\0\0\0\0\0\0\0\0\0".to_vec(), "gzip: gzip: invalid header"),
        (with_flags(8, b"name without an end"), "gzip: unexpected EOF"),
        (with_flags(4, b"\xff\xffshort"), "gzip: unexpected EOF"),
        (with_flags(2, b"\0\0"), "gzip: gzip: invalid header"),
    ];
    for (bytes, text) in cases {
        let fixture = Fixture::new();
        assert_eq!(fixture.extract(&bytes), failure(0, text));
        assert!(fixture.path("dest/old/file").exists());
    }
}

#[test]
fn a_truncated_or_damaged_stream_is_an_error() {
    let fixture = Fixture::new();
    let noise: String =
        (0..200_000_u32).map(|n| char::from(b'!' + (n.wrapping_mul(n) >> 7) as u8 % 90)).collect();
    let whole = gzip(&tar(&[file("a", "1"), file("noise", &noise)]));
    let middle = whole.len() / 2;
    assert_eq!(fixture.extract(&whole), success(2));
    assert_eq!(fixture.extract(&whole[..middle]), failure(1, "unexpected EOF"));
    for cut in [11, whole.len() - 8, whole.len() - 1] {
        let found = fixture.extract(&whole[..cut]);
        assert_eq!(found.error.as_deref(), Some("gzip: unexpected EOF"), "{cut} of {}", whole.len());
        assert!(!fixture.path("dest/.synced").exists());
    }
    let mut wrong = whole.clone();
    let sum = wrong.len() - 8;
    wrong[sum] ^= 1;
    assert_eq!(fixture.extract(&wrong), failure(2, "gzip: gzip: invalid checksum"));
    let mut corrupt = whole;
    corrupt[10] |= 0b110;
    let found = fixture.extract(&corrupt).error.unwrap();
    assert!(found.starts_with("gzip: flate: corrupt input before offset "), "{found}");
    assert_eq!(fixture.extract(&gzip(&file("a", "12345")[..514])), failure(0, "unexpected EOF"));
    assert_eq!(fixture.extract(&gzip(&file("a", "1")[..300])), failure(0, "gzip: unexpected EOF"));
    assert_eq!(fixture.extract(&gzip(&file("a", "1")[..513])), failure(1, "gzip: unexpected EOF"));
}

#[test]
fn invalid_headers_are_refused() {
    let fixture = Fixture::new();
    let changed = |at: usize, byte: u8, seal: bool| {
        let mut header = tar::Header::new_ustar();
        header.set_path("f").unwrap();
        header.set_size(1);
        header.set_cksum();
        header.as_mut_bytes()[at] = byte;
        let bytes = if seal { sealed(header, b"1") } else { [header.as_bytes(), &[0; 512][..]].concat() };
        archive(&[bytes])
    };
    let records = |bytes: &[u8]| archive(&[entry(b'x', b"x", bytes), file("f", "1")]);
    let cases = [
        gzip(&[1; 512]),
        changed(0, b'g', false),
        changed(124, b'9', true),
        changed(124, 0, true),
        records(b"x"),
        records(b"99 path=f\n"),
        records(&record("path", "\0f")),
        records(&record("size", "-1")),
        records(&record("size", "1x2")),
    ];
    for (at, bytes) in cases.iter().enumerate() {
        assert_eq!(fixture.extract(bytes), failure(0, "gzip: archive/tar: invalid tar header"), "case {at}");
    }
    assert_eq!(fixture.extract(&changed(124, b' ', true)), success(1), "the unmodified header is valid");
}
