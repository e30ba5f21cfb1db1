//! TLS root certificates: the host's, as in the original, and Mozilla's if the host has none.
//!
//! The host's take precedence because only they include the root of a company's TLS-inspecting proxy.

use std::path::{Path, PathBuf};
use ureq::tls::{Certificate, RootCerts};

/// Loads the file of `SSL_CERT_FILE`, or the host's bundle if the variable is unset or empty.
pub(super) fn load() -> RootCerts {
    let from_env = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let bundle = from_env.or_else(|| openssl_probe::probe().cert_file);
    let found = bundle.map_or_else(Vec::new, |bundle| certificates(&bundle));
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::from(found) }
}

/// The certificates of a PEM file. Skips other items and duplicates. Empty if the file cannot be read.
fn certificates(bundle: &Path) -> Vec<Certificate<'static>> {
    let loaded = rustls_native_certs::load_certs_from_paths(Some(bundle), None);
    loaded.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
    const DEF: &str = "-----BEGIN CERTIFICATE-----\nZGVm\n-----END CERTIFICATE-----\n";

    #[test]
    fn certificates_are_read_and_other_items_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bundle");
        let key = ABC.replace("CERTIFICATE", "PRIVATE KEY");
        std::fs::write(&file, format!("# a comment\n{ABC}{key}\n\n{DEF}{ABC}")).unwrap();
        let found = certificates(&file);
        assert_eq!(found.iter().map(Certificate::der).collect::<Vec<_>>(), [b"abc", b"def"]);
        assert!(certificates(&dir.path().join("missing")).is_empty());
        assert!(certificates(dir.path()).is_empty());
    }
}
