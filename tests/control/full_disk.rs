//! A full disk: a request that cannot be committed is refused, and pending events are delivered when there is space.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use carrel_api::agbox::v1::{CreateSpec, ExecState, MountSpec, PingRequest, SandboxState};
use carrel_tests::{Daemon, DaemonHome, run};
use tonic::{Code, Status};

use crate::cleanup::{check_no_leftovers, check_store};
use crate::client::{Client, exec_of, host_spec, reason};
use crate::failover::check_history;

/// A file system in the mount namespace of a daemon.
pub(crate) struct DaemonDisk {
    root: File,
}

// === impl DaemonDisk ===

impl DaemonDisk {
    pub(crate) fn of(daemon: &Daemon, mounted: &Path) -> Self {
        Self { root: File::open(format!("/proc/{}/root{}", daemon.pid(), mounted.display())).unwrap() }
    }

    /// A path on it, through an open descriptor, so that it is valid after the daemon has exited.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd())).join(name)
    }

    /// Writes until no space is left.
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

/// Whether a request was refused because it could not be committed. Panics on any other error.
fn is_not_committed<T: std::fmt::Debug>(response: &Result<T, Status>) -> bool {
    match response {
        Ok(_) => false,
        Err(status) => {
            let error = (status.code(), reason(status));
            let expected = [(Code::Internal, "STORE_FAILED"), (Code::ResourceExhausted, "LIMIT_REACHED")];
            assert!(expected.map(|(code, reason)| (code, Some(reason.to_owned()))).contains(&error), "{status}");
            true
        }
    }
}

/// A daemon with a tmpfs of that size at `path`, and one sandbox whose command exits when there is a file `signal/end`.
async fn start_on_small_disk(home: &DaemonHome, path: &str, size: &str) -> (Daemon, DaemonDisk, Client) {
    let mounted = home.path(path);
    std::fs::create_dir_all(&mounted).unwrap();
    let mount = format!("mount -t tmpfs -o size={size},mode=0700 tmpfs {}; exec \"$@\"", mounted.display());
    let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap();
    let mut client = Client::connect_to(&home.path("runtime/agbox/agboxd.sock")).await;
    let signal = home.path("signal");
    std::fs::create_dir(&signal).unwrap();
    let signal = MountSpec { source: signal.display().to_string(), target: "/signal".to_owned(), writable: false };
    client.create_and_wait("ready", CreateSpec { mounts: vec![signal], ..host_spec() }).await;
    client.exec("ready", "held", "while ! [ -e /signal/end ]; do sleep 0.01; done; exit 7").await.unwrap();
    let disk = DaemonDisk::of(&daemon, &mounted);
    (daemon, disk, client)
}

/// Repeats a request with new ids until it is refused. Returns the refused id, and the accepted ones: the last page of
/// the file may have space for some more.
async fn repeat_until_refused(
    disk: &DaemonDisk,
    mut request: impl AsyncFnMut(&str) -> bool,
    prefix: &str,
) -> (String, Vec<String>) {
    let mut accepted = Vec::new();
    loop {
        disk.fill();
        let id = format!("{prefix}-{}", accepted.len());
        if request(&id).await {
            return (id, accepted);
        }
        accepted.push(id);
    }
}

/// Deletes a sandbox. Retries while its pending events are not committed.
async fn delete_with_retry(client: &mut Client, id: &str) {
    while is_not_committed(&client.delete(id).await) {
        tokio::task::yield_now().await;
    }
    client.wait_for_state(id, SandboxState::Deleted).await.unwrap();
    check_history(&client.history(id).await.unwrap());
}

