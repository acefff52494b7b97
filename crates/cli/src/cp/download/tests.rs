use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use carrel_agent_client::protocol::codec::encode;
use carrel_agent_client::protocol::frame::{Header, PREFIX_SIZE};
use carrel_agent_client::protocol::payload::{FsData, FsOp, FsRequest, FsResponse, FsResult, Ready};
use carrel_agent_client::protocol::{Envelope, Generation, Payload, PrologueFormat};
use carrel_agent_client::{AgentClient, ConnectOptions};

use super::super::request::CopyRequest;
use super::*;

/// A generation that transfers files as plain messages.
const GENERATION: Generation = Generation::new(7);

/// An agent that reports whatever a test wants about its files.
struct LyingAgent {
    stream: UnixStream,
    entries: Vec<FsEntry>,
    link_target: &'static str,
    /// Whether every directory contains all entries again.
    endless: bool,
}

impl LyingAgent {
    fn send<'b, P: Payload<'b>>(&mut self, id: u32, payload: &P) {
        let mut frame = Vec::new();
        encode(&mut frame, GENERATION, id, payload).unwrap();
        // The client may have disconnected.
        let _sent = self.stream.write_all(&frame);
    }

    /// Answers until the client disconnects.
    fn serve(mut self) {
        let mut prologue = PrologueFormat::Current.prologue(PrologueFormat::Current.range(0).unwrap());
        encode(&mut prologue, GENERATION, 0, &Ready::default()).unwrap();
        self.stream.write_all(&prologue).unwrap();
        let mut prefix = [0; PREFIX_SIZE];
        while self.stream.read_exact(&mut prefix).is_ok() {
            let header = Header::parse(&prefix).unwrap();
            let mut body = vec![0; header.body_len];
            self.stream.read_exact(&mut body).unwrap();
            let Ok(request) = Envelope::parse(&body).unwrap().payload::<FsRequest>() else { continue };
            let data = match request.op {
                FsOp::Stat(_) => Some(FsResult::Stat(entry("/", FsEntryKind::Dir))),
                FsOp::OpenDir(_) | FsOp::OpenFile(_) => Some(FsResult::Handle(1)),
                FsOp::ReadDir(_) if self.endless => Some(FsResult::List(self.entries.clone())),
                FsOp::ReadDir(_) => Some(FsResult::List(std::mem::take(&mut self.entries))),
                FsOp::ReadLink(_) => Some(FsResult::Path(self.link_target.to_owned())),
                FsOp::Read(_) => {
                    self.send(header.id, &FsData { data: b"owned".as_slice().into() });
                    None
                }
                _ => None,
            };
            self.send(header.id, &FsResponse { ok: true, error: None, data, errno_name: None, no_symlinks: false });
        }
    }
}

fn entry(path: &str, kind: FsEntryKind) -> FsEntry {
    let (path, mode) = (path.to_owned(), 0o106_777);
    FsEntry { path, kind, size: 5, mode, modified: Some(7), uid: 0, gid: 0, atime: None, mtime: Some(7) }
}

/// Copies the reported entries to `out`; returns the report, or the error message.
fn copied(out: &Path, link_target: &'static str, entries: &[(&str, FsEntryKind)]) -> Result<CopyReport, String> {
    copied_from(out, |stream| {
        let entries = entries.iter().map(|(path, kind)| entry(path, *kind)).collect();
        LyingAgent { stream, entries, link_target, endless: false }
    })
}

fn copied_from(out: &Path, agent: impl FnOnce(UnixStream) -> LyingAgent) -> Result<CopyReport, String> {
    let (ours, stream) = UnixStream::pair().unwrap();
    let agent = agent(stream);
    let agent = std::thread::spawn(|| agent.serve());
    let runtime = crate::find::runtime().unwrap();
    let copied = runtime.block_on(async {
        ours.set_nonblocking(true).unwrap();
        let ours = tokio::net::UnixStream::from_std(ours).unwrap();
        let client = AgentClient::connect_stream(ours, ConnectOptions::default()).await.unwrap();
        let CopyRequest::Download { source, .. } = CopyRequest::parse("web:/.".as_ref(), "x".as_ref()).unwrap() else {
            panic!("inward")
        };
        let mut report = CopyReport::default();
        let copied = copy(&client.files(), &source, out, false, &mut report).await;
        client.close();
        copied.map(|()| report).map_err(|failure| failure.message)
    });
    drop(runtime);
    agent.join().unwrap();
    copied
}

