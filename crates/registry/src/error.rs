//! What goes wrong between us and a registry, and whether it may go right the next time.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use oci_client::errors::{OciDistributionError, OciEnvelope, OciErrorCode};

use crate::CredentialsError;
use crate::http::Failure;
use crate::pace::TooSlow;
use crate::reach::NotPublic;

/// How the resolver begins to say that a name has no address. The rest is for who wrote it.
const NO_ADDRESS: &str = "no records found";

/// Why a registry did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Nothing answers there.
    #[error("cannot reach {registry}: {cause}")]
    Unreachable {
        /// Which.
        registry: String,
        /// Why.
        cause: String,
    },
    /// Somebody answers, and is not who it should be, or does not speak TLS.
    #[error("{registry} is not to be trusted: {cause}")]
    Untrusted {
        /// Which.
        registry: String,
        /// Why.
        cause: String,
    },
    /// It wants to know who asks, or does not want this one.
    #[error("{registry} refuses {what}: {said}")]
    Refused {
        /// Which.
        registry: String,
        /// What was asked for.
        what: String,
        /// In its words.
        said: String,
        /// Whether there was no login for it.
        anonymous: bool,
    },
    /// It wants to know who asks, and would hear it without TLS, which nobody has allowed.
    #[error("{registry} wants a login for {what}, and speaks without TLS")]
    InClear {
        /// Which.
        registry: String,
        /// What was asked for.
        what: String,
    },
    /// It is somewhere that whoever asks may not have us ask.
    #[error("{registry} is not asked: {host} is not a public address")]
    Private {
        /// Which.
        registry: String,
        /// Who would have been asked.
        host: String,
    },
    /// It has no such thing.
    #[error("{registry} has no {what}")]
    Missing {
        /// Which.
        registry: String,
        /// What was asked for.
        what: String,
    },
    /// It cannot now.
    #[error("{registry} cannot now: {said}")]
    Busy {
        /// Which.
        registry: String,
        /// In its words.
        said: String,
        /// How long it asks to wait.
        wait: Option<Duration>,
    },
    /// The connection broke.
    #[error("the connection to {registry} broke: {cause}")]
    Broken {
        /// Which.
        registry: String,
        /// How.
        cause: String,
    },
    /// It keeps us waiting.
    #[error("{registry} is too slow with {what}: less than {bytes} bytes came in {seconds} seconds")]
    Slow {
        /// Which.
        registry: String,
        /// What was asked for.
        what: String,
        /// So much should have come.
        bytes: u64,
        /// In this time.
        seconds: u64,
    },
    /// It says what nobody can say.
    #[error("{registry} answers {what} with {said}")]
    Nonsense {
        /// Which.
        registry: String,
        /// What was asked for.
        what: String,
        /// In its words.
        said: String,
    },
    /// The registry failed, and its mirrors had failed before it.
    #[error("{own}; its mirrors had failed before: {mirrors}")]
    Everywhere {
        /// What the registry itself said.
        own: Box<RegistryError>,
        /// What the mirrors said.
        mirrors: String,
    },
    /// The certificates that the settings name.
    #[error("cannot read the certificates in {}: {cause}", file.display())]
    Certificates {
        /// Where they should be.
        file: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A login.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Something of ours.
    #[error("cannot talk to registries: {0}")]
    Setup(String),
}

/// A request: what is said of it when it fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) registry: &'a str,
    pub(crate) what: &'a str,
    pub(crate) known: Known,
    /// Whether the registry's own words are kept from who asks.
    pub(crate) quiet: bool,
}

/// Who we are to a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// There is no login for it.
    Nobody,
    Somebody,
    /// There is one, and it is not to be heard by others.
    Withheld,
}

// === impl RegistryError ===

