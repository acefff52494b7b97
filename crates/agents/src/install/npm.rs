//! Where packages come from, as npm was told.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Url, header::HeaderValue};

use super::found;
use crate::credentials;

/// How long npm itself may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that is read of a file of settings.
const LONGEST: u64 = 1024 * 1024;
/// The most that is read of a file of certificates.
const LONGEST_CERTIFICATES: u64 = 16 * 1024 * 1024;

/// How a variable is looked up.
pub(super) type Lookup = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// What npm was told, file by file; the first that says something wins.
#[derive(Default)]
pub(super) struct Npm {
    files: Vec<BTreeMap<String, String>>,
    environment: Option<String>,
    asked: Option<String>,
}

// === impl Npm ===

impl Npm {
    /// What the variables and files say, the user's before the machine's. A file of the directory that we are in is not
    /// asked: it may be anybody's project.
    pub(super) fn read(variable: &Lookup, home: Option<&PathBuf>) -> Self {
        let setting = |name: &str| {
            let names = [name.to_uppercase(), name.to_lowercase()];
            names.iter().find_map(|name| variable(name)).filter(|value| !value.is_empty())
        };
        let user = setting("npm_config_userconfig").map(PathBuf::from);
        let global = setting("npm_config_globalconfig").map(PathBuf::from);
        let machine = ["/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"].map(PathBuf::from);
        let files = user.or_else(|| Some(home?.join(".npmrc"))).into_iter().chain(global).chain(machine);
        let texts = files.filter_map(|path| String::from_utf8(credentials::bytes(&path, LONGEST)?).ok());
        let files = texts.map(|text| parse(&text, &|name| variable(name)?.into_string().ok())).collect();
        let environment = setting("npm_config_registry").and_then(|value| value.into_string().ok());
        Self { files, environment, asked: None }
    }

    /// Asks npm itself, if it is there and nothing else is known.
    pub(super) async fn ask(&mut self, npm: Option<PathBuf>) {
        let (Some(npm), None, None) = (npm, &self.environment, self.setting("registry")) else { return };
        let said = found::said(&npm, &["config", "get", "registry"], Path::new("/"), PATIENCE).await;
        self.asked = said.map(|text| text.trim().to_owned());
    }

    /// The registry of a package, with a slash at its end: that of its scope before that of all.
    pub(super) fn registry(&self, package: &str) -> Option<Url> {
        let scope = package.split_once('/').map(|(scope, _)| format!("{scope}:registry"));
        let scoped = scope.and_then(|scope| self.setting(&scope));
        let said = scoped.or(self.environment.as_deref()).or_else(|| self.setting("registry"));
        address(said.or(self.asked.as_deref())?)
    }

    /// What a server is shown: the login for the longest path that leads to an address.
    pub(super) fn login(&self, url: &Url) -> Option<HeaderValue> {
        let host = url.host_str()?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let mut path = url.path();
        loop {
            let slash = path.rfind('/')?;
            path = path.get(..slash)?;
            let of = |name: &str| self.setting(&format!("//{host}{port}{path}/:{name}"));
            let token = of("_authToken").map(|token| format!("Bearer {token}"));
            let basic = of("_auth").map(|login| format!("Basic {login}"));
            let user = || {
                let password = STANDARD.decode(of("_password")?).ok()?;
                let login = [of("username")?.as_bytes(), b":", &password].concat();
                Some(format!("Basic {}", STANDARD.encode(login)))
            };
            if let Some(login) = token.or(basic).or_else(user) {
                let mut login = HeaderValue::from_str(&login).ok()?;
                login.set_sensitive(true);
                return Some(login);
            }
        }
    }

    /// The certificates that are trusted too.
    pub(super) fn certificates(&self) -> Option<Vec<u8>> {
        credentials::bytes(Path::new(self.setting("cafile")?), LONGEST_CERTIFICATES)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.files.iter().find_map(|file| file.get(name)).map(String::as_str)
    }
}

