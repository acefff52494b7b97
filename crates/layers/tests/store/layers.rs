//! Many layers, duplicate layers, and directories without an entry.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::memory::{ImageBuilder, StoreHome};
use crate::support::{TarBuilder, header};

/// A layer with one directory of this mode and owner.
fn directory(tar: TarBuilder, name: &str, mode: u32, owner: u64) -> TarBuilder {
    let mut header = header(name.as_bytes(), b'5');
    header.set_mode(mode);
    header.set_uid(owner);
    tar.raw(header, b"")
}

//= promises.images.layers-image
#[test]
fn an_image_may_have_128_layers() {
    let home = StoreHome::new();
    let layers = (0..128)
        .map(|number| TarBuilder::default().dir("./").dir("layers").file(&format!("layers/{number}"), b"").end());
    let source = layers.fold(ImageBuilder::default(), ImageBuilder::layer).source();
    let stored = home.pull(&source).unwrap();
    assert_eq!((stored.layers.len(), stored.root.layers.len()), (128, 128));
    assert!(
        stored
            .root
            .layers
            .iter()
            .rev()
            .enumerate()
            .all(|(number, layer)| layer.join(format!("layers/{number}")).is_file())
    );
    home.assert_clean();
}

#[test]
fn a_duplicate_layer_is_fetched_and_mounted_once() {
    let home = StoreHome::new();
    let empty = || TarBuilder::default().dir("./").end();
    let content = TarBuilder::default().dir("./").file("file", b"").end();
    let source = ImageBuilder::default().layer(empty()).layer(content).layer(empty()).source();
    let stored = home.pull(&source).unwrap();
    assert_eq!((stored.layers.len(), stored.root.layers.len()), (3, 2));
    assert_eq!(source.take_requests().len(), 3);
    assert!(stored.root.layers[1].join("file").exists());
}

#[test]
fn an_image_without_layers_is_an_empty_root() {
    let home = StoreHome::new();
    let stored = home.pull(&ImageBuilder::default().source()).unwrap();
    assert!(stored.root.layers.is_empty());
}

/// Modes and owners as a sandbox sees them: the layers under an overlay, in a mount namespace of its own.
fn visible(home: &StoreHome, layers: &[std::path::PathBuf]) -> BTreeMap<String, (u32, u32)> {
    let lower = layers.iter().map(|layer| layer.to_str().unwrap()).collect::<Vec<_>>().join(":");
    let at = home.directory.path().join("merged");
    std::fs::create_dir_all(&at).unwrap();
    let script =
        r#"mount -t overlay overlay -o "ro,userxattr,lowerdir=$1" "$2" && cd "$2" && find . -printf '%P %m %U\n'"#;
    let output = Command::new("unshare").args(["--mount", "sh", "-c", script, "sh", &lower]).arg(&at).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let number = |text: &str, radix| u32::from_str_radix(text, radix).unwrap();
    let line = |line: &str| {
        let mut words = line.rsplitn(3, ' ');
        let (owner, mode) = (number(words.next().unwrap(), 10), number(words.next().unwrap(), 8));
        (words.next().unwrap().to_owned(), (mode, owner))
    };
    String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
}

//= promises.images.directory-layer-entry
#[test]
fn a_directory_without_an_entry_has_the_attributes_of_the_layer_below() {
    let home = StoreHome::new();
    let mut lower = TarBuilder::default();
    for (name, mode, owner) in [("./", 0o711, 0), ("home", 0o755, 0), ("home/app", 0o2750, 1000), ("srv", 0o1777, 7)] {
        lower = directory(lower, name, mode, owner);
    }
    // It changes a file deep in a directory of the lower layer, and has no entries for its parents.
    let upper =
        TarBuilder::default().file("home/app/.profile", b"").file("home/app/.wh.old", b"").file("new/file", b"");
    let source =
        ImageBuilder::default().layer(lower.clone().file("home/app/old", b"").end()).layer(upper.end()).source();
    let stored = home.pull(&source).unwrap();
    assert_eq!(stored.root.layers.len(), 3, "what lies over both");
    let visible = visible(&home, &stored.root.layers);
    let expected = [
        ("", (0o711, 0)),
        ("home", (0o755, 0)),
        ("home/app", (0o2750, 1000)),
        ("home/app/.profile", (0o644, 0)),
        ("new", (0o755, 0)),
        ("new/file", (0o644, 0)),
        ("srv", (0o1777, 7)),
    ];
    assert_eq!(visible, expected.map(|(path, mode)| (path.to_owned(), mode)).into());
    let patch = std::fs::metadata(stored.root.layers[0].join("home/app")).unwrap();
    assert_eq!((patch.mode() & 0o7777, patch.uid(), patch.mtime()), (0o2750, 1000, 1_700_000_000));
    // It is removed with the image.
    home.store.prune(true).unwrap();
    home.assert_empty();
}

#[test]
fn a_layer_with_all_entries_needs_no_patch() {
    let home = StoreHome::new();
    let lower = directory(directory(TarBuilder::default(), "./", 0o755, 0), "etc", 0o700, 5).end();
    let upper =
        directory(directory(TarBuilder::default(), "./", 0o755, 0), "etc", 0o755, 0).file("etc/file", b"").end();
    let stored = home.pull(&ImageBuilder::default().layer(lower).layer(upper).source()).unwrap();
    assert_eq!(stored.root.layers.len(), 2);
    assert_eq!(visible(&home, &stored.root.layers)["etc"], (0o755, 0));
}
