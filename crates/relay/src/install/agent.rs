//! One HTTP request after the other until something is not a redirect, and what went wrong in words that show no URL.

use super::{Limits, roots, target};
use crate::{Resolver, go};
use std::io;
use ureq::http::{Response, Uri, header};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Error, Timeout};

const REDIRECTS_MAX: usize = 10;

/// Why there is no response, or no more of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing came for as long as is waited.
    Stalled,
    /// `download failed: ` and this.
    Failed(String),
    /// A response that is not the file.
    Status(u16),
}

/// Asks for a URL and follows where that leads.
pub(super) fn get(url: &str, limits: &Limits) -> Result<Response<Body>, Trouble> {
    let agent = agent(limits);
    let mut uri = target::parse(url).map_err(Trouble::Failed)?;
    for _ in 0..=REDIRECTS_MAX {
        let response = request(&agent, &uri)?;
        match (response.status().as_u16(), response.headers().get(header::LOCATION)) {
            (200, _) => return Ok(response),
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                let location = String::from_utf8_lossy(location.as_bytes());
                uri = target::resolve(&uri, &location)
                    .map_err(|text| Trouble::Failed(format!("bad redirect: {text}")))?;
            }
            (status, _) => return Err(Trouble::Status(status)),
        }
    }
    Err(Trouble::Failed(format!("stopped after {REDIRECTS_MAX} redirects")))
}

fn request(agent: &Agent, uri: &Uri) -> Result<Response<Body>, Trouble> {
    let proxy = target::proxy(uri, |name| std::env::var(name).ok()).map_err(Trouble::Failed)?;
    agent.get(uri.clone()).config().proxy(proxy).build().call().map_err(trouble)
}

fn agent(limits: &Limits) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(limits.connect))
        .timeout_per_read(Some(limits.stall))
        .timeout_per_write(Some(limits.stall))
        // The checksum is that of the file as it lies on the server.
        .accept_encoding("identity")
        .user_agent(concat!("outpost/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots::roots()).build())
        .proxy(None)
        .build();
    Agent::with_parts(config, DefaultConnector::default(), Resolver)
}

/// The same for an error while the body is read.
pub(super) fn body_trouble(error: io::Error) -> Trouble {
    trouble(Error::from(error))
}

fn trouble(error: Error) -> Trouble {
    let text = match error {
        Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => return Trouble::Stalled,
        Error::Timeout(phase) => format!("{phase}: i/o timeout"),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
        Error::Io(error) => go::io_text(&error),
        Error::HostNotFound => "no such host".to_owned(),
        // These are made of what the other side, or our caller, wrote.
        Error::BadUri(_) | Error::Http(_) | Error::RequireHttpsOnly(_) => "invalid URL".to_owned(),
        Error::ConnectProxyFailed(_) => "the proxy did not connect".to_owned(),
        error => error.to_string(),
    };
    Trouble::Failed(without_urls(&text))
}

/// Hides every word that could be a URL or a part of one.
fn without_urls(text: &str) -> String {
    let hidden = |word: &str| word.contains("://") || word.contains(['?', '@']);
    let words = text.split(' ').map(|word| if hidden(word) { "(hidden)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_no_url() {
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
            let Trouble::Failed(text) = trouble(error) else { panic!("{before}") };
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn system_errors_read_as_the_originals() {
        let refused = io::Error::from(outpost_sys::Errno::CONNREFUSED);
        assert_eq!(trouble(Error::Io(refused)), Trouble::Failed("connection refused".to_owned()));
        assert_eq!(trouble(Error::Timeout(Timeout::PerRead)), Trouble::Stalled);
        assert_eq!(
            trouble(Error::Timeout(Timeout::Connect)),
            Trouble::Failed("connect: i/o timeout".to_owned())
        );
    }
}
