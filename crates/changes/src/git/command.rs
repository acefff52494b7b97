//! The files that a command of git's settings loads, as far as its words tell.
//!
//! Programs find files by more than a path: a module by its name, a directory by its content, and everything in a directory
//! that a shell enters or searches. Where the location is not certain, the name counts at any path.

use std::collections::{BTreeMap, BTreeSet};

use super::NamedExtent;
use super::programs::{ProgramKind, is_loading, is_node, is_reserved};
use super::settings::words;
use super::shell::ShellScript;

/// The maximum nesting of commands in words of commands.
const MAX_DEPTH: usize = 4;

/// The files that a command loads.
#[derive(Debug, Default)]
pub(super) struct LoadedFiles {
    /// Paths, relative to its working directory.
    pub(super) paths: BTreeMap<Vec<u8>, NamedExtent>,
    /// Further base directories of the paths.
    pub(super) bases: BTreeSet<Vec<u8>>,
    /// File names that count at any path.
    pub(super) names: BTreeSet<Vec<u8>>,
    /// Names of files with or without their extension, or of directories, that count at any path.
    pub(super) modules: BTreeSet<Vec<u8>>,
    /// Directories in which a new module shadows one elsewhere.
    pub(super) shadows: BTreeSet<Vec<u8>>,
    /// Programs that the shell searches in `PATH`.
    pub(super) programs: BTreeSet<Vec<u8>>,
}

struct CommandReader {
    loads: LoadedFiles,
    functions: BTreeSet<Vec<u8>>,
    /// The base of paths is not certain: the shell changes its directory, or expands a variable.
    loose: bool,
    /// Programs are searched in other directories than those of the caller.
    path: bool,
    /// The program is not known: it may be any word.
    open: bool,
}

// === impl LoadedFiles ===

impl LoadedFiles {
    /// Parses a command. `sure` is whether git runs the setting; otherwise the setting is an unknown one.
    pub(super) fn of(value: &[u8], sure: bool) -> Self {
        let text = value.strip_prefix(b"!").unwrap_or(value);
        let mut reader = CommandReader {
            loads: Self::default(),
            functions: BTreeSet::new(),
            loose: false,
            path: false,
            open: false,
        };
        reader.scan(text);
        reader.script(text, 0);
        if reader.open {
            for word in pieces(text) {
                reader.module(&word);
            }
            reader.loads.paths.values_mut().for_each(|extent| *extent = NamedExtent::Whole);
        }
        for word in words(value) {
            reader.loads.paths.entry(word).or_insert(NamedExtent::Only);
        }
        let mut loads = reader.loads;
        loads.paths.retain(|path, _| !path.is_empty());
        if !sure {
            loads.programs.clear();
        }
        loads
    }
}

// === impl CommandReader ===

impl CommandReader {
    /// Collects what applies to the whole command.
    fn scan(&mut self, text: &[u8]) {
        let mut words = text.split(|byte| ends(byte) || b"'\"".contains(byte));
        self.path = text.windows(5).any(|part| part == b"PATH=");
        self.loose = words.any(|word| {
            ProgramKind::of(word) == ProgramKind::Enter
                || matches!(word, b"-C" | b"eval" | b"--prefix" | b"--cwd" | b"--directory" | b"--chdir")
        });
    }

    fn script(&mut self, text: &[u8], depth: usize) {
        let script = ShellScript::parse(text);
        self.functions.extend(script.functions);
        for words in &script.commands {
            self.command(words, depth);
        }
    }

