//! Whose certificates are believed: the host's, as the original does; where the host has none, Mozilla's.
//!
//! A company that looks into its own traffic has its root among the host's, and nowhere else.

use std::path::{Path, PathBuf};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Where distributions keep all of them in one file.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The most that is read of one file. Real bundles have a quarter of a megabyte.
const BUNDLE_BYTES_MAX: u64 = 16 << 20;

/// The roots to check a server's certificate with.
pub(super) fn roots() -> RootCerts {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = match named {
        Some(file) => certificates(&file),
        None => BUNDLES
            .iter()
            .map(|file| certificates(Path::new(file)))
            .find(|found| !found.is_empty())
            .unwrap_or_default(),
    };
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::from(found) }
}

/// All certificates of a file; what else is in there is skipped.
fn certificates(file: &Path) -> Vec<Certificate<'static>> {
    use std::io::Read;
    let mut text = Vec::new();
    let read = super::staging::open_without_waiting(file)
        .and_then(|file| file.take(BUNDLE_BYTES_MAX).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    parse_pem(&text).filter_map(certificate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";

    #[test]
    fn certificates_are_read_and_everything_else_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bundle");
        let key = PEM.replace("CERTIFICATE", "PRIVATE KEY");
        std::fs::write(&file, format!("# a comment\n{PEM}{key}\n\n{PEM}")).unwrap();
        let found = certificates(&file);
        assert_eq!(found.iter().map(Certificate::der).collect::<Vec<_>>(), [b"abc", b"abc"]);
        assert!(certificates(&dir.path().join("missing")).is_empty());
        assert!(certificates(dir.path()).is_empty());
    }
}
