//! `ottava serve --isolated`: one worker process of this program per model.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ottava_server::Model;

/// Options with a value that belong to the front, or that `arguments` sets for each model.
const FRONT: &[&str] = &[
    "--host",
    "--port",
    "--alias",
    "--api-key-file",
    "--allowed-host",
    "--allowed-origin",
    "--drain",
    "--add",
    "--idle-unload",
    "--restarts",
    "--model",
    "-m",
];
/// Options of a worker process. Only its front has its address, and ends it once no request is running.
const WORKER: &[&str] = &["--worker", "--host", "127.0.0.1", "--port", "0", "--drain", "0", "--model"];
/// Options for the first model only: one process can publish at an endpoint, and a template fits one model.
const FIRST_ONLY: &[&str] = &["--kv-events", "--chat-template"];

/// Value of `--add`: `NAME=MODEL`.
#[derive(Clone, Debug)]
pub struct Added {
    name: String,
    model: PathBuf,
}

impl FromStr for Added {
    type Err = String;

    fn from_str(text: &str) -> Result<Added, String> {
        match text.split_once('=') {
            Some((name, model)) if !name.is_empty() && !model.is_empty() => {
                Ok(Added { name: name.into(), model: model.into() })
            }
            _ => Err("expected NAME=MODEL".into()),
        }
    }
}

/// The served models: the first, which is always loaded, and the added ones.
pub fn models(first: &Path, names: &[String], added: &[Added]) -> std::io::Result<Vec<Model>> {
    let program = std::env::current_exe()?;
    let given: Vec<OsString> = std::env::args_os().skip(2).collect();
    let mut names = names.to_vec();
    if names.is_empty() {
        names.push(first.file_stem().unwrap_or(first.as_os_str()).to_string_lossy().into_owned());
    }
    let model = |names: Vec<String>, path: &Path, pinned| {
        let arguments = arguments(&given, path, &names, pinned);
        let command =
            [program.clone().into_os_string(), "serve".into()].into_iter().chain(arguments).collect();
        Model { names, command, pinned }
    };
    let further = added.iter().map(|added| model(vec![added.name.clone()], &added.model, false));
    Ok(std::iter::once(model(names, first, true)).chain(further).collect())
}

/// The arguments of a model's worker process: the given ones without those of the front.
fn arguments(given: &[OsString], path: &Path, names: &[String], first: bool) -> Vec<OsString> {
    let is_one_of = |argument: &OsStr, options: &[&str]| options.iter().any(|option| argument == *option);
    // `--port=1` and `-mX` are one argument.
    let joined = |argument: &OsStr, options: &[&str]| {
        let text = argument.to_string_lossy();
        let long = |option: &&str| option.starts_with("--") && text.starts_with(&format!("{option}="));
        options.iter().any(long) || text.starts_with("-m")
    };
    let options = if first { FRONT.to_vec() } else { [FRONT, FIRST_ONLY].concat() };
    let mut arguments = Vec::new();
    let mut given = given.iter();
    while let Some(argument) = given.next() {
        if is_one_of(argument, &options) {
            given.next();
        } else if argument != "--isolated" && !joined(argument, &options) {
            arguments.push(argument.clone());
        }
    }
    arguments.extend(WORKER.iter().map(OsString::from));
    arguments.push(path.into());
    arguments.extend(names.iter().flat_map(|name| ["--alias".into(), name.into()]));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_options_of_its_model_and_none_of_the_front_s() {
        let given = "--isolated -m a.gguf --port=1 --host 0.0.0.0 -t 2 --kv int8 --add b=b.gguf --drain 5 -mc.gguf \
                     --alias x --kv-events tcp://127.0.0.1:1 --chat-template=c.jinja";
        let given: Vec<OsString> = given.split_whitespace().map(OsString::from).collect();
        let found = |first| {
            let found = arguments(&given, Path::new("z.gguf"), &["n".into()], first);
            found.iter().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let own = "--worker --host 127.0.0.1 --port 0 --drain 0 --model z.gguf --alias n";
        assert_eq!(found(false), format!("-t 2 --kv int8 {own}"));
        let of_first = "--kv-events tcp://127.0.0.1:1 --chat-template=c.jinja";
        assert_eq!(found(true), format!("-t 2 --kv int8 {of_first} {own}"));
    }

    #[test]
    fn a_further_model_has_a_name_and_a_file() {
        let added: Added = "small=dir/a=b.gguf".parse().expect("both are there");
        assert_eq!((added.name.as_str(), added.model), ("small", PathBuf::from("dir/a=b.gguf")));
        for text in ["small", "=a.gguf", "small=", ""] {
            assert!(text.parse::<Added>().is_err(), "{text}");
        }
    }
}
