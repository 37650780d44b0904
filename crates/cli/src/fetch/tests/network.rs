//! Pulls through proxies. Each proxy is a thread of the test.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::network::{NoProxy, proxy};
use super::*;

/// A proxy, and the number of its connections.
struct Stand {
    address: String,
    count: Arc<AtomicUsize>,
}

impl Stand {
    /// A proxy that reads a request for a connection, connects, and relays.
    fn new(connect: fn(&mut TcpStream) -> TcpStream) -> Stand {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || {
                    let mut client = stream.unwrap();
                    let server = connect(&mut client);
                    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                    let _ = std::io::copy(&mut &server, &mut client);
                    let _ = client.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Stand { address, count }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn bytes<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// SOCKS 5 (RFC 1928) without authentication, by address or by name.
fn socks5(client: &mut TcpStream) -> TcpStream {
    let [5, methods] = bytes(client) else { panic!("another version") };
    client.read_exact(&mut vec![0; methods.into()]).unwrap();
    client.write_all(&[5, 0]).unwrap();
    let [5, 1, 0, kind] = bytes(client) else { panic!("another request") };
    let host = match kind {
        1 => std::net::Ipv4Addr::from(bytes::<4>(client)).to_string(),
        3 => {
            let [length] = bytes(client);
            let mut name = vec![0; length.into()];
            client.read_exact(&mut name).unwrap();
            String::from_utf8(name).unwrap()
        }
        other => panic!("address of kind {other}"),
    };
    let server = TcpStream::connect((host, u16::from_be_bytes(bytes(client)))).unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    server
}

/// HTTP's CONNECT.
fn tunnel(client: &mut TcpStream) -> TcpStream {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(bytes::<1>(client));
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap();
    let server = TcpStream::connect(target).unwrap();
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
    server
}

/// A proxy that ends every connection.
fn closed(client: &mut TcpStream) -> TcpStream {
    let _ = client.shutdown(std::net::Shutdown::Both);
    client.try_clone().unwrap()
}

fn through(hub: Hub, address: &str, no_proxy: &str) -> Hub {
    let (proxy, no_proxy) = (Some(proxy(address, "ALL_PROXY").unwrap()), NoProxy::new(no_proxy));
    let network = Network { proxy, no_proxy, authorities: None };
    Hub { sources: Sources { network, ..hub.sources }, ..hub }
}

#[test]
fn proxies_of_every_kind_are_used() {
    for (scheme, connect) in
        [("socks5", socks5 as fn(&mut TcpStream) -> TcpStream), ("socks5h", socks5), ("http", tunnel)]
    {
        let (proxy, cache) = (Stand::new(connect), Cache::new());
        let hub = through(Hub::good(), &format!("{scheme}://{}", proxy.address), "");
        assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched), "{scheme}");
        assert_eq!((proxy.count(), hub.ranges().len()), (1, 1), "{scheme}");
        cache.is_done();
    }
}

#[test]
fn a_proxy_that_fails_is_named_and_not_bypassed() {
    for scheme in ["socks4", "socks4a", "socks5", "socks5h", "http", "https"] {
        let (proxy, cache) = (Stand::new(closed), Cache::new());
        let hub = through(Hub::good(), &format!("{scheme}://{}", proxy.address), "");
        let error = cache.pull(&hub).unwrap_err();
        assert!(error.contains("through the proxy of ALL_PROXY"), "{scheme}: {error}");
        assert!(proxy.count() > 0 && hub.ranges().is_empty(), "{scheme}");
    }
}

/// The hub is reached directly, and the host to which it redirects is not.
#[test]
fn each_step_of_a_redirection_has_its_own_proxy() {
    let target = Hub::good();
    let location = target.sources.endpoint.clone().unwrap().replace("127.0.0.1", "localhost");
    let hub = Hub::new(move |_, _, stream| {
        send(stream, &format!("307 There\r\nContent-Length: 0\r\nLocation: {location}/there"), b"");
    });
    let (proxy, cache) = (Stand::new(socks5), Cache::new());
    let hub = through(hub, &format!("socks5h://{}", proxy.address), "example.org, 127.0.0.0/8");
    assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched));
    assert_eq!((hub.ranges().len(), proxy.count(), target.ranges().len()), (1, 1, 1));
    cache.is_done();
}

/// A hub redirects to another path of its own, where private files need the token, too.
#[test]
fn the_hub_s_own_paths_get_the_token() {
    let hub = Hub::new(|number, asked, stream| match number {
        0 => send(stream, "307 There\r\nContent-Length: 0\r\nLocation: /cache/x", b""),
        _ => serve(asked, stream),
    });
    let hub = Hub { sources: Sources { token: Some("secret".into()), ..hub.sources }, ..hub };
    let cache = Cache::new();
    assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched));
    let asked = hub.asked.lock().unwrap();
    assert!(asked.iter().all(|asked| asked.head.contains("Bearer secret")), "{asked:?}");
    assert!(asked[1].head.starts_with("GET /cache/x "), "{asked:?}");
}
