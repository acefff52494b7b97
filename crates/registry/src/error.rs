//! Errors of registry requests, and which of them are transient.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use carrel_download::BelowMinThroughput;
use oci_client::errors::{OciDistributionError, OciEnvelope, OciErrorCode};

use crate::CredentialsError;
use crate::egress::NotPublicAddress;
use crate::http::HttpError;

/// The start of the resolver's message for a name without address; the rest is for its developers.
const NO_ADDRESS: &str = "no records found";

/// A registry request that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No connection could be made.
    #[error("cannot reach {registry}: {cause}")]
    Unreachable {
        /// The registry's name.
        registry: String,
        /// The cause, in the words of the HTTP client.
        cause: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {registry} failed: {cause}")]
    Untrusted {
        /// The registry's name.
        registry: String,
        /// The cause, in the words of the TLS library.
        cause: String,
    },
    /// 401 or 403.
    #[error("{registry} denied access to {what}: {message}")]
    Unauthorized {
        /// The registry's name.
        registry: String,
        /// The manifest or blob.
        what: String,
        message: String,
        /// Whether the request had no login.
        anonymous: bool,
    },
    /// A login is needed but withheld, because the registry does not use TLS and is not configured as insecure.
    #[error("{registry} requires a login for {what} but does not use TLS")]
    PlaintextLogin {
        /// The registry's name.
        registry: String,
        /// The manifest or blob.
        what: String,
    },
    /// The address is not public, and this caller may only reach public ones.
    #[error("{registry} was not contacted: {host} is not a public address")]
    NotPublic {
        /// The registry's name.
        registry: String,
        /// The host that was to be contacted.
        host: String,
    },
    /// 404.
    #[error("{what} not found in {registry}")]
    NotFound {
        /// The registry's name.
        registry: String,
        /// The manifest or blob.
        what: String,
    },
    /// 408, 429 or 5xx.
    #[error("{registry} is temporarily unavailable: {message}")]
    Unavailable {
        /// The registry's name.
        registry: String,
        message: String,
        /// `Retry-After` of the response.
        wait: Option<Duration>,
    },
    /// The connection failed in the middle of a response.
    #[error("connection to {registry} lost: {cause}")]
    ConnectionLost {
        /// The registry's name.
        registry: String,
        /// The cause, in the words of the HTTP client.
        cause: String,
    },
    /// The download was slower than the minimum throughput.
    #[error("{registry} is too slow sending {what}: less than {bytes} bytes in {seconds} seconds")]
    TooSlow {
        /// The registry's name.
        registry: String,
        /// The manifest or blob.
        what: String,
        /// The minimum that was not reached.
        bytes: u64,
        /// The time in which it was not reached.
        seconds: u64,
    },
    /// The response violates the protocol or a limit.
    #[error("invalid response from {registry} for {what}: {message}")]
    InvalidResponse {
        /// The registry's name.
        registry: String,
        /// The manifest or blob.
        what: String,
        /// What is invalid.
        message: String,
    },
    /// The registry and all its mirrors failed.
    #[error("{own}; its mirrors failed too: {mirrors}")]
    AllFailed {
        /// The error of the registry itself.
        own: Box<RegistryError>,
        /// The errors of the mirrors, joined.
        mirrors: String,
    },
    /// The configured CA file cannot be used.
    #[error("cannot read the certificates in {}: {cause}", file.display())]
    Certificates {
        /// The CA file.
        file: PathBuf,
        /// The error of the read.
        cause: io::Error,
    },
    /// The login for the registry could not be read.
    #[error(transparent)]
    Login(#[from] CredentialsError),
    /// The client could not be set up, or is used in a way it does not support.
    #[error("registry client: {0}")]
    Setup(String),
}

/// What a request was for, to turn its failure into a [`RegistryError`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) registry: &'a str,
    pub(crate) what: &'a str,
    pub(crate) known: LoginState,
    /// Whether the registry's own messages are hidden from the caller.
    pub(crate) hide_details: bool,
}

