//! What a project says is no part of it: its `.gitignore`.

use super::glob::Glob;

/// The rules of a `.gitignore`, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct GitIgnore(Vec<GitIgnoreRule>);

#[derive(Clone, Debug)]
struct GitIgnoreRule {
    glob: Glob,
    /// It means directories alone.
    directories: bool,
    /// It says what is part of the project all the same.
    not: bool,
}

// === impl GitIgnore ===

impl GitIgnore {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.lines().filter_map(GitIgnoreRule::parse).collect())
    }

    /// Whether something is covered by itself; what it lies in is for the caller to ask about first.
    pub(crate) fn matches(&self, path: &str, directory: bool) -> bool {
        let met = |rule: &&GitIgnoreRule| (directory || !rule.directories) && rule.glob.matches(path);
        // The last that means it counts.
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
        // A space at the end counts if somebody says so.
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
        // Without a slash in it, it means whatever has the name, wherever.
        let glob = match line.strip_prefix('/') {
            Some(rooted) => Glob::new(rooted),
            None if line.contains('/') => Glob::new(line),
            None => Glob::new(line).anywhere(),
        };
        Some(Self { glob, directories, not })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_means_something_counts() {
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
    fn any_text_can_be_read() {
        bolero::check!().with_type::<(String, String, bool)>().for_each(|(text, path, directory)| {
            let _covered = GitIgnore::new(text).matches(path, *directory);
        });
    }
}
