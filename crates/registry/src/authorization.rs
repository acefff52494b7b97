//! `Authorization` headers: Basic, or a Bearer token from a token endpoint.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, Url};
use serde::Deserialize;

use crate::credentials::RegistryLogin;
use crate::http::HttpRequest;

/// The lifetime of a token that states none, and the minimum.
const MIN_TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// A token is renewed this long before it expires.
const RENEW_EARLY: Duration = Duration::from_secs(5);
/// Our `client_id` at token endpoints.
const CLIENT_ID: &str = "carrel";

/// A header value with its expiry.
#[derive(Clone, Debug)]
pub(crate) struct Authorization {
    header: HeaderValue,
    kind: AuthorizationKind,
}

#[derive(Clone, Debug)]
enum AuthorizationKind {
    Password,
    Token { until: Instant },
}

/// What `WWW-Authenticate` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthChallenge {
    Basic,
    /// A token from the endpoint `realm`.
    Bearer {
        realm: Url,
        service: Option<String>,
    },
}

/// The response of a token endpoint.
#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

// === impl Authorization ===

impl Authorization {
    pub(crate) fn password(user: &str, password: &str) -> Option<Self> {
        let header = secret(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))?;
        Some(Self { header, kind: AuthorizationKind::Password })
    }

    /// Parses the response of a token endpoint; `None` if it has no usable token.
    pub(crate) fn from_token_response(answer: &[u8]) -> Option<Self> {
        let response: TokenResponse = serde_json::from_slice(answer).ok()?;
        let token = response.token.or(response.access_token).filter(|token| !token.is_empty())?;
        // A longer lifetime could overflow, and no operation takes longer.
        let seconds = response.expires_in.unwrap_or_default().min(24 * 3600);
        let until = Instant::now() + Duration::from_secs(seconds).max(MIN_TOKEN_LIFETIME) - RENEW_EARLY;
        Some(Self { header: secret(&format!("Bearer {token}"))?, kind: AuthorizationKind::Token { until } })
    }

    pub(crate) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// The Bearer token.
    pub(crate) fn token(&self) -> Option<&str> {
        self.header.to_str().ok()?.strip_prefix("Bearer ")
    }

    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.kind, AuthorizationKind::Token { until } if until <= Instant::now())
    }
}

/// A header value that is not logged.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

// === impl AuthChallenge ===

impl AuthChallenge {
    /// Parses the challenges of a response. Bearer is preferred: fewer hosts see the password then.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<_> = texts.flat_map(http_auth::ChallengeParser::new).filter_map(Result::ok).collect();
        let token = challenges.iter().filter(|challenge| challenge.scheme.eq_ignore_ascii_case("Bearer")).find_map(
            |challenge| {
                let parameter = |name: &str| {
                    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_unescaped())
                };
                let realm = Url::parse(&parameter("realm")?).ok()?;
                matches!(realm.scheme(), "http" | "https")
                    .then(|| Self::Bearer { realm, service: parameter("service") })
            },
        );
        let password =
            || challenges.iter().any(|challenge| challenge.scheme.eq_ignore_ascii_case("Basic")).then_some(Self::Basic);
        token.or_else(password)
    }
}

/// The request for a token: with Basic authorization, or with an identity token as OAuth2 refresh token.
pub(crate) fn token_request(realm: &Url, service: Option<&str>, scope: &str, login: &RegistryLogin) -> HttpRequest {
    let service = service.map(|service| ("service", service));
    let parameters = [("scope", scope)].into_iter().chain(service);
    let mut request = HttpRequest::get(realm.clone());
    if let Some(identity) = login.identity() {
        let exchanged = [("grant_type", "refresh_token"), ("refresh_token", identity), ("client_id", CLIENT_ID)];
        let mut form = realm.clone();
        form.set_query(None);
        form.query_pairs_mut().extend_pairs(exchanged.into_iter().chain(parameters));
        request.method = Method::POST;
        request.body = form.query().map(str::to_owned);
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers.insert(reqwest::header::CONTENT_TYPE, kind);
    } else {
        request.url.query_pairs_mut().extend_pairs(parameters);
        let pass = login.password().and_then(|(user, password)| Authorization::password(user, password));
        request.authorization = pass.map(|pass| pass.header);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(texts: &[&'static str]) -> Option<AuthChallenge> {
        let headers = texts.iter().map(|text| (WWW_AUTHENTICATE, HeaderValue::from_static(text)));
        AuthChallenge::of(&headers.fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        }))
    }

    fn token(realm: &str, service: Option<&str>) -> Option<AuthChallenge> {
        Some(AuthChallenge::Bearer { realm: realm.parse().unwrap(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenges_are_parsed_from_one_header_or_several() {
        assert_eq!(challenge(&[]), None);
        assert_eq!(challenge(&["Basic realm=\"x\""]), Some(AuthChallenge::Basic));
        let realm = "https://a.example/token";
        let parameters = "bearer Realm=\"https://a.example/token\",service=\"a b\",scope=\"repository:x:pull\"";
        assert_eq!(challenge(&[parameters]), token(realm, Some("a b")));
        assert_eq!(challenge(&["Basic realm=\"x\", Bearer realm=\"https://a.example/token\""]), token(realm, None));
        assert_eq!(challenge(&["Basic realm=\"x\"", "Bearer realm=\"https://a.example/token\""]), token(realm, None));
        for nonsense in
            ["Bearer", "Bearer realm=\"/token\"", "Bearer realm=\"file:///etc/passwd\"", "Negotiate", "\"\""]
        {
            assert_eq!(challenge(&[nonsense]), None, "{nonsense}");
        }
    }

    #[test]
    fn a_usable_token_is_kept_until_it_expires() {
        let response = |text: &str| Authorization::from_token_response(text.as_bytes());
        for text in [r#"{"token":"a"}"#, r#"{"access_token":"a","expires_in":3600}"#, r#"{"token":"a","expires_in":1}"#]
        {
            let pass = response(text).unwrap();
            assert_eq!((pass.token(), pass.header().to_str().unwrap()), (Some("a"), "Bearer a"));
            assert!(!pass.is_expired() && !format!("{pass:?}").contains("Bearer"), "{pass:?}");
        }
        for text in ["", "{}", r#"{"token":""}"#, r#"{"token":"two\nlines"}"#, "[]"] {
            assert!(response(text).is_none(), "{text}");
        }
        assert_eq!(Authorization::password("open", "sesame").unwrap().header(), "Basic b3BlbjpzZXNhbWU=");
    }
}
