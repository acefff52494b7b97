//! Where clients connect: what was planned, and what is open.

use std::fmt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use carrel_api::{ApiKey, Listener, ListenerCredentials, Tls, TlsPart};
use tokio::net::{TcpListener, UnixListener};

use crate::address::Address;
use crate::config::{Config, ConfigError, FileError, Listen};
use crate::error::ServeError;
use crate::home::socket_file;
use crate::key::{self, DevKey};
use crate::ready::Ready;
use crate::serve::Options;
use crate::socket::{self, Socket, SocketError};

/// Every place where clients are to connect, with what guards it.
#[derive(Debug)]
pub(crate) struct Plan {
    places: Vec<Place>,
    /// Whether nobody asked for the socket that is the first of them, so that another daemon may have it.
    spare: bool,
    /// The key that was made for this life.
    key: Option<DevKey>,
}

#[derive(Clone)]
struct Place {
    listen: Listen,
    credentials: ListenerCredentials,
}

/// What the files hold that a listener names.
pub(crate) type Secrets = (Option<Tls>, Option<ApiKey>);

/// What is open. Sockets are gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Doors {
    sockets: Vec<Socket>,
    addresses: Vec<Address>,
}

// === impl Plan ===

impl Plan {
    /// What the configuration and the command line say. Unless another socket is given, the documented one is open.
    pub(crate) fn new(config: &Config, options: &Options) -> Result<Self, ServeError> {
        let said = config.listen.iter().cloned().chain(options.grpc.iter().cloned().map(Listen::at));
        let mut listens: Vec<Listen> = said.collect();
        let unsaid = !listens.iter().any(|listen| matches!(listen.grpc, Address::Unix(_)));
        if unsaid {
            let documented = socket::documented(|key| std::env::var_os(key));
            listens.insert(0, Listen::at(Address::Unix(documented)));
        }
        let key = if options.dev { Some(DevKey::random()?) } else { None };
        let file = config.file.as_deref();
        let place = |listen| Place::new(listen, key.as_ref(), file);
        let places = listens.into_iter().map(place).collect::<Result<_, _>>()?;
        // A command that starts a daemon finds it by its home.
        Ok(Self { places, spare: unsaid && options.detached, key })
    }
}

impl Plan {
    /// What is said of each place.
    pub(crate) fn listens(&self) -> Vec<Listen> {
        self.places.iter().map(|place| place.listen.clone()).collect()
    }

    /// Reads the keys and certificates of its places again.
    pub(crate) fn secrets(&self, config: &Config) -> Result<Vec<Secrets>, ServeError> {
        let read = |place: &Place| place.listen.secrets(self.key.as_ref(), config.file.as_deref());
        self.places.iter().map(read).collect()
    }

    /// Replaces them, for connections from now on.
    pub(crate) fn replace(&self, secrets: Vec<Secrets>) {
        for (place, (tls, key)) in self.places.iter().zip(secrets) {
            place.credentials.replace(tls, key);
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.places.iter().try_for_each(|place| writeln!(f, "# grpc: {}", place.listen.grpc))
    }
}

// === impl Listen ===

impl Listen {
    /// Reads the files that it names.
    fn secrets(&self, of_this_life: Option<&DevKey>, config: Option<&Path>) -> Result<Secrets, ServeError> {
        if let Address::Unix(_) = self.grpc {
            return Ok((None, None));
        }
        let failed = |key: &'static str, source: FileError| {
            let path = config.map(Path::to_owned).unwrap_or_default();
            ServeError::Config(ConfigError::File { path, key: key.to_owned(), source: Box::new(source) })
        };
        let key = match (&self.api_key_file, of_this_life) {
            (Some(path), _) => {
                Some(key::read(path).map_err(|error| failed("listen.api_key_file", FileError::Key(error)))?)
            }
            // What was made a moment ago is a key.
            (None, Some(made)) if self.client_ca.is_none() => ApiKey::new(made.reveal()).ok(),
            (None, _) => None,
        };
        let read = |key: &'static str, file: &PathBuf| {
            std::fs::read(file).map_err(|source| failed(key, FileError::Open { file: file.clone(), source }))
        };
        let tls = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let client_ca = self.client_ca.as_ref().map(|file| read("listen.client_ca", file)).transpose()?;
                let (chain, private) = (read("listen.certificate", certificate)?, read("listen.key", key)?);
                Some(Tls::new(&chain, &private, client_ca.as_deref()).map_err(|source| {
                    let (name, file) = match source.part() {
                        TlsPart::Certificate => ("listen.certificate", certificate),
                        TlsPart::Key => ("listen.key", key),
                        TlsPart::ClientCa => ("listen.client_ca", self.client_ca.as_ref().unwrap_or(certificate)),
                    };
                    failed(name, FileError::Tls { file: file.clone(), source })
                })?)
            }
            _ => None,
        };
        Ok((tls, key))
    }
}

// === impl Place ===

impl Place {
    fn new(listen: Listen, of_this_life: Option<&DevKey>, config: Option<&Path>) -> Result<Self, ServeError> {
        let (tls, key) = listen.secrets(of_this_life, config)?;
        // A key that travels in the clear guards nothing.
        let guarded = match (&key, &tls) {
            _ if matches!(listen.grpc, Address::Unix(_)) => true,
            (_, Some(_)) if listen.client_ca.is_some() => true,
            (Some(_), tls) => tls.is_some() || listen.grpc.is_of_this_host(),
            (None, _) => false,
        };
        let credentials = ListenerCredentials::new(tls, key);
        if guarded { Ok(Self { listen, credentials }) } else { Err(ServeError::Unguarded(listen.grpc)) }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("listen", &self.listen).finish_non_exhaustive()
    }
}

