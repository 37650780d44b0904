//! `NO_PROXY`: the hosts that are reached without the proxy.

use std::net::IpAddr;

use ureq::http::Uri;

/// Entries of the variable, separated by commas or white space.
#[derive(Clone, Default)]
pub struct NoProxy(Vec<Entry>);

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    /// `*`
    All,
    /// An address, or a network such as `10.0.0.0/8`: an address, and the number of its leading bits that
    /// count.
    Network(IpAddr, u32),
    /// A domain with its subdomains; perhaps one port of them.
    Domain(String, Option<u16>),
    /// An address with a port.
    Address(IpAddr, u16),
}

impl NoProxy {
    pub fn new(text: &str) -> NoProxy {
        let entries = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
        NoProxy(entries.map(entry).collect())
    }

    /// Whether the host of a URI is among them.
    pub fn has(&self, uri: &Uri) -> bool {
        let host = uri.host().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default);
        let address = unbracketed(&host).parse::<IpAddr>().ok();
        self.0.iter().any(|entry| match (entry, address) {
            (Entry::All, _) => true,
            (Entry::Network(network, bits), Some(address)) => is_in(address, *network, *bits),
            (Entry::Address(own, own_port), Some(address)) => *own == address && *own_port == port,
            (Entry::Domain(domain, own_port), _) => {
                own_port.is_none_or(|own| own == port) && is_within(&host, domain)
            }
            _ => false,
        })
    }
}

/// Parses an entry. Names that are no host match none.
fn entry(text: &str) -> Entry {
    if text == "*" {
        return Entry::All;
    }
    let network = text.split_once('/').and_then(|(address, bits)| {
        let (address, bits) = (unbracketed(address).parse::<IpAddr>().ok()?, bits.parse::<u32>().ok()?);
        (bits <= width(address)).then_some(Entry::Network(address, bits))
    });
    if let Some(network) = network {
        return network;
    }
    if let Ok(address) = unbracketed(text).parse::<IpAddr>() {
        return Entry::Network(address, width(address));
    }
    let (host, port) = match text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(port))) => (host, Some(port)),
        _ => (text, None),
    };
    match (unbracketed(host).parse::<IpAddr>(), port) {
        (Ok(address), Some(port)) => Entry::Address(address, port),
        _ => {
            let domain = host.trim_start_matches('*').trim_matches('.');
            Entry::Domain(domain.to_ascii_lowercase(), port)
        }
    }
}

/// An IPv6 address without its brackets.
fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Bits of an address.
fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn is_in(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let different = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(32 - bits).unwrap_or(0).into()
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(128 - bits).unwrap_or(0)
        }
        _ => return false,
    };
    different == 0
}

/// Whether a host is the domain or a subdomain of it.
fn is_within(host: &str, domain: &str) -> bool {
    let start = host.strip_suffix(domain).filter(|_| !domain.is_empty());
    start.is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_matched_as_curl_and_go_match_them() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("*", &["http://a.b", "https://10.0.0.1"], &[]),
            ("", &[], &["http://localhost"]),
            ("localhost, 127.0.0.1", &["http://127.0.0.1:8080", "http://LOCALHOST"], &["http://127.0.0.2"]),
            ("a.b c.d\te.f", &["http://a.b", "http://c.d", "http://e.f"], &["http://b"]),
            ("example.org", &["http://example.org", "http://x.y.example.org"], &["http://myexample.org"]),
            (".example.org", &["http://example.org", "http://x.example.org"], &["http://example.org.evil"]),
            ("*.example.org", &["http://x.example.org"], &["http://xexample.org"]),
            (
                "example.org:8080",
                &["http://example.org:8080"],
                &["http://example.org", "http://example.org:80"],
            ),
            ("example.org:443", &["https://example.org"], &["http://example.org"]),
            (
                "10.0.0.0/8",
                &["http://10.255.0.1:1"],
                &["http://11.0.0.1", "http://[::a00:1]", "http://10.evil"],
            ),
            ("0.0.0.0/0", &["http://8.8.8.8"], &["http://[::1]"]),
            ("192.168.1.1/32", &["http://192.168.1.1"], &["http://192.168.1.2"]),
            ("fd00::/8", &["http://[fd12::1]:80"], &["http://[fe80::1]"]),
            (
                "::1, [::2], [::3]:80",
                &["http://[::1]", "http://[::2]:5", "http://[::3]"],
                &["http://[::3]:81"],
            ),
            ("10.0.0.1:8080", &["http://10.0.0.1:8080"], &["http://10.0.0.1:80"]),
            ("10.0.0.0/33, ., /, :80", &[], &["http://10.0.0.0", "http://a.b", "http://localhost"]),
            ("hub.example", &["https://hub.example./x"], &[]),
        ];
        for (text, with, without) in cases {
            let no_proxy = NoProxy::new(text);
            let has = |uri: &&&str| no_proxy.has(&uri.parse().expect("a URI"));
            assert_eq!(with.iter().find(|uri| !has(uri)), None, "{text}");
            assert_eq!(without.iter().find(has), None, "{text}");
        }
    }
}
