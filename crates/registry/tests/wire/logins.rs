//! Logins: who gets them, and who does not.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{ReceivedRequest, RegistryServer, ScriptedReply, TestAuthority, TestImage, registry_error};
use carrel_layers::{ImageSource, Platform};
use carrel_registry::{RegistriesConfig, Registry, RegistryConfig, RegistryCredentials, RegistryError};

/// `open:sesame` as a Basic header.
const BASIC: &str = "Basic b3BlbjpzZXNhbWU=";

/// An auth file with a login for a server.
fn login(server: &RegistryServer) -> (tempfile::TempDir, RegistryCredentials) {
    login_as(server, &serde_json::json!({"username": "open", "password": "sesame"}))
}

fn login_as(server: &RegistryServer, login: &serde_json::Value) -> (tempfile::TempDir, RegistryCredentials) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("auth.json");
    std::fs::write(&file, serde_json::json!({"auths": {server.address.to_string(): login}}).to_string()).unwrap();
    (directory, RegistryCredentials::of_files([file]))
}

fn pull(registry: &Registry, image: &TestImage) -> Result<Vec<u8>, RegistryError> {
    ImageSource::manifest(registry, &Platform::host()).map_err(registry_error)?;
    let mut content = Vec::new();
    ImageSource::blob(registry, &image.descriptor(), 0).map_err(registry_error)?.read_to_end(&mut content).unwrap();
    Ok(content)
}

/// Challenges for Basic authorization.
fn with_passwords(request: &ReceivedRequest, image: &TestImage) -> ScriptedReply {
    match request.header("authorization") {
        BASIC => image.answer(request),
        _ => ScriptedReply::status(401).with("www-authenticate", "Basic realm=\"here\""),
    }
}

/// Issues tokens for a login, each good for a number of requests.
fn with_tokens(uses: usize) -> impl Fn(&ReceivedRequest) -> ScriptedReply + Send + Sync + 'static {
    let (image, given, left) = (TestImage::new(1000), AtomicUsize::new(0), AtomicUsize::new(0));
    move |request| {
        let realm = format!("http://{}/token", request.header("host"));
        let refused =
            ScriptedReply::status(401).with("www-authenticate", format!("Bearer realm=\"{realm}\",service=\"here\""));
        if request.path.starts_with("/token?") {
            assert!(request.path.contains("scope=repository%3Ait%3Apull") && request.path.contains("service=here"));
            if request.header("authorization") != BASIC {
                return ScriptedReply { body: b"no such user".to_vec(), ..ScriptedReply::status(401) };
            }
            left.store(uses, Ordering::SeqCst);
            let number = given.fetch_add(1, Ordering::SeqCst) + 1;
            return ScriptedReply::of(format!(r#"{{"token":"number-{number}"}}"#).as_bytes());
        }
        if request.header("authorization") != format!("Bearer number-{}", given.load(Ordering::SeqCst)) {
            return refused;
        }
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => image.answer(request),
            Err(_) => refused,
        }
    }
}

//= promises.images.learns-password
#[test]
fn a_password_is_sent_after_a_basic_challenge() {
    let image = TestImage::new(1000);
    let server = RegistryServer::start(|request| with_passwords(request, &TestImage::new(1000)));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let refused = pull(&server.registry(), &image).unwrap_err();
    assert!(refused.to_string().starts_with(&format!("{} denied access to ", server.address)), "{refused}");
    assert!(refused.hint().unwrap().contains("podman login"));
}

//= promises.images.learns-password
#[test]
fn a_password_is_not_sent_without_a_challenge() {
    let image = TestImage::new(1000);
    let server = RegistryServer::start(|request| TestImage::new(1000).answer(request));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(server.requests().iter().all(|request| request.header("authorization").is_empty()));
}

#[test]
fn a_token_is_fetched_with_the_password() {
    let image = TestImage::new(1000);
    let server = RegistryServer::start(with_tokens(100));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let refused = pull(&server.registry(), &image).unwrap_err().to_string();
    assert!(refused.contains("no such user"), "{refused}");
}

