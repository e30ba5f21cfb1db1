//! A host name resolver for ureq that does not call the C library's `getaddrinfo`.
//!
//! `getaddrinfo` loads the host's NSS modules, which crashes a statically linked program. IP addresses and `localhost` need
//! no lookup. For other names the resolver runs the host's `getent`.

use outpost_sys::bounded_command::{self, Limits};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver as Resolve};
use ureq::unversioned::transport::NextTimeout;

/// Timeout of a lookup if the request has no shorter one.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Addresses per host, as many as ureq's array holds.
const ADDRESSES_MAX: usize = 16;
/// The limit of the DNS.
const NAME_BYTES_MAX: usize = 253;

#[derive(Debug)]
pub struct Resolver;

impl Resolve for Resolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().unwrap_or_default();
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default_port);
        let addresses = addresses(host, (*timeout.after).min(TIMEOUT_MAX))?;
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port));
        let family = config.ip_family();
        let wanted = family.keep_wanted(addresses);
        let mut found = self.empty();
        wanted.take(ADDRESSES_MAX).for_each(|address| found.push(address));
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

/// The addresses of a host without duplicates, the preferred one first.
fn addresses(host: &str, timeout: Duration) -> Result<Vec<IpAddr>, Error> {
    match without_lookup(host) {
        Some(addresses) => Ok(addresses),
        None if is_host_name(host) => lookup(host, timeout),
        None => Err(Error::HostNotFound),
    }
}

fn without_lookup(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal.parse().ok().map(|address| vec![address])
}

/// Whether `getent` takes the text as a host name and not as an option.
fn is_host_name(host: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.len() <= NAME_BYTES_MAX && !host.starts_with('-') && host.bytes().all(fits)
}

fn lookup(name: &str, timeout: Duration) -> Result<Vec<IpAddr>, Error> {
    let limits = Limits { timeout, output_bytes_max: OUTPUT_BYTES_MAX, merge_stderr: false };
    let output = bounded_command::run(Command::new("getent").args(["ahosts", name]), &limits, |_| false);
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = "names cannot be looked up without getent; give an IP address or install getent";
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, text)));
        }
        output => output?,
    };
    if output.killed {
        return Err(Error::Timeout(ureq::Timeout::Resolve));
    }
    Ok(parse_ahosts(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses lines of address, socket type and optional name. getent prints each address once per socket type.
fn parse_ahosts(text: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_need_no_lookup() {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(without_lookup("LocalHost"), Some(loopback.to_vec()));
        assert_eq!(without_lookup("127.0.0.1"), Some(vec![Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(without_lookup("[::1]"), Some(vec![Ipv6Addr::LOCALHOST.into()]));
        assert_eq!(without_lookup("example.com"), None);
    }

    #[test]
    fn a_host_is_never_an_option_of_getent() {
        for host in ["-s", "--service=x", "", "a b", "a\nb", "a;b", "\u{e4}", &"a".repeat(300)] {
            assert!(!is_host_name(host), "{host:?}");
        }
        assert!(is_host_name("a-b.example.com") && is_host_name("_x.local"));
    }

    #[test]
    fn addresses_keep_their_order_without_duplicates() {
        let text = "2001:db8::1     STREAM example.com\n2001:db8::1 DGRAM\n192.0.2.1 STREAM\nfe80::1%eth0 RAW\n\nx\n";
        let expected: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
        assert_eq!(parse_ahosts(text), expected);
    }
}
