use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use carrel_agent_client::protocol::codec::encode;
use carrel_agent_client::protocol::frame::{Header, PREFIX_SIZE};
use carrel_agent_client::protocol::payload::{FsData, FsOp, FsRequest, FsResponse, FsResult, Ready};
use carrel_agent_client::protocol::{Codec, Envelope, Generation, Payload};
use carrel_agent_client::{AgentClient, ConnectOptions};

use super::super::request::CopyRequest;
use super::*;

/// A generation whose files travel as plain messages.
const GENERATION: Generation = Generation::new(7);

/// An agent that says of its files whatever a test wants said.
struct LyingAgent {
    stream: UnixStream,
    entries: Vec<FsEntry>,
    leads_to: &'static str,
    /// Whether every directory has all of it in it.
    endless: bool,
}

impl LyingAgent {
    fn say<'b, P: Payload<'b>>(&mut self, id: u32, payload: &P) {
        let mut frame = Vec::new();
        encode(&mut frame, GENERATION, id, payload).unwrap();
        // Its client may be gone by then.
        let _said = self.stream.write_all(&frame);
    }

    /// Answers until its client is gone.
    fn serve(mut self) {
        let mut prologue = Codec::Current.prologue(Codec::Current.range(0).unwrap());
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
                FsOp::ReadLink(_) => Some(FsResult::Path(self.leads_to.to_owned())),
                FsOp::Read(_) => {
                    self.say(header.id, &FsData { data: b"owned".as_slice().into() });
                    None
                }
                _ => None,
            };
            self.say(header.id, &FsResponse { ok: true, error: None, data, errno_name: None, no_symlinks: false });
        }
    }
}

fn entry(path: &str, kind: FsEntryKind) -> FsEntry {
    let (path, mode) = (path.to_owned(), 0o106_777);
    FsEntry { path, kind, size: 5, mode, modified: Some(7), uid: 0, gid: 0, atime: None, mtime: Some(7) }
}

/// Copies what a liar says is in its directory to `out`; returns what was said about it.
fn copied(out: &Path, leads_to: &'static str, entries: &[(&str, FsEntryKind)]) -> Result<CopyReport, String> {
    copied_from(out, |stream| {
        let entries = entries.iter().map(|(path, kind)| entry(path, *kind)).collect();
        LyingAgent { stream, entries, leads_to, endless: false }
    })
}

fn copied_from(out: &Path, liar: impl FnOnce(UnixStream) -> LyingAgent) -> Result<CopyReport, String> {
    let (ours, stream) = UnixStream::pair().unwrap();
    let liar = liar(stream);
    let liar = std::thread::spawn(|| liar.serve());
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
    liar.join().unwrap();
    copied
}

fn names(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory to copy to, in one that nothing may appear in.
fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let around = tempfile::tempdir().unwrap();
    let out = around.path().join("out");
    std::fs::create_dir(&out).unwrap();
    (around, out)
}

#[test]
fn whatever_path_an_agent_tells_a_copy_stays_in_its_directory() {
    let (around, out) = place();
    let escape = around.path().join("victim");
    for path in ["plain", "/etc/shadow", "../../victim", escape.to_str().unwrap()] {
        let report = copied(&out, "", &[(path, FsEntryKind::File)]).unwrap();
        assert_eq!((report.files, report.bytes), (1, 5), "{path}");
    }
    // The honest one and the others arrived, each by its last name.
    assert_eq!(names(&out), ["plain", "shadow", "victim"]);
    assert_eq!(std::fs::read_to_string(out.join("victim")).unwrap(), "owned");
    assert_eq!(names(around.path()), ["out"]);
}

#[test]
fn what_is_no_name_ends_the_copy() {
    let (around, out) = place();
    for kind in [FsEntryKind::File, FsEntryKind::Dir, FsEntryKind::Symlink] {
        for path in ["..", "/x/..", ".", "", "/x/", "a\0b"] {
            let said = copied(&out, "/etc", &[(path, kind)]).unwrap_err();
            assert!(said.starts_with("the sandbox names a file wrongly: "), "{path}: {said}");
        }
    }
    assert_eq!((names(&out), names(around.path())), (Vec::new(), vec!["out".to_owned()]));
}

#[test]
fn one_name_told_twice_is_not_a_way_through_a_link() {
    let (around, out) = place();
    let twice = [("x", FsEntryKind::Symlink), ("x", FsEntryKind::Dir)];
    let said = copied(&out, ".", &twice).unwrap_err();
    assert!(said.ends_with("/x: something else than a directory is there, and is not replaced"), "{said}");
    // The link is there, and leads somewhere.
    assert_eq!(names(&out.join("x")), ["x"]);
    let report = copied(&out, ".", &[("x", FsEntryKind::Symlink), ("x", FsEntryKind::File)]).unwrap();
    assert_eq!((report.links, report.files), (1, 1));
    assert!(out.join("x").symlink_metadata().unwrap().is_file());
    assert_eq!(names(around.path()), ["out"]);
}

#[test]
fn a_link_that_leads_out_is_not_made() {
    let (around, out) = place();
    for leads_to in ["/etc", "..", "./..", "a/../..", "../out"] {
        let report = copied(&out, leads_to, &[("x", FsEntryKind::Symlink)]).unwrap();
        assert_eq!((report.links, report.missing(), report.leaves()), (0, 1, true), "{leads_to}");
    }
    assert_eq!((names(&out), names(around.path())), (Vec::new(), vec!["out".to_owned()]));
    assert_eq!(copied(&out, "y/z", &[("x", FsEntryKind::Symlink)]).unwrap().links, 1);
}

#[test]
fn a_tree_without_an_end_is_given_up() {
    let (around, out) = place();
    let entries = vec![entry("d", FsEntryKind::Dir)];
    let said = copied_from(&out, |stream| LyingAgent { stream, entries, leads_to: "", endless: true }).unwrap_err();
    assert_eq!(said, format!("the tree is deeper than {DEEPEST} directories"));
    assert_eq!(names(around.path()), ["out"]);
}
