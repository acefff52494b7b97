//! Who we are to a registry, and that nobody else gets to know.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{Authority, Image, Reply, Request, Server, said};
use carrel_layers::{Platform, Source};
use carrel_registry::{Credentials, Registry, RegistryError, RegistrySettings, Settings};

/// `open:sesame`, as HTTP has it.
const BASIC: &str = "Basic b3BlbjpzZXNhbWU=";

/// A file with a login for a server.
fn login(server: &Server) -> (tempfile::TempDir, Credentials) {
    login_as(server, &serde_json::json!({"username": "open", "password": "sesame"}))
}

fn login_as(server: &Server, login: &serde_json::Value) -> (tempfile::TempDir, Credentials) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("auth.json");
    std::fs::write(&file, serde_json::json!({"auths": {server.address.to_string(): login}}).to_string()).unwrap();
    (directory, Credentials::of_files([file]))
}

fn pull(registry: &Registry, image: &Image) -> Result<Vec<u8>, RegistryError> {
    Source::manifest(registry, &Platform::host()).map_err(said)?;
    let mut content = Vec::new();
    Source::blob(registry, &image.descriptor(), 0).map_err(said)?.read_to_end(&mut content).unwrap();
    Ok(content)
}

/// Asks for a login, in the way of the simpler registries.
fn with_passwords(request: &Request, image: &Image) -> Reply {
    match request.header("authorization") {
        BASIC => image.answer(request),
        _ => Reply::status(401).with("www-authenticate", "Basic realm=\"here\""),
    }
}

