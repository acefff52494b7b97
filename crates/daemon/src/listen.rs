//! Listeners: those that are configured, and those that are open.

use std::fmt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use carrel_api::{ApiKey, Listener, ListenerCredentials, TlsConfig, TlsFile};
use tokio::net::{TcpListener, UnixListener};

use crate::address::Address;
use crate::config::{Config, ConfigError, ConfigFileError, ListenConfig};
use crate::error::ServeError;
use crate::home::socket_file;
use crate::key::{self, DevKey};
use crate::ready::ReadyLine;
use crate::serve::ServeOptions;
use crate::socket::{self, DaemonSocket, SocketError};

/// All listeners to open, with their credentials.
#[derive(Debug)]
pub(crate) struct ListenPlan {
    listeners: Vec<PlannedListener>,
    /// Whether the first listener is the default socket of a detached daemon, which is skipped if another daemon has
    /// it.
    may_skip_default: bool,
    /// The key that was generated for this run.
    key: Option<DevKey>,
}

#[derive(Clone)]
struct PlannedListener {
    listen: ListenConfig,
    credentials: ListenerCredentials,
}

/// The contents of the files that a listener names.
pub(crate) type ListenerSecrets = (Option<TlsConfig>, Option<ApiKey>);

/// The open listeners. Dropping it removes the sockets.
#[derive(Debug)]
pub(crate) struct OpenListeners {
    sockets: Vec<DaemonSocket>,
    addresses: Vec<Address>,
}

// === impl ListenPlan ===

impl ListenPlan {
    /// Combines the configuration and the command line. Without a Unix socket, the default one is added.
    pub(crate) fn new(config: &Config, options: &ServeOptions) -> Result<Self, ServeError> {
        let configured = config.listen.iter().cloned().chain(options.grpc.iter().cloned().map(ListenConfig::at));
        let mut listens: Vec<ListenConfig> = configured.collect();
        let no_socket_given = !listens.iter().any(|listen| matches!(listen.grpc, Address::Unix(_)));
        if no_socket_given {
            let default_socket = socket::default_socket(|key| std::env::var_os(key));
            listens.insert(0, ListenConfig::at(Address::Unix(default_socket)));
        }
        let key = if options.dev { Some(DevKey::random()?) } else { None };
        let file = config.file.as_deref();
        let listener = |listen| PlannedListener::new(listen, key.as_ref(), file);
        let listeners = listens.into_iter().map(listener).collect::<Result<_, _>>()?;
        // A command that starts a daemon connects to the socket in its home.
        Ok(Self { listeners, may_skip_default: no_socket_given && options.detached, key })
    }
}

impl ListenPlan {
    /// The configuration of each listener.
    pub(crate) fn listen_configs(&self) -> Vec<ListenConfig> {
        self.listeners.iter().map(|listener| listener.listen.clone()).collect()
    }

    /// Reads the keys and certificates of its listeners again.
    pub(crate) fn secrets(&self, config: &Config) -> Result<Vec<ListenerSecrets>, ServeError> {
        let read = |listener: &PlannedListener| listener.listen.secrets(self.key.as_ref(), config.file.as_deref());
        self.listeners.iter().map(read).collect()
    }

    /// Replaces the credentials for new connections.
    pub(crate) fn replace(&self, secrets: Vec<ListenerSecrets>) {
        for (listener, (tls, key)) in self.listeners.iter().zip(secrets) {
            listener.credentials.replace(tls, key);
        }
    }
}

impl fmt::Display for ListenPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listeners.iter().try_for_each(|listener| writeln!(f, "# grpc: {}", listener.listen.grpc))
    }
}

// === impl ListenConfig ===

impl ListenConfig {
    /// Reads the files that it names.
    fn secrets(&self, dev_key: Option<&DevKey>, config: Option<&Path>) -> Result<ListenerSecrets, ServeError> {
        if let Address::Unix(_) = self.grpc {
            return Ok((None, None));
        }
        let failed = |key: &'static str, source: ConfigFileError| {
            let path = config.map(Path::to_owned).unwrap_or_default();
            ServeError::Config(ConfigError::File { path, key: key.to_owned(), source: Box::new(source) })
        };
        let key = match (&self.api_key_file, dev_key) {
            (Some(path), _) => {
                Some(key::read(path).map_err(|error| failed("listen.api_key_file", ConfigFileError::Key(error)))?)
            }
            // A generated key is always valid.
            (None, Some(made)) if self.client_ca.is_none() => ApiKey::new(made.reveal()).ok(),
            (None, _) => None,
        };
        let read = |key: &'static str, file: &PathBuf| {
            std::fs::read(file).map_err(|source| failed(key, ConfigFileError::Open { file: file.clone(), source }))
        };
        let tls = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let client_ca = self.client_ca.as_ref().map(|file| read("listen.client_ca", file)).transpose()?;
                let (chain, private) = (read("listen.certificate", certificate)?, read("listen.key", key)?);
                Some(TlsConfig::new(&chain, &private, client_ca.as_deref()).map_err(|source| {
                    let (name, file) = match source.part() {
                        TlsFile::Certificate => ("listen.certificate", certificate),
                        TlsFile::Key => ("listen.key", key),
                        TlsFile::ClientCa => ("listen.client_ca", self.client_ca.as_ref().unwrap_or(certificate)),
                    };
                    failed(name, ConfigFileError::Tls { file: file.clone(), source })
                })?)
            }
            _ => None,
        };
        Ok((tls, key))
    }
}

