//! Names that count at any path, where the location that a program would find is not certain.

use std::collections::{BTreeMap, HashMap};

use super::fold;
use crate::change::{ChangeKind, FileChange, Node};

/// Names with what refers to each, in lower case.
#[derive(Debug, Default)]
pub(super) struct UnanchoredNames {
    /// File names.
    names: HashMap<Vec<u8>, String>,
    /// Names of files with or without an extension, and of directories.
    modules: HashMap<Vec<u8>, String>,
    /// Shell patterns, and whether they match modules.
    patterns: Vec<(Vec<u8>, bool, String)>,
    /// Directories in which a new Python module shadows one elsewhere.
    shadows: BTreeMap<Vec<u8>, String>,
}

// === impl UnanchoredNames ===

impl UnanchoredNames {
    pub(super) fn add(&mut self, name: &[u8], is_module: bool, by: &str) {
        let name = fold(name);
        if name.iter().any(|byte| b"*?[".contains(byte)) {
            self.patterns.push((name, is_module, by.to_owned()));
            return;
        }
        let names = if is_module { &mut self.modules } else { &mut self.names };
        names.entry(name).or_insert_with(|| by.to_owned());
    }

    pub(super) fn add_shadow(&mut self, directory: &[u8], by: &str) {
        self.shadows.entry(fold(directory)).or_insert_with(|| by.to_owned());
    }

    /// The prefix of a change's path that has such a name, and what refers to it. A deleted file is not loaded.
    pub(super) fn find(&self, change: &FileChange) -> Option<(usize, &str)> {
        if !change.is_there() {
            return None;
        }
        let path = fold(change.path.as_bytes());
        let is_directory = matches!(change.node, Node::Directory { .. });
        let mut end = 0;
        for name in path.split(|byte| *byte == b'/') {
            end += name.len();
            let is_file = end == path.len() && !is_directory;
            if let Some(by) = self.named(name, is_file) {
                return Some((end, by));
            }
            end += 1;
        }
        self.shadow(change, &path).map(|by| (path.len(), by))
    }

    fn named(&self, name: &[u8], is_file: bool) -> Option<&str> {
        let mut forms = vec![name];
        if is_file {
            forms.extend(stems(name));
            if let Some(by) = self.names.get(name) {
                return Some(by);
            }
        }
        if let Some(by) = forms.iter().find_map(|form| self.modules.get(*form)) {
            return Some(by);
        }
        let fits = |(pattern, is_module, _): &&(Vec<u8>, bool, String)| match is_module {
            true => forms.iter().any(|form| matches(pattern, form)),
            false => is_file && matches(pattern, name),
        };
        self.patterns.iter().find(fits).map(|(_, _, by)| by.as_str())
    }

    /// A module, a package or a link to one that is new in such a directory. An existing one was loaded before.
    fn shadow(&self, change: &FileChange, path: &[u8]) -> Option<&str> {
        if self.shadows.is_empty() {
            return None;
        }
        let split = |path: &[u8]| match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (path.get(..at).unwrap_or_default().to_vec(), path.get(at + 1..).unwrap_or_default().to_vec()),
            None => (Vec::new(), path.to_vec()),
        };
        let (directory, name) = split(path);
        let (above, last) = split(&directory);
        // A compiled module is loaded in place of its source, whether or not it existed before.
        if last == b"__pycache__" {
            return self.shadows.get(&above).map(String::as_str);
        }
        if !matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged) {
            return None;
        }
        let is_module = [&b".py"[..], b".pyc", b".so", b".pyd"].iter().any(|end| name.ends_with(end));
        // A link may lead to a package.
        let is_link = matches!(change.node, Node::Symlink { .. }) && is_identifier(&name);
        if matches!(change.node, Node::Directory { .. }) || !is_module && !is_link {
            return None;
        }
        if name.starts_with(b"__init__.") && !directory.is_empty() {
            return self.shadows.get(&above).map(String::as_str);
        }
        self.shadows.get(&directory).map(String::as_str)
    }
}

/// Whether Python can import this name.
fn is_identifier(name: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_' || !byte.is_ascii();
    name.first().is_some_and(letter) && name.iter().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// A name without its last extension, and without all of them.
pub(super) fn stems(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let dots = [name.iter().rposition(|byte| *byte == b'.'), name.iter().position(|byte| *byte == b'.')];
    dots.into_iter().flatten().filter(|at| *at > 0).filter_map(|at| name.get(..at))
}

/// Whether a name matches a shell pattern. A bracket expression matches any character.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place, mut retry) = (0, 0, None);
    while place < name.len() {
        let (fits, next) = match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at, place));
                at += 1;
                continue;
            }
            Some(b'?') => (true, at + 1),
            Some(b'[') => {
                let rest = pattern.get(at + 1..).unwrap_or_default();
                (true, rest.iter().skip(1).position(|byte| *byte == b']').map_or(pattern.len(), |end| at + end + 3))
            }
            Some(byte) => (name.get(place) == Some(byte), at + 1),
            None => (false, at),
        };
        match (fits, retry) {
            (true, _) => (at, place) = (next, place + 1),
            (false, Some((star, from))) => {
                (at, place) = (star + 1, from + 1);
                retry = Some((star, from + 1));
            }
            (false, None) => return false,
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_identifier_can_be_imported() {
        assert!(["json", "_x1", "größe"].into_iter().all(|name| is_identifier(name.as_bytes())));
        assert!(["", ".vscode", "a-b", "1a", "a.b"].into_iter().all(|name| !is_identifier(name.as_bytes())));
    }

    #[test]
    fn shell_patterns_match() {
        for (pattern, name) in
            [("f?", "fm"), ("*.sh", "a.sh"), ("a[bc]d", "axd"), ("*", ""), ("a*b*c", "abbxc"), ("[", "x")]
        {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("f?", "f"), ("f?", "fmm"), ("*.sh", "a.shx"), ("a[bc]d", "ad"), ("", "a"), ("a*b", "acd")]
        {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(pattern, name)| {
            assert!(matches(b"*", name) && (!matches(pattern, name) || matches(&[pattern, &b"*"[..]].concat(), name)));
        });
    }

    #[test]
    fn extensions_are_stripped_from_a_name() {
        let of = |name: &'static str| stems(name.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("a.cpython.so"), [&b"a.cpython"[..], b"a"]);
        assert!(of(".hidden").is_empty() && of("plain").is_empty());
    }
}
