//! npm's configuration: registries, logins and certificates.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Url, header::HeaderValue};

use super::discovery;
use crate::credentials;

/// How long `npm config` may take.
const NPM_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a configuration file.
const MAX_CONFIG: u64 = 1024 * 1024;
/// Maximum size of a certificate file.
const MAX_CERTIFICATES: u64 = 16 * 1024 * 1024;

/// Looks up an environment variable.
pub(super) type VariableLookup = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// npm's configuration files in order of precedence.
#[derive(Default)]
pub(super) struct NpmConfig {
    files: Vec<BTreeMap<String, String>>,
    environment: Option<String>,
    from_npm: Option<String>,
}

// === impl NpmConfig ===

impl NpmConfig {
    /// Reads variables and files, user before global. A file in the working directory is ignored: it may belong to any
    /// project.
    pub(super) fn read(variable: &VariableLookup, home: Option<&PathBuf>) -> Self {
        let setting = |name: &str| {
            let names = [name.to_uppercase(), name.to_lowercase()];
            names.iter().find_map(|name| variable(name)).filter(|value| !value.is_empty())
        };
        let user = setting("npm_config_userconfig").map(PathBuf::from);
        let global = setting("npm_config_globalconfig").map(PathBuf::from);
        let machine = ["/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"].map(PathBuf::from);
        let files = user.or_else(|| Some(home?.join(".npmrc"))).into_iter().chain(global).chain(machine);
        let texts = files.filter_map(|path| String::from_utf8(credentials::bytes(&path, MAX_CONFIG)?).ok());
        let files = texts.map(|text| parse(&text, &|name| variable(name)?.into_string().ok())).collect();
        let environment = setting("npm_config_registry").and_then(|value| value.into_string().ok());
        Self { files, environment, from_npm: None }
    }

    /// Runs npm to get the registry, if nothing else is configured.
    pub(super) async fn query_npm(&mut self, npm: Option<PathBuf>) {
        let (Some(npm), None, None) = (npm, &self.environment, self.setting("registry")) else { return };
        let configured = discovery::output_of(&npm, &["config", "get", "registry"], Path::new("/"), NPM_TIMEOUT).await;
        self.from_npm = configured.map(|text| text.trim().to_owned());
    }

    /// The registry of a package, with a trailing slash. That of its scope takes precedence.
    pub(super) fn registry(&self, package: &str) -> Option<Url> {
        let scope = package.split_once('/').map(|(scope, _)| format!("{scope}:registry"));
        let scoped = scope.and_then(|scope| self.setting(&scope));
        let configured = scoped.or(self.environment.as_deref()).or_else(|| self.setting("registry"));
        address(configured.or(self.from_npm.as_deref())?)
    }

    /// The authorization header for a URL: that of the longest matching path.
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

    /// Additional root certificates.
    pub(super) fn certificates(&self) -> Option<Vec<u8>> {
        credentials::bytes(Path::new(self.setting("cafile")?), MAX_CERTIFICATES)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.files.iter().find_map(|file| file.get(name)).map(String::as_str)
    }
}

/// Parses an HTTP URL and adds a trailing slash.
pub(super) fn address(text: &str) -> Option<Url> {
    let mut url = Url::parse(text.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Some(url)
}

/// Parses a configuration file: `key = value`, comments after `;` and `#`, variables as `${NAME}`.
fn parse(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with([';', '#']) {
            continue;
        }
        // Sections are not npm's.
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

/// Expands variables that are set, and keeps the others.
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

    fn npm(text: &str, environment: Option<&str>) -> NpmConfig {
        let variable = |name: &str| (name == "TOKEN").then(|| "from-variable".to_owned());
        NpmConfig { files: vec![parse(text, &variable)], environment: environment.map(Into::into), from_npm: None }
    }

    fn registry(npm: &NpmConfig, package: &str) -> String {
        npm.registry(package).map(String::from).unwrap_or_default()
    }

    #[test]
    fn a_scope_precedes_the_variable_which_precedes_the_file() {
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
    fn comments_quotes_sections_and_variables_are_parsed() {
        let text = "; registry=http://1.test\n# x\n\nflag\nregistry = \"http://2.test\"\n//2.test/:_authToken=${TOKEN}\n\
                    other=${UNSET}-${open\n[section]\nregistry=http://3.test";
        let npm = npm(text, None);
        assert_eq!(registry(&npm, "x"), "http://2.test/");
        assert_eq!(npm.setting("other"), Some("${UNSET}-${open"));
        assert_eq!(npm.login(&address("http://2.test/").unwrap()).unwrap(), "Bearer from-variable");
    }

    #[test]
    fn a_login_is_sent_only_to_its_own_host_and_path() {
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
    fn configuration_files_have_an_order() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".npmrc"), "registry=http://user.test/\n").unwrap();
        let global = home.path().join("global");
        std::fs::write(&global, format!("registry=http://global.test/\ncafile={}\n", global.display())).unwrap();
        let lookup: VariableLookup =
            Arc::new(move |name| (name == "npm_config_globalconfig").then(|| global.clone().into()));
        let npm = NpmConfig::read(&lookup, Some(&home.path().to_owned()));
        assert_eq!(registry(&npm, "x"), "http://user.test/");
        assert!(npm.certificates().unwrap().starts_with(b"registry="));
        std::fs::write(home.path().join("mine"), "registry=http://mine.test/\n").unwrap();
        let mine = home.path().join("mine");
        let lookup: VariableLookup =
            Arc::new(move |name| (name == "NPM_CONFIG_USERCONFIG").then(|| mine.clone().into()));
        assert_eq!(registry(&NpmConfig::read(&lookup, Some(&home.path().to_owned())), "x"), "http://mine.test/");
    }
}
