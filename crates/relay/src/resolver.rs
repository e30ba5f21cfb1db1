//! Addresses of hosts that HTTP clients connect to, without the C library's name service in this process.
//!
//! That service loads modules of the host, which crashes a statically linked program. IP addresses and `localhost` need
//! none; other names are looked up by the host's own `getent`, in a process of its own.

use crate::helper::{self, Limits};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver as Resolve};
use ureq::unversioned::transport::NextTimeout;

/// How long a name may take to be looked up, where the caller has no shorter limit.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 16;
/// As the domain name system has it.
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
        let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(usual);
        let addresses = addresses(host, (*timeout.after).min(PATIENCE_MAX))?;
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port));
        let family = config.ip_family();
        let wanted = family.keep_wanted(addresses);
        let mut found = self.empty();
        wanted.take(ADDRESSES_MAX).for_each(|address| found.push(address));
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

/// Each address of a host once, the preferred one first.
fn addresses(host: &str, patience: Duration) -> Result<Vec<IpAddr>, Error> {
    match without_look_up(host) {
        Some(addresses) => Ok(addresses),
        None if is_name(host) => look_up(host, patience),
        None => Err(Error::HostNotFound),
    }
}

fn without_look_up(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal.parse().ok().map(|address| vec![address])
}

/// Whether it can be an argument of another program: never an option.
fn is_name(host: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.len() <= NAME_BYTES_MAX && !host.starts_with('-') && host.bytes().all(fits)
}

fn look_up(name: &str, patience: Duration) -> Result<Vec<IpAddr>, Error> {
    let limits = Limits { patience, output_bytes: OUTPUT_BYTES_MAX, together: false };
    let ended = helper::run(Command::new("getent").args(["ahosts", name]), &limits, |_| false);
    let ended = match ended {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = "names cannot be looked up without getent; give an IP address or install getent";
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, text)));
        }
        ended => ended?,
    };
    if ended.stopped {
        return Err(Error::Timeout(ureq::Timeout::Resolve));
    }
    Ok(parse(&String::from_utf8_lossy(&ended.stdout)))
}

/// A line is an address, a kind of socket and sometimes a name. Each address comes once for each kind.
fn parse(text: &str) -> Vec<IpAddr> {
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
    fn addresses_and_localhost_need_no_other_program() {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(without_look_up("LocalHost"), Some(loopback.to_vec()));
        assert_eq!(without_look_up("127.0.0.1"), Some(vec![Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(without_look_up("[::1]"), Some(vec![Ipv6Addr::LOCALHOST.into()]));
        assert_eq!(without_look_up("example.com"), None);
    }

    #[test]
    fn a_host_is_never_an_option_of_the_other_program() {
        for host in ["-s", "--service=x", "", "a b", "a\nb", "a;b", "\u{e4}", &"a".repeat(300)] {
            assert!(!is_name(host), "{host:?}");
        }
        assert!(is_name("a-b.example.com") && is_name("_x.local"));
    }

    #[test]
    fn each_address_of_an_answer_is_tried_once_and_in_order() {
        let text = "2001:db8::1     STREAM example.com\n2001:db8::1 DGRAM\n192.0.2.1 STREAM\nfe80::1%eth0 RAW\n\nx\n";
        let expected: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
        assert_eq!(parse(text), expected);
    }
}
