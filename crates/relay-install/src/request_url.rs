//! Request URLs: parses the given URL, resolves redirects, and selects the proxy.
//!
//! This crate follows redirects itself, because ureq would read their bodies to the end, however long they are. No error
//! text of this file contains a URL, because it may be signed.
//!
//! The `url` crate does not fit: it follows the WHATWG standard, which rewrites dot segments, quotes, backslashes and
//! IPv4 forms of the given URL, and a signature may cover them.

use std::net::IpAddr;
use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// Parses an absolute URL.
pub(super) fn parse(url: &str) -> Result<Uri, String> {
    let scheme = scheme(url).unwrap_or_default();
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(format!("unsupported protocol scheme {}", outpost_relay::go_compat::quote(scheme)));
    }
    let uri: Uri = escaped(url).parse().map_err(|_| "invalid URL".to_owned())?;
    if has_valid_port(&uri) { Ok(uri) } else { Err("invalid URL".to_owned()) }
}

/// `Uri` accepts any text as a port and then uses the default port.
fn has_valid_port(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let (_userinfo, host_and_port) = authority.rsplit_once('@').unwrap_or(("", authority));
    let port = uri.host().filter(|host| !host.is_empty()).and_then(|host| host_and_port.strip_prefix(host));
    port.is_some_and(|port| matches!(port, "" | ":") || uri.port_u16().is_some())
}

/// The scheme, if the text before the first colon is a valid one.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let first = scheme.bytes().next()?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (first.is_ascii_alphabetic() && scheme.bytes().all(fits)).then_some(scheme)
}

