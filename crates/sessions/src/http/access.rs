//! Which requests of a connection are served: by origin, by host name, and by token.

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use outpost_wire::{Access, Refusal, TokenFault};
use std::net::IpAddr;

/// Why a request is refused; `None` if it is served. Requests of web pages never are.
pub(super) fn refusal(access: &Access, headers: &HeaderMap) -> Option<(StatusCode, String)> {
    // Browsers send `Origin`. A web page must not reach an agent on its reader's host.
    if headers.contains_key(ORIGIN) {
        return Some((StatusCode::FORBIDDEN, "Forbidden: requests from web pages are refused".into()));
    }
    // DNS rebinding: an attacker's name that resolves to this host. Only other hosts use a name of it.
    let is_local = !matches!(access, Access::Token(_));
    if is_local && !headers.get(HOST).is_none_or(is_loopback) {
        return Some((StatusCode::FORBIDDEN, "Forbidden: use localhost or a loopback address".into()));
    }
    let Refusal { fault, reason } = access.check(headers).err()?;
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let text = match fault {
        TokenFault::Missing => format!("Unauthorized: missing Bearer token{reason}"),
        TokenFault::Invalid => format!("Unauthorized: invalid token{reason}"),
    };
    Some((StatusCode::UNAUTHORIZED, text))
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
