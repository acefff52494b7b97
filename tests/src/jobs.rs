//! Starts and follows jobs of a sandbox, and measures what their shim holds meanwhile.

use carrel_shim_client::messages::{
    InputWish, JobCommand, JobFollow, JobInfo, JobOutcome, JobOutputGap, OutcomeKind, StreamName,
};
use carrel_shim_client::{Follow, FollowEvent, ShimClient, ShimMessage, encode};
use tokio::net::UnixStream;

use crate::raw::{Peer, PeerFrame};
use crate::sandbox::TestSandbox;

/// What a client that followed a job to its end received.
#[derive(Debug)]
pub struct JobTranscript {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub gaps: Vec<JobOutputGap>,
    /// The streams in the order of their output, one entry for each change.
    pub stream_order: Vec<StreamName>,
    pub info: JobInfo,
}

/// The resources of the host that a shim holds.
#[derive(Clone, Copy, Debug)]
pub struct ShimFootprint {
    pub descriptors: usize,
    /// Resident memory in bytes.
    pub memory: u64,
    /// The highest value of `memory` so far.
    pub peak: u64,
}

/// A job that runs a shell script.
pub fn script(script: &str) -> JobCommand {
    JobCommand { program: "sh".to_owned(), args: vec!["-c".to_owned(), script.to_owned()], ..JobCommand::default() }
}

/// The same, with a standard input that stays open.
pub fn script_with_stdin(text: &str) -> JobCommand {
    JobCommand { stdin: true, ..script(text) }
}

/// A request for all output of a job, without its input.
pub fn follow_all(job: &str) -> JobFollow {
    JobFollow { job: job.to_owned(), stdout: Some(0), stderr: Some(0), input: InputWish::None, hold: false }
}

/// Follows a job to its end. Fails if output is missing for which no gap was reported.
pub async fn follow_to_end(mut follow: Follow) -> JobTranscript {
    let (mut outputs, mut gaps, mut stream_order) = ([Vec::new(), Vec::new()], Vec::new(), Vec::new());
    let mut at = [0, 0];
    let index = |stream| usize::from(stream == StreamName::Stderr);
    loop {
        match follow.next().await.unwrap().expect("the last event is the end of the job") {
            FollowEvent::Output { stream, offset, data } => {
                assert_eq!(offset, at[index(stream)], "{stream:?} has a gap that was not reported");
                assert!(!data.is_empty());
                at[index(stream)] += data.len() as u64;
                outputs[index(stream)].extend_from_slice(&data);
                if stream_order.last() != Some(&stream) {
                    stream_order.push(stream);
                }
            }
            FollowEvent::Cut(gap) => {
                assert!(gap.from == at[index(gap.stream)] && gap.to > gap.from, "{gap:?}");
                at[index(gap.stream)] = gap.to;
                gaps.push(gap);
            }
            FollowEvent::Input(_) => {}
            FollowEvent::Ended(info) => {
                assert_eq!(
                    (info.stdout.length, info.stderr.length),
                    (at[0], at[1]),
                    "the end of the output is missing"
                );
                let [stdout, stderr] = outputs;
                return JobTranscript { stdout, stderr, gaps, stream_order, info };
            }
        }
    }
}

/// Reads the output of a job until it contains `text`. Returns everything that was read.
pub async fn read_until(follow: &mut Follow, text: &str) -> String {
    let mut output = String::new();
    while !output.contains(text) {
        match follow.next().await.unwrap() {
            Some(FollowEvent::Output { data, .. }) => output.push_str(&String::from_utf8_lossy(&data)),
            Some(FollowEvent::Input(_)) => {}
            other => panic!("{other:?} before {text:?}, after {output:?}"),
        }
    }
    output
}

/// The outcome of a job: its kind, exit code and signal.
pub fn outcome_of(info: &JobInfo) -> (OutcomeKind, Option<i32>, Option<i32>) {
    let JobOutcome { kind, code, signal, .. } = info.outcome.clone().expect("the job has ended");
    (kind, code, signal)
}

// === impl TestSandbox ===

impl TestSandbox {
    /// A client of its shim.
    pub async fn shim(&self) -> ShimClient {
        ShimClient::connect(&self.owned.shim_socket()).await.unwrap()
    }

    /// A connection of raw frames to its shim, after the hello.
    pub async fn raw_shim(&self) -> Peer {
        let mut peer = Peer::over(UnixStream::connect(self.owned.shim_socket()).await.unwrap());
        assert_eq!(peer.next().await.unwrap().envelope().type_name, "shim.hello");
        peer
    }

    /// Starts a job and follows it on a connection of its own.
    pub async fn follow(&self, job: &str, command: &JobCommand) -> Follow {
        let mut shim = self.shim().await;
        shim.start(job, command).await.unwrap();
        shim.follow(&follow_all(job)).await.unwrap()
    }

    /// Runs a job to its end.
    pub async fn job(&self, job: &str, command: &JobCommand) -> JobTranscript {
        follow_to_end(self.follow(job, command).await).await
    }

    /// The pids of its processes on the host, including its init process.
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

    /// The resources of the host that its shim holds.
    pub fn footprint(&self) -> ShimFootprint {
        let pid = self.owned.shim_pid();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
        };
        ShimFootprint { descriptors, memory: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

// === impl Peer ===

impl Peer {
    /// Sends a request to a shim without waiting for the response.
    pub async fn request<'b, M: ShimMessage<'b>>(&mut self, id: u32, message: &M) {
        let mut frame = Vec::new();
        encode(&mut frame, carrel_shim_client::VERSION, id, message).unwrap();
        self.send_bytes(&frame).await;
    }
}

// === impl PeerFrame ===

impl PeerFrame {
    /// The message of a shim. Panics if it has another type.
    pub fn message<M: for<'b> ShimMessage<'b>>(&self) -> M {
        let envelope = self.envelope();
        carrel_shim_client::decode(&envelope).unwrap_or_else(|| panic!("{}", envelope.type_name)).unwrap()
    }
}
