//! Where a request goes: the URL we were given, where a redirect leads from there, and through which proxy.
//!
//! Redirects are followed here and not by the HTTP library, which would read their bodies to the end however long they
//! are. No text of this file may show a URL: it may be signed.

use std::net::IpAddr;
use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// Reads the URL of the command line.
pub(super) fn parse(url: &str) -> Result<Uri, String> {
    let scheme = scheme(url).unwrap_or_default();
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(format!("unsupported protocol scheme {}", crate::go::quote(scheme)));
    }
    let uri: Uri = escaped(url).parse().map_err(|_| "invalid URL".to_owned())?;
    if has_valid_port(&uri) { Ok(uri) } else { Err("invalid URL".to_owned()) }
}

/// The library takes any text for a port, and then the usual one.
fn has_valid_port(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let (_user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let port = uri.host().filter(|host| !host.is_empty()).and_then(|host| place.strip_prefix(host));
    port.is_some_and(|port| matches!(port, "" | ":") || uri.port_u16().is_some())
}

/// What stands before the colon, if that is one of a scheme.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let first = scheme.bytes().next()?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (first.is_ascii_alphabetic() && scheme.bytes().all(fits)).then_some(scheme)
}

/// Without the fragment, which is not sent; and with everything escaped that a request line cannot have.
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

/// Where `location` leads, as seen from `base`.
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

/// The proxy for a URL, by the environment, as the original reads it: by scheme, and never for this host itself.
pub(super) fn proxy(
    uri: &Uri,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, String> {
    let either =
        |names: [&str; 2]| names.into_iter().find_map(|name| environment(name).filter(|v| !v.is_empty()));
    let is_https = uri.scheme_str().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    let names = if is_https { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let Some(address) = either(names) else { return Ok(None) };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let exceptions = either(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    if is_this_host(&host) || exceptions.split(',').any(|exception| covers(exception, &host)) {
        return Ok(None);
    }
    // Rather no connection than one that goes around a proxy.
    let proxy = Proxy::new(&address).map_err(|_| "invalid proxy address".to_owned())?;
    match proxy.protocol() {
        ProxyProtocol::Http | ProxyProtocol::Https => Ok(Some(proxy)),
        _ => Err("unsupported proxy protocol".to_owned()),
    }
}

fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// `*` covers all, `a.b` itself and everything below, `.a.b` and `*.a.b` only what is below.
fn covers(exception: &str, host: &str) -> bool {
    let exception = exception.trim().to_ascii_lowercase();
    match exception.strip_prefix('*').unwrap_or(&exception) {
        "" => exception == "*",
        below if below.starts_with('.') => host.ends_with(below),
        name => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_resolved_against_where_it_came_from() {
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
    fn what_is_no_url_of_ours_is_refused_without_being_shown() {
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
    fn a_proxy_that_cannot_be_used_is_not_gone_around() {
        let socks = [("HTTPS_PROXY", "socks5://user:secret@proxy")];
        assert_eq!(proxied("https://example.com/", &socks), Err("unsupported proxy protocol".to_owned()));
        let broken = [("HTTPS_PROXY", "http://user:sec ret@")];
        assert_eq!(proxied("https://example.com/", &broken), Err("invalid proxy address".to_owned()));
    }

    #[test]
    fn this_host_and_exceptions_are_reached_directly() {
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
