//! TLS of a listener.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

const KEY: &str = "the key";
const AUTHORITY: &str = "the authority of clients";

/// What a server shows, and whom it lets in by what they show.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    asks_clients: bool,
}

/// Why there is no TLS to be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// What was given is not in PEM.
    #[error("{what}: {source}")]
    Pem {
        /// Which of them.
        what: &'static str,
        /// Why not.
        source: pem::Error,
    },
    /// There is nothing in it.
    #[error("{0}: there is no certificate in it")]
    Empty(&'static str),
    /// Certificate and key do not fit, or are no good.
    #[error(transparent)]
    Config(#[from] rustls::Error),
    /// The certificates of clients cannot be judged by these.
    #[error("the authority of clients: {0}")]
    Clients(#[from] VerifierBuilderError),
}

/// Which of the files of a listener is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPart {
    /// The certificates of the server.
    Certificate,
    /// Its private key.
    Key,
    /// The authority of clients.
    ClientCa,
}

// === impl TlsError ===

impl TlsError {
    /// Which of the files is at fault.
    pub fn part(&self) -> TlsPart {
        match self {
            Self::Pem { what, .. } | Self::Empty(what) if *what == KEY => TlsPart::Key,
            Self::Pem { what, .. } | Self::Empty(what) if *what == AUTHORITY => TlsPart::ClientCa,
            Self::Clients(_) => TlsPart::ClientCa,
            Self::Pem { .. } | Self::Empty(_) | Self::Config(_) => TlsPart::Certificate,
        }
    }
}

// === impl Tls ===

impl Tls {
    /// Takes the certificates and the key of a server, in PEM; with an authority, clients have to show a certificate of it.
    pub fn new(certificates: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> Result<Self, TlsError> {
        let chain = read("the certificate", certificates)?;
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
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), asks_clients: client_authority.is_some() })
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// Whether nobody gets in without a certificate.
    pub(crate) fn asks_clients(&self) -> bool {
        self.asks_clients
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("asks_clients", &self.asks_clients).finish_non_exhaustive()
    }
}

fn read(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|source| TlsError::Pem { what, source })?;
    if certificates.is_empty() { Err(TlsError::Empty(what)) } else { Ok(certificates) }
}
