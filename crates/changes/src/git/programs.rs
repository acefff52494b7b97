//! Programs in commands of git's settings, and what they load from their working directory.

/// What a program does with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// It runs the command that follows.
    Wrapper,
    /// It changes to a directory.
    Enter,
    /// It runs a shell script, or a command in one argument.
    Shell,
    /// It runs a script, a module or code.
    Interpreter,
    /// The same, and modules beside the script or in the working directory shadow others.
    Python,
    /// It runs commands from files with well-known names.
    Runner(&'static [&'static str]),
    /// It loads no code from the working directory except for files that its arguments name.
    Harmless,
    /// Unknown.
    Other,
}

/// Shell keywords before a command.
const RESERVED: &[&str] = &[
    "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "export", "local", "readonly",
    "declare", "typeset", "set", "function", "[[", "case", "esac", "for", "in", "select",
];
const WRAPPERS: &[&str] = &[
    "env", "exec", "command", "builtin", "eval", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "setsid",
    "sudo", "doas", "xargs", "flock", "chronic", "busybox", "unbuffer", "winpty", "parallel", "strace", "watch",
];
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh", ".", "source"];
const INTERPRETERS: &[&str] = &[
    "node",
    "nodejs",
    "ruby",
    "perl",
    "php",
    "lua",
    "luajit",
    "deno",
    "bun",
    "java",
    "groovy",
    "kotlin",
    "scala",
    "tclsh",
    "wish",
    "rscript",
    "julia",
    "ts-node",
    "tsx",
    "pwsh",
    "powershell",
    "elixir",
    "erl",
    "guile",
    "racket",
    "sbcl",
    "emacs",
    "ocaml",
    "runghc",
    "swift",
    "dart",
    "go",
    "coffee",
    "find",
    "fd",
    "run-parts",
];
const PYTHONS: &[&str] = &["python", "pythonw", "pypy", "ipython", "jython", "micropython"];
const HARMLESS: &[&str] = &[
    "git",
    "git-lfs",
    "less",
    "more",
    "most",
    "cat",
    "bat",
    "delta",
    "diff-so-fancy",
    "vi",
    "vim",
    "nvim",
    "gvim",
    "nano",
    "emacsclient",
    "code",
    "subl",
    "ssh",
    "gpg",
    "gpg2",
    "echo",
    "printf",
    "true",
    "false",
    "test",
    "[",
    "exit",
    "return",
    "shift",
    "read",
    "break",
    "continue",
    "cut",
    "tr",
    "head",
    "tail",
    "sort",
    "uniq",
    "wc",
    "tee",
    "grep",
    "gzip",
    "zcat",
    "base64",
    "xxd",
    "hexdump",
    "strings",
    "jq",
    "col",
    "fold",
    "touch",
    "basename",
    "dirname",
    "pwd",
    "sed",
    "awk",
    "gawk",
    "mawk",
    "nawk",
    "clang-format",
    "xmllint",
    "pandoc",
    "exiftool",
    "pdftotext",
    "openssl",
    "sops",
    "age",
    "indent",
    "iconv",
    "unzip",
    "tar",
    "xz",
    "zstd",
    "od",
    "rev",
    "expand",
    "unexpand",
    "nl",
    "paste",
    "gitk",
];
const PACKAGE: &[&str] = &["package.json", "node_modules", ".npmrc"];
const PYPROJECT: &[&str] = &["pyproject.toml", ".venv", "venv", "uv.toml"];

const RUNNERS: &[(&[&str], &[&str])] = &[
    (&["make", "gmake", "bmake"], &["makefile", "gnumakefile", "bsdmakefile"]),
    (&["npm", "npx", "pnpm", "pnpx", "yarn", "bunx", "corepack", "lint-staged"], PACKAGE),
    (&["just"], &["justfile", ".justfile"]),
    (&["rake"], &["rakefile", "rakefile.rb"]),
    (&["bundle", "bundler"], &["gemfile", "gems.rb", ".bundle"]),
    (&["uv", "uvx", "poetry", "pipx", "pipenv", "hatch", "pdm", "rye"], PYPROJECT),
    (&["tox"], &["tox.ini", "pyproject.toml", "setup.cfg"]),
    (&["nox"], &["noxfile.py"]),
    (&["invoke", "inv"], &["tasks.py", "tasks", "invoke.yaml"]),
    (&["task", "go-task"], &["taskfile.yml", "taskfile.yaml", "taskfile.dist.yml"]),
    (&["gradle"], &["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"]),
    (&["mvn"], &["pom.xml", ".mvn"]),
    (&["ant"], &["build.xml"]),
    (&["ninja"], &["build.ninja"]),
    (&["cmake"], &["cmakelists.txt", "cmakepresets.json"]),
    (&["composer"], &["composer.json", "vendor"]),
    (&["pre-commit"], &[".pre-commit-config.yaml"]),
];

/// Environment variables by which programs find what they load.
const LOADING: &[&str] = &["ENV", "LD_PRELOAD", "LD_AUDIT", "PYTHONSTARTUP", "PYTHONINSPECT", "LESSOPEN", "LESSCLOSE"];

// === impl ProgramKind ===

impl ProgramKind {
    pub(super) fn of(word: &[u8]) -> Self {
        let name = word.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_ascii_lowercase();
        let name = name.strip_suffix(b".exe").unwrap_or(&name);
        // `python3.12` is `python`.
        let end = name.iter().rposition(|byte| !byte.is_ascii_digit() && !matches!(byte, b'.' | b'-'));
        let plain = name.get(..end.map_or(0, |end| end + 1)).unwrap_or_default();
        let is = |names: &[&str]| names.iter().any(|known| [name, plain].contains(&known.as_bytes()));
        if is(WRAPPERS) {
            return Self::Wrapper;
        }
        if is(&["cd", "pushd"]) {
            return Self::Enter;
        }
        if is(SHELLS) {
            return Self::Shell;
        }
        if is(PYTHONS) {
            return Self::Python;
        }
        if is(INTERPRETERS) {
            return Self::Interpreter;
        }
        if let Some((_, files)) = RUNNERS.iter().find(|(names, _)| is(names)) {
            return Self::Runner(files);
        }
        if is(HARMLESS) || name.starts_with(b"git-") { Self::Harmless } else { Self::Other }
    }
}

/// Whether a program loads modules from the `node_modules` of every directory above its script.
pub(super) fn is_node(name: &[u8]) -> bool {
    [&b"node"[..], b"nodejs", b"ts-node", b"tsx", b"bun", b"coffee"].contains(&name)
}

/// Whether a word is a shell keyword before a command.
pub(super) fn is_reserved(word: &[u8]) -> bool {
    RESERVED.iter().any(|known| known.as_bytes() == word)
}

/// Whether programs load what a variable names.
pub(super) fn is_loading(variable: &[u8]) -> bool {
    let ends = |ends: &[&str]| ends.iter().any(|end| variable.ends_with(end.as_bytes()));
    LOADING.iter().any(|known| known.as_bytes() == variable)
        || ends(&["PATH", "LIB", "HOME", "OPT", "OPTS", "OPTIONS", "_ENV", "SHELL", "EDITOR", "PAGER", "COMMAND"])
}
