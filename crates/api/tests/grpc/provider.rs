//! A fake provider whose shim and agent are implemented by a test.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use carrel_control::fake::FakeProvider;
use carrel_control::provider::{
    Answer, DiskReader, ExecStart, InUseSource, LogPaths, Noted, Place, Provider, Reach, Reaped,
};
use carrel_control::spec::Spec;
use carrel_store::{ExecId, SandboxId};
use tokio::sync::mpsc;

/// The fake provider with sockets in a directory.
pub struct SocketProvider {
    pub fake: FakeProvider,
    pub directory: PathBuf,
}

/// A disk reader whose agent is implemented by a test.
#[derive(Debug)]
struct SocketDiskReader {
    reader: Box<dyn DiskReader>,
    agent_socket: PathBuf,
}

impl DiskReader for SocketDiskReader {
    fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.reader.ended()
    }
}

impl Provider for SocketProvider {
    fn read_disk<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, Box<dyn DiskReader>> {
        Box::pin(async move {
            let (reader, agent_socket) = (self.fake.read_disk(place, spec).await?, self.reach(place).agent_socket);
            Ok(Box::new(SocketDiskReader { reader, agent_socket }) as Box<dyn DiskReader>)
        })
    }

    fn reach(&self, _: &Place) -> Reach {
        Reach { agent_socket: self.directory.join("agent.sock"), shim_socket: self.directory.join("shim.sock") }
    }

    fn start<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, ()> {
        self.fake.start(place, spec)
    }

    fn adopt<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, bool> {
        self.fake.adopt(place, spec)
    }

    fn has_disk<'a>(&'a self, place: &'a Place) -> Answer<'a, bool> {
        self.fake.has_disk(place)
    }

    fn watch(&self, place: &Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
        self.fake.watch(place, after)
    }

    fn command<'a>(&'a self, place: &'a Place, spec: &'a Spec, attempt: u32) -> Answer<'a, ()> {
        self.fake.command(place, spec, attempt)
    }

    fn exec<'a>(&'a self, place: &'a Place, spec: &'a Spec, exec: &'a ExecStart) -> Answer<'a, ()> {
        self.fake.exec(place, spec, exec)
    }

    fn cancel<'a>(&'a self, place: &'a Place, exec: &'a ExecId) -> Answer<'a, ()> {
        self.fake.cancel(place, exec)
    }

    fn stop<'a>(&'a self, place: &'a Place, grace: Duration) -> Answer<'a, ()> {
        self.fake.stop(place, grace)
    }

    fn forget<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        self.fake.forget(place)
    }

    fn remove<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        self.fake.remove(place)
    }

    fn remove_logs<'a>(&'a self, sandbox: &'a SandboxId) -> Answer<'a, ()> {
        self.fake.remove_logs(sandbox)
    }

    fn pause<'a>(&'a self, place: &'a Place, paused: bool) -> Answer<'a, ()> {
        self.fake.pause(place, paused)
    }

    fn is_active<'a>(&'a self, place: &'a Place) -> Answer<'a, bool> {
        self.fake.is_active(place)
    }

    fn reap<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Reaped> {
        self.fake.reap(in_use)
    }

    fn logs(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths {
        self.fake.logs(sandbox, exec)
    }
}
