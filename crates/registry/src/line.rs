//! The connection to one host: plain or by TLS, with the certificates that are trusted.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::{RegistryError, tls};

const CONNECT: Duration = Duration::from_secs(15);
/// A connection on which nothing comes for so long is given up. There is no limit for all of an answer.
const STALL: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("carrel/", env!("CARGO_PKG_VERSION"));

/// Two clients with the same settings.
pub(crate) struct Line {
    pub(crate) scheme: &'static str,
    /// For nearly everything.
    pub(crate) client: oci_client::Client,
    /// For manifests: the other reads an answer however long it is, and keeps to itself how long to wait.
    pub(crate) http: reqwest::Client,
}

// === impl Line ===

impl Line {
    /// Finds out how a host is spoken to. What is on loopback may speak either way, if nothing is said.
    pub(crate) async fn open(host: &str, insecure: Option<bool>, ca: Option<&Path>) -> Result<Self, RegistryError> {
        // Whoever was first: all of this project takes the same one.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let trusted = ca.map_or(Ok(Vec::new()), certificates)?;
        let http = plain_client(host, &trusted)?;
        let scheme = match insecure {
            Some(true) => "http",
            None if is_loopback(host) && !speaks_tls(&http, host).await => "http",
            _ => "https",
        };
        let config = ClientConfig {
            protocol: if scheme == "http" { ClientProtocol::Http } else { ClientProtocol::Https },
            extra_root_certificates: trusted.into_iter().map(certificate).collect(),
            read_timeout: Some(STALL),
            connect_timeout: Some(CONNECT),
            user_agent: AGENT,
            // A proxy that is never used is better than the one of the environment, which cannot reach our loopback.
            http_proxy: is_loopback(host).then(|| "http://127.0.0.1".into()),
            https_proxy: is_loopback(host).then(|| "http://127.0.0.1".into()),
            no_proxy: is_loopback(host).then(|| "*,127.0.0.0/8,::1".into()),
            platform_resolver: None,
            ..ClientConfig::default()
        };
        let client = oci_client::Client::try_from(config).map_err(|error| RegistryError::Setup(error.to_string()))?;
        Ok(Self { scheme, client, http })
    }
}

/// Whether a host speaks TLS, even if it is not to be trusted.
async fn speaks_tls(http: &reqwest::Client, host: &str) -> bool {
    let answer = http.get(format!("https://{host}/v2/")).send().await;
    answer.map_or_else(|error| matches!(tls(&error), Some(rustls::Error::InvalidCertificate(_))), |_| true)
}

fn plain_client(host: &str, trusted: &[CertificateDer<'_>]) -> Result<reqwest::Client, RegistryError> {
    let failed =
        |error: reqwest::Error| RegistryError::Setup(format!("{error}: are the certificates of the system installed?"));
    let roots = trusted
        .iter()
        .map(|trusted| reqwest::Certificate::from_der(trusted))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .read_timeout(STALL)
        .user_agent(AGENT)
        .tls_certs_merge(roots);
    if is_loopback(host) { builder.no_proxy() } else { builder }.build().map_err(failed)
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

fn certificate(trusted: CertificateDer<'_>) -> Certificate {
    Certificate { encoding: CertificateEncoding::Der, data: trusted.to_vec() }
}

/// Whether a registry is on this machine, going by its name.
fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _port)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_name() {
        for here in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3"] {
            assert!(is_loopback(here), "{here}");
        }
        for there in ["docker.io", "localhost.example", "128.0.0.1:5000", "127.0.0.1.example:5000"] {
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
