//! The TLS settings of a listener.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

const KEY: &str = "the key";
const AUTHORITY: &str = "the client CA";

/// The certificate of a server, and how it verifies clients.
#[derive(Clone)]
pub struct TlsConfig {
    acceptor: TlsAcceptor,
    requires_client_certificate: bool,
}

/// Why the TLS settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not valid PEM.
    #[error("{what}: {source}")]
    Pem {
        /// Which file.
        what: &'static str,
        /// The error of the parser.
        source: pem::Error,
    },
    /// A file contains no certificate.
    #[error("{0} contains no certificate")]
    Empty(&'static str),
    /// The certificate and the key do not match, or are invalid.
    #[error(transparent)]
    Config(#[from] rustls::Error),
    /// The client CA is invalid.
    #[error("the client CA: {0}")]
    Clients(#[from] VerifierBuilderError),
}

/// A file of the TLS settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificates of the server.
    Certificate,
    /// The private key of the server.
    Key,
    ClientCa,
}

// === impl TlsError ===

impl TlsError {
    /// The file that is invalid.
    pub fn part(&self) -> TlsFile {
        match self {
            Self::Pem { what, .. } | Self::Empty(what) if *what == KEY => TlsFile::Key,
            Self::Pem { what, .. } | Self::Empty(what) if *what == AUTHORITY => TlsFile::ClientCa,
            Self::Clients(_) => TlsFile::ClientCa,
            Self::Pem { .. } | Self::Empty(_) | Self::Config(_) => TlsFile::Certificate,
        }
    }
}

// === impl Tls ===

impl TlsConfig {
    /// Parses the certificates and the key of a server, in PEM. With a client CA, clients need a certificate of it.
    pub fn new(certificates: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> Result<Self, TlsError> {
        let chain = read("the certificate file", certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| TlsError::Pem { what: KEY, source })?;
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in read(AUTHORITY, authority)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            requires_client_certificate: client_authority.is_some(),
        })
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// Whether clients need a certificate.
    pub(crate) fn requires_client_certificate(&self) -> bool {
        self.requires_client_certificate
    }
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig")
            .field("requires_client_certificate", &self.requires_client_certificate)
            .finish_non_exhaustive()
    }
}

fn read(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|source| TlsError::Pem { what, source })?;
    if certificates.is_empty() { Err(TlsError::Empty(what)) } else { Ok(certificates) }
}
