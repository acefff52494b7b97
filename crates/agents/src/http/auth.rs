//! Who may come in: whoever has the server's one token.

use std::{fmt, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::{
    App,
    problem::{Code, Problem},
};

/// The server's token. It never prints itself.
#[derive(Clone)]
pub struct Token(String);

// === impl Token ===

impl Token {
    /// A token that a header can carry.
    pub fn new(token: impl Into<String>) -> Option<Self> {
        let token = token.into();
        let fine = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        fine.then_some(Self(token))
    }

    /// Whether it is this one; takes as long for a wrong one as for the right one.
    fn is(&self, other: &[u8]) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other);
        // Digests have one length, so that nothing is told about that of the token either.
        let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
        let differences =
            digest(ours).as_ref().iter().zip(digest(theirs).as_ref()).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0
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
            "bearer" | "token" => self.is(value.as_bytes()),
            // Any name, with the token as the password.
            "basic" => BASE64_STANDARD.decode(value).is_ok_and(|pair| {
                pair.iter()
                    .position(|byte| *byte == b':')
                    .and_then(|colon| pair.get(colon + 1..))
                    .is_some_and(|password| self.is(password))
            }),
            _ => false,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(****)")
    }
}

/// Whether a page of a browser on this machine stands behind the request that has no business here. Without a token nothing
/// else would keep it out: a browser takes any page's request to an address of its own machine.
fn is_from_a_page(app: &App, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    // A name that leads to the loopback interface may be anybody's who owns a domain.
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let lower = name.to_ascii_lowercase();
    let is_public = lower.contains('.') && !lower.ends_with(".localhost") && !lower.ends_with(".internal");
    if app.loopback && is_public && !is_address {
        return true;
    }
    text(header::ORIGIN).is_some_and(|origin| {
        let own = origin.split_once("://").is_some_and(|(_, authority)| authority == host);
        !own && !app.cors.allows(origin)
    })
}

/// Refuses whoever does not have the token.
pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match &app.token {
        None if is_from_a_page(&app, request.headers()) => {
            let detail =
                "permission denied: without a token, pages of a browser are let in only by --cors-allow-origin";
            Problem::new(Code::PermissionDenied, detail).into_response()
        }
        Some(token) if !token.admits(request.headers()) => Problem::new(Code::TokenInvalid, "token invalid")
            .with("message", "missing or invalid token")
            .into_response(),
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(value: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        Token::new("s3cret").unwrap().admits(&headers)
    }

    #[test]
    fn the_token_comes_as_bearer_token_or_password() {
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
    fn a_token_that_no_header_can_carry_is_none_and_none_prints_itself() {
        assert!(Token::new("").is_none() && Token::new("a b").is_none() && Token::new("a\n").is_none());
        assert!(!format!("{:?}", Token::new("s3cret")).contains("s3cret"));
    }
}