// === impl PlannedListener ===

impl PlannedListener {
    fn new(listen: ListenConfig, dev_key: Option<&DevKey>, config: Option<&Path>) -> Result<Self, ServeError> {
        let (tls, key) = listen.secrets(dev_key, config)?;
        // A key without TLS is only accepted on this host.
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

impl fmt::Debug for PlannedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedListener").field("listen", &self.listen).finish_non_exhaustive()
    }
}

// === impl OpenListeners ===

impl OpenListeners {
    /// Opens all listeners, and last the socket of the home: a client that finds it finds a daemon that is ready.
    pub(crate) async fn open(plan: &ListenPlan, home: &Path) -> Result<(Self, Vec<Listener>), ServeError> {
        let (mut open_listeners, mut listeners) = (Self { sockets: Vec::new(), addresses: Vec::new() }, Vec::new());
        for (number, PlannedListener { listen, credentials }) in plan.listeners.iter().cloned().enumerate() {
            match &listen.grpc {
                Address::Unix(path) => match DaemonSocket::bind(path, listen.mode) {
                    Err(error @ (SocketError::Lock(_) | SocketError::Live(_)))
                        if plan.may_skip_default && number == 0 =>
                    {
                        tracing::warn!(%error, "another daemon has the default socket: published clients connect to that one");
                    }
                    bound => listeners.push(open_listeners.add(path, bound?)?),
                },
                Address::Tcp(address) => {
                    let failed = |source| ServeError::Port { address: listen.grpc.clone(), source };
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    open_listeners.addresses.push(Address::Tcp(listener.local_addr().map_err(failed)?));
                    listeners.push(Listener::Tcp { listener, credentials });
                }
            }
        }
        let own = socket_file(home);
        listeners.push(open_listeners.add(&own, DaemonSocket::bind_at_home(&own)?)?);
        Ok((open_listeners, listeners))
    }

    fn add(&mut self, path: &Path, (socket, listener): (DaemonSocket, StdListener)) -> Result<Listener, ServeError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        self.sockets.push(socket);
        self.addresses.push(Address::Unix(path.to_owned()));
        Ok(Listener::Unix(listener))
    }

    /// The addresses of the daemon, for the ready line.
    pub(crate) fn ready(&self, plan: &ListenPlan) -> ReadyLine {
        let grpc = self.addresses.iter().map(ToString::to_string).collect();
        ReadyLine { grpc, http: None, key: plan.key.as_ref().map(|key| key.reveal().to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn options(grpc: &[&str], dev: bool) -> ServeOptions {
        ServeOptions {
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
        let plan = ListenPlan::new(&Config::default(), &options(grpc, dev)).map_err(|error| error.to_string())?;
        Ok(plan.listeners.iter().map(|listener| listener.listen.grpc.to_string()).collect())
    }

    #[test]
    fn the_default_socket_is_added_unless_another_socket_is_given() {
        let default_socket = format!("unix:{}", socket::default_socket(|key| std::env::var_os(key)).display());
        assert_eq!(planned(&[], false).unwrap(), std::slice::from_ref(&default_socket));
        assert_eq!(planned(&["unix:/x"], false).unwrap(), ["unix:/x"]);
        assert_eq!(planned(&["tcp:127.0.0.1:0"], true).unwrap(), [default_socket.as_str(), "tcp:127.0.0.1:0"]);
    }

    #[test]
    fn a_tcp_listener_without_authentication_is_refused() {
        let message = |grpc: &str| format!("{grpc} would accept clients without authentication");
        assert_eq!(planned(&["tcp:127.0.0.1:0"], false), Err(message("tcp:127.0.0.1:0")));
        assert_eq!(
            planned(&["tcp:0.0.0.0:1"], true),
            Err(message("tcp:0.0.0.0:1")),
            "a key without TLS is not sufficient"
        );
    }

    #[test]
    fn the_effective_configuration_does_not_show_keys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "0123456789abcdef-secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\napi_key_file = \"{}\"", file.display());
        let config = Config::parse(Path::new("/c"), &text).unwrap();
        let plan = ListenPlan::new(&config, &options(&["unix:/x"], true)).unwrap();
        let shown = format!("{plan}{config}{plan:?}{config:?}");
        assert!(shown.contains("# grpc: tcp:127.0.0.1:1\n# grpc: unix:/x\n"), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains(plan.key.as_ref().unwrap().reveal()));
    }

    #[test]
    fn an_unusable_file_is_reported_with_its_key_and_exits_with_2() {
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
            (format!("api_key_file = {:?}", path("open")), "listen.api_key_file", "can be read by other users"),
            (format!("api_key_file = {:?}", path("empty")), "listen.api_key_file", "at least 16"),
            (tls("none", "empty"), "listen.certificate", "No such file"),
            (tls("empty", "none"), "listen.key", "No such file"),
            (tls("empty", "empty"), "listen.certificate", "contains no certificate"),
        ] {
            let text = format!("[[listen]]\ngrpc = \"tcp:127.0.0.1:1\"\n{keys}");
            let config = Config { file: Some("/c".into()), ..Config::parse(Path::new("/c"), &text).unwrap() };
            let error = ListenPlan::new(&config, &options(&[], false)).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(&format!("/c: {key}: {}", dir.path().display())), "{message}");
            assert!(message.contains(words) && error.hint().is_some(), "{message}");
            assert_eq!((error.exit(), error.code()), (2, "invalid_config"));
        }
    }
}
