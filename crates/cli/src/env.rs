//! All environment variables that the program's own code reads. The build script also reads those of CUDA,
//! and the HTTP client those of proxies.

use std::path::{Path, PathBuf};

use super::{Failure, input};

/// The cache folder: `OTTAVA_CACHE`, else `XDG_CACHE_HOME/ottava`, else `HOME/.cache/ottava`. `None` if none
/// of the variables is set.
pub fn cache_folder() -> Option<PathBuf> {
    path("OTTAVA_CACHE")
        .or_else(|| path("XDG_CACHE_HOME").map(|base| base.join("ottava")))
        .or_else(|| path("HOME").map(|home| home.join(".cache").join("ottava")))
}

/// The Hugging Face hub's address: `HF_ENDPOINT`, else the public one.
pub fn hub_endpoint() -> Result<String, Failure> {
    let name = "HF_ENDPOINT";
    let Some(address) = text(name)? else { return Ok("https://huggingface.co".into()) };
    if !["http://", "https://"].iter().any(|scheme| address.starts_with(scheme)) {
        return Err(Failure::Usage(format!("{name}: expected http://… or https://…, found {address}")));
    }
    Ok(address.trim_end_matches('/').into())
}

/// The hub's access token: `HF_TOKEN`.
pub fn hub_token() -> Result<Option<String>, Failure> {
    text("HF_TOKEN")
}

/// API keys of the server's clients, one per line: `OTTAVA_API_KEY`. No keys if it is unset or empty. A value
/// of white space alone is an error, because a server without keys accepts every client.
pub fn api_keys() -> Result<Vec<String>, Failure> {
    let name = "OTTAVA_API_KEY";
    text(name)?.map_or_else(|| Ok(Vec::new()), |keys| input::keys(&keys, name))
}

/// The variable that forbids network access, if there is one: `OTTAVA_OFFLINE` or `HF_HUB_OFFLINE` with any
/// value except 0 or the empty one.
pub fn offline() -> Option<&'static str> {
    ["OTTAVA_OFFLINE", "HF_HUB_OFFLINE"]
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Absolute path of a program in `PATH`. Relative entries are skipped: the current folder is untrusted.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let folders = std::env::split_paths(&folders).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(&file)).find(|path| is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Links are not followed: `metadata` fails for the aliases of the Microsoft Store, which are programs.
#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| !data.is_dir())
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A variable's text, or `None` if it is unset or empty. A value that is not UTF-8 is an error.
fn text(name: &str) -> Result<Option<String>, Failure> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let text = value.map(|value| input::utf8_of(&value)).transpose();
    text.map_err(|reason| Failure::Usage(format!("{name}: {reason}")))
}
