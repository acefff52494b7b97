//! A scripted shim that discovery finds.

use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use carrel_agent_client::protocol::Envelope;
use carrel_agent_client::protocol::frame::{Header, PREFIX_SIZE};
use carrel_agent_client::sandbox_directory;
use carrel_image::RootFs;
use carrel_shim_client::messages::{
    Create, GetStatus, Hello, JobInfo, JobRetention, JobState, JobStream, PeerProcess, PersistentDisk, SandboxLimits,
    ShimState, Status,
};
use carrel_shim_client::{SandboxRecord, ShimMessage, VERSION, boot_id, decode, encode, process_start_time};
use rustix::fs::{FlockOperation, flock};

use crate::support::TestEnvironment;

const INCARNATION: &str = "a-fake-one";

/// A sandbox whose shim is this process. It must not be killed: that would kill the tests.
pub(crate) struct FakeShim {
    directory: PathBuf,
    _lock: std::fs::File,
}

/// A client of the fake shim.
pub(crate) struct FakeShimClient(UnixStream);

impl FakeShim {
    /// A sandbox of that name that sends its hello to each client, and leaves the rest to `serve`.
    pub(crate) fn new(
        env: &TestEnvironment,
        name: &str,
        serve: impl Fn(FakeShimClient) + Clone + Send + 'static,
    ) -> Self {
        Self::recorded(env, name, |_| {}, serve)
    }

    /// The same with a modified record.
    fn recorded(
        env: &TestEnvironment,
        name: &str,
        change: impl FnOnce(&mut SandboxRecord),
        serve: impl Fn(FakeShimClient) + Clone + Send + 'static,
    ) -> Self {
        let directory = sandbox_directory(env.home.path(), name).unwrap();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).unwrap();
        let lock = std::fs::File::create(directory.join("lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::fs::write(directory.join("incarnation"), INCARNATION).unwrap();
        let mut record = record(name, &directory);
        change(&mut record);
        record.write(std::fs::File::open(&directory).unwrap()).unwrap();
        let listener = UnixListener::bind(directory.join("shim.sock")).unwrap();
        let hello = hello(name);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut caller, serve, hello) = (FakeShimClient(stream.unwrap()), serve.clone(), hello.clone());
                std::thread::spawn(move || {
                    caller.send(0, &hello);
                    serve(caller);
                });
            }
        });
        Self { directory, _lock: lock }
    }

    /// A sandbox by which a daemon reads a disk.
    pub(crate) fn disk_reader(env: &TestEnvironment, sandbox: &str) -> Self {
        let read = |record: &mut SandboxRecord| record.create.kept_disk = Some(PersistentDisk::at("/disk"));
        Self::recorded(env, &format!("{sandbox}..read"), read, |mut caller| while caller.next().is_some() {})
    }

    /// A shim that sends its hello and never answers.
    pub(crate) fn mute(env: &TestEnvironment, name: &str) -> Self {
        Self::new(env, name, |mut caller| while caller.next().is_some() {})
    }
}

impl Drop for FakeShim {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.directory);
    }
}

impl FakeShimClient {
    /// The next request with its id; none if the client has disconnected.
    pub(crate) fn next(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut prefix = [0; PREFIX_SIZE];
        self.0.read_exact(&mut prefix).ok()?;
        let header = Header::parse(&prefix).unwrap();
        let mut body = vec![0; header.body_len];
        self.0.read_exact(&mut body).ok()?;
        Some((header.id, body))
    }

    /// Waits for this request; status requests before it are answered.
    pub(crate) fn expect<M: for<'b> ShimMessage<'b>>(&mut self) -> Option<(u32, M)> {
        loop {
            let (id, body) = self.next()?;
            let envelope = Envelope::parse(&body).unwrap();
            if let Some(message) = decode::<M>(&envelope) {
                return Some((id, message.unwrap()));
            }
            assert!(decode::<GetStatus>(&envelope).is_some(), "{}", envelope.type_name);
            let (running_jobs, ended_jobs, pruned_jobs) = (0, 0, 0);
            let status = Status {
                state: ShimState::Running,
                supervisor: None,
                sequence: 1,
                running_jobs,
                ended_jobs,
                pruned_jobs,
                unenforced: None,
                pause_reason: None,
                ports: None,
                port_connections: None,
            };
            self.send(id, &status);
        }
    }

    pub(crate) fn send<'m, M: ShimMessage<'m>>(&mut self, id: u32, message: &M) {
        let mut frame = Vec::new();
        encode(&mut frame, VERSION, id, message).unwrap();
        // A disconnected client receives nothing.
        let _sent = self.0.write_all(&frame);
    }
}

/// A running job.
pub(crate) fn job(id: &str) -> JobInfo {
    JobInfo {
        job: id.to_owned(),
        command: vec!["true".to_owned()],
        user: None,
        cwd: None,
        tty: false,
        state: JobState::Running,
        pid: Some(7),
        started_ms: 1,
        ended_ms: None,
        timeout_ms: None,
        stdout: JobStream::default(),
        stderr: JobStream::default(),
        stdin_bytes: 0,
        stdin_open: true,
        input: None,
        viewers: 0,
        outcome: None,
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        version: VERSION,
        release: "0".to_owned(),
        name: name.to_owned(),
        incarnation: INCARNATION.to_owned(),
        boot_id: boot_id().unwrap(),
        shim_pid: std::process::id(),
        // A pid that is not a child of this process.
        pid: u32::MAX,
        agent_version: String::new(),
    }
}

fn record(name: &str, directory: &std::path::Path) -> SandboxRecord {
    let pid = std::process::id();
    let create = Create {
        name: name.to_owned(),
        incarnation: INCARNATION.to_owned(),
        directory: directory.into(),
        programs: directory.into(),
        ids: directory.into(),
        agentd: directory.into(),
        root: (&RootFs::default()).into(),
        mounts: Vec::new(),
        project: None,
        disk: 1 << 20,
        kept_disk: None,
        hostname: "carrel".to_owned(),
        limits: SandboxLimits::default(),
        allow_unenforced: false,
        image: "host".to_owned(),
        lasting: false,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    };
    SandboxRecord {
        name: name.to_owned(),
        incarnation: INCARNATION.to_owned(),
        boot_id: boot_id().unwrap(),
        release: "0".to_owned(),
        version: VERSION,
        shim_pid: pid,
        shim_began: process_start_time(pid).unwrap(),
        created_ms: 1,
        image: "host".to_owned(),
        owner: PeerProcess { pid, user: 0, began: 0, command: "test".to_owned() },
        id_base: 0x4000_0000,
        id_count: 65_536,
        supervisor_user: 0,
        cgroup: INCARNATION.to_owned(),
        logs: directory.join("jobs").into(),
        agent_socket: directory.join("agent.sock").into(),
        shim_socket: directory.join("shim.sock").into(),
        lasting: false,
        create,
        device: 0,
        inode: 0,
    }
}
