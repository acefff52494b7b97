//! What git's settings make it run or read.

use super::config::GitSetting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingKind {
    /// A directory or file that is run or read as configuration.
    Path,
    /// Another settings file, relative to the directory of this one.
    Include,
    /// The work tree, relative to the git directory.
    WorkTree,
    /// A command, or a value that may be one.
    Command,
    /// Neither.
    Plain,
}

/// Sections whose settings are never run.
const PLAIN_SECTIONS: [&str; 16] = [
    "user",
    "author",
    "committer",
    "branch",
    "url",
    "color",
    "extensions",
    "push",
    "pull",
    "fetch",
    "advice",
    "column",
    "safe",
    "status",
    "log",
    "rerere",
];

/// Settings of a remote and of a submodule that are not commands.
const PLAIN_NAMES: [&str; 12] =
    ["url", "fetch", "push", "pushurl", "mirror", "tagopt", "prune", "active", "branch", "path", "ignore", "promisor"];

/// The kind of a setting. An unknown one may be a command: other tools also store theirs there.
pub(super) fn setting_kind(key: &str) -> SettingKind {
    let section = key.split('.').next().unwrap_or_default();
    let name = key.rsplit('.').next().unwrap_or_default();
    match (section, name) {
        ("include" | "includeif", "path") => SettingKind::Include,
        ("core", "worktree") => SettingKind::WorkTree,
        ("core", "hookspath" | "attributesfile" | "excludesfile") | ("init", "templatedir") => SettingKind::Path,
        ("gpg", "allowedsignersfile" | "revocationfile") => SettingKind::Path,
        ("remote" | "submodule", name) if PLAIN_NAMES.contains(&name) => SettingKind::Plain,
        (section, _) if PLAIN_SECTIONS.contains(&section) => SettingKind::Plain,
        _ => SettingKind::Command,
    }
}

/// Names of settings whose value git runs.
const RUN: [&str; 20] = [
    "clean",
    "smudge",
    "process",
    "command",
    "textconv",
    "driver",
    "cmd",
    "editor",
    "pager",
    "fsmonitor",
    "sshcommand",
    "askpass",
    "gitproxy",
    "program",
    "difffilter",
    "packobjectshook",
    "external",
    "alternaterefscommand",
    "defaultkeycommand",
    "helper",
];

/// The command of a setting, and whether git is known to run it. One that names a transport is a command as well.
pub(super) fn command(setting: &GitSetting) -> Option<(Vec<u8>, bool)> {
    let GitSetting { key, value } = setting;
    let name = key.rsplit('.').next().unwrap_or_default();
    match setting_kind(key) {
        SettingKind::Path | SettingKind::Include | SettingKind::WorkTree => None,
        SettingKind::Plain => {
            // `url.ext::….insteadOf` has the command in its key.
            let texts = [value.as_slice(), key.strip_suffix(name).unwrap_or(key).as_bytes()];
            let transport = |text: &&[u8]| text.windows(2).position(|part| part == b"::");
            let text = texts.into_iter().find(|text| transport(text).is_some())?;
            text.get(transport(&text)? + 2..).map(|command| (command.to_vec(), true))
        }
        SettingKind::Command if value.starts_with(b"!") => Some((value.clone(), true)),
        // These are commands of git itself.
        SettingKind::Command if key.starts_with("alias.") => Some(([b"git ", value.as_slice()].concat(), true)),
        SettingKind::Command if name == "helper" && !value.starts_with(b"/") => {
            Some(([b"git credential-", value.as_slice()].concat(), true))
        }
        SettingKind::Command => Some((value.clone(), RUN.contains(&name) || !key.contains('.'))),
    }
}

/// The words of a command that may name a file, and the command as a whole.
pub(super) fn words(value: &[u8]) -> Vec<Vec<u8>> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || b"'\"`;|&()<>={}!,@".contains(byte);
    let expands = value.iter().any(|byte| matches!(byte, b'$' | b'`'));
    let mut words: Vec<Vec<u8>> = Vec::new();
    let whole = value.strip_prefix(b"!").unwrap_or(value).trim_ascii();
    for word in
        std::iter::once(whole).chain(value.split(ends)).filter(|word| !word.is_empty() && !word.starts_with(b"-"))
    {
        words.push(word.to_vec());
        // The expansion before it is not known: any suffix of the path may be a path of the work tree.
        let slashes = word.iter().enumerate().filter(|(_, byte)| expands && **byte == b'/').map(|(at, _)| at);
        words.extend(slashes.filter_map(|at| word.get(at + 1..).filter(|end| !end.is_empty()).map(<[u8]>::to_vec)));
    }
    words.sort_unstable();
    words.dedup();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_setting_may_be_a_command() {
        for (key, expected) in [
            ("core.hookspath", SettingKind::Path),
            ("includeif.gitdir:~/a.b/.path", SettingKind::Include),
            ("include.path", SettingKind::Include),
            ("core.fsmonitor", SettingKind::Command),
            ("filter.a.b.smudge", SettingKind::Command),
            ("alias.x", SettingKind::Command),
            ("remote.origin.url", SettingKind::Plain),
            ("remote.origin.uploadpack", SettingKind::Command),
            ("submodule.x.update", SettingKind::Command),
            ("branch.main.merge", SettingKind::Plain),
            ("something.new", SettingKind::Command),
        ] {
            assert_eq!(setting_kind(key), expected, "{key}");
        }
    }

    #[test]
    fn a_setting_yields_the_command_that_git_would_run() {
        let of = |key: &str, value: &str| command(&GitSetting { key: key.to_owned(), value: value.into() });
        let is = |text: &str, sure| Some((text.as_bytes().to_vec(), sure));
        assert_eq!(of("filter.x.clean", "a b"), is("a b", true));
        assert_eq!(of("alias.x", "log -1"), is("git log -1", true));
        assert_eq!(of("alias.x", "!log"), is("!log", true));
        assert_eq!(of("credential.helper", "store"), is("git credential-store", true));
        assert_eq!(of("core.autocrlf", "input"), is("input", false));
        assert_eq!(of("remote.o.url", "ext::tools/conn %S"), is("tools/conn %S", true));
        assert_eq!(of("url.ext::tools/conn %S .insteadof", "x:"), is("tools/conn %S .", true));
        assert_eq!(of("remote.o.url", "https://x"), None);
        assert_eq!(of("core.hookspath", "x"), None);
        assert_eq!(of("GIT_SSH", "x"), is("x", true));
    }

    #[test]
    fn words_of_a_command_include_all_that_a_shell_could_open() {
        let has = |value: &str, word: &str| words(value.as_bytes()).contains(&word.as_bytes().to_vec());
        assert!(has("!sh -c './tools/a \"$1\"'", "./tools/a"));
        assert!(has("my tools/run", "my tools/run"));
        assert!(has("\"$(git rev-parse --show-toplevel)/tools/x\" -v", "tools/x"));
        assert!(has("$PWD/tools/x", "tools/x"));
        assert!(has("lint --config=ci/lint.toml", "ci/lint.toml"));
        assert!(!has("/usr/bin/tools/x", "tools/x"));
    }
}
