//! A disk that is full: what cannot be written down is refused, and what happens meanwhile is told when there is room.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use carrel_api::agbox::v1::{CreateSpec, ExecState, MountSpec, PingRequest, SandboxState};
use carrel_tests::{Daemon, DaemonHome, run};
use tonic::{Code, Status};

use crate::client::{Client, exec_of, host, reason};
use crate::left::{check_store, nothing_left};
use crate::life::check_history;

/// A disk that only a daemon sees, and what it started.
pub(crate) struct Disk {
    root: File,
}

// === impl Disk ===

impl Disk {
    pub(crate) fn of(daemon: &Daemon, mounted: &Path) -> Self {
        Self { root: File::open(format!("/proc/{}/root{}", daemon.pid(), mounted.display())).unwrap() }
    }

    /// A path on it: by a handle, so that it is there for as long as we are.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd())).join(name)
    }

    /// Takes all the room there is.
    pub(crate) fn fill(&self) {
        let mut ballast = File::options().create(true).append(true).open(self.path("ballast")).unwrap();
        for size in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![1; size]).is_ok() {}
        }
    }

    pub(crate) fn free(&self) {
        std::fs::remove_file(self.path("ballast")).unwrap();
    }

    fn names(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Whether something was refused because it could not be written down.
fn is_unwritten<T: std::fmt::Debug>(answer: &Result<T, Status>) -> bool {
    match answer {
        Ok(_) => false,
        Err(status) => {
            let said = (status.code(), reason(status));
            let unwritten = [(Code::Internal, "STORE_FAILED"), (Code::ResourceExhausted, "LIMIT_REACHED")];
            assert!(unwritten.map(|(code, reason)| (code, Some(reason.to_owned()))).contains(&said), "{status}");
            true
        }
    }
}

/// A daemon with a disk of that size at a place of its home, and one sandbox whose command ends when `signal` has an `end`.
async fn scene(home: &DaemonHome, place: &str, size: &str) -> (Daemon, Disk, Client) {
    let mounted = home.path(place);
    std::fs::create_dir_all(&mounted).unwrap();
    let mount = format!("mount -t tmpfs -o size={size},mode=0700 tmpfs {}; exec \"$@\"", mounted.display());
    let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap();
    let mut client = Client::at(&home.path("runtime/agbox/agboxd.sock")).await;
    let signal = home.path("signal");
    std::fs::create_dir(&signal).unwrap();
    let signal = MountSpec { source: signal.display().to_string(), target: "/signal".to_owned(), writable: false };
    client.ready("ready", CreateSpec { mounts: vec![signal], ..host() }).await;
    client.exec("ready", "held", "while ! [ -e /signal/end ]; do sleep 0.01; done; exit 7").await.unwrap();
    let disk = Disk::of(&daemon, &mounted);
    (daemon, disk, client)
}

/// Asks until what is asked for is refused; returns the id of that, and those that were accepted: what is left in a page
/// that was written takes some more.
async fn until_refused(disk: &Disk, mut ask: impl AsyncFnMut(&str) -> bool, prefix: &str) -> (String, Vec<String>) {
    let mut accepted = Vec::new();
    loop {
        disk.fill();
        let id = format!("{prefix}-{}", accepted.len());
        if ask(&id).await {
            return (id, accepted);
        }
        accepted.push(id);
    }
}

/// Deletes one. Of some it may still have to be written down what happened to them.
async fn gone(client: &mut Client, id: &str) {
    while is_unwritten(&client.delete(id).await) {
        tokio::task::yield_now().await;
    }
    client.until(id, SandboxState::Deleted).await.unwrap();
    check_history(&client.history(id).await.unwrap());
}

#[test]
fn what_does_not_fit_into_the_store_is_refused_and_what_happens_meanwhile_is_told_later() {
    run(async {
        let home = DaemonHome::new();
        let (daemon, disk, mut client) = scene(&home, "home/store", "4m").await;
        client.ready("spare", host()).await;
        let (refused, sandboxes) =
            until_refused(&disk, async |id| is_unwritten(&client.create(id, host()).await), "box").await;
        assert_eq!(client.get(&refused).await.unwrap_err().code(), Code::NotFound);
        let (unrun, _) =
            until_refused(&disk, async |id| is_unwritten(&client.exec("ready", id, "true").await), "exec").await;
        assert_eq!(client.get_exec(&unrun).await.unwrap_err().code(), Code::NotFound);
        // Whoever wants to delete one is told as well, and it is as it was; unless there was room for that.
        let before = client.get("spare").await.unwrap();
        disk.fill();
        if is_unwritten(&client.delete("spare").await) {
            assert_eq!(client.get("spare").await.unwrap(), before);
        }
        // It lives, and what is known can be asked for. What ends now is told when there is room.
        client.api.ping(PingRequest {}).await.unwrap();
        let newest = client.get("ready").await.unwrap().last_event_sequence;
        let mut events = client.subscribe("ready", newest).await.unwrap();
        disk.fill();
        std::fs::write(home.path("signal/end"), "").unwrap();
        while client.get_exec("held").await.unwrap().state() == ExecState::Running
            && !home.log().contains("an event cannot be committed; retrying")
        {
            disk.fill();
        }

        disk.free();
        let told = events.message().await.unwrap().unwrap();
        assert_eq!(exec_of(&told), Some("held"));
        assert_eq!(client.get_exec("held").await.unwrap().exit_code, 7);
        // What was refused was never there: its ids are free.
        client.ready(&refused, host()).await;
        assert_eq!(client.run("ready", &unrun, "true").await.exit_code, 0);
        for id in sandboxes.iter().map(String::as_str).chain(["ready", "spare", &refused]) {
            gone(&mut client, id).await;
        }
        daemon.stop().await;
        std::fs::copy(disk.path("carrel.db"), home.store()).unwrap();
        check_store(&home);
        nothing_left(&home, &[]).await;
    });
}

//= promises.control-plane.full-disk
#[test]
fn on_a_full_disk_nothing_is_half_accepted_and_with_room_everything_goes_on() {
    run(async {
        let home = DaemonHome::new();
        let (daemon, disk, mut client) = scene(&home, "home", "256m").await;
        let (refused, sandboxes) =
            until_refused(&disk, async |id| is_unwritten(&client.create(id, host()).await), "box").await;
        assert_eq!(client.get(&refused).await.unwrap_err().code(), Code::NotFound);
        client.api.ping(PingRequest {}).await.unwrap();
        assert_eq!(client.get("ready").await.unwrap().state(), SandboxState::Ready);
        std::fs::write(home.path("signal/end"), "").unwrap();

        disk.free();
        client.until_ended("held").await.unwrap();
        while is_unwritten(&client.create(&refused, host()).await) {
            tokio::task::yield_now().await;
        }
        client.until(&refused, SandboxState::Ready).await.unwrap();
        for id in sandboxes.iter().map(String::as_str).chain(["ready", &refused]) {
            gone(&mut client, id).await;
        }
        daemon.stop().await;
        for name in ["run/sandboxes", "disks"] {
            assert_eq!(disk.names(name), Vec::<String>::new(), "in {name}");
        }
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        std::fs::copy(disk.path("store/carrel.db"), home.store()).unwrap();
        check_store(&home);
    });
}

//= promises.control-plane.disk-without-byte-left
#[test]
fn on_a_full_disk_sandboxes_are_stopped_and_removed_and_nothing_else_begins() {
    run(async {
        let home = DaemonHome::new();
        let (memory, mounted) = (home.path("memory").display().to_string(), home.home());
        std::fs::create_dir(&memory).unwrap();
        let mount = format!(
            "mount -t tmpfs -o size=96m tmpfs {memory}; truncate -s 64m {memory}/image
            /usr/sbin/mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0 {memory}/image
            mount -o loop,noinit_itable {memory}/image {}; exec \"$@\"",
            mounted.display()
        );
        let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap_or_else(|_| panic!("{}", home.log()));
        let mut client = Client::at(&home.path("runtime/agbox/agboxd.sock")).await;
        let disk = Disk::of(&daemon, &mounted);
        let spec = || CreateSpec { disk_limit: String::new(), ..host() };
        for id in ["one1", "two2", "three"] {
            client.ready(id, spec()).await;
            client.exec(id, &format!("in-{id}"), "sleep 1000").await.unwrap();
        }
        let reserve = || std::fs::metadata(disk.path("store/reserve")).unwrap().len();
        let whole = reserve();
        assert!(whole > 0);
        let (refused, made) =
            until_refused(&disk, async |id| is_unwritten(&client.create(id, spec()).await), "box").await;
        let status = client.create(&refused, spec()).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_deref()), (Code::ResourceExhausted, Some("LIMIT_REACHED")));
        assert!(status.message().contains("the disk of the host is full"), "{status}");
        // What ends something has the reserve of the store, however often.
        for id in ["one1", "two2"] {
            disk.fill();
            client.stop(id).await.unwrap();
            client.until(id, SandboxState::Stopped).await.unwrap();
        }
        disk.fill();
        for id in made.iter().map(String::as_str).chain(["one1", "two2", "three"]) {
            client.delete(id).await.unwrap();
            client.until(id, SandboxState::Deleted).await.unwrap();
            check_history(&client.history(id).await.unwrap());
        }
        disk.free();
        client.ready(&refused, spec()).await;
        assert_eq!(client.run(&refused, "after", "echo kept > file").await.exit_code, 0);
        assert_eq!(reserve(), whole);
        client.gone(&refused).await;
        daemon.stop().await;
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        std::fs::copy(disk.path("store/carrel.db"), home.store()).unwrap();
        check_store(&home);
    });
}
