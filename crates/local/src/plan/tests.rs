use carrel_control::spec;
use carrel_store::SandboxId;

use super::*;
use crate::LogTemplate;

struct PlanFixture {
    home: tempfile::TempDir,
    image: tempfile::TempDir,
}

impl PlanFixture {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), image: tempfile::tempdir().unwrap() }
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.image.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn plan(&self, spec: &Spec) -> Result<Create, ProviderError> {
        let settings = LocalSettings {
            home: self.home.path().to_owned(),
            logs: LogTemplate::new("/logs", LogTemplate::DEFAULT).unwrap(),
            default_memory: 1 << 30,
            pids: 77,
            host_free: 5,
            host_free_inodes: Some(6),
            default_disk: 7,
            default_inodes: 0,
            orphans_kept: std::time::Duration::ZERO,
            output_quota: None,
            prestarted: 0,
            registries: carrel_registry::RegistriesConfig::default(),
        };
        let programs = Programs { shim: "/shim".into(), agentd: "/agentd".into() };
        let sandbox = SandboxId::new("x".repeat(200)).unwrap();
        let place = Place { sandbox, incarnation: "one".to_owned(), disk: "d1".to_owned() };
        let paths = HomePaths::new(self.home.path()).unwrap();
        let image = Image::from(RootFs::resolve(&spec.image.parse().map_err(failed)?).map_err(failed)?);
        create(&settings, &programs, (&paths, &image), &place, spec)
    }

    fn spec(&self) -> Spec {
        Spec { image: self.image.path().to_str().unwrap().to_owned(), ..Spec::default() }
    }
}

fn root(create: Create) -> RootFs {
    create.root.try_into().unwrap()
}

fn owners(root: &RootFs) -> Vec<(&str, u32)> {
    root.directories.iter().map(|made| (made.path.as_path().to_str().unwrap(), made.owner)).collect()
}

#[test]
fn the_exec_user_is_added_to_an_image_without_it() {
    let fixture = PlanFixture::new();
    fixture.put("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    let root = root(fixture.plan(&fixture.spec()).unwrap());
    assert_eq!(owners(&root), [("home/agbox", 1000), ("workspace", 1000)]);
    assert_eq!(user_of(&root, &ImageConfig::default()).ids, UidGid { user: 1000, group: 1000 });
    assert_eq!(accounts::home(Some("root"), &accounts_of(&root)), "/root");
}

#[test]
fn an_exec_user_of_the_image_keeps_its_ids_and_home() {
    let fixture = PlanFixture::new();
    fixture.put("etc/passwd", "agbox:x:1234:99::/srv/agbox:/bin/sh\n");
    fixture.put("srv/agbox/file", "");
    let root = root(fixture.plan(&fixture.spec()).unwrap());
    assert_eq!(owners(&root), [("workspace", 1234)]);
    assert_eq!((user_of(&root, &ImageConfig::default()).ids, root.files.len()), (UidGid { user: 1234, group: 99 }, 0));
}

#[test]
fn parent_directories_of_mounts_in_a_home_belong_to_its_user() {
    let fixture = PlanFixture::new();
    fixture.put("home/agbox/.there/file", "");
    let mount = |target: &str| spec::Mount { source: "/usr".into(), target: target.to_owned(), writable: true };
    let targets = ["/home/agbox/.config/a/b", "/home/agbox/.there/x", "/other/x/y", "/workspace/deep/x"];
    let create = fixture.plan(&Spec { mounts: targets.map(mount).to_vec(), ..fixture.spec() }).unwrap();
    assert!(create.mounts.iter().all(|mount| (mount.user, mount.group) == (1000, 1000)));
    let expected = [("workspace", 1000), ("home/agbox/.config", 1000), ("home/agbox/.config/a", 1000)];
    let root = root(create);
    let owners: Vec<_> = owners(&root).into_iter().filter(|(path, _)| *path != "home/agbox").collect();
    assert_eq!(owners, [expected.as_slice(), &[("workspace/deep", 1000)]].concat());
}

#[test]
fn limits_come_from_the_sandbox_or_the_settings() {
    let fixture = PlanFixture::new();
    let create = fixture.plan(&fixture.spec()).unwrap();
    assert_eq!((create.limits.memory, create.limits.pids, create.limits.cpu_millis), (Some(1 << 30), Some(77), None));
    let kept = create.kept_disk.unwrap();
    assert_eq!((kept.unlimited, kept.host_free, kept.host_free_inodes), (Some(true), 5, Some(6)));
    assert_eq!((kept.quota_bytes, kept.quota_inodes), (Some(7), None));
    assert_eq!((create.hostname.len(), create.name.len(), create.lasting), (63, 25, true));
    let limits = spec::Limits { cpu_millis: Some(500), memory: Some(1 << 28), disk: Some(1 << 26) };
    let create = fixture.plan(&Spec { limits, ..fixture.spec() }).unwrap();
    assert_eq!((create.limits.memory, create.limits.cpu_millis, create.disk), (Some(1 << 28), Some(500), 1 << 26));
    assert_eq!(create.kept_disk.unwrap().unlimited, None);
}

#[test]
fn a_missing_image_is_reported() {
    let fixture = PlanFixture::new();
    let refused = fixture.plan(&Spec { image: "/no/such/image".to_owned(), ..Spec::default() }).unwrap_err();
    assert!(refused.message.contains("/no/such/image"), "{refused}");
}

#[test]
fn execs_run_as_the_user_of_the_image_unless_it_has_the_exec_user() {
    let fixture = PlanFixture::new();
    fixture.put("etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1001:1002::/home/node:/bin/sh\n");
    let layer = || RootFs::layer(fixture.image.path().to_owned());
    let says = |user: &str| ImageConfig { user: Some(user.to_owned()), ..ImageConfig::default() };
    for (user, ids) in [("node", (1001, 1002)), ("1001:7", (1001, 7)), ("0", (0, 0))] {
        let mut root = layer();
        let found = add_exec_user(&mut root, &says(user), None).unwrap();
        assert_eq!((found.name.as_str(), (found.ids.user, found.ids.group)), (user, ids));
        assert_eq!(user_of(&root, &says(user)), found);
        assert!(owners(&root).contains(&("workspace", ids.0)) && root.files.is_empty());
    }
    let refused = add_exec_user(&mut layer(), &says("nobody"), None).unwrap_err();
    assert_eq!(refused.message, r#"the image has no user "nobody""#);
    fixture.put("etc/passwd", "agbox:x:5:6::/a:/bin/sh\n");
    assert_eq!(add_exec_user(&mut layer(), &says("0"), None).unwrap().ids, UidGid { user: 5, group: 6 });
}
