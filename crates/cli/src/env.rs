//! Every environment variable that Ottava reads, in one place.

use std::path::PathBuf;

/// The folder of fetched models: `OTTAVA_CACHE`, else `XDG_CACHE_HOME/ottava`, else
/// `HOME/.cache/ottava`. `None` if none of them is set.
pub fn cache_folder() -> Option<PathBuf> {
    path("OTTAVA_CACHE")
        .or_else(|| path("XDG_CACHE_HOME").map(|base| base.join("ottava")))
        .or_else(|| path("HOME").map(|home| home.join(".cache").join("ottava")))
}

/// The Hugging Face hub's address: `HF_ENDPOINT`, else the public one.
pub fn hub_endpoint() -> String {
    let address = std::env::var("HF_ENDPOINT").ok().filter(|address| !address.is_empty());
    address.map_or_else(|| "https://huggingface.co".into(), |a| a.trim_end_matches('/').into())
}

/// The hub's access token: `HF_TOKEN`.
pub fn hub_token() -> Option<String> {
    std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty())
}

/// Keys of the server's clients, one a line: `OTTAVA_API_KEY`.
pub fn api_keys() -> Vec<String> {
    let keys = std::env::var("OTTAVA_API_KEY").unwrap_or_default();
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Whether the hub must not be asked: `HF_HUB_OFFLINE` or `OTTAVA_OFFLINE` set to anything but 0.
pub fn offline() -> bool {
    ["HF_HUB_OFFLINE", "OTTAVA_OFFLINE"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0"))
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
