use std::os::unix::fs::PermissionsExt;

use super::*;

/// `open:sesame`, as these files have it.
const ENCODED: &str = "b3BlbjpzZXNhbWU=";

fn found(content: &str, name: &str) -> Result<Option<String>, CredentialsError> {
    let login = login(Path::new("config.json"), content.as_bytes(), &name.parse().unwrap())?;
    Ok(login.map(|login| match login {
        Login::Anonymous => "nobody".into(),
        Login::Password(user, Secret(password)) => format!("{user}:{password}"),
        Login::Identity(Secret(token)) => token,
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
fn the_hub_goes_by_several_names() {
    for key in ["https://index.docker.io/v1/", "docker.io"] {
        let content = format!(r#"{{"auths": {{"{key}": {{"auth": "{ENCODED}"}}}}}}"#);
        assert_eq!(found(&content, "python").unwrap().as_deref(), Some("open:sesame"), "{key}");
    }
}

#[test]
fn a_login_for_a_part_of_a_registry_comes_first() {
    let content = r#"{"auths": {"a.example/team": {"username": "t", "password": "1"},
                                "a.example": {"username": "all", "password": "2"}}}"#;
    assert_eq!(found(content, "a.example/team/x").unwrap().as_deref(), Some("t:1"));
    assert_eq!(found(content, "a.example/other/x").unwrap().as_deref(), Some("all:2"));
}

#[test]
fn what_an_earlier_login_left_is_found() {
    let content = r#"{"auths": {"a.example": {"identitytoken": "opaque"}}}"#;
    assert_eq!(found(content, "a.example/x").unwrap().as_deref(), Some("opaque"));
}

#[test]
fn a_file_that_is_none_is_an_error_that_names_it() {
    let error = found("not json", "a.example/x").unwrap_err().to_string();
    assert!(error.starts_with("config.json is not a file of logins"), "{error}");
    let error = found(r#"{"auths": {"a.example": {"auth": "%%%"}}}"#, "a.example/x").unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn a_helper_that_is_missing_is_an_error_and_not_nobody() {
    let content = r#"{"credHelpers": {"a.example": "carrel-has-none"}}"#;
    let error = found(content, "a.example/x").unwrap_err().to_string();
    assert!(error.contains("the helper that config.json names for a.example gave no login"), "{error}");
    assert_eq!(found(content, "b.example/x").unwrap(), None);
}

#[test]
fn the_first_file_that_has_a_login_decides_and_one_that_is_missing_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, user: &str| {
        let path = directory.path().join(name);
        let content = format!(r#"{{"auths": {{"{user}.example": {{"username": "{user}", "password": "{user}"}}}}}}"#);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let files = [directory.path().join("none"), file("first", "a"), file("second", "b")];
    let credentials = Credentials::of_files(files);
    let login = |name: &str| credentials.login(&name.parse().unwrap()).unwrap();
    assert!(matches!(login("a.example/x"), Login::Password(user, _) if user == "a"));
    assert!(matches!(login("b.example/x"), Login::Password(user, _) if user == "b"));
    assert!(login("c.example/x").is_anonymous());
}

#[test]
fn a_secret_shows_itself_to_nobody() {
    let login = Login::Password("open".into(), Secret("sesame".into()));
    assert!(!format!("{login:?}").contains("sesame"), "{login:?}");
    let identity = Login::Identity(Secret("sesame".into()));
    assert!(!format!("{identity:?}").contains("sesame"), "{identity:?}");
}
