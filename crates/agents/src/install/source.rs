//! The places where an agent can be had, in the order in which they are asked.

use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Wish,
    http::{Ask, Http, Trouble},
    layout,
    npm::{self, Npm},
};
use crate::agent::AgentId;

/// One thing to download.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Where it is.
    pub(super) ask: Ask,
    /// What it is.
    pub(super) shape: Shape,
    /// What a registry says that it hashes to: any of these.
    pub(super) integrity: Vec<String>,
}

/// What comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The package of a registry.
    Package,
    /// The same, published elsewhere.
    Copy,
    /// An archive with the program alone, of this name.
    Alone(String),
    /// The program itself.
    Program,
}

/// What a registry says about a version.
#[derive(Deserialize)]
struct Described {
    dist: Dist,
}

#[derive(Deserialize)]
struct Dist {
    tarball: String,
    integrity: Option<String>,
}

/// Where the registry of a package has it.
pub(super) async fn registry(http: &Http, npm: &Npm, given: Option<&str>, wish: &Wish) -> Result<Vec<Source>, Trouble> {
    let (package, version) = wish.package();
    let registry = match given {
        Some(given) => npm::address(given).ok_or_else(|| Trouble::Never("this is no address".to_owned()))?,
        None => npm.registry(&package).ok_or_else(|| Trouble::Never("no registry is known".to_owned()))?,
    };
    let described = describe(http, npm, &registry, &package, &version).await?;
    let integrity: Vec<_> = described.dist.integrity.iter().flat_map(|all| all.split_whitespace()).collect();
    let integrity = integrity.iter().filter(|hash| hash.starts_with("sha512-"));
    let integrity: Vec<_> = integrity.map(|hash| hash.split('?').next().unwrap_or(hash).to_string()).collect();
    if integrity.is_empty() && wish.pin.is_none() {
        return Err(Trouble::Never("the registry does not say what the package hashes to".to_owned()));
    }
    let no_place = || {
        let place = Url::parse(&described.dist.tarball).map_or_else(|_| "nowhere".to_owned(), |url| named(&url));
        Trouble::Never(format!("the registry sends us to {place}"))
    };
    let tarball = registry.join(&described.dist.tarball).map_err(|_| no_place())?;
    if !matches!(tarball.scheme(), "http" | "https") {
        return Err(no_place());
    }
    // A mirror may still name the registry that it mirrors, which may be out of reach.
    let file = tarball.path().rsplit('/').next().unwrap_or_default();
    let own = registry.join(&format!("{package}/-/{file}")).ok().filter(|own| own.origin() != tarball.origin());
    let source = |url: Url| {
        let login = npm.login(&url).filter(|_| url.scheme() == "https" || url.origin() == registry.origin());
        Source { ask: Ask { url, login }, shape: Shape::Package, integrity: integrity.clone() }
    };
    Ok([Some(tarball), own].into_iter().flatten().map(source).collect())
}

/// Asks about a version, and where that is not answered, about the whole package.
async fn describe(http: &Http, npm: &Npm, registry: &Url, package: &str, version: &str) -> Result<Described, Trouble> {
    let ask = |path: String| {
        let url = registry.join(&path).map_err(|_| Trouble::Never("this is no address".to_owned()))?;
        Ok(Ask { login: npm.login(&url), url })
    };
    let name = package.replace('/', "%2f");
    let strange = |error: serde_json::Error| Trouble::Never(format!("its answer is no description: {error}"));
    match http.text(&ask(format!("{name}/{version}"))?).await {
        Ok(text) => serde_json::from_slice(&text).map_err(strange),
        Err(Trouble::Absent) => {
            let text = http.text(&ask(name)?).await?;
            let mut all: Value = serde_json::from_slice(&text).map_err(strange)?;
            let one = all.get_mut("versions").and_then(|versions| versions.get_mut(version)).map(Value::take);
            serde_json::from_value(one.ok_or(Trouble::Absent)?).map_err(strange)
        }
        Err(trouble) => Err(trouble),
    }
}

/// Where the makers have it themselves. They say nothing about hashes, so only what is pinned is taken.
pub(super) fn makers(wish: &Wish, downloads: &super::Downloads) -> Vec<Source> {
    let (version, platform) = (&wish.version, wish.platform);
    let places = match wish.agent {
        AgentId::Claude => vec![(&downloads.claude, format!("{version}/{platform}/claude"), Shape::Program)],
        AgentId::Codex => {
            let (name, triple) = (platform.name(), platform.triple());
            let release = format!("rust-v{version}");
            let alone = Shape::Alone(format!("codex-{triple}"));
            vec![
                (&downloads.codex, format!("{release}/codex-npm-{name}-{version}.tgz"), Shape::Copy),
                (&downloads.codex, format!("{release}/codex-{triple}.tar.gz"), alone),
            ]
        }
        AgentId::Mock => Vec::new(),
    };
    let known = places.into_iter().filter(|_| wish.pin.is_some());
    let source = |(base, path, shape): (&String, String, Shape)| {
        let url = npm::address(base)?.join(&path).ok()?;
        Some(Source { ask: Ask { url, login: None }, shape, integrity: Vec::new() })
    };
    known.filter_map(source).collect()
}

// === impl Source ===

impl Source {
    /// Where it is, without what is nobody's business.
    pub(super) fn name(&self) -> String {
        named(&self.ask.url)
    }

    /// The files that are wanted of it.
    pub(super) fn wanted(&self, wish: &Wish) -> Vec<layout::Wanted> {
        match &self.shape {
            Shape::Package | Shape::Copy => layout::files(wish.agent, wish.platform),
            Shape::Alone(name) => {
                let place = layout::program(wish.agent);
                vec![layout::Wanted { name: name.clone(), place, is_needed: true }]
            }
            Shape::Program => Vec::new(),
        }
    }
}

/// An address without logins and queries.
pub(super) fn named(url: &Url) -> String {
    let mut url = url.clone();
    // An address that has no place for them has none.
    let _cleared = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}