#[test]
fn an_expired_token_is_renewed() {
    let image = TestImage::new(1000);
    let server = RegistryServer::start(with_tokens(1));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let tokens = server.received().iter().filter(|received| received.starts_with("GET /token?")).count();
    assert_eq!(tokens, 2);
}

#[test]
fn an_unusable_token_is_an_error() {
    let server = RegistryServer::start(|request| match request.path.starts_with("/token?") {
        true => ScriptedReply::of(br#"{"token":"two\nlines"}"#),
        false => {
            let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
            ScriptedReply::status(401).with("www-authenticate", realm)
        }
    });
    let image = TestImage::new(1000);
    assert!(pull(&server.registry(), &image).is_err());
    assert!(ImageSource::blob(&server.registry(), &image.descriptor(), 0).is_err());
}

//= promises.images.learns-password
#[test]
fn a_redirect_to_another_host_gets_no_credentials() {
    let image = TestImage::new(1000);
    let elsewhere = RegistryServer::start(|request| ScriptedReply::part(&TestImage::new(1000).layer, request));
    let target = format!("http://localhost:{}/content", elsewhere.address.port());
    let path = image.layer_path();
    let server = RegistryServer::start(move |request| match with_passwords(request, &TestImage::new(1000)) {
        reply if reply.status < 300 && request.path == path => {
            ScriptedReply::status(307).with("location", target.clone())
        }
        reply => reply,
    });
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let observed = elsewhere.requests();
    assert!(
        !observed.is_empty() && observed.iter().all(|request| request.header("authorization").is_empty()),
        "{observed:?}"
    );
    assert!(
        server.requests().iter().any(|request| request.header("authorization") == BASIC),
        "the login was used at all"
    );
}

/// Challenges with a token endpoint.
fn with_token_endpoint(realm: String) -> impl Fn(&ReceivedRequest) -> ScriptedReply + Send + Sync + 'static {
    let image = TestImage::new(1000);
    move |request| match request.header("authorization") {
        "Bearer given" => image.answer(request),
        _ => ScriptedReply::status(401).with("www-authenticate", format!("Bearer realm=\"{realm}\"")),
    }
}

