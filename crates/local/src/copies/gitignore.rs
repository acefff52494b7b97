//! The `.gitignore` at the top of a copied project.

use super::glob::Glob;

/// The rules of a `.gitignore` file, in file order.
#[derive(Clone, Debug, Default)]
pub(crate) struct GitIgnore(Vec<GitIgnoreRule>);

#[derive(Clone, Debug)]
struct GitIgnoreRule {
    glob: Glob,
    /// The pattern ended in `/`: it matches directories only.
    directories: bool,
    /// The pattern began with `!`: it re-includes what an earlier rule ignores.
    not: bool,
}

// === impl GitIgnore ===

impl GitIgnore {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.lines().filter_map(GitIgnoreRule::parse).collect())
    }

    /// Whether the path itself is ignored. The caller checks its parent directories first.
    pub(crate) fn matches(&self, path: &str, directory: bool) -> bool {
        let met = |rule: &&GitIgnoreRule| (directory || !rule.directories) && rule.glob.matches(path);
        // The last matching rule decides.
        self.0.iter().rev().find(met).is_some_and(|rule| !rule.not)
    }
}

// === impl GitIgnoreRule ===

impl GitIgnoreRule {
    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.starts_with('#') {
            return None;
        }
        let trimmed = line.trim_end_matches(' ');
        // A trailing space counts only if it is escaped.
        let line = if trimmed.ends_with('\\') && trimmed.len() < line.len() {
            line.get(..=trimmed.len()).unwrap_or(trimmed)
        } else {
            trimmed
        };
        let (not, line) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
        let (directories, line) = line.strip_suffix('/').map_or((false, line), |rest| (true, rest));
        if line.is_empty() {
            return None;
        }
        // A pattern without a slash matches the name in any directory.
        let glob = match line.strip_prefix('/') {
            Some(rooted) => Glob::new(rooted),
            None if line.contains('/') => Glob::new(line),
            None => Glob::new(line).at_any_depth(),
        };
        Some(Self { glob, directories, not })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_matching_rule_decides() {
        let gitignore = GitIgnore::new("# no rule\n\n*.o\n!keep.o\n/top\ndir/\na/b\n\\#odd\n/x/**/y\nspace\\ \n");
        for (path, directory, covered) in [
            ("a.o", false, true),
            ("deep/er/a.o", false, true),
            ("keep.o", false, false),
            ("top", false, true),
            ("deep/top", false, false),
            ("dir", true, true),
            ("deep/dir", true, true),
            ("dir", false, false),
            ("a/b", false, true),
            ("x/a/b", false, false),
            ("#odd", false, true),
            ("x/1/2/y", false, true),
            ("space ", false, true),
            ("other", false, false),
        ] {
            assert_eq!(gitignore.matches(path, directory), covered, "{path} {directory}");
        }
    }

    #[test]
    fn any_gitignore_file_parses() {
        bolero::check!().with_type::<(String, String, bool)>().for_each(|(text, path, directory)| {
            let _covered = GitIgnore::new(text).matches(path, *directory);
        });
    }
}
