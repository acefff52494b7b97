//! Authentication with the server's token, and checks for a server without one.

use std::{fmt, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use subtle::ConstantTimeEq;

use super::{
    AppState,
    problem::{ApiProblem, ProblemCode},
};

/// The server's token, which redacts itself.
#[derive(Clone)]
pub struct ServerToken(String);

// === impl ServerToken ===

impl ServerToken {
    /// `None` if a header cannot carry it.
    pub fn new(token: impl Into<String>) -> Option<Self> {
        let token = token.into();
        let fine = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        fine.then_some(Self(token))
    }

    fn matches(&self, other: &[u8]) -> bool {
        // The time depends on the length only.
        self.0.as_bytes().ct_eq(other).into()
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some((scheme, value)) = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        let value = value.trim();
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" | "token" => self.matches(value.as_bytes()),
            // Any user name, with the token as password.
            "basic" => BASE64_STANDARD.decode(value).is_ok_and(|pair| {
                pair.iter()
                    .position(|byte| *byte == b':')
                    .and_then(|colon| pair.get(colon + 1..))
                    .is_some_and(|password| self.matches(password))
            }),
            _ => false,
        }
    }
}

impl fmt::Debug for ServerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(****)")
    }
}

/// Why a request to a server without a token is rejected.
#[derive(Debug, PartialEq, Eq)]
enum BrowserRejection {
    /// Its host is not allowed.
    Host(String),
    /// It comes from a browser page of another origin.
    Origin,
}

/// Rejects requests of foreign browser pages. Without a token nothing else would: a browser sends any page's request to
/// a loopback address.
fn check_host_and_origin(app: &AppState, request: &Request) -> Result<(), BrowserRejection> {
    let headers = request.headers();
    let text = |value: &HeaderValue| value.to_str().map_or_else(|_| String::new(), str::to_owned);
    let mut hosts = headers.get_all(header::HOST).iter().map(text);
    let host = hosts.next().unwrap_or_default();
    if let Some(allowed) = &app.hosts {
        // With two hosts, the one that is checked and the one that is used might differ.
        let others = hosts.chain(request.uri().authority().map(|authority| authority.as_str().to_owned()));
        if let Some(wrong) = std::iter::once(host.clone()).chain(others).find(|name| !allowed.allows(name)) {
            return Err(BrowserRejection::Host(wrong));
        }
    }
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    let mut origins = headers.get_all(header::ORIGIN).iter().map(text);
    if origins.all(|origin| is_own(&origin) || app.cors.allows(&origin)) {
        Ok(())
    } else {
        Err(BrowserRejection::Origin)
    }
}

/// Rejects a request without the token or, if the server has none, one that may come from a browser page.
pub(super) async fn check(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    match &app.token {
        None => match check_host_and_origin(&app, &request) {
            Ok(()) => next.run(request).await,
            Err(rejection) => ApiProblem::new(ProblemCode::PermissionDenied, rejection.to_string()).into_response(),
        },
        Some(token) if !token.admits(request.headers()) => ApiProblem::new(ProblemCode::TokenInvalid, "token invalid")
            .with("message", "missing or invalid token")
            .into_response(),
        _ => next.run(request).await,
    }
}

// === impl BrowserRejection ===

impl fmt::Display for BrowserRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) if name.is_empty() => f.write_str(
                "permission denied: without a token, a request has to name its host, and that has to be a loopback name",
            ),
            Self::Host(name) => write!(
                f,
                "permission denied: without a token, the host has to be a loopback name such as localhost, and is {name:?}; \
                 start the server with a token, or with --allow-host"
            ),
            Self::Origin => f.write_str(
                "permission denied: without a token, pages of a browser are let in only by --cors-allow-origin",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(value: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        ServerToken::new("s3cret").unwrap().admits(&headers)
    }

    //= agents.authentication.authorization-bearer-token
    #[test]
    fn the_token_is_accepted_as_bearer_token_or_password() {
        for good in [
            "Bearer s3cret",
            "Token s3cret",
            "bearer s3cret",
            "TOKEN  s3cret",
            "Basic OnMzY3JldA==",
            "basic YTpzM2NyZXQ=",
        ] {
            assert!(admitted(good), "{good}");
        }
        for bad in [
            "s3cret",
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3crets",
            "Basic s3cret",
            "Basic czNjcmV0",
            "Digest s3cret",
        ] {
            assert!(!admitted(bad), "{bad}");
        }
    }

    #[test]
    fn an_invalid_token_is_rejected_and_a_token_redacts_itself() {
        assert!(
            ServerToken::new("").is_none() && ServerToken::new("a b").is_none() && ServerToken::new("a\n").is_none()
        );
        assert!(!format!("{:?}", ServerToken::new("s3cret")).contains("s3cret"));
    }
}
