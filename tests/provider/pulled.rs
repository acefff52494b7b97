//! Images that come from elsewhere: whoever ends a sandbox does not wait for them, and links of theirs stay.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;

use carrel_control::provider::{Place, Provider, ProviderError};
use carrel_control::spec::Spec;
use carrel_local::{Local, Settings};
use carrel_tests::{programs, run};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::users::image;
use crate::world::{GRACE, World, again, host, place, settings};

/// A registry that answers with one byte, and then with nothing more.
struct Endless {
    address: SocketAddr,
    /// Who has asked, for as long as this is.
    asked: mpsc::UnboundedReceiver<TcpStream>,
}

impl Endless {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // Something was asked, in whatever way.
                let asked = stream.read(&mut [0]).is_ok_and(|length| length > 0) && stream.write_all(b"H").is_ok();
                if asked && tell.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { address, asked }
    }

    /// A provider that may ask it for anybody.
    fn known_to(&self, world: &World) -> Local {
        let named = (self.address.to_string(), carrel_registry::RegistryConfig::default());
        let registries = carrel_registry::RegistriesConfig::new([named]);
        Local::new(Settings { registries, ..settings(world.home.path()) }, programs()).unwrap()
    }

    fn spec(&self) -> Spec {
        Spec { image: format!("{}/demo:1", self.address), ..Spec::default() }
    }
}

/// Starts a sandbox that waits for its image. Each has a registry of its own: one that was given up may still ask again, and
/// that is not the one which is waited for.
async fn waiting(world: &World, endless: &mut Endless, untrusted: bool) -> (Place, Started) {
    let (local, place, spec) = (world.local.clone(), place("demo"), Spec { untrusted, ..endless.spec() });
    let own = place.clone();
    let started = tokio::spawn(async move { local.start(&own, &spec).await });
    let _open = endless.asked.recv().await.unwrap();
    assert!(!started.is_finished(), "it waits");
    (place, started)
}

type Started = JoinHandle<Result<(), ProviderError>>;

//= promises.images.pull-nobody-waits-whose
#[test]
fn whoever_ends_a_sandbox_does_not_wait_for_its_image() {
    run(async {
        let mut world = World::new();
        for untrusted in [false, true] {
            let mut endless = Endless::new();
            world.local = endless.known_to(&world);
            // Ended by somebody else, while whoever asked for it waits.
            let (place, started) = waiting(&world, &mut endless, untrusted).await;
            world.local.remove(&place).await.unwrap();
            assert_eq!(started.await.unwrap().unwrap_err().message, "the start was cancelled");
            assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
            let mut endless = Endless::new();
            world.local = endless.known_to(&world);
            let (place, started) = waiting(&world, &mut endless, untrusted).await;
            world.local.stop(&place, GRACE).await.unwrap();
            assert!(started.await.unwrap().is_err());
            world.local.remove(&place).await.unwrap();
            assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
        }
        // Nothing is left of them that would keep another from the name.
        let place = world.started("demo", &host()).await;
        world.local.remove(&place).await.unwrap();
    });
}

//= promises.images.registry-another-user-machine
#[test]
fn a_stranger_has_nothing_asked_of_this_host_unless_the_operator_names_it() {
    run(async {
        let mut world = World::new();
        let mut endless = Endless::new();
        let refused = world.local.start(&place("demo"), &Spec { untrusted: true, ..endless.spec() }).await.unwrap_err();
        assert!(refused.message.contains("not a public address"), "{refused}");
        assert!(endless.asked.try_recv().is_err(), "nobody asked");
        world.local = endless.known_to(&world);
        let (place, started) = waiting(&world, &mut endless, true).await;
        world.local.remove(&place).await.unwrap();
        assert!(started.await.unwrap().is_err());
    });
}

#[test]
fn a_start_that_nobody_waits_for_is_given_up_before_its_image_has_come() {
    run(async {
        let world = World::new();
        let mut endless = Endless::new();
        let (first, started) = waiting(&world, &mut endless, false).await;
        started.abort();
        assert!(started.await.unwrap_err().is_cancelled());
        // One that needs nothing from elsewhere does not wait for those that do.
        let mut endless = Endless::new();
        let (other, started) = waiting(&world, &mut endless, false).await;
        let beside = world.started("beside", &host()).await;
        assert!(!started.is_finished());
        for place in [first, other, beside] {
            world.local.remove(&place).await.unwrap();
            assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
        }
        assert!(started.await.unwrap().is_err());
    });
}

#[test]
fn a_home_that_is_missing_is_made_where_links_of_the_image_lead() {
    run(async {
        let world = World::new();
        let (root, spec) = image(None);
        std::fs::create_dir_all(root.path().join("var/lib")).unwrap();
        symlink("var/lib/home", root.path().join("home")).unwrap();
        let place = world.started("demo", &spec).await;
        let look = "echo $HOME; stat -c %N /home; touch ~/may; stat -c '%U %F' /var/lib/home/agbox ~/may";
        let expected = "/home/agbox\n'/home' -> 'var/lib/home'\nagbox directory\nagbox regular empty file\n";
        assert_eq!(world.shell(&place, "exec-1", look).await, expected);
        world.local.remove(&place).await.unwrap();
    });
}

#[test]
fn what_a_sandbox_made_a_link_stays_one() {
    run(async {
        let world = World::new();
        let (_root, spec) = image(Some("agbox:x:0:0::/srv/own:/bin/sh\n"));
        let first = world.started("demo", &spec).await;
        let change = "cd /; touch ~/file; busybox mv /srv/own /srv/other && busybox ln -s other /srv/own";
        world.shell(&first, "exec-1", change).await;
        world.local.stop(&first, GRACE).await.unwrap();
        let second = again(&first);
        world.local.start(&second, &spec).await.unwrap();
        let look = "stat -c %N /srv/own; cat ~/file && echo there";
        assert_eq!(world.shell(&second, "exec-2", look).await, "'/srv/own' -> 'other'\nthere\n");
        world.local.remove(&second).await.unwrap();
    });
}

#[test]
fn the_root_of_a_sandbox_is_like_that_of_its_image() {
    use std::os::unix::fs::PermissionsExt;
    run(async {
        let world = World::new();
        let (root, spec) = image(None);
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o1775)).unwrap();
        std::os::unix::fs::chown(root.path(), Some(12), Some(34)).unwrap();
        let place = world.started("demo", &spec).await;
        let look = "stat -c '%a %u:%g' /";
        assert_eq!(world.shell(&place, "exec-1", look).await, "1775 12:34\n");
        // What the sandbox has seen once does not change under it.
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        world.local.stop(&place, GRACE).await.unwrap();
        let second = again(&place);
        world.local.start(&second, &spec).await.unwrap();
        assert_eq!(world.shell(&second, "exec-2", look).await, "1775 12:34\n");
        world.local.remove(&second).await.unwrap();
    });
}
