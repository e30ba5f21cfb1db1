//! TLS for remote clients, with the operator's certificate or a self-signed one.

use crate::{Error, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    fingerprint: String,
}

impl Tls {
    /// Loads a certificate and its key from PEM files.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls> {
        let chain =
            CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| Error::file("read", cert, error))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| Error::file("read", key, error))?;
        let first = chain.first().ok_or_else(|| Error::file("read", cert, "it holds no certificate"))?;
        // Of the DER certificate, as browsers and openssl show it.
        let fingerprint = outpost_ledger::hex(&Sha256::digest(first));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|error| Error::file("use", cert, error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), fingerprint })
    }

    /// Loads the daemon's own self-signed certificate, and creates it at the first call.
    pub fn own(dir: &Path, address: IpAddr) -> Result<Tls> {
        let (cert, key) = (dir.join("tls-cert.pem"), dir.join("tls-key.pem"));
        if !cert.exists() || !key.exists() {
            let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
            names.extend(host_name());
            if !address.is_unspecified() && !names.contains(&address.to_string()) {
                names.push(address.to_string());
            }
            let made = rcgen::generate_simple_self_signed(names)
                .map_err(|error| Error::file("create", &cert, error))?;
            write(&key, made.signing_key.serialize_pem().as_bytes())?;
            write(&cert, made.cert.pem().as_bytes())?;
        }
        Tls::load(&cert, &key)
    }

    /// SHA-256 of the certificate, which a client can pin.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// `None` if the handshake fails or takes too long.
    pub async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "localhost")
}

/// Creates the file with mode 0600, so that no other user can read it at any time.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(|error| Error::io("write", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_self_signed_certificate_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let address = "192.0.2.7".parse().unwrap();
        let first = Tls::own(dir.path(), address).unwrap();
        let again = Tls::own(dir.path(), address).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_eq!(first.fingerprint().len(), 64);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &dir.path().join("tls-key.pem").metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert!(Tls::load(&dir.path().join("tls-key.pem"), &dir.path().join("tls-cert.pem")).is_err());
    }
}
