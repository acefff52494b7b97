//! Files that tools run or load automatically: changes to them are applied with a warning.

use std::fmt;

use crate::change::{ChangeKind, FileChange, Node};
use crate::path::RelativePath;

/// A changed file that a tool runs or loads automatically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoRunChange {
    pub path: RelativePath,
    /// The tool, and when it runs the file.
    pub kind: AutoRunKind,
}

/// Why a changed file deserves a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoRunKind {
    /// It configures where submodules are fetched from.
    Submodules,
    /// It selects the configured programs by which git filters, compares and merges files.
    Attributes,
    /// A tool runs it, or a command in it.
    Tool {
        tool: &'static str,
        /// When the tool runs it.
        when: &'static str,
    },
}

/// Displays warnings, with submodules apart.
#[derive(Debug)]
pub struct AutoRunList<'a>(pub &'a [AutoRunChange]);

/// How a file is recognized. Names are case-insensitive.
enum AutoRunPattern {
    /// By its name, in any directory.
    Name(&'static str),
    /// By the end of its path.
    Path(&'static str),
    /// By a directory above it, at any depth.
    Below(&'static str),
    /// By the end of its name.
    Suffix(&'static str),
    /// By the start of its name.
    Start(&'static str),
}

use AutoRunPattern::{Below, Name, Path, Start, Suffix};

const ENTER: &str = "when a shell enters the directory";
const OPEN: &str = "when the directory is opened";
const INSTALL: &str = "when packages are installed";
const COMMIT: &str = "when something is committed";
const BUILD: &str = "when the project is built, or opened in an editor";
const START: &str = "when it is started here";
const PUSH: &str = "when it is pushed";
const INSTRUCTED: &str = "when they work here: it contains instructions for them";

/// Extensions of code that a tool may load.
macro_rules! codes {
    ($stem:literal) => {
        &[
            Name(concat!($stem, ".js")),
            Name(concat!($stem, ".cjs")),
            Name(concat!($stem, ".mjs")),
            Name(concat!($stem, ".ts")),
            Name(concat!($stem, ".cts")),
            Name(concat!($stem, ".mts")),
        ]
    };
}

/// The files, each with the tool that runs it and when. What a person runs by name, such as a `Makefile`, is not
/// listed.
const TABLE: &[(&[AutoRunPattern], &str, &str)] = &[
    (&[Name(".envrc"), Below(".direnv")], "direnv", ENTER),
    (&[Name("mise.toml"), Name(".mise.toml"), Name("mise.local.toml"), Name(".mise.local.toml")], "mise", ENTER),
    (&[Below(".mise"), Below(".config/mise"), Name(".tool-versions")], "mise", ENTER),
    (&[Below(".vscode"), Suffix(".code-workspace")], "Visual Studio Code", OPEN),
    (&[Below(".idea"), Below(".fleet")], "JetBrains IDEs", OPEN),
    (&[Below(".zed")], "Zed", OPEN),
    (&[Below(".helix")], "Helix", OPEN),
    (&[Suffix(".sublime-project")], "Sublime Text", OPEN),
    (&[Name(".exrc"), Name(".vimrc"), Name("_vimrc"), Name(".gvimrc"), Name(".lvimrc")], "Vim", START),
    (&[Name(".nvimrc"), Name(".nvim.lua")], "Neovim", START),
    (&[Name(".dir-locals.el"), Name(".dir-locals-2.el")], "Emacs", OPEN),
    (&[Below(".devcontainer"), Name(".devcontainer.json"), Name(".gitpod.yml")], "development containers", OPEN),
    (&[Below(".claude"), Below(".codex"), Below(".gemini"), Below(".opencode")], "coding agents", START),
    (&[Below(".cursor"), Name(".mcp.json")], "coding agents", START),
    (&[Name("AGENTS.md"), Name("CLAUDE.md"), Name("CLAUDE.local.md"), Name("GEMINI.md")], "coding agents", INSTRUCTED),
    (&[Name(".cursorrules"), Name(".windsurfrules"), Name("copilot-instructions.md")], "coding agents", INSTRUCTED),
    (&[Name("package.json"), Name("binding.gyp"), Name(".npmrc")], "npm", INSTALL),
    (&[Name(".pnpmfile.cjs"), Name("pnpm-workspace.yaml")], "pnpm", INSTALL),
    (&[Name(".yarnrc"), Name(".yarnrc.yml"), Below(".yarn")], "Yarn", START),
    (&[Name("bunfig.toml")], "Bun", START),
    (&[Name("composer.json")], "Composer", INSTALL),
    (&[Name("setup.py")], "pip", INSTALL),
    (&[Name("sitecustomize.py"), Name("usercustomize.py"), Suffix(".pth")], "Python", START),
    (&[Name("conftest.py")], "pytest", "when tests are collected, also by an editor"),
    (&[Name(".pylintrc"), Name("pylintrc")], "Pylint", OPEN),
    (&[Below(".husky"), Below(".githooks"), Below("git-hooks")], "hooks of git", COMMIT),
    (&[Name(".pre-commit-config.yaml"), Name(".pre-commit-hooks.yaml")], "pre-commit", COMMIT),
    (
        &[Start("lefthook."), Start(".lefthook."), Start("lefthook-local."), Start(".lefthook-local.")],
        "Lefthook",
        COMMIT,
    ),
    (&[Below(".lefthook"), Below(".lefthook-local"), Path(".config/lefthook.yml")], "Lefthook", COMMIT),
    (&[Name(".lintstagedrc"), Start(".lintstagedrc."), Start("lint-staged.config.")], "lint-staged", COMMIT),
    (&[Name(".commitlintrc"), Start(".commitlintrc."), Start("commitlint.config.")], "commitlint", COMMIT),
    (&[Name(".czrc"), Start(".cz-config."), Start(".cz."), Start("cz.config.")], "Commitizen", COMMIT),
    (
        &[Name(".simple-git-hooks.json"), Start(".simple-git-hooks."), Start("simple-git-hooks.")],
        "hooks of git",
        COMMIT,
    ),
    (&[Name(".huskyrc"), Start(".huskyrc."), Start("husky.config."), Below(".githooks.d")], "hooks of git", COMMIT),
    (
        &[Name("captainhook.json"), Name("grumphp.yml"), Name("grumphp.yml.dist"), Name("prek.toml")],
        "hooks of git",
        COMMIT,
    ),
    (&[Name(".overcommit.yml")], "Overcommit", COMMIT),
    (&[Path(".cargo/config.toml"), Path(".cargo/config"), Name("build.rs")], "Cargo", BUILD),
    (&[Name("rust-toolchain"), Name("rust-toolchain.toml")], "rustup", BUILD),
    (&[Name("build.gradle"), Name("build.gradle.kts"), Name("settings.gradle")], "Gradle", BUILD),
    (&[Name("settings.gradle.kts"), Name("init.gradle"), Below("gradle/wrapper")], "Gradle", BUILD),
    (&[Below(".mvn")], "Maven", BUILD),
    (&[Name(".bazelrc"), Name(".bazelversion"), Path("tools/bazel")], "Bazel", BUILD),
    (codes!(".eslintrc"), "ESLint", OPEN),
    (codes!("eslint.config"), "ESLint", OPEN),
    (codes!(".prettierrc"), "Prettier", OPEN),
    (codes!("prettier.config"), "Prettier", OPEN),
    (codes!(".stylelintrc"), "Stylelint", OPEN),
    (codes!("stylelint.config"), "Stylelint", OPEN),
    (codes!("tailwind.config"), "Tailwind CSS", OPEN),
    (codes!("svelte.config"), "Svelte", OPEN),
    (codes!("vitest.config"), "Vitest", OPEN),
    (codes!("jest.config"), "Jest", OPEN),
    (&[Name(".lfsconfig")], "Git LFS", "when files are fetched"),
    (&[Below(".hg")], "Mercurial", START),
    (&[Below(".jj")], "Jujutsu", START),
    (&[Name(".gdbinit"), Name(".lldbinit")], "debuggers", START),
    (&[Name(".bashrc"), Name(".bash_profile"), Name(".bash_login"), Name(".profile")], "shells", START),
    (&[Name(".zshrc"), Name(".zshenv"), Name(".zprofile"), Name(".zlogin")], "shells", START),
    (&[Below(".ssh")], "ssh", START),
    (&[Name(".Rprofile"), Name(".Renviron")], "R", START),
    (&[Name(".irbrc"), Name(".pryrc")], "Ruby", START),
    (&[Name(".ghci")], "GHCi", START),
    (&[Name(".ocamlinit")], "OCaml", START),
    (&[Below(".github/workflows"), Below(".github/actions")], "GitHub Actions", PUSH),
    (&[Name(".gitlab-ci.yml"), Below(".gitlab/ci")], "GitLab CI", PUSH),
    (&[Below(".circleci"), Name(".travis.yml"), Name("Jenkinsfile"), Below(".buildkite")], "the CI service", PUSH),
    (&[Name("azure-pipelines.yml"), Name("bitbucket-pipelines.yml"), Name(".drone.yml")], "the CI service", PUSH),
    (&[Name(".woodpecker.yml"), Below(".woodpecker"), Below(".forgejo/workflows")], "the CI service", PUSH),
];

// === impl AutoRunChange ===

impl AutoRunChange {
    /// The warnings for changes, sorted by path. Deleted files are not run.
    pub(crate) fn of(changes: &[FileChange]) -> Vec<Self> {
        changes.iter().filter_map(FileChange::mark).collect()
    }
}

impl fmt::Display for AutoRunChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.kind)
    }
}

// === impl AutoRunKind ===

impl AutoRunKind {
    fn of(path: &RelativePath) -> Option<Self> {
        let folded = path.as_bytes().to_ascii_lowercase();
        match path.name().to_ascii_lowercase().as_slice() {
            b".gitmodules" => return Some(Self::Submodules),
            b".gitattributes" => return Some(Self::Attributes),
            _ => {}
        }
        Self::find(|pattern| pattern.matches(&folded))
    }

    /// The warning for a symlink that replaces a directory, whose target is then loaded instead.
    fn of_directory(path: &RelativePath) -> Option<Self> {
        let folded = path.as_bytes().to_ascii_lowercase();
        Self::find(|pattern| pattern.is_above(&folded))
    }

    fn find(fits: impl Fn(&AutoRunPattern) -> bool) -> Option<Self> {
        let row = TABLE.iter().find(|(patterns, _, _)| patterns.iter().any(&fits))?;
        Some(Self::Tool { tool: row.1, when: row.2 })
    }

    /// The tool that it is about.
    pub fn tool(&self) -> &'static str {
        match self {
            Self::Submodules | Self::Attributes => "git",
            Self::Tool { tool, .. } => tool,
        }
    }
}

impl fmt::Display for AutoRunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submodules => f.write_str("git fetches submodules from the URLs in it"),
            Self::Attributes => f.write_str("git runs the filters, comparisons and merges that it selects"),
            Self::Tool { tool, when } => write!(f, "run or followed by {tool} {when}"),
        }
    }
}