fn token_reply(_request: &ReceivedRequest) -> ScriptedReply {
    ScriptedReply::of(br#"{"token":"given"}"#)
}

#[test]
fn a_login_over_tls_is_not_sent_to_a_token_endpoint_without_tls() {
    let (image, authority) = (TestImage::new(1000), TestAuthority::new());
    let giver = RegistryServer::start_with(&authority, token_reply);
    let pull = |realm: String| {
        let server = RegistryServer::start_with(&authority, with_token_endpoint(realm));
        let registry_error = RegistryConfig { ca: Some(authority.file.path().to_owned()), ..RegistryConfig::default() };
        let (_directory, credentials) = login(&server);
        let settings = RegistriesConfig::new([(server.address.to_string(), registry_error)]);
        pull(&Registry::new(server.name(), &settings, &credentials).unwrap(), &image)
    };
    assert_eq!(pull(format!("https://{}/token", giver.address)).unwrap(), image.layer);
    assert!(giver.requests().iter().all(|request| request.header("authorization") == BASIC));
    // Nothing listens there: the error comes before any request.
    let refused = pull("http://192.0.2.1/token".into()).unwrap_err().to_string();
    assert!(refused.contains("token endpoint without TLS: http://192.0.2.1/token"), "{refused}");
}

#[test]
fn a_challenge_after_a_redirect_is_not_answered() {
    let image = TestImage::new(1000);
    let giver = RegistryServer::start(token_reply);
    let realm = format!("http://{}/token", giver.address);
    let sending = with_token_endpoint(realm.clone());
    let elsewhere = RegistryServer::start(with_token_endpoint(realm.clone()));
    let away = format!("http://{}/v2/", elsewhere.address);
    let server = RegistryServer::start(move |request| match request.path.as_str() {
        "/v2/" => ScriptedReply::status(307).with("location", away.clone()),
        _ => TestImage::new(1000).answer(request),
    });
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(elsewhere.requests().is_empty() && giver.requests().is_empty());
    // A challenge of the registry itself is answered.
    let server = RegistryServer::start(sending);
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(giver.requests().iter().any(|request| request.header("authorization") == BASIC));
}

#[test]
fn a_registry_without_tls_that_is_not_configured_insecure_gets_no_login() {
    let image = TestImage::new(1000);
    let server = RegistryServer::start(|request| with_passwords(request, &TestImage::new(1000)));
    let (_directory, credentials) = login(&server);
    let by_chance = Registry::new(server.name(), &RegistriesConfig::default(), &credentials).unwrap();
    let refused = pull(&by_chance, &image).unwrap_err();
    assert!(matches!(refused, RegistryError::PlaintextLogin { .. }), "{refused}");
    assert!(server.requests().iter().all(|request| request.header("authorization").is_empty()));
    // Configured as insecure it does.
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
}

#[test]
fn an_identity_token_is_exchanged_and_not_sent_to_the_registry() {
    let server = RegistryServer::start(|request| {
        let image = TestImage::new(1000);
        match (request.path.as_str(), request.header("authorization")) {
            ("/token", _) => {
                let body = String::from_utf8(request.body.clone()).unwrap();
                let wanted = "grant_type=refresh_token&refresh_token=left+over&client_id=carrel&scope=repository%3Ait%3Apull&service=here";
                let good = request.method == "POST" && body == wanted;
                if good {
                    ScriptedReply::of(br#"{"access_token":"exchanged","expires_in":300}"#)
                } else {
                    ScriptedReply::status(400)
                }
            }
            (_, "Bearer exchanged") => image.answer(request),
            _ => {
                let realm = format!("Bearer realm=\"http://{}/token\",service=\"here\"", request.header("host"));
                ScriptedReply::status(401).with("www-authenticate", realm)
            }
        }
    });
    let image = TestImage::new(1000);
    let (_directory, credentials) = login_as(&server, &serde_json::json!({"identitytoken": "left over"}));
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let shown: Vec<_> = server.requests().iter().map(|request| request.header("authorization").to_owned()).collect();
    assert!(shown.iter().all(|shown| shown.is_empty() || shown == "Bearer exchanged"), "{shown:?}");
}

#[test]
fn an_anonymous_token_is_renewed_too() {
    let (image, given) = (TestImage::new(1000), AtomicUsize::new(0));
    let served = TestImage::new(1000);
    let server = RegistryServer::start(move |request| {
        if request.path.starts_with("/token?") {
            let number = given.fetch_add(1, Ordering::SeqCst) + 1;
            return ScriptedReply::of(format!(r#"{{"token":"number-{number}"}}"#).as_bytes());
        }
        // The first token is good for the manifest only.
        let wanted = if request.path.contains("/manifests/") { "Bearer number-1" } else { "Bearer number-2" };
        if request.header("authorization") == wanted {
            return served.answer(request);
        }
        let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
        ScriptedReply::status(401).with("www-authenticate", realm)
    });
    assert_eq!(pull(&server.registry(), &image).unwrap(), image.layer);
    assert_eq!(server.received().iter().filter(|received| received.starts_with("GET /token?")).count(), 2);
}

#[test]
fn an_endless_token_response_is_rejected() {
    let image = TestImage::new(1000);
    let served = |length: usize| {
        RegistryServer::start(move |request| {
            if request.path.starts_with("/token?") {
                let padding = " ".repeat(length);
                return ScriptedReply::of(format!(r#"{{"token":"given"{padding}}}"#).as_bytes());
            }
            with_token_endpoint(format!("http://{}/token", request.header("host")))(request)
        })
    };
    assert_eq!(pull(&served(60_000).registry(), &image).unwrap(), image.layer);
    let server = served(64 << 20);
    let refused = pull(&server.registry(), &image).unwrap_err().to_string();
    assert!(refused.contains("more than 65536 bytes"), "{refused}");
    assert!(server.unread() > 0);
}