    fn command(&mut self, words: &[Vec<u8>], depth: usize) {
        for word in words {
            self.path(word, NamedExtent::Only);
        }
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            if let Some((name, value)) = assignment(word) {
                self.assigned(name, value);
                self.parse_nested_command(value, depth);
            } else if ProgramKind::of(word) == ProgramKind::Wrapper {
                behind.iter().for_each(|word| self.parse_nested_command(word, depth));
                // Its options precede the command, and some have values.
                let start = behind.iter().position(|word| {
                    assignment(word).is_some()
                        || !word.starts_with(b"-")
                            && (word.contains(&b'/') || ProgramKind::of(word) != ProgramKind::Other)
                });
                let start = start.or_else(|| behind.iter().position(|word| !word.starts_with(b"-")));
                rest = behind.get(start.unwrap_or(behind.len())..).unwrap_or_default();
                continue;
            } else if !is_reserved(word) {
                break;
            }
            rest = behind;
        }
        if let [program, arguments @ ..] = rest {
            self.program(program, arguments, depth);
        }
    }

    /// A word may be a command itself, like that of `sh -c`.
    fn parse_nested_command(&mut self, word: &[u8], depth: usize) {
        if depth < MAX_DEPTH && word.iter().any(|byte| byte.is_ascii_whitespace() || b";|&".contains(byte)) {
            self.script(word, depth + 1);
        }
    }

    fn program(&mut self, word: &[u8], arguments: &[Vec<u8>], depth: usize) {
        let name = last(word);
        if ProgramKind::of(word) != ProgramKind::Harmless || name == b"git" {
            arguments.iter().for_each(|word| self.parse_nested_command(word, depth));
        }
        if name == b"git" {
            // Its own options name directories of hooks and of programs: `-c core.hooksPath=DIR`, `--exec-path=DIR`.
            let names_directory = |word: &&Vec<u8>| {
                let key = word.iter().position(|byte| *byte == b'=').and_then(|equals| word.get(..equals));
                key.is_some_and(|key| key.to_ascii_lowercase().ends_with(b"path"))
            };
            arguments.iter().filter(names_directory).for_each(|word| self.path(word, NamedExtent::Whole));
        }
        if self.functions.contains(word) {
            return;
        }
        if is_variable(name) {
            // The arguments of the caller are not checked here; a variable may expand to any of these words.
            self.open |= !is_argument(name);
        } else if word.contains(&b'/') {
            self.add_unresolved_path(word, false);
        } else {
            self.loads.programs.insert(word.to_vec());
            if self.path {
                self.name(name);
            }
        }
        if is_node(name) {
            self.module(b"node_modules");
        }
        let kind = ProgramKind::of(word);
        if matches!(kind, ProgramKind::Shell | ProgramKind::Interpreter | ProgramKind::Python) {
            // It runs what it reads from its input, which may be any word of the command.
            self.open |= arguments.iter().all(|word| word.starts_with(b"-"));
        }
        match kind {
            ProgramKind::Enter => self.loads.bases.extend(arguments.iter().cloned()),
            ProgramKind::Shell => self.scripts(arguments, false),
            ProgramKind::Interpreter => self.scripts(arguments, true),
            ProgramKind::Python => {
                self.scripts(arguments, true);
                self.shadows(arguments);
            }
            ProgramKind::Runner(files) => self.runner(files, arguments, depth),
            ProgramKind::Other => self.started(arguments, depth),
            ProgramKind::Wrapper | ProgramKind::Harmless => {}
        }
    }

    /// What an unknown program may start: `conda run -n x python …`
    fn started(&mut self, arguments: &[Vec<u8>], depth: usize) {
        for (number, word) in arguments.iter().enumerate().filter(|_| depth < MAX_DEPTH) {
            let starts = matches!(
                ProgramKind::of(word),
                ProgramKind::Shell | ProgramKind::Interpreter | ProgramKind::Python | ProgramKind::Runner(_)
            );
            if starts && word != b"." {
                return self.command(arguments.get(number..).unwrap_or_default(), depth + 1);
            }
        }
    }

    /// The script of an interpreter, and what its options name. The words after the script are the script's own.
    fn scripts(&mut self, arguments: &[Vec<u8>], modules: bool) {
        let mut behind_option = false;
        for word in arguments {
            let is_option = word.starts_with(b"-") || word.starts_with(b"+");
            if is_option {
                for value in values(word) {
                    self.loaded(value, true, modules);
                }
            } else {
                self.loaded(word, behind_option, modules);
            }
            if !is_option && !behind_option {
                return;
            }
            behind_option = is_option;
        }
    }

    fn loaded(&mut self, word: &[u8], behind_option: bool, modules: bool) {
        if is_variable(last(word)) {
            self.open |= !is_argument(last(word));
            return;
        }
        let is_code = word.iter().any(|byte| byte.is_ascii_whitespace() || b";(){}".contains(byte));
        match (modules, is_code) {
            (true, true) => pieces(word).iter().for_each(|word| self.module(word)),
            (false, true) => {}
            (true, false) => {
                self.path(word, NamedExtent::Module);
                // A module is searched in more directories than this one.
                self.add_unresolved_path(word, true);
                if behind_option {
                    self.module(last(word));
                    let parts = word.split(|byte| b".:".contains(byte));
                    parts.filter(|_| !word.contains(&b'/')).for_each(|part| self.module(part));
                }
            }
            (false, false) => self.add_unresolved_path(word, false),
        }
    }

    /// A path that only the shell can resolve: its name counts at any path, and so does everything below its known prefix.
    fn add_unresolved_path(&mut self, word: &[u8], module: bool) {
        let expands = |part: &[u8]| part.iter().any(|byte| b"*?[{$".contains(byte));
        if !self.loose && !expands(word) {
            return;
        }
        let name = last(word);
        if !expands(name) || !has_choice(name) {
            if module { self.module(name) } else { self.name(name) }
        } else {
            pieces(name).iter().for_each(|name| if module { self.module(name) } else { self.name(name) });
        }
        let certain: Vec<&[u8]> = word.split(|byte| *byte == b'/').take_while(|part| !expands(part)).collect();
        if expands(word) && certain.iter().any(|part| !part.is_empty()) {
            self.path(&certain.join(&b'/'), NamedExtent::Whole);
        }
    }

    /// Python searches modules beside a script first, and for `-m` and `-c` in the working directory.
    fn shadows(&mut self, arguments: &[Vec<u8>]) {
        let script = arguments.iter().find(|word| !word.starts_with(b"-") && word.contains(&b'/'));
        let here = arguments.iter().any(|word| {
            word.starts_with(b"-") && !word.starts_with(b"--") && word.iter().any(|byte| matches!(byte, b'm' | b'c'))
        });
        if here || script.is_none() {
            self.loads.shadows.insert(b".".to_vec());
        }
        let above = |script: &Vec<u8>| {
            script.iter().rposition(|byte| *byte == b'/').and_then(|at| script.get(..at).map(<[u8]>::to_vec))
        };
        self.loads.shadows.extend(script.and_then(above));
    }

    fn runner(&mut self, files: &[&str], arguments: &[Vec<u8>], depth: usize) {
        let names_file =
            |word: &Vec<u8>| word.starts_with(b"-f") || word.starts_with(b"--file") || word.starts_with(b"--makefile");
        let is_make = files.contains(&"gnumakefile");
        if !(is_make && arguments.iter().any(names_file)) {
            files.iter().for_each(|file| self.module(file.as_bytes()));
        }
        let mut behind_option = false;
        for (number, word) in arguments.iter().enumerate() {
            let is_option = word.starts_with(b"-");
            let named = if is_option { values(word) } else { vec![word.as_slice()] };
            for value in named.into_iter().filter(|_| is_option || behind_option) {
                self.path(value, NamedExtent::Whole);
                self.module(last(value));
                self.loads.bases.insert(value.to_vec());
            }
            // `uv run python …`
            if !is_make && !is_option && depth < MAX_DEPTH {
                let skip = usize::from(matches!(word.as_slice(), b"run" | b"exec" | b"x" | b"dlx" | b"--"));
                self.command(arguments.get(number + skip..).unwrap_or_default(), depth + 1);
                return;
            }
            behind_option = is_option && !(is_make && takes_no_value(word));
        }
    }

    fn assigned(&mut self, name: &[u8], value: &[u8]) {
        let loading = is_loading(name);
        if loading {
            for word in pieces(value) {
                self.name(&word);
            }
        }
        for part in value.split(|byte| matches!(byte, b':' | b' ')).filter(|part| !part.is_empty()) {
            self.path(part, if loading { NamedExtent::Whole } else { NamedExtent::Only });
            self.loads.bases.insert(part.to_vec());
            if name == b"PYTHONPATH" {
                self.loads.shadows.insert(part.to_vec());
            }
            if loading && !is_variable(last(part)) {
                self.module(last(part));
            }
        }
    }

    /// A word as a path, and the path after the letters of an option.
    fn path(&mut self, word: &[u8], extent: NamedExtent) {
        for path in values(word).into_iter().chain([word]).filter(|path| !path.starts_with(b"-") && !is_variable(path))
        {
            let known = self.loads.paths.entry(path.to_vec()).or_insert(extent);
            *known = (*known).max(extent);
            // The expansion before it is not known.
            if let Some(slash) = path.iter().position(|byte| *byte == b'/').filter(|_| path.contains(&b'$')) {
                self.path(path.get(slash + 1..).unwrap_or_default(), extent);
            }
        }
    }

    fn name(&mut self, word: &[u8]) {
        if is_name(word) {
            self.loads.names.insert(pattern(word));
        }
    }

    fn module(&mut self, word: &[u8]) {
        if is_name(word) {
            self.loads.modules.insert(pattern(word));
        }
    }
}

