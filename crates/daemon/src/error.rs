//! Why a daemon does not serve, with what to do about it.

use std::io;
use std::path::PathBuf;

use carrel_control::StartError;
use carrel_shim_client::ProgramsError;

use crate::address::Address;
use crate::config::ConfigError;
use crate::home::HomeError;
use crate::key::KeyError;
use crate::lock::LockError;
use crate::socket::SocketError;
use crate::store::OpenError;

/// Why a daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What the operator says is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Only root can make sandboxes.
    #[error("only root can serve sandboxes")]
    NotRoot,
    /// The home will not do.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another daemon has the home.
    #[error("another daemon serves {}: {source}", home.display())]
    Taken {
        /// Which home.
        home: PathBuf,
        /// Who has it.
        source: LockError,
    },
    /// A helper is missing.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The place for the output of execs is none.
    #[error(transparent)]
    Template(#[from] carrel_local::LogTemplateError),
    /// Sandboxes cannot be made here.
    #[error(transparent)]
    Local(#[from] carrel_local::LocalError),
    /// What was going on cannot be taken up again.
    #[error(transparent)]
    Control(#[from] StartError),
    /// A socket cannot be listened at.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A port cannot be listened at.
    #[error("{address}: {source}")]
    Port {
        /// Which.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// A port would be open to anybody.
    #[error("{0} would be open to anybody")]
    Unguarded(Address),
    /// No key can be made for this life.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The gRPC server failed.
    #[error(transparent)]
    Api(#[from] carrel_api::ApiError),
    /// The system refused what every daemon needs.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

// === impl ServeError ===

impl ServeError {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(_) | Self::Template(_) => "invalid_config",
            Self::NotRoot => "not_root",
            Self::Home(HomeError::Copy { .. }) => "home_copied",
            Self::Home(_) => "home_unavailable",
            Self::Taken { .. } => "home_taken",
            Self::Programs(_) => "helper_missing",
            Self::Store(OpenError::Lost { .. }) => "store_lost",
            Self::Store(OpenError::Home(_)) => "home_unavailable",
            Self::Store(OpenError::Store(_)) => "store_unavailable",
            Self::Local(_) => "provider_unavailable",
            Self::Control(_) => "recovery_failed",
            Self::Socket(_) | Self::Port { .. } => "address_unavailable",
            Self::Unguarded(_) => "address_unguarded",
            Self::Key(_) => "key_unavailable",
            Self::Api(_) => "serving_failed",
            Self::System { .. } => "system_failed",
        }
    }

    /// The key of the configuration that it is about, if it is about one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Config(error) => error.key(),
            Self::Template(_) => Some("artifacts.exec_output_template"),
            _ => None,
        }
    }

    /// What to do about it, where there is something.
    pub fn hint(&self) -> Option<String> {
        let text = |text: &str| Some(text.to_owned());
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::NotRoot => text("sudo carrel serve"),
            Self::Home(HomeError::Copy { path, .. }) => {
                Some(format!("to make it a home of its own: carrel store claim --home {}", path.display()))
            }
            Self::Home(_) => text("--home or CARREL_HOME names a directory of your own"),
            Self::Taken { source: LockError::Held { pid: Some(pid), .. }, .. } => {
                Some(format!("it serves already; `kill {pid}` ends it, and leaves its sandboxes running"))
            }
            Self::Taken { .. } => text("--home or CARREL_HOME names another"),
            Self::Programs(_) => text("keep it beside carrel, or set CARREL_LIBEXEC to where it is"),
            Self::Store(OpenError::Lost { .. }) => text(
                "restore a backup with `carrel store restore FILE`; or start once with `carrel serve --accept-data-loss`: the \
                 disks are kept, and `carrel store orphans` lists them",
            ),
            Self::Store(OpenError::Home(_)) => text("--home or CARREL_HOME names a directory of your own"),
            Self::Store(OpenError::Store(error)) => {
                text(error.hint().unwrap_or("`carrel store check` says what is wrong with it"))
            }
            Self::Control(_) => text("`carrel store check` says what is wrong with it"),
            Self::Local(_) => text("carrel doctor"),
            Self::Socket(SocketError::Directory(_)) => {
                text("set XDG_RUNTIME_DIR to a directory of your own, or give --grpc unix:PATH")
            }
            Self::Socket(_) => text("--grpc unix:PATH listens elsewhere"),
            Self::Port { .. } => text("--grpc tcp:ADDRESS:PORT listens elsewhere"),
            Self::Unguarded(_) => {
                text("give it an `api_key_file` or a `client_ca` in the configuration, or --dev for a key of this life")
            }
            Self::Template(_) | Self::Key(_) | Self::Api(_) | Self::System { .. } => None,
        }
    }

    /// What a program exits with because of it.
    pub fn exit(&self) -> u8 {
        if matches!(self, Self::Config(_) | Self::Template(_)) { 2 } else { 1 }
    }
}
