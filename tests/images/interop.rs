//! Unpacked images, compared with those of other tools.

use carrel_tests::{DockerRegistry, skopeo, umoci};

use super::fixtures::ImageFixture;
use super::{PullerHome, assert_same, list_directory, list_image};

/// Pulls an image with Carrel and with `skopeo` and `umoci`, and compares the trees.
fn compare(layout: &ImageFixture) -> Vec<String> {
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "it:1");
    let home = PullerHome::new();
    let ours = list_image(&home.pull(&registry.name("it:1")));
    let theirs = home.path().join("theirs");
    let image = format!("{}:it", theirs.display());
    skopeo(&[
        "copy",
        "--src-tls-verify=false",
        &format!("docker://{}", registry.name("it:1")),
        &format!("oci:{image}"),
    ]);
    let bundle = home.path().join("bundle");
    umoci(&["unpack", "--image", &image, bundle.to_str().unwrap()]);
    assert_same(&ours, &list_directory(&bundle.join("rootfs")));
    ours
}

//= promises.images.image-registry-us-skopeo
#[test]
fn an_image_with_all_features_unpacks_as_with_other_tools() {
    let ours = compare(&ImageFixture::with_every_kind_of_file(100_000)).join("\n");
    // The control: the tree has every kind of file.
    for present in
        ["\"bin/sh\" link to busybox", "security.capability", "user.note", "4755", "fifo", "\"home/same\"", "(33, 33)"]
    {
        assert!(ours.contains(present), "{present}:\n{ours}");
    }
    for absent in ["etc/gone", "etc/shadow", "opaque/hidden", "emptied/one", "replaced/inside", ".wh."] {
        assert!(!ours.contains(absent), "{absent}:\n{ours}");
    }
}

//= promises.images.image-registry-us-skopeo
#[test]
fn a_debian_image_unpacks_as_with_other_tools() {
    let ours = compare(&ImageFixture::python());
    assert!(ours.len() > 1000 && ours.iter().any(|line| line.contains("usr/bin/python3")), "{} lines", ours.len());
}
