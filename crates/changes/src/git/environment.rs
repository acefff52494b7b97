//! The environment of the caller: homes, `PATH`, and git settings in variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::config::GitSetting;
use super::shell::ShellScript;
use crate::path::join;

/// The maximum number of settings in the environment.
const MAX_SETTINGS: usize = 10_000;
/// Variables whose value git runs.
const COMMANDS: [&str; 13] = [
    "GIT_SSH_COMMAND",
    "GIT_SSH",
    "GIT_EDITOR",
    "GIT_SEQUENCE_EDITOR",
    "GIT_PAGER",
    "GIT_EXTERNAL_DIFF",
    "GIT_ASKPASS",
    "GIT_PROXY_COMMAND",
    "SSH_ASKPASS",
    "VISUAL",
    "EDITOR",
    "PAGER",
    "LESSOPEN",
];

/// The caller's environment.
pub(super) struct GitEnvironment {
    variable: fn(&str) -> Option<OsString>,
    users: Vec<u8>,
    /// The homes whose settings may apply: that of the caller, and that of the owner of the project.
    pub(super) homes: Vec<Vec<u8>>,
}

// === impl GitEnvironment ===

impl GitEnvironment {
    pub(super) fn of_caller(owner: u32) -> Self {
        let users = std::fs::read("/etc/passwd").unwrap_or_default();
        Self::new(|name| std::env::var_os(name), users, owner)
    }

    fn new(variable: fn(&str) -> Option<OsString>, users: Vec<u8>, owner: u32) -> Self {
        let mut environment = Self { variable, users, homes: Vec::new() };
        let mut homes: Vec<Vec<u8>> = environment.value("HOME").into_iter().collect();
        homes.extend(environment.homes_of(2, owner.to_string().as_bytes()));
        homes.retain(|home| home.starts_with(b"/") && home.len() > 1);
        homes.dedup();
        environment.homes = homes;
        environment
    }

    fn value(&self, name: &str) -> Option<Vec<u8>> {
        (self.variable)(name).map(OsStringExt::into_vec)
    }

    /// The homes of users with this value in a field of `/etc/passwd`.
    fn homes_of(&self, field: usize, value: &[u8]) -> Vec<Vec<u8>> {
        let lines = self.users.split(|byte| *byte == b'\n');
        let home = |line: &[u8]| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
            fields.get(5).filter(|_| fields.get(field) == Some(&value)).map(|home| home.to_vec())
        };
        lines.filter_map(home).collect()
    }

    /// Expands `~` or `~user` to every possible home; `None` if the user is unknown.
    pub(super) fn expanded(&self, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        let Some(rest) = path.strip_prefix(b"~") else { return Some(vec![path.to_vec()]) };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (user, below) = (rest.get(..end)?, rest.get(end..)?);
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let homes = if user.is_empty() { self.homes.clone() } else { self.homes_of(0, user) };
        (!homes.is_empty()).then(|| homes.iter().map(|home| join(home, below)).collect())
    }

    /// Settings files that apply to every repository, and directories of such. A path may be relative.
    pub(super) fn files(&self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut files = vec![b"/etc/gitconfig".to_vec()];
        let mut directories = Vec::new();
        for home in &self.homes {
            files.push(join(home, b".gitconfig"));
            directories.push(join(home, b".config/git"));
        }
        let absolute = |name| self.value(name).filter(|path| path.starts_with(b"/"));
        files.extend(["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].into_iter().filter_map(|name| self.value(name)));
        directories.extend(absolute("XDG_CONFIG_HOME").map(|directory| join(&directory, b"git")));
        (files, directories)
    }

    /// Settings that are not from a file, each with its origin.
    pub(super) fn settings(&self) -> Vec<(String, GitSetting)> {
        let mut settings = Vec::new();
        let mut add = |key: &[u8], value: Vec<u8>| {
            let key = canonical(&String::from_utf8_lossy(key));
            settings.push(("the environment".to_owned(), GitSetting { key, value }));
        };
        let count = self.value("GIT_CONFIG_COUNT").and_then(|count| String::from_utf8(count).ok()?.trim().parse().ok());
        for number in 0..count.unwrap_or(0).min(MAX_SETTINGS) {
            if let Some(key) = self.value(&format!("GIT_CONFIG_KEY_{number}")) {
                add(&key, self.value(&format!("GIT_CONFIG_VALUE_{number}")).unwrap_or_default());
            }
        }
        // `'key=value'` or `'key'='value'`, each quoted for a shell.
        for word in ShellScript::parse(&self.value("GIT_CONFIG_PARAMETERS").unwrap_or_default()).commands.concat() {
            let equals = word.iter().position(|byte| *byte == b'=').unwrap_or(word.len());
            add(word.get(..equals).unwrap_or_default(), word.get(equals + 1..).unwrap_or_default().to_vec());
        }
        for name in COMMANDS {
            if let Some(value) = self.value(name) {
                settings.push(("the environment".to_owned(), GitSetting { key: name.to_owned(), value }));
            }
        }
        settings
    }

    /// The directories in which programs are searched.
    pub(super) fn path(&self) -> Vec<Vec<u8>> {
        let path = self.value("PATH").unwrap_or_default();
        path.split(|byte| *byte == b':').map(|part| if part.is_empty() { b"." } else { part }.to_vec()).collect()
    }
}

/// Whether a directory of the host contains such a program.
pub(super) fn has_program(directory: &[u8], name: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(&join(directory, name))).is_file()
}

