//! All environment variables that the program's own code reads. The build script also reads those of CUDA.

use std::path::{Path, PathBuf};

use super::{Failure, input};

/// Variables of proxies, by the scheme of the hub's address, in the order in which they count. One of the
/// other scheme counts last, so that no proxy that is set is bypassed.
const PROXIES: [&str; 6] =
    ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY"];
const PLAIN_PROXIES: [&str; 6] =
    ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"];

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
    let Some(address) = trimmed(name)? else { return Ok("https://huggingface.co".into()) };
    if !["http://", "https://"].iter().any(|scheme| address.starts_with(scheme)) {
        return Err(Failure::Usage(format!("{name}: expected http://… or https://…, found {address}")));
    }
    Ok(address.trim_end_matches('/').into())
}

/// The hub's access token: `HF_TOKEN`. White space around it is dropped: files of tokens end with a line
/// break.
pub fn hub_token() -> Result<Option<String>, Failure> {
    let name = "HF_TOKEN";
    let token = trimmed(name)?;
    // The message leaves the token out: it is a secret.
    match token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        true => Err(Failure::Usage(format!("{name}: expected ASCII characters without white space"))),
        false => Ok(token),
    }
}

/// The proxy of downloads: the variable's name and its text.
pub fn proxy(is_https: bool) -> Result<Option<(&'static str, String)>, Failure> {
    for name in if is_https { PROXIES } else { PLAIN_PROXIES } {
        if let Some(address) = trimmed(name)? {
            return Ok(Some((name, address)));
        }
    }
    Ok(None)
}

/// The hosts without a proxy: `NO_PROXY`, in either case.
pub fn no_proxy() -> Result<String, Failure> {
    let found = trimmed("no_proxy")?.map_or_else(|| trimmed("NO_PROXY"), |found| Ok(Some(found)));
    Ok(found?.unwrap_or_default())
}

/// A file and folders of certificate authorities: `SSL_CERT_FILE` and `SSL_CERT_DIR`.
pub fn authorities() -> (Option<PathBuf>, Vec<PathBuf>) {
    let folders = std::env::var_os("SSL_CERT_DIR").filter(|value| !value.is_empty());
    (path("SSL_CERT_FILE"), folders.iter().flat_map(std::env::split_paths).collect())
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

/// A variable's text without white space around it, or `None` if nothing is left.
fn trimmed(name: &str) -> Result<Option<String>, Failure> {
    let text = text(name)?;
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// A variable's text, or `None` if it is unset or empty. A value that is not UTF-8 is an error.
fn text(name: &str) -> Result<Option<String>, Failure> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let text = value.map(|value| input::utf8_of(&value)).transpose();
    text.map_err(|reason| Failure::Usage(format!("{name}: {reason}")))
}
