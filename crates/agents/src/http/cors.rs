//! CORS: browser pages have no access unless flags allow it.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, Method, Uri},
};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// CORS policy of the flags. Without flags, no CORS headers are sent.
#[derive(Clone, Debug, Default)]
pub struct CorsPolicy {
    layer: Option<CorsLayer>,
    /// Allowed origins; `*` allows all.
    origins: Vec<String>,
}

/// Why the flags are invalid.
#[derive(Debug, thiserror::Error)]
pub enum CorsError {
    /// Not an origin.
    #[error("{0} is not a valid origin")]
    Origin(String),
    /// Not a method.
    #[error("{0} is not a valid method")]
    Method(String),
    /// Not a header name.
    #[error("{0} is not a valid header name")]
    Header(String),
    /// Browsers reject credentials together with `*`.
    #[error("credentials are allowed only to origins that are named, not to *")]
    CredentialsToAll,
}

// === impl CorsPolicy ===

impl CorsPolicy {
    /// Builds it from the flags. Without an origin, any of them allows every origin.
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
        // `*` has no effect with credentials, and never covers the authorization header.
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

    /// Whether pages of this origin are allowed.
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

/// Whether it is a valid origin: a scheme, a host and an optional port.
fn is_origin(word: &str) -> bool {
    let bare = |uri: Uri| uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/";
    matches!(word, "*" | "null") || (!word.ends_with('/') && word.parse().is_ok_and(bare))
}

fn parse<T: std::str::FromStr>(words: &[String], wrong: fn(String) -> CorsError) -> Result<Vec<T>, CorsError> {
    words.iter().filter(|word| *word != "*").map(|word| word.parse().map_err(|_| wrong(word.clone()))).collect()
}