/// Gives tokens to who logs in, each for so many requests.
fn with_tokens(uses: usize) -> impl Fn(&Request) -> Reply + Send + Sync + 'static {
    let (image, given, left) = (Image::new(1000), AtomicUsize::new(0), AtomicUsize::new(0));
    move |request| {
        let realm = format!("http://{}/token", request.header("host"));
        let refused = Reply::status(401).with("www-authenticate", format!("Bearer realm=\"{realm}\",service=\"here\""));
        if request.path.starts_with("/token?") {
            assert!(request.path.contains("scope=repository%3Ait%3Apull") && request.path.contains("service=here"));
            if request.header("authorization") != BASIC {
                return Reply { body: b"no such user".to_vec(), ..Reply::status(401) };
            }
            left.store(uses, Ordering::SeqCst);
            let number = given.fetch_add(1, Ordering::SeqCst) + 1;
            return Reply::of(format!(r#"{{"token":"number-{number}"}}"#).as_bytes());
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
fn a_password_is_given_where_it_is_asked_for() {
    let image = Image::new(1000);
    let server = Server::start(|request| with_passwords(request, &Image::new(1000)));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let refused = pull(&server.registry(), &image).unwrap_err();
    assert!(refused.to_string().starts_with(&format!("{} refuses ", server.address)), "{refused}");
    assert!(refused.hint().unwrap().contains("podman login"));
}

//= promises.images.learns-password
#[test]
fn a_password_is_not_given_where_it_is_not_asked_for() {
    let image = Image::new(1000);
    let server = Server::start(|request| Image::new(1000).answer(request));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(server.requests().iter().all(|request| request.header("authorization").is_empty()));
}

#[test]
fn a_token_is_fetched_with_the_password() {
    let image = Image::new(1000);
    let server = Server::start(with_tokens(100));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let refused = pull(&server.registry(), &image).unwrap_err().to_string();
    assert!(refused.contains("no such user"), "{refused}");
}

#[test]
fn a_token_that_has_become_old_is_fetched_again() {
    let image = Image::new(1000);
    let server = Server::start(with_tokens(1));
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let tokens = server.asked().iter().filter(|asked| asked.starts_with("GET /token?")).count();
    assert_eq!(tokens, 2);
}

#[test]
fn a_token_that_is_none_is_an_error_and_not_the_end() {
    let server = Server::start(|request| match request.path.starts_with("/token?") {
        true => Reply::of(br#"{"token":"two\nlines"}"#),
        false => {
            let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
            Reply::status(401).with("www-authenticate", realm)
        }
    });
    let image = Image::new(1000);
    assert!(pull(&server.registry(), &image).is_err());
    assert!(Source::blob(&server.registry(), &image.descriptor(), 0).is_err());
}

//= promises.images.learns-password
#[test]
fn where_content_lies_elsewhere_nobody_there_learns_who_asks() {
    let image = Image::new(1000);
    let elsewhere = Server::start(|request| Reply::part(&Image::new(1000).layer, request));
    let target = format!("http://localhost:{}/content", elsewhere.address.port());
    let path = image.layer_path();
    let server = Server::start(move |request| match with_passwords(request, &Image::new(1000)) {
        reply if reply.status < 300 && request.path == path => Reply::status(307).with("location", target.clone()),
        reply => reply,
    });
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let seen = elsewhere.requests();
    assert!(!seen.is_empty() && seen.iter().all(|request| request.header("authorization").is_empty()), "{seen:?}");
    assert!(
        server.requests().iter().any(|request| request.header("authorization") == BASIC),
        "the login was used at all"
    );
}

/// Says to log in at a place.
fn sends_to(realm: String) -> impl Fn(&Request) -> Reply + Send + Sync + 'static {
    let image = Image::new(1000);
    move |request| match request.header("authorization") {
        "Bearer given" => image.answer(request),
        _ => Reply::status(401).with("www-authenticate", format!("Bearer realm=\"{realm}\"")),
    }
}

fn gives(_request: &Request) -> Reply {
    Reply::of(br#"{"token":"given"}"#)
}

#[test]
fn a_login_that_goes_by_tls_goes_nowhere_without() {
    let (image, authority) = (Image::new(1000), Authority::new());
    let giver = Server::start_with(&authority, gives);
    let pull = |realm: String| {
        let server = Server::start_with(&authority, sends_to(realm));
        let said = RegistrySettings { ca: Some(authority.file.path().to_owned()), ..RegistrySettings::default() };
        let (_directory, credentials) = login(&server);
        let settings = Settings::new([(server.address.to_string(), said)]);
        pull(&Registry::new(server.name(), &settings, &credentials).unwrap(), &image)
    };
    assert_eq!(pull(format!("https://{}/token", giver.address)).unwrap(), image.layer);
    assert!(giver.requests().iter().all(|request| request.header("authorization") == BASIC));
    // Nobody is there: it is refused before anybody is asked.
    let refused = pull("http://192.0.2.1/token".into()).unwrap_err().to_string();
    assert!(refused.contains("speaks without TLS: http://192.0.2.1/token"), "{refused}");
}

#[test]
fn whom_a_registry_sends_us_to_is_not_asked_where_to_log_in() {
    let image = Image::new(1000);
    let giver = Server::start(gives);
    let realm = format!("http://{}/token", giver.address);
    let sending = sends_to(realm.clone());
    let elsewhere = Server::start(sends_to(realm.clone()));
    let away = format!("http://{}/v2/", elsewhere.address);
    let server = Server::start(move |request| match request.path.as_str() {
        "/v2/" => Reply::status(307).with("location", away.clone()),
        _ => Image::new(1000).answer(request),
    });
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(elsewhere.requests().is_empty() && giver.requests().is_empty());
    // If the registry itself says so, that is where it is.
    let server = Server::start(sending);
    let (_directory, credentials) = login(&server);
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    assert!(giver.requests().iter().any(|request| request.header("authorization") == BASIC));
}

#[test]
fn a_registry_that_happens_to_speak_without_tls_learns_no_login() {
    let image = Image::new(1000);
    let server = Server::start(|request| with_passwords(request, &Image::new(1000)));
    let (_directory, credentials) = login(&server);
    let by_chance = Registry::new(server.name(), &Settings::default(), &credentials).unwrap();
    let refused = pull(&by_chance, &image).unwrap_err();
    assert!(matches!(refused, RegistryError::InClear { .. }), "{refused}");
    assert!(server.requests().iter().all(|request| request.header("authorization").is_empty()));
    // With the word of who set it up it does.
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
}

#[test]
fn what_an_earlier_login_left_is_exchanged_and_not_shown() {
    let server = Server::start(|request| {
        let image = Image::new(1000);
        match (request.path.as_str(), request.header("authorization")) {
            ("/token", _) => {
                let body = String::from_utf8(request.body.clone()).unwrap();
                let wanted = "grant_type=refresh_token&refresh_token=left+over&client_id=carrel&scope=repository%3Ait%3Apull&service=here";
                let good = request.method == "POST" && body == wanted;
                if good { Reply::of(br#"{"access_token":"exchanged","expires_in":300}"#) } else { Reply::status(400) }
            }
            (_, "Bearer exchanged") => image.answer(request),
            _ => {
                let realm = format!("Bearer realm=\"http://{}/token\",service=\"here\"", request.header("host"));
                Reply::status(401).with("www-authenticate", realm)
            }
        }
    });
    let image = Image::new(1000);
    let (_directory, credentials) = login_as(&server, &serde_json::json!({"identitytoken": "left over"}));
    assert_eq!(pull(&server.registry_as(&credentials), &image).unwrap(), image.layer);
    let shown: Vec<_> = server.requests().iter().map(|request| request.header("authorization").to_owned()).collect();
    assert!(shown.iter().all(|shown| shown.is_empty() || shown == "Bearer exchanged"), "{shown:?}");
}

#[test]
fn a_token_for_nobody_in_particular_is_fetched_again_too() {
    let (image, given) = (Image::new(1000), AtomicUsize::new(0));
    let served = Image::new(1000);
    let server = Server::start(move |request| {
        if request.path.starts_with("/token?") {
            let number = given.fetch_add(1, Ordering::SeqCst) + 1;
            return Reply::of(format!(r#"{{"token":"number-{number}"}}"#).as_bytes());
        }
        // The first is good for the manifest alone.
        let wanted = if request.path.contains("/manifests/") { "Bearer number-1" } else { "Bearer number-2" };
        if request.header("authorization") == wanted {
            return served.answer(request);
        }
        let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
        Reply::status(401).with("www-authenticate", realm)
    });
    assert_eq!(pull(&server.registry(), &image).unwrap(), image.layer);
    assert_eq!(server.asked().iter().filter(|asked| asked.starts_with("GET /token?")).count(), 2);
}

#[test]
fn a_token_without_an_end_is_refused() {
    let image = Image::new(1000);
    let served = |length: usize| {
        Server::start(move |request| {
            if request.path.starts_with("/token?") {
                let padding = " ".repeat(length);
                return Reply::of(format!(r#"{{"token":"given"{padding}}}"#).as_bytes());
            }
            sends_to(format!("http://{}/token", request.header("host")))(request)
        })
    };
    assert_eq!(pull(&served(60_000).registry(), &image).unwrap(), image.layer);
    let server = served(64 << 20);
    let refused = pull(&server.registry(), &image).unwrap_err().to_string();
    assert!(refused.contains("more than 65536 bytes"), "{refused}");
    assert!(server.unread() > 0);
}
