//! `carrel image ls` and `inspect`.

use std::time::UNIX_EPOCH;

use carrel_fetch::{FetchError, Images};
use carrel_layers::{ImageStoreError, StoredImage};
use carrel_registry::ImageName;
use carrel_units::ByteSize;
use serde_json::{Value, json};

use super::open_default;
use crate::arguments::{ImageInspectArguments, ImageListArguments};
use crate::failure::{Failure, Failures};
use crate::table::TextTable;
use crate::timestamp::UnixMillis;

/// The text of an empty cell.
const NONE: &str = "-";
/// The length of a short digest.
const SHORT: usize = 12;
/// Prefixes that short names omit.
const DEFAULT_PREFIXES: [&str; 2] = ["docker.io/library/", "docker.io/"];

/// Lists local images; returns the exit code.
pub(super) fn list(arguments: &ImageListArguments, json: bool) -> Result<u8, Failure> {
    let mut all = open_default()?.store()?.list().map_err(FetchError::from)?;
    all.sort_by(|one, other| (&one.names, one.digest.hex()).cmp(&(&other.names, other.digest.hex())));
    let text = match (json, arguments.quiet) {
        (true, _) => all.iter().map(|stored| crate::json::line(&object(stored))).collect(),
        (false, true) => all.iter().map(|stored| format!("{}\n", stored.digest)).collect(),
        (false, false) => table(&all, UnixMillis::now()),
    };
    crate::write_stdout(text.as_bytes())
}

/// Shows details of images; returns the exit code.
pub(super) fn inspect(arguments: &ImageInspectArguments, json: bool) -> Result<u8, Failure> {
    let images = open_default()?;
    let (mut objects, mut failures) = (Vec::new(), Failures::new(json));
    for text in &arguments.images {
        match one(&images, text) {
            Ok(stored) => objects.push(object(&stored)),
            Err(error) => failures.add(error.into()),
        }
    }
    if !objects.is_empty() {
        let value = match (objects.pop(), arguments.images.len()) {
            (Some(only), 1) => only,
            (last, _) => objects.into_iter().chain(last).collect(),
        };
        let text = if json { crate::json::line(&value) } else { crate::json::lines(&value) };
        crate::write_stdout(text.as_bytes())?;
    }
    failures.finish(super::FAILED)
}

/// A local image, by its name, digest or prefix of a digest.
pub(super) fn one(images: &Images, text: &str) -> Result<StoredImage, FetchError> {
    let store = images.store()?;
    if let Ok(name) = text.parse::<ImageName>()
        && let Some(found) = store.find(&name.to_string())?
    {
        return Ok(store.get(found.digest)?.unwrap_or(found));
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let is_long_enough = digits.len() >= SHORT;
    let mut matches =
        store.list()?.into_iter().filter(|stored| is_long_enough && stored.digest.hex().starts_with(digits));
    match (matches.next(), matches.next()) {
        (Some(stored), None) => Ok(stored),
        (None, _) => Err(ImageStoreError::Unknown(text.to_owned()).into()),
        (Some(_), Some(_)) => Err(ImageStoreError::Ambiguous(text.to_owned()).into()),
    }
}

/// A table of images with a row for each name.
fn table(all: &[StoredImage], now: UnixMillis) -> String {
    let mut table = TextTable::new(["NAME", "DIGEST", "LAYERS", "SIZE", "AGE"]);
    for stored in all {
        let unnamed = [NONE.to_owned()];
        let names = if stored.names.is_empty() { &unnamed[..] } else { &stored.names };
        for name in names {
            table.row([
                short(name).to_owned(),
                stored.digest.hex().chars().take(SHORT).collect(),
                stored.layers.len().to_string(),
                ByteSize(stored.size).to_string(),
                since(stored).age(now),
            ]);
        }
    }
    table.to_string()
}

/// A name without default prefixes.
fn short(name: &str) -> &str {
    DEFAULT_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn since(stored: &StoredImage) -> UnixMillis {
    let since = stored.stored.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// An image as JSON.
pub(super) fn object(stored: &StoredImage) -> Value {
    let config = &stored.config;
    let layers: Vec<String> = stored.layers.iter().map(ToString::to_string).collect();
    json!({
        "digest": stored.digest.to_string(),
        "names": stored.names,
        "media_type": stored.media_type,
        "size": stored.size,
        "packed": stored.packed,
        "stored": since(stored).to_string(),
        "layers": layers,
        "config": {
            "platform": config.platform.as_ref().map(ToString::to_string),
            "created": config.created,
            "env": config.env,
            "user": config.user,
            "workdir": config.workdir,
            "entrypoint": config.entrypoint,
            "cmd": config.cmd,
            "ports": config.ports,
            "labels": config.labels,
            "stop_signal": config.stop_signal,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_without_default_prefixes() {
        assert_eq!(short("docker.io/library/python:3.12"), "python:3.12");
        assert_eq!(short("docker.io/team/x:1"), "team/x:1");
        assert_eq!(short("r.example/x:1"), "r.example/x:1");
    }
}
