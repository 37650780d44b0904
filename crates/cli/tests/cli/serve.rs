//! Errors of `serve` before it loads a model: a server must not start with fewer keys than were given.

use super::*;

/// A missing model. An error that does not name it came before the load.
const NO_MODEL: &str = "no-such-model.gguf";

#[cfg(unix)]
#[test]
fn variables_that_are_no_utf8_are_named_and_not_dropped() {
    use std::os::unix::ffi::OsStrExt;
    let bad = OsStr::from_bytes(b"secret\xff");
    let serve = ["serve", "--port", "0", "--model", NO_MODEL];
    let pull = ["pull", "smollm2-135m-instruct"];
    for (name, arguments) in
        [("OTTAVA_API_KEY", &serve[..]), ("HF_TOKEN", &pull[..]), ("HF_ENDPOINT", &pull[..])]
    {
        let mut command = command(arguments);
        command
            .env("OTTAVA_OFFLINE", "0")
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_ENDPOINT", "http://127.0.0.1:1");
        let expected = format!("{name}: the byte at offset 6 is not UTF-8 (0xff)");
        failed(&command.env(name, bad).output().unwrap(), arguments, 2, &[&expected]);
    }
    // Offline, the hub's variables are not read.
    failed(&command(&pull).env("HF_TOKEN", bad).output().unwrap(), &pull, 1, &["offline"]);
}

#[test]
fn a_variable_of_keys_has_a_key() {
    let serve = ["serve", "--port", "0", "--model", NO_MODEL];
    let with = |keys: &str| command(&serve).env("OTTAVA_API_KEY", keys).output().unwrap();
    failed(&with(" \n\t\n"), &serve, 1, &["OTTAVA_API_KEY: expected a key a line, found none"]);
    for keys in ["", "one", "one\n\ntwo\n"] {
        failed(&with(keys), &serve, 1, &[NO_MODEL]);
    }
}

#[test]
fn a_file_of_keys_is_read_up_to_its_limit_and_names_its_bad_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let path = file.to_str().unwrap();
    let serve = ["serve", "--port", "0", "--model", NO_MODEL, "--api-key-file", path];
    let with = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        ottava(&serve)
    };
    failed(&with(b"one\nsecret\xff\n"), &serve, 1, &["keys: the byte at offset 10 is not UTF-8 (0xff)"]);
    failed(&with(b" \n\n"), &serve, 1, &["keys: expected a key a line, found none"]);
    failed(&with(&vec![b'a'; (1 << 20) + 1]), &serve, 1, &["keys: more than 1 MiB"]);
    failed(&with(b"one\n two \n"), &serve, 1, &[NO_MODEL]);
    failed(&with(&vec![b'a'; 1 << 20]), &serve, 1, &[NO_MODEL]);
    // A device, of length 0, is read up to the limit, too.
    #[cfg(unix)]
    fails(&["serve", "--model", NO_MODEL, "--api-key-file", "/dev/zero"], 1, &["/dev/zero: more than 1 MiB"]);
}
