//! Which requests of a connection are served: by origin, by host name, and by token.

use super::tokens::Tokens;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN};
use outpost_wire::TokenNeeded;
use std::net::IpAddr;
use std::sync::Arc;

/// Which requests of a connection are served. Requests of web pages never are.
#[derive(Clone)]
pub enum Access {
    /// A client on the Unix socket. The accept loop has checked its user, so no token is needed.
    Local,
    /// A client on a loopback port. With a reason, its requests need a token.
    Loopback(Option<TokenNeeded>, Arc<Tokens>),
    /// Every request needs a token.
    Tokens(Arc<Tokens>),
}

impl Access {
    /// Why a request is refused; `None` if it is served.
    pub(super) fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, String)> {
        // Browsers send `Origin`. A web page must not reach an agent on its reader's host.
        if headers.contains_key(ORIGIN) {
            return Some((StatusCode::FORBIDDEN, "Forbidden: requests from web pages are refused".into()));
        }
        match self {
            // DNS rebinding: an attacker's name that resolves to this host.
            Access::Local | Access::Loopback(..) if !headers.get(HOST).is_none_or(is_loopback) => {
                Some((StatusCode::FORBIDDEN, "Forbidden: use localhost or a loopback address".into()))
            }
            Access::Local | Access::Loopback(None, _) => None,
            Access::Loopback(Some(reason), tokens) => token_refusal(tokens, headers)
                .map(|text| (StatusCode::UNAUTHORIZED, format!("{text} ({reason})"))),
            Access::Tokens(tokens) => {
                token_refusal(tokens, headers).map(|text| (StatusCode::UNAUTHORIZED, text.to_owned()))
            }
        }
    }
}

fn token_refusal(tokens: &Tokens, headers: &HeaderMap) -> Option<&'static str> {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    match given.strip_prefix(b"Bearer ") {
        None => Some("Unauthorized: missing Bearer token"),
        Some(token) if tokens.is_valid(token) => None,
        Some(_) => Some("Unauthorized: invalid token"),
    }
}

/// Whether the host is `localhost` or a loopback address, with or without a port.
fn is_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
