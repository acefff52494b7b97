//! Images of many layers: their order, owners and whiteouts, and what is visible of the store.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use tempfile::TempDir;

use super::{busybox_image, launch};

/// The most layers that the kernel stacks.
const MOST: usize = 500;

/// Layers in the layout of a store, the uppermost first, above an image with a shell.
struct LayerStore {
    home: TempDir,
    below: TempDir,
    layers: Vec<PathBuf>,
}

impl LayerStore {
    fn of(count: usize) -> Self {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = home.path().join("images/layers");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&store).unwrap();
        let layers: Vec<PathBuf> = (0..count).map(|number| store.join(format!("{number:064x}/tree"))).collect();
        for (number, layer) in layers.iter().enumerate() {
            std::fs::create_dir_all(layer).unwrap();
            std::fs::set_permissions(layer, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::write(layer.join(format!("own-{number}")), "").unwrap();
            std::fs::write(layer.join("all"), number.to_string()).unwrap();
        }
        Self { home, below: busybox_image(), layers }
    }

    fn shell(&self, script: &str) -> String {
        let layers: Vec<&str> = self.layers.iter().map(|layer| layer.to_str().unwrap()).collect();
        let env = [("CARREL_LAYERS", layers.join(" "))];
        let env = env.each_ref().map(|(key, value)| (*key, value.as_str()));
        let (code, output, errors) =
            launch(self.below.path().to_str().unwrap(), &env, &["/bin/busybox", "sh", "-c", script]);
        assert_eq!(code, Some(0), "{output}{errors}");
        output
    }
}

//= promises.images.layers-image
#[test]
fn an_image_has_as_many_layers_as_the_kernel_can_stack() {
    for count in [2, 128, MOST - 1] {
        let store = LayerStore::of(count);
        let output = store.shell("exec >&0; /bin/cat /all; echo; /bin/ls / | /bin/busybox grep -c ^own-");
        assert_eq!(output, format!("0\n{count}\n"));
    }
}

#[test]
fn whiteouts_hide_files_and_owners_are_those_of_the_image() {
    let store = LayerStore::of(3);
    let [upper, middle, lower] = &store.layers[..] else { panic!() };
    for name in ["gone", "kept"] {
        std::fs::write(lower.join(name), "").unwrap();
    }
    let device = |path: &Path| rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    device(&middle.join("gone"));
    for layer in [middle, lower] {
        std::fs::create_dir(layer.join("opaque")).unwrap();
    }
    std::fs::write(lower.join("opaque/hidden"), "").unwrap();
    std::fs::write(middle.join("opaque/visible"), "").unwrap();
    rustix::fs::setxattr(middle.join("opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    std::fs::write(upper.join("owned"), "").unwrap();
    std::os::unix::fs::chown(upper.join("owned"), Some(1234), Some(65_535)).unwrap();
    let output = store.shell(
        "exec >&0; cd /; echo gone kept owned opaque/*; [ -e gone ] || echo hidden; [ -e kept ] && echo there; \
         /bin/stat -c %u:%g owned kept",
    );
    assert_eq!(output, "gone kept owned opaque/visible\nhidden\nthere\n1234:65535\n0:0\n");
}

#[test]
fn other_files_of_the_store_are_not_visible_inside() {
    let store = LayerStore::of(4);
    std::fs::write(store.home.path().join("images/layers/secret"), "").unwrap();
    let output = store.shell("exec >&0; /bin/cat /proc/self/mountinfo; /bin/ls -a / /tmp");
    assert!(output.contains(" / overlay ") || output.contains(" - overlay "), "{output}");
    let (mounts, listed) = output.split_at(output.rfind("\n/:\n").unwrap());
    for foreign in ["secret", "tree", "lower0"] {
        assert!(!listed.contains(foreign), "{foreign}: {listed}");
    }
    assert!(!mounts.contains(&*store.home.path().to_string_lossy()), "{mounts}");
}

#[test]
fn the_root_has_the_mode_and_owner_of_the_uppermost_layer() {
    let store = LayerStore::of(2);
    let look = "exec >&0; /bin/stat -c '%a %u:%g' /";
    assert_eq!(store.shell(look), "755 0:0\n");
    let [upper, lower] = &store.layers[..] else { panic!() };
    for (layer, mode, owner) in [(upper, 0o1751, 1234), (lower, 0o700, 99)] {
        std::fs::set_permissions(layer, std::fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(layer, Some(owner), Some(65_535)).unwrap();
    }
    assert_eq!(store.shell(look), "1751 1234:65535\n");
}
