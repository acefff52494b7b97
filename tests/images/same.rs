//! What we make of an image, and what others do.

use carrel_tests::{DockerRegistry, skopeo, umoci};

use super::made::Layout;
use super::{Home, assert_same, listed, listed_directory};

/// Pulls an image as we do and as `skopeo` and `umoci` do, and compares the trees.
fn compare(layout: &Layout) -> Vec<String> {
    let registry = DockerRegistry::open();
    registry.put(layout.path(), layout.tag(), "it:1");
    let home = Home::new();
    let ours = listed(&home.pull(&registry.name("it:1")));
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
    assert_same(&ours, &listed_directory(&bundle.join("rootfs")));
    ours
}

//= promises.images.image-registry-us-skopeo
#[test]
fn an_image_with_all_features_unpacks_as_with_other_tools() {
    let ours = compare(&Layout::of_everything(100_000)).join("\n");
    // That there is something to compare.
    for there in
        ["\"bin/sh\" link to busybox", "security.capability", "user.note", "4755", "fifo", "\"home/same\"", "(33, 33)"]
    {
        assert!(ours.contains(there), "{there}:\n{ours}");
    }
    for gone in ["etc/gone", "etc/shadow", "opaque/hidden", "emptied/one", "replaced/inside", ".wh."] {
        assert!(!ours.contains(gone), "{gone}:\n{ours}");
    }
}

//= promises.images.image-registry-us-skopeo
#[test]
fn a_debian_image_unpacks_as_with_other_tools() {
    let ours = compare(&Layout::python());
    assert!(ours.len() > 1000 && ours.iter().any(|line| line.contains("usr/bin/python3")), "{} lines", ours.len());
}