/// The key of a setting as in a settings file: section and name in lower case.
fn canonical(key: &str) -> String {
    let (Some(first), Some(last)) = (key.find('.'), key.rfind('.')) else { return key.to_ascii_lowercase() };
    let part = |from, to| key.get(from..to).unwrap_or_default();
    let (section, name) = (part(0, first).to_ascii_lowercase(), part(last, key.len()).to_ascii_lowercase());
    format!("{section}{}{name}", part(first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<OsString> {
        let value = match name {
            "HOME" => "/home/a",
            "GIT_CONFIG_GLOBAL" => "/p/global",
            "GIT_CONFIG_SYSTEM" => "/p/system",
            "GIT_CONFIG_COUNT" => "1",
            "GIT_CONFIG_KEY_0" => "Filter.Big.Clean",
            "GIT_CONFIG_VALUE_0" => "tools/x",
            "GIT_CONFIG_PARAMETERS" => "'core.hooksPath=a b' 'core.editor'='e'\\''f'",
            "GIT_SSH_COMMAND" => "tools/ssh",
            _ => return None,
        };
        Some(value.into())
    }

    fn environment() -> GitEnvironment {
        GitEnvironment::new(variable, b"root:x:0:0:r:/root:/bin/sh\nb:x:7:7::/home/b:/bin/sh\n".to_vec(), 7)
    }

    #[test]
    fn settings_are_read_from_the_environment() {
        let settings = environment().settings();
        let found: Vec<_> = settings.iter().map(|(_, set)| (set.key.as_str(), set.value.as_slice())).collect();
        assert_eq!(
            found,
            [
                ("filter.Big.clean", &b"tools/x"[..]),
                ("core.hookspath", b"a b"),
                ("core.editor", b"e'f"),
                ("GIT_SSH_COMMAND", b"tools/ssh")
            ]
        );
        let (files, _) = environment().files();
        assert!(files.contains(&b"/p/global".to_vec()) && files.contains(&b"/p/system".to_vec()), "{files:?}");
    }

    #[test]
    fn a_tilde_resolves_to_the_home_of_the_named_user() {
        let expanded = |path: &str| environment().expanded(path.as_bytes());
        assert_eq!(expanded("~/x"), Some(vec![b"/home/a/x".to_vec(), b"/home/b/x".to_vec()]));
        assert_eq!(expanded("~root/p/x"), Some(vec![b"/root/p/x".to_vec()]));
        assert_eq!(expanded("~no-such-user/x"), None);
        assert_eq!(expanded("a/~b"), Some(vec![b"a/~b".to_vec()]));
    }
}