impl RegistryError {
    /// What one can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { registry, anonymous: true, .. } => Some(format!(
                "private images need a login: write one for {registry} with `docker login`, `podman login` or `skopeo login`; \
                 a name that does not exist is refused like this by some registries"
            )),
            Self::Refused { registry, .. } => {
                Some(format!("the login for {registry} may be old, or may not see this image"))
            }
            Self::InClear { registry, .. } => Some(format!(
                "if its login may go without TLS, say so in the configuration: [registries.\"{registry}\"] insecure = true"
            )),
            Self::Private { host, .. } => {
                Some(format!("who runs this may name {host} in the configuration, in [registries]"))
            }
            Self::Missing { .. } => Some("check the name and the tag".into()),
            Self::Untrusted { registry, .. } => Some(format!(
                "in the configuration, [registries.\"{registry}\"] may name its certificates with `ca = \"FILE\"`, or say that it \
                 speaks plain HTTP with `insecure = true`"
            )),
            Self::Unreachable { .. } | Self::Broken { .. } => {
                Some("check the network and the name of the registry".into())
            }
            Self::Busy { .. } => Some("try again later; with a login some registries allow more".into()),
            Self::Everywhere { own, .. } => own.hint(),
            _ => None,
        }
    }

    /// Whether the next try may do better.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy { .. } | Self::Broken { .. })
    }

    /// How long it asks to wait before that.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if let Self::Busy { wait, .. } = self { *wait } else { None }
    }

    pub(crate) fn refuses(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

// === impl Asked ===

impl Asked<'_> {
    /// From what the client crate says.
    pub(crate) fn failed(self, error: OciDistributionError) -> RegistryError {
        match error {
            OciDistributionError::AuthenticationFailure(said) => self.refused(&words(&said)),
            OciDistributionError::UnauthorizedError { .. } => self.refused("it wants a login"),
            OciDistributionError::RegistryError { envelope, .. } => self.said(&envelope),
            OciDistributionError::ServerError { code, message, .. } => self.answered(code, &message, None),
            OciDistributionError::RequestError(error) => self.broke(&error),
            OciDistributionError::IoError(error) => self.broke_off(&error),
            other => self.nonsense(&other.to_string()),
        }
    }

    /// From an answer that is not what was asked for.
    pub(crate) fn answered(self, code: u16, body: &str, wait: Option<Duration>) -> RegistryError {
        let registry = self.registry.to_owned();
        let said = serde_json::from_str::<OciEnvelope>(body).ok().and_then(|envelope| reason(&envelope));
        let said = said.unwrap_or_else(|| words(body));
        let said = if said.is_empty() || self.quiet { format!("status {code}") } else { said };
        match code {
            401 | 403 => self.refused(&said),
            404 => RegistryError::Missing { registry, what: self.what.to_owned() },
            408 | 429 | 500..=599 => RegistryError::Busy { registry, said: format!("{said} ({code})"), wait },
            _ => self.nonsense(&format!("status {code}: {said}")),
        }
    }

    /// From a request that was not made, or got no answer that can be read.
    pub(crate) fn lost(self, failure: Failure) -> RegistryError {
        match failure {
            Failure::Private(NotPublic(host)) => RegistryError::Private { registry: self.registry.to_owned(), host },
            Failure::Broke(error) => self.broke(&error),
            Failure::Astray(said) => self.nonsense(said),
            Failure::Long(longest) => self.nonsense(&format!("more than {longest} bytes")),
            Failure::Slow => {
                RegistryError::Broken { registry: self.registry.to_owned(), cause: "it took too long".into() }
            }
        }
    }

    /// From content that comes too slowly.
    pub(crate) fn too_slow(self, TooSlow(least): TooSlow) -> RegistryError {
        let (registry, what) = (self.registry.to_owned(), self.what.to_owned());
        RegistryError::Slow { registry, what, bytes: least.bytes, seconds: least.within.as_secs() }
    }

    /// From a request that got no answer.
    pub(crate) fn broke(self, error: &reqwest::Error) -> RegistryError {
        let registry = self.registry.to_owned();
        let cause = innermost(error);
        if let Some(NotPublic(host)) = causes(error).find_map(|cause| cause.downcast_ref()) {
            RegistryError::Private { registry, host: host.clone() }
        } else if let Some(code) = error.status() {
            self.answered(code.as_u16(), "", None)
        } else if tls(error).is_some() {
            RegistryError::Untrusted { registry, cause }
        } else if error.is_connect() {
            let cause = if cause.starts_with(NO_ADDRESS) { "no host of that name is known".into() } else { cause };
            RegistryError::Unreachable { registry, cause }
        } else if error.is_redirect() || error.is_builder() {
            self.nonsense(&cause)
        } else if error.is_timeout() {
            RegistryError::Broken { registry, cause: "nothing came for too long".into() }
        } else {
            RegistryError::Broken { registry, cause }
        }
    }

    /// From an answer that ends too early.
    pub(crate) fn broke_off(self, error: &io::Error) -> RegistryError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>()) {
            Some(error) => self.broke(error),
            None => RegistryError::Broken { registry: self.registry.to_owned(), cause: error.to_string() },
        }
    }

    /// From content that is shorter than it should be.
    pub(crate) fn ended(self, at: u64, size: u64) -> RegistryError {
        let cause = format!("it ended after {at} of {size} bytes");
        RegistryError::Broken { registry: self.registry.to_owned(), cause }
    }

    pub(crate) fn nonsense(self, said: &str) -> RegistryError {
        RegistryError::Nonsense {
            registry: self.registry.to_owned(),
            what: self.what.to_owned(),
            said: said.to_owned(),
        }
    }

    fn refused(self, said: &str) -> RegistryError {
        let said = if said.is_empty() { "it wants a login" } else { said }.to_owned();
        let (registry, what) = (self.registry.to_owned(), self.what.to_owned());
        match self.known {
            Known::Withheld => RegistryError::InClear { registry, what },
            known => RegistryError::Refused { registry, what, said, anonymous: known == Known::Nobody },
        }
    }

    fn said(self, envelope: &OciEnvelope) -> RegistryError {
        let registry = self.registry.to_owned();
        let said = reason(envelope).unwrap_or_default();
        match envelope.errors.first().map(|error| &error.code) {
            Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => self.refused(&said),
            Some(
                OciErrorCode::BlobUnknown
                | OciErrorCode::ManifestUnknown
                | OciErrorCode::NameUnknown
                | OciErrorCode::NotFound,
            ) => RegistryError::Missing { registry, what: self.what.to_owned() },
            Some(OciErrorCode::Toomanyrequests) => RegistryError::Busy { registry, said, wait: None },
            _ => self.nonsense(&said),
        }
    }
}

/// What a registry says, in its own words.
fn reason(envelope: &OciEnvelope) -> Option<String> {
    envelope.errors.first().map(|error| words(&error.message)).filter(|text| !text.is_empty())
}

/// The beginning of a text that a stranger wrote: a line that cannot speak to a terminal.
fn words(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// What TLS says, if it is what failed.
pub(crate) fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        let mut inner = cause;
        // An error of input and output does not name what it holds as its cause.
        while let Some(held) = inner.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            inner = held;
        }
        inner.downcast_ref()
    })
}

/// The words of the cause of causes: what stands before it only says that something failed.
fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests;
