//! The connection to one host: plain or by TLS, with the certificates that are trusted.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use reqwest::Url;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::{Mutex, OnceCell};

use crate::error::{Asked, RegistryError, tls};
use crate::http::{Failure, Http, Request};
use crate::pass::Pass;
use crate::reach::Reach;

pub(crate) const CONNECT: Duration = Duration::from_secs(15);
/// A connection on which nothing comes for so long is given up. There is no limit for all of an answer.
pub(crate) const STALL: Duration = Duration::from_secs(60);
pub(crate) const AGENT: &str = concat!("carrel/", env!("CARGO_PKG_VERSION"));

/// How a host is spoken to.
pub(crate) struct Line {
    /// Where it is: what is asked is below.
    pub(crate) base: Url,
    pub(crate) http: Http,
    /// Whether it speaks without TLS although nobody said that it may. Then it learns no login.
    pub(crate) in_clear: bool,
    /// What is shown to it to read, and to write. Nothing, while it was not asked what it wants.
    pub(crate) passes: [Mutex<Option<Option<Pass>>>; 2],
    host: String,
    trusted: Vec<CertificateDer<'static>>,
    sender: OnceCell<oci_client::Client>,
}

// === impl Line ===

impl Line {
    /// Finds out how a host is spoken to. What is on loopback may speak either way, if nothing is said.
    pub(crate) async fn open(
        host: &str,
        insecure: Option<bool>,
        ca: Option<&Path>,
        reach: Reach,
        asked: Asked<'_>,
    ) -> Result<Self, RegistryError> {
        // Whoever was first: all of this project takes the same one.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let trusted = ca.map_or(Ok(Vec::new()), certificates)?;
        let http = Http::new(host, &trusted, reach)?;
        let at = |scheme: &str| {
            Url::parse(&format!("{scheme}://{host}/v2/"))
                .map_err(|error| RegistryError::Setup(format!("{host}: {error}")))
        };
        let secure = at("https")?;
        let in_clear = insecure.is_none() && is_loopback(host) && !speaks_tls(&http, secure.clone(), asked).await?;
        let base = if in_clear || insecure == Some(true) { at("http")? } else { secure };
        let (passes, sender) = (Default::default(), OnceCell::new());
        Ok(Self { base, http, in_clear, passes, host: host.to_owned(), trusted, sender })
    }

    /// Whether somebody is the host itself.
    pub(crate) fn is(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Whether what is shown at a place would go over a network without TLS, and would not on this line.
    pub(crate) fn is_weakened_by(&self, url: &Url) -> bool {
        let here = |url: &Url| url.host_str().is_some_and(is_loopback);
        self.base.scheme() == "https" && url.scheme() != "https" && !(here(&self.base) && here(url))
    }

    /// What sends blobs and manifests.
    pub(crate) async fn sender(&self) -> Result<&oci_client::Client, RegistryError> {
        let is_loopback = is_loopback(&self.host);
        let make = async || {
            oci_client::Client::try_from(ClientConfig {
                protocol: if self.base.scheme() == "http" { ClientProtocol::Http } else { ClientProtocol::Https },
                extra_root_certificates: self.trusted.iter().map(certificate).collect(),
                read_timeout: Some(STALL),
                connect_timeout: Some(CONNECT),
                user_agent: AGENT,
                // A proxy that is never used is better than the one of the environment, which cannot reach our loopback.
                http_proxy: is_loopback.then(|| "http://127.0.0.1".into()),
                https_proxy: is_loopback.then(|| "http://127.0.0.1".into()),
                no_proxy: is_loopback.then(|| "*,127.0.0.0/8,::1".into()),
                platform_resolver: None,
                ..ClientConfig::default()
            })
        };
        self.sender.get_or_try_init(make).await.map_err(|error| RegistryError::Setup(error.to_string()))
    }
}

/// Whether a host speaks TLS, even if it is not to be trusted.
async fn speaks_tls(http: &Http, url: Url, asked: Asked<'_>) -> Result<bool, RegistryError> {
    match http.once(&Request::get(url)).await {
        Ok(_) => Ok(true),
        Err(Failure::Broke(error)) => Ok(matches!(tls(&error), Some(rustls::Error::InvalidCertificate(_)))),
        Err(failure) => Err(asked.lost(failure)),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let unreadable = |cause| RegistryError::Certificates { file: file.to_owned(), cause };
    let text = fs::read(file).map_err(unreadable)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(std::io::Error::other("there is none in PEM format"))),
        Err(error) => Err(unreadable(std::io::Error::other(error.to_string()))),
    }
}

fn certificate(trusted: &CertificateDer<'_>) -> Certificate {
    Certificate { encoding: CertificateEncoding::Der, data: trusted.to_vec() }
}

/// Whether a registry, or the host of a URL, is on this machine, going by its name.
pub(crate) fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _port)| address),
        None => registry.rsplit_once(':').map_or(registry, |(host, _port)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether a name means this machine, whoever is asked for its address.
pub(crate) fn is_here_by_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_name() {
        for here in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]", "[::1]:5000"] {
            assert!(is_loopback(here), "{here}");
        }
        for there in
            ["docker.io", "localhost.example", "128.0.0.1:5000", "127.0.0.1.example:5000", "[::2]:5000", "[fe80::1]"]
        {
            assert!(!is_loopback(there), "{there}");
        }
    }

    #[test]
    fn a_file_without_certificates_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = certificates(file.path()).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()) && error.contains("none"), "{error}");
        assert!(certificates(Path::new("/nonexistent/ca.pem")).is_err());
    }
}
