use super::*;
use crate::ImageRef;

/// A directory image with this `passwd` and `group`.
fn image(passwd: &str, group: &str) -> (tempfile::TempDir, RootFs) {
    let image = tempfile::tempdir().unwrap();
    std::fs::create_dir(image.path().join("etc")).unwrap();
    std::fs::write(image.path().join(PASSWD), passwd).unwrap();
    std::fs::write(image.path().join(GROUP), group).unwrap();
    let root = RootFs::resolve(&ImageRef::Path(image.path().to_owned())).unwrap();
    (image, root)
}

fn host() -> RootFs {
    RootFs::resolve(&ImageRef::Host).unwrap()
}

#[test]
fn a_user_is_a_number_or_a_name_in_the_image() {
    let passwd = "root:x:0:0::/:\nada:x:1234:99::/home/ada:/bin/sh\nodd:x:4294967294:0::/:\n7:x:70:71::/:\n";
    let (_image, root) = image(passwd, "root:x:0:\nvideo:x:44:ada\n");
    let found = |user| ids(user, &root).map(|ids| (ids.user, ids.group)).map_err(|error| error.to_string());
    assert_eq!(found(None), Ok((0, 0)));
    assert_eq!(found(Some("1000")), Ok((1000, 0)), "a number without an account belongs to the root group");
    assert_eq!(found(Some("1000:50")), Ok((1000, 50)));
    assert_eq!(found(Some("ada")), Ok((1234, 99)));
    assert_eq!(found(Some("1234")), Ok((1234, 99)));
    assert_eq!(found(Some("ada:video")), Ok((1234, 44)));
    assert_eq!(found(Some("7")), Ok((70, 71)), "a name takes precedence over a number");
    assert_eq!(found(Some("bob")).unwrap_err(), "the image has no user \"bob\"");
    assert_eq!(found(Some("ada:bob")).unwrap_err(), "the image has no group \"bob\"");
    assert_eq!(found(Some("odd")).unwrap_err(), "user 4294967294 is out of range: the highest ID is 65535");
    assert_eq!(ids(Some("nobody"), &host()), Ok(UidGid { user: 65534, group: 65534 }));
}

#[test]
fn an_id_out_of_range_is_rejected_for_users_and_groups() {
    assert!(check(Some("65535:65535")).is_ok() && check(Some("ada:video")).is_ok() && check(None).is_ok());
    let words = |user| check(Some(user)).unwrap_err().to_string();
    assert_eq!(words("65536"), "user 65536 is out of range: the highest ID is 65535");
    assert_eq!(words("0:70000"), "group 70000 is out of range: the highest ID is 65535");
    assert_eq!(words("ada:65536"), "group 65536 is out of range: the highest ID is 65535");
}

#[test]
fn the_home_of_a_user_comes_from_the_image() {
    let host = host();
    for (user, expected) in [
        (None, "/root"),
        (Some("agbox"), "/home/agbox"),
        (Some("1000:5"), "/home/agbox"),
        (Some("4242"), "/"),
        (Some("nosuch"), "/"),
    ] {
        assert_eq!(home(user, &host), expected, "{user:?}");
    }
    assert_eq!(home(None, &RootFs::default()), "/");
}

#[test]
fn a_symlink_in_an_image_does_not_lead_to_the_accounts_of_the_host() {
    let (image, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = outside.path().join("passwd");
    std::fs::write(&target, "eve:x:7:7::/:\n").unwrap();
    std::fs::create_dir(image.path().join("etc")).unwrap();
    std::os::unix::fs::symlink(&target, image.path().join(PASSWD)).unwrap();
    let root = RootFs::resolve(&ImageRef::Path(image.path().to_owned())).unwrap();
    assert_eq!(ids(Some("eve"), &root), Err(unknown("user", "eve")));
    // The symlink itself works: following it on the host finds her.
    assert!(std::fs::read_to_string(image.path().join(PASSWD)).unwrap().contains("eve"));
}

#[test]
fn a_user_of_the_image_is_found_with_its_home() {
    let (_image, root) = image("agbox:x:1234:99::/srv/agbox:/bin/sh\nodd:x:70000:0::/:\n", "");
    let ids = UidGid { user: 1234, group: 99 };
    assert_eq!(find("agbox", &root), Some(ImageUser { name: "agbox".to_owned(), ids, home: "/srv/agbox".to_owned() }));
    assert_eq!((find("odd", &root), find("bob", &root)), (None, None));
    assert_eq!(find("agbox", &host()).map(|user| user.ids), Some(UidGid { user: 1000, group: 1000 }));
}

#[test]
fn a_user_is_added_after_the_entries_of_the_image() {
    let (_image, mut root) = image("root:x:0:0::/root:/bin/sh\nold:\u{e9}:1000:1000::/old:", "root:x:0:\n");
    let user = add("agbox", 1000, &mut root).unwrap();
    assert_eq!((user.ids, user.home.as_str()), (UidGid { user: 1000, group: 1000 }, "/home/agbox"));
    assert_eq!(find("agbox", &root), Some(user));
    let passwd = text(PASSWD, &root).unwrap();
    assert!(
        passwd.starts_with("root:x:0:0::/root:/bin/sh\nold:\u{e9}:1000:1000::/old:\nagbox:x:1000:1000:"),
        "{passwd}"
    );
    assert_eq!(text(GROUP, &root).unwrap(), "root:x:0:\nagbox:x:1000:\n");
    let home = GuestPath::new("home/agbox").unwrap();
    assert_eq!(root.directories, [RootFsDirectory { path: home, mode: 0o755, owner: 1000 }]);
}

#[test]
fn a_user_is_added_to_an_image_without_passwd_and_joins_an_existing_group_of_its_name() {
    let mut root = RootFs::default();
    assert!(add("agbox", 1000, &mut root).is_ok());
    assert_eq!(text(PASSWD, &root).unwrap(), "agbox:x:1000:1000::/home/agbox:/bin/sh\n");
    let (_image, mut root) = image("", "agbox:x:77:\n");
    assert_eq!(add("agbox", 1000, &mut root).unwrap().ids, UidGid { user: 1000, group: 77 });
    assert_eq!(root.files.len(), 1, "the groups are unchanged");
}

#[test]
fn a_passwd_file_that_is_too_large_is_not_truncated() {
    let (_image, mut root) = image(&"#\n".repeat(1 << 20), "");
    assert_eq!(add("agbox", 1000, &mut root), Err(AccountError::TooLong { list: PASSWD }));
}
