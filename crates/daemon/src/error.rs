//! Why a daemon does not serve, and what to do about it.

use std::io;
use std::path::PathBuf;

use carrel_control::ControlStartError;
use carrel_shim_client::ProgramsError;

use crate::address::Address;
use crate::config::ConfigError;
use crate::home::HomeError;
use crate::key::KeyError;
use crate::lock::LockError;
use crate::socket::SocketError;
use crate::store::StoreOpenError;

/// Why a daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Only root can create sandboxes.
    #[error("only root can serve sandboxes")]
    NotRoot,
    /// The home is not usable.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another daemon serves the home.
    #[error("another daemon serves {}: {source}", home.display())]
    Taken {
        home: PathBuf,
        /// The holder of its lock.
        source: LockError,
    },
    /// A helper program is missing.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// The template for the output of execs is invalid.
    #[error(transparent)]
    Template(#[from] carrel_local::LogTemplateError),
    /// The provider cannot create sandboxes on this host.
    #[error(transparent)]
    Local(#[from] carrel_local::LocalError),
    /// The control plane cannot adopt the sandboxes of the previous daemon.
    #[error(transparent)]
    Control(#[from] ControlStartError),
    /// A Unix socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A TCP port cannot be opened.
    #[error("{address}: {source}")]
    Port {
        address: Address,
        /// The error of the system call.
        source: io::Error,
    },
    /// A TCP listener would have no authentication.
    #[error("{0} would accept clients without authentication")]
    Unguarded(Address),
    /// No key can be generated for this run.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The gRPC server failed.
    #[error(transparent)]
    Api(#[from] carrel_api::ApiError),
    /// A system call that every daemon needs failed.
    #[error("{what}: {source}")]
    System {
        /// The resource.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

// === impl ServeError ===

impl ServeError {
    /// A stable identifier for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(_) | Self::Template(_) => "invalid_config",
            Self::NotRoot => "not_root",
            Self::Home(HomeError::Copy { .. }) => "home_copied",
            Self::Home(_) => "home_unavailable",
            Self::Taken { .. } => "home_taken",
            Self::Programs(_) => "helper_missing",
            Self::Store(StoreOpenError::Lost { .. }) => "store_lost",
            Self::Store(StoreOpenError::Home(_)) => "home_unavailable",
            Self::Store(StoreOpenError::Store(error)) => error.code(),
            Self::Local(_) => "provider_unavailable",
            Self::Control(_) => "recovery_failed",
            Self::Socket(_) | Self::Port { .. } => "address_unavailable",
            Self::Unguarded(_) => "address_unguarded",
            Self::Key(_) => "key_unavailable",
            Self::Api(_) => "serving_failed",
            Self::System { .. } => "system_failed",
        }
    }

    /// The configuration key that caused it, if one did.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Config(error) => error.key(),
            Self::Template(_) => Some("artifacts.exec_output_template"),
            _ => None,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let text = |text: &str| Some(text.to_owned());
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::NotRoot => text("sudo carrel serve"),
            Self::Home(HomeError::Copy { path, .. }) => {
                Some(format!("to make it an independent home: carrel store claim --home {}", path.display()))
            }
            Self::Home(_) => text("choose a directory that you own with --home or CARREL_HOME"),
            Self::Taken { source: LockError::Held { pid: Some(pid), .. }, .. } => {
                Some(format!("`kill {pid}` stops that daemon and leaves its sandboxes running"))
            }
            Self::Taken { .. } => text("choose another home with --home or CARREL_HOME"),
            Self::Programs(_) => text("keep it beside carrel, or set CARREL_LIBEXEC to where it is"),
            Self::Store(StoreOpenError::Lost { .. }) => text(
                "restore a backup with `carrel store restore FILE`; or start once with `carrel serve --accept-data-loss`: the \
                 disks are kept, and `carrel store orphans` lists them",
            ),
            Self::Store(StoreOpenError::Home(_)) => text("choose a directory that you own with --home or CARREL_HOME"),
            Self::Store(StoreOpenError::Store(error)) => {
                error.hint().or_else(|| text("`carrel store check` shows what is damaged"))
            }
            Self::Control(_) => text("`carrel store check` shows what is damaged"),
            Self::Local(_) => text("carrel doctor"),
            Self::Socket(SocketError::Directory(_)) => {
                text("set XDG_RUNTIME_DIR to a directory that you own, or use --grpc unix:PATH")
            }
            Self::Socket(_) => text("--grpc unix:PATH listens elsewhere"),
            Self::Port { .. } => text("--grpc tcp:ADDRESS:PORT listens elsewhere"),
            Self::Unguarded(_) => {
                text("set `api_key_file` or `client_ca` in the configuration, or use --dev for a temporary key")
            }
            Self::Template(_) | Self::Key(_) | Self::Api(_) | Self::System { .. } => None,
        }
    }

    /// The exit code.
    pub fn exit(&self) -> u8 {
        if matches!(self, Self::Config(_) | Self::Template(_)) { 2 } else { 1 }
    }
}