/// How a request was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginState {
    Anonymous,
    Authenticated,
    /// There is a login, but it is not sent without TLS.
    Withheld,
}

// === impl RegistryError ===

impl RegistryError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unauthorized { registry, anonymous: true, .. } => Some(format!(
                "private images need a login: run `docker login {registry}` or `podman login {registry}`; \
                 some registries also answer like this if the image does not exist"
            )),
            Self::Unauthorized { registry, .. } => {
                Some(format!("the login for {registry} may have expired or may lack access to this image"))
            }
            Self::PlaintextLogin { registry, .. } => Some(format!(
                "to send the login without TLS, set `insecure = true` under [registries.\"{registry}\"] in the configuration"
            )),
            Self::NotPublic { host, .. } => {
                Some(format!("an operator can allow {host} under [registries] in the configuration"))
            }
            Self::NotFound { .. } => Some("check the image's name and tag".into()),
            Self::Untrusted { registry, .. } => Some(format!(
                "under [registries.\"{registry}\"] in the configuration, set `ca = \"FILE\"` to trust its certificate, or \
                 `insecure = true` if it uses plain HTTP"
            )),
            Self::Unreachable { .. } | Self::ConnectionLost { .. } => {
                Some("check the network and the registry's name".into())
            }
            Self::Unavailable { .. } => Some("retry later; some registries allow more requests with a login".into()),
            Self::AllFailed { own, .. } => own.hint(),
            _ => None,
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unavailable { .. } | Self::ConnectionLost { .. })
    }

    /// The delay that the registry asks for before a retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        if let Self::Unavailable { wait, .. } = self { *wait } else { None }
    }

    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized { .. })
    }
}

// === impl RequestContext ===

