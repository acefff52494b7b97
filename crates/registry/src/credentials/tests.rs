use std::os::unix::fs::PermissionsExt;

use super::*;

/// `open:sesame` in the encoding of auth files.
const ENCODED: &str = "b3BlbjpzZXNhbWU=";

fn found(content: &str, name: &str) -> Result<Option<String>, CredentialsError> {
    let login = login(Path::new("config.json"), content.as_bytes(), &name.parse().unwrap())?;
    Ok(login.map(|login| match login {
        RegistryLogin::Anonymous => "nobody".into(),
        RegistryLogin::Password(user, Secret(password)) => format!("{user}:{password}"),
        RegistryLogin::Identity(Secret(token)) => token,
    }))
}

#[test]
fn a_login_is_found_by_its_registry() {
    let content = format!(r#"{{"auths": {{"localhost:5000": {{"auth": "{ENCODED}"}}}}}}"#);
    assert_eq!(found(&content, "localhost:5000/a").unwrap().as_deref(), Some("open:sesame"));
    assert_eq!(found(&content, "localhost:5001/a").unwrap(), None);
    assert_eq!(found(&content, "python").unwrap(), None);
}

#[test]
fn docker_hub_is_found_under_each_of_its_keys() {
    for key in ["https://index.docker.io/v1/", "docker.io"] {
        let content = format!(r#"{{"auths": {{"{key}": {{"auth": "{ENCODED}"}}}}}}"#);
        assert_eq!(found(&content, "python").unwrap().as_deref(), Some("open:sesame"), "{key}");
    }
}

#[test]
fn a_login_for_a_repository_prefix_comes_first() {
    let content = r#"{"auths": {"a.example/team": {"username": "t", "password": "1"},
                                "a.example": {"username": "all", "password": "2"}}}"#;
    assert_eq!(found(content, "a.example/team/x").unwrap().as_deref(), Some("t:1"));
    assert_eq!(found(content, "a.example/other/x").unwrap().as_deref(), Some("all:2"));
}

#[test]
fn an_identity_token_is_found() {
    let content = r#"{"auths": {"a.example": {"identitytoken": "opaque"}}}"#;
    assert_eq!(found(content, "a.example/x").unwrap().as_deref(), Some("opaque"));
}

#[test]
fn an_invalid_auth_file_is_an_error_that_names_it() {
    let error = found("not json", "a.example/x").unwrap_err().to_string();
    assert!(error.starts_with("config.json is not a valid auth file"), "{error}");
    let error = found(r#"{"auths": {"a.example": {"auth": "%%%"}}}"#, "a.example/x").unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn a_missing_credential_helper_is_an_error_and_not_anonymous() {
    let content = r#"{"credHelpers": {"a.example": "carrel-has-none"}}"#;
    let error = found(content, "a.example/x").unwrap_err().to_string();
    assert!(error.contains("the credential helper that config.json names for a.example failed"), "{error}");
    assert_eq!(found(content, "b.example/x").unwrap(), None);
}

#[test]
fn the_first_auth_file_with_a_login_wins_and_missing_files_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, user: &str| {
        let path = directory.path().join(name);
        let content = format!(r#"{{"auths": {{"{user}.example": {{"username": "{user}", "password": "{user}"}}}}}}"#);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let files = [directory.path().join("none"), file("first", "a"), file("second", "b")];
    let credentials = RegistryCredentials::of_files(files);
    let login = |name: &str| credentials.login(&name.parse().unwrap()).unwrap();
    assert!(matches!(login("a.example/x"), RegistryLogin::Password(user, _) if user == "a"));
    assert!(matches!(login("b.example/x"), RegistryLogin::Password(user, _) if user == "b"));
    assert!(login("c.example/x").is_anonymous());
}

#[test]
fn a_secret_is_not_shown_by_debug() {
    let login = RegistryLogin::Password("open".into(), Secret("sesame".into()));
    assert!(!format!("{login:?}").contains("sesame"), "{login:?}");
    let identity = RegistryLogin::Identity(Secret("sesame".into()));
    assert!(!format!("{identity:?}").contains("sesame"), "{identity:?}");
}
