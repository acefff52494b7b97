//! A certificate authority for registries with TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A certificate authority. Only clients that are configured with its certificate trust it.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    dir: TempDir,
}

// === impl CertificateAuthority ===

impl CertificateAuthority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the tests");
        let certificate = params.self_signed(&key).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), &certificate).unwrap();
        Self { issuer: Issuer::new(params, key), certificate, dir }
    }

    /// The file with its certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Writes a certificate for a server on loopback, and its key.
    pub(super) fn server(&self, into: &Path) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let (certificate_file, key_file) = (into.join("server.pem"), into.join("server.key"));
        std::fs::write(&certificate_file, certificate + &self.certificate).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        (certificate_file, key_file)
    }
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}
