//! Which pages of browsers may use the server: none, unless flags say so.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, Method, Uri},
};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// What the flags say. Without any of them there are no headers for browsers at all.
#[derive(Clone, Debug, Default)]
pub struct Cors(Option<CorsLayer>);

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
            return Ok(Self(None));
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
        let allow_methods = match (parsed.is_empty(), credentials) {
            (false, _) => AllowMethods::list(parsed),
            // A star means nothing to a browser that sends credentials.
            (true, true) => AllowMethods::mirror_request(),
            (true, false) => AllowMethods::any(),
        };
        let parsed: Vec<HeaderName> = parse(headers, CorsError::Header)?;
        let allow_headers = match (parsed.is_empty(), credentials) {
            (false, _) => AllowHeaders::list(parsed),
            (true, true) => AllowHeaders::mirror_request(),
            (true, false) => AllowHeaders::any(),
        };
        let layer = CorsLayer::new()
            .allow_origin(allow_origin)
            .allow_methods(allow_methods)
            .allow_headers(allow_headers)
            .allow_credentials(credentials);
        Ok(Self(Some(layer)))
    }

    pub(super) fn apply(&self, router: Router) -> Router {
        match &self.0 {
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