/// Whether a word can be a name: not an option or a placeholder, and not a pattern that matches everything.
pub(super) fn is_name(word: &[u8]) -> bool {
    let plain = word.iter().filter(|byte| !b"*?[]$.-_".contains(byte)).count();
    plain > 1 && !matches!(word.first(), Some(b'-' | b'%')) && !word.iter().all(u8::is_ascii_digit)
}

/// All possible names in a text.
fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
    let plain: Vec<u8> = text.iter().copied().filter(|byte| !b"'\"\\".contains(byte)).collect();
    let quoted = text.split(|byte| ends(byte) || b"'\"".contains(byte));
    plain.split(ends).chain(quoted).filter(|word| is_name(word)).map(<[u8]>::to_vec).collect()
}

fn ends(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || b"/=:;&|(){}$<>`,!@\\".contains(byte)
}

/// The values that an option may have in the same word: after a `=`, or after its letters.
fn values(word: &[u8]) -> Vec<&[u8]> {
    let mut values = Vec::new();
    if let Some(equals) = word.iter().position(|byte| *byte == b'=') {
        values.extend(word.get(equals + 1..));
    }
    if word.starts_with(b"-") && !word.starts_with(b"--") {
        values.extend((2..word.len().min(6)).filter_map(|letters| word.get(letters..)));
    }
    values.retain(|value| !value.is_empty());
    values
}

