//! Images from registries and to them, over HTTP.
//!
//! A [`Registry`] is where an image comes from ([`carrel_layers::Source`]) or goes to ([`carrel_layers::Target`]). What it
//! gives is checked by the store: here only the way is known, with its logins, mirrors, breaks and second tries.

mod credentials;
mod download;
mod endpoint;
mod error;
mod http;
mod line;
mod name;
mod pace;
mod pass;
mod patience;
mod reach;
mod registry;
mod runtime;
mod settings;

pub use self::credentials::{Credentials, CredentialsError};
pub use self::error::RegistryError;
pub use self::name::{BadName, Name};
pub use self::registry::Registry;
pub use self::settings::{BadMirror, Mirror, RegistrySettings, Settings};