/// An address that one can ask, with a slash at its end.
pub(super) fn address(text: &str) -> Option<Url> {
    let mut url = Url::parse(text.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Some(url)
}

/// A file of settings: `key = value`, remarks behind `;` and `#`, variables as `${NAME}`.
fn parse(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with([';', '#']) {
            continue;
        }
        // What follows the head of a section is not about npm.
        if line.starts_with('[') {
            break;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let value = value.trim();
        let value = value.strip_prefix(['"', '\'']).and_then(|value| value.strip_suffix(['"', '\''])).unwrap_or(value);
        settings.insert(expand(key.trim(), variable), expand(value, variable));
    }
    settings
}

/// Puts in the variables that are set, and leaves the others as they are.
fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        expanded.push_str(before);
        expanded.push_str(&variable(name).unwrap_or_else(|| format!("${{{name}}}")));
        rest = behind;
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npm(text: &str, environment: Option<&str>) -> Npm {
        let variable = |name: &str| (name == "TOKEN").then(|| "from-variable".to_owned());
        Npm { files: vec![parse(text, &variable)], environment: environment.map(Into::into), asked: None }
    }

    fn registry(npm: &Npm, package: &str) -> String {
        npm.registry(package).map(String::from).unwrap_or_default()
    }

    #[test]
    fn a_scope_comes_before_the_variable_and_that_before_the_file() {
        let text = "registry=http://file.test\n@openai:registry = http://scope.test/npm\n";
        assert_eq!(registry(&npm(text, None), "@anthropic-ai/x"), "http://file.test/");
        assert_eq!(registry(&npm(text, None), "@openai/codex"), "http://scope.test/npm/");
        let both = npm(text, Some("https://variable.test/a/"));
        assert_eq!(registry(&both, "@anthropic-ai/x"), "https://variable.test/a/");
        assert_eq!(registry(&both, "@openai/codex"), "http://scope.test/npm/");
        assert_eq!(registry(&npm("", None), "x"), "");
        assert_eq!(registry(&npm("registry=file:///etc", None), "x"), "");
    }

    #[test]
    fn remarks_quotes_sections_and_variables_are_understood() {
        let text = "; registry=http://1.test\n# x\n\nflag\nregistry = \"http://2.test\"\n//2.test/:_authToken=${TOKEN}\n\
                    other=${UNSET}-${open\n[section]\nregistry=http://3.test";
        let npm = npm(text, None);
        assert_eq!(registry(&npm, "x"), "http://2.test/");
        assert_eq!(npm.setting("other"), Some("${UNSET}-${open"));
        assert_eq!(npm.login(&address("http://2.test/").unwrap()).unwrap(), "Bearer from-variable");
    }

    #[test]
    fn a_login_is_shown_to_its_own_host_and_path_only() {
        let npm = npm(
            "//a.test/npm/:_authToken=deep\n//a.test/:_auth=c2hhbGxvdw==\n\
             //b.test:8080/:username=ada\n//b.test:8080/:_password=c2VjcmV0\n",
            None,
        );
        let login = |url: &str| npm.login(&Url::parse(url).unwrap()).map(|it| it.to_str().unwrap().to_owned());
        assert_eq!(login("https://a.test/npm/@x/y/-/y.tgz").as_deref(), Some("Bearer deep"));
        assert_eq!(login("https://a.test/npmx/y").as_deref(), Some("Basic c2hhbGxvdw=="));
        assert_eq!(login("https://b.test:8080/y").as_deref(), Some("Basic YWRhOnNlY3JldA=="));
        assert_eq!(login("https://b.test/y"), None);
        assert_eq!(login("https://a.test.evil.test/npm/"), None);
    }

    #[test]
    fn files_are_read_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".npmrc"), "registry=http://user.test/\n").unwrap();
        let global = home.path().join("global");
        std::fs::write(&global, format!("registry=http://global.test/\ncafile={}\n", global.display())).unwrap();
        let lookup: Lookup = Arc::new(move |name| (name == "npm_config_globalconfig").then(|| global.clone().into()));
        let npm = Npm::read(&lookup, Some(&home.path().to_owned()));
        assert_eq!(registry(&npm, "x"), "http://user.test/");
        assert!(npm.certificates().unwrap().starts_with(b"registry="));
        std::fs::write(home.path().join("mine"), "registry=http://mine.test/\n").unwrap();
        let mine = home.path().join("mine");
        let lookup: Lookup = Arc::new(move |name| (name == "NPM_CONFIG_USERCONFIG").then(|| mine.clone().into()));
        assert_eq!(registry(&Npm::read(&lookup, Some(&home.path().to_owned())), "x"), "http://mine.test/");
    }
}
