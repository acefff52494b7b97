//! The transport to one host: HTTP or HTTPS, and the trusted certificates.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use reqwest::Url;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::{Mutex, OnceCell};

use crate::authorization::Authorization;
use crate::egress::EgressPolicy;
use crate::error::{RegistryError, RequestContext, tls};
use crate::http::{HttpClient, HttpError, HttpRequest};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection without data for this long is closed. There is no deadline for a whole blob.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const USER_AGENT: &str = concat!("carrel/", env!("CARGO_PKG_VERSION"));

/// How to reach one registry host.
pub(crate) struct RegistryTransport {
    /// The URL of the API: requests are relative to it.
    pub(crate) base: Url,
    pub(crate) http: HttpClient,
    /// Whether the host uses plain HTTP without being configured as insecure; then no login is sent.
    pub(crate) is_plaintext: bool,
    /// Cached authorization to pull and to push; the outer `None` means that the registry was not probed yet.
    pub(crate) authorizations: [Mutex<Option<Option<Authorization>>>; 2],
    host: String,
    trusted: Vec<CertificateDer<'static>>,
    push_client: OnceCell<oci_client::Client>,
}

// === impl RegistryTransport ===

impl RegistryTransport {
    /// Connects to a host. A loopback host without configuration is probed for TLS first.
    pub(crate) async fn open(
        host: &str,
        insecure: Option<bool>,
        ca: Option<&Path>,
        egress: EgressPolicy,
        context: RequestContext<'_>,
    ) -> Result<Self, RegistryError> {
        // An error means that it is installed already, by another part of the program.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let trusted = ca.map_or(Ok(Vec::new()), certificates)?;
        let http = HttpClient::new(host, &trusted, egress)?;
        let at = |scheme: &str| {
            Url::parse(&format!("{scheme}://{host}/v2/"))
                .map_err(|error| RegistryError::Setup(format!("{host}: {error}")))
        };
        let secure = at("https")?;
        let is_plaintext = insecure.is_none() && is_loopback(host) && !uses_tls(&http, secure.clone(), context).await?;
        let base = if is_plaintext || insecure == Some(true) { at("http")? } else { secure };
        let (authorizations, push_client) = (Default::default(), OnceCell::new());
        Ok(Self { base, http, is_plaintext, authorizations, host: host.to_owned(), trusted, push_client })
    }

    /// Whether a URL has the registry's own origin.
    pub(crate) fn is(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Whether credentials sent to a URL would go without TLS over a network, while this transport uses TLS.
    pub(crate) fn is_downgraded_by(&self, url: &Url) -> bool {
        let here = |url: &Url| url.host_str().is_some_and(is_loopback);
        self.base.scheme() == "https" && url.scheme() != "https" && !(here(&self.base) && here(url))
    }

    /// The client that pushes blobs and manifests.
    pub(crate) async fn push_client(&self) -> Result<&oci_client::Client, RegistryError> {
        let is_loopback = is_loopback(&self.host);
        let make = async || {
            oci_client::Client::try_from(ClientConfig {
                protocol: if self.base.scheme() == "http" { ClientProtocol::Http } else { ClientProtocol::Https },
                extra_root_certificates: self.trusted.iter().map(certificate).collect(),
                read_timeout: Some(READ_TIMEOUT),
                connect_timeout: Some(CONNECT_TIMEOUT),
                user_agent: USER_AGENT,
                // Overrides the proxy of the environment, which cannot reach our loopback; it is never used.
                http_proxy: is_loopback.then(|| "http://127.0.0.1".into()),
                https_proxy: is_loopback.then(|| "http://127.0.0.1".into()),
                no_proxy: is_loopback.then(|| "*,127.0.0.0/8,::1".into()),
                platform_resolver: None,
                ..ClientConfig::default()
            })
        };
        self.push_client.get_or_try_init(make).await.map_err(|error| RegistryError::Setup(error.to_string()))
    }
}

/// Whether a host uses TLS, even with an untrusted certificate.
async fn uses_tls(http: &HttpClient, url: Url, context: RequestContext<'_>) -> Result<bool, RegistryError> {
    match http.send_once(&HttpRequest::get(url)).await {
        Ok(_) => Ok(true),
        Err(HttpError::Client(error)) => Ok(matches!(tls(&error), Some(rustls::Error::InvalidCertificate(_)))),
        Err(failure) => Err(context.http_error(failure)),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let unreadable = |cause| RegistryError::Certificates { file: file.to_owned(), cause };
    let text = fs::read(file).map_err(unreadable)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(std::io::Error::other("it has no certificate in PEM format"))),
        Err(error) => Err(unreadable(std::io::Error::other(error.to_string()))),
    }
}

fn certificate(trusted: &CertificateDer<'_>) -> Certificate {
    Certificate { encoding: CertificateEncoding::Der, data: trusted.to_vec() }
}

/// Whether a registry, or the host of a URL, is on this machine by its name or address.
pub(crate) fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _port)| address),
        None => registry.rsplit_once(':').map_or(registry, |(host, _port)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether a name is reserved for this machine, whatever a resolver says.
pub(crate) fn is_localhost_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_recognized_by_name() {
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
        assert!(error.contains(&file.path().display().to_string()) && error.contains("no certificate"), "{error}");
        assert!(certificates(Path::new("/nonexistent/ca.pem")).is_err());
    }
}
