//! Which pages of browsers may use the server: none, unless flags say so.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, Method, Uri},
};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// What the flags say. Without any of them there are no headers for browsers at all.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    layer: Option<CorsLayer>,
    /// Whose pages may come; a star is everybody's.
    origins: Vec<String>,
}

/// Why flags make no sense.
#[derive(Debug, thiserror::Error)]
pub enum CorsError {
    /// An origin that no browser has.
    #[error("{0} is no origin")]
    Origin(String),
    /// No method.
    #[error("{0} is no method")]
    Method(String),
    /// No header's name.
    #[error("{0} is no header")]
    Header(String),
    /// Browsers refuse the two together.
    #[error("credentials are allowed only to origins that are named, not to *")]
    CredentialsToAll,
}

// === impl Cors ===

impl Cors {
    /// From the flags. Any of them without an origin allows every origin.
    pub fn new(
        origins: &[String],
        methods: &[String],
        headers: &[String],
        credentials: bool,
    ) -> Result<Self, CorsError> {
        if origins.is_empty() && methods.is_empty() && headers.is_empty() && !credentials {
            return Ok(Self::default());
        }
        let any = origins.is_empty() || origins.iter().any(|origin| origin == "*");
        if any && credentials {
            return Err(CorsError::CredentialsToAll);
        }
        if let Some(wrong) = origins.iter().find(|origin| !is_origin(origin)) {
            return Err(CorsError::Origin(wrong.clone()));
        }
        let parsed: Vec<HeaderValue> = parse(origins, CorsError::Origin)?;
        let allow_origin = if any { AllowOrigin::any() } else { AllowOrigin::list(parsed) };
        let parsed: Vec<Method> = parse(methods, CorsError::Method)?;
        // A star would mean nothing to a browser that sends credentials, and never covers the token's header.
        let allow_methods = if parsed.is_empty() { AllowMethods::mirror_request() } else { AllowMethods::list(parsed) };
        let parsed: Vec<HeaderName> = parse(headers, CorsError::Header)?;
        let allow_headers = if parsed.is_empty() { AllowHeaders::mirror_request() } else { AllowHeaders::list(parsed) };
        let layer = CorsLayer::new()
            .allow_origin(allow_origin)
            .allow_methods(allow_methods)
            .allow_headers(allow_headers)
            .allow_credentials(credentials);
        let origins = if any { vec!["*".to_owned()] } else { origins.to_vec() };
        Ok(Self { layer: Some(layer), origins })
    }

    /// Whether pages of this origin may come.
    pub(super) fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    pub(super) fn apply(&self, router: Router) -> Router {
        match &self.layer {
            Some(layer) => router.layer(layer.clone()),
            None => router,
        }
    }
}

/// Whether a browser could send it: a scheme, a host and perhaps a port, and nothing behind them.
fn is_origin(word: &str) -> bool {
    let bare = |uri: Uri| uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/";
    matches!(word, "*" | "null") || (!word.ends_with('/') && word.parse().is_ok_and(bare))
}

fn parse<T: std::str::FromStr>(words: &[String], wrong: fn(String) -> CorsError) -> Result<Vec<T>, CorsError> {
    words.iter().filter(|word| *word != "*").map(|word| word.parse().map_err(|_| wrong(word.clone()))).collect()
}
