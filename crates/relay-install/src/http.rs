//! HTTP GET with redirects, and error texts that contain no URL.

use super::{Limits, request_url, root_certs};
use crate::Resolver;
use outpost_relay::go_compat;
use std::io;
use ureq::http::{Response, Uri, header};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Error, Timeout};

const REDIRECTS_MAX: usize = 10;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum DownloadError {
    /// No data within the stall timeout.
    Stalled,
    /// The message after `download failed: `.
    Failed(String),
    /// A response with another status than 200.
    Status(u16),
}

/// Sends a GET request and follows redirects.
pub(super) fn get(url: &str, limits: &Limits) -> Result<Response<Body>, DownloadError> {
    let agent = agent(limits);
    let mut uri = request_url::parse(url).map_err(DownloadError::Failed)?;
    for _ in 0..=REDIRECTS_MAX {
        let response = request(&agent, &uri)?;
        match (response.status().as_u16(), response.headers().get(header::LOCATION)) {
            (200, _) => return Ok(response),
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                let location = String::from_utf8_lossy(location.as_bytes());
                uri = request_url::resolve(&uri, &location)
                    .map_err(|text| DownloadError::Failed(format!("bad redirect: {text}")))?;
            }
            (status, _) => return Err(DownloadError::Status(status)),
        }
    }
    Err(DownloadError::Failed(format!("stopped after {REDIRECTS_MAX} redirects")))
}

fn request(agent: &Agent, uri: &Uri) -> Result<Response<Body>, DownloadError> {
    let proxy = request_url::proxy(uri, |name| std::env::var(name).ok()).map_err(DownloadError::Failed)?;
    agent.get(uri.clone()).config().proxy(proxy).build().call().map_err(classify)
}

fn agent(limits: &Limits) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(limits.connect_timeout))
        .timeout_per_read(Some(limits.stall_timeout))
        .timeout_per_write(Some(limits.stall_timeout))
        // The checksum applies to the file without a transfer compression.
        .accept_encoding("identity")
        .user_agent(concat!("outpost/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(root_certs::load()).build())
        .proxy(None)
        .build();
    Agent::with_parts(config, DefaultConnector::default(), Resolver)
}

/// Maps an error that occurred while reading the body.
pub(super) fn body_error(error: io::Error) -> DownloadError {
    classify(Error::from(error))
}

fn classify(error: Error) -> DownloadError {
    let text = match error {
        Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => return DownloadError::Stalled,
        Error::Timeout(phase) => format!("{phase}: i/o timeout"),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
        Error::Io(error) => go_compat::io_text(&error),
        Error::HostNotFound => "no such host".to_owned(),
        // The texts of these errors contain the URL.
        Error::BadUri(_) | Error::Http(_) | Error::RequireHttpsOnly(_) => "invalid URL".to_owned(),
        Error::ConnectProxyFailed(_) => "the proxy did not connect".to_owned(),
        error => error.to_string(),
    };
    DownloadError::Failed(without_urls(&text))
}

/// Replaces every word that could be a URL or a part of one.
fn without_urls(text: &str) -> String {
    let hidden = |word: &str| word.contains("://") || word.contains(['?', '@']);
    let words = text.split(' ').map(|word| if hidden(word) { "(hidden)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_no_url() {
        let url = "https://user:secret@h/x?sig=secret";
        let errors = [
            Error::BadUri(url.to_owned()),
            Error::RequireHttpsOnly(url.to_owned()),
            Error::ConnectProxyFailed(url.to_owned()),
            Error::Other(url.into()),
            Error::Io(io::Error::other(url)),
            Error::Io(io::Error::other("/x?sig=secret and secret@h")),
        ];
        for error in errors {
            let before = error.to_string();
            let DownloadError::Failed(text) = classify(error) else { panic!("{before}") };
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn system_errors_have_the_text_of_go() {
        let refused = io::Error::from(outpost_sys::Errno::CONNREFUSED);
        assert_eq!(classify(Error::Io(refused)), DownloadError::Failed("connection refused".to_owned()));
        assert_eq!(classify(Error::Timeout(Timeout::PerRead)), DownloadError::Stalled);
        assert_eq!(
            classify(Error::Timeout(Timeout::Connect)),
            DownloadError::Failed("connect: i/o timeout".to_owned())
        );
    }
}
