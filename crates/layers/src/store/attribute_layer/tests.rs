use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

struct TestLayers(tempfile::TempDir);

impl TestLayers {
    fn directory(&self, layer: usize, path: &str, mode: u32) {
        let at = self.0.path().join(layer.to_string()).join(path);
        std::fs::create_dir_all(&at).unwrap();
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn opaque(&self, layer: usize, path: &str) {
        let at = self.0.path().join(layer.to_string()).join(path);
        rustix::fs::setxattr(at, OPAQUE, b"y", XattrFlags::empty()).unwrap();
    }

    /// The modes in the patch, where `made` are the directories without an entry.
    fn patch(&self, made: &[&[&str]]) -> BTreeMap<String, u32> {
        let source = |(layer, made): (usize, &&[&str])| PatchSource {
            tree: OwnedFd::from(std::fs::File::open(self.0.path().join(layer.to_string())).unwrap()),
            made: made.iter().map(PathBuf::from).collect(),
        };
        let sources: Vec<_> = made.iter().enumerate().map(source).collect();
        let at = self.0.path().join("patch");
        let made = make(&sources, || {
            std::fs::create_dir(&at)?;
            Ok(std::fs::File::open(&at)?.into())
        });
        let mut found = BTreeMap::new();
        let mut waiting = if made.unwrap() { vec![at.clone()] } else { Vec::new() };
        while let Some(path) = waiting.pop() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            let name = path.strip_prefix(&at).unwrap().to_str().unwrap().to_owned();
            found.insert(name, std::fs::metadata(&path).unwrap().mode() & 0o7777);
        }
        found
    }
}

fn layers() -> TestLayers {
    TestLayers(tempfile::tempdir().unwrap())
}

fn modes(modes: &[(&str, u32)]) -> BTreeMap<String, u32> {
    modes.iter().map(|(path, mode)| ((*path).to_owned(), *mode)).collect()
}

#[test]
fn a_directory_without_an_entry_has_the_attributes_of_the_one_below() {
    let layers = layers();
    layers.directory(0, "a/b", 0o755);
    layers.directory(1, "a/b", 0o700);
    layers.directory(1, "a", 0o711);
    assert_eq!(layers.patch(&[&["a/b"], &[]]), modes(&[("", 0o755), ("a", 0o755), ("a/b", 0o700)]));
}

#[test]
fn no_patch_is_made_if_no_attributes_are_hidden() {
    let layers = layers();
    layers.directory(0, "a", 0o755);
    layers.directory(0, "new", 0o755);
    layers.directory(1, "a", 0o700);
    // The upper directory has an entry, or the lower layers lack it.
    assert_eq!(layers.patch(&[&["new"], &["a"]]), modes(&[]));
}

#[test]
fn a_deleted_directory_does_not_lend_its_attributes() {
    let layers = layers();
    layers.directory(0, "a", 0o755);
    layers.directory(1, "", 0o755);
    let device = layers.0.path().join("1/a");
    rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::CharacterDevice, 0o600.into(), 0).unwrap();
    layers.directory(2, "a", 0o700);
    assert_eq!(layers.patch(&[&["a"], &[], &[]]), modes(&[]));
    // Without the whiteout it does.
    std::fs::remove_file(device).unwrap();
    assert_eq!(layers.patch(&[&["a"], &[], &[]]), modes(&[("", 0o755), ("a", 0o700)]));
}

#[test]
fn an_opaque_directory_hides_content_but_not_attributes() {
    let layers = layers();
    layers.directory(0, "a/b", 0o755);
    layers.directory(1, "a/b", 0o750);
    layers.directory(1, "a", 0o711);
    layers.opaque(0, "a");
    assert_eq!(layers.patch(&[&["a", "a/b"], &[]]), modes(&[("", 0o755), ("a", 0o711)]));
}

/// What a layer has at a path, in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelEntry {
    Nothing,
    Gone,
    Directory { made: bool, opaque: bool },
}

const PATHS: [&str; 8] = ["", "a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g"];

