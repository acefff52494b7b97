//! Paths of the host, for trusted and untrusted callers.

use std::os::unix::fs::symlink;

use super::super::open_source;
use super::*;

fn with_mount(source: impl Into<String>) -> SpecDraft {
    SpecDraft { image: "name".into(), mounts: vec![mount(source, "/a")], ..SpecDraft::default() }
}

fn with_copy(source: impl Into<String>) -> SpecDraft {
    SpecDraft { image: "name".into(), copies: vec![copy(source, "/a")], ..SpecDraft::default() }
}

fn with_image(image: impl Into<String>) -> SpecDraft {
    SpecDraft { image: image.into(), ..SpecDraft::default() }
}

fn with_service(image: impl Into<String>) -> SpecDraft {
    let service = DraftService { image: image.into(), ..service("db") };
    SpecDraft { services: vec![service], ..with_image("name") }
}

fn assert_forbidden(outcome: Result<Spec, Refusal>, what: &str) {
    let refusal = outcome.expect_err(what);
    assert_eq!((refusal.code, refusal.reason), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"), "{what}");
}

#[test]
fn only_the_operator_may_use_paths_of_the_host() {
    let home = SpecTestHome::new();
    fs::create_dir(home.path(".npm")).unwrap();
    let tool = SpecDraft { builtin_tools: words(["npm"]), ..with_image("name") };
    let file = home.text("file");
    let drafts = [
        with_mount(&file),
        with_mount("~/file"),
        with_copy(&file),
        with_image(&file),
        with_image("host"),
        with_service(&file),
        with_service("host"),
        tool,
    ];
    for draft in drafts {
        assert_forbidden(home.check_untrusted(draft.clone()), &format!("{draft:?}"));
        assert!(home.check(draft.clone()).is_ok(), "the operator may: {draft:?}");
    }
    assert_forbidden(home.check_untrusted(with_image("./relative/path")), "it would be relative to the daemon");
    for scheme in ["oci", "oci-archive", "docker-archive"] {
        let archive = format!("{scheme}:{file}");
        assert_forbidden(home.check_untrusted(with_image(&archive)), "only the operator may use archives");
        assert!(home.check(with_image(&archive)).is_ok());
    }
    for name in ["name", "relative/path", "registry.example:5000/name:tag"] {
        assert!(home.check_untrusted(with_image(name)).is_ok());
    }
    // The caller does not learn what exists.
    assert_eq!(
        home.words(&home.check_untrusted(with_mount("~/nothing")).unwrap_err()),
        r#"mounts[0].source: "~/nothing" is not allowed for this caller; only the operator can allow paths of the host"#
    );
}

#[test]
fn paths_below_an_allowed_directory_may_be_used() {
    let mut home = SpecTestHome::new();
    home.host.allowed = vec![home.path("dir")];
    for source in ["dir", "dir/below", "dir/below/file", "dir/./below/../below"] {
        let source = home.text(source);
        assert!(home.check_untrusted(with_mount(&source)).is_ok(), "{source}");
        assert!(home.check_untrusted(with_copy(&source)).is_ok(), "{source}");
        assert!(home.check_untrusted(with_image(&source)).is_ok(), "{source}");
    }
    for source in ["file", "dirlink/below", "dir/../file", "dir/below/../../../etc", "dirty"] {
        assert_forbidden(home.check_untrusted(with_mount(home.text(source))), source);
    }
    let refusal = home.check_untrusted(with_mount("~/dir/nothing")).unwrap_err();
    assert_eq!(refusal.message, r#"mounts[0].source: "~/dir/nothing" does not exist"#);
}

#[test]
fn no_link_leads_out_of_an_allowed_directory() {
    let mut home = SpecTestHome::new();
    home.host.allowed = vec![home.path("dir")];
    symlink(home.path(""), home.path("dir/absolute")).unwrap();
    symlink("..", home.path("dir/relative")).unwrap();
    symlink("below", home.path("dir/within")).unwrap();
    for source in ["dir/absolute/file", "dir/relative/file", "dir/relative/dir/below"] {
        assert_forbidden(home.check_untrusted(with_mount(home.text(source))), source);
        assert_forbidden(home.check_untrusted(with_image(home.text(source))), source);
        assert!(home.check(with_mount(home.text(source))).is_ok(), "the link does lead there: {source}");
    }
    let spec = home.check_untrusted(with_mount(home.text("dir/within/file"))).unwrap();
    assert_eq!(spec.mounts[0].source, home.path("dir/below/file"));
    let spec = home.check_untrusted(with_image(home.text("dir/within/file"))).unwrap();
    assert_eq!(spec.image, home.text("dir/below/file"), "the stored path has no links");
}

#[test]
fn the_image_host_needs_the_root_to_be_allowed() {
    let mut home = SpecTestHome::new();
    home.host.allowed = vec!["/usr".into(), "usr".into()];
    assert_forbidden(home.check_untrusted(with_image("host")), "host");
    home.host.allowed.push("/".into());
    assert!(home.check_untrusted(with_image("host")).is_ok());
    assert!(home.check_untrusted(with_mount(home.text("file"))).is_ok());
}

#[test]
fn an_allowed_path_may_be_one_file_and_several_may_overlap() {
    let mut home = SpecTestHome::new();
    home.host.allowed = vec![home.path("gone"), home.path("file"), home.path("dir/below"), home.path("dir")];
    assert!(home.check_untrusted(with_mount("~/file")).is_ok());
    assert!(home.check_untrusted(with_mount("~/dir/below/file")).is_ok());
    assert_forbidden(home.check_untrusted(with_mount("~/gone")), "an allowed path that does not exist");
}

#[test]
fn a_source_that_became_a_link_is_not_opened() {
    let home = SpecTestHome::new();
    let spec = home.check(with_mount("~/dir/below/file")).unwrap();
    let source = &spec.mounts[0].source;
    assert!(open_source(source).is_ok());
    fs::rename(home.path("dir"), home.path("elsewhere")).unwrap();
    symlink("elsewhere", home.path("dir")).unwrap();
    assert!(source.exists(), "the path with the link exists");
    assert!(open_source(source).is_err());
}

#[test]
fn without_a_home_a_tilde_is_refused() {
    let host = Host::default();
    for source in ["~", "~/", "~/file"] {
        let refusal = with_mount(source).check(&host, &OPERATOR).unwrap_err();
        assert_eq!(refusal.message, format!("mounts[0].source: {source:?} is not an absolute path of the host"));
    }
}

#[test]
fn a_path_that_cannot_be_stored_is_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let home = SpecTestHome::new();
    let odd = home.host.home.join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("file"), "").unwrap();
    symlink(&odd, home.path("even")).unwrap();
    let refusal = home.check(with_mount("~/even/file")).unwrap_err();
    assert_eq!(refusal.message, r#"mounts[0].source: "~/even/file" leads to a path that is not in UTF-8"#);
}

#[test]
fn a_path_that_the_caller_cannot_read_is_refused_even_if_it_is_allowed() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let mut home = SpecTestHome::new();
    home.host.allowed = vec!["/".into()];
    fs::create_dir(home.path("dir/closed")).unwrap();
    fs::write(home.path("dir/closed/file"), "").unwrap();
    fs::write(home.path("dir/own"), "").unwrap();
    for (name, owner, mode) in [
        ("", 0, 0o755),
        ("dir", 0, 0o755),
        ("dir/own", 4242, 0o600),
        ("dir/below", 0, 0o755),
        ("dir/below/file", 0, 0o600),
        ("dir/closed", 0, 0o700),
    ] {
        chown(home.path(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(home.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let caller = Caller { user: 4242, group: 4242, trusted: false };
    let check = |caller: &Caller, draft: SpecDraft| draft.check(&home.host, caller);
    for source in ["dir/below/file", "dir/closed", "dir/closed/file"] {
        for draft in [with_mount(home.text(source)), with_copy(home.text(source)), with_image(home.text(source))] {
            assert_forbidden(check(&caller, draft.clone()), source);
            assert_forbidden(check(&Caller::KEY, draft.clone()), source);
            assert!(check(&OTHER, draft).is_ok(), "a caller who may read it gets it: {source}");
        }
    }
    for source in ["dir", "dir/own"] {
        let spec = check(&caller, with_mount(home.text(source))).unwrap();
        assert_eq!(spec.host_owner(), Some(super::super::HostIds { user: 4242, group: 4242 }), "{source}");
    }
    // A caller with the API key and no user reads what all users may.
    assert_forbidden(check(&Caller::KEY, with_mount(home.text("dir/own"))), "dir/own");
    let spec = check(&Caller::KEY, with_mount(home.text("dir"))).unwrap();
    assert_eq!(spec.host_owner(), Some(super::super::HostIds::UNKNOWN));
    // The root user of the sandbox reads all of an image.
    let refusal = check(&caller, with_image(home.text("dir"))).unwrap_err();
    assert!(refusal.message.contains("which cannot be read by this caller"), "{}", refusal.message);
    fs::set_permissions(home.path("dir/below/file"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::remove_dir_all(home.path("dir/closed")).unwrap();
    assert!(check(&caller, with_image(home.text("dir"))).is_ok());
    assert_eq!(check(&OPERATOR, with_mount(home.text("dir"))).unwrap().host_owner(), None, "the owner of the path");
}

#[test]
fn a_socket_needs_a_writable_mount() {
    let home = SpecTestHome::new();
    let mut draft = with_mount(home.text("socket"));
    let refusal = home.check(draft.clone()).unwrap_err();
    assert_eq!(
        home.words(&refusal),
        r#"mounts[0].source: "HOME/socket" is a socket, which needs a writable mount; set writable"#
    );
    for mount in &mut draft.mounts {
        mount.writable = true;
    }
    assert!(home.check(draft).is_ok());
}
