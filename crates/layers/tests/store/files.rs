//! Images in files: OCI layouts, their tars, and `docker save` archives, old and new.

use std::io::Write;
use std::path::{Path, PathBuf};

use carrel_layers::{Descriptor, Digest, ImageSource, ImageStoreError, OciLayout, StoredImage, media};
use serde_json::json;

use crate::memory::{MemorySource, StoreHome, amd64, two_layers};
use crate::support::{TarBuilder, gzip, zstd};

/// The tar of a directory.
fn tarred(directory: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", directory).unwrap();
    archive.into_inner().unwrap()
}

fn pull(home: &StoreHome, source: &dyn ImageSource) -> Result<StoredImage, ImageStoreError> {
    home.store.pull(None, source, &amd64(), &())
}

fn write(home: &StoreHome, bytes: &[u8]) -> PathBuf {
    let path = home.directory.path().join("archive");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn error(outcome: Result<impl ImageSource, carrel_layers::SourceError>) -> String {
    match outcome {
        Ok(source) => source.manifest(&amd64()).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_layout_is_the_same_image_in_a_directory_and_in_a_tar() {
    let home = StoreHome::new();
    let source = two_layers().source();
    let at = home.directory.path().join("layout");
    source.layout(&at);
    let stored = pull(&home, &OciLayout::directory(&at, None).unwrap()).unwrap();
    assert_eq!(stored.digest, source.digest());
    let tar = tarred(&at);
    for archive in [tar.clone(), gzip(&tar), zstd(&tar)] {
        let home = StoreHome::new();
        let stored = pull(&home, &home.store.layout(&write(&home, &archive), None).unwrap()).unwrap();
        assert_eq!(stored.digest, source.digest());
        assert_eq!(std::fs::read_to_string(stored.root.layers[0].join("etc/motd")).unwrap(), "hello\n");
        home.assert_clean();
    }
}

/// A layout of several images, with names.
fn several(at: &Path, images: &[(&MemorySource, Option<&str>, Option<&str>)]) {
    let mut manifests = Vec::new();
    for (image, name, architecture) in images {
        image.layout(at);
        let mut descriptor = serde_json::to_value(Descriptor::of(media::MANIFEST, &image.manifest)).unwrap();
        if let Some(name) = name {
            descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        }
        if let Some(architecture) = architecture {
            descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
        }
        manifests.push(descriptor);
    }
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    std::fs::write(at.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
}

#[test]
fn one_of_several_images_is_selected_by_name() {
    let home = StoreHome::new();
    let at = home.directory.path().join("layout");
    let (old, new) = (two_layers().source(), two_layers().config("User", "app".into()).source());
    several(&at, &[(&old, Some("old"), None), (&new, Some("new"), None)]);
    let digest = |name: &str| OciLayout::directory(&at, Some(name)).unwrap().manifest(&amd64()).unwrap().digest;
    assert_eq!((digest("old"), digest("new")), (old.digest(), new.digest()));
    assert_eq!(digest(&format!("@{}", new.digest())), new.digest());
    let several = error(OciLayout::directory(&at, None));
    assert!(several.contains("several images") && several.contains("hint: name one of new, old"), "{several}");
    let none = error(OciLayout::directory(&at, Some("other")));
    assert!(none.contains("no image \"other\"") && none.contains("new, old"), "{none}");
}

#[test]
fn the_manifest_for_the_requested_platform_is_selected() {
    let home = StoreHome::new();
    let at = home.directory.path().join("layout");
    let (ours, other) = (two_layers().source(), two_layers().config("User", "app".into()).source());
    several(&at, &[(&other, None, Some("arm64")), (&ours, None, Some("amd64"))]);
    let layout = OciLayout::directory(&at, None).unwrap();
    assert_eq!(layout.manifest(&amd64()).unwrap().digest, ours.digest());
    assert_eq!(layout.manifest(&"linux/arm64/v8".parse().unwrap()).unwrap().digest, other.digest());
    let none = layout.manifest(&"linux/s390x".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(none, "the image is not available for linux/s390x; it is available for linux/arm64, linux/amd64");
}

#[test]
fn an_invalid_layout_is_reported() {
    let home = StoreHome::new();
    let at = home.directory.path().join("layout");
    assert!(error(OciLayout::directory(&at, None)).contains("No such file"));
    std::fs::create_dir(&at).unwrap();
    assert!(error(OciLayout::directory(&at, None)).contains("it has no file `oci-layout`"));
    std::fs::write(at.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert!(error(OciLayout::directory(&at, None)).contains("version \"2.0.0\""));
    std::fs::write(at.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    assert!(error(OciLayout::directory(&at, None)).contains("it has no file `index.json`"));
    std::fs::write(at.join("index.json"), r#"{"schemaVersion":2,"manifests":[]}"#).unwrap();
    assert!(error(OciLayout::directory(&at, None)).contains("contains no image"));
    // A blob outside of the layout does not exist.
    let source = two_layers().source();
    source.layout(&at);
    let blob = at.join("blobs/sha256").join(source.layers()[0].digest.hex());
    let outside = home.directory.path().join("outside");
    std::fs::rename(&blob, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &blob).unwrap();
    let outcome = pull(&home, &OciLayout::directory(&at, None).unwrap());
    assert!(matches!(outcome, Err(ImageStoreError::Source(_))), "{outcome:?}");
    std::fs::remove_file(&blob).unwrap();
    std::fs::rename(&outside, &blob).unwrap();
    pull(&home, &OciLayout::directory(&at, None).unwrap()).unwrap();
}

/// An archive as old versions of Docker wrote it: a directory for each layer, and links between equal ones.
fn old_docker(layers: &[Vec<u8>], config: &[u8]) -> Vec<u8> {
    let tar = TarBuilder::default().file("config.json", config).dir("one").file("one/VERSION", b"1.0");
    let tar = tar.file("one/layer.tar", &layers[0]).dir("two").file("two/layer.tar", &layers[1]);
    let tar = tar.dir("three").symlink("three/layer.tar", "../one/layer.tar").hard_link("four.tar", "two/layer.tar");
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["example:1"],
        "Layers": ["one/layer.tar", "two/layer.tar", "three/layer.tar", "four.tar"] }]);
    tar.file("manifest.json", &serde_json::to_vec(&manifest).unwrap()).end()
}

fn config(diff_ids: &[Digest]) -> Vec<u8> {
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "Env": ["A=1"], "Entrypoint": ["/init"] });
    serde_json::to_vec(&json!({ "architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs })).unwrap()
}

fn layers() -> [Vec<u8>; 2] {
    ["lower", "upper"].map(|name| TarBuilder::default().dir("./").file(name, b"content").end())
}

#[test]
fn an_old_docker_archive_is_an_image() {
    let layers = layers();
    let ids = layers.each_ref().map(|layer| Digest::of(layer));
    let archive = old_docker(&layers, &config(&[ids[0], ids[1], ids[0], ids[1]]));
    for archive in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let home = StoreHome::new();
        let path = write(&home, &archive);
        let stored = pull(&home, &home.store.docker_archive(&path, None).unwrap()).unwrap();
        assert_eq!(stored.layers, [ids[0], ids[1], ids[0], ids[1]]);
        assert_eq!(stored.config.entrypoint, ["/init"]);
        assert!(stored.root.layers[0].join("upper").is_file() && stored.root.layers[1].join("lower").is_file());
        home.assert_clean();
    }
}

#[test]
fn a_new_docker_archive_is_an_image() {
    let home = StoreHome::new();
    let [plain, packed] = layers();
    let ids = [Digest::of(&plain), Digest::of(&packed)];
    let packed = gzip(&packed);
    let config = config(&ids);
    let place = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    let manifest = json!([{ "Config": place(&config), "RepoTags": ["busybox:latest", "docker.io/someone/other:2"],
        "Layers": [place(&plain), place(&packed)], "LayerSources": {} }]);
    let mut tar = TarBuilder::default().dir("blobs").dir("blobs/sha256");
    for bytes in [&plain, &packed, &config] {
        tar = tar.file(&place(bytes), bytes);
    }
    let tar = tar.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).file("index.json", b"{}");
    let path = write(&home, &tar.file("manifest.json", &serde_json::to_vec(&manifest).unwrap()).end());
    let stored = pull(&home, &home.store.docker_archive(&path, Some("docker.io/library/busybox")).unwrap()).unwrap();
    assert_eq!(stored.layers, ids);
    assert_eq!(home.names("blobs").len(), 4);
    assert!(home.store.docker_archive(&path, Some("someone/other:2")).is_ok());
    let none = error(home.store.docker_archive(&path, Some("busybox:1")));
    assert!(none.contains("no image \"busybox:1\"") && none.contains("hint: name one of busybox:latest"), "{none}");
}

#[test]
fn an_inconsistent_docker_archive_is_rejected() {
    let home = StoreHome::new();
    let layers = layers();
    let ids = layers.each_ref().map(|layer| Digest::of(layer));
    // A layer differs from the one in the configuration.
    let path = write(&home, &old_docker(&layers, &config(&[Digest::of(b"another"), ids[1], ids[0], ids[1]])));
    let outcome = pull(&home, &home.store.docker_archive(&path, None).unwrap());
    assert!(matches!(outcome, Err(ImageStoreError::Digest { .. })), "{outcome:?}");
    home.assert_clean();
    let path = write(&home, &old_docker(&layers, &config(&ids)));
    assert!(error(home.store.docker_archive(&path, None)).contains("4 layers, but its configuration has 2"));
    let missing = json!([{ "Config": "../../etc/passwd", "Layers": [] }]);
    let path = write(&home, &TarBuilder::default().file("manifest.json", &serde_json::to_vec(&missing).unwrap()).end());
    assert!(error(home.store.docker_archive(&path, None)).contains("it has no file \"../../etc/passwd\""));
    let path = write(&home, &TarBuilder::control().end());
    assert!(error(home.store.docker_archive(&path, None)).contains("it has no file `manifest.json`"));
    let mut file = std::fs::File::options().append(true).open(write(&home, b"no tar")).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    assert!(!error(home.store.docker_archive(&path, None)).is_empty());
}
