//! Jobs of a sandbox: how they are started and followed, and what their supervisor holds meanwhile.

use carrel_shim_client::messages::{
    InputWish, JobCommand, JobFollow, JobInfo, JobOutcome, JobOutputGap, OutcomeKind, StreamName,
};
use carrel_shim_client::{Follow, FollowEvent, ShimClient, ShimMessage, encode};
use tokio::net::UnixStream;

use crate::raw::{Peer, Received};
use crate::sandbox::Sandbox;

/// What somebody who followed a job saw of it.
#[derive(Debug)]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub cuts: Vec<JobOutputGap>,
    /// Which output came when, one entry for each change.
    pub turns: Vec<StreamName>,
    pub info: JobInfo,
}

/// What a process takes of the host.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub descriptors: usize,
    /// Bytes of memory, and the most that it ever were.
    pub memory: u64,
    pub peak: u64,
}

/// A job that is a script for the shell.
pub fn script(script: &str) -> JobCommand {
    JobCommand { program: "sh".to_owned(), args: vec!["-c".to_owned(), script.to_owned()], ..JobCommand::default() }
}

/// The same, with an input that stays open.
pub fn fed(text: &str) -> JobCommand {
    JobCommand { stdin: true, ..script(text) }
}

/// Everything that a job writes, for one who only looks.
pub fn all_of(job: &str) -> JobFollow {
    JobFollow { job: job.to_owned(), stdout: Some(0), stderr: Some(0), input: InputWish::None, hold: false }
}

/// Follows a job to its end. What was not kept is told, and nothing else is missing.
pub async fn watch(mut follow: Follow) -> Seen {
    let (mut outputs, mut cuts, mut turns) = ([Vec::new(), Vec::new()], Vec::new(), Vec::new());
    let mut at = [0, 0];
    let index = |stream| usize::from(stream == StreamName::Stderr);
    loop {
        match follow.next().await.unwrap().expect("the end comes last") {
            FollowEvent::Output { stream, offset, data } => {
                assert_eq!(offset, at[index(stream)], "{stream:?} has a hole");
                assert!(!data.is_empty());
                at[index(stream)] += data.len() as u64;
                outputs[index(stream)].extend_from_slice(&data);
                if turns.last() != Some(&stream) {
                    turns.push(stream);
                }
            }
            FollowEvent::Cut(cut) => {
                assert!(cut.from == at[index(cut.stream)] && cut.to > cut.from, "{cut:?}");
                at[index(cut.stream)] = cut.to;
                cuts.push(cut);
            }
            FollowEvent::Input(_) => {}
            FollowEvent::Ended(info) => {
                assert_eq!((info.stdout.length, info.stderr.length), (at[0], at[1]), "something is missing at the end");
                let [stdout, stderr] = outputs;
                return Seen { stdout, stderr, cuts, turns, info };
            }
        }
    }
}

/// Waits until a job has written that text, from the beginning of what its follower sees next.
pub async fn until(follow: &mut Follow, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match follow.next().await.unwrap() {
            Some(FollowEvent::Output { data, .. }) => seen.push_str(&String::from_utf8_lossy(&data)),
            Some(FollowEvent::Input(_)) => {}
            other => panic!("{other:?} before {text:?}, after {seen:?}"),
        }
    }
    seen
}

/// How a job ended: the kind, the code, the signal.
pub fn ending(info: &JobInfo) -> (OutcomeKind, Option<i32>, Option<i32>) {
    let JobOutcome { kind, code, signal, .. } = info.outcome.clone().expect("it has ended");
    (kind, code, signal)
}

// === impl Sandbox ===

impl Sandbox {
    /// A connection to its supervisor.
    pub async fn shim(&self) -> ShimClient {
        ShimClient::connect(&self.owned.shim_socket()).await.unwrap()
    }

    /// A connection of raw frames to its supervisor, greeted.
    pub async fn raw_shim(&self) -> Peer {
        let mut peer = Peer::over(UnixStream::connect(self.owned.shim_socket()).await.unwrap());
        assert_eq!(peer.next().await.unwrap().envelope().type_name, "shim.hello");
        peer
    }

    /// Starts a job and follows it, on a connection of its own.
    pub async fn follow(&self, job: &str, command: &JobCommand) -> Follow {
        let mut shim = self.shim().await;
        shim.start(job, command).await.unwrap();
        shim.follow(&all_of(job)).await.unwrap()
    }

    /// Runs a job to its end.
    pub async fn job(&self, job: &str, command: &JobCommand) -> Seen {
        watch(self.follow(job, command).await).await
    }

    /// The processes that are in it, as the host numbers them, its first one included.
    pub fn processes(&self) -> Vec<u32> {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let here = std::path::PathBuf::from("/sys/fs/cgroup");
        let files = hierarchies.chain([here]).map(|path| path.join("carrel").join(&self.create.incarnation));
        let text = files.filter_map(|group| std::fs::read_to_string(group.join("cgroup.procs")).ok());
        let text = text.max_by_key(String::len).unwrap_or_default();
        let mut pids: Vec<u32> = text.lines().map(|pid| pid.parse().unwrap()).collect();
        pids.sort_unstable();
        pids
    }

    /// What its supervisor takes of the host.
    pub fn footprint(&self) -> Footprint {
        let pid = self.owned.shim_pid();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
        };
        Footprint { descriptors, memory: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

// === impl Peer ===

impl Peer {
    /// Asks a supervisor something, without waiting for the answer.
    pub async fn ask<'b, M: ShimMessage<'b>>(&mut self, id: u32, message: &M) {
        let mut frame = Vec::new();
        encode(&mut frame, carrel_shim_client::VERSION, id, message).unwrap();
        self.send_bytes(&frame).await;
    }
}

// === impl Received ===

impl Received {
    /// The message of a supervisor, which has to be of the given type.
    pub fn message<M: for<'b> ShimMessage<'b>>(&self) -> M {
        let envelope = self.envelope();
        carrel_shim_client::decode(&envelope).unwrap_or_else(|| panic!("{}", envelope.type_name)).unwrap()
    }
}
