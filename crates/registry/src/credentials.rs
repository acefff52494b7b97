//! Registry logins, read from the auth files of Docker and podman and from their credential helpers.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential};

use crate::ImageName;

/// The key of Docker Hub in auth files and credential helpers.
const HUB: &str = "https://index.docker.io/v1/";

/// Auth files, in search order. The first file with a login for a registry wins.
#[derive(Clone, Debug, Default)]
pub struct RegistryCredentials {
    files: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum RegistryLogin {
    #[default]
    Anonymous,
    Password(String, Secret),
    /// An identity token (OAuth2 refresh token), exchanged for an access token at the token endpoint.
    Identity(Secret),
}

/// A string that its `Debug` output does not show.
#[derive(Clone)]
pub(crate) struct Secret(String);

/// A login that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The auth file exists but cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Unreadable {
        /// The auth file.
        file: PathBuf,
        /// The error of the read.
        cause: io::Error,
    },
    /// The auth file is not valid.
    #[error("{} is not a valid auth file: {cause}", file.display())]
    Malformed {
        /// The auth file.
        file: PathBuf,
        /// The parser's message.
        cause: String,
    },
    /// A credential helper failed.
    #[error("the credential helper that {} names for {registry} failed: {cause}", file.display())]
    Helper {
        /// The auth file that names the helper.
        file: PathBuf,
        /// The key that the helper was asked for.
        registry: String,
        /// The helper's own message.
        cause: String,
    },
}

// === impl RegistryCredentials ===

impl RegistryCredentials {
    /// The default auth files of the current user: `$REGISTRY_AUTH_FILE`, or those of podman and Docker.
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

    /// Searches only these auth files.
    pub fn of_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect() }
    }

    /// Always anonymous.
    pub fn none() -> Self {
        Self::default()
    }

    /// The login for an image; anonymous if no file has one.
    pub(crate) fn login(&self, name: &ImageName) -> Result<RegistryLogin, CredentialsError> {
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
        Ok(RegistryLogin::Anonymous)
    }
}

fn login(file: &Path, text: &[u8], name: &ImageName) -> Result<Option<RegistryLogin>, CredentialsError> {
    let malformed = |cause: String| CredentialsError::Malformed { file: file.into(), cause };
    let content: serde_json::Value = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
    for server in servers(&content, name) {
        match docker_credential::get_credential_from_reader(text, &server) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                return Ok(Some(RegistryLogin::Password(user, Secret(password))));
            }
            Ok(DockerCredential::IdentityToken(token)) => return Ok(Some(RegistryLogin::Identity(Secret(token)))),
            Err(CredentialRetrievalError::NoCredentialConfigured) => {}
            // Helpers report a missing login only by this text; there is no exit status for it.
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

/// Keys to search for: the longest matching prefix of the name first, then the registry.
fn servers(content: &serde_json::Value, name: &ImageName) -> Vec<String> {
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

// === impl RegistryLogin ===

impl RegistryLogin {
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
