//! HTTP client of downloads. Proxy, token and certificate authorities come from the environment's variables.
//!
//! Redirections are followed here, because the proxy and the token depend on the host of each step.

mod authorities;
mod no_proxy;

use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use self::authorities::authorities;
pub use self::no_proxy::NoProxy;
use super::super::Failure;
use super::Limits;

/// Limit of redirections per request.
const REDIRECTS_MAX: usize = 5;

/// Settings of the network. The default has no proxy, and Mozilla's certificate authorities.
#[derive(Clone, Default)]
pub struct Network {
    /// The proxy, and the name of its variable.
    pub proxy: Option<(Proxy, &'static str)>,
    /// Hosts that are reached without the proxy.
    pub no_proxy: NoProxy,
    /// Trusted certificate authorities; `None` are Mozilla's.
    pub authorities: Option<RootCerts>,
}

impl Network {
    /// Settings by the environment's variables, those of curl and OpenSSL.
    pub fn from_env(is_https: bool) -> Result<Network, Failure> {
        let proxy = crate::env::proxy(is_https)?.map(|(name, address)| proxy(&address, name));
        let (file, folders) = crate::env::authorities();
        Ok(Network {
            proxy: proxy.transpose().map_err(Failure::Usage)?,
            no_proxy: NoProxy::new(&crate::env::no_proxy()?),
            authorities: authorities(file.as_deref(), &folders).map_err(Failure::Usage)?,
        })
    }
}

/// Parses a proxy's address. Errors leave it out: it may have a password.
pub fn proxy(address: &str, variable: &'static str) -> Result<(Proxy, &'static str), String> {
    let proxy = Proxy::new(address.trim()).ok().filter(|proxy| {
        let authority = proxy.uri().authority();
        // A port that is no number would count as absent.
        authority.is_some_and(|site| site.port_u16().is_some() || site.as_str().ends_with(site.host()))
    });
    let expected = "expected http://HOST:PORT, or a proxy of https, socks4, socks4a, socks5 or socks5h";
    proxy.map(|proxy| (proxy, variable)).ok_or_else(|| format!("{variable}: {expected}"))
}

/// Failure of a request before its response.
pub enum RequestError {
    /// The client's error, and the variable of the proxy that was used.
    Call(ureq::Error, Option<&'static str>),
    /// A redirection that cannot be followed.
    Redirect(String),
}

/// A client. Requests go through the proxy or directly, by host.
pub struct Client {
    direct: Agent,
    proxied: Option<(Agent, &'static str)>,
    no_proxy: NoProxy,
}

impl Client {
    pub fn new(network: &Network, limits: &Limits) -> Client {
        let agent = |proxy: Option<Proxy>| -> Agent {
            let roots = network.authorities.clone().unwrap_or(RootCerts::WebPki);
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .proxy(proxy)
                .tls_config(TlsConfig::builder().root_certs(roots).build())
                .timeout_resolve(Some(limits.connect))
                .timeout_connect(Some(limits.connect))
                .timeout_send_request(Some(limits.stall))
                .timeout_recv_response(Some(limits.stall))
                .timeout_per_read(Some(limits.stall));
            config.build().into()
        };
        let proxied = network.proxy.as_ref().map(|(proxy, name)| (agent(Some(proxy.clone())), *name));
        Client { direct: agent(None), proxied, no_proxy: network.no_proxy.clone() }
    }

    /// Requests a file from byte `from` on, and follows redirections. Only the URL's own host gets the token.
    pub fn get(&self, url: &str, from: u64, token: Option<&str>) -> Result<Response<Body>, RequestError> {
        let wrong = || RequestError::Redirect(format!("expected a URL, found {url}"));
        let start: Uri = url.parse().map_err(|_| wrong())?;
        let mut uri = start.clone();
        for _ in 0..=REDIRECTS_MAX {
            let (agent, variable) = match &self.proxied {
                Some((agent, variable)) if !self.no_proxy.has(&uri) => (agent, Some(*variable)),
                _ => (&self.direct, None),
            };
            let mut request = agent.get(uri.clone()).header(header::ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let same = (uri.scheme(), uri.authority()) == (start.scheme(), start.authority());
            if let Some(token) = token.filter(|_| same) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| RequestError::Call(error, variable))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            uri = target(&uri, response.headers())?;
        }
        Err(RequestError::Redirect(format!("expected at most {REDIRECTS_MAX} redirections, found more")))
    }
}

/// Target of a redirection.
fn target(base: &Uri, headers: &HeaderMap) -> Result<Uri, RequestError> {
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let wrong = || {
        let found = location.unwrap_or("none");
        RequestError::Redirect(format!("expected a redirection to an address of HTTP, found {found}"))
    };
    let found = location.ok_or_else(wrong)?.trim();
    let scheme = base.scheme_str().unwrap_or("http");
    let site = base.authority().map_or("", |authority| authority.as_str());
    let has_scheme = found.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    let absolute = if has_scheme {
        found.to_owned()
    } else if found.starts_with("//") {
        format!("{scheme}:{found}")
    } else if found.starts_with('/') {
        format!("{scheme}://{site}{found}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{site}{folder}/{found}")
    };
    let uri: Uri = absolute.parse().map_err(|_| wrong())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if is_http { Ok(uri) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_leads_to_an_absolute_address_or_is_refused() {
        let base: Uri = "https://hub.example:8443/a/b?c=d".parse().unwrap();
        let to = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LOCATION, location.parse().unwrap());
            target(&base, &headers).ok().map(|uri| uri.to_string())
        };
        for (location, uri) in [
            ("http://cdn.example/x?y=z", "http://cdn.example/x?y=z"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/x", "https://hub.example:8443/x"),
            ("/x?u=http://y", "https://hub.example:8443/x?u=http://y"),
            ("x", "https://hub.example:8443/a/x"),
        ] {
            assert_eq!(to(location).as_deref(), Some(uri), "{location}");
        }
        for location in ["ftp://cdn.example/x", "file:///etc/passwd", "http://", "http://[x/"] {
            assert_eq!(to(location), None, "{location}");
        }
        assert!(target(&base, &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_proxy_s_error_names_the_variable_and_no_password() {
        for (address, host) in
            [("socks5h://u:p@box:1080", "box"), ("box:3128\n", "box"), ("https://box", "box")]
        {
            assert_eq!(proxy(address, "ALL_PROXY").unwrap().0.host(), host);
        }
        for address in ["quic://u:secret@box", "http://u:secret@box:port", "box:", "", "://"] {
            let error = proxy(address, "ALL_PROXY").expect_err("refused");
            assert!(error.starts_with("ALL_PROXY: ") && !error.contains("secret"), "{error}");
        }
    }
}
