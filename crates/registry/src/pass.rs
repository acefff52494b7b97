//! What is shown to a registry: a login, or a token that was given for one.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, Url};
use serde::Deserialize;

use crate::credentials::Login;
use crate::http::Request;

/// How long a token is good for if nothing is said of it, and at least.
const SHORTEST: Duration = Duration::from_secs(60);
/// So long before its end a token is taken for old.
const EARLY: Duration = Duration::from_secs(5);
/// Who we are to those who give tokens.
const CLIENT: &str = "carrel";

/// What is shown.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    header: HeaderValue,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Password,
    Token { until: Instant },
}

/// What a registry wants to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Password,
    /// A token that is given there.
    Token {
        realm: Url,
        service: Option<String>,
    },
}

/// What is given there.
#[derive(Deserialize)]
struct Given {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

// === impl Pass ===

impl Pass {
    pub(crate) fn password(user: &str, password: &str) -> Option<Self> {
        let header = secret(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))?;
        Some(Self { header, kind: Kind::Password })
    }

    /// From what a place that gives tokens answers. Nothing, if that is none that could be shown.
    pub(crate) fn given(answer: &[u8]) -> Option<Self> {
        let given: Given = serde_json::from_slice(answer).ok()?;
        let token = given.token.or(given.access_token).filter(|token| !token.is_empty())?;
        // A day is enough for whatever is done in one go.
        let seconds = given.expires_in.unwrap_or_default().min(24 * 3600);
        let until = Instant::now() + Duration::from_secs(seconds).max(SHORTEST) - EARLY;
        Some(Self { header: secret(&format!("Bearer {token}"))?, kind: Kind::Token { until } })
    }

    pub(crate) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// The token, if it is one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.header.to_str().ok()?.strip_prefix("Bearer ")
    }

    pub(crate) fn is_old(&self) -> bool {
        matches!(self.kind, Kind::Token { until } if until <= Instant::now())
    }
}

/// A header that nobody logs.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

// === impl Challenge ===

impl Challenge {
    /// What an answer asks for. Of several a token is taken: a password is shown to fewer then.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let asked: Vec<_> = texts.flat_map(http_auth::ChallengeParser::new).filter_map(Result::ok).collect();
        let token = asked.iter().filter(|asked| asked.scheme.eq_ignore_ascii_case("Bearer")).find_map(|asked| {
            let said = |name: &str| {
                let found = asked.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            let realm = Url::parse(&said("realm")?).ok()?;
            matches!(realm.scheme(), "http" | "https").then(|| Self::Token { realm, service: said("service") })
        });
        let password =
            || asked.iter().any(|asked| asked.scheme.eq_ignore_ascii_case("Basic")).then_some(Self::Password);
        token.or_else(password)
    }
}

/// How a token is asked for: by who one is, or in exchange for what was given at an earlier login.
pub(crate) fn request(realm: &Url, service: Option<&str>, scope: &str, login: &Login) -> Request {
    let service = service.map(|service| ("service", service));
    let wanted = [("scope", scope)].into_iter().chain(service);
    let mut request = Request::get(realm.clone());
    if let Some(identity) = login.identity() {
        let exchanged = [("grant_type", "refresh_token"), ("refresh_token", identity), ("client_id", CLIENT)];
        let mut form = realm.clone();
        form.set_query(None);
        form.query_pairs_mut().extend_pairs(exchanged.into_iter().chain(wanted));
        request.method = Method::POST;
        request.body = form.query().map(str::to_owned);
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers.insert(reqwest::header::CONTENT_TYPE, kind);
    } else {
        request.url.query_pairs_mut().extend_pairs(wanted);
        let pass = login.password().and_then(|(user, password)| Pass::password(user, password));
        request.shown = pass.map(|pass| pass.header);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(texts: &[&'static str]) -> Option<Challenge> {
        let headers = texts.iter().map(|text| (WWW_AUTHENTICATE, HeaderValue::from_static(text)));
        Challenge::of(&headers.fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        }))
    }

    fn token(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Token { realm: realm.parse().unwrap(), service: service.map(str::to_owned) })
    }

    #[test]
    fn what_is_wanted_is_read_from_one_header_or_several() {
        assert_eq!(challenge(&[]), None);
        assert_eq!(challenge(&["Basic realm=\"x\""]), Some(Challenge::Password));
        let realm = "https://a.example/token";
        let wanted = "bearer Realm=\"https://a.example/token\",service=\"a b\",scope=\"repository:x:pull\"";
        assert_eq!(challenge(&[wanted]), token(realm, Some("a b")));
        assert_eq!(challenge(&["Basic realm=\"x\", Bearer realm=\"https://a.example/token\""]), token(realm, None));
        assert_eq!(challenge(&["Basic realm=\"x\"", "Bearer realm=\"https://a.example/token\""]), token(realm, None));
        for nonsense in
            ["Bearer", "Bearer realm=\"/token\"", "Bearer realm=\"file:///etc/passwd\"", "Negotiate", "\"\""]
        {
            assert_eq!(challenge(&[nonsense]), None, "{nonsense}");
        }
    }

    #[test]
    fn a_token_is_taken_if_it_can_be_shown_and_for_as_long_as_is_said() {
        let given = |text: &str| Pass::given(text.as_bytes());
        for text in [r#"{"token":"a"}"#, r#"{"access_token":"a","expires_in":3600}"#, r#"{"token":"a","expires_in":1}"#]
        {
            let pass = given(text).unwrap();
            assert_eq!((pass.token(), pass.header().to_str().unwrap()), (Some("a"), "Bearer a"));
            assert!(!pass.is_old() && !format!("{pass:?}").contains("Bearer"), "{pass:?}");
        }
        for text in ["", "{}", r#"{"token":""}"#, r#"{"token":"two\nlines"}"#, "[]"] {
            assert!(given(text).is_none(), "{text}");
        }
        assert_eq!(Pass::password("open", "sesame").unwrap().header(), "Basic b3BlbjpzZXNhbWU=");
    }
}
