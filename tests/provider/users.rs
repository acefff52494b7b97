//! The user that execs run as, for images with and without such a user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use carrel_control::provider::Provider;
use carrel_control::spec::Spec;
use carrel_tests::{install, run};
use tempfile::TempDir;

use crate::harness::{ProviderHarness, next_incarnation};

/// An image with a shell and this `/etc/passwd`.
pub(crate) fn image(passwd: Option<&str>) -> (TempDir, Spec) {
    let image = tempfile::tempdir_in("/var/tmp").unwrap();
    // Its root becomes the root of the sandbox, which all users may enter.
    std::fs::set_permissions(image.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for directory in ["bin", "etc"] {
        std::fs::create_dir(image.path().join(directory)).unwrap();
    }
    install(Path::new("/bin/busybox"), &image.path().join("bin/busybox"), 0o755, 0);
    for name in ["sh", "id", "cat", "stat", "touch", "echo"] {
        std::os::unix::fs::symlink("busybox", image.path().join("bin").join(name)).unwrap();
    }
    if let Some(passwd) = passwd {
        std::fs::write(image.path().join("etc/passwd"), passwd).unwrap();
    }
    let spec = Spec { image: image.path().to_str().unwrap().to_owned(), ..Spec::default() };
    (image, spec)
}

#[test]
fn the_user_is_added_to_an_image_without_it_and_the_other_users_are_kept() {
    run(async {
        let harness = ProviderHarness::new();
        for (number, passwd) in [None, Some("root:x:0:0::/root:/bin/sh\n")].into_iter().enumerate() {
            let (directory, spec) = image(passwd);
            let instance = harness.start(&format!("demo-{number}"), &spec).await;
            let look = "id -un; id -u; cat /etc/passwd; stat -c '%U %a' /workspace ~; echo $HOME; touch ~/may file";
            let expected = format!(
                "agbox\n1000\n{}agbox:x:1000:1000::/home/agbox:/bin/sh\nagbox 755\nagbox 755\n/home/agbox\n",
                passwd.unwrap_or_default()
            );
            assert_eq!(harness.shell(&instance, &format!("exec-{number}"), look).await, expected);
            let own = std::fs::read_to_string(directory.path().join("etc/passwd")).ok();
            assert_eq!(own.as_deref(), passwd, "the image is unchanged");
            // The user exists in the next incarnation too.
            let resumed = next_incarnation(&instance);
            harness.local.start(&resumed, &spec).await.unwrap();
            assert_eq!(harness.shell(&resumed, &format!("again-{number}"), "id -un; cat file").await, "agbox\n");
        }
    });
}

#[test]
fn a_user_of_the_image_with_that_name_is_unchanged() {
    run(async {
        let harness = ProviderHarness::new();
        let (_image, spec) = image(Some("agbox:x:1234:1235::/srv/own:/bin/sh\n"));
        let instance = harness.start("demo", &spec).await;
        let look = "id -u; id -g; stat -c %u /workspace $HOME; echo $HOME; touch ~/may";
        assert_eq!(harness.shell(&instance, "exec-1", look).await, "1234\n1235\n1234\n1234\n/srv/own\n");
    });
}