/// Removes the fragment and percent-encodes the characters that are not allowed in a request line.
fn escaped(url: &str) -> String {
    let (url, _fragment) = url.split_once('#').unwrap_or((url, ""));
    let mut text = String::with_capacity(url.len());
    for byte in url.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Resolves a `Location` header against `base`.
pub(super) fn resolve(base: &Uri, location: &str) -> Result<Uri, String> {
    if scheme(location).is_some() {
        return parse(location);
    }
    let (own_scheme, authority) =
        (base.scheme_str().unwrap_or("http"), base.authority().map_or("", |a| a.as_str()));
    if location.starts_with("//") {
        return parse(&format!("{own_scheme}:{location}"));
    }
    let (path, query) =
        location.split_once('?').map_or((location, None), |(path, query)| (path, Some(query)));
    let path = match path {
        "" => base.path().to_owned(),
        _ if path.starts_with('/') => without_dots(path),
        _ => {
            let (dir, _file) = base.path().rsplit_once('/').unwrap_or_default();
            without_dots(&format!("{dir}/{path}"))
        }
    };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    parse(&format!("{own_scheme}://{authority}{path}{query}"))
}

/// Takes `.` and `..` out of an absolute path.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let mut ends_in_dir = false;
    for part in path.split('/').skip(1) {
        ends_in_dir = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    if ends_in_dir {
        parts.push("");
    }
    format!("/{}", parts.join("/"))
}

/// The proxy for a URL, by Go's rules for environment variables: one variable per scheme, no proxy for loopback hosts.
pub(super) fn proxy(
    uri: &Uri,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, String> {
    let first_set = |names: [&str; 2]| {
        names.into_iter().find_map(|name| environment(name).filter(|value| !value.is_empty()))
    };
    let is_https = uri.scheme_str().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    let names = if is_https { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let Some(address) = first_set(names) else { return Ok(None) };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let exceptions = first_set(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    if is_loopback(&host) || exceptions.split(',').any(|exception| matches_host(exception, &host)) {
        return Ok(None);
    }
    // An unusable proxy is an error: a direct connection would bypass it.
    let proxy = Proxy::new(&address).map_err(|_| "invalid proxy address".to_owned())?;
    match proxy.protocol() {
        ProxyProtocol::Http | ProxyProtocol::Https => Ok(Some(proxy)),
        _ => Err("unsupported proxy protocol".to_owned()),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// `*` matches every host, `a.b` matches itself and its subdomains, `.a.b` and `*.a.b` match only subdomains.
fn matches_host(exception: &str, host: &str) -> bool {
    let exception = exception.trim().to_ascii_lowercase();
    match exception.strip_prefix('*').unwrap_or(&exception) {
        "" => exception == "*",
        suffix if suffix.starts_with('.') => host.ends_with(suffix),
        name => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_resolved_against_its_base() {
        let base = parse("https://user:pw@h:8/a/b/c?q=1#f").unwrap();
        let cases = [
            ("http://other/x", "http://other/x"),
            ("HTTPS://other", "https://other/"),
            ("//other/x?y", "https://other/x?y"),
            ("/x/../y?z=/../", "https://user:pw@h:8/y?z=/../"),
            ("d?e", "https://user:pw@h:8/a/b/d?e"),
            ("../d/", "https://user:pw@h:8/a/d/"),
            ("../../../..", "https://user:pw@h:8/"),
            ("?r", "https://user:pw@h:8/a/b/c?r"),
            ("x:y/z", ""),
            ("/sp ace\u{e9}|", "https://user:pw@h:8/sp%20ace%C3%A9%7C"),
            ("/x#fragment", "https://user:pw@h:8/x"),
        ];
        for (location, expected) in cases {
            let resolved = resolve(&base, location).map(|uri| uri.to_string()).unwrap_or_default();
            assert_eq!(resolved, expected, "{location}");
        }
    }

    #[test]
    fn an_unsupported_url_is_refused_without_being_shown() {
        let cases = [
            ("ftp://user:secret@h/x", "unsupported protocol scheme \"ftp\""),
            ("file:///etc/secret", "unsupported protocol scheme \"file\""),
            ("user@secret", "unsupported protocol scheme \"\""),
            ("sec ret://x", "unsupported protocol scheme \"\""),
            ("http://", "invalid URL"),
            ("http:///secret", "invalid URL"),
            ("http://[secret/", "invalid URL"),
            ("http://h:secret/", "invalid URL"),
        ];
        for (url, text) in cases {
            assert_eq!(parse(url).map(|uri| uri.to_string()), Err(text.to_owned()), "{url}");
        }
    }

    fn proxied(url: &str, environment: &[(&str, &str)]) -> Result<bool, String> {
        let value = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        proxy(&parse(url).unwrap(), value).map(|proxy| proxy.is_some())
    }

    #[test]
    fn the_proxy_is_chosen_by_scheme() {
        let https = [("HTTPS_PROXY", "http://proxy:3128"), ("ALL_PROXY", "socks5://x")];
        assert_eq!(proxied("https://example.com/", &https), Ok(true));
        assert_eq!(proxied("http://example.com/", &https), Ok(false));
        assert_eq!(proxied("http://example.com/", &[("http_proxy", "proxy:3128")]), Ok(true));
        assert_eq!(proxied("http://example.com/", &[("HTTP_PROXY", "")]), Ok(false));
    }

    #[test]
    fn an_unusable_proxy_is_not_bypassed() {
        let socks = [("HTTPS_PROXY", "socks5://user:secret@proxy")];
        assert_eq!(proxied("https://example.com/", &socks), Err("unsupported proxy protocol".to_owned()));
        let broken = [("HTTPS_PROXY", "http://user:sec ret@")];
        assert_eq!(proxied("https://example.com/", &broken), Err("invalid proxy address".to_owned()));
    }

    #[test]
    fn loopback_hosts_and_exceptions_bypass_the_proxy() {
        let always = ("HTTP_PROXY", "http://proxy:3128");
        for url in ["http://localhost:1/", "http://127.0.0.9/", "http://[::1]:80/", "http://LocalHost/"] {
            assert_eq!(proxied(url, &[always]), Ok(false), "{url}");
        }
        let cases = [
            ("*", "http://example.com/", false),
            ("example.com", "http://example.com/", false),
            ("Example.com", "http://sub.example.com/", false),
            ("example.com", "http://notexample.com/", true),
            (".example.com", "http://sub.example.com/", false),
            (".example.com", "http://example.com/", true),
            ("*.example.com", "http://sub.example.com/", false),
            ("a, 10.0.0.1 ,b", "http://10.0.0.1/", false),
            ("", "http://example.com/", true),
            (",,", "http://example.com/", true),
        ];
        for (exceptions, url, expected) in cases {
            assert_eq!(proxied(url, &[always, ("no_proxy", exceptions)]), Ok(expected), "{exceptions} {url}");
        }
    }
}