// === impl AutoRunList ===

impl fmt::Display for AutoRunList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let submodules = |mark: &&AutoRunChange| mark.kind == AutoRunKind::Submodules;
        let mut section = |head: &str, marks: Vec<&AutoRunChange>| {
            if marks.is_empty() {
                return Ok(());
            }
            writeln!(f, "{head}")?;
            marks.iter().try_for_each(|mark| writeln!(f, "  {mark}"))
        };
        section("changes of submodules:", self.0.iter().filter(submodules).collect())?;
        let tools = self.0.iter().filter(|mark| !submodules(mark)).collect();
        section("changes that tools run or follow by themselves, outside the sandbox:", tools)
    }
}

// === impl AutoRunPattern ===

impl AutoRunPattern {
    /// Whether a lower-case path matches.
    fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match self {
            Name(known) => name.eq_ignore_ascii_case(known.as_bytes()),
            Suffix(known) => name.ends_with(known.as_bytes()),
            Start(known) => name.starts_with(known.as_bytes()),
            Path(known) => ends_with_names(path, known.as_bytes()),
            Below(known) => {
                let (path, known) = ([b"/", path].concat(), [b"/", known.as_bytes(), b"/"].concat());
                path.windows(known.len()).any(|part| part == known.as_slice())
            }
        }
    }

    /// Whether files of this pattern are below a lower-case path.
    fn is_above(&self, path: &[u8]) -> bool {
        let ends = |directory: &str| ends_with_names(path, directory.as_bytes());
        let above = |known: &'static str| known.match_indices('/').any(|(at, _)| known.get(..at).is_some_and(ends));
        match self {
            Path(known) => above(known),
            Below(known) => ends(known) || above(known),
            Name(_) | Suffix(_) | Start(_) => false,
        }
    }
}