fn names(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory to copy to, inside one in which nothing else may appear.
fn test_directory() -> (tempfile::TempDir, std::path::PathBuf) {
    let around = tempfile::tempdir().unwrap();
    let out = around.path().join("out");
    std::fs::create_dir(&out).unwrap();
    (around, out)
}

#[test]
fn a_copy_stays_in_its_directory_whatever_path_the_agent_reports() {
    let (around, out) = test_directory();
    let escape = around.path().join("victim");
    for path in ["plain", "/etc/shadow", "../../victim", escape.to_str().unwrap()] {
        let report = copied(&out, "", &[(path, FsEntryKind::File)]).unwrap();
        assert_eq!((report.files, report.bytes), (1, 5), "{path}");
    }
    // Each file has the last component of its reported path.
    assert_eq!(names(&out), ["plain", "shadow", "victim"]);
    assert_eq!(std::fs::read_to_string(out.join("victim")).unwrap(), "owned");
    assert_eq!(names(around.path()), ["out"]);
}

#[test]
fn an_invalid_file_name_fails_the_copy() {
    let (around, out) = test_directory();
    for kind in [FsEntryKind::File, FsEntryKind::Dir, FsEntryKind::Symlink] {
        for path in ["..", "/x/..", ".", "", "/x/", "a\0b"] {
            let message = copied(&out, "/etc", &[(path, kind)]).unwrap_err();
            assert!(message.starts_with("the sandbox reports an invalid file name: "), "{path}: {message}");
        }
    }
    assert_eq!((names(&out), names(around.path())), (Vec::new(), vec!["out".to_owned()]));
}

#[test]
fn a_name_reported_twice_does_not_lead_through_a_link() {
    let (around, out) = test_directory();
    let twice = [("x", FsEntryKind::Symlink), ("x", FsEntryKind::Dir)];
    let message = copied(&out, ".", &twice).unwrap_err();
    assert!(message.ends_with("/x: a file that is not a directory exists, and is not replaced"), "{message}");
    // The link exists and resolves.
    assert_eq!(names(&out.join("x")), ["x"]);
    let report = copied(&out, ".", &[("x", FsEntryKind::Symlink), ("x", FsEntryKind::File)]).unwrap();
    assert_eq!((report.links, report.files), (1, 1));
    assert!(out.join("x").symlink_metadata().unwrap().is_file());
    assert_eq!(names(around.path()), ["out"]);
}

#[test]
fn a_link_that_points_out_of_the_copy_is_skipped() {
    let (around, out) = test_directory();
    for link_target in ["/etc", "..", "./..", "a/../..", "../out"] {
        let report = copied(&out, link_target, &[("x", FsEntryKind::Symlink)]).unwrap();
        assert_eq!((report.links, report.missing(), report.has_leaving_link()), (0, 1, true), "{link_target}");
    }
    assert_eq!((names(&out), names(around.path())), (Vec::new(), vec!["out".to_owned()]));
    assert_eq!(copied(&out, "y/z", &[("x", FsEntryKind::Symlink)]).unwrap().links, 1);
}

#[test]
fn an_endless_tree_fails_the_copy() {
    let (around, out) = test_directory();
    let entries = vec![entry("d", FsEntryKind::Dir)];
    let message =
        copied_from(&out, |stream| LyingAgent { stream, entries, link_target: "", endless: true }).unwrap_err();
    assert_eq!(message, format!("the tree is deeper than {MAX_DEPTH} directories"));
    assert_eq!(names(around.path()), ["out"]);
}