/// What a layer has at a path, and whether it hides lower layers there.
fn at(layer: &[ModelEntry], path: &str) -> (ModelEntry, bool) {
    let (mut hidden, mut above) = (false, String::new());
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match of(layer, &above) {
            ModelEntry::Directory { opaque, .. } => hidden |= opaque,
            other => return (other, hidden),
        }
        above = if above.is_empty() { part.to_owned() } else { format!("{above}/{part}") };
    }
    (of(layer, path), hidden)
}

fn of(layer: &[ModelEntry], path: &str) -> ModelEntry {
    layer[PATHS.iter().position(|other| *other == path).unwrap()]
}

/// The layer whose attributes a path has, and whether that is not the uppermost.
fn source(layers: &[Vec<ModelEntry>], path: &str) -> Option<(usize, bool)> {
    let mut uppermost = None;
    for (number, layer) in layers.iter().enumerate() {
        let (has, hidden) = at(layer, path);
        match has {
            ModelEntry::Gone => break,
            ModelEntry::Nothing => {}
            ModelEntry::Directory { made: false, .. } => return Some((number, uppermost.is_some())),
            ModelEntry::Directory { made: true, .. } => {
                uppermost.get_or_insert(number);
            }
        }
        if hidden {
            break;
        }
    }
    uppermost.map(|number| (number, false))
}

#[test]
fn the_uppermost_visible_entry_determines_the_attributes() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % below
    };
    let mut patched = 0;
    for _ in 0..200 {
        let directory = layers();
        let mut model = Vec::new();
        let mut sources = Vec::new();
        for number in 0..4 {
            directory.directory(number, "", 0o755);
            let (mut layer, mut made) = (vec![ModelEntry::Nothing; PATHS.len()], HashSet::new());
            for (place, path) in PATHS.iter().enumerate() {
                let above = path.rsplit_once('/').map_or("", |(above, _)| above);
                if !path.is_empty() && !matches!(of(&layer, above), ModelEntry::Directory { .. }) {
                    continue;
                }
                layer[place] = match random(if path.is_empty() { 2 } else { 8 }) {
                    0 => ModelEntry::Directory { made: false, opaque: false },
                    1..=3 => ModelEntry::Directory { made: true, opaque: false },
                    4 => ModelEntry::Directory { made: random(2) == 0, opaque: true },
                    5 => ModelEntry::Gone,
                    _ => ModelEntry::Nothing,
                };
                match layer[place] {
                    ModelEntry::Nothing => {}
                    ModelEntry::Gone => {
                        std::fs::write(directory.0.path().join(number.to_string()).join(path), "").unwrap();
                    }
                    ModelEntry::Directory { made: is_made, opaque } => {
                        directory.directory(number, path, 0o755);
                        if opaque {
                            directory.opaque(number, path);
                        }
                        if is_made {
                            made.insert(PathBuf::from(path));
                        }
                    }
                }
            }
            let tree = OwnedFd::from(std::fs::File::open(directory.0.path().join(number.to_string())).unwrap());
            sources.push(PatchSource { tree, made });
            model.push(layer);
        }
        let mut expected = BTreeMap::new();
        for path in PATHS {
            if source(&model, path).is_some_and(|(_, patched)| patched) {
                for above in Path::new(path).ancestors() {
                    let (layer, _) = source(&model, above.to_str().unwrap()).unwrap();
                    expected.insert(above.to_owned(), layer);
                }
            }
        }
        patched += expected.len();
        assert_eq!(needed(&sources).unwrap(), expected, "{model:?}");
    }
    assert!(patched > 200, "{patched}");
}

#[test]
fn directories_without_entry_are_limited_across_all_layers() {
    let tree = || OwnedFd::from(std::fs::File::open("/").unwrap());
    let source =
        |count: usize| PatchSource { tree: tree(), made: (0..count).map(|n| PathBuf::from(n.to_string())).collect() };
    let mut made = MissingEntries::default();
    assert!(made.add(&source(MAX_MADE - 1)) && made.add(&source(1)));
    assert!(!made.add(&source(1)));
}
