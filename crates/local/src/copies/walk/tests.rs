use std::os::unix::fs::symlink;

use tokio::sync::mpsc;

use super::*;

struct TreeFixture(tempfile::TempDir);

impl TreeFixture {
    fn new(files: &[&str]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|file| tree.put(file, file));
        tree
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// The entries of the walk, one per line; directories end in a slash.
    fn found(&self, exclude: &[&str]) -> Result<Vec<String>, CopyError> {
        let source = std::fs::canonicalize(self.0.path()).unwrap();
        let exclude: Vec<Glob> = exclude.iter().map(|pattern| Glob::new(pattern)).collect();
        let (to, mut items) = mpsc::channel(1000);
        walk(&source, &exclude, &to)?;
        drop(to);
        let mut found = Vec::new();
        while let Some(item) = items.blocking_recv() {
            match item {
                TreeEntry::Enter { path } => found.push(format!("{path}/")),
                TreeEntry::Leave { .. } => {}
                TreeEntry::File { path, .. } => found.push(path),
                TreeEntry::Link { path, to, .. } => found.push(format!("{path}>{to}")),
            }
        }
        Ok(found)
    }
}

#[test]
fn a_tree_is_walked_completely_and_in_order() {
    let tree = TreeFixture::new(&["b", "a/z", "a/y/x", ".hidden"]);
    tree.link("a/link", "../b");
    let found = tree.found(&[]).unwrap();
    assert_eq!(found, ["/", ".hidden", "a/", "a/link>../b", "a/y/", "a/y/x", "a/z", "b"]);
}

#[test]
fn an_excluded_directory_is_skipped_with_its_entries() {
    let tree = TreeFixture::new(&[
        "keep",
        "x.log",
        "d/x.log",
        "d/keep",
        "node_modules/a/b",
        "d/node_modules/c",
        "only/here/x",
    ]);
    // Links outside are not checked in an excluded directory.
    tree.link("node_modules/out", "/etc/passwd");
    let found = tree.found(&["*.log", "node_modules", "only/here"]).unwrap();
    assert_eq!(found, ["/", "d/", "d/keep", "keep", "only/"]);
}

#[test]
fn a_link_outside_the_tree_is_an_error_unless_it_is_ignored() {
    let tree = TreeFixture::new(&["a/file"]);
    for inside_link in ["file", "../a/file", "./nothing", "../a/../a/file"] {
        tree.link(&format!("a/to-{}", inside_link.replace('/', "-")), inside_link);
    }
    assert_eq!(tree.found(&[]).unwrap().len(), 7);
    for outside in ["/etc/passwd", "../../x", "../../../etc", "file/../../../x"] {
        let tree = TreeFixture::new(&["a/file"]);
        tree.link("a/out", outside);
        let refused = tree.found(&[]).unwrap_err();
        assert!(matches!(&refused, CopyError::LinkOutside { to, .. } if to == outside), "{refused}");
        tree.put(".gitignore", "out\n");
        assert_eq!(tree.found(&[]).unwrap(), ["/", ".gitignore", "a/", "a/file"]);
    }
}

#[test]
fn an_absolute_link_into_the_tree_is_allowed() {
    let tree = TreeFixture::new(&["file"]);
    let source = std::fs::canonicalize(tree.0.path()).unwrap();
    tree.link("link", source.join("file").to_str().unwrap());
    assert_eq!(tree.found(&[]).unwrap().len(), 3);
}

#[test]
fn an_ignored_directory_with_a_link_outside_is_skipped() {
    let tree = TreeFixture::new(&["venv/lib/file", "build/file", "src/file"]);
    tree.link("venv/bin/python", "/usr/bin/python3");
    tree.put(".gitignore", "venv/\n/build\n");
    let found = tree.found(&[]).unwrap();
    assert_eq!(found, ["/", ".gitignore", "build/", "build/file", "src/", "src/file"]);
}

#[test]
fn sockets_and_fifos_are_skipped() {
    let tree = TreeFixture::new(&["file"]);
    let _listener = std::os::unix::net::UnixListener::bind(tree.0.path().join("socket")).unwrap();
    assert_eq!(tree.found(&[]).unwrap(), ["/", "file"]);
}

#[test]
fn a_source_that_became_a_link_is_refused() {
    let tree = TreeFixture::new(&["real/file"]);
    tree.link("link", "real");
    let (to, _items) = mpsc::channel(10);
    let source = std::fs::canonicalize(tree.0.path()).unwrap();
    assert!(walk(&source.join("real"), &[], &to).is_ok(), "the control");
    for through in ["link", "link/file"] {
        assert!(matches!(walk(&source.join(through), &[], &to), Err(CopyError::Host { .. })), "{through}");
    }
}
