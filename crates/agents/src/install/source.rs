//! Sources of a package, in the order in which they are tried.

use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;

use super::{
    InstallPlan,
    client::{RegistryClient, RegistryFetchError, RegistryRequest},
    layout,
    npm::{self, NpmConfig},
};
use crate::agent::AgentId;

#[derive(Clone, Debug)]
pub(super) struct PackageSource {
    pub(super) request: RegistryRequest,
    pub(super) format: PackageFormat,
    /// Hashes that the registry reports; any of them may match.
    pub(super) integrity: Vec<String>,
}

/// What a source provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PackageFormat {
    Registry,
    /// The same package from another server.
    Mirror,
    /// An archive that contains only the program, under this name.
    ProgramArchive(String),
    /// The program itself.
    Program,
}

/// Metadata of a package version.
#[derive(Deserialize)]
struct PackageVersion {
    dist: PackageDist,
}

#[derive(Deserialize)]
struct PackageDist {
    tarball: String,
    integrity: Option<String>,
}

/// Sources in the package's registry.
pub(super) async fn registry(
    http: &RegistryClient,
    npm: &NpmConfig,
    configured: Option<&str>,
    plan: &InstallPlan,
) -> Result<Vec<PackageSource>, RegistryFetchError> {
    let (package, version) = plan.package();
    let registry = match configured {
        Some(configured) => npm::address(configured)
            .ok_or_else(|| RegistryFetchError::Permanent("this is not a valid address".to_owned()))?,
        None => {
            npm.registry(&package).ok_or_else(|| RegistryFetchError::Permanent("no registry is known".to_owned()))?
        }
    };
    let metadata = fetch_metadata(http, npm, &registry, &package, &version).await?;
    let integrity: Vec<_> = metadata.dist.integrity.iter().flat_map(|all| all.split_whitespace()).collect();
    let integrity = integrity.iter().filter(|hash| hash.starts_with("sha512-"));
    let integrity: Vec<_> = integrity.map(|hash| hash.split('?').next().unwrap_or(hash).to_string()).collect();
    if integrity.is_empty() && plan.pin.is_none() {
        return Err(RegistryFetchError::Permanent("the registry does not say what the package hashes to".to_owned()));
    }
    let bad_tarball = || {
        let path_in_install =
            Url::parse(&metadata.dist.tarball).map_or_else(|_| "nowhere".to_owned(), |url| redacted(&url));
        RegistryFetchError::Permanent(format!("the registry sends us to {path_in_install}"))
    };
    let tarball = registry.join(&metadata.dist.tarball).map_err(|_| bad_tarball())?;
    if !matches!(tarball.scheme(), "http" | "https") {
        return Err(bad_tarball());
    }
    // The metadata of a mirror may refer to the original registry, which may be unreachable.
    let file = tarball.path().rsplit('/').next().unwrap_or_default();
    let own = registry.join(&format!("{package}/-/{file}")).ok().filter(|own| own.origin() != tarball.origin());
    let source = |url: Url| {
        let login = npm.login(&url).filter(|_| url.scheme() == "https" || url.origin() == registry.origin());
        PackageSource {
            request: RegistryRequest { url, authorization: login },
            format: PackageFormat::Registry,
            integrity: integrity.clone(),
        }
    };
    Ok([Some(tarball), own].into_iter().flatten().map(source).collect())
}

/// Fetches the metadata of a version, or else of the whole package.
async fn fetch_metadata(
    http: &RegistryClient,
    npm: &NpmConfig,
    registry: &Url,
    package: &str,
    version: &str,
) -> Result<PackageVersion, RegistryFetchError> {
    let ask = |path: String| {
        let url = registry
            .join(&path)
            .map_err(|_| RegistryFetchError::Permanent("this is not a valid address".to_owned()))?;
        Ok(RegistryRequest { authorization: npm.login(&url), url })
    };
    let name = package.replace('/', "%2f");
    let malformed = |error: serde_json::Error| {
        RegistryFetchError::Permanent(format!("its response is not a valid description: {error}"))
    };
    match http.text(&ask(format!("{name}/{version}"))?).await {
        Ok(text) => serde_json::from_slice(&text).map_err(malformed),
        Err(RegistryFetchError::NotFound) => {
            let text = http.text(&ask(name)?).await?;
            let mut all: Value = serde_json::from_slice(&text).map_err(malformed)?;
            let one = all.get_mut("versions").and_then(|versions| versions.get_mut(version)).map(Value::take);
            serde_json::from_value(one.ok_or(RegistryFetchError::NotFound)?).map_err(malformed)
        }
        Err(error) => Err(error),
    }
}

/// Sources of the vendor. They have no hashes, so only pinned versions are used.
pub(super) fn vendor(plan: &InstallPlan, downloads: &super::VendorDownloads) -> Vec<PackageSource> {
    let (version, platform) = (&plan.version, plan.platform);
    let places = match plan.agent {
        AgentId::Claude => vec![(&downloads.claude, format!("{version}/{platform}/claude"), PackageFormat::Program)],
        AgentId::Codex => {
            let (name, triple) = (platform.name(), platform.triple());
            let release = format!("rust-v{version}");
            let alone = PackageFormat::ProgramArchive(format!("codex-{triple}"));
            vec![
                (&downloads.codex, format!("{release}/codex-npm-{name}-{version}.tgz"), PackageFormat::Mirror),
                (&downloads.codex, format!("{release}/codex-{triple}.tar.gz"), alone),
            ]
        }
        AgentId::Mock => Vec::new(),
    };
    let known = places.into_iter().filter(|_| plan.pin.is_some());
    let source = |(base, path, format): (&String, String, PackageFormat)| {
        let url = npm::address(base)?.join(&path).ok()?;
        Some(PackageSource { request: RegistryRequest { url, authorization: None }, format, integrity: Vec::new() })
    };
    known.filter_map(source).collect()
}

// === impl PackageSource ===

impl PackageSource {
    /// The URL without credentials.
    pub(super) fn name(&self) -> String {
        redacted(&self.request.url)
    }

    /// The files to unpack.
    pub(super) fn required(&self, plan: &InstallPlan) -> Vec<layout::PackageFile> {
        match &self.format {
            PackageFormat::Registry | PackageFormat::Mirror => layout::files(plan.agent, plan.platform),
            PackageFormat::ProgramArchive(name) => {
                let path_in_install = layout::program(plan.agent);
                vec![layout::PackageFile { name: name.clone(), path_in_install, is_needed: true }]
            }
            PackageFormat::Program => Vec::new(),
        }
    }
}

/// A URL without credentials, query and fragment.
pub(super) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    // A URL without an authority has no credentials.
    let _cleared = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}
