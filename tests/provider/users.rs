//! Who execs run as, whatever the image knows of users.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use carrel_control::provider::Provider;
use carrel_control::spec::Spec;
use carrel_tests::{install, run};
use tempfile::TempDir;

use crate::world::{World, again};

/// An image with a shell, and with these users.
pub(crate) fn image(passwd: Option<&str>) -> (TempDir, Spec) {
    let image = tempfile::tempdir_in("/var/tmp").unwrap();
    // Its root is the root of the sandbox, which is for everybody.
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
fn an_image_without_the_user_is_given_it_and_keeps_its_own() {
    run(async {
        let world = World::new();
        for (number, passwd) in [None, Some("root:x:0:0::/root:/bin/sh\n")].into_iter().enumerate() {
            let (directory, spec) = image(passwd);
            let place = world.started(&format!("demo-{number}"), &spec).await;
            let look = "id -un; id -u; cat /etc/passwd; stat -c '%U %a' /workspace ~; echo $HOME; touch ~/may file";
            let expected = format!(
                "agbox\n1000\n{}agbox:x:1000:1000::/home/agbox:/bin/sh\nagbox 755\nagbox 755\n/home/agbox\n",
                passwd.unwrap_or_default()
            );
            assert_eq!(world.shell(&place, &format!("exec-{number}"), look).await, expected);
            let own = std::fs::read_to_string(directory.path().join("etc/passwd")).ok();
            assert_eq!(own.as_deref(), passwd, "the image stays as it is");
            // What the sandbox makes of its users is its own, and stays.
            let stopped = again(&place);
            world.local.start(&stopped, &spec).await.unwrap();
            assert_eq!(world.shell(&stopped, &format!("again-{number}"), "id -un; cat file").await, "agbox\n");
        }
    });
}

#[test]
fn a_user_of_that_name_is_taken_as_it_is() {
    run(async {
        let world = World::new();
        let (_image, spec) = image(Some("agbox:x:1234:1235::/srv/own:/bin/sh\n"));
        let place = world.started("demo", &spec).await;
        let look = "id -u; id -g; stat -c %u /workspace $HOME; echo $HOME; touch ~/may";
        assert_eq!(world.shell(&place, "exec-1", look).await, "1234\n1235\n1234\n1234\n/srv/own\n");
    });
}