impl RequestContext<'_> {
    /// From an error of the push client.
    pub(crate) fn failed(self, error: OciDistributionError) -> RegistryError {
        match error {
            OciDistributionError::AuthenticationFailure(message) => self.unauthorized(&printable(&message)),
            OciDistributionError::UnauthorizedError { .. } => self.unauthorized("login required"),
            OciDistributionError::RegistryError { envelope, .. } => self.envelope_error(&envelope),
            OciDistributionError::ServerError { code, message, .. } => self.status_error(code, &message, None),
            OciDistributionError::RequestError(error) => self.client_error(&error),
            OciDistributionError::IoError(error) => self.io_error(&error),
            other => self.invalid(&other.to_string()),
        }
    }

    /// From a response with an unexpected status.
    pub(crate) fn status_error(self, code: u16, body: &str, wait: Option<Duration>) -> RegistryError {
        let registry = self.registry.to_owned();
        let message = serde_json::from_str::<OciEnvelope>(body).ok().and_then(|envelope| reason(&envelope));
        let message = message.unwrap_or_else(|| printable(body));
        let message = if message.is_empty() || self.hide_details { format!("status {code}") } else { message };
        match code {
            401 | 403 => self.unauthorized(&message),
            404 => RegistryError::NotFound { registry, what: self.what.to_owned() },
            408 | 429 | 500..=599 => {
                RegistryError::Unavailable { registry, message: format!("{message} ({code})"), wait }
            }
            _ => self.invalid(&format!("status {code}: {message}")),
        }
    }

    /// From a request that was not sent, or whose response cannot be read.
    pub(crate) fn http_error(self, failure: HttpError) -> RegistryError {
        match failure {
            HttpError::NotPublic(NotPublicAddress(host)) => {
                RegistryError::NotPublic { registry: self.registry.to_owned(), host }
            }
            HttpError::Client(error) => self.client_error(&error),
            HttpError::InvalidRedirect(message) => self.invalid(message),
            HttpError::TooLarge(longest) => self.invalid(&format!("more than {longest} bytes")),
            HttpError::Timeout => {
                RegistryError::ConnectionLost { registry: self.registry.to_owned(), cause: "timed out".into() }
            }
        }
    }

    /// From a download below the minimum throughput.
    pub(crate) fn too_slow(self, BelowMinThroughput(minimum): BelowMinThroughput) -> RegistryError {
        let (registry, what) = (self.registry.to_owned(), self.what.to_owned());
        RegistryError::TooSlow { registry, what, bytes: minimum.bytes, seconds: minimum.within.as_secs() }
    }

    /// From an error of the HTTP client.
    pub(crate) fn client_error(self, error: &reqwest::Error) -> RegistryError {
        let registry = self.registry.to_owned();
        let cause = root_cause(error);
        if let Some(NotPublicAddress(host)) = causes(error).find_map(|cause| cause.downcast_ref()) {
            RegistryError::NotPublic { registry, host: host.clone() }
        } else if let Some(code) = error.status() {
            self.status_error(code.as_u16(), "", None)
        } else if tls(error).is_some() {
            RegistryError::Untrusted { registry, cause }
        } else if error.is_connect() {
            let cause = if cause.starts_with(NO_ADDRESS) { "no such host".into() } else { cause };
            RegistryError::Unreachable { registry, cause }
        } else if error.is_redirect() || error.is_builder() {
            self.invalid(&cause)
        } else if error.is_timeout() {
            RegistryError::ConnectionLost { registry, cause: "timed out".into() }
        } else {
            RegistryError::ConnectionLost { registry, cause }
        }
    }

    /// From a failed read of a body.
    pub(crate) fn io_error(self, error: &io::Error) -> RegistryError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>()) {
            Some(error) => self.client_error(error),
            None => RegistryError::ConnectionLost { registry: self.registry.to_owned(), cause: error.to_string() },
        }
    }

    /// From a body that is shorter than announced.
    pub(crate) fn truncated(self, at: u64, size: u64) -> RegistryError {
        let cause = format!("ended after {at} of {size} bytes");
        RegistryError::ConnectionLost { registry: self.registry.to_owned(), cause }
    }

    pub(crate) fn invalid(self, message: &str) -> RegistryError {
        RegistryError::InvalidResponse {
            registry: self.registry.to_owned(),
            what: self.what.to_owned(),
            message: message.to_owned(),
        }
    }

    fn unauthorized(self, message: &str) -> RegistryError {
        let message = if message.is_empty() { "login required" } else { message }.to_owned();
        let (registry, what) = (self.registry.to_owned(), self.what.to_owned());
        match self.known {
            LoginState::Withheld => RegistryError::PlaintextLogin { registry, what },
            known => RegistryError::Unauthorized { registry, what, message, anonymous: known == LoginState::Anonymous },
        }
    }

    fn envelope_error(self, envelope: &OciEnvelope) -> RegistryError {
        let registry = self.registry.to_owned();
        let message = reason(envelope).unwrap_or_default();
        match envelope.errors.first().map(|error| &error.code) {
            Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => self.unauthorized(&message),
            Some(
                OciErrorCode::BlobUnknown
                | OciErrorCode::ManifestUnknown
                | OciErrorCode::NameUnknown
                | OciErrorCode::NotFound,
            ) => RegistryError::NotFound { registry, what: self.what.to_owned() },
            Some(OciErrorCode::Toomanyrequests) => RegistryError::Unavailable { registry, message, wait: None },
            _ => self.invalid(&message),
        }
    }
}

/// The first message in an OCI error response.
fn reason(envelope: &OciEnvelope) -> Option<String> {
    envelope.errors.first().map(|error| printable(&error.message)).filter(|text| !text.is_empty())
}

/// The first line of an untrusted text, cut short and without control characters.
fn printable(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// The TLS error in a chain of causes.
pub(crate) fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        let mut inner = cause;
        // `io::Error` does not report the error inside it as its source.
        while let Some(held) = inner.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            inner = held;
        }
        inner.downcast_ref()
    })
}

/// The message of the last cause in the chain; those before it add nothing.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests;
