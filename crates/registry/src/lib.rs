//! Pulls images from OCI registries and pushes to them.
//!
//! A [`Registry`] is a [`carrel_layers::ImageSource`] and a [`carrel_layers::ImageTarget`]. This crate handles logins,
//! mirrors, redirects and retries; the store verifies the content.

mod authorization;
mod config;
mod credentials;
mod download;
mod egress;
mod endpoint;
mod error;
mod http;
mod name;
mod registry;
mod runtime;
mod transport;

pub use self::config::{InvalidMirror, RegistriesConfig, RegistryConfig, RegistryMirror};
pub use self::credentials::{CredentialsError, RegistryCredentials};
pub use self::error::RegistryError;
pub use self::name::{ImageName, InvalidImageName};
pub use self::registry::Registry;