#[test]
fn on_a_full_store_requests_are_refused_and_events_are_delivered_later() {
    run(async {
        let home = DaemonHome::new();
        let (daemon, disk, mut client) = start_on_small_disk(&home, "home/store", "4m").await;
        client.create_and_wait("spare", host_spec()).await;
        let (refused, sandboxes) =
            repeat_until_refused(&disk, async |id| is_not_committed(&client.create(id, host_spec()).await), "box")
                .await;
        assert_eq!(client.get(&refused).await.unwrap_err().code(), Code::NotFound);
        let (refused_exec, _) =
            repeat_until_refused(&disk, async |id| is_not_committed(&client.exec("ready", id, "true").await), "exec")
                .await;
        assert_eq!(client.get_exec(&refused_exec).await.unwrap_err().code(), Code::NotFound);
        // A delete is refused too, without effect, unless there is space for it.
        let before = client.get("spare").await.unwrap();
        disk.fill();
        if is_not_committed(&client.delete("spare").await) {
            assert_eq!(client.get("spare").await.unwrap(), before);
        }
        // The daemon runs and serves reads. The exit of the exec is reported when there is space.
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
        let event = events.message().await.unwrap().unwrap();
        assert_eq!(exec_of(&event), Some("held"));
        assert_eq!(client.get_exec("held").await.unwrap().exit_code, 7);
        // A refused request has no effect: its id is free.
        client.create_and_wait(&refused, host_spec()).await;
        assert_eq!(client.run("ready", &refused_exec, "true").await.exit_code, 0);
        for id in sandboxes.iter().map(String::as_str).chain(["ready", "spare", &refused]) {
            delete_with_retry(&mut client, id).await;
        }
        daemon.stop().await;
        std::fs::copy(disk.path("carrel.db"), home.store()).unwrap();
        check_store(&home);
        check_no_leftovers(&home, &[]).await;
    });
}

//= promises.control-plane.full-disk
#[test]
fn on_a_full_disk_no_request_is_accepted_in_part_and_with_space_everything_continues() {
    run(async {
        let home = DaemonHome::new();
        let (daemon, disk, mut client) = start_on_small_disk(&home, "home", "256m").await;
        let (refused, sandboxes) =
            repeat_until_refused(&disk, async |id| is_not_committed(&client.create(id, host_spec()).await), "box")
                .await;
        assert_eq!(client.get(&refused).await.unwrap_err().code(), Code::NotFound);
        client.api.ping(PingRequest {}).await.unwrap();
        assert_eq!(client.get("ready").await.unwrap().state(), SandboxState::Ready);
        std::fs::write(home.path("signal/end"), "").unwrap();

        disk.free();
        client.wait_for_exec("held").await.unwrap();
        while is_not_committed(&client.create(&refused, host_spec()).await) {
            tokio::task::yield_now().await;
        }
        client.wait_for_state(&refused, SandboxState::Ready).await.unwrap();
        for id in sandboxes.iter().map(String::as_str).chain(["ready", &refused]) {
            delete_with_retry(&mut client, id).await;
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
fn on_a_full_disk_sandboxes_can_be_stopped_and_deleted_and_nothing_can_be_created() {
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
        let mut client = Client::connect_to(&home.path("runtime/agbox/agboxd.sock")).await;
        let disk = DaemonDisk::of(&daemon, &mounted);
        let spec = || CreateSpec { disk_limit: String::new(), ..host_spec() };
        for id in ["one1", "two2", "three"] {
            client.create_and_wait(id, spec()).await;
            client.exec(id, &format!("in-{id}"), "sleep 1000").await.unwrap();
        }
        let reserve_bytes = || std::fs::metadata(disk.path("store/reserve")).unwrap().len();
        let full_reserve = reserve_bytes();
        assert!(full_reserve > 0);
        let (refused, created) =
            repeat_until_refused(&disk, async |id| is_not_committed(&client.create(id, spec()).await), "box").await;
        let status = client.create(&refused, spec()).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_deref()), (Code::ResourceExhausted, Some("LIMIT_REACHED")));
        assert!(status.message().contains("the disk of the host is full"), "{status}");
        // Stops and deletes use the reserve of the store, any number of times.
        for id in ["one1", "two2"] {
            disk.fill();
            client.stop(id).await.unwrap();
            client.wait_for_state(id, SandboxState::Stopped).await.unwrap();
        }
        disk.fill();
        for id in created.iter().map(String::as_str).chain(["one1", "two2", "three"]) {
            client.delete(id).await.unwrap();
            client.wait_for_state(id, SandboxState::Deleted).await.unwrap();
            check_history(&client.history(id).await.unwrap());
        }
        disk.free();
        client.create_and_wait(&refused, spec()).await;
        assert_eq!(client.run(&refused, "after", "echo kept > file").await.exit_code, 0);
        assert_eq!(reserve_bytes(), full_reserve);
        client.delete_and_wait(&refused).await;
        daemon.stop().await;
        std::fs::create_dir_all(home.store().parent().unwrap()).unwrap();
        std::fs::copy(disk.path("store/carrel.db"), home.store()).unwrap();
        check_store(&home);
    });
}