// === impl Doors ===

impl Doors {
    /// Opens all, and the socket of the home, which is the last: whoever finds that finds a daemon that is ready.
    pub(crate) async fn open(plan: &Plan, home: &Path) -> Result<(Self, Vec<Listener>), ServeError> {
        let (mut doors, mut listeners) = (Self { sockets: Vec::new(), addresses: Vec::new() }, Vec::new());
        for (number, Place { listen, credentials }) in plan.places.iter().cloned().enumerate() {
            match &listen.grpc {
                Address::Unix(path) => match Socket::bind(path, listen.mode) {
                    Err(error @ (SocketError::Lock(_) | SocketError::Live(_))) if plan.spare && number == 0 => {
                        tracing::warn!(%error, "published clients are somebody else's");
                    }
                    bound => listeners.push(doors.add(path, bound?)?),
                },
                Address::Tcp(address) => {
                    let failed = |source| ServeError::Port { address: listen.grpc.clone(), source };
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    doors.addresses.push(Address::Tcp(listener.local_addr().map_err(failed)?));
                    listeners.push(Listener::Tcp { listener, credentials });
                }
            }
        }
        let own = socket_file(home);
        listeners.push(doors.add(&own, Socket::bind_at_home(&own)?)?);
        Ok((doors, listeners))
    }

    fn add(&mut self, path: &Path, (socket, listener): (Socket, StdListener)) -> Result<Listener, ServeError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        self.sockets.push(socket);
        self.addresses.push(Address::Unix(path.to_owned()));
        Ok(Listener::Unix(listener))
    }

    /// Where the daemon can be reached now.
    pub(crate) fn ready(&self, plan: &Plan) -> Ready {
        let grpc = self.addresses.iter().map(ToString::to_string).collect();
        Ready { grpc, http: None, key: plan.key.as_ref().map(|key| key.reveal().to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn options(grpc: &[&str], dev: bool) -> Options {
        Options {
            home: "/h".into(),
            config: None,
            grpc: grpc.iter().map(|text| text.parse().unwrap()).collect(),
            dev,
            check: false,
            detached: false,
            accept_data_loss: false,
        }
    }

    fn planned(grpc: &[&str], dev: bool) -> Result<Vec<String>, String> {
        let plan = Plan::new(&Config::default(), &options(grpc, dev)).map_err(|error| error.to_string())?;
        Ok(plan.places.iter().map(|place| place.listen.grpc.to_string()).collect())
    }

    #[test]
    fn unless_another_socket_is_given_the_documented_one_is_open() {
        let documented = format!("unix:{}", socket::documented(|key| std::env::var_os(key)).display());
        assert_eq!(planned(&[], false).unwrap(), std::slice::from_ref(&documented));
        assert_eq!(planned(&["unix:/x"], false).unwrap(), ["unix:/x"]);
        assert_eq!(planned(&["tcp:127.0.0.1:0"], true).unwrap(), [documented.as_str(), "tcp:127.0.0.1:0"]);
    }

    #[test]
    fn a_port_that_nothing_guards_is_refused() {
        let said = |grpc: &str| format!("{grpc} would be open to anybody");
        assert_eq!(planned(&["tcp:127.0.0.1:0"], false), Err(said("tcp:127.0.0.1:0")));
        assert_eq!(planned(&["tcp:0.0.0.0:1"], true), Err(said("tcp:0.0.0.0:1")), "not by a key that all can read");
    }

    #[test]
    fn what_is_in_effect_is_shown_without_the_keys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "0123456789abcdef-secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\napi_key_file = \"{}\"", file.display());
        let config = Config::parse(Path::new("/c"), &text).unwrap();
        let plan = Plan::new(&config, &options(&["unix:/x"], true)).unwrap();
        let shown = format!("{plan}{config}{plan:?}{config:?}");
        assert!(shown.contains("# grpc: tcp:127.0.0.1:1\n# grpc: unix:/x\n"), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains(plan.key.as_ref().unwrap().reveal()));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_key_and_ends_the_start_with_2() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("open"), "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(path("open"), std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::write(path("empty"), "").unwrap();
        std::fs::set_permissions(path("empty"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let tls = |certificate: &str, key: &str| {
            format!("certificate = {:?}\nkey = {:?}\nclient_ca = {:?}", path(certificate), path(key), path("empty"))
        };
        for (keys, key, words) in [
            (format!("api_key_file = {:?}", path("none")), "listen.api_key_file", "No such file"),
            (format!("api_key_file = {:?}", path("open")), "listen.api_key_file", "can be read by others"),
            (format!("api_key_file = {:?}", path("empty")), "listen.api_key_file", "at least 16"),
            (tls("none", "empty"), "listen.certificate", "No such file"),
            (tls("empty", "none"), "listen.key", "No such file"),
            (tls("empty", "empty"), "listen.certificate", "no certificate in it"),
        ] {
            let text = format!("[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\n{keys}");
            let config = Config { file: Some("/c".into()), ..Config::parse(Path::new("/c"), &text).unwrap() };
            let error = Plan::new(&config, &options(&[], false)).unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with(&format!("/c: {key}: {}", dir.path().display())), "{said}");
            assert!(said.contains(words) && error.hint().is_some(), "{said}");
            assert_eq!((error.exit(), error.code()), (2, "invalid_config"));
        }
    }
}
