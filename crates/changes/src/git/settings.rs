//! What settings of git make it run or read.

/// What a setting is to git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingKind {
    /// A directory or file that is run or read as configuration.
    Path,
    /// Another file of settings, from the directory of this one.
    Include,
    /// Where the work tree is, from the git directory.
    WorkTree,
    /// A command, or something that may be one.
    Command,
    /// Neither.
    Plain,
}

/// Sections in which no setting is run, whatever its value.
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

/// Settings of a remote and of a submodule that name no command.
const PLAIN_NAMES: [&str; 12] =
    ["url", "fetch", "push", "pushurl", "mirror", "tagopt", "prune", "active", "branch", "path", "ignore", "promisor"];

/// What a setting is to git. One that is not known may be a command: tools beside git keep theirs there too.
pub(super) fn meaning(key: &str) -> SettingKind {
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

/// The words of a command that may name a file, and the command as a whole.
pub(super) fn words(value: &[u8]) -> Vec<Vec<u8>> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || b"'\"`;|&()<>={}!,".contains(byte);
    let expands = value.iter().any(|byte| matches!(byte, b'$' | b'`'));
    let mut words: Vec<Vec<u8>> = Vec::new();
    let whole = value.strip_prefix(b"!").unwrap_or(value).trim_ascii();
    for word in
        std::iter::once(whole).chain(value.split(ends)).filter(|word| !word.is_empty() && !word.starts_with(b"-"))
    {
        words.push(word.to_vec());
        // What the shell puts in front of it is not known: any end of the path may be one from the work tree.
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
    fn a_setting_is_a_command_unless_it_is_known_to_be_none() {
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
            assert_eq!(meaning(key), expected, "{key}");
        }
    }

    #[test]
    fn the_words_of_a_command_are_those_that_a_shell_could_open() {
        let has = |value: &str, word: &str| words(value.as_bytes()).contains(&word.as_bytes().to_vec());
        assert!(has("!sh -c './tools/a \"$1\"'", "./tools/a"));
        assert!(has("my tools/run", "my tools/run"));
        assert!(has("\"$(git rev-parse --show-toplevel)/tools/x\" -v", "tools/x"));
        assert!(has("$PWD/tools/x", "tools/x"));
        assert!(has("lint --config=ci/lint.toml", "ci/lint.toml"));
        assert!(!has("/usr/bin/tools/x", "tools/x"));
    }
}
