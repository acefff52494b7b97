//! Who we are to a registry, and that nobody else gets to know.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{Image, Reply, Request, Server, said};
use carrel_layers::{Platform, Source};
use carrel_registry::{Credentials, Registry, RegistryError};

/// `open:sesame`, as HTTP has it.
const BASIC: &str = "Basic b3BlbjpzZXNhbWU=";

/// A file with a login for a server.
fn login(server: &Server) -> (tempfile::TempDir, Credentials) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("auth.json");
    let login = serde_json::json!({"username": "open", "password": "sesame"});
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
