//! Reports changes below a directory with inotify.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use carrel_protocol::payload::{CarrelFsEvents, TreeEvent, TreeEventKind, TreeMatch, TreeWatch};
use rustix::fs::{FileType, inotify};
use rustix::io::Errno;

use super::walk::TreeWalk;
use super::{TreeOperation, TreeStep};
use crate::files::{FsError, join};
use crate::poll::{PollToken, SessionFd};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// The maximum number of directories of one watch.
const MOST: usize = 16_384;
/// The approximate number of changes per step.
const BATCH: usize = 128;
/// The maximum number of changes per frame: paths may be long.
const IN_A_FRAME: usize = 24;
/// Entries per step.
const VISITS: usize = 256;

/// A watch in progress.
pub(super) struct TreeWatcher {
    inotify: OwnedFd,
    paths: BTreeMap<i32, String>,
    recursive: bool,
    /// Walks through new directories, to watch their subdirectories.
    walks: Vec<WatchDiscovery>,
    announced: bool,
}

/// A walk below a newly watched directory.
struct WatchDiscovery {
    path: String,
    walk: TreeWalk,
    /// Whether its entries are new and have to be reported.
    new: bool,
}

struct PendingChange {
    kind: TreeEventKind,
    path: String,
    cookie: u32,
    directory: bool,
    arrived: bool,
}

fn failed(errno: Errno) -> FsError {
    FsError::new("watch", errno)
}

// === impl TreeWatcher ===

impl TreeWatcher {
    pub(super) fn start(io: &mut SessionIo, key: SessionKey, watch: &TreeWatch) -> Result<Self, FsError> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map_err(failed)?;
        io.poller.add(&inotify, PollToken::Session(key, SessionFd::Primary)).map_err(failed)?;
        let mut started =
            Self { inotify, paths: BTreeMap::new(), recursive: watch.recursive, walks: Vec::new(), announced: false };
        started.add(&watch.path).map_err(failed)?;
        if watch.recursive {
            started.discover(&watch.path, false)?;
        }
        Ok(started)
    }

    fn add(&mut self, path: &str) -> Result<(), Errno> {
        use inotify::WatchFlags as F;
        let flags = F::CREATE | F::DELETE | F::DELETE_SELF | F::MODIFY | F::ATTRIB | F::MOVED_FROM | F::MOVED_TO;
        if self.paths.len() >= MOST {
            return Err(Errno::NOSPC);
        }
        let number = inotify::add_watch(&self.inotify, path, flags | F::DONT_FOLLOW | F::EXCL_UNLINK)?;
        self.paths.insert(number, path.to_owned());
        Ok(())
    }

    /// Starts to watch the subdirectories of a directory.
    fn discover(&mut self, path: &str, new: bool) -> Result<(), FsError> {
        match TreeWalk::new(path, true) {
            Ok(walk) => self.walks.push(WatchDiscovery { path: path.to_owned(), walk, new }),
            // A file, or already removed.
            Err(Errno::NOTDIR | Errno::NOENT | Errno::LOOP | Errno::ACCESS) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(())
    }

    /// Continues the walks for one step, and reports the entries of new directories.
    fn walk(&mut self, events: &mut Vec<TreeEvent>) -> Result<(), FsError> {
        for _ in 0..VISITS {
            let Some(discovery) = self.walks.last_mut() else { return Ok(()) };
            let Some(visited) = discovery.walk.next().map_err(failed)? else {
                self.walks.pop();
                continue;
            };
            let path = join(&discovery.path, &visited.path);
            if discovery.new {
                events.push(TreeEvent { kind: TreeEventKind::Created, path: path.clone(), to: None });
            }
            if visited.kind == FileType::Directory {
                match self.add(&path) {
                    Ok(()) | Err(Errno::NOENT | Errno::ACCESS) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
        }
        Ok(())
    }

    fn changes(&mut self) -> Result<Vec<PendingChange>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut changes = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let below = self.paths.get(&event.wd());
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    let path = match (below, name) {
                        (Some(below), Some(name)) => join(below, &name),
                        (Some(below), None) => below.clone(),
                        (None, _) => String::new(),
                    };
                    if event.events().contains(inotify::ReadFlags::IGNORED) {
                        self.paths.remove(&event.wd());
                    }
                    changes.extend(PendingChange::new(event.events(), path, event.cookie()));
                    if changes.len() >= BATCH && reader.is_buffer_empty() {
                        return Ok(changes);
                    }
                }
                Err(Errno::AGAIN) => return Ok(changes),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl TreeOperation for TreeWatcher {
    fn step(&mut self, io: &mut SessionIo, key: SessionKey, _: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError> {
        let mut events = Vec::new();
        if !self.walks.is_empty() {
            self.walk(&mut events)?;
            send_events(io, key, events);
            return Ok(TreeStep::More);
        }
        if !std::mem::replace(&mut self.announced, true) {
            // An empty batch: from here on no change is missed.
            io.send_small(key, &CarrelFsEvents { events: Vec::new() });
        }
        let changes = self.changes().map_err(failed)?;
        let more = changes.len() >= BATCH;
        let mut from: Option<(u32, usize)> = None;
        for change in changes {
            match (&change.kind, from.take()) {
                (TreeEventKind::Created, Some((cookie, index))) if change.cookie == cookie && cookie != 0 => {
                    if let Some(event) = events.get_mut(index) {
                        (event.kind, event.to) = (TreeEventKind::Moved, Some(change.path.clone()));
                    }
                }
                _ => {
                    if change.kind == TreeEventKind::Removed && change.cookie != 0 {
                        from = Some((change.cookie, events.len()));
                    }
                    events.push(TreeEvent { kind: change.kind, path: change.path.clone(), to: None });
                }
            }
            if self.recursive && change.directory && change.arrived && self.add(&change.path).is_ok() {
                self.discover(&change.path, true)?;
            }
        }
        send_events(io, key, events);
        Ok(if more || !self.walks.is_empty() { TreeStep::More } else { TreeStep::Wait })
    }
}

/// Sends events, as many per frame as fit with any paths.
fn send_events(io: &mut SessionIo, key: SessionKey, mut events: Vec<TreeEvent>) {
    while !events.is_empty() {
        let rest = events.split_off(events.len().min(IN_A_FRAME));
        io.send_small(key, &CarrelFsEvents { events });
        events = rest;
    }
}

// === impl PendingChange ===

impl PendingChange {
    fn new(flags: inotify::ReadFlags, path: String, cookie: u32) -> Option<Self> {
        use inotify::ReadFlags as F;
        let kind = if flags.contains(F::QUEUE_OVERFLOW) {
            TreeEventKind::Overflow
        } else if flags.intersects(F::CREATE | F::MOVED_TO) {
            TreeEventKind::Created
        } else if flags.intersects(F::DELETE | F::DELETE_SELF | F::MOVED_FROM) {
            TreeEventKind::Removed
        } else if flags.contains(F::MODIFY) {
            TreeEventKind::Modified
        } else if flags.contains(F::ATTRIB) {
            TreeEventKind::Attributes
        } else {
            return None;
        };
        let arrived = kind == TreeEventKind::Created;
        Some(Self { kind, path, cookie, directory: flags.contains(F::ISDIR), arrived })
    }
}
