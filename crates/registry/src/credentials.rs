//! Who we are to a registry: from the files that other clients of registries keep, and from their helpers.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential};

use crate::Name;

/// What helpers know the hub by, and what its own client writes down.
const HUB: &str = "https://index.docker.io/v1/";

/// The files in which logins are looked for, in this order. The first that has one for a registry decides.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    files: Vec<PathBuf>,
}

/// How one logs in.
#[derive(Clone, Debug, Default)]
pub(crate) enum Login {
    #[default]
    Anonymous,
    Password(String, Secret),
    /// What an earlier login left: exchanged for a token where those are given.
    Identity(Secret),
}

/// A text that nobody gets to see.
#[derive(Clone)]
pub(crate) struct Secret(String);

/// Why a login could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file is there, and cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is not a file of logins: {cause}", file.display())]
    Malformed {
        /// Which.
        file: PathBuf,
        /// Why.
        cause: String,
    },
    /// A helper that the file names gave none.
    #[error("the helper that {} names for {registry} gave no login: {cause}", file.display())]
    Helper {
        /// Which.
        file: PathBuf,
        /// For whom.
        registry: String,
        /// Why.
        cause: String,
    },
}

// === impl Credentials ===

impl Credentials {
    /// The usual files of whoever runs this: `$REGISTRY_AUTH_FILE`, or those of podman and of Docker.
    pub fn of_user() -> Self {
        let directory =
            |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(file) = directory("REGISTRY_AUTH_FILE") {
            return Self { files: vec![file] };
        }
        let home = directory("HOME");
        let config = directory("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let podman =
            [directory("XDG_RUNTIME_DIR"), config].into_iter().flatten().map(|at| at.join("containers/auth.json"));
        let docker = directory("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
        Self { files: podman.chain(docker.map(|at| at.join("config.json"))).collect() }
    }

    /// These files.
    pub fn of_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect() }
    }

    /// None: whoever asks is nobody to any registry.
    pub fn none() -> Self {
        Self::default()
    }

    /// How to log in for an image.
    pub(crate) fn login(&self, name: &Name) -> Result<Login, CredentialsError> {
        for file in &self.files {
            let text = match fs::read(file) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(CredentialsError::Unreadable { file: file.clone(), cause }),
            };
            if let Some(login) = login(file, &text, name)? {
                return Ok(login);
            }
        }
        Ok(Login::Anonymous)
    }
}

fn login(file: &Path, text: &[u8], name: &Name) -> Result<Option<Login>, CredentialsError> {
    let malformed = |cause: String| CredentialsError::Malformed { file: file.into(), cause };
    let content: serde_json::Value = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
    for server in servers(&content, name) {
        match docker_credential::get_credential_from_reader(text, &server) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                return Ok(Some(Login::Password(user, Secret(password))));
            }
            Ok(DockerCredential::IdentityToken(token)) => return Ok(Some(Login::Identity(Secret(token)))),
            Err(CredentialRetrievalError::NoCredentialConfigured) => {}
            // The words by which helpers say that they have none; there is no number for it.
            Err(CredentialRetrievalError::HelperFailure { stdout, .. }) if stdout.contains("credentials not found") => {
            }
            Err(CredentialRetrievalError::HelperFailure { helper, stderr, .. }) => {
                let cause = format!("{helper} failed: {}", stderr.lines().next().unwrap_or_default());
                return Err(CredentialsError::Helper { file: file.into(), registry: server, cause });
            }
            Err(
                error @ (CredentialRetrievalError::HelperCommunicationError
                | CredentialRetrievalError::MalformedHelperResponse),
            ) => {
                return Err(CredentialsError::Helper { file: file.into(), registry: server, cause: error.to_string() });
            }
            Err(error) => return Err(malformed(error.to_string())),
        }
    }
    Ok(None)
}

/// Under what a login for an image may be found: the longest part of its name that the file has, then its registry.
fn servers(content: &serde_json::Value, name: &Name) -> Vec<String> {
    let listed = |key: &str| {
        ["auths", "credHelpers"].iter().any(|table| content.get(table).is_some_and(|table| table.get(key).is_some()))
    };
    let mut servers = Vec::new();
    let mut part = format!("{}/{}", name.registry(), name.repository());
    while let Some((shorter, _)) = part.rsplit_once('/') {
        if listed(&part) {
            servers.push(part.clone());
        }
        part = shorter.to_owned();
    }
    if name.registry() == "docker.io" {
        servers.push(HUB.to_owned());
    }
    if name.registry() != "docker.io" || listed("docker.io") {
        servers.push(name.registry().to_owned());
    }
    servers
}

// === impl Login ===

impl Login {
    pub(crate) fn password(&self) -> Option<(&str, &str)> {
        if let Self::Password(user, Secret(password)) = self { Some((user, password)) } else { None }
    }

    pub(crate) fn identity(&self) -> Option<&str> {
        if let Self::Identity(Secret(token)) = self { Some(token) } else { None }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        matches!(self, Self::Anonymous)
    }
}

// === impl Secret ===

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

#[cfg(test)]
mod tests;