/// Whether the word after an option of `make` is not its value: the option has its value already, or takes none.
fn takes_no_value(word: &[u8]) -> bool {
    match word.iter().position(|byte| b"fCIoW".contains(byte)) {
        _ if word.starts_with(b"--") => word.contains(&b'='),
        Some(at) => at + 1 < word.len(),
        None => true,
    }
}

fn assignment(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = word.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (word.get(..equals)?, word.get(equals + 1..)?);
    let is_name = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    (is_name && name.first().is_some_and(|byte| !byte.is_ascii_digit())).then_some((name, value))
}

fn last(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Whether a shell splits it into several words.
fn has_choice(word: &[u8]) -> bool {
    word.contains(&b'{') && word.contains(&b',')
}

/// A name with a pattern in place of every variable.
fn pattern(word: &[u8]) -> Vec<u8> {
    let (mut pattern, mut inside) = (Vec::new(), false);
    for byte in word {
        if *byte == b'$' {
            pattern.push(b'*');
        }
        inside = *byte == b'$' || inside && (byte.is_ascii_alphanumeric() || b"_{}".contains(byte));
        if !inside {
            pattern.push(*byte);
        }
    }
    pattern
}

/// Whether only a shell can expand the word.
fn is_variable(word: &[u8]) -> bool {
    word.starts_with(b"$")
}

/// Whether it is an argument of the command's caller: `$1`, `$@`.
fn is_argument(word: &[u8]) -> bool {
    let name = word.iter().find(|byte| !b"${".contains(byte));
    name.is_some_and(|byte| byte.is_ascii_digit() || b"@*#?-!".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(set: &BTreeSet<Vec<u8>>, word: &str) -> bool {
        set.contains(word.as_bytes())
    }

    #[test]
    fn modules_of_an_interpreter_are_found_by_name() {
        let loads = LoadedFiles::of(br#""/usr/bin/python3" -m nbstripout"#, true);
        assert!(has(&loads.modules, "nbstripout") && has(&loads.shadows, "."), "{loads:?}");
        for command in ["python3 tools/strip", "python3 -u tools/strip src", "node tools/strip x", "perl tools/strip"] {
            let loads = LoadedFiles::of(command.as_bytes(), true);
            assert_eq!(loads.paths.get(&b"tools/strip"[..]), Some(&NamedExtent::Module), "{command}");
            assert!(!has(&loads.modules, "tools"), "{command}");
        }
        let loads = LoadedFiles::of(b"env PYTHONPATH=tools python3 -c \"import cl\"", true);
        assert!(has(&loads.modules, "cl") && has(&loads.modules, "tools"), "{loads:?}");
        for command in
            ["conda run -n x python -m nbstripout", "direnv exec . python3 -mnbstripout", "uv run python -m nbstripout"]
        {
            assert!(has(&LoadedFiles::of(command.as_bytes(), true).modules, "nbstripout"), "{command}");
        }
        assert!(has(&LoadedFiles::of(b"PYTHONPATH=. nbstripout", true).shadows, "."));
        assert!(has(&LoadedFiles::of(b"perl -Ilib -MA::Clean -e 1", true).modules, "Clean"));
    }

    #[test]
    fn directories_that_a_shell_enters_or_searches_are_bases_of_its_programs() {
        for command in ["cd tools && ./c.sh", "D=tools; $D/c.sh", "PATH=tools:$PATH; c.sh", "sh -c 'cd tools; ./c.sh'"]
        {
            let loads = LoadedFiles::of(command.as_bytes(), true);
            assert!(has(&loads.names, "c.sh") && has(&loads.bases, "tools"), "{command}: {loads:?}");
        }
        let loads = LoadedFiles::of(b"make -s -fci/c.mk all", true);
        assert_eq!(loads.paths.get(&b"ci/c.mk"[..]), Some(&NamedExtent::Whole), "{loads:?}");
        assert!(!has(&loads.modules, "makefile") && !has(&loads.modules, "all"), "{loads:?}");
        assert!(has(&LoadedFiles::of(b"make all", true).modules, "makefile"));
        assert!(has(&LoadedFiles::of(b"npx clean", true).modules, "node_modules"));
        assert_eq!(LoadedFiles::of(b"tools/f?", true).paths.get(&b"tools"[..]), Some(&NamedExtent::Whole));
        assert!(has(&LoadedFiles::of(b"tools/fm$x.sh", true).names, "fm*.sh"));
        assert!(has(&LoadedFiles::of(b"cat tools/part* | sh", true).modules, "tools"));
        assert!(has(&LoadedFiles::of(b"ls tools | xargs -n 1 sh -e", true).modules, "tools"));
        assert_eq!(LoadedFiles::of(b"run-parts tools", true).paths.get(&b"tools"[..]), Some(&NamedExtent::Module));
        assert!(has(&LoadedFiles::of(b"./{fm,other}", true).names, "fm"));
        assert!(has(&LoadedFiles::of(b"!d=tools/strip; python3 $d", true).modules, "strip"));
    }

    #[test]
    fn harmless_commands_load_nothing() {
        for command in [
            "git-lfs clean -- %f",
            "git lfs smudge -- %f",
            "git-lfs filter-process",
            "less -FRX src",
            "code --wait src",
            "!cargo test src",
            "!f() { git log --oneline \"$1\" -- src; }; f",
            "!git fetch && git rebase origin/main",
            "jq --indent 1 '(.cells[] | select(.src)) = []'",
            "sh -c 'grep src'",
            "!git branch --merged | grep -v main | xargs git branch -d",
        ] {
            let loads = LoadedFiles::of(command.as_bytes(), true);
            assert!(
                loads.names.is_empty() && loads.modules.is_empty() && loads.bases.is_empty(),
                "{command}: {loads:?}"
            );
            assert!(loads.paths.values().all(|extent| *extent == NamedExtent::Only), "{command}");
        }
    }

    #[test]
    fn any_input_is_parsed() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|text| drop(LoadedFiles::of(text, true)));
    }
}