/// Whether a path ends with these components.
fn ends_with_names(path: &[u8], names: &[u8]) -> bool {
    [b"/", path].concat().ends_with(&[b"/", names].concat())
}

// === impl FileChange ===

impl FileChange {
    /// Why a path deserves a warning, if it does.
    pub fn mark(&self) -> Option<AutoRunChange> {
        let gone = matches!(self.kind, ChangeKind::Deleted | ChangeKind::Skipped);
        let kind = match self.node {
            _ if gone || self.files == 0 => None,
            Node::Symlink { .. } => AutoRunKind::of(&self.path).or_else(|| AutoRunKind::of_directory(&self.path)),
            _ => AutoRunKind::of(&self.path),
        };
        kind.map(|kind| AutoRunChange { path: self.path.clone(), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(path: &str) -> Option<&'static str> {
        AutoRunKind::of(&RelativePath::new(path).unwrap()).map(|kind| kind.tool())
    }

    #[test]
    fn files_that_tools_run_are_recognized_at_any_depth() {
        for (path, expected) in [
            (".envrc", "direnv"),
            ("a/b/.ENVRC", "direnv"),
            (".vscode/tasks.json", "Visual Studio Code"),
            ("sub/.vscode/settings.json", "Visual Studio Code"),
            ("web/package.json", "npm"),
            (".cargo/config.toml", "Cargo"),
            ("x/.cargo/config", "Cargo"),
            (".github/workflows/ci.yml", "GitHub Actions"),
            (".husky/pre-commit", "hooks of git"),
            ("lib/a.pth", "Python"),
            ("agents.md", "coding agents"),
            (".gitmodules", "git"),
            ("a/.gitattributes", "git"),
            (".lintstagedrc.mjs", "lint-staged"),
            ("lint-staged.config.ts", "lint-staged"),
            (".lefthook-local.toml", "Lefthook"),
            ("commitlint.config.cjs", "commitlint"),
            (".prettierrc.mjs", "Prettier"),
            ("eslint.config.mts", "ESLint"),
        ] {
            assert_eq!(tool(path), Some(expected), "{path}");
        }
        for path in [
            "Makefile",
            "src/main.c",
            "cargo/config.toml",
            "xpackage.json",
            ".prettierrc.json",
            ".github/x",
            "vscode/tasks.json",
        ] {
            assert_eq!(tool(path), None, "{path}");
        }
    }

    #[test]
    fn every_pattern_of_the_table_matches_something() {
        for (patterns, tool, _) in TABLE {
            for pattern in *patterns {
                let (text, path) = match pattern {
                    Name(name) => (name, (*name).to_owned()),
                    Path(end) => (end, format!("a/{end}")),
                    Below(directory) => (directory, format!("{directory}/x")),
                    Suffix(end) => (end, format!("x{end}")),
                    Start(start) => (start, format!("{start}x")),
                };
                let lower = text.to_ascii_lowercase();
                assert!(matches!(pattern, Name(_)) || lower == **text, "{text} is compared in small letters");
                assert_eq!(
                    AutoRunKind::of(&RelativePath::new(path).unwrap()).map(|kind| kind.tool()),
                    Some(*tool),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_symlink_that_replaces_a_directory_gets_the_warning_of_its_content() {
        let mark = |path: &str, node| {
            let path = RelativePath::new(path).unwrap();
            FileChange { path, kind: ChangeKind::Added, node, files: 1 }.mark().map(|mark| mark.kind.tool())
        };
        for (path, expected) in [
            (".vscode", "Visual Studio Code"),
            ("a/.husky", "hooks of git"),
            (".CARGO", "Cargo"),
            (".claude", "coding agents"),
            (".github", "GitHub Actions"),
            (".github/workflows", "GitHub Actions"),
        ] {
            assert_eq!(mark(path, Node::Symlink { target: b"v".to_vec() }), Some(expected), "{path}");
            assert_eq!(mark(path, Node::File { size: 1, mode: 0o644 }), None, "{path}");
        }
        for path in ["vscode", "x.vscode", "workflows", "config"] {
            assert_eq!(mark(path, Node::Symlink { target: b"v".to_vec() }), None, "{path}");
        }
    }

    #[test]
    fn submodules_are_listed_separately() {
        let marks: Vec<_> = ["b/.envrc", ".gitmodules"]
            .map(|path| RelativePath::new(path).unwrap())
            .map(|path| AutoRunChange { kind: AutoRunKind::of(&path).unwrap(), path })
            .into();
        assert_eq!(
            AutoRunList(&marks).to_string(),
            "changes of submodules:\n  .gitmodules: git fetches submodules from the URLs in it\n\
             changes that tools run or follow by themselves, outside the sandbox:\n  \
             b/.envrc: run or followed by direnv when a shell enters the directory\n"
        );
        assert_eq!(AutoRunList(&[]).to_string(), "");
    }
}
